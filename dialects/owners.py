"""Whose events a trace holds: a combined one is split again by rank."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from formats.columns import Int64, Trace, used_tables
from opname import OpName

_LABEL = re.compile(r"(?:worker (\d+) )?rank (\d+)")
_MOST_RANKS = 1 << 31  # a larger rank is damage
_OF_CLOCKS = ("source", "offset_us", "bound_us", "drift_ppm")  # what `combine` adds to a source's header


class Owned(NamedTuple):
    """The part of a trace that is one rank's; `worker` and `rank` are None where the file does not say."""

    worker: int | None
    rank: int | None
    trace: Trace


def split(trace: Trace, *, by_names: bool) -> list[Owned]:
    """Return the ranks whose events `trace` holds, in order; [the trace as it is] if it is of one rank.

    With `by_names` the names tell (BytePS's ``wk0.rank1.``), else the sources that a combined file lists, or
    Composer's ``global_rank`` of each process. Names, of operations and of processes, come back without the
    rank.
    """
    found = _by_names(trace) if by_names else []
    return found or _by_processes(trace) or _by_global_rank(trace) or [Owned(None, None, trace)]


def _by_names(trace: Trace) -> list[Owned]:
    ops = [OpName.parse(name) for name in trace.names]
    owners = [(op.worker, op.rank) for op in ops]
    if all(owner == (None, None) for owner in owners):
        return []
    of_track = [_of_process(track.pid) for track in trace.tracks]
    distinct = sorted(
        {*owners, *of_track} - {(None, None)}, key=lambda owner: [-1 if n is None else n for n in owner]
    )
    place = {owner: i for i, owner in enumerate(distinct)}
    by_name = np.array([place.get(owner, -1) for owner in owners])[trace.name_id]
    by_track = np.array([place.get(owner, -1) for owner in of_track])[trace.track_id]
    of_row = np.where(by_name >= 0, by_name, by_track)
    if (of_row < 0).any():
        return []
    bare = replace(trace, names=[str(op.bare()) for op in ops])
    if len(np.unique(of_row)) == 1:
        return [Owned(*distinct[int(of_row[0])], trace)]
    return [
        Owned(*owner, _part(bare, of_row == i, {})) for i, owner in enumerate(distinct) if (of_row == i).any()
    ]


def _of_process(pid: object) -> tuple[int | None, int | None]:
    op = OpName.parse(str(pid))
    return op.worker, op.rank


def _by_processes(trace: Trace) -> list[Owned]:
    """Split by the names of processes, which begin with the label of a source in the header."""
    other = trace.header.get("otherData")
    sources = other.get("combined") if isinstance(other, Mapping) else None
    if not isinstance(sources, Sequence) or len(sources) < 2:
        return []
    labels = [str(source.get("source")) for source in sources if isinstance(source, Mapping)]
    owner_of = {
        event["pid"]: max(matching, key=lambda i: len(labels[i]))
        for event in trace.metadata
        if event["name"] == "process_name"
        if (matching := [i for i, text in enumerate(labels) if _begins(event["args"].get("name"), text)])
    }
    of_row = _rows(trace, owner_of)
    if of_row is None:
        return []
    header = {key: value for key, value in trace.header.items() if key != "otherData"}
    found = []
    for i, (label, source) in enumerate(zip(labels, sources, strict=True)):
        own = {key: value for key, value in source.items() if key not in _OF_CLOCKS}
        part = _part(trace, of_row == i, {pid for pid, owner in owner_of.items() if owner == i}, label)
        match = _LABEL.match(label)
        worker, rank = (match[1], match[2]) if match else (None, None)
        if len(part):
            found.append(Owned(_int(worker), _int(rank), replace(part, header={**header, **own})))
    return found if len(found) > 1 else []


def _by_global_rank(trace: Trace) -> list[Owned]:
    """Split by the rank that Composer's merger states of each process."""
    ranks = {
        event["pid"]: event["args"].get("value") for event in trace.metadata if event["name"] == "global_rank"
    }
    of_row = _rows(
        trace, {pid: rank for pid, rank in ranks.items() if isinstance(rank, int) and rank < _MOST_RANKS}
    )
    if of_row is None or len(np.unique(of_row)) < 2:
        return []
    return [
        Owned(None, rank, _part(trace, of_row == rank, {pid for pid, own in ranks.items() if own == rank}))
        for rank in np.unique(of_row).tolist()
    ]


def _rows(trace: Trace, owner_of: Mapping[Any, int]) -> Int64 | None:
    """Return the owner of each slice (n,) by its process; None where one has no owner."""
    if not len(trace) or not owner_of:
        return None
    found = np.array([owner_of.get(track.pid, -1) for track in trace.tracks], np.int64)[trace.track_id]
    return None if (found < 0).any() else found


def _part(trace: Trace, rows: Any, pids: Any, label: str = "") -> Trace:
    """Return the slices `rows`, with the points and the metadata of the processes `pids`."""
    part = trace.select(rows)
    tracks = np.array([track.pid in pids for track in trace.tracks], np.bool_)
    points = (
        trace.points.select(np.flatnonzero(tracks[trace.points.track_id]))
        if len(trace.points)
        else trace.points
    )
    metadata: list[Mapping[str, Any]] = [
        _without(event, label) for event in trace.metadata if not pids or event["pid"] in pids
    ]
    return used_tables(replace(part, points=points, metadata=metadata, rank=None))


def _without(event: Mapping[str, Any], label: str) -> Mapping[str, Any]:
    """Return a metadata event, the name of a process without the label of its source."""
    name = event["args"].get("name")
    if not label or event["name"] != "process_name" or not isinstance(name, str):
        return event
    return {**event, "args": {**event["args"], "name": name.removeprefix(label).removeprefix(": ") or name}}


def _begins(name: object, label: str) -> bool:
    return str(name).casefold().startswith(label.casefold())


def _int(text: Hashable) -> int | None:
    return None if text is None else int(str(text))
