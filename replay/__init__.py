"""The simulation of a job's graph, and what-if."""
