"""Sorting more events than fit in memory: runs in temporary files, merged block by block.

Of an event a run holds its time, its duration, the number of its head (the part of its text that recurs,
`combine.event_text`) and its tail (the rest of its text, often empty). A run is a sorted stretch of events
in a file: their tails one after another, then four arrays: times and durations (int64 nanoseconds), heads
and lengths of the tails (int32).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]
Tails = list[bytes] | None  # None where all are empty
Shift = Callable[[Int64], Int64]

RUN_BYTES = 24 << 20  # what is sorted in memory at a time
_MERGE_BYTES = 12 << 20  # texts held by a merge, over all its runs
_HEAD_BYTES = 250  # about, of an event's text
_EVENT_BYTES = 24  # of an event in the arrays of a run
_BLOCK = 16_384  # events read from a run at a time, at most
_FEWEST = 64
_SAMPLES = 1000  # events of a run by which it is cut


@dataclass(frozen=True, slots=True)
class Run:
    """Where a run lies: its file, first byte, number of events and bytes of their tails."""

    path: Path
    start: int
    n: int
    size: int

    @property
    def n_bytes(self) -> int:
        """Bytes of the run in its file."""
        return self.size + _EVENT_BYTES * self.n


@dataclass(frozen=True, slots=True)
class Events:
    """Times (n,) in nanoseconds, durations (n,; -1 if no slice), heads (n,) and tails of events."""

    ts: Int64
    dur: Int64
    heads: Int32
    tails: Tails = None

    def __len__(self) -> int:
        return len(self.ts)

    def __getitem__(self, part: slice) -> Events:
        tails = None if self.tails is None else self.tails[part]
        return Events(self.ts[part], self.dur[part], self.heads[part], tails)

    def in_order(self, order: Int64) -> Events:
        """Return the events that `order` (m,) lists."""
        tails = None if self.tails is None else list(map(self.tails.__getitem__, order.tolist()))
        return Events(self.ts[order], self.dur[order], self.heads[order], tails)


def joined(parts: Sequence[Events]) -> Events:
    """Return consecutive events as one."""
    if len(parts) == 1:
        return parts[0]
    tails: Tails = None
    if any(part.tails is not None for part in parts):
        tails = []
        for part in parts:
            tails += [b""] * len(part) if part.tails is None else part.tails
    return Events(*_arrays(parts), tails)


#: A run, the function that puts its times (n,) on the common clock, without changing their order, and what
#: is added to the numbers of its heads.
Source = tuple[Run, Shift, int]


class RunWriter:
    """Gathers events and writes them to `path` as sorted runs; `runs` tells where they are."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.runs: list[Run] = []
        self._parts: list[Events] = []
        self._lengths: list[Int32] = []  # of the tails of each part
        self._size = 0
        self._at = 0

    def __enter__(self) -> RunWriter:
        self._file = open(self.path, "wb")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._flush()
        finally:
            self._file.close()

    def add(self, events: Events) -> None:
        """Take some events."""
        lengths = np.zeros(len(events), np.int32)
        if events.tails is not None:
            lengths = np.fromiter(map(len, events.tails), np.int32, len(events))
        self._parts.append(events)
        self._lengths.append(lengths)
        self._size += _EVENT_BYTES * len(events) + int(lengths.sum())
        if self._size >= RUN_BYTES:
            self._flush()

    def _flush(self) -> None:
        if not any(map(len, self._parts)):
            return
        parts, lengths = self._parts, np.concatenate(self._lengths)
        ts, dur, heads = _arrays(parts)
        tails = [tail for part in parts for tail in part.tails or () if tail]
        self._parts, self._lengths, self._size = [], [], 0
        if (ts[1:] < ts[:-1]).any():
            order = np.argsort(ts, kind="stable")
            if tails:
                places = np.cumsum(lengths > 0) - 1
                tails = list(map(tails.__getitem__, places[order[lengths[order] > 0]].tolist()))
            ts, dur, heads, lengths = ts[order], dur[order], heads[order], lengths[order]
        text = b"".join(tails)
        self._file.write(text)
        for array in (ts, dur, heads, lengths):
            self._file.write(array.tobytes())
        run = Run(self.path, self._at, len(ts), len(text))
        self.runs.append(run)
        self._at += run.n_bytes


def _arrays(parts: Sequence[Events]) -> tuple[Int64, Int64, Int32]:
    """Return times, durations and heads of consecutive events."""
    return (
        np.concatenate([part.ts for part in parts]),
        np.concatenate([part.dur for part in parts]),
        np.concatenate([part.heads for part in parts]),
    )


def spans(run: Run) -> tuple[Int64, Int64]:
    """Return the times and durations (n,) of a run; -1 where there is no duration."""
    with open(run.path, "rb") as file:
        arrays = np.fromfile(file, np.int64, 2 * run.n, offset=run.start + run.size)
    return arrays[: run.n], arrays[run.n :]


def cuts(runs: Sequence[Source], n: int) -> list[int]:
    """Return times on the common clock that cut the events of all runs in `n` parts of about one size."""
    shown = []
    for run, shift, _ in runs:
        with open(run.path, "rb") as file:
            ts = _array(file, run.start + run.size, run.n, np.int64)[:: 1 + run.n // _SAMPLES]
        shown.append(np.stack([ts + shift(ts), np.full(len(ts), run.n // len(ts))]))
    ts, weights = np.concatenate(shown, axis=1)
    order = np.argsort(ts)
    sums = np.cumsum(weights[order])
    return [int(ts[order][np.searchsorted(sums, sums[-1] * i // n)]) for i in range(1, n)]


def merge(
    runs: Sequence[Source],
    on_read: Callable[[int], object] | None = None,
    *,
    since: int | None = None,
    until: int | None = None,
) -> Iterator[Events]:
    """Yield the events of all runs in time order, a block at a time.

    Events of one time keep the order of the runs and of each run, except that of slices the longer comes
    first, so that a slice comes before what it contains.

    Parameters
    ----------
    on_read : is told of the bytes that were read
    since, until : only events from the one to before the other, on the common clock (ns)
    """
    size = sum(run.size for run, _, _ in runs)
    mean = _HEAD_BYTES + size / max(1, sum(run.n for run, _, _ in runs))
    block = int(min(_BLOCK, max(_FEWEST, _MERGE_BYTES / mean / max(1, len(runs)))))
    cursors = [_Cursor(*run, block, on_read, since, until) for run in runs]
    while cursors := [cursor for cursor in cursors if cursor.fill()]:
        limit = min((cursor.last for cursor in cursors if cursor.has_more), default=None)
        taken = [cursor.take(limit) for cursor in cursors]
        if not any(map(len, taken)):
            taken = _ties(cursors, block)
        if any(map(len, taken)):
            yield _in_order(taken)


class _Cursor:
    """Reads a run from its beginning, some events at a time."""

    def __init__(
        self,
        run: Run,
        shift: Shift,
        first_head: int,
        block: int,
        on_read: Callable[[int], object] | None,
        since: int | None,
        until: int | None,
    ) -> None:
        self._run, self._shift, self._first_head = run, shift, first_head
        self._block, self._on_read = block, on_read
        self._next, self._end = 0, run.n  # events that are still to be read
        self._byte = run.start
        self.held = Events(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int32))
        if since is not None or until is not None:
            self._narrow(since, until)

    def _narrow(self, since: int | None, until: int | None) -> None:
        """Leave out what is not from `since` to before `until`."""
        run = self._run
        with open(run.path, "rb") as file:
            ts = _array(file, run.start + run.size, run.n, np.int64)
            lengths = _array(file, run.start + run.size + 20 * run.n, run.n, np.int32)
        ts += self._shift(ts)
        if until is not None:
            self._end = int(np.searchsorted(ts, until))
        if since is not None:
            self._next = int(np.searchsorted(ts, since))
            self._byte += int(lengths[: self._next].sum(dtype=np.int64))

    @property
    def has_more(self) -> bool:
        return self._next < self._end

    @property
    def first(self) -> int:
        return int(self.held.ts[0])

    @property
    def last(self) -> int:
        return int(self.held.ts[-1])

    def fill(self) -> bool:
        """Read on where nothing is held; False if the run is over."""
        if not len(self.held) and self.has_more:
            self.read_on()
        return len(self.held) > 0

    def read_on(self) -> None:
        """Hold a block more."""
        run = self._run
        n = min(self._block, self._end - self._next)
        arrays = run.start + run.size
        with open(run.path, "rb") as file:
            ts, dur = (_array(file, arrays + 8 * (k * run.n + self._next), n, np.int64) for k in (0, 1))
            heads = _array(file, arrays + 16 * run.n + 4 * self._next, n, np.int32)
            tails = self._read_tails(file, arrays + 20 * run.n + 4 * self._next, n) if run.size else None
        new = Events(ts + self._shift(ts), dur, heads + np.int32(self._first_head), tails)
        self.held = joined([self.held, new]) if len(self.held) else new
        self._next += n
        if self._on_read is not None:
            self._on_read(_EVENT_BYTES * n + sum(map(len, tails or ())))

    def _read_tails(self, file: IO[bytes], at: int, n: int) -> Tails:
        ends = np.cumsum(_array(file, at, n, np.int32), dtype=np.int64).tolist()
        if not ends[-1]:
            return None
        file.seek(self._byte)
        text = file.read(ends[-1])
        self._byte += len(text)
        return list(map(text.__getitem__, map(slice, [0, *ends[:-1]], ends)))

    def take(self, limit: int | None, *, including: bool = False) -> Events:
        """Return what is held and begins before `limit` (None: everything), and hold it no more."""
        held = self.held
        n = len(held)
        if limit is not None:
            n = int(np.searchsorted(held.ts, limit, "right" if including else "left"))
        self.held = held[n:]
        return held[:n]


def _array(file: IO[bytes], at: int, n: int, kind: Any) -> NDArray[Any]:
    return np.fromfile(file, kind, n, offset=at - file.tell())


def _ties(cursors: Sequence[_Cursor], block: int) -> list[Events]:
    """Go on where all that is held may be followed by events of the same time.

    The runs that end with that time are read further; one that has more such events than a few blocks
    hands on what it holds, in the order of its file.
    """
    limit = min(cursor.last for cursor in cursors if cursor.has_more)
    for cursor in cursors:
        if cursor.has_more and cursor.last == limit and len(cursor.held) < 4 * block:
            cursor.read_on()
            return []
    first = next(cursor for cursor in cursors if cursor.first == limit)
    return [first.take(limit, including=True)]


def _in_order(parts: Sequence[Events]) -> Events:
    """Return parts that are in order each as one in order."""
    parts = [part for part in parts if len(part)]
    events = joined(parts)
    ts = events.ts
    order = np.arange(len(events))
    if len(parts) > 1:
        order = np.argsort(ts, kind="stable")
        ts = ts[order]
    same = ts[1:] == ts[:-1]
    if same.any():
        dur = events.dur[order]
        tied = np.append(same, False) | np.append(False, same)
        slots = np.flatnonzero(tied & (dur >= 0))
        order[slots] = order[slots][np.lexsort((-dur[slots], ts[slots]))]
    elif len(parts) == 1:
        return events
    return events.in_order(order)
