"""Sorting more events than fit in memory: runs in temporary files, merged one stretch of time after another.

Of an event a run holds its time, its duration, the number of its head (the part of its text that recurs,
`combine.event_text`) and its tail (the rest of its text, often empty). A run is a sorted stretch of events
in a file: their tails one after another, then a column for each of the rest.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from ctypes import CDLL
from pathlib import Path
from typing import IO, Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from arrays import Int32, Int64, NDArray
from arrays.numbering import unique
from formats.native.rewriter import gathered, time_order

Shift = Callable[[Int64], Int64]

RUN_BYTES = 24 << 20  # what is sorted in memory at a time
_MERGE_BYTES = 12 << 20  # texts held by a merge, over all its runs
_HEAD_BYTES = 250  # about, of an event's text
_FEWEST = 64  # events that are merged at a time, at least
_MOST_TIMES = 4  # that, of a stretch that is held whole
_LOOKED_AT = 1 << 16  # times of a run, at a time
_SAMPLES = 1000  # events of a run by which it is cut

#: The columns of a run: what an event is in each, and bytes of the columns before, an event.
TIMES, DURATIONS, HEADS, LENGTHS = ((np.int64, 0), (np.int64, 8), (np.int32, 16), (np.int32, 20))
_EVENT_BYTES = 24


class Run(Struct, frozen=True):
    """Where a run lies: its file, first byte, number of events and bytes of their tails."""

    path: Path
    start: int
    n: int
    size: int

    @property
    def n_bytes(self) -> int:
        """Bytes of the run in its file."""
        return self.size + _EVENT_BYTES * self.n

    def column(self, which: tuple[type, int], first: int = 0, last: int | None = None) -> NDArray[Any]:
        """Return one of the columns, of the events from `first` to before `last`.

        Times and durations are nanoseconds, no duration is -1; lengths are those of the tails.
        """
        kind, before = np.dtype(which[0]), which[1]
        at = self.start + self.size + before * self.n + kind.itemsize * first
        return np.fromfile(self.path, kind, (self.n if last is None else last) - first, offset=at)


class Events(Struct, frozen=True):
    """Times (n,) in nanoseconds, durations (n,; -1 if no slice), heads (n,) and tails of events.

    The tail of an event is the `lengths` (n,) bytes of `text` from `at` (n,) on.
    """

    ts: Int64
    dur: Int64
    heads: Int32
    at: Int64
    lengths: Int32
    text: bytes

    @classmethod
    def with_tails(cls, ts: Int64, dur: Int64, heads: Int32, tails: Sequence[bytes]) -> Events:
        """Return events whose tails are these."""
        lengths = np.fromiter(map(len, tails), np.int32, len(tails))
        return cls(ts, dur, heads, text_starts(lengths), lengths, b"".join(tails))

    def __len__(self) -> int:
        return len(self.ts)

    def select(self, rows: Int64) -> Events:
        """Return the events `rows` (m,), in that order."""
        return Events(
            self.ts[rows], self.dur[rows], self.heads[rows], self.at[rows], self.lengths[rows], self.text
        )

    def tails(self) -> list[bytes]:
        """Return the tail of each event."""
        if not self.lengths.any():
            return [b""] * len(self)
        ends = (self.at + self.lengths).tolist()
        return list(map(self.text.__getitem__, map(slice, self.at.tolist(), ends)))


def text_starts(lengths: NDArray[np.integer[Any]]) -> Int64:
    """Return where texts of these lengths (n,) begin that lie one after another."""
    at = np.zeros(len(lengths), np.int64)
    np.cumsum(lengths[:-1], out=at[1:])
    return at


#: A run, the function that puts its times (n,) on the common clock, without changing their order, and what
#: is added to the numbers of its heads.
PlacedRun = tuple[Run, Shift, int]


class RunWriter:
    """Gathers events and writes them to a file as sorted runs; `runs` tells where they are.

    `library` is that of `formats.native.library`, where there is one.
    """

    def __init__(self, path: Path, file: IO[bytes], library: CDLL | None = None) -> None:
        self.runs: list[Run] = []
        self._path, self._file, self._library = path, file, library
        self._parts: list[Events] = []
        self._size = 0
        self._at = 0

    def add(self, events: Events) -> None:
        """Take some events."""
        if len(events):
            self._parts.append(events)
            self._size += _EVENT_BYTES * len(events) + len(events.text)
        if self._size >= RUN_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the events that are held as one sorted run."""
        if not self._parts:
            return
        events = joined(self._parts)
        self._parts, self._size = [], 0
        if (events.ts[1:] < events.ts[:-1]).any():
            events = events.select(time_order(events.ts, self._library)[0])
        size = int(events.lengths.sum())
        self._file.write(self._text(events))
        for column in (events.ts, events.dur, events.heads, events.lengths):
            self._file.write(column.data)
        run = Run(self._path, self._at, len(events), size)
        self.runs.append(run)
        self._at += run.n_bytes

    def _text(self, events: Events) -> bytes | memoryview:
        """Return the tails of events, one after another."""
        if (events.at == text_starts(events.lengths)).all():
            return memoryview(events.text)[: int(events.lengths.sum())]
        if self._library is None:
            return b"".join(events.tails())
        return gathered(self._library, events.text, events.at, events.lengths)


@contextlib.contextmanager
def run_writer(path: Path, library: CDLL | None = None) -> Iterator[RunWriter]:
    """Open a file for sorted runs; its last one is written when the block is over."""
    with open(path, "wb") as file:
        runs = RunWriter(path, file, library)
        yield runs
        runs.flush()


def joined(parts: Sequence[Events]) -> Events:
    """Return consecutive events as one."""
    if len(parts) == 1:
        return parts[0]
    ts, dur, heads, lengths = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("ts", "dur", "heads", "lengths")
    )
    before = np.cumsum([0, *(len(part.text) for part in parts[:-1])])
    at = np.concatenate([part.at + n for part, n in zip(parts, before.tolist(), strict=True)])
    return Events(ts, dur, heads, at, lengths, b"".join(part.text for part in parts))


def cut(runs: Sequence[PlacedRun], n: int) -> Int64:
    """Return where `merge` is to cut the runs into stretches of time, each small enough to be held.

    Returns
    -------
    (k + 1, runs, 2) the event and the byte of its tails where each stretch begins in each run
        k is a multiple of `n`. Events of one time are in one stretch.
    """
    n_events = sum(run.n for run, _, _ in runs)
    mean = _HEAD_BYTES + sum(run.size for run, _, _ in runs) / max(1, n_events)
    k = n * int(1 + n_events / max(_FEWEST, _MERGE_BYTES / mean) / n)
    times = _quantiles(runs, k)
    at = np.zeros((k + 1, len(runs), 2), np.int64)
    for i, (run, shift, _) in enumerate(runs):
        at[-1, i] = run.n, run.size
        for first in range(0, run.n, _LOOKED_AT):
            ts = run.column(TIMES, first, min(run.n, first + _LOOKED_AT))
            at[1:-1, i, 0] += np.searchsorted(ts + shift(ts), times)
        if run.size:
            at[1:-1, i, 1] = np.append(0, np.cumsum(run.column(LENGTHS), dtype=np.int64))[at[1:-1, i, 0]]
    return at


def _quantiles(runs: Sequence[PlacedRun], k: int) -> Int64:
    """Return times on the common clock (k - 1,) between which about as many events lie."""
    if not runs:
        return np.zeros(k - 1, np.int64)
    shown = []
    for run, shift, _ in runs:
        ts = run.column(TIMES)[:: 1 + run.n // _SAMPLES]
        shown.append(np.stack([ts + shift(ts), np.full(len(ts), run.n // len(ts))]))
    ts, weights = np.concatenate(shown, axis=1)
    order = np.argsort(ts)
    sums = np.cumsum(weights[order])
    return np.asarray(ts[order][np.searchsorted(sums, sums[-1] * np.arange(1, k) // k)])


def merge(
    runs: Sequence[PlacedRun],
    at: Int64,
    library: CDLL | None = None,
    on_read: Callable[[int], object] | None = None,
) -> Iterator[Events]:
    """Yield the events of all runs in time order, a stretch of those that `cut` returned at a time.

    Events of one time keep the order of the runs and of each run, except that of slices the longer comes
    first, so that a slice comes before what it contains. `on_read` is told of the bytes that were read.
    """
    for begin, end in itertools.pairwise(at.tolist()):
        size = sum(b[1] - a[1] + _HEAD_BYTES * (b[0] - a[0]) for a, b in zip(begin, end, strict=True))
        if size <= _MOST_TIMES * max(_MERGE_BYTES, _FEWEST * _HEAD_BYTES):
            parts = [_read(*part) for part in zip(runs, begin, end, strict=True) if part[1][0] < part[2][0]]
            if parts:
                yield _by_time(joined(parts), library)
        else:
            yield from _piecemeal(runs, begin, end, library)
        if on_read is not None:
            on_read(sum(_EVENT_BYTES * (b[0] - a[0]) + b[1] - a[1] for a, b in zip(begin, end, strict=True)))


def _columns(source: PlacedRun, begin: Sequence[int], end: Sequence[int]) -> Events:
    """Return some events of a run on the common clock, without their tails; `begin`, `end`: as in `cut`.

    Their tails begin where they do in the file.
    """
    run, shift, first_head = source
    ts, dur, heads, lengths = (
        run.column(which, begin[0], end[0]) for which in (TIMES, DURATIONS, HEADS, LENGTHS)
    )
    at = text_starts(lengths) + (run.start + begin[1])
    return Events(ts + shift(ts), dur, heads + np.int32(first_head), at, lengths, b"")


def _read(source: PlacedRun, begin: Sequence[int], end: Sequence[int]) -> Events:
    events = _columns(source, begin, end)
    start = source[0].start + begin[1]
    with open(source[0].path, "rb") as file:
        file.seek(start)
        text = file.read(end[1] - begin[1])
    return replace(events, at=events.at - start, text=text)


def _piecemeal(
    runs: Sequence[PlacedRun],
    begin: Sequence[Sequence[int]],
    end: Sequence[Sequence[int]],
    library: CDLL | None,
) -> Iterator[Events]:
    """Yield a stretch that is too large to be held, most often as all its events have one time.

    Their columns are held, and the tails of a few are read at a time.
    """
    parts = [_columns(*part) for part in zip(runs, begin, end, strict=True)]
    owner = np.repeat(np.arange(len(runs), dtype=np.int32), list(map(len, parts)))
    events = joined(parts)
    order = _order(events, library)
    mean = _HEAD_BYTES + int(events.lengths.sum()) // len(events)
    n = max(_FEWEST, _MERGE_BYTES // mean)
    for first in range(0, len(order), n):
        rows = order[first : first + n]
        some = events.select(rows)
        tails = [b""] * len(rows)
        for i in unique(owner[rows]).tolist():
            with open(runs[i][0].path, "rb", buffering=0) as file:
                for row in np.flatnonzero(owner[rows] == i).tolist():
                    tails[row] = os.pread(file.fileno(), int(some.lengths[row]), int(some.at[row]))
        yield Events.with_tails(some.ts, some.dur, some.heads, tails)


def _by_time(events: Events, library: CDLL | None) -> Events:
    is_sorted = (events.ts[1:] > events.ts[:-1]).all()
    return events if is_sorted else events.select(_order(events, library))


def _order(events: Events, library: CDLL | None) -> Int64:
    """Return the order of parts, one after another, that are in order each; see `merge`."""
    order, may_tie = time_order(events.ts, library)
    if not may_tie:
        return order
    ts = events.ts[order]
    same = ts[1:] == ts[:-1]
    if same.any():
        dur = events.dur[order]
        tied = np.append(same, False) | np.append(False, same)
        slots = np.flatnonzero(tied & (dur >= 0))
        order[slots] = order[slots][np.lexsort((-dur[slots], ts[slots]))]
    return order
