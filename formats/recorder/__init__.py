"""The dumps of flight recorders."""
