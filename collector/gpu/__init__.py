"""The final trace and DAG of a GPU from what the profilers wrote."""
