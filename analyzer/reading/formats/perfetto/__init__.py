"""Perfetto's own format (``.pftrace``): a chrome trace in packets, read by way of its JSON."""
