"""Another partition size: the same tensors in more, or fewer, pieces."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from errors import TraceError
from replay.model import Model, StepModel
from replay.plan import UNLIMITED, Int64
from replay.recording import Edges, Operation, RecordedStep
from replay.whatif.bandwidth import Float, link_rate


@dataclass(frozen=True, slots=True)
class _Tensor:
    """One tensor of one owner: its partition keys in order, and the sizes of its new partitions."""

    keys: tuple[int, ...]
    sizes: tuple[int, ...]

    def template(self, piece: int) -> int:
        """Return the recorded partition that lies where new partition `piece` begins."""
        return self.keys[piece * len(self.keys) // len(self.sizes)]


@dataclass(frozen=True, slots=True)
class _Cost:
    """What a stage takes: for each partition, and for each byte."""

    per_part_ns: float
    per_byte_ns: float


def at_partition_bytes(model: Model, n_bytes: int) -> Model:
    """Return `model` with tensors cut into partitions of `n_bytes`.

    A new partition passes the stages as the recorded one at its place did. A tensor's recorded time in
    a stage changes as what the stage takes per partition and per byte says.

    Raises
    ------
    TraceError
        The recording has no partitions, or their sizes are not known.
    """
    operations = model.recording.operations
    parts = [operation for operation in operations if operation.key is not None]
    if not parts:
        raise TraceError("partition_bytes: the recording has no partitions (BytePS's comm.json has them)")
    if not any(operation.n_bytes for operation in parts):
        raise TraceError(
            "partition_bytes: the sizes of the tensors are not known; "
            "BytePS's log with 'partitioned to' lines must lie in or beside the job's directory"
        )
    tensors = _tensors(parts, n_bytes)
    costs = _costs(model)
    names = _NewOperations(list(operations))
    steps, recorded_steps = [], []
    before: list[dict[int, int]] = []
    for step, recorded in zip(model.steps, model.recording.steps, strict=True):
        new_step, new_recorded, copies = _cut(step, recorded, operations, tensors, costs, names)
        carried = [(before[a][-1], copies[b][-1]) for a, b in recorded.carried.tolist()]
        steps.append(new_step)
        recorded_steps.append(replace(new_recorded, carried=np.array(carried, np.int64).reshape(-1, 2)))
        before = copies
    recording = replace(model.recording, operations=names.operations, steps=recorded_steps)
    return replace(model, recording=recording, steps=steps)


class _NewOperations:
    """Numbers the operations of new partitions, behind those that were there."""

    def __init__(self, operations: list[Operation]) -> None:
        self.operations = operations
        self._number: dict[tuple[int, int], int] = {}

    def number(self, template: int, key: int, n_bytes: int) -> int:
        """Return the operation that does for partition `key` what `template` does for its own."""
        if (template, key) not in self._number:
            self._number[template, key] = len(self.operations)
            old = self.operations[template]
            track = old.track._replace(tid=str(key))
            self.operations.append(replace(old, key=key, n_bytes=n_bytes, track=track))
        return self._number[template, key]


def _tensors(parts: Sequence[Operation], n_bytes: int) -> dict[tuple[int, str], _Tensor]:
    """Return the tensors by (owner, name of the whole communication)."""
    size: dict[tuple[int, str], dict[int, int]] = defaultdict(dict)
    for part in parts:
        if part.key is not None:
            size[part.owner, part.whole][part.key] = part.n_bytes
    found = {}
    for tensor, of_key in size.items():
        total = sum(of_key.values())
        if total:
            whole, rest = divmod(total, n_bytes)
            found[tensor] = _Tensor(tuple(sorted(of_key)), (n_bytes,) * whole + ((rest,) if rest else ()))
    return found


def _costs(model: Model) -> dict[str, _Cost]:
    """Return what each stage takes.

    On a link a byte takes what the link's rate says, and a partition what a larger transfer (a smaller
    one is mostly latency, during which others pass) takes beyond its bytes. For the other stages both
    are fitted to all partitions.
    """
    from scipy.optimize import nnls

    rate = link_rate(model)
    found = {}
    for stage, table in _samples(model).items():
        size, service, on_link = table.T
        if rate is not None and on_link.any():
            large = size >= size.max() / 2
            beyond = float(service[large].mean() - size[large].mean() / rate)
            found[stage] = _Cost(max(beyond, 0.0), 1 / rate)
        else:
            per_part, per_byte = nnls(np.stack([np.ones(len(size)), size], axis=1), service)[0].tolist()
            found[stage] = _Cost(per_part, per_byte)
    return found


def _samples(model: Model) -> dict[str, Float]:
    """Return by stage the bytes, service and whether on a link, of each partition in each step (k, 3)."""
    rows: dict[str, list[tuple[int, int, bool]]] = defaultdict(list)
    for step, recorded in zip(model.steps, model.recording.steps, strict=True):
        for number, service in zip(recorded.operation.tolist(), step.service_ns.tolist(), strict=True):
            one = model.recording.operations[number]
            if one.key is not None:
                rows[one.stage].append((one.n_bytes, service, one.device != UNLIMITED))
    return {stage: np.array(samples, np.float64) for stage, samples in rows.items()}


def _cut(
    step: StepModel,
    recorded: RecordedStep,
    operations: Sequence[Operation],
    tensors: Mapping[tuple[int, str], _Tensor],
    costs: Mapping[str, _Cost],
    names: _NewOperations,
) -> tuple[StepModel, RecordedStep, list[dict[int, int]]]:
    """Return one step with new partitions, and what became of each event (see `copies`)."""
    source: list[int] = []  # of each new event, the recorded one it is like
    operation: list[int] = []
    copies: list[dict[int, int]] = []  # of each recorded event: new partition (-1: none) -> new event
    for event, number in enumerate(recorded.operation.tolist()):
        old = operations[number]
        tensor = tensors.get((old.owner, old.whole)) if old.key is not None else None
        copies.append({})
        for piece in _pieces(old, tensor):
            copies[-1][piece] = len(source)
            source.append(event)
            size = 0 if tensor is None or piece < 0 else tensor.sizes[piece]
            key = -1 if tensor is None else tensor.keys[0] + piece
            operation.append(number if piece < 0 else names.number(number, key, size))
    like = np.array(source, np.int64)
    service = _service(step, recorded, operations, tensors, costs, names, like, operation)
    edges = recorded.edges
    new_edges = Edges(*(_copied(kind, copies) for kind in _kinds(edges)))
    return (
        replace(
            step,
            gap_ns=step.gap_ns[like],
            service_ns=service,
            turn=step.turn[like],
            roots=np.flatnonzero(np.isin(like, step.roots)),
            last=np.flatnonzero(np.isin(like, step.last)),
            overtaken=np.empty((0, 2), np.int64),
            held=step.held[like],
        ),
        replace(
            recorded,
            operation=np.array(operation, np.int64),
            start_ns=recorded.start_ns[like],
            end_ns=recorded.end_ns[like],
            edges=new_edges,
        ),
        copies,
    )


def _kinds(edges: Edges) -> tuple[Int64, Int64, Int64, Int64]:
    return edges.after_end, edges.after_start, edges.body_after_end, edges.body_after_start


def _pieces(old: Operation, tensor: _Tensor | None) -> list[int]:
    """Return the new partitions that are like the partition of `old`; -1 for an event that stays."""
    if tensor is None:
        return [-1]
    return [piece for piece in range(len(tensor.sizes)) if tensor.template(piece) == old.key]


def _copied(edges: Int64, copies: Sequence[Mapping[int, int]]) -> Int64:
    """Return each edge between the new events: piece to the same piece, else each to each."""
    found = []
    for a, b in edges.tolist():
        for piece, new_a in copies[a].items():
            if piece in copies[b]:
                found.append((new_a, copies[b][piece]))
            elif piece < 0 or -1 in copies[b]:
                found.extend((new_a, new_b) for new_b in copies[b].values())
    return np.array(found, np.int64).reshape(-1, 2)


def _service(
    step: StepModel,
    recorded: RecordedStep,
    operations: Sequence[Operation],
    tensors: Mapping[tuple[int, str], _Tensor],
    costs: Mapping[str, _Cost],
    names: _NewOperations,
    like: Int64,
    operation: Sequence[int],
) -> Int64:
    """Return the service of the new events: the stage's recorded total, scaled as the fit says, by bytes."""
    total: dict[tuple[int, str, str], float] = defaultdict(float)
    for number, service in zip(recorded.operation.tolist(), step.service_ns.tolist(), strict=True):
        old = operations[number]
        if old.key is not None:
            total[old.owner, old.whole, old.stage] += service
    found = step.service_ns[like].astype(np.float64)
    for event, number in enumerate(operation):
        new = names.operations[number]
        tensor = tensors.get((new.owner, new.whole))
        if new.key is None or tensor is None:
            continue
        cost, n_bytes = costs[new.stage], sum(tensor.sizes)
        before = cost.per_part_ns * len(tensor.keys) + cost.per_byte_ns * n_bytes
        share = cost.per_part_ns + cost.per_byte_ns * new.n_bytes
        recorded_ns = total[new.owner, new.whole, new.stage]
        found[event] = recorded_ns * share / before if before else recorded_ns * new.n_bytes / n_bytes
    return np.rint(found).astype(np.int64)
