"""How far answers are from the truth, on simulated and on recorded jobs."""
