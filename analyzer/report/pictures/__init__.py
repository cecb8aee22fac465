"""Charts as pictures: stills, drawn graphs, and graphs for other programs."""
