"""Readers and writers of file formats: bytes to columns of numpy arrays."""
