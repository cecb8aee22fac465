"""Facts about a job that several answers share: figures, clocks and step graphs."""
