"""What a replay says: iteration times beside the recorded ones, what an edit changes, how sure that is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from math import hypot, log
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from arrays import Float64, Int64
from arrays.median import longest_usual
from arrays.numbering import unique
from dag.step_graph import Recording
from errors import TraceError, UsageError
from replay.occurrences import Middles, slots, with_usual_gaps
from replay.runs import replayed_ns
from replay.simulation import Replay
from replay.simulation import replay as run_steps
from replay.uncertainty import EXTRAPOLATED, MODEL_ERROR, mean_interval, paired_change, without_outliers

#: Events that a replay holds at most: a few gigabytes.
MOST_EVENTS = 20_000_000
#: Steps that `leave_one_out` replays at most.
_MOST_LEFT_OUT = 20


class Answer(Struct, frozen=True, dict=True):
    """A replay of some steps (`rows`) of m owners, and what was recorded of them.

    `replayed_ns` (steps, m) is how long each step takes. `predicted_ns` and `measured_ns` (m,) are means
    over the steps; measured is NaN where no whole step of the owner is recorded.
    """

    recording: Recording
    rows: Sequence[int]
    replayed_ns: Int64
    predicted_ns: Float64
    measured_ns: Float64

    @property
    def iteration_ns(self) -> float:
        """The predicted iteration time of the job: the mean over its owners, which step together."""
        return float(self.predicted_ns.mean())

    @property
    def recorded_ns(self) -> float | None:
        """The recorded iteration time of the job; None where no step is whole."""
        known = self.measured_ns[~np.isnan(self.measured_ns)]
        return float(known.mean()) if len(known) else None

    @cached_property
    def steps_ns(self) -> Float64:
        """How long each step took (steps,), the mean over the owners; as replayed where none is whole."""
        known = self.recorded_ns is not None
        return _known_mean((measured_ns(self.recording)[self.rows] if known else self.replayed_ns).T)

    @property
    def error(self) -> float | None:
        """(predicted − recorded) / recorded."""
        return None if not self.recorded_ns else (self.iteration_ns - self.recorded_ns) / self.recorded_ns

    @cached_property
    def interval_ns(self) -> tuple[float, float] | None:
        """Where the mean of as many further steps lies, 19 times in 20; None for too few steps."""
        return mean_interval(_distinct(self.rows, self.replayed_ns))


def answer(recording: Recording, n_steps: int | None = None) -> Answer:
    """Replay `n_steps` steps (None: those that are recorded whole); recorded steps come round again.

    Raises
    ------
    TraceError
        No operation takes any time.
    UsageError
        More steps than fit into memory.
    """
    rows = _rows(recording, n_steps)
    replayed = replayed_ns(recording, rows)
    if not replayed.any():
        raise TraceError("the recorded operations have no duration: nothing to replay")
    recorded = measured_ns(recording)[rows]
    counts = ~np.isnan(recorded) | np.isnan(recorded).all(axis=0)
    predicted = _known_mean(np.where(counts, replayed, np.nan))
    return Answer(recording, rows, replayed, predicted, _known_mean(recorded))


def _rows(recording: Recording, n_steps: int | None) -> list[int]:
    """Return the recorded steps that are replayed."""
    rows = recording.whole_steps
    wanted = len(rows) if n_steps is None else n_steps
    per_step = sum(len(recording.steps[row]) for row in rows) / len(rows)
    if wanted * per_step > MOST_EVENTS:
        most = max(int(MOST_EVENTS / per_step), 1)
        raise UsageError(f"--step_num {wanted}: that many steps do not fit into memory; up to {most:,} do")
    return [rows[i % len(rows)] for i in range(wanted)]


def measured_ns(recording: Recording) -> Float64:
    """Return each recorded step's duration for each owner (steps, m), NaN where unknown."""
    times = np.array([one.iteration_ns for one in recording.bounds], np.float64)
    return np.where(times > 0, times, np.nan)


def _known_mean(times: Float64) -> Float64:
    known = ~np.isnan(times)
    total = np.where(known, times, 0.0).sum(axis=0)
    return np.where(known.any(axis=0), total / np.maximum(known.sum(axis=0), 1), np.nan)


def _distinct(rows: Sequence[int], iteration_ns: Int64) -> Float64:
    """Return how long each recorded step took that was replayed, once each: they come round in order."""
    times: Float64 = iteration_ns.mean(axis=1)[: len(set(rows))]
    return times


# ---- what an edit changes


class Lengths(NamedTuple):
    """How long (positions, m) each owner takes for the recorded steps `rows`; a `Replay` tells more."""

    rows: Sequence[int]
    iteration_ns: Int64


class Forecast(Struct, frozen=True, dict=True):
    """An edited job beside the recorded one.

    Both are simulated with the usual gaps; the recorded time changes in the ratio of the two. Of all three a
    step far longer than the others counts as the longest usual one, but for what the edit itself takes from
    it or adds to it: that is the job's, whatever the rest is. `bounds` are the edited job as it may be as
    well, where the recording does not tell all that the edit must know.
    """

    name: str
    recorded: Answer
    before: Lengths | Replay
    after: Lengths | Replay
    bounds: Sequence[Lengths | Replay] = ()

    @cached_property
    def ratio(self) -> float:
        """How much longer the edited job takes."""
        before, after = self._counted
        return float(after.mean() / before.mean())

    @cached_property
    def before_ns(self) -> float:
        """The iteration time of the job as it is: the mean, but for what the edit leaves of outliers."""
        recorded, steps = self.recorded, self.recorded.steps_ns
        counted = _without_alike(steps, steps * self._alike[0])
        return (recorded.recorded_ns or recorded.iteration_ns) * float(counted.mean() / steps.mean())

    @property
    def after_ns(self) -> float:
        """The iteration time of the edited job."""
        return self.before_ns * self.ratio

    @cached_property
    def interval_ns(self) -> tuple[float, float] | None:
        """Where the mean step of the edited job will lie, 19 times in 20; None for too few steps."""
        steps = _distinct(self.after.rows, self.after.iteration_ns)
        scale = self.after_ns / max(float(steps.mean()), 1.0)
        return mean_interval(steps * scale, model_error=self.model_error)

    @property
    def model_error(self) -> float:
        """What the edited job may be wrong by where nothing varies: the standard deviation of its logarithm.

        It grows with the effect of the edit, and with how far the `bounds` are apart.
        """
        after = _usual_ns(self.after)
        apart = [abs(log(_usual_ns(one) / after)) for one in self.bounds]
        return hypot(MODEL_ERROR, EXTRAPOLATED * log(self.ratio), max(apart, default=0.0) / 2)

    @cached_property
    def paired(self) -> tuple[float, float] | None:
        """The change over these recorded steps, each compared with itself; None for too few steps."""
        n_distinct = len(set(self.after.rows))
        return paired_change(*(steps[:n_distinct] for steps in self._counted))

    @cached_property
    def _alike(self) -> tuple[Float64, Float64]:
        """What share of each step (steps,) the edit leaves alone, or changes as it changes most steps.

        Of a step before the edit: all but what the edit takes from it and not from most others; of one after
        it: all but what it adds to it and not to most others.
        """
        before, after = (np.maximum(_steps_ns(one), 1.0) for one in (self.before, self.after))
        usual = float(np.median(after / before))
        return (
            np.minimum(after / (min(usual, 1.0) * before), 1.0),
            np.minimum(max(usual, 1.0) * before / after, 1.0),
        )

    @cached_property
    def _counted(self) -> tuple[Float64, Float64]:
        """How long each step (steps,) counts, simulated before and after the edit."""
        before, after = (
            _without_alike(steps, steps * share)
            for steps, share in zip(map(_steps_ns, (self.before, self.after)), self._alike, strict=True)
        )
        return before, after


class WhatIf(Forecast, frozen=True, dict=True):
    """A forecast that knows when every operation ran."""

    before: Replay
    after: Replay


def _steps_ns(simulated: Lengths | Replay) -> Float64:
    """Return how long each step takes (steps,), the mean over the owners."""
    steps: Float64 = simulated.iteration_ns.mean(axis=1)
    return steps


def _usual_ns(simulated: Lengths | Replay) -> float:
    """Return the mean step, without outliers."""
    return float(without_outliers(_steps_ns(simulated)).mean())


def _without_alike(steps: Float64, alike: Float64) -> Float64:
    """Return how long steps (n,) took, their part `alike` (n,) at most as long as the longest usual step."""
    return steps - np.maximum(alike - longest_usual(steps), 0.0)


class Asked(NamedTuple):
    """An edit by its name, and what it may be as well (`WhatIf.bounds`)."""

    name: str
    edit: Callable[[Recording], Recording]
    bounds: Sequence[Callable[[Recording], Recording]] = ()


def what_if(
    recording: Recording,
    edits: Sequence[Asked | tuple[str, Callable[[Recording], Recording]]],
    n_steps: int | None = None,
) -> list[WhatIf]:
    """Return what each of the named `edits` makes of the job."""
    recorded = answer(recording, n_steps)
    rows = recorded.rows
    before = run_steps(with_usual_gaps(recording), rows)

    def after(edit: Callable[[Recording], Recording]) -> Replay:
        return run_steps(with_usual_gaps(edit(recording)), rows)

    return [
        WhatIf(one.name, recorded, before, after(one.edit), [after(bound) for bound in one.bounds])
        for one in (Asked(*edit) for edit in edits)
    ]


def forecasts(recording: Recording, edits: Iterable[Asked], n_steps: int | None = None) -> Iterator[Forecast]:
    """Yield the answers of `what_if`, without when each operation ran: sooner, and in less memory."""
    recorded = answer(recording, n_steps)

    def after(edit: Callable[[Recording], Recording]) -> Lengths:
        edited = with_usual_gaps(edit(recording))
        return Lengths(recorded.rows, replayed_ns(edited, recorded.rows))

    before = after(lambda one: one)
    for one in edits:
        yield Forecast(one.name, recorded, before, after(one.edit), [after(bound) for bound in one.bounds])


# ---- how much the gaps that recur explain


def with_gaps_of_others(recording: Recording) -> dict[int, Float64]:
    """Return how long whole steps, by row, take for each owner (m,) with the usual gaps of the others.

    With its own gaps and work a replay gives a step's time back by construction. With the gaps that
    recur (the median of each event's in the other steps) it shows how much they explain. Of many steps
    some are taken; of a single one nothing is known.
    """
    whole = recording.whole_steps
    if len(recording.steps) < 2:
        return {}
    rows = [whole[i] for i in unique(np.linspace(0, len(whole) - 1, _MOST_LEFT_OUT).astype(int)).tolist()]
    number = slots(recording.steps)
    middles = Middles("gap_ns", recording.steps, number)
    times = {}
    for row in rows:
        step = recording.steps[row]
        gaps = middles.medians_without(number[row], step.gap_ns)
        edited = replace(step, gap_ns=np.where(gaps < 0, step.gap_ns, gaps))
        times[row] = replayed_ns(replace(recording, steps=[edited]), [0])[0].astype(np.float64)
    return times


def leave_one_out(recording: Recording, times: Mapping[int, Float64]) -> Float64:
    """Return the errors (k,) of the `times` that steps take with the gaps of the others."""
    recorded = measured_ns(recording)
    errors = np.concatenate([(ns - recorded[row]) / recorded[row] for row, ns in times.items()] or [[]])
    known: Float64 = errors[~np.isnan(errors)]
    return known
