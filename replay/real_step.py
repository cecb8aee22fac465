"""The job without its profiler: a replay of the recorded steps without the profiler's cost.

A profiler hardly slows a device, but it slows the host between the events that it records: each event costs
time, and a host that is slow itself pays more for it. So the cost is a share of the short stretches of host
time, those between two events that follow each other closely; a long stretch is mostly the job's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from analyzer.base.arrays import Float64, Int64, Mask
from analyzer.base.errors import AnalyzeError, UsageError
from analyzer.base.units import in_ms
from analyzer.model.graph.step_graph import LazySteps, Recording, StepGraph
from analyzer.reading import dialects
from analyzer.reading.dialects.step_parts import Operation
from dag_utils import LoadedSteps
from replay.answer import HOST_ERROR, mean_interval, without_outliers
from replay.runs import Runs, Simulation

#: A longer stretch of host time loses no more to the profiler than one of this length (ns). On the jobs of
#: docs/dev/accuracy.md with known step times, 10 and 40 µs give the same limits, and errors of 5 and 6 %
#: instead of 3 % in the median.
_SHORT_NS = 20_000
#: Halvings of the share of the cost for a step time that is told: to a thousandth of it.
_HALVINGS = 10
#: The mean step differs by so much between runs of a job whose device decides (a share, 95 %).
_PACE = 0.02
#: A step that is told differs from the recorded one by less than this factor: else the unit is another.
_FAR = 20
#: A step log beside a recording is called so.
_LOGS = (".jsonl", ".csv", ".tsv")
#: A change by a smaller share of the step does not count.
_ALIKE = 0.01


class RealStep(Struct, frozen=True):
    """The mean step without the profiler, from `low_ns` to `high_ns`, and the source of these times.

    All work takes `pace` times as long as recorded, where no share of the profiler's cost explains the step
    that is told.
    """

    recorded_ns: float
    low_ns: float
    mid_ns: float
    high_ns: float
    source: Literal["recorded", "unknown", "estimated", "told", "measured"]
    pace: float = 1.0

    @property
    def is_another(self) -> bool:
        """True if the step that is told differs from the recorded one by more than runs of one job do."""
        return abs(self.pace - 1) > 2 * _PACE

    @property
    def differs(self) -> bool:
        """True if the profiler changes the length of the step."""
        return abs(self.mid_ns - self.recorded_ns) > _ALIKE * self.recorded_ns


class RealJob(Struct, frozen=True):
    """A job without its profiler; the steps of its recordings are made on access."""

    step: RealStep
    loaded: LoadedSteps  # with the recording as the cost makes it most likely
    extremes: tuple[Recording, ...] = ()  # with the most and with the least cost; none if the cost is known


def real_job(loaded: LoadedSteps, told_ns: float | None = None) -> RealJob:
    """Remove the profiler's cost, so that the mean step is `told_ns`, else that of a step log, else likely.

    A step log beside the recording counts if the profiler explains the difference: the log of another run has
    other steps. UsageError for a `told_ns` that cannot be a step of this job.
    """
    if told_ns is None:
        for log_ns in _logged_ns(loaded):
            with contextlib.suppress(UsageError):
                job = _real_job(loaded, log_ns)
                if not job.step.is_another:
                    return replace(job, step=replace(job.step, source="measured"))
    return _real_job(loaded, told_ns)


def _logged_ns(loaded: LoadedSteps) -> Iterator[float]:
    """Yield the mean steps of step logs in the job's directory, if its profiler may slow the host."""
    system, root = dialects.named(loaded.files[0].dialect), loaded.job.root
    if not root.is_dir() or (system.profiler_cost is not None and not system.slows_host):
        return
    from analyzer.model.figures.job_figures import Wanted, load_figures
    from trace_utils import held_by

    for path in sorted(root.iterdir()):
        with contextlib.suppress(AnalyzeError):  # another file that is damaged says nothing of this job
            if path.suffix in _LOGS and path.is_file() and held_by([path]) == "steps":
                lengths = load_figures([path], Wanted(breakdown=True)).iteration_ns
                yield float(lengths.mean()) if len(lengths) else 0.0


def _real_job(loaded: LoadedSteps, told_ns: float | None) -> RealJob:
    recording = loaded.recording
    recorded_ns = mean_step_ns(recording)
    system = dialects.named(loaded.files[0].dialect)
    shares = system.profiler_cost
    if not recorded_ns or (told_ns is None and not system.slows_host):
        same = (recorded_ns,) * 4
        return RealJob(RealStep(*same, "unknown" if shares is None else "recorded"), loaded)
    replayed = _Replayed(recording)
    if told_ns is not None:
        if not 1 / _FAR < told_ns / recorded_ns < _FAR:
            raise UsageError(
                f"--real_step {told_ns / 1e6:g}: a recorded step takes {in_ms(recorded_ns)}; "
                "give the step time of the same job in milliseconds"
            )
        likely, pace = replayed.lasting(told_ns)
        step = RealStep(recorded_ns, told_ns, told_ns, told_ns, "told", pace)
        return RealJob(step, replace(loaded, recording=likely))
    least, probable, most = shares or (0.0, 0.0, 0.0)
    likely = replayed.without(probable)
    mid_ns, scatter_ns = mean_step_ns(likely), _scatter_ns(likely)
    step = RealStep(
        recorded_ns, recorded_ns - scatter_ns[0], mid_ns, recorded_ns + scatter_ns[1], "estimated"
    )
    if not step.differs:
        return RealJob(replace(step, mid_ns=recorded_ns), loaded)
    extremes = replayed.without(most), replayed.without(least)
    low_ns, high_ns = (
        mid_ns + sign * float(np.linalg.norm([mean_step_ns(extreme) - mid_ns, apart_ns]))
        for sign, extreme, apart_ns in zip((-1, 1), extremes, scatter_ns, strict=True)
    )
    step = replace(step, low_ns=low_ns, high_ns=high_ns)
    likely = replace(likely, cost_ns=(mid_ns - low_ns, high_ns - mid_ns))
    return RealJob(step, replace(loaded, recording=likely), extremes)


def kept(job: RealJob) -> RealJob:
    """Make the likely steps at once, and keep them as those of the recording are kept."""
    recording = job.loaded.recording
    if recording.recorded is None:
        return job
    steps = recording.recorded.with_steps(recording.steps).steps
    return replace(job, loaded=replace(job.loaded, recording=replace(recording, steps=steps)))


def mean_step_ns(recording: Recording) -> float:
    """Mean duration of the whole steps; 0 if none is whole."""
    return float(step_lengths(recording).mean())


def _scatter_ns(recording: Recording) -> tuple[float, float]:
    """Measure how much shorter and longer the mean step of another run may be (95 %)."""
    lengths = step_lengths(recording)
    usual = without_outliers(lengths)
    mean_ns, usual_ns = float(lengths.mean()), float(usual.mean())
    apart = [_PACE * mean_ns, 2 * HOST_ERROR * (mean_ns - usual_ns)]
    low, high = mean_interval(usual) or (usual_ns, usual_ns)
    return float(np.linalg.norm([*apart, usual_ns - low])), float(np.linalg.norm([*apart, high - usual_ns]))


def step_lengths(recording: Recording) -> Float64:
    """Durations of the whole steps (steps,), the mean over the owners."""
    return np.array([recording.bounds[row].mean_ns for row in recording.whole_steps])


class _Replayed:
    """Replays of a recording without a part of its profiler's cost."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._runs = Runs(recording, recording.every_whole_step)

    def without(self, share: float, pace: float = 1.0) -> Recording:
        """Replay the steps without a share of short stretches; `pace` multiplies what remains."""
        recording, runs = self._recording, self._runs
        rest, simulated = _without_cost(recording, share), frozenset(runs.rows)

        def edit(row: int) -> StepGraph:
            if row not in simulated:
                return recording.steps[row]
            step = rest(recording.steps[row])
            if pace == 1:
                return step
            work_ns, gap_ns, tail_ns = (
                np.rint(column * pace).astype(np.int64)
                for column in (step.work_ns, step.gap_ns, step.tail_ns)
            )
            return replace(step, work_ns=work_ns, gap_ns=gap_ns, tail_ns=tail_ns)

        edited = replace(recording, steps=LazySteps(recording.bounds, edit, most=1))
        schedule = runs.simulate(map(edit, runs.rows))
        return replace(Simulation(runs, edited, schedule).as_recording(), recorded=recording)

    def lasting(self, told_ns: float) -> tuple[Recording, float]:
        """Replay the steps so that their mean is `told_ns`: without cost, and at another pace if need be."""
        low, high = 0.0, 1.0
        for _ in range(_HALVINGS):
            share = (low + high) / 2
            is_long = mean_step_ns(self.without(share)) > told_ns
            low, high = (share, high) if is_long else (low, share)
        pace = told_ns / max(mean_step_ns(self.without(high)), 1.0)
        return self.without(high, pace), pace


def _is_slowed(operation: Operation) -> bool:
    """Recognise work of a host, which the profiler slows."""
    return operation.is_traced and not (operation.on_device or operation.is_communication)


def _without_cost(recording: Recording, share: float) -> Callable[[StepGraph], StepGraph]:
    """Make the edit that takes the profiler's `share` of short stretches, and its own work, from a step.

    Stretches are the host's work between two events and the gaps before events; those before a device's work
    are launches.
    """
    slowed, launched = recording.which(_is_slowed), recording.which(lambda op: op.on_device)
    is_profiler = recording.which(lambda op: op.is_of_profiler)

    def edit(step: StepGraph) -> StepGraph:
        of_host = slowed[step.operation]
        work_ns = np.where(is_profiler[step.operation], 0, _shorter(step.work_ns, of_host, share))
        gap_ns = _shorter(step.gap_ns, of_host | launched[step.operation], share)
        return replace(step, work_ns=work_ns, gap_ns=gap_ns)

    return edit


def _shorter(stretch_ns: Int64, chosen: Mask, share: float) -> Int64:
    cost_ns = np.rint(share * np.clip(stretch_ns, 0, _SHORT_NS)).astype(np.int64)
    return np.where(chosen, stretch_ns - cost_ns, stretch_ns)
