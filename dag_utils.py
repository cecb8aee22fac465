"""The door to graphs: recorded steps (`load_steps`), their critical paths, and the DAGs of GML files.

Who only takes a `Recording` apart imports its types from `dag.step_graph`.
"""

from __future__ import annotations

from dag.critical_path import CATS, GAP, NO_EVENT, CriticalPath, critical_path, slack_ns
from dag.dependencies import mean_dags
from dag.job_steps import LoadedSteps, choose_step, load_steps, read_partitions
from dag.join_ranks import by_link
from dag.marked_timeline import marked_events, place_tracks
from dag.model import Dag, LongestPath, longest_path, new_dag
from dag.path_summary import (
    BY_NAME,
    KIND,
    PATH,
    PATH_WITH_RULES,
    NamedPath,
    by_category,
    by_name,
    category,
    gap_covers,
    headline,
    kind_of_work,
    named_path,
    records,
)
from dag.rank_record import Partitions, RankFacts
from dag.scopes import OperationSlack, Scope, longest_chain, scopes_of, step_operations
from dag.step_graph import Recording, StepGraph
from dag.step_timeline import group_of, key_of, path_bars, step_timeline, stretch_key

__all__ = [
    "BY_NAME", "CATS", "GAP", "KIND", "NO_EVENT", "PATH", "PATH_WITH_RULES", "CriticalPath", "Dag",
    "LoadedSteps", "LongestPath", "NamedPath", "OperationSlack", "Partitions", "RankFacts", "Recording",
    "Scope", "StepGraph",
    "by_category", "by_link", "by_name", "category", "choose_step", "critical_path",
    "gap_covers", "group_of", "headline", "key_of", "kind_of_work", "load_steps",
    "longest_chain", "longest_path", "marked_events", "mean_dags", "named_path", "new_dag", "path_bars",
    "place_tracks", "read_partitions", "records", "scopes_of", "slack_ns", "step_operations",
    "step_timeline", "stretch_key",
]  # fmt: skip
