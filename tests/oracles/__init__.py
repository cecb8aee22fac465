"""Simulated jobs whose answers are known because nothing of the program made them."""
