"""Split a file that holds the events of several ranks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

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
_OF_CLOCKS = ("source", "offset_us", "bound_us", "drift_ppm")  # `combine` adds these to a source's header

#: The owner of slices of the host, which all ranks of a file share.
SHARED = -1


class Owned(Struct, frozen=True):
    """The part of a trace that belongs to one rank, or to the host that the ranks of a file share."""

    worker: int | None  # None where the file does not say
    rank: int | None
    trace: Trace  # of a rank, with the slices of the host, which `Trace.is_shared` marks
    is_host: bool = False  # `trace` has the slices of the host alone


class _Owner(Struct, frozen=True):
    """One rank of a combined trace, and the label of its processes there."""

    worker: int | None
    rank: int | None
    label: str = ""
    header: Mapping[str, Any] | None = None  # of its own file


def split_by_processes(trace: Trace) -> list[Owned]:
    """Split by the ``global_rank`` of each process, or by processes named after ranks.

    A trace of one rank is returned as it is.
    """
    for way in (_global_ranks, _named_ranks):
        if ranks := _by_processes(trace, *way(trace)):
            return ranks
    listed = _sources(trace)[0]
    return [Owned(listed[0].worker, listed[0].rank, trace) if len(listed) == 1 else Owned(None, None, trace)]


def split_by_sources(trace: Trace) -> list[Owned]:
    """Split a combined file as its header says; any other is returned as it is.

    The labels of sources are removed from the names of processes.
    """
    return _by_processes(trace, *_sources(trace)) or [Owned(None, None, trace)]


def split_by_field(trace: Trace, field: str) -> list[Owned]:
    """Split by ``pid``, ``tid`` or ``args.KEY``: the rank is its number, else its place in the order.

    Slices without the argument belong to the host. UsageError for another field.
    """
    key = argument(field) or (field if field not in ("pid", "tid") and field in trace.args else None)
    if key is not None:
        column = trace.args[key] if key in trace.args else ArgColumn(np.empty(0, np.int64), ())
        ranks, index = _ranks_of(column.values, key)
        of_slice = np.full(len(trace), SHARED)
        of_slice[column.rows] = index
        return split_by_slices(trace, of_slice, ranks)
    if field not in ("pid", "tid"):
        raise UsageError(f"--rank_by {field}: give pid, tid or args.KEY, a key of the events' args")
    ranks, index = _ranks_of([getattr(track, field) for track in trace.tracks], field)
    return split_by_tracks(trace, ranks, index) or [Owned(None, ranks[0] if ranks else None, trace)]


def processes_like_ranks(trace: Trace) -> int:
    """Count the processes if all do the same work at the same time; else 0.

    Each has nearly all names, about equally often, and runs during most of the recording.
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
    """List the ranks that values name, and find the index of each value's rank."""
    distinct, index = numbered(map(str, values))
    order = sorted(distinct, key=lambda value: (len(value), value))
    numbers = natural_numbers(distinct) or [order.index(value) for value in distinct]
    rank_of = as_ranks(numbers, field)
    ranks = sorted(set(rank_of))
    return ranks, np.searchsorted(ranks, rank_of)[index]


def split_by_slices(trace: Trace, of_slice: Int64, ranks: Sequence[int]) -> list[Owned]:
    """Split by the owner of each slice: its index in `ranks`, or `SHARED` for the host (n,).

    The host comes last; a single rank keeps its slices.
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
    """Select the slices `rows` (k,), and the points of their tracks."""
    has_slice = np.zeros(len(trace.tracks), np.bool_)
    has_slice[trace.track_id[rows]] = True
    points = trace.points
    if len(points):
        points = points.select(np.flatnonzero(has_slice[points.track_id]))
    return used_tables(replace(trace.select(rows), points=points))


def split_by_names(trace: Trace) -> list[Owned]:
    """Split by the owners in front of names and pids (``wk0.rank1.``); [] if a slice has none.

    A worker or rank that a name lacks is that of the process. Names and pids lose their owner.
    """
    ops = [OpName.parse(name) for name in trace.names]
    pids = [re.fullmatch(_PID, str(track.pid), re.DOTALL) for track in trace.tracks]
    if not any(pids) and all(op.worker is None and op.rank is None for op in ops):
        return []
    pair = trace.name_id.astype(np.int64) * len(pids) + trace.track_id
    pairs = unique(pair)
    owner_of, track_of = [], []
    for name, track in (divmod(i, len(pids)) for i in pairs.tolist()):
        op, pid = ops[name], pids[track]
        worker = int(pid[1]) if op.worker is None and pid is not None and pid[1] is not None else op.worker
        rank = int(pid[2]) if op.rank is None and pid is not None else op.rank
        owner_of.append((worker, rank))
        track_of.append(_track_in_rank(op, trace.tracks[track], pid))
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


def _track_in_rank(op: OpName, track: Track, pid: re.Match[str] | None) -> Track:
    """Find the track in the file of one rank, where the pid of a communication is the tensor."""
    if pid is None:
        return track
    text = pid[3] or (str(op.bare().main) if op.is_comm else pid[0])
    return Track(int(text) if text.isdecimal() and len(text) < 19 else text, track.tid)


def _by_processes(trace: Trace, owners: Sequence[_Owner], owner_of: Mapping[Id, int]) -> list[Owned]:
    if len(owner_of) < 2:
        return []
    return _split(trace, owners, np.array([owner_of.get(track.pid, -1) for track in trace.tracks], np.int64))


def split_by_tracks(trace: Trace, ranks: Sequence[int], rank_of: Int64) -> list[Owned]:
    """Split by the rank of each track (t,), an index in `ranks`; see `_split`."""
    return _split(trace, [_Owner(None, rank) for rank in ranks], rank_of)


def _split(trace: Trace, owners: Sequence[_Owner], owner_of: Int64) -> list[Owned]:
    """Split by the owner of each track (t,); [] unless all slices have one and several owners have slices."""
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


def _sources(trace: Trace) -> tuple[list[_Owner], dict[Id, int]]:
    """List the sources of a combined file, and the source of each process by its name."""
    owners = []
    for source in listed_sources(trace.header):
        label = str(source["source"])
        match = re.match(_LABEL, label)
        worker, rank = (None if n is None else int(n) for n in match.groups()) if match else (None, None)
        header = {key: value for key, value in source.items() if key not in _OF_CLOCKS}
        owners.append(_Owner(worker, rank, label, header))
    owner_of = {}
    for event in trace.metadata:
        name = str(event["args"].get("name")).casefold()
        matching = [i for i, owner in enumerate(owners) if name.startswith(owner.label.casefold())]
        if event["name"] == "process_name" and matching:
            owner_of[event["pid"]] = max(matching, key=lambda i: len(owners[i].label))
    return owners, owner_of


def listed_sources(header: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """List the headers of the sources of a combined file, with name and clock."""
    other = header.get("otherData")
    listed = other.get("combined") if isinstance(other, Mapping) else None
    sources = listed if isinstance(listed, list) else []
    return [source for source in sources if isinstance(source, Mapping) and "source" in source]


def _global_ranks(trace: Trace) -> tuple[list[_Owner], dict[Id, int]]:
    """Read the ranks that Composer's merger states, and the rank of each process."""
    states = [event for event in trace.metadata if event["name"] == "global_rank"]
    rank_of = {event["pid"]: event["args"].get("value") for event in states}
    known = {pid: rank for pid, rank in rank_of.items() if isinstance(rank, int) and rank < _MOST_RANKS}
    ranks = sorted(set(known.values()))
    return [_Owner(None, rank) for rank in ranks], {pid: ranks.index(rank) for pid, rank in known.items()}


def _named_ranks(trace: Trace) -> tuple[list[_Owner], dict[Id, int]]:
    """Find ranks in the names of processes (``rank 1``, ``rank1: python``), or in pids that are texts."""
    names: dict[Id, str] = {track.pid: track.pid for track in trace.tracks if isinstance(track.pid, str)}
    names |= {pid: name for (pid, _), name in names_in(trace.metadata, "process_name").items()}
    matches = {pid: match for pid, name in names.items() if (match := re.match(_NAME, name))}
    whose = {pid: (int(m[1]) if m[1] else None, int(m[2])) for pid, m in matches.items()}
    distinct = sorted(set(whose.values()), key=lambda owner: (owner[0] or 0, owner[1]))
    index = {owner: i for i, owner in enumerate(distinct)}
    return [_Owner(*owner) for owner in distinct], {pid: index[owner] for pid, owner in whose.items()}


def names_in(metadata: Sequence[Mapping[str, Any]], kind: str) -> dict[tuple[Id, Id], str]:
    """Map (pid, tid) to names of threads, or (pid, None) to names of processes."""
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
    """Select the slices `rows`, points of `tracks` (t,) and metadata of these and their processes.

    Without `tracks`, no points and all metadata.
    """
    points = trace.points
    if len(points):
        chosen = np.zeros(len(trace.tracks), np.bool_) if tracks is None else tracks
        points = points.select(np.flatnonzero(chosen[points.track_id]))
    metadata = trace.metadata
    if tracks is not None:
        is_chosen = dict(zip(trace.tracks, tracks.tolist(), strict=True))
        pids = {track.pid for track, chosen in is_chosen.items() if chosen}
        metadata = [
            event
            for event in metadata
            if event["pid"] in pids
            and (
                not str(event["name"]).startswith("thread_")
                or is_chosen.get(Track(event["pid"], event["tid"]), True)
            )
        ]
    metadata = [_without_label(event, label) for event in metadata]
    return used_tables(replace(trace.select(rows), points=points, metadata=metadata, rank=None))


def _without_label(event: Mapping[str, Any], label: str) -> Mapping[str, Any]:
    """Remove the label of the source from the name of a process."""
    name = event["args"].get("name")
    if not label or event["name"] != "process_name" or not isinstance(name, str):
        return event
    return {**event, "args": {**event["args"], "name": name.removeprefix(label).removeprefix(": ") or name}}
