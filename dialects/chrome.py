"""Any other chrome trace: little is known of it, but it may hold marks of the known systems, or be XLA's."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from arrays import Int64, Mask
from dialects.byteps import BytePS
from dialects.composer import Composer
from dialects.horovod import Horovod
from dialects.kineto import Kineto
from dialects.needs import Need
from dialects.roles import Role
from dialects.steps import NO_STEPS, Steps, in_first_process, spans
from dialects.system import System
from formats.columns import Trace

_MARKS = (Composer(), Kineto(), BytePS(), Horovod())
#: Threads of a device in XLA's profiles: its steps, and what the other threads tell once more.
_STEPS, _REPEATED = "Steps", {"XLA Modules", "Source code", "TensorFlow Name Scope", "Framework Name Scope"}


class Chrome(System):
    """The answers of `System`; steps by whatever marks there are. With a device of XLA's, only that works."""

    args = MappingProxyType({Need.STEPS: ("batch", "input*")})

    def recognises(self, trace: Trace) -> bool:
        """Return True: this is what remains."""
        return True

    def marked_steps(self, trace: Trace) -> Steps:
        """Return the steps by the first kind of mark that the trace has."""
        for find in (*(system.marked_steps for system in _MARKS), _steps_of_device):
            if (steps := find(trace)).whole or steps.partial:
                return steps
        return NO_STEPS

    def recorded_roles(self, trace: Trace) -> NDArray[np.int8]:
        """Return the `Role` of each slice (n,); see `rule`."""
        found = super().recorded_roles(trace)
        on_device = _of(trace, "process_name", lambda name: name.startswith("/device:"))
        if on_device.any():
            found[~on_device] = Role.HOST
            found[_of(trace, "thread_name", {_STEPS, *_REPEATED}.__contains__)] = Role.IGNORED
        return found

    def loop_spans(self, trace: Trace) -> Mask:
        """Return all slices (n,)."""
        return np.ones(len(trace), np.bool_)


def _steps_of_device(trace: Trace) -> Steps:
    """Return the steps that XLA's profile has on a thread of the first device, each called by its number."""
    rows: Int64 = np.flatnonzero(_of(trace, "thread_name", _STEPS.__eq__))
    rows = rows[[trace.names[i].isdecimal() for i in trace.name_id[rows].tolist()]] if len(rows) else rows
    if not len(rows):
        return NO_STEPS
    rows = in_first_process(trace, rows)
    numbers = [int(trace.names[i][:18]) for i in trace.name_id[rows].tolist()]
    return Steps(tuple(spans(trace, rows, numbers)), (), "the device's steps")


def _of(trace: Trace, kind: str, accept: Callable[[str], bool]) -> Mask:
    """Return which slices (n,) are of processes (``process_name``) or threads with an accepted name."""
    is_thread = kind == "thread_name"
    named = {
        (event["pid"], event.get("tid") if is_thread else None)
        for event in trace.metadata
        if event["name"] == kind and accept(str(event["args"].get("name")))
    }
    keys = [(track.pid, track.tid if is_thread else None) in named for track in trace.tracks]
    return np.array(keys or [False], np.bool_)[trace.track_id]
