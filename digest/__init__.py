"""A job in kilobytes a rank: what statistics and comparisons need of it, without its events."""
