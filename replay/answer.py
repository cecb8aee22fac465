"""What a replay says: iteration times beside the recorded ones, how sure they are, the critical path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from errors import TraceError, UsageError
from replay.model import Model, Replay, StepModel, path_of
from replay.model import replay as run_steps

#: Categories of what is on the path but in no event: a pause, and computation that was not traced.
GAP = "gap"
UNTRACED = "untraced"

#: Events that a replay holds at most: a few gigabytes.
MOST_EVENTS = 20_000_000

_DRAWS = 2000
#: So many steps in a row say as much as one alone: load from outside lasts longer than a step. (Between
#: successive steps of long recordings the correlation is 0.4, by which a mean varies as if of half as many.)
_ALIKE = 2
_SEED = 20210117

Float = NDArray[np.float64]


class PathItem(NamedTuple):
    """One stretch of the critical path."""

    owner: str
    name: str
    cat: str
    dur_ns: int


@dataclass(frozen=True, slots=True)
class Answer:
    """A replay of N steps and what it is to be compared with.

    `predicted_ns` and `measured_ns` (owners,) are means over the steps; measured is NaN where no whole
    step of the owner is recorded. `path` are the plan's operations on the critical path.
    """

    result: Replay
    path: Sequence[int]
    predicted_ns: Float
    measured_ns: Float
    interval_ns: tuple[float, float] | None

    @property
    def iteration_ns(self) -> float:
        """The predicted iteration time of the job: the mean over its owners, which step together."""
        return float(self.predicted_ns.mean())

    @property
    def recorded_ns(self) -> float | None:
        """The recorded iteration time of the job; None where no step is whole."""
        known = self.measured_ns[~np.isnan(self.measured_ns)]
        return float(known.mean()) if len(known) else None

    @property
    def error(self) -> float | None:
        """(predicted − recorded) / recorded."""
        return None if not self.recorded_ns else (self.iteration_ns - self.recorded_ns) / self.recorded_ns


def answer(model: Model, n_steps: int | None = None) -> Answer:
    """Replay `n_steps` steps (None: those that are recorded whole); recorded steps come round again.

    Raises
    ------
    TraceError
        No operation takes any time.
    UsageError
        More steps than fit into memory.
    """
    rows = whole_steps(model)
    wanted = len(rows) if n_steps is None else n_steps
    _check_size(model, rows, wanted)
    result = run_steps(model, [rows[i % len(rows)] for i in range(wanted)])
    per_step = result.iteration_ns.mean(axis=1)
    if not per_step.any():
        raise TraceError("the recorded operations have no duration: nothing to replay")
    recorded = measured_ns(model)[result.rows]
    counts = ~np.isnan(recorded) | np.isnan(recorded).all(axis=0)
    return Answer(
        result=result,
        path=path_of(result),
        predicted_ns=_known_mean(np.where(counts, result.iteration_ns, np.nan)),
        measured_ns=_known_mean(recorded),
        interval_ns=mean_interval(per_step[: len(rows)]),
    )


def _check_size(model: Model, rows: Sequence[int], wanted: int) -> None:
    per_step = sum(len(model.recording.steps[row]) for row in rows) / len(rows)
    if wanted * per_step > MOST_EVENTS:
        most = max(int(MOST_EVENTS / per_step), 1)
        raise UsageError(f"--step_num {wanted}: that many steps do not fit into memory; up to {most:,} do")


def whole_steps(model: Model) -> list[int]:
    """Return the recorded steps whose duration is known for some owner; all where none is."""
    whole = [row for row, step in enumerate(model.recording.steps) if (step.iteration_ns > 0).any()]
    return whole or list(range(len(model.recording.steps)))


def measured_ns(model: Model) -> Float:
    """Return each recorded step's duration for each owner (steps, owners), NaN where unknown."""
    times = np.array([step.iteration_ns for step in model.recording.steps], np.float64)
    return np.where(times > 0, times, np.nan)


def _known_mean(times: Float) -> Float:
    known = ~np.isnan(times)
    total = np.where(known, times, 0.0).sum(axis=0)
    return np.where(known.any(axis=0), total / np.maximum(known.sum(axis=0), 1), np.nan)


def mean_interval(times: Sequence[float] | Float, more: int | None = None) -> tuple[float, float] | None:
    """Return where the mean of `more` further steps (None: as many again) lies, 19 times in 20.

    The n steps are resampled, once for what the recorded mean could have been and once for the further
    steps; in logarithms, because steps are sometimes far too long and never far too short. With few steps
    their spread is underestimated; it is widened as Student's t is wider than the normal distribution.
    Successive steps are taken to be alike (`_ALIKE`). None for fewer than two steps: nothing tells how
    much they vary.
    """
    from scipy.special import ndtri, stdtrit

    values = np.log(np.maximum(np.asarray(times, np.float64), 1.0))
    n = len(values)
    if n < 2:
        return None
    draw = np.random.default_rng(_SEED)
    past = values[draw.integers(0, n, (_DRAWS, -(-n // _ALIKE)))].mean(axis=1)
    further = values[draw.integers(0, n, (_DRAWS, -(-(more or n) // _ALIKE)))].mean(axis=1)
    wider = float(stdtrit(n - 1, 0.975) / ndtri(0.975)) * (n / (n - 1)) ** 0.5
    low, high = np.percentile(further - past, [2.5, 97.5]) * wider
    mean = float(np.mean(times))
    return mean * float(np.exp(low)), mean * float(np.exp(high))


def change_interval(before: Float, after: Float) -> tuple[float, float] | None:
    """Return where the relative change of the mean lies, 19 times in 20, from paired steps (n,)."""
    from scipy.special import ndtri, stdtrit

    n = len(before)
    if n < 2:
        return None
    chosen = np.random.default_rng(_SEED).integers(0, n, (_DRAWS, n))
    changes = after[chosen].mean(axis=1) / before[chosen].mean(axis=1) - 1
    mean = float(after.mean() / before.mean() - 1)
    wider = float(stdtrit(n - 1, 0.975) / ndtri(0.975)) * (n / (n - 1)) ** 0.5
    low, high = mean + (np.percentile(changes, [2.5, 97.5]) - mean) * wider
    return float(low), float(high)


def leave_one_out(model: Model) -> Float:
    """Return the error of each step (k,) replayed with the usual gaps, those of the other steps.

    A replay with a step's own gaps and durations gives its time back almost by construction. With the
    gaps that recur (the median of each operation's in the other steps) it says how much they explain.
    """
    if len(model.steps) < 2:
        return np.empty(0)
    table = _gap_table(model)
    recorded = measured_ns(model)
    errors = []
    for row in whole_steps(model):
        others = np.delete(np.arange(len(model.steps)), row)
        steps = list(model.steps)
        steps[row] = _with_gaps(model, row, _nanmedian(table[others]))
        times = run_steps(replace(model, steps=steps), [row]).iteration_ns[0]
        errors.append((times - recorded[row]) / recorded[row])
    flat: Float = np.concatenate(errors)
    known: Float = flat[~np.isnan(flat)]
    return known


def _gap_table(model: Model) -> Float:
    """Return the gap before each operation in each step (steps, operations), NaN where it did not occur."""
    table = np.full((len(model.steps), len(model.recording.operations)), np.nan)
    for row, (step, recorded) in enumerate(zip(model.steps, model.recording.steps, strict=True)):
        table[row, recorded.operation] = step.gap_ns
    return table


def _nanmedian(table: Float) -> Float:
    occurs = ~np.isnan(table).all(axis=0)
    median: Float = np.full(table.shape[1], np.nan)
    median[occurs] = np.nanmedian(table[:, occurs], axis=0)
    return median


def _with_gaps(model: Model, row: int, gaps: Float) -> StepModel:
    step = model.steps[row]
    usual = gaps[model.recording.steps[row].operation]
    return replace(step, gap_ns=np.where(np.isnan(usual), step.gap_ns, usual).astype(np.int64))


# ---- the critical path


def typical_position(found: Answer) -> int:
    """Return the position of the step that is nearest to the mean, in duration and in its path's length.

    Where owners begin their steps at different moments, the path may cross from one's step into the
    next one of another.
    """
    per_step = found.result.iteration_ns.mean(axis=1)
    along_path = np.array([sum(shares.values()) for shares in path_by_category(found)])
    return int(np.argmin(np.abs(per_step - per_step.mean()) + np.abs(along_path - per_step.mean())))


def path_items(found: Answer, *, parts: bool) -> list[list[PathItem]]:
    """Return the stretches of the critical path in the step at each position, in time order.

    Without `parts`, the stages of a communication that follow each other on the path are one stretch.
    """
    result = found.result
    items: list[list[PathItem]] = [[] for _ in result.rows]
    positions = np.searchsorted(result.begin_op[:, 0], found.path, side="right") - 1
    for op, position in zip(found.path, positions.tolist(), strict=True):
        item = _stretch(result, position, op, parts)
        step = items[position]
        if step and step[-1][:3] == item[:3]:
            step[-1] = item._replace(dur_ns=step[-1].dur_ns + item.dur_ns)
        elif item.dur_ns > 0:
            step.append(item)
    return items


def path_by_category(found: Answer) -> list[dict[str, float]]:
    """Return how much of each step's critical path each category has, nanoseconds; largest first."""
    shares = []
    for step in path_items(found, parts=True):
        total: dict[str, float] = {}
        for item in step:
            total[item.cat] = total.get(item.cat, 0.0) + item.dur_ns
        shares.append(dict(sorted(total.items(), key=lambda share: -share[1])))
    return shares


def path_shares(found: Answer) -> dict[str, float]:
    """Return how much of a step's critical path each category has on average, nanoseconds; largest first."""
    total: dict[str, float] = {}
    for step in path_by_category(found):
        for cat, ns in step.items():
            total[cat] = total.get(cat, 0.0) + ns / len(found.result.rows)
    return dict(sorted(total.items(), key=lambda share: -share[1]))


def _stretch(result: Replay, position: int, op: int, parts: bool) -> PathItem:
    recording = result.model.recording
    owners = len(recording.owners)
    gap, dur = int(result.plan.gap_ns[op]), int(result.plan.dur_ns[op])
    local = op - int(result.begin_op[position, 0])
    if local < 2 * owners:
        owner = local % owners
        is_hidden = any(one.owner == owner and not one.is_traced for one in recording.operations)
        cat = UNTRACED if is_hidden else GAP
        return PathItem(recording.owners[owner], "before the next step", cat, gap + dur)
    event, is_body = divmod(local - 2 * owners, 2)
    operation = recording.operations[int(recording.steps[result.rows[position]].operation[event])]
    prefix, name = recording.owners[operation.owner], operation.label if parts else operation.main
    if not is_body:
        return PathItem(prefix, f"before {name}", GAP, gap)
    return PathItem(prefix, name, operation.phase or operation.cat, dur)
