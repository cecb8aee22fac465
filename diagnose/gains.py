"""What a change wins: the recorded steps replayed without and with it, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dag.step_graph import Recording
from diagnose.finding import Edit, Finding
from replay.answer import measured_ns
from replay.occurrences import with_usual_gaps
from replay.simulation import replay
from replay.uncertainty import MODEL_ERROR, Float, paired_change

_Z = 1.959964  # of the normal distribution, 19 times in 20


@dataclass(frozen=True, slots=True)
class Gain:
    """Nanoseconds of a step that are won; the bounds hold the truth 19 times in 20, None: too few steps."""

    mid_ns: float
    low_ns: float | None
    high_ns: float | None

    @property
    def is_certain(self) -> bool:
        """Whether something is won at all, as far as that can be told."""
        return self.low_ns is None or self.low_ns > 0


class Gains:
    """Replays of the whole steps of a job.

    As in a what-if, gaps are replayed no longer than usual, and the recorded time changes in the ratio
    of the replayed ones; with `own_gaps` every gap is as recorded.
    """

    def __init__(self, recording: Recording, rows: Sequence[int]) -> None:
        self.rows = rows
        self.recorded_ns = _recorded_ns(recording, rows)
        self._times: dict[tuple[int, bool], tuple[Recording, Float]] = {}
        self._edited: dict[tuple[int, int], tuple[Edit, Recording, Recording]] = {}
        self._usual_ns = float(self.times_ns(recording, own_gaps=False).mean())

    def edited(self, edit: Edit, before: Recording) -> Recording:
        """Return the recording after an edit; made once, though it is asked for in several places."""
        key = id(edit), id(before)
        if key not in self._edited:
            self._edited[key] = edit, before, edit(before)  # both are kept, so that their ids stay theirs
        return self._edited[key][2]

    def times_ns(self, recording: Recording, *, own_gaps: bool) -> Float:
        """Return how long the job takes for each step (steps,), as replayed.

        From when the last event of the steps before ends to when the last of this one does.
        """
        key = id(recording), own_gaps
        if key not in self._times:
            edited = recording if own_gaps else with_usual_gaps(recording)
            result = replay(edited, self.rows)
            begin = int(result.schedule.start_ns[result.begin_op[0]].min())
            # a device may still have work of the step when the host is through with it
            ends = np.maximum.reduceat(result.schedule.end_ns, result.begin_op.min(axis=1))
            ends = np.maximum.accumulate(ends)
            times: Float = np.diff(ends, prepend=begin).astype(np.float64)
            self._times[key] = recording, times  # the recording is kept, so that its id stays its own
        return self._times[key][1]

    def of(self, finding: Finding, before: Recording) -> Gain:
        """Return what is won without a finding that has an edit, in the job as `before` has it."""
        assert finding.edit is not None
        after = self.edited(finding.edit, before)
        return self.between(before, after, own_gaps=finding.as_recorded, doubt_ns=finding.doubt_ns)

    def between(
        self, before: Recording, after: Recording, *, own_gaps: bool = False, doubt_ns: float = 0.0
    ) -> Gain:
        """Return what is won by the change from one recording to another of the same steps.

        The interval covers which steps were recorded, the model's error (as of a what-if, a share of the
        edited step, but no more than in proportion to what the edit changes), and any other doubt.
        """
        old, new = (self.times_ns(one, own_gaps=own_gaps) for one in (before, after))
        scale = 1.0 if own_gaps else self.recorded_ns / max(self._usual_ns, 1.0)
        old_mean, new_mean = float(old.mean()) * scale, float(new.mean()) * scale
        mid = old_mean - new_mean
        change = paired_change(old, new)
        if change is None:
            return Gain(mid, None, None)
        model = _Z * MODEL_ERROR * min(old_mean, 2 * abs(mid))
        above, below = (abs(-old_mean * one - mid) for one in change)
        model = float(np.hypot(model, doubt_ns))
        low = mid - float(np.hypot(below, model))
        return Gain(mid, max(low, 0.0) if own_gaps else low, mid + float(np.hypot(above, model)))


def _recorded_ns(recording: Recording, rows: Sequence[int]) -> float:
    """Return the recorded iteration time, as `replay` gives it; that of the replay where none is known."""
    times = measured_ns(recording)[list(rows)]
    if not np.isnan(times).all():
        return float(np.nanmean(np.nanmean(times[:, ~np.isnan(times).all(axis=0)], axis=0)))
    return float(replay(recording, rows).iteration_ns.mean())
