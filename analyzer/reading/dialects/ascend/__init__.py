"""Ascend's `trace_view.json` (torch_npu): a device's streams, its communication, and sums of both.

``Ascend Hardware`` holds the kernels by stream, ``Communication`` the collectives (``hcom_…``) by group and
their parts by plane, ``Overlap Analysis`` sums up both. ``Python`` and ``CANN`` are the host's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec.structs import replace

from analyzer.base.arrays import Mask, NDArray
from analyzer.base.arrays.numbering import numbered
from analyzer.reading.dialects.chrome import Chrome
from analyzer.reading.dialects.owners import process_names
from analyzer.reading.dialects.recorded_collectives import SyncPart
from analyzer.reading.dialects.roles import Role, by_name
from analyzer.reading.dialects.steps import Step, Steps, step_table, windows
from analyzer.reading.dialects.system import System, framed
from analyzer.reading.formats.columns import Trace

_COLLECTIVE = re.compile(r"(?i)(hcom_[a-z]+_*\d*)_\d+_\d+")  # kind, group, number of the call, 1
_COMM = re.compile(r"(?i)(?:hcom|hccl)_.*")
_WAIT = re.compile(r"(?i)(?:notify|event|model)_?wait.*|event_record.*")
_COPY = re.compile(r"(?i).*memcpy.*|.*memset.*|sdma.*")
_HARDWARE, _COMMUNICATION = "Ascend Hardware", "Communication"


class Ascend(System):
    """Steps are the marks of the profiler on the host, each until the next one begins."""

    name = "ascend"
    process_names = re.compile(rf"{_HARDWARE}|CANN")
    shows_communication = True
    counted_by = (
        "Communication: collectives of HCCL (hcom_…); computation: kernels of a device's streams, but for "
        "copies and waits. The lanes of Overlap Analysis are sums of others and left out."
    )

    def finished(self, trace: Trace) -> Trace:
        """Leave out the lanes that sum up others; strip the number of the call from names of collectives."""
        from analyzer.reading.dialects.repeated_lanes import without_repeated_lanes

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
