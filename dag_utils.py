"""The dependency graph of a job: building it from every source, merging ranks, GML, critical path.

The type is `Dag` (``dag/model.py``: its docstring says what each array means). The ways to one:

- `read_dag`: from a GML file, without durations (or with those the file carries)
- `load_gpus` and `merge`: a BytePS job's GPU directories; one `Dag` for a GPU, a worker or the job
- `gpus_of_trace`: one BytePS trace whose events carry their inputs
- `kineto_dag`: a step of one or more ranks of PyTorch
- `dasf_dag`: the tasks of a DASF pipeline
- `new_dag`: from plain lists

and from one: `longest_path` (longest chain, slack), `Dag.at_step` (one recorded step instead of the
averages), `Dag.to_networkx`, `write_dag`.
"""

from __future__ import annotations

from pathlib import Path

from dag.byteps import Gpu, merge
from dag.dasf import TASK_ARGS, dasf_dag
from dag.dependencies import dag_from_gml, dag_from_inputs, dag_to_gml
from dag.gml import Gml, format_gml, parse_gml, read_gml, write_gml
from dag.kineto import COMMUNICATION, GAP, kineto_dag
from dag.kineto_rank import LINK_ARGS
from dag.load import INPUT_ARGS, LoadedGpus, gpus_of_trace, load_gpus
from dag.longest_path import LongestPath, longest_path
from dag.model import COUPLING, MEETING, MISSING, Dag, Kind, new_dag, subgraph, without_others
from dag.recording import Recording, record
from dag.topology import components, depths

__all__ = [
    "COMMUNICATION",
    "COUPLING",
    "GAP",
    "INPUT_ARGS",
    "LINK_ARGS",
    "MEETING",
    "MISSING",
    "TASK_ARGS",
    "Dag",
    "Gml",
    "Gpu",
    "Kind",
    "LoadedGpus",
    "LongestPath",
    "Recording",
    "components",
    "dag_from_gml",
    "dag_from_inputs",
    "dag_to_gml",
    "dasf_dag",
    "depths",
    "format_gml",
    "gpus_of_trace",
    "kineto_dag",
    "load_gpus",
    "longest_path",
    "merge",
    "new_dag",
    "parse_gml",
    "read_dag",
    "read_gml",
    "record",
    "subgraph",
    "without_others",
    "write_dag",
    "write_gml",
]  # fmt: skip


def read_dag(path: Path) -> Dag:
    """Return the graph in a GML file; durations are those of its nodes' ``avg`` (ms), else 0.

    The step boundary is cut: edges out of STEP are in `Dag.next_src` and `Dag.next_dst`.

    Raises
    ------
    DagError
        No GML, an undirected graph, or a cycle within the step.
    """
    return dag_from_gml(read_gml(path), str(path))


def write_dag(dag: Dag, path: Path) -> None:
    """Write `dag` as GML: the profiler's layout, with ``avg`` (ms) where durations are known.

    Edges into the next step are written too; `read_dag` tells them from the others again.
    """
    write_gml(dag_to_gml(dag), path)
