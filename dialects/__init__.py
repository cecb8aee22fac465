"""One module per system: what its traces mean."""
