"""Edits of a replayed step: what would happen if."""
