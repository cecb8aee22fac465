"""Forecasts of edited jobs, with intervals: the recorded steps simulated with and without edits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property
from math import exp, hypot, log

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from analyzer.base.arrays import Float64, Int64, Mask
from analyzer.base.arrays.distributions import FEWEST, longest_usual
from analyzer.model.graph.step_graph import Recording, StepGraph
from analyzer.reading.dialects.edge_rules import EdgeKind, kinds_of
from analyzer.reading.dialects.roles import Phase
from analyzer.reading.dialects.step_parts import Operation
from replay.answer import (
    DEVICE_ERROR,
    EXTRAPOLATED,
    HOST_ERROR,
    MODEL_ERROR,
    Z_95,
    Answer,
    answer,
    mean_interval,
    paired_change,
    without_outliers,
)
from replay.edit import Edit, EditRequest, Job, in_order, parse
from replay.runs import Runs, Simulation
from replay.usual_times import UsualGaps, pace, with_usual_gaps

#: Steps that share a network are simulated so many times in a row, until the workers settle into a rhythm.
_ROUNDS = 3
#: Besides the recorded start, workers start so far apart (a share of a step over their number): runs of one
#: job differ by the rhythm that results.
_STARTS = 0.125, 0.5
#: If launches are recorded, this share of a device's work has one in the simulated steps.
_LAUNCHED = 0.99
#: Least remaining share of a step, for the logarithm.
_LEAST = 1e-3


class Forecast(Struct, frozen=True, dict=True):
    """Step times of a job with and without edits.

    Both are simulated with the usual gaps; the recorded time changes by their ratio. An outlier step counts
    as long as the longest usual step, except for the time that the edits themselves remove or add.
    """

    name: str
    recorded: Answer
    before: Int64  # simulated times of the steps of `recorded` (positions, m)
    after: Int64
    rhythms: Sequence[Int64]  # `after` from several starts, each (positions, m)
    error: float  # standard deviation of the error of the effect, as a share of the effect
    error_ns: float  # further error of the effect (95 %)
    as_recorded: bool  # the edits concern single recorded steps, so chance plays no part
    cost_ns: tuple[float, float]  # `Recording.cost_ns` if the edits concern the host, else 0
    device_ns: float  # simulated step of the device alone if the edits concern the host, else 0
    scale: float  # recorded over simulated time if `before` has other edits already; 0 for the recorded job
    #: Computes the model error if nothing varies (`error` refers to `MODEL_ERROR`), and the share of a step
    #: in which the host sets the pace, which differs between runs.
    model: Callable[[], tuple[float, float]]

    @cached_property
    def ratio(self) -> float:
        """Step time with the edits over step time without them."""
        before, after = self._counted
        return max(float(after.mean() / max(before.mean(), 1.0)), _LEAST)

    @cached_property
    def before_ns(self) -> float:
        """Mean step time without the edits; of outliers only what the edits change counts in full."""
        if self.scale:
            return self.scale * float(self._counted[0].mean())
        recorded_ns = self.recorded.recorded_ns
        steps = self.recorded.replayed_ns.mean(axis=1) if recorded_ns is None else self.recorded.by_step_ns[0]
        counted = _without_alike(steps, steps * self._alike[0])
        usual = float(counted.mean() / max(steps.mean(), 1.0))
        return (recorded_ns or self.recorded.iteration_ns) * usual

    @property
    def scale_of_recorded(self) -> float:
        """Recorded time over simulated time, both without the edits."""
        return self.before_ns / max(float(self._counted[0].mean()), 1.0)

    @property
    def after_ns(self) -> float:
        """Mean step time with the edits."""
        return self.before_ns * self.ratio

    @cached_property
    def interval_ns(self) -> tuple[float, float] | None:
        """The 95 % interval of the mean step of the edited job; None for too few steps.

        It combines the scatter of the change over these steps, the model error, the profiler's cost, and the
        scatter of further steps as far as the edits change the step. If the host sets the pace, all scatter
        of further steps counts. Without the profiler's cost the device takes as long.
        """
        paired, steps = self.paired, self.after.mean(axis=1)[: len(set(self.recorded.rows))]
        further = mean_interval(steps)
        if paired is None or further is None:
            return None
        _, host_share = self.model()
        moved, mean = min(max(abs(log(self.ratio)), host_share), 1.0), max(float(steps.mean()), 1.0)
        low, high = (
            hypot(
                log(max(1 + change, _LEAST) / self.ratio),
                moved * log(max(end, 1.0) / mean),
                Z_95 * self.model_error,
            )
            for change, end in zip(paired, further, strict=True)
        )
        less_ns, more_ns = self.cost_ns
        scatter_ns = self.after_ns * (1 - exp(-low))
        least_ns = min(self.device_ns * self.scale_of_recorded, self.after_ns) - scatter_ns
        below, above = hypot(scatter_ns, more_ns), hypot(self.after_ns * (exp(high) - 1), less_ns)
        return max(self.after_ns - below, least_ns, 0.0), self.after_ns + above

    @property
    def saved_ns(self) -> float:
        """Saved time per step."""
        return self.before_ns - self.after_ns

    @property
    def gain_ns(self) -> Gain:
        """Saved time per step, with the interval of the edited step."""
        if self.interval_ns is None:
            return Gain(self.saved_ns, None, None)
        low, high = self.interval_ns
        return Gain(self.saved_ns, self.before_ns - high, self.before_ns - low)

    @cached_property
    def model_error(self) -> float:
        """Model error of the edited step: the standard deviation of its logarithm if nothing varies.

        It grows with the effect of the edits, and with the differences between the `rhythms`.
        """
        several = (self.after, *self.rhythms)
        usual = [max(float(without_outliers(times.mean(axis=1)).mean()), 1.0) for times in several]
        apart = [abs(log(time / usual[0])) for time in usual]
        more = self.error_ns / Z_95 / max(self.after_ns, 1.0)
        model, _ = self.model()
        extrapolated = self.error * model / MODEL_ERROR * log(self.ratio)
        return hypot(model, extrapolated, max(apart) / 2, more)

    @cached_property
    def paired(self) -> tuple[float, float] | None:
        """The 95 % interval of the change over the recorded steps, paired; None for too few steps."""
        n_distinct = len(set(self.recorded.rows))
        return paired_change(*(steps[:n_distinct] for steps in self._counted))

    @property
    def is_certain(self) -> bool:
        """True if the saving is significant and larger than the error of the edits."""
        if self.paired is None or self.as_recorded:
            return True
        return self.paired[1] < 0 and self.saved_ns > self.error_ns

    @cached_property
    def _alike(self) -> tuple[Float64, Float64]:
        """Share of each step (steps,), before and after, that the edits change no more than in most steps.

        Before the edits that is all except what they remove only here; after them, all except what they add
        only here.
        """
        before, after = (np.maximum(times.mean(axis=1), 1.0) for times in (self.before, self.after))
        usual = float(np.median(after / before))
        return (
            np.minimum(after / (min(usual, 1.0) * before), 1.0),
            np.minimum(max(usual, 1.0) * before / after, 1.0),
        )

    @cached_property
    def _counted(self) -> tuple[Float64, Float64]:
        """Simulated step times (steps,) before and after the edits, with outliers limited."""
        before, after = (
            _without_alike(steps.mean(axis=1), steps.mean(axis=1) * share)
            for steps, share in zip((self.before, self.after), self._alike, strict=True)
        )
        return before, after


class Gain(Struct, frozen=True):
    """Saved nanoseconds of a step with their 95 % interval (None: too few steps)."""

    mid_ns: float
    low_ns: float | None
    high_ns: float | None

    def at_most(self, most_ns: float) -> Gain:
        """Limit a saving, and with it its interval, to what can be saved at all."""
        if self.mid_ns <= most_ns:
            return self
        return Gain(most_ns, None if self.low_ns is None else min(self.low_ns, most_ns), most_ns)


def _mean(starts: Int64) -> Int64:
    """Mean step times (positions, m) over starts."""
    return np.asarray(np.rint(starts.mean(axis=0)), np.int64)


def _without_alike(steps: Float64, alike: Float64) -> Float64:
    """Limit the part `alike` (n,) of step times (n,) to the longest usual step."""
    return steps - np.maximum(alike - longest_usual(steps), 0.0)


class Forecasts:
    """Forecasts edits of a job; `rows` are the steps to simulate."""

    def __init__(self, job: Job, rows: Sequence[int]) -> None:
        self.job, self.rows = job, rows
        self._parse = cache(lambda request: parse(request, job))
        self._runs = [Runs(job.recording, rows)]
        self._usual_gaps = UsualGaps(job.recording)
        self._times: dict[tuple[tuple[Edit, ...], bool], Int64] = {}

    @cached_property
    def recorded(self) -> Answer:
        """The job as it was recorded."""
        recording = self.job.recording
        return answer(recording, self.rows, self._simulated(recording, own_gaps=True)[0])

    def of(self, requests: Sequence[EditRequest], above: Sequence[EditRequest] = ()) -> Forecast:
        """Forecast the requested edits in a job that already has the edits `above`."""
        return self.of_edits(" ".join(map(str, requests)), self.edits(requests), self.edits(above))

    def of_edits(self, name: str, edits: Sequence[Edit], above: Sequence[Edit] = ()) -> Forecast:
        """Forecast `edits` in a job that already has the edits `above`."""
        own_gaps, both = any(edit.as_recorded for edit in edits), [*above, *edits]
        rhythms = self._after(both, own_gaps)
        after = _mean(rhythms)
        cost_ns = self.job.recording.cost_ns if any(edit.of_host for edit in edits) else (0.0, 0.0)
        return Forecast(
            name,
            self.recorded,
            before=_mean(self._after(above, own_gaps)),
            after=after,
            rhythms=list(rhythms),
            error=max((edit.error for edit in edits), default=EXTRAPOLATED),
            error_ns=float(np.linalg.norm([edit.error_ns for edit in edits])),
            as_recorded=own_gaps,
            cost_ns=cost_ns,
            device_ns=self._device_ns if any(cost_ns) else 0.0,
            scale=self.of_edits(name, edits).scale_of_recorded if above else 0.0,
            model=cache(lambda: self._model_error(both, after)),
        )

    @cached_property
    def _device_ns(self) -> float:
        """Simulated mean step if the host took no time."""
        return float(self._after(self.edits([EditRequest("host", "none")]), False).mean())

    def _model_error(self, edits: Sequence[Edit], lengths: Int64) -> tuple[float, float]:
        """Compute the model error, and the share of a step in which the host sets the pace.

        It is smaller if devices, all of them recorded, work for half of a step. `lengths` (positions, m) has
        the step times after the edits. A clock that changes between steps also changes between runs.
        """
        error, host = MODEL_ERROR, 0.0
        if self._all_devices:
            edited = self.job.after(edits)
            steps, most = [edited.steps[row] for row in self.rows], max(int(lengths.sum()), 1)

            def share(accept: Callable[[Operation], bool]) -> float:
                chosen = edited.which(accept)
                return min(sum(int(step.work_ns[chosen[step.operation]].sum()) for step in steps) / most, 1.0)

            on_device, loads = share(lambda op: op.on_device), share(lambda op: op.phase is Phase.INPUT)
            host = max(1 - 2 * on_device, 0.0) * (1 - loads)
            error = DEVICE_ERROR + host * (HOST_ERROR - DEVICE_ERROR)
        return hypot(error, self._clock_error), host

    @cached_property
    def _all_devices(self) -> bool:
        """True if the device work of all ranks of the job is recorded."""
        recording = self.job.recording
        owners = {op.owner for op in recording.operations.kinds if op.is_kernel}
        return len(owners) == max([len(recording.owners), *(rank.world_size or 0 for rank in self.job.ranks)])

    @cached_property
    def _clock_error(self) -> float:
        """Standard deviation of the kernels' pace over the steps, as a share."""
        if len(self.rows) < FEWEST:
            return 0.0
        recording = self.job.recording
        works = recording.by_kind("work_ns", self.rows, [op.is_kernel for op in recording.operations.kinds])
        return float(np.log(pace(works)).std(ddof=1))

    def edits(self, requests: Sequence[EditRequest]) -> list[Edit]:
        """Parse requests; raises `UsageError` for an impossible edit."""
        return [self._parse(request) for request in requests]

    def _after(self, edits: Sequence[Edit], own_gaps: bool) -> Int64:
        key = in_order(edits), own_gaps
        if key not in self._times:
            self._times[key] = self._simulated(self.job.after(edits), own_gaps)
        return self._times[key]

    def _simulated(self, recording: Recording, own_gaps: bool) -> Int64:
        """Simulate the steps of a recording: their times (starts, positions, m).

        A single step counts from its recorded start, so an owner that starts earlier gains that time. Owners
        that share a network start as recorded and in other ways: their rhythm is chance.
        """
        rows = self.rows
        is_shared = len(recording.sides) > 0 and len(rows) > 1
        if is_shared:
            rows = [*rows] * _ROUNDS
        runs = self._runs_of(recording, rows)
        schedules = runs.simulate_from(self._steps(recording, own_gaps, rows), _STARTS if is_shared else ())
        lengths = np.array([runs.iteration_ns(schedule) for schedule in schedules])[:, -len(self.rows) :]
        if len(rows) == 1:
            lead_ns = self.job.recording.steps[rows[0]].lead_ns
            lengths += schedules[0].start_ns[runs.begin_run] - lead_ns
        is_launched = self._is_launched_here
        if not is_launched.all() and recording is not self.job.recording:
            # A host that ran ahead of the recorded device may limit the edited one.
            on_host = ~recording.which(lambda op: op.on_device)

            def host_only(step: StepGraph) -> StepGraph:
                chosen = on_host[step.operation]
                return replace(step, work_ns=step.work_ns * chosen, gap_ns=step.gap_ns * chosen)

            schedule = runs.simulate(map(host_only, self._steps(recording, own_gaps, rows)))
            host_ns = runs.iteration_ns(schedule)[is_launched].mean()
            lengths = lengths if host_ns < lengths.mean() else np.full_like(lengths, round(host_ns))
        return lengths

    @cached_property
    def _is_launched_here(self) -> Mask:
        """Positions (positions,) whose device work was launched within the simulated steps.

        All positions if the host does not run ahead, or if launches are not recorded.
        """
        recording, rows = self.job.recording, self.rows
        on_device = recording.which(lambda op: op.on_device)
        is_launched = np.ones(len(rows), np.bool_)
        if not on_device.any() or (np.diff(rows) != 1).any():
            return is_launched
        for position, step in enumerate(map(recording.steps.__getitem__, rows)):
            works, has_launch = on_device[step.operation], np.zeros(len(step), np.bool_)
            works[step.continued[:, 1]] = False
            has_launch[step.edges[kinds_of(step.edges) == EdgeKind.LAUNCH, 1]] = True
            has_launch[step.across[step.across[:, 3] <= position, 1]] = True
            is_launched[position] = not works.any() or has_launch[works].mean() > _LAUNCHED
        return is_launched | (not is_launched[len(is_launched) // 2 :].all())

    def _steps(self, recording: Recording, own_gaps: bool, rows: Sequence[int]) -> Iterator[StepGraph]:
        gaps = None if own_gaps else self._usual_gaps
        if gaps is not None and not gaps.are_of(recording):
            gaps = UsualGaps(recording)
        for row in rows:
            step = recording.steps[row]
            yield step if gaps is None else gaps.capped(row, step)

    def _runs_of(self, recording: Recording, rows: Sequence[int]) -> Runs:
        for runs in self._runs:
            if len(runs.rows) == len(rows) and runs.fits(recording):
                return runs
        # keep the runs of the recorded job, and the latest for each number of rows
        first, *others = self._runs
        others = [runs for runs in others if len(runs.rows) != len(rows)]
        self._runs = [first, *others, Runs(recording, rows)]
        return self._runs[-1]

    def simulation(self, edits: Sequence[Edit], *, own_gaps: bool = False) -> Simulation:
        """Simulate the events after some edits, with usual gaps or their own."""
        edited = self.job.after(edits) if edits else self.job.recording
        if not own_gaps:
            edited = with_usual_gaps(edited)
        runs = self._runs_of(edited, self.rows)
        return Simulation(runs, edited, runs.simulate(map(edited.steps.__getitem__, self.rows)))

    def as_simulated(self, requests: Sequence[EditRequest]) -> Recording:
        """Make the recording of the edited job, with its simulated times."""
        return self.simulation(self.edits(requests), own_gaps=True).as_recording()
