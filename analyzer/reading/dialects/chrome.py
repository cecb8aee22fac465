"""Any other chrome trace, which may have marks of the known systems."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

import numpy as np

from analyzer.base.arrays import Mask
from analyzer.reading.dialects.byteps import BytePS
from analyzer.reading.dialects.composer import Composer
from analyzer.reading.dialects.horovod import Horovod
from analyzer.reading.dialects.kineto import Kineto
from analyzer.reading.dialects.owners import Owned, processes_like_ranks, split_by_field
from analyzer.reading.dialects.steps import (
    NO_STEPS,
    STEP_ARGS,
    Steps,
    natural_numbers,
    says_step,
    steps_by_argument,
)
from analyzer.reading.dialects.system import Need, System
from analyzer.reading.formats.columns import Trace

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
        from analyzer.reading.dialects.repeated_lanes import without_repeated_lanes

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
