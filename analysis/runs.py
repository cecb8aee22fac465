"""Sorting more events than fit in memory: runs in temporary files, merged block by block.

A run is a sorted stretch of events in a file: their JSON texts one after another, then three arrays:
times and durations (int64 nanoseconds) and lengths of the texts (int32).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]

RUN_BYTES = 24 << 20  # texts sorted in memory at a time
_MERGE_BYTES = 12 << 20  # texts held by a merge, over all its runs
_BLOCK = 16_384  # events read from a run at a time, at most
_FEWEST = 64


@dataclass(frozen=True, slots=True)
class Run:
    """Where a run lies: its file, first byte, number of events and bytes of their texts."""

    path: Path
    start: int
    n: int
    size: int


@dataclass(frozen=True, slots=True)
class Block:
    """Events in time order: JSON without the opening brace and the time; times (n,) in nanoseconds."""

    texts: Sequence[bytes]
    ts: Int64


class RunWriter:
    """Gathers events and writes them to `path` as sorted runs; `runs` tells where they are."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.runs: list[Run] = []
        self._texts: list[bytes] = []
        self._ts: list[Int64] = []
        self._dur: list[Int64] = []
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

    def add(self, texts: Sequence[bytes], ts: Int64, dur: Int64) -> None:
        """Take the texts (n) of events with their times and durations (n,); -1 if no slice."""
        self._texts += texts
        self._ts.append(ts)
        self._dur.append(dur)
        self._size += sum(map(len, texts))
        if self._size >= RUN_BYTES:
            self._flush()

    def _flush(self) -> None:
        if not self._texts:
            return
        ts, dur = np.concatenate(self._ts), np.concatenate(self._dur)
        lengths = np.fromiter(map(len, self._texts), np.int32, len(self._texts))
        texts = self._texts
        if (ts[1:] < ts[:-1]).any():
            order = np.argsort(ts, kind="stable")
            ts, dur, lengths = ts[order], dur[order], lengths[order]
            texts = [texts[i] for i in order.tolist()]
        for part in (b"".join(texts), ts.tobytes(), dur.tobytes(), lengths.tobytes()):
            self._file.write(part)
        self.runs.append(Run(self.path, self._at, len(ts), self._size))
        self._at += self._size + 20 * len(ts)
        self._texts, self._ts, self._dur, self._size = [], [], [], 0


def spans(run: Run) -> tuple[Int64, Int64]:
    """Return the times and durations (n,) of a run; -1 where there is no duration."""
    with open(run.path, "rb") as file:
        arrays = np.fromfile(file, np.int64, 2 * run.n, offset=run.start + run.size)
    return arrays[: run.n], arrays[run.n :]


def merge(
    runs: Sequence[tuple[Run, Callable[[Int64], Int64]]], on_read: Callable[[int], object] | None = None
) -> Iterator[Block]:
    """Yield the events of all runs in time order, a block at a time.

    Events of one time keep the order of the runs and of each run, except that of slices the longer comes
    first, so that a slice comes before what it contains.

    Parameters
    ----------
    runs : each with a function that puts its times (n,) on the common clock, without changing their order
    on_read : is told of the bytes of texts that were read
    """
    size = max(1, sum(run.size for run, _ in runs))
    mean = size / max(1, sum(run.n for run, _ in runs))
    block = int(min(_BLOCK, max(_FEWEST, _MERGE_BYTES / mean / max(1, len(runs)))))
    cursors = [_Cursor(run, shift, block, on_read) for run, shift in runs]
    while cursors := [cursor for cursor in cursors if cursor.fill()]:
        limit = min((cursor.last for cursor in cursors if cursor.has_more), default=None)
        taken = [cursor.take(limit) for cursor in cursors]
        if not any(len(part.ts) for part in taken):
            taken = _ties(cursors, block)
        if any(len(part.ts) for part in taken):
            yield _in_order(taken)


@dataclass(frozen=True, slots=True)
class _Part:
    texts: list[bytes]
    ts: Int64
    dur: Int64


class _Cursor:
    """Reads a run from its beginning, some events at a time."""

    def __init__(
        self,
        run: Run,
        shift: Callable[[Int64], Int64],
        block: int,
        on_read: Callable[[int], object] | None,
    ) -> None:
        self._run, self._shift, self._block, self._on_read = run, shift, block, on_read
        self._next = 0  # event to be read next
        self._byte = run.start
        self._held = _Part([], np.empty(0, np.int64), np.empty(0, np.int64))

    @property
    def has_more(self) -> bool:
        return self._next < self._run.n

    @property
    def first(self) -> int:
        return int(self._held.ts[0])

    @property
    def last(self) -> int:
        return int(self._held.ts[-1])

    def fill(self) -> bool:
        """Read on where nothing is held; False if the run is over."""
        if not len(self._held.ts) and self.has_more:
            self.read_on()
        return len(self._held.ts) > 0

    def read_on(self) -> None:
        """Hold a block more."""
        run = self._run
        n = min(self._block, run.n - self._next)
        arrays = run.start + run.size
        with open(run.path, "rb") as file:
            ts, dur = (_array(file, arrays + 8 * (k * run.n + self._next), n, np.int64) for k in (0, 1))
            lengths = _array(file, arrays + 16 * run.n + 4 * self._next, n, np.int32)
            file.seek(self._byte)
            text = file.read(int(lengths.sum()))
        ends = np.cumsum(lengths).tolist()
        texts = [text[a + 1 : b] for a, b in zip([0, *ends[:-1]], ends, strict=True)]
        held = self._held
        self._held = _Part(
            held.texts + texts,
            np.concatenate([held.ts, ts + self._shift(ts)]),
            np.concatenate([held.dur, dur]),
        )
        self._next += n
        self._byte += len(text)
        if self._on_read is not None:
            self._on_read(len(text))

    def take(self, limit: int | None, *, including: bool = False) -> _Part:
        """Return what is held and begins before `limit` (None: everything), and hold it no more."""
        held = self._held
        n = len(held.ts)
        if limit is not None:
            n = int(np.searchsorted(held.ts, limit, "right" if including else "left"))
        self._held = _Part(held.texts[n:], held.ts[n:], held.dur[n:])
        return _Part(held.texts[:n], held.ts[:n], held.dur[:n])


def _array(file: object, at: int, n: int, kind: type[np.signedinteger]) -> NDArray[np.signedinteger]:
    return np.fromfile(file, kind, n, offset=at - file.tell())  # type: ignore[attr-defined,call-overload,no-any-return]


def _ties(cursors: Sequence[_Cursor], block: int) -> list[_Part]:
    """Go on where all that is held may be followed by events of the same time.

    The runs that end with that time are read further; one that has more such events than a few blocks
    hands on what it holds, in the order of its file.
    """
    limit = min(cursor.last for cursor in cursors if cursor.has_more)
    for cursor in cursors:
        if cursor.has_more and cursor.last == limit and len(cursor._held.ts) < 4 * block:
            cursor.read_on()
            return []
    first = next(cursor for cursor in cursors if cursor.first == limit)
    return [first.take(limit, including=True)]


def _in_order(parts: Sequence[_Part]) -> Block:
    """Return parts that are in order each as one block in order."""
    parts = [part for part in parts if len(part.ts)]
    ts = np.concatenate([part.ts for part in parts])
    dur = np.concatenate([part.dur for part in parts])
    texts = parts[0].texts if len(parts) == 1 else [text for part in parts for text in part.texts]
    order = np.argsort(ts, kind="stable") if len(parts) > 1 else np.arange(len(ts))
    ts, dur = ts[order], dur[order]
    if (ts[1:] == ts[:-1]).any():
        slots = np.flatnonzero(dur >= 0)
        order[slots] = order[slots][np.lexsort((-dur[slots], ts[slots]))]
    elif len(parts) == 1:
        return Block(texts, ts)
    return Block([texts[i] for i in order.tolist()], ts)
