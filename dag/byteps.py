"""BytePS: dependencies and recordings of GPUs become one `Dag`, for a GPU, a worker or a job.

How BytePS couples ranks (stages in `opname.QUEUES` order): the local ranks of a worker start REDUCE and
BROADCAST together; only the root (the rank that pushes, the largest) has PUSH and PULL, its PUSH waits
for the stages before it on every local rank, and the stages after PULL on the others wait for the root's
PULL; a key's PULL on any worker waits for that key's PUSH on every worker.

STEP is recorded from the last backward operation on: what it waits for runs inside it (`Kind.JOIN`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dag.model import MEETING, MISSING, Dag, Int64, Kind, new_dag, waiting_ns
from dag.recording import Recording
from opname import QUEUES

_PUSH, _PULL = QUEUES.index("PUSH"), QUEUES.index("PULL")
_COPYH2D = QUEUES.index("COPYH2D")
_TOGETHER = (QUEUES.index("REDUCE"), QUEUES.index("BROADCAST"))

#: Nodes of one partition of one communication on one GPU, by their stage.
Chain = dict[int, int]


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of a job.

    Attributes
    ----------
    dag : what depends on what, names without prefix
    recording : when and how long
    worker, rank : index of the worker in the job, local rank
    prefix : ``wk<i>.rank<r>.`` as far as the job needs it; begins the names in a merged graph
    offset_ns : added to its timestamps to put them on the first worker's clock
    """

    dag: Dag
    recording: Recording
    worker: int = 0
    rank: int = 0
    prefix: str = ""
    offset_ns: int = 0


@dataclass(slots=True)
class _Merger:
    """The graph while it is put together."""

    names: list[str] = field(default_factory=list)
    cats: list[str] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)
    edges: dict[tuple[int, int], int] = field(default_factory=dict)
    next_edges: dict[tuple[int, int], None] = field(default_factory=dict)
    attrs: dict[str, dict[int, Any]] = field(default_factory=lambda: defaultdict(dict))
    columns: dict[int, tuple[Gpu, int]] = field(default_factory=dict)  # node -> operation of a recording
    sources: dict[tuple[int, str], list[int]] = field(default_factory=dict)  # what a communication waits for
    chains: dict[tuple[str, int], list[tuple[Gpu, Chain]]] = field(default_factory=lambda: defaultdict(list))

    def node(self, name: str, cat: str, device: str = "") -> int:
        self.names.append(name)
        self.cats.append(cat)
        self.devices.append(device)
        return len(self.names) - 1

    def recorded(self, gpu: Gpu, column: int, name: str, cat: str, device: str) -> int:
        node = self.node(gpu.prefix + name, cat, device)
        self.columns[node] = (gpu, column)
        return node

    def link(self, sources: Iterable[int], targets: Iterable[int], kind: Kind) -> None:
        for target in targets:
            for source in sources:
                self.edges.setdefault((source, target), kind)


def merge(gpus: Sequence[Gpu], *, del_queue: bool = False, lenders: Sequence[Gpu] = ()) -> Dag:
    """Return the graph of one GPU, or of several that work together.

    Parameters
    ----------
    gpus : the GPUs whose operations the graph holds
    del_queue : a communication becomes its partitions, and each of these its queue stages in order
    lenders : with `del_queue` and one GPU: GPUs of which those of its worker give the stages that it
        lacks (the root's PUSH and PULL); it may be among them

    Returns
    -------
    Dag
        With the durations averaged over all events, and those of every step; all ranks' steps are
        taken to be the same ones.
    """
    merger = _Merger()
    for gpu in gpus:
        _add_gpu(merger, gpu, del_queue)
    for gpu in gpus if del_queue and len(gpus) == 1 else ():
        own = {id(other) for other in gpus}
        _borrow(merger, [x for x in lenders if x.worker == gpu.worker and id(x) not in own])
    for (main, key), chains in list(merger.chains.items()):
        _couple_ranks(merger, main, key, chains)
        _couple_workers(merger, main, key, chains)
    if not del_queue and len(gpus) > 1:
        _couple_wholes(merger, gpus)
    return _finish(merger, gpus)


def _add_gpu(merger: _Merger, gpu: Gpu, del_queue: bool) -> None:
    """Add the operations of one GPU and the edges between them."""
    columns = {name: i for i, name in enumerate(gpu.recording.names)}
    entries: list[list[int]] = []
    exits: list[list[int]] = []
    for i, (name, cat) in enumerate(zip(gpu.dag.names, gpu.dag.cats, strict=True)):
        parts = gpu.recording.parts.get(name, ()) if del_queue else ()
        if parts:
            chains = _add_partitions(merger, gpu, name, parts)
            entries.append([chain[min(chain)] for chain in chains])
            exits.append([chain[max(chain)] for chain in chains])
            continue
        node = merger.node(gpu.prefix + name, cat, _device(gpu, cat))
        if name in columns:
            merger.columns[node] = (gpu, columns[name])
        for key, values in gpu.dag.attrs.items():
            if i in values:
                merger.attrs[key][node] = values[i]
        entries.append([node])
        exits.append([node])
    dag = gpu.dag
    for a, b, kind in zip(dag.src.tolist(), dag.dst.tolist(), dag.kind.tolist(), strict=True):
        merger.link(exits[a], entries[b], Kind.JOIN if dag.cats[b] == "STEP" else kind)
        if dag.cats[b] == "Comm":
            merger.sources.setdefault((id(gpu), dag.names[b]), []).extend(exits[a])
    for a, b in zip(dag.next_src.tolist(), dag.next_dst.tolist(), strict=True):
        merger.next_edges.update(dict.fromkeys((x, y) for x in exits[a] for y in entries[b]))


def _add_partitions(
    merger: _Merger, gpu: Gpu, main: str, parts: Sequence[tuple[int, int, int]]
) -> list[Chain]:
    """Add the stages of every partition of a communication, one after the other; return the chains."""
    chains: dict[int, Chain] = {}
    for stage, key, column in parts:  # by stage
        name = gpu.recording.names[column]
        node = merger.recorded(gpu, column, name, "Comm", _stage_device(gpu, stage))
        chain = chains.setdefault(key, {})
        merger.link(list(chain.values())[-1:], [node], Kind.DATA)
        chain[stage] = node
    for key, chain in chains.items():
        merger.chains[main, key].append((gpu, chain))
    return list(chains.values())


def _borrow(merger: _Merger, lenders: Sequence[Gpu]) -> None:
    """Add the root's stages from PUSH on, before COPYH2D, of the partitions that the others hold."""
    for lender in lenders:
        for main, parts in lender.recording.parts.items():
            chains: dict[int, Chain] = defaultdict(dict)
            for stage, key, column in parts:
                if not _PUSH <= stage < _COPYH2D or (main, key) not in merger.chains:
                    continue
                name = lender.recording.names[column]
                node = merger.recorded(lender, column, name, "Comm", _stage_device(lender, stage))
                merger.link(list(chains[key].values())[-1:], [node], Kind.DATA)
                chains[key][stage] = node
            for key, chain in chains.items():
                merger.chains[main, key].append((lender, chain))


def _couple_ranks(merger: _Merger, main: str, key: int, chains: Sequence[tuple[Gpu, Chain]]) -> None:
    """Couple the local ranks of every worker at the stages of one partition."""
    workers: dict[int, list[tuple[Gpu, Chain]]] = defaultdict(list)
    for gpu, chain in chains:
        workers[gpu.worker].append((gpu, chain))
    for members in workers.values():
        if len(members) < 2:
            continue
        for stage in _TOGETHER:
            present = [(gpu, chain) for gpu, chain in members if stage in chain]
            before = [_before(merger, gpu, main, chain, stage) for gpu, chain in present]
            prefix = members[0][0].prefix.split("rank")[0]
            name = f"{prefix}{main}.{QUEUES[stage]}.{key}"
            _meet(merger, name, before, [chain[stage] for _, chain in present], Kind.GROUP)
        roots = [chain for _, chain in members if _PUSH in chain]
        for gpu, chain in members:
            if roots and _PUSH not in chain:
                _through_root(merger, _before(merger, gpu, main, chain, _PUSH), chain, roots[0])


def _through_root(merger: _Merger, before: Sequence[int], chain: Chain, root: Chain) -> None:
    """Lead a partition that another rank holds through the root's PUSH and PULL."""
    merger.link(before, [root[_PUSH]], Kind.GROUP)
    pulled = [node for stage, node in root.items() if _PUSH <= stage < _COPYH2D][-1:]
    after = [node for stage, node in chain.items() if stage > _PULL][:1]
    merger.link(pulled, after, Kind.GROUP)


def _couple_workers(merger: _Merger, main: str, key: int, chains: Sequence[tuple[Gpu, Chain]]) -> None:
    """Let every worker's PULL of a partition wait for every worker's PUSH."""
    pushing = [(gpu, chain) for gpu, chain in chains if _PUSH in chain]
    pulls = [chain[_PULL] for _, chain in chains if _PULL in chain]
    if len({gpu.worker for gpu, _ in pushing}) > 1:
        pushes = [[chain[_PUSH]] for _, chain in pushing]
        _meet(merger, f"{main}.PUSH.{key}", pushes, pulls, Kind.MESSAGE)


def _couple_wholes(merger: _Merger, gpus: Sequence[Gpu]) -> None:
    """Let every rank's part in a communication end only after all ranks could begin theirs."""
    index = {name: i for i, name in enumerate(merger.names)}
    mains = dict.fromkeys(
        name for gpu in gpus for name, cat in zip(gpu.dag.names, gpu.dag.cats, strict=True) if cat == "Comm"
    )
    workers = len({gpu.worker for gpu in gpus})
    for main in mains:
        members = [gpu for gpu in gpus if gpu.prefix + main in index]
        before = [merger.sources.get((id(gpu), main), []) for gpu in members]
        nodes = [index[gpu.prefix + main] for gpu in members]
        prefix = "" if workers > 1 else gpus[0].prefix.split("rank")[0]
        _meet(merger, prefix + main, before, nodes, Kind.MESSAGE if workers > 1 else Kind.GROUP)


def _meet(
    merger: _Merger, name: str, sources: Sequence[Sequence[int]], targets: Sequence[int], kind: Kind
) -> None:
    """Let all `targets` wait for all `sources`, through one node where they meet."""
    if len(targets) < 2:
        return
    meeting = merger.node(name, MEETING)
    for nodes in sources:
        merger.link(nodes, [meeting], kind)
    merger.link([meeting], targets, kind)


def _before(merger: _Merger, gpu: Gpu, main: str, chain: Chain, stage: int) -> list[int]:
    """Return what comes before `stage` on this GPU: the stage before, else what the whole waits for."""
    earlier = [node for other, node in chain.items() if other < stage]
    return earlier[-1:] or merger.sources.get((id(gpu), main), [])


def _device(gpu: Gpu, cat: str) -> str:
    """Return where an operation runs; communications as a whole share nothing."""
    if cat == "Comm":
        return ""
    return f"{gpu.prefix}{'io' if cat == 'I/O' else 'compute'}"


def _stage_device(gpu: Gpu, stage: int) -> str:
    """Return the worker's PUSH or PULL link; the other stages run on the rank's own queues."""
    if stage in (_PUSH, _PULL):
        return f"{gpu.prefix.split('rank')[0]}{QUEUES[stage]}"
    return f"{gpu.prefix}{QUEUES[stage]}"


def _finish(merger: _Merger, gpus: Sequence[Gpu]) -> Dag:
    """Return the merged graph with durations, waits and what is missing on either side."""
    kinds = [(a, b, kind) for (a, b), kind in merger.edges.items()]
    dag = new_dag(merger.names, merger.cats, [0] * len(merger.names), kinds, device=merger.devices)
    start, dur, mean = _times(merger, len(dag))
    wait = np.minimum(waiting_ns(dag, start, dur), mean)
    nexts = np.array(list(merger.next_edges), np.int32).reshape(-1, 2)
    missing = [node for node, cat in enumerate(dag.cats) if cat != MEETING and node not in merger.columns]
    return replace(
        dag,
        dur_ns=mean,
        wait_ns=wait,
        step_start_ns=start,
        step_dur_ns=dur,
        next_src=nexts[:, 0],
        next_dst=nexts[:, 1],
        attrs=dict(merger.attrs),
        unrecorded=missing,
        ungraphed=[gpu.prefix + name for gpu in gpus for name in _ungraphed(gpu)],
    )


def _times(merger: _Merger, n: int) -> tuple[Int64, Int64, Int64]:
    """Return start and duration per step (s, n) on the first worker's clock, and the averages (n,)."""
    by_gpu: dict[int, tuple[Gpu, list[int], list[int]]] = {}
    for node, (gpu, column) in merger.columns.items():
        _, nodes, columns = by_gpu.setdefault(id(gpu), (gpu, [], []))
        nodes.append(node)
        columns.append(column)
    steps = max((gpu.recording.n_steps for gpu, _, _ in by_gpu.values()), default=0)
    start, dur = np.full((steps, n), MISSING, np.int64), np.full((steps, n), MISSING, np.int64)
    mean = np.zeros(n, np.int64)
    for gpu, nodes, columns in by_gpu.values():
        recording = gpu.recording
        its = recording.start_ns[:, columns]
        start[: recording.n_steps, nodes] = np.where(its == MISSING, MISSING, its + gpu.offset_ns)
        dur[: recording.n_steps, nodes] = recording.dur_ns[:, columns]
        mean[nodes] = recording.mean_ns[columns]
    return start, dur, mean


def _ungraphed(gpu: Gpu) -> list[str]:
    """Return the recorded operations that the graph does not know, sub-tasks left to their whole."""
    parts: Mapping[str, Sequence[tuple[int, int, int]]] = gpu.recording.parts
    known = set(gpu.dag.names)
    sub_tasks = {task for tasks in parts.values() for _, _, task in tasks}
    return [n for i, n in enumerate(gpu.recording.names) if i not in sub_tasks and n not in known]
