"""Any other chrome trace: little is known of it, but it may hold marks of the known systems."""

from __future__ import annotations

from types import MappingProxyType

import numpy as np

from arrays import Mask
from dialects.byteps import BytePS
from dialects.composer import Composer
from dialects.horovod import Horovod
from dialects.kineto import Kineto
from dialects.needs import Need
from dialects.steps import NO_STEPS, Steps
from dialects.system import System
from formats.columns import Trace

_MARKS = (Composer(), Kineto(), BytePS(), Horovod())


class Chrome(System):
    """The answers of `System`; steps by whatever marks there are."""

    args = MappingProxyType({Need.STEPS: ("batch", "input*")})

    def recognises(self, trace: Trace) -> bool:
        """Return True: this is what remains."""
        return True

    def marked_steps(self, trace: Trace) -> Steps:
        """Return the steps by the first kind of mark that the trace has."""
        for system in _MARKS:
            if (steps := system.marked_steps(trace)).whole or steps.partial:
                return steps
        return NO_STEPS

    def loop_spans(self, trace: Trace) -> Mask:
        """Return all slices (n,)."""
        return np.ones(len(trace), np.bool_)
