"""The door to graphs: recorded steps (`load_steps`), their critical paths, and the DAGs of GML files.

The types of a recorded step (`Recording`, `StepGraph`) are in `analyzer.model.graph.step_graph`.
"""

from __future__ import annotations

from analyzer.model.graph.critical_path import CriticalPath, critical_path
from analyzer.model.graph.dag import Dag, LongestPath, mean_dags
from analyzer.model.graph.job_steps import LoadedSteps, RankFacts, load_steps, read_partitions
from analyzer.model.graph.path_summary import (
    NamedPath,
    Scope,
    longest_chain,
    scopes_of,
    step_length,
    step_operations,
)

__all__ = [
    "CriticalPath", "Dag", "LoadedSteps", "LongestPath", "NamedPath", "RankFacts",
    "Scope", "critical_path", "load_steps", "longest_chain", "mean_dags",
    "read_partitions", "scopes_of", "step_length", "step_operations",
]  # fmt: skip
