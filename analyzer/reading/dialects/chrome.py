"""Any other chrome trace, which may have marks of the known systems; Ascend's is one with known lanes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from msgspec.structs import replace

from analyzer.base.arrays import Mask, NDArray
from analyzer.base.arrays.numbering import numbered
from analyzer.reading.dialects.byteps import BytePS
from analyzer.reading.dialects.composer import Composer
from analyzer.reading.dialects.dataflow import without_repeated_lanes
from analyzer.reading.dialects.horovod import Horovod
from analyzer.reading.dialects.kineto import Kineto
from analyzer.reading.dialects.owners import Owned, process_names, processes_like_ranks, split_by_field
from analyzer.reading.dialects.recorded_collectives import SyncPart
from analyzer.reading.dialects.roles import Role, by_name
from analyzer.reading.dialects.steps import (
    NO_STEPS,
    STEP_ARGS,
    Step,
    Steps,
    natural_numbers,
    says_step,
    step_table,
    steps_by_argument,
    windows,
)
from analyzer.reading.dialects.system import Need, System, framed
from analyzer.reading.formats.columns import Trace

_COLLECTIVE = re.compile(r"(?i)(hcom_[a-z]+_*\d*)_\d+_\d+")  # kind, group, number of the call, 1
_COMM = re.compile(r"(?i)(?:hcom|hccl)_.*")
_WAIT = re.compile(r"(?i)(?:notify|event|model)_?wait.*|event_record.*")
_COPY = re.compile(r"(?i).*memcpy.*|.*memset.*|sdma.*")
_HARDWARE, _COMMUNICATION = "Ascend Hardware", "Communication"

_MARKS = (Composer(), Kineto(), BytePS(), Horovod())
#: Above it process numbers are an operating system's, not ranks.
_MOST_PID = 4095


class Chrome(System):
    """The answers of `System`; ranks and steps by what every slice says, else steps by any marks."""

    args = MappingProxyType({Need.ALWAYS: STEP_ARGS, Need.STEPS: ("batch", "input*")})

    def recognises(self, trace: Trace) -> bool:
        return True

    def finished(self, trace: Trace) -> Trace:
        """Leave out the lanes that repeat or sum up others."""
        return without_repeated_lanes(trace)

    def split(self, trace: Trace) -> Sequence[Owned]:
        """Split also by processes with small numbers, where every slice has its step."""
        owned = super().split(trace)
        if len(owned) > 1 or not says_step(trace):
            return owned
        ranks = natural_numbers(track.pid for track in trace.tracks)
        return split_by_field(trace, "pid") if ranks and max(ranks) <= _MOST_PID else owned

    def find_steps(self, trace: Trace, by: str | None = None) -> Steps:
        """Find the steps, with a note if processes look like ranks."""
        steps, n_alike = super().find_steps(trace, by), processes_like_ranks(trace)
        note = f"{n_alike} processes look like ranks: add --rank_by pid"
        return steps._replace(note=note) if n_alike else steps

    def marked_steps(self, trace: Trace) -> Steps:
        """Take the steps that every slice has, else those of the first kind of mark."""
        if key := says_step(trace):
            return steps_by_argument(trace, key)
        for system in _MARKS:
            if (steps := system.marked_steps(trace)).whole or steps.partial:
                return steps
        return NO_STEPS

    def loop_spans(self, trace: Trace) -> Mask:
        return np.ones(len(trace), np.bool_)


class Ascend(System):
    """Ascend's `trace_view.json` (torch_npu): a device's streams, its communication, and sums of both.

    ``Ascend Hardware`` holds the kernels by stream, ``Communication`` the collectives (``hcom_…``) by group
    and their parts by plane, ``Overlap Analysis`` sums up both. ``Python`` and ``CANN`` are the host's. Steps
    are the marks of the profiler on the host, each until the next one begins.
    """

    name = "ascend"
    process_names = re.compile(rf"{_HARDWARE}|CANN")
    shows_communication = True
    counted_by = (
        "Communication: collectives of HCCL (hcom_…); computation: kernels of a device's streams, but for "
        "copies and waits. The lanes of Overlap Analysis are sums of others and left out."
    )

    def finished(self, trace: Trace) -> Trace:
        """Leave out the lanes that sum up others; strip the number of the call from names of collectives."""
        trace = without_repeated_lanes(trace)
        names, index = numbered(_COLLECTIVE.sub(r"\1", name) for name in trace.names)
        points = replace(trace.points, name_id=index[trace.points.name_id])
        return replace(trace, names=names, name_id=index[trace.name_id], points=points)

    def recorded_roles(self, trace: Trace) -> NDArray[np.int8]:
        process = self._processes(trace)
        on_device = np.isin(process, (_HARDWARE, _COMMUNICATION))
        if not on_device.any():
            return super().recorded_roles(trace)
        roles = framed(trace)
        roles[(roles != Role.IGNORED) & ~on_device] = Role.HOST
        roles[on_device] = Role.COMPUTE
        roles[on_device & by_name(trace, lambda name: bool(_COPY.fullmatch(name)))] = Role.COPY
        roles[on_device & by_name(trace, lambda name: bool(_WAIT.fullmatch(name)))] = Role.IDLE
        collective = by_name(trace, lambda name: bool(_COMM.fullmatch(name)))
        parts = (process == _COMMUNICATION) & ~collective
        roles[parts] = Role.IGNORED if (collective & on_device).any() else Role.COMM
        roles[collective & on_device] = Role.COMM
        return roles

    def _processes(self, trace: Trace) -> NDArray[np.str_]:
        """Name the process of each slice (n,)."""
        of_track = np.array(process_names(trace), np.str_)
        return of_track[trace.track_id] if len(of_track) else np.empty(0, np.str_)

    def marked_steps(self, trace: Trace) -> Steps:
        return Chrome().marked_steps(trace)

    def find_steps(self, trace: Trace, by: str | None = None) -> Steps:
        steps = super().find_steps(trace, by)
        return steps._replace(whole=tuple(map(Step._make, windows(step_table(steps.whole)).tolist())))

    def may_synchronise(self, name: str) -> bool:
        return _COMM.fullmatch(name) is not None

    def sync_part(self, name: str, cat: str, tid: object, args: Mapping[str, Any]) -> SyncPart | None:
        return SyncPart(name) if self.may_synchronise(name) else None

    def device_work(self, trace: Trace) -> Mask:
        return np.isin(self._processes(trace), (_HARDWARE, _COMMUNICATION))
