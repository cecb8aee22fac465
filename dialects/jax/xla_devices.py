"""Whose the slices of XLA's profiles are, and which of them are operations of devices."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from arrays import Int64, Mask
from arrays.intervals import lies_inside
from arrays.numbering import unique
from dialects.jax.xla_names import role_of
from dialects.masks import by_name
from dialects.owners import SHARED
from dialects.roles import Role
from dialects.system import whole_number
from formats.columns import Trace

#: Devices on CPUs are counted on from such a number in each process.
_OF_A_PROCESS = 2048
_DEVICE = re.compile(r"/device:[A-Z]+:(\d{1,9})\b")
_STREAM = re.compile(r"Stream #\d+.*")
#: Threads of a device that tell its operations once more: by program, by step, by line of the source.
_REPEATED = re.compile(
    r"Steps\b.*|XLA Modules\b.*|Source code\b.*|.*Name Scope\b.*|(?:TensorFlow|Framework) Ops\b.*"
    r"|Sparse ?Core (?:Steps|Modules)\b.*|.* - from #.*"
)
_OF_COPIES = re.compile(r"Stream #\d+\((?:Mem(?:cpy|set)\w*[, ]*)+\).*|Async .*")


class ThreadKinds(NamedTuple):
    """Which kind of slices each thread (t,) of a trace holds.

    Attributes
    ----------
    device : (t,) number of the device, `SHARED` for a thread of the host
    works : (t,) holds operations of a device
    copies : (t,) all operations are copies, but for collectives
    waits : (t,) holds waits of a device
    steps, programs : (t,) holds the steps of a device, or the runs of programs on it
    """

    device: Int64
    works: Mask
    copies: Mask
    waits: Mask
    steps: Mask
    programs: Mask

    @property
    def repeats(self) -> Mask:
        """Which hold (t,) what another thread tells as well, and nothing that is asked for."""
        return np.asarray((self.device != SHARED) & ~(self.works | self.waits | self.steps | self.programs))


def lines_of(trace: Trace) -> ThreadKinds:
    """Return which kind of slices the threads of a trace hold, by their names."""
    processes = _names(trace, "process_name")
    threads = _names(trace, "thread_name")
    matches = [_DEVICE.search(processes.get((track.pid, None), "")) for track in trace.tracks]
    device = np.array([int(match[1]) if match else SHARED for match in matches], np.int64)
    names = [threads.get((track.pid, track.tid), "") for track in trace.tracks]
    streamed = {track.pid for track, name in zip(trace.tracks, names, strict=True) if _STREAM.fullmatch(name)}

    def which(accept: Callable[[str], object]) -> Mask:
        return np.asarray(np.array([bool(accept(name)) for name in names], np.bool_) & (device != SHARED))

    waits, repeated = which("XLA TraceMe".__eq__), which(_REPEATED.fullmatch)
    beside = np.array([track.pid in streamed for track in trace.tracks], np.bool_)
    repeated |= beside & ~which(_STREAM.fullmatch)
    works = (device != SHARED) & ~repeated & ~waits
    steps, programs = which(lambda name: name == "Steps"), which(lambda name: name.startswith("XLA Modules"))
    return ThreadKinds(device, works, which(_OF_COPIES.fullmatch), waits, steps, programs)


def _names(trace: Trace, kind: str) -> dict[tuple[object, object], str]:
    """Return the names of processes, or of threads, by (pid, tid); of processes the tid is None."""
    is_thread = kind == "thread_name"
    return {
        (event["pid"], event.get("tid") if is_thread else None): str(event["args"].get("name"))
        for event in trace.metadata
        if event["name"] == kind
    }


def n_devices(trace: Trace) -> int:
    """Return how many devices have a process of their own in the file of a trace."""
    matches = map(_DEVICE.search, _names(trace, "process_name").values())
    return len({match[1] for match in matches if match})


def operations(trace: Trace, lines: ThreadKinds) -> Mask:
    """Return which slices (n,) are operations of a device."""
    found = lines.works[trace.track_id] if len(trace) else np.zeros(0, np.bool_)
    if "hlo_op" in trace.args:
        found[trace.args["hlo_op"].rows] = True  # on a CPU, on threads of the host
    return found & (~lines.repeats & ~lines.programs & ~lines.steps)[trace.track_id]


def device_of_slices(trace: Trace) -> Int64:
    """Return the number of each slice's device (n,), `SHARED` for what is the host's.

    On a CPU an operation names its device; what lies inside it is of the same one. A device that only copies
    is not a rank where others work: its copies are the host's.
    """
    if not len(trace):
        return np.empty(0, np.int64)
    lines = lines_of(trace)
    found = lines.device[trace.track_id]
    for key in ("global_device_id", "device_ordinal"):
        if key in trace.args:
            column = trace.args[key]
            found[column.rows] = np.where(
                found[column.rows] == SHARED,
                [whole_number(value) for value in column.values],
                found[column.rows],
            )
    found = _with_insides(trace, found)
    copies = lines.copies[trace.track_id] | by_name(trace, lambda name: role_of(name) is Role.COPY)
    busy = unique(found[operations(trace, lines) & ~copies])
    return np.where(np.isin(found, busy), found, SHARED) if len(busy) else found


def _with_insides(trace: Trace, device: Int64) -> Int64:
    """Return the devices (n,) also of the slices that lie inside one whose device is known."""
    known = device != SHARED
    outer = known & ~lies_inside(trace.ts_ns, trace.end_ns, trace.track_id, known)
    order = np.lexsort((-trace.end_ns, ~outer, trace.ts_ns, trace.track_id))
    last = np.maximum.accumulate(np.where(outer[order], np.arange(len(order)), 0))
    around = np.empty(len(order), np.int64)
    around[order] = order[last]
    inside = (
        outer[around] & (trace.track_id[around] == trace.track_id) & (trace.end_ns <= trace.end_ns[around])
    )
    return np.where(~known & inside, device[around], device)


def ranks_of(devices: Sequence[int]) -> list[int]:
    """Return the ranks of the devices of a process: each process has the numbers after the one before.

    >>> ranks_of([0, 1]), ranks_of([2048, 2049])
    ([0, 1], [2, 3])
    """
    n = max((device % _OF_A_PROCESS for device in devices), default=0) + 1
    return [device // _OF_A_PROCESS * n + device % _OF_A_PROCESS for device in devices]


def with_others(trace: Trace, works: Mask) -> Mask:
    """Return which of the operations of devices (n,), `works`, have others in them."""
    rows = np.flatnonzero(works)
    order = rows[np.lexsort((-trace.end_ns[rows], trace.ts_ns[rows], trace.track_id[rows]))]
    found = np.zeros(len(trace), np.bool_)
    same = trace.track_id[order[1:]] == trace.track_id[order[:-1]]
    found[order[:-1]] = same & (trace.ts_ns[order[1:]] < trace.end_ns[order[:-1]])
    return found
