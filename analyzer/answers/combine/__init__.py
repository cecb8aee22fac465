"""Several traces as one timeline."""
