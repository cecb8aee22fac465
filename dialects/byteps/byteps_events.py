"""The events of one BytePS GPU as operations: names, partitions and the computation that was not traced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dialects.byteps.gradient_names import renamed
from dialects.step_parts import UNTRACED, Operation, RankTrace
from dialects.step_windows import turns
from formats.columns import Int64, Track
from opname import OpName

#: Categories of computation; a GPU does it itself.
COMPUTE = ("FW", "BW", UNTRACED)

_PHASES = {"FW": "FW", "BW": "BW", "Comm": "Comm", "I/O": "I/O", "STEP": "STEP", "UPDATE": "STEP"}


@dataclass(frozen=True, slots=True)
class Events:
    """The n events of one GPU, by start, and its k operations.

    Attributes
    ----------
    operations : (k,)
    names, mains : (k,) their names taken apart, without worker, rank and key; and without stage
    operation : (n,) index into `operations`
    start_ns, end_ns : (n,)
    nth : (n,) how many events of the same name and partition were recorded before: its step, from 0
    """

    operations: Sequence[Operation]
    names: Sequence[OpName]
    mains: Sequence[OpName]
    operation: Int64
    start_ns: Int64
    end_ns: Int64
    nth: Int64

    def __len__(self) -> int:
        return len(self.operation)

    def is_whole(self, operation: int) -> bool:
        """Whether an operation is a communication as a whole, not a stage of one of its partitions."""
        return self.names[operation].is_comm and self.operations[operation].key is None

    @property
    def has_backward(self) -> bool:
        """Whether the backward pass was traced."""
        return any(name.cat == "BW" for name in self.names)


def read_events(gpu: RankTrace) -> Events:
    """Return the events of BytePS's grammar in the trace of one GPU."""
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
            operations.append(_operation(gpu, name, key, trace.tracks[track_id]))
            names.append(name)
    operation = number[which.reshape(-1)]
    rows = np.flatnonzero(operation >= 0)
    return _sorted(operations, names, operation[rows], trace.ts_ns[rows], trace.end_ns[rows])


def _partition(name: OpName, track: Track) -> tuple[OpName, int | None]:
    """Return the name without its partition's key, and the key; None for what is no partition's stage."""
    if name.queue is None:
        return name, None
    if str(track.tid).isdecimal():
        return name._replace(key=None), int(str(track.tid))
    if name.key is not None:
        return name._replace(key=None), name.key
    return OpName("Comm", f"{name.label}.{name.queue}"), None  # a tensor called like a stage


def _operation(gpu: RankTrace, name: OpName, key: int | None, track: Track) -> Operation:
    return Operation(
        name=str(name),
        cat=name.cat or "",
        track=track,
        phase=_PHASES.get(name.cat or "", ""),
        whole="" if key is None else str(name.main),
        stage="" if key is None else name.queue or "",
        key=key,
        link="" if key is None else _link(gpu, name.queue, key),
        n_bytes=0 if key is None else gpu.bytes_of.get(key, 0),
        is_communication=name.is_comm,
    )


def _link(gpu: RankTrace, stage: str | None, key: int) -> str:
    """Return the link of a transfer: a worker's to the servers, or a server's back to all workers."""
    if stage == "PUSH":
        return "PUSH" if gpu.worker is None else f"worker {gpu.worker} PUSH"
    return f"server {gpu.server_of.get(key, 0)} PULL" if stage == "PULL" else ""


def _sorted(
    operations: Sequence[Operation], names: Sequence[OpName], operation: Int64, start: Int64, end: Int64
) -> Events:
    order = np.lexsort((end, start))
    operation = operation[order]
    same: dict[tuple[OpName, int | None], int] = {}
    what = np.array(
        [
            same.setdefault((name, one.key), len(same))
            for name, one in zip(names, operations, strict=True)
        ],
        np.int64,
    )  # fmt: skip
    mains = [name.main for name in names]
    return Events(operations, names, mains, operation, start[order], end[order], turns(what[operation]))


# ---- computation that was not traced


def with_untraced(events: Events, bounds: Sequence[tuple[int, int]]) -> Events:
    """Return `events` with one before each communication for the computation that was not traced.

    That is from the load of input or the previous gradient on, else from the step's begin. `bounds` are
    begin and end of the steps.
    """
    found = [span for begin, end in bounds for span in _untraced(events, begin, end)]
    numbers: dict[str, int] = {}
    operations, names = list(events.operations), list(events.names)
    for label, _, _ in found:
        if label not in numbers:
            numbers[label] = len(operations)
            name = OpName(UNTRACED, label)
            names.append(name)
            operations.append(
                Operation(str(name), UNTRACED, Track(UNTRACED, UNTRACED), phase="BW", is_traced=False)
            )
    columns = np.array([(numbers[label], start, end) for label, start, end in found], np.int64).reshape(-1, 3)
    joined = (events.operation, events.start_ns, events.end_ns)
    return _sorted(
        operations, names, *(np.concatenate([a, b]) for a, b in zip(joined, columns.T, strict=True))
    )


def _untraced(events: Events, begin: int, end: int) -> Iterator[tuple[str, int, int]]:
    """Yield (gradient, start, end) of the untraced computation of one step."""
    low = int(np.searchsorted(events.start_ns, begin))
    high = int(np.searchsorted(events.start_ns, end))
    since = begin
    for event, operation in enumerate(events.operation[low:high].tolist(), low):
        name, start = events.names[operation], int(events.start_ns[event])
        if name.cat in ("I/O", "FW"):
            since = max(since, int(events.end_ns[event]))
        elif events.is_whole(operation):
            if start > since:
                yield name.label or "", since, start
            since = max(since, start)
