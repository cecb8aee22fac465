"""Changes between two runs: whether significant, what of the step they explain, which rank made them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct

import dialects
from arrays import Float64, Int64, NDArray
from compare import match_operations as renamed
from compare.significance import Change, Samples, changes, corrected_by_family, families, sample
from compare.thresholds import STRAGGLES, WORTH_TESTING
from dialects import Role
from errors import TraceError, counted
from figures.job_figures import JobFigures, filtered, shapes_of_ranks
from figures.operations_by_step import Operations, OpKey
from figures.time_by_role import NOTHING, first_of


class _Side(Struct, frozen=True):
    """One of the two runs: its m operations, step by step, and their categories (m)."""

    run: JobFigures
    ops: Operations
    places: Sequence[Int64]  # of each rank's own operations among these
    categories: Sequence[str]

    @property
    def share_of_step(self) -> Float64:
        """How long the events of each operation last (m,), as a share of all steps (else of computation)."""
        total = self.ops.total_ns.sum(1)
        steps = sum(
            float(step.dur_ns) * rank.steps.width for rank in self.run.ranks for step in rank.steps.whole
        )
        whole = steps or float(total[self.ops.role == Role.COMPUTE].sum())
        return np.asarray(total / max(whole, 1.0), np.float64)

    def by_category(self, names: Sequence[str]) -> tuple[Float64, Samples, Samples]:
        """Return the counts (m, k) of the categories `names`, their averages and what they took of a step."""
        place = {name: at for at, name in enumerate(names)}
        row = np.array([place[cat] for cat in (*self.categories, NOTHING)])

        def added(of_operations: NDArray[Any]) -> NDArray[Any]:
            own_row = row[: len(of_operations)]
            order = np.argsort(own_row, kind="stable")
            each = np.split(order, np.searchsorted(own_row[order], np.arange(1, len(names))))
            return np.array([of_operations[own].sum(0) for own in each])

        count = added(self.ops.count)
        return count.sum(1), sample(added(self.ops.total_ns), count), sample(added(self.ops.spent_ns.T))


def _side_of(run: JobFigures, *, tell_workers: bool) -> _Side:
    """Return a run's operations, those of several workers told apart or pooled."""
    ops, places = run.operations(tell_workers=tell_workers)
    system = dialects.named(run.dialects[0])
    return _Side(run, ops, places, [system.category(key.name, key.cat) for key in ops.keys])


class OpChange(Struct, frozen=True):
    """One operation of both runs, or all of a category, whose name is then that of the category.

    `renamed_to` is the name in the second run where that differs.
    """

    name: str
    cat: str
    kind: str  # the category under which it is counted
    count: tuple[int, int]
    average: Change
    explained: Change  # what it took of a step; see `figures.time_by_role`
    renamed_to: str | None = None


class Comparison(Struct, frozen=True):
    """Run `b` against the base `a`, and the names of both."""

    a: JobFigures
    b: JobFigures
    names: tuple[str, str]
    operations: Sequence[OpChange]  # of both runs, by first appearance in a
    only_in: tuple[Sequence[OpChange], Sequence[OpChange]]  # which took nothing of the other run's steps
    categories: Sequence[OpChange]  # largest change of the step's time first
    ranks: Sequence[RankChange]
    iteration: Change
    steps: tuple[int, int]
    late_ns: dict[str, float]  # how much later each rank became ready (Horovod's ticks)
    notes: Sequence[str]

    @property
    def of_either(self) -> list[OpChange]:
        """The operations of both runs, and those of one."""
        return [*self.operations, *self.only_in[0], *self.only_in[1]]

    @property
    def straggler(self) -> RankChange | None:
        """The rank whose own work changed by far the most, more than by chance; see `leading`."""
        first = self.leading
        return first if first is not None and first.ahead.significant else None

    @property
    def leading(self) -> RankChange | None:
        """The rank whose own work changed by far the most, where that makes up the iteration's change."""
        if len(self.ranks) < 2 or not self.iteration.significant or not self.iteration.ns:
            return None
        sign = np.sign(self.iteration.ns)
        first = max(self.ranks, key=lambda rank: sign * (rank.ahead.ns or 0))
        explains = sign * (first.ahead.ns or 0) >= STRAGGLES * abs(self.iteration.ns)
        return first if explains and sign * (first.own.ns or 0) > 0 else None


def compare(
    a: JobFigures,
    b: JobFigures,
    names: tuple[str, str] = ("base", "new"),
    *,
    wanted: Collection[str] = (),
    jobs: int | None = None,
) -> Comparison:
    """Compare two runs, the first being the base.

    Parameters
    ----------
    names : what the runs are called
    wanted : communication operations to list, beside all that is not communication; () lists all.
        Categories, ranks and steps are those of everything in either case. `AnalyzeError` if neither has one.
    jobs : processes that read a trace again where the shapes of operations are needed

    Raises
    ------
    TraceError
        They have no operation in common.
    """
    tell_workers = len(a.workers) > 1 and a.workers == b.workers
    base, new = (_side_of(run, tell_workers=tell_workers) for run in (a, b))
    rows, only = _match(base, new, jobs)
    if not rows:
        raise TraceError(_nothing_common(a, b))
    notes = []
    if max(len(a.workers), len(b.workers)) > 1 and not tell_workers:
        pooled = " against ".join(counted(max(1, len(run.workers)), "worker") for run in (a, b))
        notes.append(f"{pooled}: their operations are pooled")
    if a.dialects != b.dialects:
        notes.append(f"different kinds of traces: {', '.join(a.dialects)} against {', '.join(b.dialects)}")
    iteration, steps = _iteration(a, b)
    op_changes = _op_changes(base, new, rows)
    alone = _alone(base, new, only)
    if wanted:
        of_a, of_b = (
            set(run.operations(tell_workers=tell_workers)[0].keys) for run in filtered((a, b), wanted)
        )
        op_changes, *listed = (
            [op for op in ops if OpKey(op.name, op.cat) in keys]
            for ops, keys in ((op_changes, of_a), (alone[0], of_a), (alone[1], of_b))
        )
        alone = (listed[0], listed[1])
    by_category, by_rank = _categories(base, new), rank_changes(base, new, iteration)
    later = later_ns(a, b)
    return Comparison(a, b, names, op_changes, alone, by_category, by_rank, iteration, steps, later, notes)


def _match(
    a: _Side, b: _Side, jobs: int | None
) -> tuple[list[tuple[int, int]], tuple[Sequence[int], Sequence[int]]]:
    """Return the pairs of operations, of equal name or renamed, and what only one run has."""
    index_b = {key: j for j, key in enumerate(b.ops.keys)}
    pairs = [(i, index_b[key]) for i, key in enumerate(a.ops.keys) if key in index_b]
    only = _left(a, b, pairs)
    if all(only) and a.run.dialects == b.run.dialects:
        shapes = (
            renamed.shapes(side.ops, side.places, shapes_of_ranks(side.run, jobs=jobs)) for side in (a, b)
        )
        pairs += renamed.pairs(a.ops, b.ops, *only, *shapes)
    return sorted(pairs), _left(a, b, pairs)


def _left(a: _Side, b: _Side, pairs: Sequence[tuple[int, int]]) -> tuple[list[int], list[int]]:
    in_a, in_b = {i for i, _ in pairs}, {j for _, j in pairs}
    left_a = [i for i in range(len(a.ops.keys)) if i not in in_a]
    return left_a, [j for j in range(len(b.ops.keys)) if j not in in_b]


def _nothing_common(a: JobFigures, b: JobFigures) -> str:
    kinds = [" and ".join(run.dialects) for run in (a, b)]
    if kinds[0] != kinds[1]:
        return (
            f"{a.path} and {b.path}: different kinds of traces ({kinds[0]}, {kinds[1]}), "
            "no operation in common"
        )
    return f"{a.path} and {b.path}: no operation in common; are these runs of one model?"


def _op_changes(a: _Side, b: _Side, rows: Sequence[tuple[int, int]]) -> list[OpChange]:
    in_a, in_b = np.array(rows).T
    sides = ((a, in_a), (b, in_b))
    keys, others = ([side.ops.keys[i] for i in of] for side, of in sides)
    share_of_step = (a.share_of_step[in_a] + b.share_of_step[in_b]) / 2
    roles = first_of(a.ops.role[in_a], b.ops.role[in_b])
    family = families([key.name for key in keys], roles, share_of_step)
    correct = partial(corrected_by_family, family=family, share_of_step=share_of_step)
    in_families = partial(changes, correct=correct, alike=family)
    averages = in_families(*(sample(side.ops.total_ns[of], side.ops.count[of]) for side, of in sides))
    explained = in_families(*(sample(side.ops.spent_ns[:, of].T) for side, of in sides))
    counts = [side.ops.count[of].sum(1).tolist() for side, of in sides]
    return [
        OpChange(
            key.name, key.cat, a.categories[i], count, average, part,
            other.name if other.name != key.name else None,
        )
        for (i, _), key, other, count, average, part in zip(
            rows, keys, others, zip(*counts, strict=True), averages, explained, strict=True
        )
    ]  # fmt: skip


def _alone(
    a: _Side, b: _Side, only: tuple[Sequence[int], Sequence[int]]
) -> tuple[list[OpChange], list[OpChange]]:
    """Return the operations that only one run has."""

    def found(side: _Side, other: _Side, of: Sequence[int], place: int) -> list[OpChange]:
        spent = sample(side.ops.spent_ns[:, of].T)
        nothing = sample(np.zeros((len(of), len(other.ops.spent_ns))))
        counts, means = side.ops.count[of].sum(1).tolist(), side.ops.mean_ns[of].tolist()
        explained = changes(nothing, spent) if place else changes(spent, nothing)
        return [
            OpChange(
                side.ops.keys[i].name, side.ops.keys[i].cat, side.categories[i],
                (0, count) if place else (count, 0),
                Change(None, mean) if place else Change(mean, None), part,
            )
            for i, count, mean, part in zip(of, counts, means, explained, strict=True)
        ]  # fmt: skip

    return found(a, b, only[0], 0), found(b, a, only[1], 1)


def _categories(a: _Side, b: _Side) -> list[OpChange]:
    names = list(dict.fromkeys([*a.categories, *b.categories, NOTHING]))
    (count_a, average_a, part_a), (count_b, average_b, part_b) = a.by_category(names), b.by_category(names)
    either = np.nan_to_num(part_a.mean) + np.nan_to_num(part_b.mean)
    parts = changes(part_a, part_b, tested=either >= WORTH_TESTING * either.sum())
    rows = zip(names, count_a, count_b, changes(average_a, average_b), parts, strict=True)
    found = [
        OpChange(name, name, name, (int(n_a), int(n_b)), average, part)
        for name, n_a, n_b, average, part in rows
        if n_a or n_b or (part.a_ns or 0) > 0 or (part.b_ns or 0) > 0
    ]
    return sorted(found, key=lambda each: -abs(each.explained.ns or 0))


def _iteration(a: JobFigures, b: JobFigures) -> tuple[Change, tuple[int, int]]:
    times = [a.iteration_ns, b.iteration_ns]
    steps = (len(times[0]), len(times[1]))
    if not all(steps):
        return Change(*(float(each.mean()) if len(each) else None for each in times)), steps
    return changes(sample(times[0]), sample(times[1]))[0], steps


class RankChange(Struct, frozen=True):
    """One rank of both runs."""

    name: str
    iteration: Change
    own: Change  # the part of a step in which it computed, prepared or recorded nothing
    communication: Change  # that in which it only communicated, or waited for others
    ahead: Change  # how much larger its own part is than that of the other ranks in the same step
    top: tuple[str, float]  # name and change (ns) of the operation that changed its own part most
    top_wait: tuple[str, float]  # and its communication


def rank_changes(a: _Side, b: _Side, iteration: Change) -> list[RankChange]:
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


def _ranks(side: _Side) -> dict[str, _Rank] | None:
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
        wall, exposed = rank.breakdown.wall_ns, rank.breakdown.exposed_comm_ns
        times = wall.astype(np.float64), exposed.astype(np.float64)
        ranks[rank.prefix] = _Rank(rank.operations.labels, *times, *by_name)
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
