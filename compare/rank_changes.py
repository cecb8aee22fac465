"""Which rank made a run slower: the one that works longer, not the ones that wait for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import dialects
from compare.change import Change, changes
from compare.exposure import RankSpent, Spent
from compare.run_table import MeasuredRun
from compare.significance import Samples, sample

Float = NDArray[np.float64]

_STRAGGLES = 0.3  # of the iteration's change: what a straggler's own work must explain


@dataclass(frozen=True, slots=True)
class RankChange:
    """One rank of both runs.

    `own` is the part of a step in which it computed, prepared or recorded nothing; `communication`
    that in which it only communicated, or waited for others; `ahead` is how much larger its own part
    is than that of the other ranks in the same step. `top` names the operation of its own part,
    `top_wait` that of its communication, that changed most in the direction of the iteration.
    """

    name: str
    iteration: Change
    own: Change
    communication: Change
    ahead: Change
    top: tuple[str, float]  # name, change (ns)
    top_wait: tuple[str, float]


def rank_changes(a: Spent, b: Spent, iteration: Change) -> list[RankChange]:
    """Return the change of each rank where both runs have the same ranks, two or more; else []."""
    of_b = {rank.name: rank for rank in b.ranks}
    names = [rank.name for rank in a.ranks]
    if (
        len(names) < 2
        or len(set(names)) < len(names)
        or sorted(names) != sorted(rank.name for rank in b.ranks)
    ):
        return []
    sides = (a.ranks, [of_b[name] for name in names])
    measures = [[_measures(side, i) for i in range(len(names))] for side in sides]
    whole, own, comm, ahead = (
        changes(*(_stacked([sample(rank[kind]) for rank in side]) for side in measures)) for kind in range(4)
    )
    sign = float(np.sign(iteration.ns or 0.0)) or 1.0
    found = []
    for i, name in enumerate(names):
        top, top_wait = (_top(a, b, sides[0][i], sides[1][i], sign, comm=kind) for kind in (False, True))
        found.append(RankChange(name, whole[i], own[i], comm[i], ahead[i], top, top_wait))
    return found


def straggler(ranks: Sequence[RankChange], iteration: Change) -> RankChange | None:
    """Return the rank whose own part changed by far the most, where that makes up the iteration's change."""
    if len(ranks) < 2 or not iteration.significant or not iteration.ns:
        return None
    sign = np.sign(iteration.ns)
    first = max(ranks, key=lambda rank: sign * (rank.ahead.ns or 0))
    explains = sign * (first.ahead.ns or 0) >= _STRAGGLES * abs(iteration.ns)
    return first if explains and first.ahead.significant and sign * (first.own.ns or 0) > 0 else None


def later_ns(a: MeasuredRun, b: MeasuredRun) -> dict[str, float]:
    """Return how much later than in `a` each rank becomes ready in `b`, where the traces tell (Horovod)."""
    before, after = _late_ns(a), _late_ns(b)
    return {rank: after[rank] - before[rank] for rank in sorted(before.keys() & after.keys())}


def _measures(ranks: Sequence[RankSpent], index: int) -> tuple[Float, Float, Float, Float]:
    """Return (whole, own, communication, ahead) of one of the ranks of a run, step by step."""
    rank = ranks[index]
    common = sorted(set(rank.labels).intersection(*(each.labels for each in ranks)))
    owns = np.array([[each.own[each.labels.index(label)] for label in common] for each in ranks])
    ahead = owns[index] - np.delete(owns, index, 0).mean(0)
    return rank.own + rank.communication, rank.own, rank.communication, ahead


def _stacked(samples: Sequence[Samples]) -> Samples:
    """Join the samples of single quantities."""
    mean, sd, n = (np.concatenate([getattr(each, name) for each in samples]) for name in ("mean", "sd", "n"))
    return Samples(mean, sd, n, np.concatenate([each.steps for each in samples]))


def _top(
    a: Spent, b: Spent, rank_a: RankSpent, rank_b: RankSpent, sign: float, *, comm: bool
) -> tuple[str, float]:
    """Return the operation of a rank that changed most in one direction: (name, change in ns)."""
    change: dict[str, float] = {}
    for names, rank, factor in ((a.names, rank_a, -1.0), (b.names, rank_b, 1.0)):
        for i in np.flatnonzero(rank.is_comm == comm).tolist():
            change[names[i]] = change.get(names[i], 0.0) + factor * float(rank.mean[i])
    if not change:
        return "", 0.0
    name = max(change, key=lambda each: sign * change[each])
    return name, change[name]


def _late_ns(run: MeasuredRun) -> dict[str, float]:
    """Return how long after the first rank each rank became ready, on average."""
    waits: dict[str, list[int]] = {}
    for rank in run.ranks:
        for name, late in dialects.of(rank.trace).late_ns(rank.trace).items():
            waits.setdefault(name, []).extend(late)
    return {name: float(np.mean(each)) for name, each in waits.items()}
