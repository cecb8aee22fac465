"""Changes between runs: how large, whether significant, and how much they explain."""
