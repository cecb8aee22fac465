"""The job in which some operations take a share of their time, as `replay --set NAME=R` makes it.

The selection of `--set` looks at every name of every operation; here it is known where the name stands.
"""

from __future__ import annotations

import numpy as np

from dag.step_graph import Bool, Recording
from replay.whatif.edits import Change, changed
from replay.whatif.selection import Selection

#: Of its time: what takes none to speak of.
NO_TIME = 0.001


def purpose_at(recording: Recording, purpose: str, factor: float) -> Recording:
    """Return the recording in which all of a purpose (``Comm``, ``I/O``) takes `factor` of its time."""
    return _at(recording, recording.which(lambda one: purpose in (one.purpose, one.cat)), factor)


def computation_at(recording: Recording, name: str, factor: float) -> Recording:
    """Return the recording in which the computation called `name` takes `factor` of its time."""
    return _at(recording, recording.which(lambda one: one.main == name and one.is_compute), factor)


def _at(recording: Recording, chosen: Bool, factor: float) -> Recording:
    return changed(recording, Selection(chosen, np.zeros(len(recording.owners), np.bool_)), Change(factor))
