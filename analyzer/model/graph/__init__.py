"""The step graph of a job: its type, how ranks are joined, and its critical path."""
