"""Splits a file that holds the events of several ranks."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from analyzer.base.arrays import Int64, Mask
from analyzer.base.arrays.numbering import ids_in, numbered, unique
from analyzer.base.errors import UsageError
from analyzer.base.names import OpName
from analyzer.reading.dialects.steps import argument, natural_numbers
from analyzer.reading.dialects.tolerances import LEAST_REPEATS, LIKE_RANKS
from analyzer.reading.formats.columns import ArgColumn, Id, Trace, Track, used_tables
from analyzer.reading.formats.values import as_ranks

_LABEL = r"(?:worker (\d{1,9}) ?)?(?:rank (\d{1,9}))?"
_NAME = r"(?i)(?:(?:worker|wk|host|traces)[ _]?(\d{1,9})[ ._:-]+)?rank[ _:#-]?(\d{1,9})(?!\w)"
#: Worker, rank and own pid, as byteprofile (``wk0.rank1.Comm.x``) and dPRO (``host0.rank1``) write them.
_PID = r"(?:(?:wk|host|traces_)(\d{1,9})\.)?rank(\d{1,9})(?:\.(.*))?"
_MOST_COUNTS = 10_000_000  # processes times names that are compared
_MOST_RANKS = 1 << 31  # a larger rank is damage
_OF_CLOCKS = ("source", "offset_us", "bound_us", "drift_ppm")  # what `combine` adds to a source's header


#: Worker and rank; None where a file does not say.
_Place: TypeAlias = tuple[int | None, int | None]
#: The owner of slices that all ranks of a file share: those of their host.
SHARED = -1


class Owned(Struct, frozen=True):
    """The part of a trace that is one rank's, or the host's that the ranks of a file share.

    `worker` and `rank` are None where the file does not say. `trace` is that of one rank with the slices
    of the host, which `Trace.is_shared` marks; or, where `is_host`, these alone.
    """

    worker: int | None
    rank: int | None
    trace: Trace
    is_host: bool = False


class Owner(Struct, frozen=True):
    """One rank of a combined trace, and how its processes are labelled there."""

    worker: int | None
    rank: int | None
    label: str = ""
    header: Mapping[str, Any] | None = None  # of its own file


def split_by_processes(trace: Trace) -> list[Owned]:
    """Return the ranks whose events `trace` holds, in order; [the trace as it is] if it is of one rank.

    The ``global_rank`` that its writer states for each process tells, or processes that are called after
    their rank.
    """
    ways = (_global_ranks, _named_ranks)
    found = next(filter(None, (_by_processes(trace, *way(trace)) for way in ways)), [])
    if found:
        return found
    listed = _sources(trace)[0]
    return [Owned(listed[0].worker, listed[0].rank, trace) if len(listed) == 1 else Owned(None, None, trace)]


def split_by_sources(trace: Trace) -> list[Owned]:
    """Return the parts of a combined file, as its header lists them; [the trace as it is] of any other.

    Names of processes come back without the label of their source.
    """
    return _by_processes(trace, *_sources(trace)) or [Owned(None, None, trace)]


def split_by_field(trace: Trace, field: str) -> list[Owned]:
    """Return the ranks that ``pid``, ``tid`` or ``args.KEY`` tells of each slice: its number, else its place.

    Slices without the argument are the host's, which all ranks share. UsageError for another field.
    """
    key = argument(field) or (field if field not in ("pid", "tid") and field in trace.args else None)
    if key is not None:
        column = trace.args[key] if key in trace.args else ArgColumn(np.empty(0, np.int64), ())
        ranks, place = _ranks_of(column.values, key)
        of_slice = np.full(len(trace), SHARED)
        of_slice[column.rows] = place
        return split_by_slices(trace, of_slice, ranks)
    if field not in ("pid", "tid"):
        raise UsageError(f"--rank_by {field}: give pid, tid or args.KEY, a key of the events' args")
    ranks, place = _ranks_of([getattr(track, field) for track in trace.tracks], field)
    return split_by_tracks(trace, [Owner(None, rank) for rank in ranks], place) or [
        Owned(None, ranks[0] if ranks else None, trace)
    ]


def processes_like_ranks(trace: Trace) -> int:
    """Count the processes of a trace that all do the same work at the same time; 0 where they differ.

    Each has nearly all names that any has, about as often, and runs during most of the recording.
    """
    pids, of_track = numbered(track.pid for track in trace.tracks)
    if len(pids) < 2 or not len(trace) or len(pids) * len(trace.names) > _MOST_COUNTS:
        return 0
    process = of_track[trace.track_id]
    counts = np.zeros((len(pids), len(trace.names)), np.int64)
    np.add.at(counts, (process, trace.name_id), 1)
    counts = counts[counts.any(axis=1)]
    low, high = counts.min(axis=0), counts.max(axis=0)
    first, last = np.full(len(pids), trace.end_ns.max()), np.full(len(pids), trace.ts_ns.min())
    np.minimum.at(first, process, trace.ts_ns)
    np.maximum.at(last, process, trace.end_ns)
    recorded = (last - first)[ids_in(process)]
    is_alike = low.sum() >= LIKE_RANKS * high.sum() and low.sum() >= LEAST_REPEATS
    lasts = recorded.min() >= LIKE_RANKS * (last.max() - first.min())
    return len(counts) if len(counts) > 1 and is_alike and lasts else 0


def _ranks_of(values: Iterable[Any], field: str) -> tuple[list[int], Int64]:
    """Find the ranks that some values name, and the rank of each value.

    In the order of process ids, where those are the values of `field`.
    """
    distinct, place = numbered(map(str, values))
    order = sorted(distinct, key=lambda value: (len(value), value))
    numbers = natural_numbers(distinct) or [order.index(value) for value in distinct]
    rank_of = as_ranks(numbers, field)
    ranks = sorted(set(rank_of))
    number = {rank: i for i, rank in enumerate(ranks)}
    return ranks, np.array([number[rank] for rank in rank_of], np.int64)[place]


def split_by_slices(trace: Trace, of_slice: Int64, ranks: Sequence[int]) -> list[Owned]:
    """Return the ranks whose slices `trace` holds, and last the host that they share.

    Parameters
    ----------
    of_slice : (n,) the index in `ranks` of each slice's owner; `SHARED` for those of the host
    ranks : of whom the slices may be. Of a single one are those of the host, too
    """
    present = [i for i in ids_in(of_slice + 1) if i]
    if len(present) < 2:
        return [Owned(None, ranks[present[0] - 1] if present else None, trace)]
    is_shared = of_slice == SHARED
    owned = []
    for i in present:
        rows = np.flatnonzero((of_slice == i - 1) | is_shared)
        part = replace(_of_tracks(trace, rows), rank=None, is_shared=is_shared[rows])
        owned.append(Owned(None, ranks[i - 1], part if is_shared.any() else part.own))
    if is_shared.any():
        host = replace(_of_tracks(trace, np.flatnonzero(is_shared)), rank=None)
        owned.append(Owned(None, None, host, is_host=True))
    return owned


def _of_tracks(trace: Trace, rows: Int64) -> Trace:
    """Return the slices `rows` (k,), with the points of the tracks that they are on."""
    has_slice = np.zeros(len(trace.tracks), np.bool_)
    has_slice[trace.track_id[rows]] = True
    points = trace.points
    if len(points):
        points = points.select(np.flatnonzero(has_slice[points.track_id]))
    return used_tables(replace(trace.select(rows), points=points))


def split_by_names(trace: Trace) -> list[Owned]:
    """Split by the owners in front of names and pids (``wk0.rank1.``); [] if a slice has none.

    A name without a worker, or without a rank, has its process's. Names and pids lose their owner.
    """
    ops = [OpName.parse(name) for name in trace.names]
    pids = [re.fullmatch(_PID, str(track.pid), re.DOTALL) for track in trace.tracks]
    if not any(pids) and all(op.worker is None and op.rank is None for op in ops):
        return []
    pair = trace.name_id.astype(np.int64) * len(pids) + trace.track_id
    pairs = unique(pair)
    owner_of, track_of = [], []
    for name, track in (divmod(i, len(pids)) for i in pairs.tolist()):
        owner_of.append(_merged((ops[name].worker, ops[name].rank), _owner_in(pids[track])))
        track_of.append(_own_track(ops[name], trace.tracks[track], pids[track]))
    if (None, None) in owner_of:
        return []
    owners = sorted(set(owner_of), key=lambda owner: [-1 if n is None else n for n in owner])
    if len(owners) < 2:
        return [Owned(*owner, trace) for owner in owners]
    number = {owner: i for i, owner in enumerate(owners)}
    which = np.searchsorted(pairs, pair)
    of_row = np.array([number[owner] for owner in owner_of])[which]
    tracks, track_id = numbered(track_of)
    bare = replace(trace, names=[str(op.bare()) for op in ops], tracks=tracks, track_id=track_id[which])
    return [Owned(*owner, _part(bare, of_row == i)) for i, owner in enumerate(owners)]


def _owner_in(pid: re.Match[str] | None) -> _Place:
    """Return the worker and the rank that a pid states."""
    if pid is None:
        return None, None
    return None if pid[1] is None else int(pid[1]), int(pid[2])


def _merged(name: _Place, process: _Place) -> _Place:
    worker, rank = name
    return (process[0] if worker is None else worker, process[1] if rank is None else rank)


def _own_track(op: OpName, track: Track, pid: re.Match[str] | None) -> Track:
    """Give a slice the track in its rank's own file, where a communication's pid is the tensor."""
    if pid is None:
        return track
    text = pid[3] or (str(op.bare().main) if op.is_comm else pid[0])
    return Track(int(text) if text.isdecimal() and len(text) < 19 else text, track.tid)


def _by_processes(trace: Trace, owners: Sequence[Owner], owner_of: Mapping[Id, int]) -> list[Owned]:
    """Split by processes, where each is of one of `owners` and several of these have events."""
    if len(owner_of) < 2:
        return []
    return split_by_tracks(
        trace, owners, np.array([owner_of.get(track.pid, -1) for track in trace.tracks], np.int64)
    )


def split_by_tracks(trace: Trace, owners: Sequence[Owner], owner_of: Int64) -> list[Owned]:
    """Split by tracks (t,), where each with slices is of one of `owners`, and several of these have some."""
    of_row = owner_of[trace.track_id]
    present = ids_in(of_row)
    if len(present) < 2 or present[0] < 0:
        return []
    parts = []
    for i in present:
        part = _part(trace, of_row == i, owner_of == i, owners[i].label)
        header = {**part.header, **(owners[i].header or {})}
        if owners[i].label:
            header.pop("otherData", None)
        parts.append(Owned(owners[i].worker, owners[i].rank, replace(part, header=header)))
    return parts


def _sources(trace: Trace) -> tuple[list[Owner], dict[Id, int]]:
    """Return the sources that a combined file lists, and which processes are called after each."""
    owners = []
    for source in listed_sources(trace.header):
        label = str(source["source"])
        match = re.match(_LABEL, label)
        worker, rank = (None if n is None else int(n) for n in match.groups()) if match else (None, None)
        own = {key: value for key, value in source.items() if key not in _OF_CLOCKS}
        owners.append(Owner(worker, rank, label, own))
    owner_of = {}
    for event in trace.metadata:
        name = str(event["args"].get("name")).casefold()
        matching = [i for i, owner in enumerate(owners) if name.startswith(owner.label.casefold())]
        if event["name"] == "process_name" and matching:
            owner_of[event["pid"]] = max(matching, key=lambda i: len(owners[i].label))
    return owners, owner_of


def listed_sources(header: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return name, clock and own header of each source, from a combined file's header."""
    other = header.get("otherData")
    listed = other.get("combined") if isinstance(other, Mapping) else None
    sources = listed if isinstance(listed, list) else []
    return [source for source in sources if isinstance(source, Mapping) and "source" in source]


def _global_ranks(trace: Trace) -> tuple[list[Owner], dict[Id, int]]:
    """Return the ranks that Composer's merger states, and which processes are of each."""
    states = [event for event in trace.metadata if event["name"] == "global_rank"]
    rank_of = {event["pid"]: event["args"].get("value") for event in states}
    known = {pid: rank for pid, rank in rank_of.items() if isinstance(rank, int) and rank < _MOST_RANKS}
    ranks = sorted(set(known.values()))
    return [Owner(None, rank) for rank in ranks], {pid: ranks.index(rank) for pid, rank in known.items()}


def _named_ranks(trace: Trace) -> tuple[list[Owner], dict[Id, int]]:
    """Find ranks in the names of processes (``rank 1``, ``rank1: python``), or in pids that are texts."""
    names: dict[Id, str] = {track.pid: track.pid for track in trace.tracks if isinstance(track.pid, str)}
    names |= {pid: name for (pid, _), name in names_in(trace.metadata, "process_name").items()}
    matches = {pid: match for pid, name in names.items() if (match := re.match(_NAME, name))}
    whose = {pid: (int(m[1]) if m[1] else None, int(m[2])) for pid, m in matches.items()}
    distinct = sorted(set(whose.values()), key=lambda owner: (owner[0] or 0, owner[1]))
    return [Owner(*owner) for owner in distinct], {pid: distinct.index(owner) for pid, owner in whose.items()}


def names_in(metadata: Sequence[Mapping[str, Any]], kind: str) -> dict[tuple[Id, Id], str]:
    """Return the names of processes, or of threads, by pid and tid (a process has none)."""
    is_thread = kind == "thread_name"
    return {
        (event["pid"], event["tid"] if is_thread else None): str(event["args"]["name"])
        for event in metadata
        if event["name"] == kind and "name" in event["args"]
    }


def process_names(trace: Trace) -> list[str]:
    """List the name of the process of each track (t); "" without one."""
    names = names_in(trace.metadata, "process_name")
    return [names.get((track.pid, None), "") for track in trace.tracks]


def _part(trace: Trace, rows: Mask, tracks: Mask | None = None, label: str = "") -> Trace:
    """Return the slices `rows`, with points of `tracks` (t,) and metadata of these and their processes.

    Without `tracks`, no points and all metadata.
    """
    part = trace.select(rows)
    points = trace.points
    if len(points):
        is_own = np.zeros(len(trace.tracks), np.bool_) if tracks is None else tracks
        points = points.select(np.flatnonzero(is_own[points.track_id]))
    metadata = trace.metadata
    if tracks is not None:
        own = dict(zip(trace.tracks, tracks.tolist(), strict=True))
        pids = {track.pid for track, is_own in own.items() if is_own}
        metadata = [event for event in metadata if _is_of(event, own, pids)]
    metadata = [_without(event, label) for event in metadata]
    return used_tables(replace(part, points=points, metadata=metadata, rank=None))


def _is_of(event: Mapping[str, Any], own: Mapping[Track, bool], pids: Container[Id]) -> bool:
    """Whether a metadata event is of one's own processes `pids`, and not of another one's thread."""
    of_thread = str(event["name"]).startswith("thread_")
    return event["pid"] in pids and (not of_thread or own.get(Track(event["pid"], event["tid"]), True))


def _without(event: Mapping[str, Any], label: str) -> Mapping[str, Any]:
    """Return a metadata event, the name of a process without the label of its source."""
    name = event["args"].get("name")
    if not label or event["name"] != "process_name" or not isinstance(name, str):
        return event
    return {**event, "args": {**event["args"], "name": name.removeprefix(label).removeprefix(": ") or name}}
