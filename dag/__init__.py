"""The dependency graph of a job: its type, its sources (GML, BytePS, Kineto, DASF) and its longest path."""
