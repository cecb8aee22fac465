"""Offsets and drift between the clocks of hosts."""
