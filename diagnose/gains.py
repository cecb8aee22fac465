"""What a change wins: the recorded steps replayed without and with it, and how sure that is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from arrays import Float64
from dag.step_graph import LazySteps, Recording, StepBounds, StepGraph
from diagnose.finding import Edit, Finding
from replay.answer import measured_ns
from replay.occurrences import UsualGaps
from replay.runs import Runs
from replay.uncertainty import MODEL_ERROR, paired_change, without_outliers

#: Edits of a job, made one after the other.
Edits = tuple[Edit, ...]

_Z = 1.959964  # of the normal distribution, 19 times in 20
#: Standard deviation of what less work wins: a share of it, or of the transfers that queue if these are less.
_QUEUE_ERROR = 0.25
#: Edited recordings that are kept at most; any other is made again when it is wanted.
_KEPT = 3


class Gain(Struct, frozen=True):
    """Nanoseconds of a step that are won; the bounds hold the truth 19 times in 20, None: too few steps."""

    mid_ns: float
    low_ns: float | None
    high_ns: float | None

    @property
    def is_certain(self) -> bool:
        """Whether something is won at all, as far as that can be told."""
        return self.low_ns is None or self.low_ns > 0


class Gains:
    """Simulations of the whole steps of a job as `recording` has it, and with edits one after the other.

    As in a what-if, gaps are no longer than usual, and the recorded time changes in the ratio of the
    simulated ones; with `own_gaps` every gap is as recorded. The mean step, `recorded_ns`, of which a gain
    is a share, is without the first `n_warm_up`: no later step is like them.
    """

    def __init__(self, recording: Recording, rows: Sequence[int], n_warm_up: int = 0) -> None:
        self.rows = rows
        self._recording = recording
        self._edited: dict[Edits, Recording] = {}
        self._runs = [Runs(recording, rows)]
        self._usual_gaps = UsualGaps(recording)
        self._times: dict[tuple[Edits, bool], Float64] = {}
        recorded = self._recorded_ns()
        self.recorded_ns = float(recorded[n_warm_up:].mean())
        # what one step took longer once is not a measure of what the others would win
        usual_ns = without_outliers(self.times_ns((), own_gaps=False)).mean()
        self._scale = float(without_outliers(recorded).mean() / max(usual_ns, 1.0))

    def edited(self, edits: Edits) -> Recording:
        """Return the recording after some edits; the latest are kept."""
        if not edits:
            return self._recording
        if edits not in self._edited:
            found = edits[-1](self.edited(edits[:-1]))
            while len(self._edited) >= _KEPT:
                del self._edited[next(iter(self._edited))]
            self._edited[edits] = found
        self._edited[edits] = self._edited.pop(edits)  # it is the latest now
        return self._edited[edits]

    def as_simulated(self, edits: Edits) -> Recording:
        """Return the recording after some edits with the times at which its whole steps then run."""
        edited = self.edited(edits)
        steps, runs = edited.steps, self._runs_of(edited)
        position = {row: place for place, row in enumerate(self.rows)}
        schedule = runs.simulate(self._steps(edited, own_gaps=True))
        begin, end = schedule.start_ns[runs.begin_run], schedule.end_ns[runs.end_run]
        bounds = [
            StepBounds(one.number, begin[position[row]], end[position[row]]) if row in position else one
            for row, one in enumerate(edited.bounds)
        ]

        def make(row: int) -> StepGraph:
            return runs.step(position[row], steps[row], schedule) if row in position else steps[row]

        return replace(edited, steps=LazySteps(bounds, make, most=1))  # which are large

    def times_ns(self, edits: Edits, *, own_gaps: bool) -> Float64:
        """Return how long the job takes for each step (steps,), as simulated.

        From when the last event of the steps before ends to when the last of this one does.
        """
        if (edits, own_gaps) not in self._times:
            edited = self.edited(edits)
            runs = self._runs_of(edited)
            schedule = runs.simulate(self._steps(edited, own_gaps=own_gaps))
            begin = int(schedule.start_ns[runs.begin_run[0]].min())
            # a device may still have work of the step when the host is through with it
            ends = np.maximum.accumulate(runs.ends_ns(schedule))
            self._times[edits, own_gaps] = np.diff(ends, prepend=begin).astype(np.float64)
        return self._times[edits, own_gaps]

    def _steps(self, recording: Recording, *, own_gaps: bool) -> Iterator[StepGraph]:
        """Yield the whole steps, with usual gaps where they are not to have their own."""
        gaps = None if own_gaps else self._usual_gaps
        if gaps is not None and not gaps.are_of(recording):
            gaps = UsualGaps(recording, gaps)
        for row in self.rows:
            step = recording.steps[row]
            yield step if gaps is None else gaps.limit(row, step)

    def _runs_of(self, recording: Recording) -> Runs:
        for runs in self._runs:
            if runs.fits(recording):
                return runs
        self._runs[1:] = [Runs(recording, self.rows)]
        return self._runs[1]

    def _recorded_ns(self) -> Float64:
        """Return the recorded steps (n,), the mean over owners; as simulated where none is known."""
        times = measured_ns(self._recording)[list(self.rows)]
        if not np.isnan(times).all():
            times = times[:, ~np.isnan(times).all(axis=0)]
            steps: Float64 = np.nanmean(times, axis=1)
            return steps
        runs = self._runs[0]
        schedule = runs.simulate(self._steps(self._recording, own_gaps=True))
        lasted: Float64 = (schedule.end_ns[runs.end_run] - schedule.start_ns[runs.begin_run]).mean(axis=1)
        return lasted

    def of(self, finding: Finding, before: Edits) -> Gain:
        """Return what is won without a finding that has an edit, in the job after the edits `before`.

        The interval covers which steps were recorded, the model's error (as of a what-if, a share of the
        edited step, but no more than in proportion to what the edit changes), and any other doubt. Where
        transfers queue on the path, what a slow worker costs was off by a quarter of itself in simulated
        clusters, and hardly where none do (docs/accuracy.md, 7).
        """
        assert finding.edit is not None
        own_gaps = finding.as_recorded
        old, new = (self.times_ns(edits, own_gaps=own_gaps) for edits in (before, (*before, finding.edit)))
        scale = 1.0 if own_gaps else self._scale
        old_mean, new_mean = float(old.mean()) * scale, float(new.mean()) * scale
        mid = old_mean - new_mean
        change = paired_change(old, new)
        if change is None:
            return Gain(mid, None, None)
        model = _Z * MODEL_ERROR * min(old_mean, 2 * abs(mid))
        above, below = (abs(-old_mean * one - mid) for one in change)
        queues = _Z * _QUEUE_ERROR * min(abs(mid), finding.queued_ns)
        model = float(np.linalg.norm((model, finding.doubt_ns, queues)))
        low = mid - float(np.hypot(below, model))
        return Gain(mid, max(low, 0.0) if own_gaps else low, mid + float(np.hypot(above, model)))
