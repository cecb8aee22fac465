"""Recordings: paths, file formats and the dialects of profilers."""
