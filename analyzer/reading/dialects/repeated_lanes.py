"""Lanes of a timeline that repeat, or add up, the slices of other lanes.

Viewers are given such lanes for overview: all streams of a device in one lane, or what a device computed,
communicated and did not use. They are not work: counted, they double it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np

from analyzer.base.arrays import Int64, Mask
from analyzer.base.arrays.intervals import union
from analyzer.base.arrays.numbering import places_by_value, unique
from analyzer.reading.dialects.owners import names_in
from analyzer.reading.dialects.tolerances import LEAST_REPEATS
from analyzer.reading.formats.columns import Trace, used_tables


def without_repeated_lanes(trace: Trace, device: Sequence[Hashable] | None = None) -> Trace:
    """Leave out the lanes that hold no work of their own.

    `device` (t,) is the device of each lane, where the recording tells it: equal lanes of one device are
    copies, equal lanes of two devices are two devices that do the same work at the same moment.
    """
    if len(trace.tracks) < 2 or not len(trace):
        return trace
    repeats = copied_lanes(trace, device) | summing_lanes(trace)
    return used_tables(trace.select(~repeats[trace.track_id])) if repeats.any() else trace


def copied_lanes(trace: Trace, device: Sequence[Hashable] | None = None) -> Mask:
    """Find the lanes (t,) all of whose slices stand in other lanes, too: same name, begin and length.

    A lane that two or more others make up together is left out for them. Of equal lanes of one `device` the
    first stays.
    """
    copied = np.zeros(len(trace.tracks), np.bool_)
    shared = _shared_slices(trace)
    count = np.bincount(trace.track_id, minlength=len(trace.tracks))
    lanes_of: dict[int, set[int]] = {}
    for lane, other in shared:
        if shared[lane, other] == count[other] < count[lane]:
            lanes_of.setdefault(lane, set()).add(other)
    for lane, parts in lanes_of.items():
        copied[lane] = _make_up(trace, lane, parts)
    if device is None:
        return copied
    for lane, other in sorted(shared):
        if copied[lane] or copied[other] or device[lane] != device[other]:
            continue
        if shared[lane, other] == count[other]:
            copied[other] = True
    return copied


def _shared_slices(trace: Trace) -> Counter[tuple[int, int]]:
    """Count the slices that each pair of lanes has in common, both ways."""
    order = np.lexsort((trace.dur_ns, trace.name_id, trace.ts_ns))
    keys = np.stack([trace.ts_ns[order], trace.dur_ns[order], trace.name_id[order].astype(np.int64)])
    same = (keys[:, 1:] == keys[:, :-1]).all(axis=0)
    number = np.cumsum(np.append(True, ~same))
    repeated = np.flatnonzero(np.append(same, False) | np.append(False, same))
    shared: Counter[tuple[int, int]] = Counter()
    for places in places_by_value(number[repeated]):
        lanes = set(trace.track_id[order[repeated[places]]].tolist())
        shared.update((lane, other) for lane in lanes for other in lanes if lane != other)
    return shared


def _make_up(trace: Trace, lane: int, parts: set[int]) -> bool:
    """Whether every slice of a lane stands in one of the `parts`, which differ."""
    slices = {part: _slices(trace, part) for part in parts}
    distinct = set(map(frozenset, slices.values()))
    return len(distinct) > 1 and set().union(*distinct) >= _slices(trace, lane)


def _slices(trace: Trace, lane: int) -> set[tuple[int, int, int]]:
    rows = trace.track_id == lane
    columns = trace.ts_ns[rows], trace.dur_ns[rows], trace.name_id[rows]
    return set(zip(*(column.tolist() for column in columns), strict=True))


def summing_lanes(trace: Trace) -> Mask:
    """Find the lanes (t,) of processes that account for the time of others.

    All slices of such a lane are called as the lane is, and those of at least one lane cover exactly the
    moments of lanes of other processes: what these did, without what it was.
    """
    labels = names_in(trace.metadata, "thread_name")
    codes = unique(trace.track_id.astype(np.int64) * len(trace.names) + trace.name_id)
    pairs = (divmod(code, len(trace.names)) for code in codes.tolist())
    used = ((trace.tracks[lane], trace.names[name]) for lane, name in pairs)
    working = {track.pid for track, name in used if labels.get(track) != name}
    lanes = np.array([track.pid not in working for track in trace.tracks], np.bool_)
    if not lanes.any() or lanes.all():
        return np.zeros(len(lanes), np.bool_)
    bounds = [union(*_bounds(trace, lane)) for lane in range(len(lanes))]
    others = [bounds[lane] for lane in np.flatnonzero(~lanes).tolist()]
    sums = {
        trace.tracks[lane].pid for lane in np.flatnonzero(lanes).tolist() if _is_sum(bounds[lane], others)
    }
    return np.array([track.pid in sums for track in trace.tracks], np.bool_)


def _bounds(trace: Trace, lane: int) -> tuple[Int64, Int64]:
    rows = trace.track_id == lane
    return trace.ts_ns[rows], trace.end_ns[rows]


def _is_sum(lane: tuple[Int64, Int64], others: Sequence[tuple[Int64, Int64]]) -> bool:
    """Whether a lane covers exactly what those of the `others` cover that lie in it."""
    start, end = lane
    inside = [other for other in others if len(start) >= LEAST_REPEATS and _lies_in(*other, start, end)]
    if not inside:
        return False
    covered = union(*(np.concatenate(column) for column in zip(*inside, strict=True)))
    return np.array_equal(covered[0], start) and np.array_equal(covered[1], end)


def _lies_in(inner_start: Int64, inner_end: Int64, start: Int64, end: Int64) -> bool:
    place = np.searchsorted(start, inner_start, side="right") - 1
    return bool(len(place) and (place >= 0).all() and (inner_end <= end[place]).all())
