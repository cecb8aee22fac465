"""What changed between runs, whether it is real, and what it explains."""
