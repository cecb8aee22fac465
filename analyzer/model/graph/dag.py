"""`Dag`: operations and why one waits for another, from GML or the inputs in events' args."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from analyzer.base.arrays import Int64
from analyzer.base.arrays.numbering import connected, cycles, unique
from analyzer.base.errors import TraceError, counted, missing
from analyzer.base.names import COMM, FIRST, FORWARD, LAST, OUTPUT, OpName
from analyzer.reading import dialects
from analyzer.reading.dialects import Need, Role
from analyzer.reading.dialects.edge_rules import EdgeKind
from analyzer.reading.formats.columns import Trace
from analyzer.reading.formats.gml import Gml, is_gml, read_gml
from analyzer.reading.formats.stream import find_file
from trace_utils import Request, Source, read_ranks

_INPUT = re.compile(r"(?:input|arg)[0-9]+")
_CYCLE_SHOWN = 5  # operations of a cycle that a message names
_KINDS = {kind.label: kind for kind in EdgeKind}


class Dag(Struct, frozen=True):
    """n operations of one training step and the m edges between operations that wait for each other."""

    names: Sequence[str]  # (n,) distinct
    cats: Sequence[str]  # (n,) ``FW BW Comm I/O STEP`` …, or as in the trace
    dur_ns: Int64  # (n,) the mean of the recording, or of one step; 0 if unrecorded
    edges: Int64  # (m, 3) source, target (nodes) and `EdgeKind`
    next_edges: Int64  # (k, 2) into the next step (STEP to the first FW); in no path here
    unrecorded: Sequence[int] = ()  # nodes that the trace lacks
    ungraphed: Sequence[str] = ()  # names that the graph lacks

    @classmethod
    def of(
        cls,
        names: Sequence[str],
        cats: Sequence[str],
        dur_ns: Sequence[int] | Int64,
        edges: Sequence[Sequence[int]] | Int64 = (),
    ) -> Dag:
        """Make a graph; an edge is (source, target) or (source, target, kind)."""
        rows = [(*edge, EdgeKind.DATA)[:3] for edge in edges]
        table = np.array(rows, np.int64).reshape(-1, 3)
        return cls(names, cats, np.asarray(dur_ns, np.int64), table, np.empty((0, 2), np.int64))

    def __len__(self) -> int:
        return len(self.names)

    @property
    def n_edges(self) -> int:
        """Edges within the step and into the next."""
        return len(self.edges) + len(self.next_edges)

    def inputs(self) -> list[list[int]]:
        """List the nodes that each node (n,) waits for, in the order of the edges."""
        inputs: list[list[int]] = [[] for _ in self.names]
        for source, target in self.edges[:, :2].tolist():
            inputs[target].append(source)
        return inputs

    def order(self) -> list[int]:
        """List the nodes so that every edge leads forward; TraceError prints a cycle."""
        from graphlib import CycleError, TopologicalSorter

        try:
            return list(TopologicalSorter(dict(enumerate(self.inputs()))).static_order())
        except CycleError as error:
            cycle = [self.names[node] for node in error.args[1][:-1]]
            shown = cycle[:_CYCLE_SHOWN]
            end = [f"… ({len(cycle)} operations)"] if len(cycle) > _CYCLE_SHOWN else cycle[:1]
            raise TraceError(f"the graph has a cycle: {' -> '.join([*shown, *end])}") from error

    def depths(self) -> list[int]:
        """Count the nodes on the longest chain that ends in each node (n,)."""
        return self.ends([1] * len(self))

    def ends(self, lengths: Sequence[int]) -> list[int]:
        """Compute the end of each node (n,) if it starts as soon as its inputs have ended."""
        inputs, end = self.inputs(), list(lengths)
        for node in self.order():
            end[node] += max((end[before] for before in inputs[node]), default=0)
        return end

    def components(self) -> int:
        """Count the parts that no edge connects, whatever its direction."""
        return len(unique(connected(len(self), *self.edges[:, :2].T)))

    def longest_path(self) -> LongestPath:
        """Find the longest path; ties go to the edge that comes first.

        It is the critical path of a step without gaps, with the operations that take no time.
        """
        inputs, dur = self.inputs(), self.dur_ns.tolist()
        finish = self.ends(dur)
        length = max(finish, default=0)
        latest = [length] * len(self)
        for node in reversed(self.order()):
            for before in inputs[node]:
                latest[before] = min(latest[before], latest[node] - dur[node])
        last = sorted(set(range(len(self))) - set(self.edges[:, 0].tolist()))
        path = [max(last, key=finish.__getitem__)] if last else []
        while path and inputs[path[-1]]:
            path.append(max(inputs[path[-1]], key=finish.__getitem__))
        return LongestPath(path[::-1], length, np.array(latest, np.int64) - np.array(finish, np.int64))


class LongestPath(Struct, frozen=True):
    """The chain of operations with the largest sum of durations."""

    nodes: list[int]
    length_ns: int
    slack_ns: Int64  # (n,) how much longer each operation may take before the length grows


def dag_from_gml(gml: Gml, path: str = "GML") -> Dag:
    """Convert GML to a `Dag`, cut at the step boundary; `path` is for the messages.

    A node's ``avg`` (ms) is its duration, an edge's ``kind`` its kind (data where missing). TraceError if the
    graph is undirected, has equal labels, or a cycle within the step.
    """
    if not gml.directed:
        raise TraceError(f"{path}: the graph is undirected: nothing says which of two operations waits")
    names = [str(label) for label in gml.labels]
    if len(set(names)) < len(names):
        raise TraceError(f"{path}: two nodes have the same label")
    cats = [
        str(a["cat"]) if "cat" in a else category_of_name(n)
        for n, a in zip(names, gml.node_attrs, strict=True)
    ]
    kinds = [_KINDS.get(str(attrs.get("kind")), EdgeKind.DATA) for attrs in gml.edge_attrs]
    edges = np.column_stack([gml.source, gml.target, np.array(kinds, np.int64)])
    return one_step(Dag.of(names, cats, [_avg_ns(attrs, path) for attrs in gml.node_attrs]), edges, path)


def category_of_name(name: str) -> str:
    """Derive the category of an operation from its name; "" for a name outside BytePS's grammar."""
    return OpName.parse(name).cat or ""


def one_step(dag: Dag, edges: Int64, path: str) -> Dag:
    """Add `edges` to `dag`, with those into the next step's start apart.

    These come from a step's end, or from a communication that itself waits for their target: it brings the
    weights of the previous step.
    """
    last, comm, first = (np.array([c in cats for c in dag.cats], np.bool_) for cats in (LAST, (COMM,), FIRST))
    source, target = edges[:, 0], edges[:, 1]
    cut = last[source] & first[target]
    weights = comm[source] & first[target]
    if weights.any():
        cycle = cycles(len(dag), edges[~cut, :2])
        cut |= weights & (cycle[source] == cycle[target])
    dag = replace(dag, edges=edges[~cut], next_edges=edges[cut, :2])
    try:
        dag.order()
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from error
    return dag


def _avg_ns(attrs: Mapping[str, Any], path: str) -> int:
    value = attrs.get("avg", 0)
    try:
        if (ms := float(value)) < 0:
            raise ValueError
        return round(ms * 1e6)
    except (TypeError, ValueError, OverflowError) as error:
        raise TraceError(f"{path}: avg {value!r} is not a duration in milliseconds") from error


def dag_from_inputs(trace: Trace) -> Dag | None:
    """Make the graph of the inputs in events' args (``input0``, …, or ``arg0``, …); None without any.

    Operations are the distinct names, and names that occur only as an input, without sub-tasks of
    communications. An OUTPUT has no event that could name its inputs: it waits for the forward operations
    that no other forward operation waits for. TraceError for a cycle within the step.
    """
    columns = [column for key, column in trace.args.items() if _INPUT.fullmatch(key)]
    used = [trace.names[i] for i in unique(trace.name_id).tolist()]
    recorded = {name for name in used if OpName.parse(name).cat is not None}
    edges: dict[tuple[str, str], None] = {}
    for column in columns:
        names = trace.name_id[column.rows].tolist()
        for name_id, source in dict.fromkeys(zip(names, map(str, column.values), strict=True)):
            if trace.names[name_id] in recorded:
                edges[_main(source), _main(trace.names[name_id])] = None
    if not edges:
        return None
    edges.update(dict.fromkeys(_edges_to_outputs(list(edges))))
    seen = [_main(name) for name in used if name in recorded]
    names = list(dict.fromkeys([*seen, *(end for edge in edges for end in edge)]))
    index = {name: i for i, name in enumerate(names)}
    rows = [(index[a], index[b], EdgeKind.DATA) for a, b in edges if a != b]
    dag = Dag.of(names, [category_of_name(name) for name in names], [0] * len(names))
    return one_step(dag, np.array(rows, np.int64).reshape(-1, 3), trace.path)


def _edges_to_outputs(edges: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Make the edges from the last forward operations to the outputs without known inputs."""
    awaited, targets = {a for a, b in edges if category_of_name(b) == FORWARD}, {b for _, b in edges}
    cats = {name: category_of_name(name) for edge in edges for name in edge}
    last = [name for name, cat in cats.items() if cat == FORWARD and name not in awaited]
    outputs = [name for name, cat in cats.items() if cat == OUTPUT and name not in targets]
    return [(a, b) for a in last for b in outputs]


def _main(name: str) -> str:
    op = OpName.parse(name)
    return name if op.queue is None and op.prefix == "" else str(op.main.bare())


def mean_dags(
    paths: Sequence[Path], *, jobs: int | None = None, progress: bool | None = None
) -> tuple[Sequence[tuple[str, int, Dag]], list[str], list[str]]:
    """Load the DAGs at `paths`: a GML file, GPU directories, or traces that carry their dependencies.

    They are those of each GPU after its name and its worker; also return notes, and a line for each flaw of
    the files. TraceError if there are none, or a graph is broken.
    """
    if is_gml(paths[0]):
        if not paths[0].exists():
            raise missing(paths[0])
        return [("GPU-0", 0, dag_from_gml(read_gml(paths[0]), str(paths[0])))], [], []
    job = read_ranks(paths, request=Request({Need.EDGES}, jobs=jobs, progress=progress))
    gpus: list[tuple[str, int, Dag]] = []
    notes: list[str] = []
    for source, trace in zip(job.job.sources, job.made, strict=True):
        dag = _with_means(_structure(source, trace), trace, source.path.parent)
        gpus.append((f"GPU-{source.rank or 0}", source.worker or 0, dag))
        notes += _one_sided_notes(dag)
    return gpus, list(dict.fromkeys(notes)), job.repairs


def _structure(source: Source, trace: Trace) -> Dag:
    gml = find_file(source.path.parent, "dag.gml")
    dag = dag_from_inputs(trace) if gml is None else dag_from_gml(read_gml(gml), str(gml))
    if dag is None:
        raise TraceError(f"{source.path}: neither a dag.gml beside it nor its events say what waits for what")
    return dag


def _with_means(dag: Dag, trace: Trace, directory: Path) -> Dag:
    """Add the average duration of each operation in `trace`, of `directory`."""
    system = dialects.of(trace)
    parameters = system.parameters(directory)
    names = [system.main_name(name, parameters) for name in trace.names]
    count = np.bincount(trace.name_id, minlength=len(names))
    total = np.bincount(trace.name_id, _work_ns(trace), minlength=len(names))
    sums: dict[str, tuple[int, float]] = {}
    for i in np.flatnonzero(count).tolist():
        name = names[i]
        if name is not None:
            n, ns = sums.get(name, (0, 0.0))
            sums[name] = n + int(count[i]), ns + float(total[i])
    dur = dag.dur_ns.copy()
    for node, name in enumerate(dag.names):
        if name in sums:
            n, ns = sums[name]
            dur[node] = round(ns / n)
    return replace(
        dag,
        dur_ns=dur,
        unrecorded=[node for node, name in enumerate(dag.names) if name not in sums],
        ungraphed=[name for name in sums if name not in set(dag.names)],
    )


def _work_ns(trace: Trace) -> Int64:
    """Measure the duration of each slice (n,); an update begins when the communications in it have ended."""
    roles = dialects.of(trace).roles(trace)
    work_ns: Int64 = trace.dur_ns.copy()
    end = trace.end_ns
    over = np.sort(end[roles == Role.WHOLE_COMM])
    updates = np.flatnonzero(roles == Role.UPDATE)
    if len(over):
        before = np.searchsorted(over, end[updates], side="right") - 1
        waited = np.where(before < 0, 0, over[before] - trace.ts_ns[updates])
        work_ns[updates] -= np.maximum(waited, 0)
    return work_ns


def _one_sided_notes(dag: Dag) -> list[str]:
    """Write a note on the operations that only the graph has, and on those that only the trace has."""
    sides = {
        "in the graph but not in the trace": [dag.names[i] for i in dag.unrecorded],
        "in the trace but not in the graph": dag.ungraphed,
    }
    return [
        f"{counted(len(names), 'operation')} {where}: {', '.join(names[:3])}{', …' if len(names) > 3 else ''}"
        for where, names in sides.items()
        if names
    ]
