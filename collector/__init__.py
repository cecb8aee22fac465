"""Builds a BytePS job's trace, DAG and network timeline from its raw files; one module per source."""
