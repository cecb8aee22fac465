"""What the options compute: data in, data out, no output."""
