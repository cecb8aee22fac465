"""Offsets between the clocks of hosts."""
