"""Nsight Systems: work of devices and its launches, of any program; `formats.nsight` converts the file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from analyzer.base.arrays import Mask
from analyzer.base.arrays.numbering import unique
from analyzer.reading.dialects.kineto import Kineto
from analyzer.reading.dialects.owners import SHARED, Owned, split_by_slices
from analyzer.reading.dialects.roles import by_cat
from analyzer.reading.dialects.steps import NO_STEPS, Steps, outer_rows, spans, with_slices
from analyzer.reading.dialects.system import KERNEL_CATS, RUNTIME_CATS
from analyzer.reading.formats.columns import Trace

#: A range named after a step and its number: ``train_step_12``, ``Iteration: 3``.
_STEP = r"(?i)(?:.*[\W_])?(?:step|iter|iteration)[\W_]*(\d{1,9})"


class Nsight(Kineto):
    """Ranks are devices of processes; ranges of NVTX are annotations, or the operators of `emit_nvtx`."""

    name = "nsight"
    memory_setting = ""
    profiler_cost = None
    never_shows = Kineto.never_shows | {"memory"}

    def recognises(self, trace: Trace) -> bool:
        """Accept the traces of its reader, combined ones too."""
        return "nsight" in trace.header

    def split(self, trace: Trace) -> Sequence[Owned]:
        """Split by devices that run kernels, each with the events of its process.

        A process with several devices shares its threads among them. The job numbers ranks, file by file.
        """
        process_of: Mapping[Any, Any] = trace.header["nsight"]
        has_kernels = unique(trace.track_id[by_cat(trace, KERNEL_CATS.__contains__)]).tolist()
        runs = {trace.tracks[i].pid for i in has_kernels}
        devices = [device for device in process_of if device in runs]
        ranks_of: dict[Any, list[int]] = {}
        for rank, device in enumerate(devices):
            ranks_of.setdefault(process_of[device], []).append(rank)
            ranks_of[device] = [rank]
        owners = [
            ranks_of.get(track.pid) or ranks_of.get(process_of.get(track.pid), []) for track in trace.tracks
        ]
        of_track = np.array([ranks[0] if len(ranks) == 1 else SHARED for ranks in owners], np.int64)
        owned = split_by_slices(trace, of_track[trace.track_id], range(len(devices)))
        return [replace(part, rank=None) for part in owned]

    def _every_step(self, trace: Trace, by: str | None) -> tuple[Steps, Sequence[str]]:
        """Find the steps; `by` may also name ranges without the number at their ends."""
        if by is not None and by not in trace.names:
            number = re.compile(re.escape(by) + r"[\W_]*(\d{1,9})")
            names = [
                number.sub(rf"{re.escape(by)}#\1", name) if number.fullmatch(name) else name
                for name in trace.names
            ]
            trace = replace(trace, names=names)
        return super()._every_step(trace, by)

    def loop_spans(self, trace: Trace) -> Mask:
        """Accept ranges (n,), and calls, which may be the only events in them."""
        return super().loop_spans(trace) | by_cat(trace, RUNTIME_CATS.__contains__)

    def marked_steps(self, trace: Trace) -> Steps:
        """Take PyTorch's marks of steps, else ranges named after a step, with its number."""
        marked = super().marked_steps(trace)
        if marked.whole:
            return marked
        numbered = {name: int(match[1]) for name in trace.names if (match := re.fullmatch(_STEP, name))}
        rows = outer_rows(trace, numbered.__contains__)
        numbers = [numbered[trace.names[i]] for i in trace.name_id[rows].tolist()]
        steps = with_slices(trace, spans(trace, rows, numbers))
        return Steps(steps, (), "ranges of NVTX called after a step") if steps else NO_STEPS
