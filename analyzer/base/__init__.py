"""Helpers that know nothing of traces: errors, files, arrays, outputs, processes."""
