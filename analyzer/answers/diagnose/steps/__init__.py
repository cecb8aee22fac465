"""Why steps are slow: detectors and what they look at."""
