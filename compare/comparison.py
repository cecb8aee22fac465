"""What changed between two runs, whether it is real, and what of the iteration time it explains."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

import dialects
from compare import match_operations as renamed
from compare.change import Change, changes
from compare.exposure import COMPUTE
from compare.families import Float, families
from compare.rank_changes import RankChange, later_ns, rank_changes, straggler
from compare.run_table import (
    MeasuredRun,
    Operations,
    OpKey,
    filtered,
    iteration_ns,
    load_run,
    op_keys,
    operations,
)
from compare.significance import sample
from compare.spent import NOTHING, Spent, time_spent
from dialects import System
from errors import TraceError

_NEGLIGIBLE = 0.001  # of a step: a category below it is not tested


@dataclass(frozen=True, slots=True)
class OpChange:
    """One operation of both runs; `renamed_to` is its name in the second where that differs."""

    name: str
    cat: str
    kind: str  # the category under which it is counted
    count: tuple[int, int]
    average: Change
    explained: Change  # what it took of a step; see `compare.exposure`
    renamed_to: str | None = None


@dataclass(frozen=True, slots=True)
class CategoryChange:
    """One category: its events' average duration, and what it took of a step."""

    cat: str
    count: tuple[int, int]
    average: Change
    explained: Change


@dataclass(frozen=True, slots=True)
class Comparison:
    """Run `b` against the base `a`."""

    a: MeasuredRun
    b: MeasuredRun
    operations: Sequence[OpChange]  # by first appearance in a
    only_in: tuple[Sequence[OpKey], Sequence[OpKey]]
    categories: Sequence[CategoryChange]  # largest change of the step's time first
    ranks: Sequence[RankChange]
    iteration: Change
    steps: tuple[int, int]
    late_ns: dict[str, float]  # how much later each rank became ready (Horovod's ticks)
    notes: Sequence[str]

    @property
    def straggler(self) -> RankChange | None:
        """The rank whose own work, unlike that of the others, explains the change, if there is one."""
        return straggler(self.ranks, self.iteration)


def compare(
    a: MeasuredRun, b: MeasuredRun, *, wanted: Collection[str] = (), jobs: int | None = None
) -> Comparison:
    """Compare two runs, the first being the base.

    Parameters
    ----------
    wanted : communication operations to list, beside all that is no communication; () lists all.
        Categories, ranks and steps are those of everything in either case.
    jobs : processes that read a trace again where the shapes of operations are needed

    Raises
    ------
    TraceError
        They have no operation in common.
    AnalyzeError
        A name in `wanted` is no communication operation of either.
    """
    tell_workers = len(a.workers) > 1 and a.workers == b.workers
    ops_a, ops_b = (operations(run, tell_workers=tell_workers) for run in (a, b))
    same, renames, only = _match(a, b, ops_a, ops_b, tell_workers, jobs)
    if not same and not renames:
        raise TraceError(_nothing_common(a, b))
    rows = sorted([*same, *renames])
    spent_a, spent_b = (
        time_spent(run, ops, tell_workers=tell_workers) for run, ops in ((a, ops_a), (b, ops_b))
    )
    notes = []
    if max(len(a.workers), len(b.workers)) > 1 and not tell_workers:
        notes.append(f"{_workers(a)} against {_workers(b)}: their operations are pooled")
    if a.dialects != b.dialects:
        notes.append(f"different kinds of traces: {', '.join(a.dialects)} against {', '.join(b.dialects)}")
    iteration, steps = _iteration(a, b)
    found = _op_changes(ops_a, ops_b, rows, spent_a, spent_b, dialects.named(a.dialects[0]))
    alone = [[ops.keys[i] for i in left] for ops, left in zip((ops_a, ops_b), only, strict=True)]
    if wanted:
        of_a, of_b = (_keys(run, tell_workers) for run in filtered((a, b), wanted))
        found = [op for op in found if OpKey(op.name, op.cat) in of_a]
        alone = [[key for key in keys if key in of] for keys, of in zip(alone, (of_a, of_b), strict=True)]
    return Comparison(
        a,
        b,
        found,
        (alone[0], alone[1]),
        _categories(a, b, ops_a, ops_b, spent_a, spent_b),
        rank_changes(spent_a, spent_b, iteration),
        iteration,
        steps,
        later_ns(a, b),
        notes,
    )


# ---- which operation is which


def _match(
    a: MeasuredRun, b: MeasuredRun, ops_a: Operations, ops_b: Operations, tell_workers: bool, jobs: int | None
) -> tuple[list[tuple[int, int]], list[tuple[int, int]], tuple[list[int], list[int]]]:
    """Return the pairs of equal name, the renamed pairs, and what only one run has."""
    index_b = {key: i for i, key in enumerate(ops_b.keys)}
    same = [(i, index_b[key]) for i, key in enumerate(ops_a.keys) if key in index_b]
    left_a = sorted(set(range(len(ops_a.keys))) - {i for i, _ in same})
    left_b = sorted(set(range(len(ops_b.keys))) - {j for _, j in same})
    renames: list[tuple[int, int]] = []
    if left_a and left_b and a.dialects == b.dialects:
        shape_a, shape_b = (
            renamed.shapes(_with_shapes(run, jobs), ops.keys, tell_workers=tell_workers)
            for run, ops in ((a, ops_a), (b, ops_b))
        )
        renames = renamed.pairs(ops_a, ops_b, left_a, left_b, shape_a, shape_b)
        left_a = sorted(set(left_a) - {i for i, _ in renames})
        left_b = sorted(set(left_b) - {j for _, j in renames})
    return same, renames, (left_a, left_b)


def _with_shapes(run: MeasuredRun, jobs: int | None) -> MeasuredRun:
    """Return the run with the shapes of its operations, where its traces may tell them."""
    wanted = [key for name in run.dialects for key in dialects.named(name).shape_args]
    return load_run(run.path, args=wanted, jobs=jobs, progress=False) if wanted else run


def _keys(run: MeasuredRun, tell_workers: bool) -> set[OpKey]:
    return {key for rank in run.ranks for key in op_keys(rank, tell_workers=tell_workers)[0]}


def _nothing_common(a: MeasuredRun, b: MeasuredRun) -> str:
    kinds = [" and ".join(run.dialects) for run in (a, b)]
    if kinds[0] != kinds[1]:
        return (
            f"{a.path} and {b.path}: different kinds of traces ({kinds[0]}, {kinds[1]}), "
            "no operation in common"
        )
    return f"{a.path} and {b.path}: no operation in common; are these runs of one model?"


def _workers(run: MeasuredRun) -> str:
    n = max(1, len(run.workers))
    return f"{n} worker{'s' if n > 1 else ''}"


# ---- operations and categories


def _op_changes(
    a: Operations,
    b: Operations,
    rows: Sequence[tuple[int, int]],
    spent_a: Spent,
    spent_b: Spent,
    system: System,
) -> list[OpChange]:
    in_a, in_b = [i for i, _ in rows], [j for _, j in rows]
    family = families(
        [a.keys[i].name for i in in_a],
        np.minimum(spent_a.layer[in_a], spent_b.layer[in_b]),
        (_share_of_step(a, spent_a)[in_a] + _share_of_step(b, spent_b)[in_b]) / 2,
    )
    samples = (sample(a.total_ns[in_a], a.count[in_a]), sample(b.total_ns[in_b], b.count[in_b]))
    averages = changes(*samples, family=family)
    explained = changes(sample(spent_a.job[:, in_a].T), sample(spent_b.job[:, in_b].T), family=family)
    counts = zip(a.count[in_a].sum(1).tolist(), b.count[in_b].sum(1).tolist(), strict=True)
    found = []
    for (i, j), count, average, part in zip(rows, counts, averages, explained, strict=True):
        key, other = a.keys[i], b.keys[j]
        kind = system.category(key.name, key.cat)
        to = other.name if other.name != key.name else None
        found.append(OpChange(key.name, key.cat, kind, count, average, part, to))
    return found


def _share_of_step(ops: Operations, spent: Spent) -> Float:
    """Return how long the events of each operation last (m,), as a share of the time of all ranks' steps.

    Where no steps are marked, as a share of what all computation lasts.
    """
    total = ops.total_ns.sum(1)
    per_rank = [float((rank.own + rank.communication).sum()) for rank in spent.ranks]
    whole = sum(per_rank) or float(total[spent.layer == COMPUTE].sum())
    return np.asarray(total / max(whole, 1.0), np.float64)


def _categories(
    a: MeasuredRun, b: MeasuredRun, ops_a: Operations, ops_b: Operations, spent_a: Spent, spent_b: Spent
) -> list[CategoryChange]:
    """Return the change of each category that any run has, the largest part of the step first."""
    kinds = [
        [dialects.named(run.dialects[0]).category(key.name, key.cat) for key in ops.keys]
        for run, ops in ((a, ops_a), (b, ops_b))
    ]
    names = list(dict.fromkeys([*kinds[0], *kinds[1], NOTHING]))
    sides = []
    for ops, of_op, spent in ((ops_a, kinds[0], spent_a), (ops_b, kinds[1], spent_b)):
        fold = np.array([[kind == name for kind in of_op] for name in names], np.float64)
        fold_spent = np.c_[fold, np.array([name == NOTHING for name in names], np.float64)]
        count, total = fold @ ops.count, fold @ ops.total_ns
        sides.append((count, sample(total, count), sample(fold_spent @ spent.job.T)))
    (count_a, average_a, part_a), (count_b, average_b, part_b) = sides
    either = np.nan_to_num(part_a.mean) + np.nan_to_num(part_b.mean)
    found = [
        CategoryChange(name, (int(n_a), int(n_b)), average, part)
        for name, n_a, n_b, average, part in zip(
            names,
            count_a.sum(1),
            count_b.sum(1),
            changes(average_a, average_b),
            changes(part_a, part_b, tested=either >= _NEGLIGIBLE * either.sum()),
            strict=True,
        )
        if n_a or n_b or (part.a_ns or 0) > 0 or (part.b_ns or 0) > 0
    ]
    return sorted(found, key=lambda each: -abs(each.explained.ns or 0))


def _iteration(a: MeasuredRun, b: MeasuredRun) -> tuple[Change, tuple[int, int]]:
    times = [iteration_ns(run) for run in (a, b)]
    steps = (len(times[0]), len(times[1]))
    if not all(steps):
        means = [float(each.mean()) if len(each) else None for each in times]
        return Change(means[0], means[1]), steps
    return changes(sample(times[0]), sample(times[1]))[0], steps
