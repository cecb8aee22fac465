"""Files this program writes: whole or not at all, and never over a file it did not write."""
