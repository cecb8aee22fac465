"""Raw files of a job to its final trace, DAG and timelines; one module per source."""
