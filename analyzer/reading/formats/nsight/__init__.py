"""Databases that Nsight Systems exports."""
