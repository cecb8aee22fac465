"""The only door to graphs: the recorded steps of whatever was loaded, the DAGs of GML files, critical paths.

- `load_steps`: the recorded steps of a job, whatever the system, as `StepGraph`s in a `Recording`
- `choose_step`: the row of a step by its number, or of the one of median length
- `critical_path`, `slack_ns`: what makes a step as long as it is, and how much room the rest has
- `path_items`, `by_name`, `by_category`, `headline`: a path in words
- `drawn_step`: a step as a `Dag`, to be drawn; `marked_events`: its timeline with the path on it
- `read_dag`, `write_dag`: GML; `mean_dags`, `longest_path`: average durations through the DAG of a GPU
"""

from __future__ import annotations

from pathlib import Path

from dag.critical_path import NO_EVENT, CriticalPath, Stretch, critical_path, slack_ns
from dag.dependencies import dag_from_gml, dag_from_inputs, dag_to_gml
from dag.drawn_step import drawn_step
from dag.join_ranks import join
from dag.longest_path import LongestPath, longest_path
from dag.marked_timeline import marked_events
from dag.mean_graph import MeanDags, mean_dags
from dag.model import Dag, new_dag
from dag.path_summary import NameShare, PathItem, by_category, by_name, category, headline, path_items
from dag.recorded_steps import LoadedSteps, Partitions, choose_step, load_steps
from dag.step_graph import NO_LINK, Recording, StepGraph
from dag.topology import components, depths
from formats.gml import Gml, format_gml, parse_gml, read_gml, write_gml

__all__ = [
    "NO_EVENT", "NO_LINK", "CriticalPath", "Dag", "Gml", "LoadedSteps", "LongestPath", "MeanDags",
    "NameShare", "Partitions", "PathItem", "Recording", "StepGraph", "Stretch", "by_category", "by_name",
    "category", "choose_step", "components", "critical_path", "dag_from_gml", "dag_from_inputs",
    "dag_to_gml", "depths", "drawn_step", "format_gml", "headline", "join", "load_steps", "longest_path",
    "marked_events", "mean_dags", "new_dag", "parse_gml", "path_items", "read_dag", "read_gml",
    "slack_ns", "write_dag", "write_gml",
]  # fmt: skip


def read_dag(path: Path) -> Dag:
    """Return the graph in a GML file; durations are those of its nodes' ``avg`` (ms), else 0.

    The step boundary is cut: edges into the next step (out of STEP, or of a communication into the
    operation that it waits for itself) are in `Dag.next_src` and `Dag.next_dst`.

    Raises
    ------
    DagError
        Not a valid GML graph, an undirected graph, or a cycle within the step.
    """
    return dag_from_gml(read_gml(path), str(path))


def write_dag(dag: Dag, path: Path) -> None:
    """Write `dag` as GML: the profiler's layout, with ``avg`` (ms) where durations are known.

    Edges into the next step are written too; `read_dag` tells them from the others again.
    """
    write_gml(dag_to_gml(dag), path)
