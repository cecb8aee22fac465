"""Ranks of a pipeline job: their places, their communication as in Megatron, and their waits."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from analyzer.base.arrays import Int64, Mask
from analyzer.base.arrays.numbering import numbered
from analyzer.reading.dialects.owners import names_in
from analyzer.reading.dialects.recorded_collectives import SyncPart
from analyzer.reading.dialects.step_windows import ended_nearest
from analyzer.reading.dialects.system import Metadata
from analyzer.reading.dialects.tolerances import MOSTLY_TOGETHER, TOGETHER_NS
from analyzer.reading.formats.columns import ArgColumn, Id, Trace, Track

#: ``PP rank 0, TP rank 1, compute`` of a thread, ``DP rank [0]`` of a process; ``DP0-PP1-TP0``.
_PLACE = re.compile(r"\b(PP|DP|CP|EP|TP)[ _-]?(?:rank)?[ _]?\[?(\d{1,9})\]?(?!\w)", re.IGNORECASE)
COMM_THREAD = re.compile(r"\b(pp|tp|dp|cp|ep)?[-_ ]?comm(?:unication)?\b", re.IGNORECASE)
MESSAGE = re.compile(r"(?i)(?=.*(forward|backward))(?=.*(send|recv))")
#: A column beside the arguments of a rank's trace: how long communication waited before it began.
WAITED = "(waited)"
_ALL = -1  # in place of the number in which the members of a group differ


class Place(NamedTuple):
    """The place of a rank along each kind of parallelism, in the order in which ranks are numbered."""

    pp: int = 0  # the stage of the pipeline
    dp: int = 0
    cp: int = 0
    ep: int = 0
    tp: int = 0


def states_stage(metadata: Metadata) -> bool:
    """Look for the stage of a pipeline in names of threads and processes."""
    return any("pp" in _stated(event["args"].get("name")) for event in metadata)


def places_of(metadata: Metadata) -> dict[tuple[Id, Id], Place]:
    """Read the place of each named thread, by its name and its process's name."""
    of_process = {track: _stated(name) for track, name in names_in(metadata, "process_name").items()}
    of_thread = {
        track: {**of_process.get((track[0], None), {}), **_stated(name)}
        for track, name in names_in(metadata, "thread_name").items()
    }
    return {track: Place(**stated) for track, stated in (of_thread | of_process).items() if "pp" in stated}


def place_of(places: Mapping[tuple[Id, Id], Place], track: Track) -> Place | None:
    """Look up the place of a thread, else of its process."""
    return places.get(track) or places.get((track.pid, None))


def _stated(name: object) -> dict[str, int]:
    return {kind.lower(): int(number) for kind, number in _PLACE.findall(str(name))}


def with_waits(ranks: Sequence[Trace], comms: Sequence[Mask], key: str) -> list[Trace]:
    """Add `WAITED` to the traces of all ranks, if communication is recorded without waiting.

    Then all members begin at once, when the last is ready. Each waited since it was ready itself: as long
    after its input as the last member began after its own.
    """
    met: dict[Hashable, list[tuple[int, int]]] = {}
    ready = []
    for i, (trace, comm) in enumerate(zip(ranks, comms, strict=True)):
        ready.append(_ready_ns(trace, comm, key))
        step = trace.args[key].as_dict() if key in trace.args else {}
        seen: Counter[Hashable] = Counter()
        for row, part in parts_of(trace, comm).items():
            turn = step.get(row), part.key
            met.setdefault((turn, seen[turn]), []).append((i, row))
            seen[turn] += 1
    groups = [group for group in met.values() if len(group) > 1]
    starts = [[int(ranks[i].ts_ns[row]) for i, row in group] for group in groups]
    at_once = sum(max(begins) - min(begins) <= TOGETHER_NS for begins in starts)
    if not groups or at_once < MOSTLY_TOGETHER * len(groups):
        return list(ranks)
    waits = [np.zeros(len(trace), np.int64) for trace in ranks]
    for group, begins in zip(groups, starts, strict=True):
        gaps = [max(begin - int(ready[i][row]), 0) for (i, row), begin in zip(group, begins, strict=True)]
        for (i, row), gap in zip(group, gaps, strict=True):
            waits[i][row] = gap - min(gaps)
    columns = (ArgColumn(np.flatnonzero(wait), wait[wait > 0].tolist()) for wait in waits)
    return [replace(t, args={**t.args, WAITED: column}) for t, column in zip(ranks, columns, strict=True)]


def _ready_ns(trace: Trace, comm: Mask, key: str) -> Int64:
    """Find when the rank was ready for each of `comm` (n,): its input and the one before had ended.

    Not before the first slice of the rank, and of its step, which the argument `key` numbers.
    """
    lines, rows = trace.track_id, np.flatnonzero(comm)
    ready = np.full(len(trace), trace.ts_ns.min(initial=np.iinfo(np.int64).max))
    source = ended_nearest(trace.ts_ns, trace.end_ns, lines, rows)
    ready[rows[source >= 0]] = trace.end_ns[source[source >= 0]]
    order = rows[np.lexsort((trace.ts_ns[rows], lines[rows]))]
    before, after = order[:-1], order[1:]
    same = lines[before] == lines[after]
    np.maximum.at(ready, after[same], trace.end_ns[before[same]])
    if key in trace.args:
        column = trace.args[key]
        steps, step = numbered(map(str, column.values))
        begin = np.full(len(steps), np.iinfo(np.int64).max)
        np.minimum.at(begin, step, trace.ts_ns[column.rows])
        ready[column.rows] = np.maximum(ready[column.rows], begin[step])
    return ready


def untransferred(trace: Trace) -> Trace:
    """Begin communication when the rank was ready for it; see `WAITED`."""
    if WAITED not in trace.args:
        return trace
    ts_ns, dur_ns, column = trace.ts_ns.copy(), trace.dur_ns.copy(), trace.args[WAITED]
    waited = np.array(column.values, np.int64)
    ts_ns[column.rows] -= waited
    dur_ns[column.rows] += waited
    return replace(trace, ts_ns=ts_ns, dur_ns=dur_ns)


def parts_of(trace: Trace, comm: Mask) -> dict[int, SyncPart]:
    """Match each communication of a rank with other ranks, by row."""
    known, names = places_of(trace.metadata), names_in(trace.metadata, "thread_name")

    @cache
    def part(name: int, track_id: int) -> SyncPart | None:
        track = trace.tracks[track_id]
        place = place_of(known, track)
        key = None if place is None else _key(trace.names[name], names.get(track, ""), place)
        return None if key is None else SyncPart(key)

    rows = np.flatnonzero(comm)
    pairs = zip(trace.name_id[rows].tolist(), trace.track_id[rows].tolist(), strict=True)
    parts = zip(rows.tolist(), (part(*pair) for pair in pairs), strict=True)
    return {row: part for row, part in parts if part is not None}


def _key(name: str, thread: str, place: Place) -> Hashable:
    """Make a key that a communication has on all its members; None if they are unknown.

    The key of a message has its sender; of the gradients of embeddings, which the first and the last stage
    share, the place within a stage; of the norm of all gradients nothing. Other members differ in one kind
    only: data or tensor parallelism, by the thread's name, or tensor parallelism for the norms of layers.
    """
    if message := MESSAGE.match(name):
        way = message[1].lower()
        if re.search(r"(?i)send", name):
            return None if re.search(r"(?i)recv", name) else (way, place)
        return way, place._replace(pp=place.pp + (-1 if way == "forward" else 1))
    if re.search(r"(?i)embedding", name):
        return name, place._replace(pp=_ALL)
    if re.search(r"(?i)clip|grad[-_]?norm", name):
        return name
    kind = COMM_THREAD.search(thread)
    axis = "tp" if re.search(r"(?i)layer[-_]?norm", name) else (kind[1] or "dp").lower() if kind else "dp"
    return None if axis == "pp" else (name, place._replace(**{axis: _ALL}))
