"""The charts of the statistics: what takes the time of a step, or where no step is marked what takes long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

import dialects
from errors import TraceError
from figures.durations import CategoryStat, Stats, longest_first
from figures.job_figures import JobFigures
from figures.operations_by_step import placed
from options.step_charts import MOST_BARS, MOST_STRIPS, rank_map
from result import Bars, Chart

_MOST_CATS = 64
_LEAST_SEEN = 0.003  # of the longest bar: less is not seen
_IDLE, _OTHERS = "nothing recorded", "others"


def operation_charts(job: JobFigures, stats: Stats, cats: Sequence[CategoryStat]) -> list[Chart]:
    """Return charts of a step's time; where no step is marked, of the longest operations."""
    return _of_a_step(job) or _charts(stats, cats)


def _of_a_step(job: JobFigures) -> list[Chart]:
    """Return the operations of a step by their time, each instant counted once."""
    if not any(rank.steps.whole for rank in job.ranks) or any(rank.operations is None for rank in job.ranks):
        return []
    try:
        ops, places = job.operations(tell_workers=len(job.workers) > 1)
    except TraceError:  # too many operations that hardly ever occur
        return []
    ms = ops.spent_ns.mean(0) / 1e6
    system = dialects.named(job.dialects[0])
    cats = [system.category(key.name, key.cat) or "(none)" for key in ops.keys]
    is_comm = ops.is_comm[:-1].tolist()
    mixed = {cat for cat, moves in zip(cats, is_comm, strict=True) if not moves}
    cats = ["communication" if moves and c in mixed else c for c, moves in zip(cats, is_comm, strict=True)]
    cats.append(_IDLE)
    total: Counter[str] = Counter()
    for cat, own_ms in zip(cats, ms.tolist(), strict=True):
        total[cat] += own_ms
    longest = [cat for cat, _ in total.most_common()]
    kept = longest if len(longest) <= _MOST_CATS else [*longest[: _MOST_CATS - 1], _OTHERS]
    cats = [cat if cat in kept else _OTHERS for cat in cats]
    number = {cat: i for i, cat in enumerate(kept)}
    of = np.array([number[cat] for cat in cats])
    largest = np.argsort(-ms, kind="stable")[:MOST_BARS]
    largest = largest[ms[largest] > _LEAST_SEEN * ms.max()].tolist()
    names = [ops.names[i] for i in largest]
    bars = _by_colour([(cats[i], float(ms[i])) for i in largest])
    known = [(rank, at) for rank, at in zip(job.ranks, places, strict=True) if rank.steps.whole]
    means = [
        placed(rank.operations.spent_ns, at, len(ops.keys)).mean(0) for rank, at in known if rank.operations
    ]
    by_rank = np.array([np.bincount(of, mean / 1e6, len(number)) for mean in means])
    ranks = [rank.prefix or "all" for rank, _ in known]
    title = "What takes the time of a step"
    parts: Chart = rank_map(title, ranks, list(number), by_rank, "category")
    if len(ranks) <= MOST_STRIPS:
        series = {cat: by_rank[:, i].tolist() for cat, i in number.items() if by_rank[:, i].any()}
        parts = Bars(f"{title}, by category and rank", "ms of a step", "", ranks, series, True, True)
    each = "ms of a step, each instant counted once"
    return [Bars(f"{title}, by operation", each, "", names, bars, True, True), parts]


def _charts(stats: Stats, cats: Sequence[CategoryStat]) -> list[Chart]:
    """Return the longest operations, where no steps are marked."""
    longest = longest_first(stats)[:MOST_BARS]
    names = [stat.name for stat in longest]
    averages = _by_colour([(stat.cat, stat.mean_ns / 1e6) for stat in longest])
    shown, title = cats, "Time per category"
    if len(cats) > _MOST_CATS:
        shown = sorted(cats, key=lambda cat: -cat.total_ns)[:_MOST_CATS]
        title += f": the {_MOST_CATS} longest of {len(cats):,}"
    of_cats = [cat.cat or "(none)" for cat in shown]
    totals = _by_colour([(cat.cat, cat.total_ns / 1e6) for cat in shown])
    return [
        Bars("Longest operations on average", "average (ms)", "operation", names, averages, True, True),
        Bars(title, "category", "total (ms)", of_cats, totals, stacked=True),
    ]


def _by_colour(bars: Sequence[tuple[str, float]]) -> dict[str, list[float | None]]:
    """Return bars (category, milliseconds) as a series for each category."""
    cats = dict.fromkeys(cat for cat, _ in bars)
    return {cat or "(none)": [ms if own == cat else None for own, ms in bars] for cat in cats}
