"""Figures of ranks that add up: durations, time by role, step times; a digest is their file."""
