"""The door to graphs: recorded steps (`load_steps`), their critical paths, and the DAGs of GML files.

Who only takes a `Recording` apart imports its types from `graph.step_graph`.
"""

from __future__ import annotations

from analyzer.model.graph.critical_path import CATS, GAP, NO_EVENT, CriticalPath, critical_path, slack_ns
from analyzer.model.graph.dependencies import mean_dags
from analyzer.model.graph.job_steps import LoadedSteps, choose_step, load_steps, read_partitions
from analyzer.model.graph.join_ranks import by_link
from analyzer.model.graph.marked_timeline import marked_rows, recorded_row
from analyzer.model.graph.model import Dag, LongestPath, longest_path, new_dag
from analyzer.model.graph.path_summary import (
    NamedPath,
    by_category,
    by_name,
    category,
    gap_covers,
    headline,
    kind_of_work,
    named_path,
    step_length,
)
from analyzer.model.graph.rank_record import Partitions, RankFacts
from analyzer.model.graph.scopes import OperationSlack, Scope, longest_chain, scopes_of, step_operations
from analyzer.model.graph.step_graph import Recording, StepGraph

__all__ = [
    "CATS", "GAP", "NO_EVENT", "CriticalPath", "Dag", "LoadedSteps",
    "LongestPath", "NamedPath", "OperationSlack", "Partitions", "RankFacts", "Recording", "Scope",
    "StepGraph",
    "by_category", "by_link", "by_name", "category", "choose_step", "critical_path",
    "gap_covers", "headline", "kind_of_work", "load_steps",
    "longest_chain", "longest_path", "marked_rows", "mean_dags", "named_path", "new_dag",
    "read_partitions", "recorded_row", "scopes_of", "slack_ns", "step_length", "step_operations",
]  # fmt: skip
