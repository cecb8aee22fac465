"""Why steps of a log are slow, from times per step and rank."""
