"""What the steps of a job spend their time on: per rank in numbers, and of all in a sentence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

import dialects
from arrays import Mask
from arrays.innermost import innermost
from arrays.median import FEWEST, longest_usual, median
from dialects import Role
from errors import counted
from figures.breakdown import Breakdown, breakdown
from formats.columns import Trace
from opname import without_arguments, without_parameters
from result import in_ms

_NAMED = 4  # outliers that a sentence names
_MOST_SLICES = 50_000  # of a trace of which all steps are looked at
_ALIKE = 1.05  # times as long as another rank: no difference worth a word
_LONGEST_NAME = 60  # characters
_LEAST_SHARE = 0.005  # of a step, for a kind to be named
_HARDLY = 0.05  # of a step: if ranks compute less, it may be that they do but it is not recorded
_LEAST_PAUSE = 0.01  # of a step, for what passes until the next to be named


class RankSummary(NamedTuple):
    """The steps of one rank, in nanoseconds: mean and median length, and means of what they were spent on."""

    rank: str
    outlier_steps: list[int]  # numbers of the steps that took far longer than the median
    steps: int
    mean_ns: float
    median_ns: float
    compute_ns: float
    comm_ns: float
    exposed_comm_ns: float
    idle_ns: float


def summaries(parts: Iterable[Breakdown]) -> list[RankSummary]:
    """Return a line for each rank, in the order of their first step."""
    keys = ("compute_ns", "comm_ns", "exposed_comm_ns", "idle_ns")
    found = []
    for rank, steps in _by_rank(parts).items():
        wall = np.array([step.wall_ns for step in steps])
        means = [float(np.mean([getattr(step, key) for step in steps])) for key in keys]
        middle = median(wall)
        far = [steps[row].step for row in np.flatnonzero(outliers(wall)).tolist()]
        numbers = [number for number in far if number is not None]
        found.append(RankSummary(rank, numbers, len(steps), float(wall.mean()), middle, *means))
    return found


def _by_rank(parts: Iterable[Breakdown]) -> dict[str, list[Breakdown]]:
    """Return the steps of each rank, ranks in the order of their first step."""
    of_rank: dict[str, list[Breakdown]] = {}
    for part in parts:
        of_rank.setdefault(part.rank, []).append(part)
    return of_rank


def outliers(lengths: NDArray[np.number[Any]]) -> Mask:
    """Return which of some steps, given their lengths (n,), took far longer than the median; none of few."""
    return lengths > longest_usual(lengths)


class MiddleSteps(NamedTuple):
    """What the steps in the middle of a rank's trace spent their time on, or all if these are few."""

    parts: Sequence[Breakdown]
    longest: tuple[str, float]  # the computation with most time of its own in the median step, and that time
    annotated: tuple[str, float]  # the same of annotations
    n_slices: int  # of the trace

    @property
    def are_all(self) -> bool:
        """Whether these are all steps of the trace."""
        return self.n_slices <= _MOST_SLICES


def middle_steps(trace: Trace, step_by: str | None = None) -> MiddleSteps:
    """Return what some steps of a rank spent their time on: so many that it takes little time.

    `step_by` as for `breakdown`.
    """
    parts = breakdown("", trace, step_by, most=_MOST_SLICES)
    longest = _longest_own(trace, _median_step(parts)) if parts else (("", 0.0), ("", 0.0))
    return MiddleSteps(parts, *longest, len(trace))


def where_time_goes(ranks: Mapping[str, MiddleSteps]) -> str:
    """Return one sentence: how long a step is, what ran in it, who computes longest, and what."""
    parts = [replace(part, rank=rank) for rank, own in ranks.items() for part in own.parts]
    if not parts:
        slices = counted(sum(own.n_slices for own in ranks.values()), "slice")
        return f"{slices} of {counted(len(ranks), 'rank')}; no step is marked in them."
    means = summaries(parts)
    most = max(means, key=lambda rank: rank.compute_ns)
    where, (annotation, its_ns) = max(
        ((rank, own.annotated) for rank, own in ranks.items()), key=lambda one: one[1][1]
    )
    # operators are hardly what the time goes on where annotations have more of it
    is_hardly = its_ns > most.compute_ns < _HARDLY * most.mean_ns
    shares = [f"{share:.0%} {kind}" for kind, share in _shares(parts, is_hardly) if share >= _LEAST_SHARE]
    sampled = "" if all(own.are_all for own in ranks.values()) else " in the middle"
    sentence = f"{_length(parts, means, sampled)}: {', '.join(shares)}"
    if is_hardly:
        on = f" on {where}" if len(ranks) > 1 else ""
        return f"{sentence}; the longest annotation is {annotation}, {in_ms(its_ns)} of its own time{on}."
    least = min(means, key=lambda rank: rank.compute_ns)
    if most.compute_ns > _ALIKE * least.compute_ns:
        shortest = f"{least.rank} shortest, {in_ms(least.compute_ns)}"
        sentence += f"; {most.rank} computes longest, {in_ms(most.compute_ns)} ({shortest})"
    elif most is not least:
        sentence += f"; ranks compute alike, {in_ms(least.compute_ns)} to {in_ms(most.compute_ns)}"
    name, own_ns = ranks[most.rank].longest
    if own_ns:
        if len(name) > _LONGEST_NAME:
            full = without_parameters(name)
            name = full if len(full) <= _LONGEST_NAME else without_arguments(full)[:_LONGEST_NAME]
        sentence += f"; the longest computation is {name}, {in_ms(own_ns)} of its own time"
    return sentence + "."


def exposed_and_outliers(parts: Sequence[Breakdown]) -> str:
    """Return one sentence: mean and median of the steps, communication that nothing hides, outliers."""
    ranks = summaries(parts)
    wall = [part.wall_ns for part in parts]
    exposed = float(np.mean([part.exposed_comm_ns for part in parts]))
    sentence = _length(parts, ranks, with_median=True)
    if any(part.comm_ns for part in parts):
        most = max(ranks, key=lambda rank: rank.exposed_comm_ns)
        where = f"; most on {most.rank}, {in_ms(most.exposed_comm_ns)}" if len(ranks) > 1 and exposed else ""
        share = f"{exposed / max(float(np.mean(wall)), 1.0):.0%}"
        sentence += f"; communication that nothing hides takes {in_ms(exposed)} of it ({share}{where})"
    else:
        sentence += "; no communication was recorded"
    known = {rank.rank: rank.outlier_steps for rank in ranks}
    longest: dict[int | None, Breakdown] = {}
    for part in sorted(parts, key=lambda part: -part.wall_ns):
        if part.step in known[part.rank]:
            longest.setdefault(part.step, part)
    if longest:
        named = list(longest.values())[:_NAMED]
        words = [f"step {part.step} ({in_ms(part.wall_ns)} on {part.rank})" for part in named]
        rest = [f"{len(longest) - len(named)} more"] if len(longest) > len(named) else []
        return f"{sentence}; far longer than the median: {', '.join([*words, *rest])}."
    enough = max(rank.steps for rank in ranks) >= FEWEST
    return f"{sentence}{'; no step is far longer than the median' if enough else ''}."


def _length(
    parts: Sequence[Breakdown], ranks: Sequence[RankSummary], where: str = "", *, with_median: bool = False
) -> str:
    wall = np.array([part.wall_ns for part in parts])
    of_ranks = f" on {counted(len(ranks), 'rank')}" if len(ranks) > 1 else ""
    if all(part.step is None for part in parts):
        return f"The recording takes {in_ms(float(wall.mean()))}{of_ranks}"
    steps = len({part.step for part in parts})
    middle = f", median {in_ms(median(wall))}" if with_median and steps > 1 else ""
    of_steps = f" (mean of {steps} steps{where}{of_ranks}{middle})" if steps > 1 else f"{where}{of_ranks}"
    pause_ns = _pause(parts)
    pause = f", and {in_ms(pause_ns)} pass before the next" if pause_ns >= _LEAST_PAUSE * wall.mean() else ""
    return f"A step takes {in_ms(float(wall.mean()))}{of_steps}{pause}"


def _pause(parts: Iterable[Breakdown]) -> float:
    """Return what passes on average between the end of a step and the begin of the one numbered next."""
    pauses = [
        after.start_ns - before.start_ns - before.wall_ns
        for steps in _by_rank(parts).values()
        for before, after in pairwise(steps)
        if before.step is not None and after.step == before.step + 1
    ]
    return float(np.mean(pauses)) if pauses else 0.0


def _shares(parts: Sequence[Breakdown], is_hardly: bool) -> list[tuple[str, float]]:
    """Return what ran, the largest share first, 1 together; `is_hardly` recorded is the computation."""
    wall = max(sum(part.wall_ns for part in parts), 1)
    compute = sum(part.compute_ns - part.overlap_ns for part in parts)
    comm = sum(part.exposed_comm_ns for part in parts)
    both, idle = sum(part.overlap_ns for part in parts), sum(part.idle_ns for part in parts)
    recorded = "hardly" if compute + both else "not"
    sums = {
        "computation alone": compute,
        "communication alone": comm,
        "both at once": both,
        "copies": wall - compute - comm - both - idle,
        "idle"
        if compute + both and not is_hardly
        else f"with no communication (computation is {recorded} recorded)": idle,
    }
    return sorted(((kind, ns / wall) for kind, ns in sums.items()), key=lambda pair: -pair[1])


def _median_step(parts: Sequence[Breakdown]) -> Breakdown:
    steps = sorted(parts, key=lambda part: part.wall_ns)
    return steps[(len(steps) - 1) // 2]


def _longest_own(trace: Trace, step: Breakdown) -> tuple[tuple[str, float], tuple[str, float]]:
    """Return the computation with most time in a step, what lies inside it left out, and that time.

    What lies inside and only frames it, as Python's functions do, is its own. Next, the same of annotations.
    """
    end_ns = step.start_ns + step.wall_ns
    part = trace.select((trace.ts_ns < end_ns) & (trace.end_ns > step.start_ns))
    kinds = dialects.of(trace).roles(part)
    annotates = dialects.of(trace).annotations(part) & (kinds == Role.FRAME)
    chosen = annotates | ~np.isin(kinds, (Role.FRAME, Role.HOST, Role.IGNORED))
    part, computes = part.select(chosen), (kinds == Role.COMPUTE)[chosen]
    row, begin, end = innermost(part.ts_ns, part.end_ns, part.track_id)
    inside = np.minimum(end, end_ns) - np.maximum(begin, step.start_ns)
    own = np.bincount(row, np.maximum(inside, 0), len(part))
    return _largest(part, own * computes), _largest(part, own * annotates[chosen])


def _largest(part: Trace, own_ns: NDArray[np.float64]) -> tuple[str, float]:
    by_name = np.bincount(part.name_id, own_ns, len(part.names))
    longest = int(by_name.argmax())
    return part.names[longest], float(by_name[longest])
