"""Which rank made a run slower: the one that works longer, not the ones that wait for it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from arrays import Float64
from compare.significance import Change, Samples, changes, sample
from figures.exposure import RankSpent, Spent
from figures.run_table import MeasuredRun


class RankChange(Struct, frozen=True):
    """One rank of both runs."""

    name: str
    iteration: Change
    own: Change  # the part of a step in which it computed, prepared or recorded nothing
    communication: Change  # that in which it only communicated, or waited for others
    ahead: Change  # how much larger its own part is than that of the other ranks in the same step
    top: tuple[str, float]  # name and change (ns) of the operation that changed its own part most
    top_wait: tuple[str, float]  # and its communication


def rank_changes(a: Spent, b: Spent, iteration: Change) -> list[RankChange]:
    """Return the change of each rank where both runs have the same ranks, two or more; else []."""
    of_b = {rank.name: rank for rank in b.ranks}
    names = [rank.name for rank in a.ranks]
    if not 2 <= len(names) == len(b.ranks) == len({*names} & of_b.keys()):
        return []
    sides = (a.ranks, [of_b[name] for name in names])
    measures = [_measures(side) for side in sides]
    whole, own, comm, ahead = (
        changes(*(_joined([rank[kind] for rank in side]) for side in measures)) for kind in range(4)
    )
    sign = float(np.sign(iteration.ns or 0.0)) or 1.0
    found = []
    for i, name in enumerate(names):
        top, top_wait = (_top(a, b, sides[0][i], sides[1][i], sign, comm=kind) for kind in (False, True))
        found.append(RankChange(name, whole[i], own[i], comm[i], ahead[i], top, top_wait))
    return found


def later_ns(a: MeasuredRun, b: MeasuredRun) -> dict[str, float]:
    """Return how much later than in `a` each rank becomes ready in `b`, where the traces tell (Horovod)."""
    before, after = _late_ns(a), _late_ns(b)
    return {rank: after[rank] - before[rank] for rank in sorted(before.keys() & after.keys())}


def _measures(ranks: Sequence[RankSpent]) -> list[tuple[Float64, Float64, Float64, Float64]]:
    """Return (whole, own, communication, ahead) of each of the ranks of a run, step by step."""
    common = sorted(set(ranks[0].labels).intersection(*(rank.labels for rank in ranks)))
    place = [{label: at for at, label in reversed(list(enumerate(rank.labels)))} for rank in ranks]
    owns = np.array([
        rank.own[[at[label] for label in common]] for rank, at in zip(ranks, place, strict=True)
    ])  # fmt: skip
    return [
        (rank.own + rank.communication, rank.own, rank.communication, owns[i] - np.delete(owns, i, 0).mean(0))
        for i, rank in enumerate(ranks)
    ]


def _joined(series: Sequence[Float64]) -> Samples:
    """Return the samples of single quantities as one."""
    return Samples(*map(np.concatenate, zip(*map(sample, series), strict=True)))


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
        for name, late in rank.late_ns.items():
            waits.setdefault(name, []).extend(late)
    return {name: float(np.mean(each)) for name, each in waits.items()}
