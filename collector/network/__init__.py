"""Packet captures and server logs as timelines."""
