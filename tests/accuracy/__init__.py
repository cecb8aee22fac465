"""Accuracy of answers on simulated and on recorded jobs."""
