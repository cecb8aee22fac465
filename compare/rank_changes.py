"""Which rank made a run slower: the one that works longer, not the ones that wait for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from arrays import Float64
from compare.side import Side
from compare.significance import Change, Samples, changes, sample
from figures.job_figures import JobFigures
from figures.time_by_role import NOTHING


class RankChange(Struct, frozen=True):
    """One rank of both runs."""

    name: str
    iteration: Change
    own: Change  # the part of a step in which it computed, prepared or recorded nothing
    communication: Change  # that in which it only communicated, or waited for others
    ahead: Change  # how much larger its own part is than that of the other ranks in the same step
    top: tuple[str, float]  # name and change (ns) of the operation that changed its own part most
    top_wait: tuple[str, float]  # and its communication


def rank_changes(a: Side, b: Side, iteration: Change) -> list[RankChange]:
    """Return the change of each rank where both runs have the same ranks with steps, two or more; else []."""
    of_a, of_b = _ranks(a), _ranks(b)
    if of_a is None or of_b is None or not 2 <= len(of_a) == len(of_b) == len(of_a.keys() & of_b.keys()):
        return []
    sides = (list(of_a.values()), [of_b[name] for name in of_a])
    measures = [_measures(side) for side in sides]
    whole, own, comm, ahead = (
        changes(*(_joined([rank[kind] for rank in side]) for side in measures)) for kind in range(4)
    )
    sign = float(np.sign(iteration.ns or 0.0)) or 1.0
    changed = []
    for i, name in enumerate(of_a):
        top, top_wait = (_top(sides[0][i], sides[1][i], sign, comm=kind) for kind in (False, True))
        changed.append(RankChange(name, whole[i], own[i], comm[i], ahead[i], top, top_wait))
    return changed


def later_ns(a: JobFigures, b: JobFigures) -> dict[str, float]:
    """Return how much later than in `a` each rank becomes ready in `b`, where the traces tell (Horovod)."""
    before, after = _late_ns(a), _late_ns(b)
    return {rank: after[rank] - before[rank] for rank in sorted(before.keys() & after.keys())}


class _Rank(NamedTuple):
    """The k whole steps of a rank, and what its operations, by name, took of an average one (ns)."""

    labels: Sequence[int]
    wall_ns: Float64  # (k,)
    exposed_comm_ns: Float64  # (k,)
    own_work: Mapping[str, float]
    communication: Mapping[str, float]


def _ranks(side: Side) -> dict[str, _Rank] | None:
    """Return the ranks of a run that have steps, by name; None where two have the same name."""
    ranks = {}
    known = [(rank, at) for rank, at in zip(side.run.ranks, side.places, strict=True) if rank.steps.whole]
    for rank, places in known:
        if rank.operations is None:
            raise ValueError(f"{rank.name}: worked out without its operations")
        mean = rank.operations.spent_ns.mean(0).tolist()
        names = [*(side.ops.keys[i].name for i in places.tolist()), NOTHING]
        by_name: tuple[dict[str, float], dict[str, float]] = ({}, {})
        for name, is_comm, ns in zip(names, rank.operations.is_comm.tolist(), mean, strict=True):
            by_name[is_comm][name] = by_name[is_comm].get(name, 0.0) + ns
        wall, exposed = (
            np.array([getattr(part, key) for part in rank.breakdown], np.float64)
            for key in ("wall_ns", "exposed_comm_ns")
        )
        ranks[rank.prefix] = _Rank(rank.operations.labels, wall, exposed, *by_name)
    return ranks if len(ranks) == len(known) else None


def _measures(ranks: Sequence[_Rank]) -> list[tuple[Float64, Float64, Float64, Float64]]:
    """Return (whole, own, communication, ahead) of each of the ranks of a run, step by step."""
    common = sorted(set(ranks[0].labels).intersection(*(rank.labels for rank in ranks)))
    place = [{label: at for at, label in reversed(list(enumerate(rank.labels)))} for rank in ranks]
    own = [rank.wall_ns - rank.exposed_comm_ns for rank in ranks]
    in_common = np.array([
        of_rank[[at[label] for label in common]] for of_rank, at in zip(own, place, strict=True)
    ])  # fmt: skip
    return [
        (rank.wall_ns, own[i], rank.exposed_comm_ns, in_common[i] - np.delete(in_common, i, 0).mean(0))
        for i, rank in enumerate(ranks)
    ]


def _joined(series: Sequence[Float64]) -> Samples:
    return Samples(*map(np.concatenate, zip(*map(sample, series), strict=True)))


def _top(a: _Rank, b: _Rank, sign: float, *, comm: bool) -> tuple[str, float]:
    """Return the operation of a rank that changed most in one direction: (name, change in ns)."""
    before, after = (rank.communication if comm else rank.own_work for rank in (a, b))
    change = {name: after.get(name, 0.0) - before.get(name, 0.0) for name in {**before, **after}}
    if not change:
        return "", 0.0
    name = max(change, key=lambda each: sign * change[each])
    return name, change[name]


def _late_ns(run: JobFigures) -> dict[str, float]:
    """Return how long after the first rank each rank became ready, on average."""
    waits: dict[str, list[int]] = {}
    for rank in run.ranks:
        for name, late in rank.late_ns.items():
            waits.setdefault(name, []).extend(late)
    return {name: float(np.mean(each)) for name, each in waits.items()}
