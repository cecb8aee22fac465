"""Another partition size: the same tensors in more, or fewer, pieces."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from analyzer.base.arrays import Int64
from analyzer.base.errors import TraceError, whole_number
from analyzer.model.graph.step_graph import NO_LINK, Recording, StepGraph
from analyzer.reading.dialects.step_parts import Operation, OperationTable
from replay.edit import Edit, EditRequest, Job, Order
from replay.links import connection, ends_of

#: Partitions up to this many bytes show the time of a request and its answer, whatever the size.
_SMALL_BYTES = 32 << 10


def parse(request: EditRequest, job: Job) -> Edit | None:
    """Parse `partition_bytes=`; None for any other request."""
    if request.name != "partition_bytes":
        return None
    if not whole_number(request.value):
        raise request.refused(f"{request.value} is not a number of bytes above 0")
    n_bytes = int(request.value)
    changed_tensors(job.recording, n_bytes)
    return Edit(lambda recording: at_partition_bytes(recording, n_bytes), order=Order.EVENTS)


class _Tensor(NamedTuple):
    """One tensor of one owner: its partition keys in order, and the sizes of its new partitions."""

    keys: tuple[int, ...]
    sizes: tuple[int, ...]

    def template(self, piece: int) -> int:
        """Find the recorded partition at the beginning of the new partition `piece`."""
        return self.keys[piece * len(self.keys) // len(self.sizes)]


#: Operations of one owner, tensor and stage; of a transfer with or without a link, there or back.
_Group = tuple[int, str, str, tuple[bool, bool]]


def at_partition_bytes(recording: Recording, n_bytes: int) -> Recording:
    """Cut tensors into partitions of `n_bytes`. Raises TraceError; see `changed_tensors`.

    A new partition passes the stages as the recorded one at its place did, but goes to the server that had
    its key; the servers take turns with new keys. Bytes on a link take as long as before. Elsewhere a
    stage takes a fixed time for each partition (the median of the small ones; 0 if none is small), and the
    remaining time for the bytes. A partition waits as long as one did: many wait side by side. A tensor whose
    partitions stay as they are does not change.
    """
    tensors = changed_tensors(recording, n_bytes)
    if not tensors:
        return recording
    cut = _Cut(recording, tensors, _costs(recording))
    steps = [cut.step(step) for step in recording.steps]
    return replace(recording, operations=OperationTable(cut.operations), steps=steps)


def changed_tensors(recording: Recording, n_bytes: int) -> dict[tuple[int, str], _Tensor]:
    """Find the tensors that partitions of `n_bytes` cut differently, by (owner, whole communication).

    Raises TraceError if the recording has no partitions, or their sizes are not known.
    """
    parts = [op for op in recording.operations if op.transfer.key is not None]
    if not parts:
        raise TraceError("partition_bytes: the recording has no partitions (BytePS's comm.json has them)")
    if not any(op.transfer.n_bytes for op in parts):
        raise TraceError(
            "partition_bytes: the sizes of the tensors are not known; "
            "BytePS's log with 'partitioned to' lines must lie in or beside the job's directory"
        )
    size: dict[tuple[int, str], dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for op in parts:
        if op.transfer.key is not None:
            of_key = size[op.owner, op.transfer.whole]
            of_key[op.transfer.key] = max(of_key[op.transfer.key], op.transfer.n_bytes)
    tensors = {}
    for tensor, of_key in size.items():
        n_full, remaining = divmod(sum(of_key.values()), n_bytes)
        sizes = (n_bytes,) * n_full + ((remaining,) if remaining else ())
        if sizes and sizes != tuple(of_key[key] for key in sorted(of_key)):
            tensors[tensor] = _Tensor(tuple(sorted(of_key)), sizes)
    return tensors


def _costs(recording: Recording) -> dict[str, tuple[float, float]]:
    """Time of each stage for a partition, and for each of its bytes (ns)."""
    samples: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for step in recording.steps:
        for number, work_ns in zip(step.operation.tolist(), step.work_ns.tolist(), strict=True):
            part = recording.operations[number].transfer
            if not part.is_wait and part.key is not None and part.n_bytes:
                samples[part.stage].append((part.n_bytes, work_ns))
    costs = {}
    for stage, pairs in samples.items():
        n_bytes, work = np.array(pairs, np.float64).T
        small = n_bytes <= _SMALL_BYTES
        fixed_ns = float(np.median(work[small])) if small.any() else 0.0
        costs[stage] = fixed_ns, max(float((work - fixed_ns).sum() / n_bytes.sum()), 0.0)
    return costs


class _Cut:
    """Cuts the steps of a recording; `operations` grows by those of new partitions."""

    def __init__(
        self,
        recording: Recording,
        tensors: Mapping[tuple[int, str], _Tensor],
        costs: Mapping[str, tuple[float, float]],
    ) -> None:
        self.operations = list(recording.operations)
        self._link_index = {link: i for i, link in enumerate(recording.links)}
        self._server: dict[int | None, str] = {}  # by key
        for op in recording.operations.kinds:
            if op.transfer.is_answer:
                self._server[op.transfer.key] = (ends_of(op.transfer.link) or [op.transfer.link])[0]
        self._servers = sorted(set(self._server.values()))
        self._tensors, self._costs = tensors, costs
        self._number: dict[tuple[int, int], int] = {}
        self._before: list[dict[int, int]] = []

    def step(self, step: StepGraph) -> StepGraph:
        """Make a step with new partitions."""
        copies, source, operation = self._copies(step)
        continued = [(self._before[a][-1], copies[b][-1]) for a, b in step.continued.tolist()
                     if -1 in self._before[a] and -1 in copies[b]]  # fmt: skip
        self._before = copies
        known = [self._link_index.get(self.operations[i].transfer.link, NO_LINK) for i in operation]
        return replace(
            step,
            **{
                column: getattr(step, column)[source]
                for column in ("owner", "start_ns", "end_ns", "gap_ns", "turn", "held")
            },
            operation=np.array(operation, np.int64),
            link=np.where(step.link[source] == NO_LINK, NO_LINK, known),
            work_ns=self._work(step, source, operation),
            edges=_copied(
                step.edges, copies, [self.operations[i].transfer.whole for i in step.operation.tolist()]
            ),
            last=np.flatnonzero(np.isin(source, step.last)),
            overtaken=step.overtaken if len(source) == len(step) else np.empty((0, 2), np.int64),
            continued=np.array(continued, np.int64).reshape(-1, 2),
            across=step.across[:0],
        )

    def _copies(self, step: StepGraph) -> tuple[list[dict[int, int]], Int64, list[int]]:
        """List the new events: for each event new partition (-1: it stays) -> new event.

        And for each new event its recorded template and its operation.
        """
        copies: list[dict[int, int]] = []
        source: list[int] = []
        operation: list[int] = []
        for event, number in enumerate(step.operation.tolist()):
            old = self.operations[number]
            tensor = self._tensor(old)
            pieces = {-1: number}
            if tensor is not None:
                indices = [i for i in range(len(tensor.sizes)) if tensor.template(i) == old.transfer.key]
                pieces = {i: self._piece(number, tensor, i) for i in indices}
            copies.append(dict(zip(pieces, itertools.count(len(source)), strict=False)))
            source += [event] * len(pieces)
            operation += pieces.values()
        return copies, np.array(source, np.int64), operation

    def _piece(self, template: int, tensor: _Tensor, piece: int) -> int:
        """Make the operation of a new partition that corresponds to `template`."""
        key = tensor.keys[0] + piece
        if (template, key) not in self._number:
            self._number[template, key] = len(self.operations)
            old = self.operations[template]
            n_bytes = tensor.sizes[piece] if old.transfer.n_bytes else 0
            part = old.transfer._replace(key=key, n_bytes=n_bytes, link=self._link(old, tensor, piece))
            self.operations.append(old._replace(track=old.track._replace(tid=str(key)), transfer=part))
        return self._number[template, key]

    def _link(self, old: Operation, tensor: _Tensor, piece: int) -> str:
        """Name the connection to, or from, the server of a new partition: by its key, else in turn."""
        link, recorded = old.transfer.link, self._server.get(old.transfer.key, "")
        ends = ends_of(link) or (link,)
        if not recorded or recorded not in ends:
            return link
        first = self._servers.index(self._server.get(tensor.keys[0], recorded))
        next_server = self._servers[(first + piece) % len(self._servers)]
        server = self._server.get(tensor.keys[0] + piece, next_server)
        new = [server if end == recorded else end for end in ends]
        return connection(*new) if len(new) > 1 else server

    def _group(self, number: int) -> _Group | None:
        """Find the tensor and stage whose recorded time an operation shares; None if it is not cut."""
        op = self.operations[number]
        sends = (bool(op.transfer.link), op.transfer.direction is None)
        return (op.owner, op.transfer.whole, op.transfer.stage, sends) if self._tensor(op) else None

    def _work(self, step: StepGraph, source: Int64, operation: Sequence[int]) -> Int64:
        """Share out the time that each stage of a tensor took in the step.

        A partition takes its share of the stage's cost; a wait keeps its mean length, because partitions wait
        side by side.
        """
        total: Counter[_Group] = Counter()
        costs: dict[_Group, float] = defaultdict(float)
        count: Counter[_Group] = Counter()
        for number, work_ns in zip(step.operation.tolist(), step.work_ns.tolist(), strict=True):
            if group := self._group(number):
                total[group] += work_ns
                costs[group] += self._cost(number)
                count[group] += 1
        new_ns = step.work_ns[source].astype(np.float64)
        for event, number in enumerate(operation):
            if group := self._group(number):
                part, sizes = self.operations[number].transfer, self._tensors[group[:2]].sizes
                if part.is_wait:
                    share = 1 / count[group]
                elif costs[group]:
                    share = self._cost(number) / costs[group]
                else:
                    share = part.n_bytes / sum(sizes)
                new_ns[event] = total[group] * share
        return np.rint(new_ns).astype(np.int64)

    def _cost(self, number: int) -> float:
        part = self.operations[number].transfer
        partition_ns, byte_ns = self._costs.get(part.stage, (0.0, 0.0))
        return partition_ns + byte_ns * part.n_bytes

    def _tensor(self, op: Operation) -> _Tensor | None:
        return None if op.transfer.key is None else self._tensors.get((op.owner, op.transfer.whole))


def _copied(edges: Int64, copies: Sequence[Mapping[int, int]], tensor: Sequence[str]) -> Int64:
    """Copy edges to the new events; within a `tensor` (of each recorded event) a piece waits for itself."""
    copied = []
    for a, b, joint, kind in edges.tolist():
        of_a, of_b = copies[a], copies[b]
        if not of_a or not of_b:
            continue
        if -1 not in of_a and -1 not in of_b and tensor[a] == tensor[b]:
            pairs = [(of_a[piece], of_b[piece]) for piece in of_a if piece in of_b]
        else:
            pairs = [(new_a, new_b) for new_a in of_a.values() for new_b in of_b.values()]
        copied += [(new_a, new_b, joint, kind) for new_a, new_b in pairs]
    return np.array(copied, np.int64).reshape(-1, 4)
