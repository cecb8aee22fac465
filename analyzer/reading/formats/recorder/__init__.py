"""Dumps of a collective library's flight recorder."""
