"""Any other chrome trace: nothing special is known of it, but it may hold marks of the known systems."""

from __future__ import annotations

import numpy as np

from dialects.byteps import BytePS
from dialects.composer import Composer
from dialects.horovod import Horovod
from dialects.kineto import Kineto
from dialects.masks import Mask
from dialects.steps import NO_STEPS, Steps
from dialects.system import System
from formats.columns import Trace

_MARKS = (Composer(), Kineto(), BytePS(), Horovod())


class Chrome(System):
    """The answers of `System`; steps by whatever marks there are."""

    step_args = ("batch", "input*")

    def recognises(self, trace: Trace) -> bool:
        """Return True: this is what remains."""
        return True

    def marked_steps(self, trace: Trace) -> Steps:
        """Return the steps by the first kind of mark that the trace has."""
        found = (system.marked_steps(trace) for system in _MARKS)
        return next((steps for steps in found if steps.whole or steps.partial), NO_STEPS)

    def loop_spans(self, trace: Trace) -> Mask:
        """Return all slices (n,)."""
        return np.ones(len(trace), np.bool_)
