"""First sentences of statistics and breakdown: how long a step takes, and where its time goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from arrays import Int64
from arrays.median import FEWEST, median
from errors import counted, listed
from figures.durations import Stat
from figures.rank_figures import RankFigures
from figures.time_by_role import Breakdown, Breakdowns, RankSummary, outliers, shares, summaries
from function_names import brief, without_numbers
from result import in_ms, in_percent

_NAMED = 4  # outliers, or groups of work, that a sentence names
_ALIKE = 1.05  # times as long as another rank: a difference that is not worth a word
_LEAST_SHARE = 0.005  # of a step, for a kind of work to be named: what rounds to 1 %
_HARDLY = 0.05  # of a step: if ranks compute less, most of what they compute may not be recorded


def where_time_goes(ranks: Sequence[RankFigures]) -> str:
    """Return one sentence: how long a step is, what ran in it, which rank computes longest, and what."""
    parts = _of_all_ranks([rank.in_the_middle for rank in ranks if len(rank.breakdown)])
    if not parts:
        slices = counted(sum(rank.n_slices for rank in ranks), "slice")
        return f"{slices} of {counted(len(ranks), 'rank')}; no step is marked in them."
    means = summaries(parts)
    most = max(means, key=lambda rank: rank.compute_ns)
    annotated = max(ranks, key=lambda rank: rank.annotated[1])
    annotation, its_ns = annotated.annotated
    # operators are hardly what the time goes to where annotations have more of it
    is_hardly = its_ns > most.compute_ns < _HARDLY * most.mean_ns
    kinds = [
        f"{in_percent(share)} {kind}" for kind, share in _kinds(parts, is_hardly) if share >= _LEAST_SHARE
    ]
    sampled = " in the middle" if any(rank.is_sampled for rank in ranks) else ""
    sentence = _length(parts, means, sampled) + (f": {', '.join(kinds)}" if kinds else "")
    if is_hardly:
        on = f" on {annotated.name}" if len(ranks) > 1 else ""
        return f"{sentence}; the longest annotation is {annotation}, {in_ms(its_ns)} of its own time{on}."
    least = min(means, key=lambda rank: rank.compute_ns)
    if most.compute_ns > _ALIKE * least.compute_ns:
        shortest = f"{least.rank} shortest, {in_ms(least.compute_ns)}"
        sentence += f"; {most.rank} computes longest, {in_ms(most.compute_ns)} ({shortest})"
    elif most is not least:
        sentence += f"; ranks compute alike, {in_ms(least.compute_ns)} to {in_ms(most.compute_ns)}"
    name, own_ns = next(rank.longest for rank in ranks if rank.name == most.rank)
    if own_ns:
        sentence += f"; the longest computation is {brief(name)}, {in_ms(own_ns)} of its own time"
    return sentence + "."


def whose_time(stats: Sequence[Stat], n_ranks: int) -> str:
    """Return one sentence: how long devices work in all, and what most of that belongs to."""
    total: Counter[str] = Counter()
    for stat in stats:
        total[without_numbers(stat.name)] += stat.total_ns
    whole = max(sum(total.values()), 1)
    ranked = [(name, ns / whole) for name, ns in total.most_common()]
    known = [f"{in_percent(share)} {brief(name)}" for name, share in ranked if not name.startswith("(")]
    unknown = [f"{in_percent(share)} {name.strip('()')}" for name, share in ranked if name.startswith("(")]
    most = [f"{', '.join(known[:_NAMED])}"] if known else []
    where = f" of {n_ranks} ranks" if n_ranks > 1 else ""
    return f"The work on devices{where} takes {in_ms(whole)} in all: {'; '.join([*most, *unknown])}."


def exposed_and_outliers(parts: Sequence[Breakdowns], warm_up: Sequence[int] = ()) -> str:
    """Return one sentence: mean and median of the steps, exposed communication, outliers.

    It names the steps of the `warm_up`, which are not in `parts`.
    """
    parts = _of_all_ranks(parts)
    ranks = summaries(parts)
    mean_ns = _mean([part.wall_ns for part in parts])
    exposed = _mean([part.exposed_comm_ns for part in parts])
    sentence = _length(parts, ranks, with_median=True)
    if any(part.comm_ns.any() for part in parts):
        most = max(ranks, key=lambda rank: rank.exposed_comm_ns)
        where = f"; most on {most.rank}, {in_ms(most.exposed_comm_ns)}" if len(ranks) > 1 and exposed else ""
        share = in_percent(exposed / max(mean_ns, 1.0))
        sentence += f"; exposed communication takes {in_ms(exposed)} of it ({share}{where})"
    else:
        sentence += "; no communication was recorded"
    if warm_up:
        sentence += f"; step {listed(list(map(str, warm_up)))}, the warm-up, left out"
    far = [row for part in parts for row in part.at(outliers(part.wall_ns)).rows() if row.step is not None]
    longest: dict[int | None, Breakdown] = {}
    for row in sorted(far, key=lambda row: -row.wall_ns):
        longest.setdefault(row.step, row)
    if longest:
        words = [f"step {part.step} ({in_ms(part.wall_ns)} on {part.rank})" for part in longest.values()]
        return f"{sentence}; far longer than the median: {listed(words, _NAMED)}."
    enough = max(rank.steps for rank in ranks) >= FEWEST
    return f"{sentence}{'; no step is far longer than the median' if enough else ''}."


def _length(
    parts: Sequence[Breakdowns], ranks: Sequence[RankSummary], where: str = "", *, with_median: bool = False
) -> str:
    mean_ns = _mean([part.wall_ns for part in parts])
    of_ranks = f" on {counted(len(ranks), 'rank')}" if len(ranks) > 1 else ""
    if all(step is None for part in parts for step in part.step):
        return f"The recording takes {in_ms(mean_ns)}{of_ranks}"
    labels = [-1 if step is None else step for part in parts for step in part.step]
    _, of_label, n = np.unique(labels, return_inverse=True, return_counts=True)
    steps = len(n)
    middle = median(np.bincount(of_label, np.concatenate([part.wall_ns for part in parts])) / n)
    half = f", median {in_ms(middle)}" if with_median and steps > 1 else ""
    of_steps = f" (mean of {steps} steps{where}{of_ranks}{half})" if steps > 1 else f"{where}{of_ranks}"
    return f"A step takes {in_ms(mean_ns)}{of_steps}"


def _of_all_ranks(parts: Sequence[Breakdowns]) -> Sequence[Breakdowns]:
    """Return the steps that all ranks with steps have, of which other options speak; all if none is."""
    known = [frozenset(part.step) for part in parts if len(part)]
    common = frozenset.intersection(*known) if known else frozenset()
    if not common or all(one == common for one in known):
        return parts
    return [part.only(common) for part in parts]


def _mean(columns: Sequence[Int64]) -> float:
    """Return the mean over the steps of all ranks."""
    return float(np.concatenate(columns).mean())


def _kinds(parts: Sequence[Breakdowns], is_hardly: bool) -> list[tuple[str, float]]:
    """Return kinds of work and their shares, largest first; `is_hardly`: computation is hardly recorded."""
    of = shares(parts)
    has_computation = of[0] + of[2] > 0
    recorded = "hardly" if has_computation else "not"
    idle = "idle" if has_computation and not is_hardly else "with no communication "
    idle += "" if idle == "idle" else f"(computation is {recorded} recorded)"
    names = ("computation alone", "communication alone", "both at once", "copies", idle)
    return sorted(zip(names, of, strict=True), key=lambda pair: -pair[1])
