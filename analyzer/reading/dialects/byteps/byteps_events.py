"""The events of one BytePS GPU as operations, with the computation that was not traced."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from analyzer.base.arrays import Int64
from analyzer.base.arrays.numbering import numbered, occurrence_number
from analyzer.base.errors import whole_number
from analyzer.base.names import OpName
from analyzer.reading.dialects.byteps.byteps_names import renamed, role_of
from analyzer.reading.dialects.roles import Phase, Role
from analyzer.reading.dialects.step_parts import Direction, Operation, RankTrace, Transfer
from analyzer.reading.formats.columns import Track

_PHASES = {"FW": Phase.FORWARD, "BW": Phase.BACKWARD, "I/O": Phase.INPUT}
_PHASES |= {"STEP": Phase.UPDATE, "UPDATE": Phase.UPDATE}
_UNTRACED = "untraced"
#: Categories of computation; a GPU does it itself.
COMPUTE = ("FW", "BW", _UNTRACED)
#: By queue stage.
DIRECTIONS = {"COPYD2H": Direction.TO_HOST, "PUSH": Direction.TO_SERVER, "PULL": Direction.FROM_SERVER}


class GpuEvents(Struct, frozen=True):
    """The n events of one GPU, by start, and its k operations."""

    operations: Sequence[Operation]
    names: Sequence[OpName]  # (k,) without worker, rank and key
    mains: Sequence[OpName]  # (k,) also without stage
    operation: Int64  # (n,) index into `operations`
    start_ns: Int64
    end_ns: Int64
    nth: Int64  # (n,) number of earlier events of the same name and partition: its step, from 0

    def __len__(self) -> int:
        return len(self.operation)

    def is_whole(self, operation: int) -> bool:
        """Tell a communication as a whole from a stage of a partition."""
        return self.names[operation].is_comm and self.operations[operation].transfer.key is None


def read_events(gpu: RankTrace) -> GpuEvents:
    """Read the events of BytePS's grammar in the trace of one GPU."""
    trace = gpu.trace
    n_tracks = max(len(trace.tracks), 1)
    pairs = trace.name_id.astype(np.int64) * n_tracks + trace.track_id
    distinct, which = np.unique(pairs, return_inverse=True)
    operations: list[Operation] = []
    names: list[OpName] = []
    number = np.full(len(distinct), -1, np.int64)
    parsed = [renamed(OpName.parse(name), gpu.parameters) for name in trace.names]
    for i, (name_id, track_id) in enumerate(zip(*np.divmod(distinct, n_tracks), strict=True)):
        name, key = _partition(parsed[name_id], trace.tracks[track_id])
        if name.cat is not None:
            number[i] = len(operations)
            transfer = Transfer() if key is None else _transfer(gpu, name, key)
            phase, track = _PHASES.get(name.cat, Phase.NONE), trace.tracks[track_id]
            operations.append(Operation(str(name), name.cat, track, role_of(name), phase, transfer))
            names.append(name)
    operation = number[which.reshape(-1)]
    rows = np.flatnonzero(operation >= 0)
    return _sorted(operations, names, operation[rows], trace.ts_ns[rows], trace.end_ns[rows])


def _partition(name: OpName, track: Track) -> tuple[OpName, int | None]:
    """Separate the name of a partition's stage from the key; None as key for other operations."""
    if name.queue is None:
        return name, None
    if (key := whole_number(str(track.tid))) is not None:
        return name._replace(key=None), key
    if name.key is not None:
        return name._replace(key=None), name.key
    return OpName("Comm", f"{name.label}.{name.queue}"), None  # a tensor called like a stage


def _transfer(gpu: RankTrace, name: OpName, key: int) -> Transfer:
    """Describe a stage; a link leads from a worker to all servers, or from a server to all workers."""
    stage = name.queue or ""
    direction, server, link = DIRECTIONS.get(stage), f"server {gpu.server_of.get(key, 0)}", ""
    if direction is Direction.TO_SERVER:
        link = stage if gpu.worker is None else f"worker {gpu.worker} {stage}"
    elif direction is Direction.FROM_SERVER:
        link = f"{server} {stage}"
    return Transfer(str(name.main), stage, key, link, gpu.bytes_of.get(key, 0), direction, server)


def _sorted(
    operations: Sequence[Operation], names: Sequence[OpName], operation: Int64, start: Int64, end: Int64
) -> GpuEvents:
    order = np.lexsort((end, start))
    operation = operation[order]
    same: dict[tuple[OpName, int | None], int] = {}
    keys = zip(names, (op.transfer.key for op in operations), strict=True)
    partition = np.array([same.setdefault(key, len(same)) for key in keys], np.int64)
    mains = [name.main for name in names]
    nth = occurrence_number(partition[operation])
    return GpuEvents(operations, names, mains, operation, start[order], end[order], nth)


# ---- computation that was not traced


def with_untraced(events: GpuEvents, bounds: Sequence[tuple[int, int]]) -> GpuEvents:
    """Add an event before each communication for the computation that was not traced.

    It begins at the load of input or the previous gradient, else at the step's start. `bounds` are begin and
    end of the steps.
    """
    before = np.array([name.cat in ("I/O", "FW") for name in events.names], np.bool_)
    whole = np.array(list(map(events.is_whole, range(len(events.names)))), np.bool_)
    is_before, is_whole = before[events.operation], whole[events.operation]
    moments = np.where(is_before, events.end_ns, events.start_ns)
    parts = [np.empty((2, 0), np.int64)]
    for (low, high), (begin, _) in zip(np.searchsorted(events.start_ns, bounds), bounds, strict=True):
        event = low + np.flatnonzero(is_before[low:high] | is_whole[low:high])
        since = np.maximum.accumulate(np.append(begin, moments[event]))[:-1]
        parts.append(np.stack([event, since])[:, is_whole[event] & (events.start_ns[event] > since)])
    event, since = np.concatenate(parts, axis=1)
    labels, label = numbered(events.names[op].label or "" for op in events.operation[event].tolist())
    untraced = [OpName(_UNTRACED, label) for label in labels]
    track = Track(_UNTRACED, _UNTRACED)
    added = [Operation(str(name), _UNTRACED, track, Role.UNTRACED, Phase.BACKWARD) for name in untraced]
    return _sorted(
        [*events.operations, *added],
        [*events.names, *untraced],
        np.concatenate([events.operation, len(events.operations) + label]),
        np.concatenate([events.start_ns, since]),
        np.concatenate([events.end_ns, events.start_ns[event]]),
    )
