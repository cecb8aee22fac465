"""Durations of operations, the time of steps by role, and collectives."""
