"""Frameworks that run a graph of operators, with devices as processes and parameters on servers.

Their timelines, and others, have lanes that only repeat the slices of other lanes.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from typing import TypeAlias

import numpy as np
from msgspec.structs import replace

from analyzer.base.arrays import Int64, Mask, NDArray
from analyzer.base.arrays.intervals import union
from analyzer.base.arrays.numbering import numbered, unique
from analyzer.reading.dialects.name_rules import is_collective, is_server_transfer
from analyzer.reading.dialects.owners import names_in, process_names
from analyzer.reading.dialects.roles import Role, by_name
from analyzer.reading.dialects.steps import Steps, steps_by_updates
from analyzer.reading.dialects.system import System, framed
from analyzer.reading.dialects.tolerances import LEAST_REPEATS
from analyzer.reading.formats.columns import Trace, used_tables
from analyzer.reading.formats.event import EndRule

_DEVICE = r"(?:/job:[^/]+(?:/[^/]+)*?)?/(?:device:)?(?:GPU|gpu|TPU):\d+"
_COPY = re.compile(r"(?i)mem(?:cpy|set).*")
_LAUNCH = " (launch)"


class _Dataflow(System):
    """Steps last from one update of the parameters to the next; nothing else marks them."""

    def marked_steps(self, trace: Trace) -> Steps:
        return steps_by_updates(trace, self.recorded_roles(trace) == Role.COMPUTE)


class MXNet(_Dataflow):
    """MXNet's own profiler (`temp.json`). Operators compute; a KVStore's pushes and pulls communicate."""

    name = "mxnet"
    process_names = re.compile(r"(?:cpu|gpu)/\d+|(?:cpu|gpu) (?:pinned|shared)/")
    counted_by = "Communication: pushes and pulls of a KVStore; all other operations compute."
    pairing = EndRule.NEIGHBOURS
    has_workers = True

    def recorded_roles(self, trace: Trace) -> NDArray[np.int8]:
        roles = framed(trace)
        roles[roles != Role.IGNORED] = Role.COMPUTE
        roles[by_name(trace, is_server_transfer)] = Role.COMM
        return roles

    def filter_names(self, name: str, cat: str, tid: object, process: str | None) -> Sequence[str]:
        """Name a KVStore's push or pull; operators called ``broadcast_add`` only compute."""
        return (name,) if is_server_transfer(name) else ()


class TensorFlow(_Dataflow):
    """A timeline of `session.run`. Streams of a device compute; what launches their kernels is the host's.

    A process is a device, or a stream of one: ``/job:worker/…/device:GPU:0 Compute`` holds the operations as
    the host launches them, ``/device:GPU:0/stream:13 Compute`` the kernels. ``stream:all`` and ``memcpy``
    repeat those of the streams. Variables on a parameter server move by ``_Send`` and ``_Recv``.
    """

    name = "tensorflow"
    process_names = re.compile(r"(?:/job:\S+)?/(?:device:)?(?:[A-Z]+|[cg]pu):\d+\S* (?:Compute|Tensors)")
    shows_communication = True
    counted_by = (
        "Communication: _Send and _Recv between devices and parameter servers, and operations named after a "
        "collective; computation: other kernels, and operations of a CPU. Lanes that repeat streams "
        "(stream:all, memcpy) are left out."
    )

    def finished(self, trace: Trace) -> Trace:
        """Leave out the lanes that repeat others, and call launches by another name than kernels."""
        names = process_names(trace)
        devices = [match[0] if (match := re.match(_DEVICE, name)) else name for name in names]
        trace = without_repeated_lanes(trace, devices)
        launches = _launching_lanes(trace)[trace.track_id]
        pairs = zip(trace.name_id.tolist(), launches.tolist(), strict=True)
        names, name_id = numbered(trace.names[name] + _LAUNCH * launch for name, launch in pairs)
        return replace(trace, names=names, name_id=name_id) if not len(trace.points) else trace

    def recorded_roles(self, trace: Trace) -> NDArray[np.int8]:
        roles = np.full(len(trace), Role.COMPUTE, np.int8)
        roles[by_name(trace, lambda name: bool(_COPY.fullmatch(name)))] = Role.COPY
        roles[_launching_lanes(trace)[trace.track_id]] = Role.HOST
        roles[by_name(trace, lambda name: is_server_transfer(name) or is_collective(name, ""))] = Role.COMM
        return roles

    def device_work(self, trace: Trace) -> Mask:
        return _stream_lanes(trace)[trace.track_id]


def _stream_lanes(trace: Trace) -> Mask:
    """Find the lanes (t,) of streams and copies of devices."""
    part_of_device = re.compile(rf"{_DEVICE}/.*")
    return np.array([bool(part_of_device.match(name)) for name in process_names(trace)], np.bool_)


def _launching_lanes(trace: Trace) -> Mask:
    """Find the lanes (t,) of operations that only launch kernels, which streams show."""
    streams = _stream_lanes(trace)
    on_device = np.array([bool(re.match(_DEVICE, name)) for name in process_names(trace)], np.bool_)
    return on_device & ~streams & streams.any()


# ---- lanes that repeat, or add up, the slices of other lanes

#: How many slices a lane has, and the numbers of those that have equals.
_Content: TypeAlias = tuple[int, frozenset[int]]
_ALONE = 0  # the number of all slices without equals


def without_repeated_lanes(trace: Trace, device: Sequence[Hashable] | None = None) -> Trace:
    """Leave out the lanes that hold no work of their own: counted as work, they would double it.

    Some writers add them for viewers: all streams of a device in one lane, or the device's computation,
    communication and idle time. `device` (t,) is the device of each lane, if recorded: equal lanes of one
    device are copies, equal lanes of two devices are two devices that do the same work at the same moment.
    """
    if len(trace.tracks) < 2 or not len(trace):
        return trace
    repeats = _copied_lanes(trace, device) | _summing_lanes(trace)
    return used_tables(trace.select(~repeats[trace.track_id])) if repeats.any() else trace


def _copied_lanes(trace: Trace, device: Sequence[Hashable] | None) -> Mask:
    """Mask the lanes (t,) all of whose slices are in other lanes, too: same name, begin and length.

    A lane that is the union of two or more others is a copy. Of equal lanes of one `device` the first stays.
    """
    contents, content_of = numbered(_contents(trace))
    parts = _parts(contents)
    made_up = [
        len(rows) > 1 and frozenset[int]().union(*(contents[i][1] for i in rows)) == slices
        for (_, slices), rows in zip(contents, parts, strict=True)
    ]
    copied = np.array(made_up, np.bool_)[content_of]
    if device is None:
        return copied
    lanes_with: dict[tuple[Hashable, int], list[int]] = {}
    for lane, content in enumerate(content_of.tolist()):
        lanes_with.setdefault((device[lane], content), []).append(lane)
    for lane, content in enumerate(content_of.tolist()):
        if copied[lane]:
            continue
        for part in [content] * _is_part(contents[content]) + parts[content]:
            others = lanes_with.get((device[lane], part), [])
            copied[[other for other in others if other != lane]] = True
    return copied


def _contents(trace: Trace) -> list[_Content]:
    """List the content of each lane; equal slices have equal numbers."""
    order = np.lexsort((trace.dur_ns, trace.name_id, trace.ts_ns))
    keys = np.stack([trace.ts_ns[order], trace.dur_ns[order], trace.name_id[order].astype(np.int64)])
    same = (keys[:, 1:] == keys[:, :-1]).all(axis=0)
    number = np.cumsum(np.append(True, ~same))
    number[~(np.append(same, False) | np.append(False, same))] = _ALONE
    of_slice = np.empty_like(number)
    of_slice[order] = number
    return [(len(rows), frozenset(unique(of_slice[rows]).tolist())) for rows in _rows_by_lane(trace)]


def _is_part(content: _Content) -> bool:
    """Tell if each slice of a lane is once in this lane, and in other lanes, too."""
    count, slices = content
    return 0 < count == len(slices) and _ALONE not in slices


def _parts(contents: Sequence[_Content]) -> list[list[int]]:
    """Find, for each content, the smaller contents that it includes."""
    parts: list[list[int]] = [[] for _ in contents]
    holders: dict[int, list[int]] = {}
    for i, (_, slices) in enumerate(contents):
        for number in slices:
            holders.setdefault(number, []).append(i)
    for i, (count, slices) in enumerate(contents):
        if _is_part(contents[i]):
            rarest = min((holders[number] for number in slices), key=len)
            for whole in rarest:
                if count < contents[whole][0] and slices <= contents[whole][1]:
                    parts[whole].append(i)
    return parts


def _summing_lanes(trace: Trace) -> Mask:
    """Mask the lanes (t,) of processes that sum up the time of other processes.

    All slices of such a lane have the name of the lane, and those of at least one lane cover exactly the
    time of lanes of other processes.
    """
    labels = names_in(trace.metadata, "thread_name")
    codes = unique(trace.track_id.astype(np.int64) * len(trace.names) + trace.name_id)
    pairs = (divmod(code, len(trace.names)) for code in codes.tolist())
    used = ((trace.tracks[lane], trace.names[name]) for lane, name in pairs)
    working = {track.pid for track, name in used if labels.get(track) != name}
    lanes = np.array([track.pid not in working for track in trace.tracks], np.bool_)
    if not lanes.any() or lanes.all():
        return np.zeros(len(lanes), np.bool_)
    bounds = [union(trace.ts_ns[rows], trace.end_ns[rows]) for rows in _rows_by_lane(trace)]
    others = [bounds[lane] for lane in np.flatnonzero(~lanes).tolist()]
    sums = {
        trace.tracks[lane].pid
        for lane in np.flatnonzero(lanes).tolist()
        if len(bounds[lane][0]) >= LEAST_REPEATS and _is_sum(bounds[lane], others)
    }
    return np.array([track.pid in sums for track in trace.tracks], np.bool_)


def _rows_by_lane(trace: Trace) -> list[Int64]:
    """Return the slices of each lane, by one sort."""
    order = np.argsort(trace.track_id, kind="stable")
    return np.split(order, np.searchsorted(trace.track_id[order], np.arange(1, len(trace.tracks))))


def _is_sum(lane: tuple[Int64, Int64], others: Sequence[tuple[Int64, Int64]]) -> bool:
    """Tell if a lane covers exactly the time of those `others` that lie inside."""
    start, end = lane
    inside = []
    for inner_start, inner_end in others:
        index = np.searchsorted(start, inner_start, side="right") - 1
        if len(index) and (index >= 0).all() and (inner_end <= end[index]).all():
            inside.append((inner_start, inner_end))
    if not inside:
        return False
    covered = union(*(np.concatenate(column) for column in zip(*inside, strict=True)))
    return np.array_equal(covered[0], start) and np.array_equal(covered[1], end)
