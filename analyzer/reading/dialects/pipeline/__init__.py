"""Timelines of pipeline jobs (Megatron): all ranks in one file, with their places in names of threads.

Written by StragglerAnalysis (a process for each rank of data parallelism, threads for stages and kinds of
work, ``args.step``) and by MegaScan (a process for each rank, ``args.iteration``).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec.structs import replace

from analyzer.base.arrays import Int64, Mask, NDArray
from analyzer.base.arrays.numbering import numbered
from analyzer.reading.dialects.name_rules import is_collective, is_point_to_point
from analyzer.reading.dialects.owners import Owned, names_in, split_by_tracks
from analyzer.reading.dialects.recorded_collectives import SyncPart
from analyzer.reading.dialects.roles import Phase, Role, by_name, is_communication
from analyzer.reading.dialects.steps import NO_STEPS, STEP_ARGS, Steps, says_step, steps_by_argument
from analyzer.reading.dialects.system import Metadata, Need, System
from analyzer.reading.dialects.tolerances import MOSTLY_TOGETHER, TOGETHER_NS
from analyzer.reading.formats.columns import ArgColumn, Id, Trace, Track

if TYPE_CHECKING:
    from analyzer.reading.dialects.step_parts import RankSteps, RankTrace

_PHASES = (
    (r"(?i)forward", Phase.FORWARD),
    (r"(?i)backward", Phase.BACKWARD),
    (r"(?i)optimizer", Phase.UPDATE),
    (r"(?i)data[-_]?(?:load|sync)", Phase.INPUT),
)
#: ``PP rank 0, TP rank 1, compute`` of a thread, ``DP rank [0]`` of a process; ``DP0-PP1-TP0``.
_PLACE = re.compile(r"\b(PP|DP|CP|EP|TP)[ _-]?(?:rank)?[ _]?\[?(\d{1,9})\]?(?!\w)", re.IGNORECASE)
_COMM_THREAD = re.compile(r"\b(pp|tp|dp|cp|ep)?[-_ ]?comm(?:unication)?\b", re.IGNORECASE)
_MESSAGE = re.compile(r"(?i)(?=.*(forward|backward))(?=.*(send|recv))")
#: A column beside the arguments of a rank's trace: how long communication waited before it began.
_WAITED = "(waited)"
_ALL = -1  # in place of the number in which the members of a group differ


class Pipeline(System):
    """Ranks by their places, steps by arguments, meetings as in Megatron."""

    name = "pipeline"
    counted_by = (
        "Communication: the work of threads named after it (pp-comm, dp-comm), and operations named after a "
        "collective, a send or a receive; all else computes."
    )
    args = MappingProxyType({Need.ALWAYS: STEP_ARGS})

    def recognises_metadata(self, metadata: Metadata) -> bool:
        """Look for the stage of a pipeline in names of threads and processes."""
        return any("pp" in _stated(event["args"].get("name")) for event in metadata)

    def split(self, trace: Trace) -> Sequence[Owned]:
        """Split by places, in the order of `Place`."""
        known = _places_of(trace.metadata)
        places = [_place_of(known, track) for track in trace.tracks]
        distinct = sorted({place for place in places if place is not None})
        index = {place: i for i, place in enumerate(distinct)}
        owner_of = np.array([-1 if place is None else index[place] for place in places], np.int64)
        owned = split_by_tracks(trace, range(len(distinct)), owner_of)
        if not owned:
            return super().split(trace)
        comms = [is_communication(self.recorded_roles(part.trace)) for part in owned]
        parts = _with_waits([part.trace for part in owned], comms, says_step(trace))
        return [replace(owner, trace=part) for owner, part in zip(owned, parts, strict=True)]

    def marked_steps(self, trace: Trace) -> Steps:
        key = says_step(trace)
        return steps_by_argument(trace, key) if key else NO_STEPS

    def loop_spans(self, trace: Trace) -> Mask:
        return np.ones(len(trace), np.bool_)

    def recorded_roles(self, trace: Trace) -> NDArray[np.int8]:
        names = names_in(trace.metadata, "thread_name")
        on_comm = [_COMM_THREAD.search(names.get(track, "")) is not None for track in trace.tracks]
        comm = by_name(trace, lambda name: is_collective(name, "") or is_point_to_point(name))
        comm |= np.array(on_comm, np.bool_)[trace.track_id]
        return np.where(comm, Role.COMM, Role.COMPUTE).astype(np.int8)

    def rank_steps(self, rank: RankTrace, by: str | None = None) -> RankSteps:
        """Make the graphs of one rank's spans; ranks meet as `_parts_of` says."""
        from analyzer.reading.dialects.span_graph import Meaning, arrows, record_spans

        roles = self.roles(rank.trace)
        comm = is_communication(roles)
        parts, trace = _parts_of(rank.trace, comm), _untransferred(rank.trace)
        meets = np.zeros(len(trace), np.bool_)
        meets[list(parts)] = True
        phases = {
            name: phase for name in trace.names for rule, phase in _PHASES[::-1] if re.search(rule, name)
        }
        messages = by_name(trace, lambda name: bool(_MESSAGE.match(name)))
        meaning = Meaning(roles, meets, phases, self.category, parts, messages=messages, jitters=True)
        return record_spans(rank, trace, self.find_steps(rank.trace, by).whole, meaning, arrows(trace))


class Place(NamedTuple):
    """The place of a rank along each kind of parallelism, in the order in which ranks are numbered."""

    pp: int = 0  # the stage of the pipeline
    dp: int = 0
    cp: int = 0
    ep: int = 0
    tp: int = 0


def _places_of(metadata: Metadata) -> dict[tuple[Id, Id], Place]:
    """Read the place of each named thread, by its name and its process's name."""
    of_process = {track: _stated(name) for track, name in names_in(metadata, "process_name").items()}
    of_thread = {
        track: {**of_process.get((track[0], None), {}), **_stated(name)}
        for track, name in names_in(metadata, "thread_name").items()
    }
    return {track: Place(**stated) for track, stated in (of_thread | of_process).items() if "pp" in stated}


def _place_of(places: Mapping[tuple[Id, Id], Place], track: Track) -> Place | None:
    """Look up the place of a thread, else of its process."""
    return places.get(track) or places.get((track.pid, None))


def _stated(name: object) -> dict[str, int]:
    return {kind.lower(): int(number) for kind, number in _PLACE.findall(str(name))}


def _with_waits(ranks: Sequence[Trace], comms: Sequence[Mask], key: str) -> list[Trace]:
    """Add `_WAITED` to the traces of all ranks, if communication is recorded without waiting.

    Then all members begin at once, when the last is ready. Each waited since it was ready itself: as long
    after its input as the last member began after its own.
    """
    met: dict[Hashable, list[tuple[int, int]]] = {}
    ready = []
    for i, (trace, comm) in enumerate(zip(ranks, comms, strict=True)):
        ready.append(_ready_ns(trace, comm, key))
        step = trace.args[key].as_dict() if key in trace.args else {}
        seen: Counter[Hashable] = Counter()
        for row, part in _parts_of(trace, comm).items():
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
    return [replace(t, args={**t.args, _WAITED: column}) for t, column in zip(ranks, columns, strict=True)]


def _ready_ns(trace: Trace, comm: Mask, key: str) -> Int64:
    """Find when the rank was ready for each of `comm` (n,): its input and the one before had ended.

    Not before the first slice of the rank, and of its step, which the argument `key` numbers.
    """
    from analyzer.reading.dialects.step_windows import ended_nearest

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


def _untransferred(trace: Trace) -> Trace:
    """Begin communication when the rank was ready for it; see `_WAITED`."""
    if _WAITED not in trace.args:
        return trace
    ts_ns, dur_ns, column = trace.ts_ns.copy(), trace.dur_ns.copy(), trace.args[_WAITED]
    waited = np.array(column.values, np.int64)
    ts_ns[column.rows] -= waited
    dur_ns[column.rows] += waited
    return replace(trace, ts_ns=ts_ns, dur_ns=dur_ns)


def _parts_of(trace: Trace, comm: Mask) -> dict[int, SyncPart]:
    """Match each communication of a rank with other ranks, by row."""
    known, names = _places_of(trace.metadata), names_in(trace.metadata, "thread_name")

    @cache
    def part(name: int, track_id: int) -> SyncPart | None:
        track = trace.tracks[track_id]
        place = _place_of(known, track)
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
    if message := _MESSAGE.match(name):
        way = message[1].lower()
        if re.search(r"(?i)send", name):
            return None if re.search(r"(?i)recv", name) else (way, place)
        return way, place._replace(pp=place.pp + (-1 if way == "forward" else 1))
    if re.search(r"(?i)embedding", name):
        return name, place._replace(pp=_ALL)
    if re.search(r"(?i)clip|grad[-_]?norm", name):
        return name
    kind = _COMM_THREAD.search(thread)
    axis = "tp" if re.search(r"(?i)layer[-_]?norm", name) else (kind[1] or "dp").lower() if kind else "dp"
    return None if axis == "pp" else (name, place._replace(**{axis: _ALL}))
