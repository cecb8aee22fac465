"""How long operations take, and where a step's time goes."""
