"""What connects the events of one step of a PyTorch job: threads, streams, launches, collectives."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from formats.columns import Track
from replay.recording import EdgeList, chain

#: A pause of a thread from which on it may have waited for something elsewhere …
PAUSE_NS = 300_000
#: … which must then have ended in this last part of the pause.
SOON = 0.2


@dataclass(frozen=True, slots=True)
class Event:
    """One event of one rank in one step."""

    row: int  # of the trace; a handle for launches
    name: str
    cat: str
    phase: str
    track: Track
    start_ns: int
    end_ns: int
    on_device: bool
    is_collective: bool


def connect_rank(
    edges: EdgeList,
    events: Sequence[Event],
    first: int,
    launched_by: Mapping[int, int],
    waits: Sequence[tuple[int, int]],
) -> None:
    """Add the edges within one rank; its events have the numbers from `first` on.

    `launched_by` leads from the row of a device event to that of the operation that launched it; `waits`
    are (row of an operation, when a call inside it stopped waiting for the device).
    """
    by_track: dict[Track, list[int]] = defaultdict(list)
    by_row = {event.row: i for i, event in enumerate(events)}
    for i in sorted(range(len(events)), key=lambda i: (events[i].start_ns, events[i].end_ns)):
        by_track[events[i].track].append(i)
    pairs: list[tuple[int, int]] = []
    for mine in by_track.values():
        chain(pairs, mine)
    pairs = [(a, b) for a, b in pairs if events[a].end_ns <= events[b].start_ns]
    host = [mine for mine in by_track.values() if not events[mine[0]].on_device]
    pairs += _handed_over(events, host)
    pairs += _awaited_after_backward(events, host)
    edges.after_end.extend((first + a, first + b) for a, b in pairs)
    launches = [(by_row[by], i) for i, event in enumerate(events)
                if event.on_device and (by := launched_by.get(event.row)) in by_row]  # fmt: skip
    for a, b in _started_by(events, host):
        is_over = events[a].end_ns <= events[b].start_ns
        (edges.after_end if is_over else edges.after_start).append((first + a, first + b))
    edges.after_start.extend((first + a, first + b) for a, b in launches)
    edges.body_after_end.extend(
        (first + a, first + by_row[b]) for a, b in _device_waits(events, waits, by_row)
    )


def _main_thread(events: Sequence[Event], host: Sequence[list[int]]) -> list[int]:
    """Return the thread with the most operations."""
    return max(host, key=len, default=[])


def _handed_over(events: Sequence[Event], host: Sequence[list[int]]) -> list[tuple[int, int]]:
    """Return (what ended, what then went on) for each pause of a thread that ends with such an end."""
    by_end = sorted((i for mine in host for i in mine), key=lambda i: events[i].end_ns)
    ends = np.array([events[i].end_ns for i in by_end], np.int64)
    found = []
    for mine in host:
        for before, after in zip([None, *mine[:-1]], mine, strict=True):
            if before is None or events[after].is_collective:
                continue
            begin, end = events[before].end_ns, events[after].start_ns
            if end - begin < PAUSE_NS:
                continue
            i = int(np.searchsorted(ends, end, side="right")) - 1
            while i >= 0 and (by_end[i] in (before, after) or events[by_end[i]].track == events[after].track):
                i -= 1
            if i >= 0 and end - ends[i] <= SOON * (end - begin):
                found.append((by_end[i], after))
    return found


def _awaited_after_backward(events: Sequence[Event], host: Sequence[list[int]]) -> list[tuple[int, int]]:
    """Return (collective, first operation after the backward pass), for those that have ended by then."""
    main = _main_thread(events, host)
    backward = [i for i, event in enumerate(main) if events[event].phase == "BW"]
    if not backward or backward[-1] + 1 == len(main):
        return []
    after = main[backward[-1] + 1]
    collectives = [i for mine in host for i in mine if events[i].is_collective]
    return [(i, after) for i in collectives if events[i].end_ns <= events[after].start_ns]


def _started_by(events: Sequence[Event], host: Sequence[list[int]]) -> list[tuple[int, int]]:
    """Return (operation of the main thread, what another thread started while or after it ran)."""
    main = _main_thread(events, host)
    starts = np.array([events[i].start_ns for i in main], np.int64)
    found = []
    for mine in host:
        if mine is main:
            continue
        for i in mine:
            at = int(np.searchsorted(starts, events[i].start_ns, side="right")) - 1
            if at >= 0 and (events[i].is_collective or i == mine[0]):
                found.append((main[at], i))
    return found


def _device_waits(
    events: Sequence[Event], waits: Sequence[tuple[int, int]], by_row: Mapping[int, int]
) -> list[tuple[int, int]]:
    """Return (last device event that ended by then, row of the operation that waited for it)."""
    on_device = sorted(
        (i for i, event in enumerate(events) if event.on_device), key=lambda i: events[i].end_ns
    )
    ends = np.array([events[i].end_ns for i in on_device], np.int64)
    found = []
    for row, until in waits:
        if row in by_row:
            i = int(np.searchsorted(ends, until, side="right")) - 1
            if i >= 0:
                found.append((on_device[i], row))
    return found


def connect_collectives(edges: EdgeList, events: Sequence[tuple[int, Event]]) -> None:
    """Let the n-th collective of a name wait, in each rank, for the starts of the others."""
    groups: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    count: Counter[tuple[int, str]] = Counter()
    order = sorted(range(len(events)), key=lambda i: (events[i][1].start_ns, i))
    for i in order:
        owner, event = events[i]
        if event.is_collective:
            count[owner, event.name] += 1
            groups[event.name, count[owner, event.name]].append((owner, i))
    for members in groups.values():
        for owner, number in members:
            until = events[number][1].end_ns  # the root of a broadcast does not wait for the others
            edges.body_after_start.extend(
                (mate, number)
                for other, mate in members
                if other != owner and events[mate][1].start_ns <= until
            )
