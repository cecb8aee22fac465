"""Frameworks that run a graph of operators, with devices as processes and parameters on servers."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from analyzer.base.arrays import Mask, NDArray
from analyzer.base.arrays.numbering import numbered
from analyzer.reading.dialects.name_rules import is_collective, is_server_transfer
from analyzer.reading.dialects.owners import process_names
from analyzer.reading.dialects.roles import Role, by_name
from analyzer.reading.dialects.steps import Steps, steps_by_updates
from analyzer.reading.dialects.system import System, framed
from analyzer.reading.formats.columns import Trace
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
        from analyzer.reading.dialects.repeated_lanes import without_repeated_lanes

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
