"""Changes between two runs: whether significant, and how much of the iteration time they explain."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

import numpy as np
from msgspec import Struct

from compare import match_operations as renamed
from compare.families import families
from compare.rank_changes import RankChange, later_ns, rank_changes
from compare.side import Side, side_of
from compare.significance import Change, changes, sample
from compare.thresholds import STRAGGLES, WORTH_TESTING
from errors import TraceError, counted
from figures.job_figures import JobFigures, filtered, shapes_of_ranks
from figures.operations_by_step import OpKey
from figures.time_by_role import NOTHING, first_of


class OpChange(Struct, frozen=True):
    """One operation of both runs; `renamed_to` is its name in the second where that differs."""

    name: str
    cat: str
    kind: str  # the category under which it is counted
    count: tuple[int, int]
    average: Change
    explained: Change  # what it took of a step; see `figures.time_by_role`
    renamed_to: str | None = None


class CategoryChange(Struct, frozen=True):
    """One category: its events' average duration, and what it took of a step."""

    cat: str
    count: tuple[int, int]
    average: Change
    explained: Change


class Comparison(Struct, frozen=True):
    """Run `b` against the base `a`."""

    a: JobFigures
    b: JobFigures
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
    a: JobFigures, b: JobFigures, *, wanted: Collection[str] = (), jobs: int | None = None
) -> Comparison:
    """Compare two runs, the first being the base.

    Parameters
    ----------
    wanted : communication operations to list, beside all that is not communication; () lists all.
        Categories, ranks and steps are those of everything in either case. `AnalyzeError` if neither has one.
    jobs : processes that read a trace again where the shapes of operations are needed

    Raises
    ------
    TraceError
        They have no operation in common.
    """
    tell_workers = len(a.workers) > 1 and a.workers == b.workers
    base, new = (side_of(run, tell_workers=tell_workers) for run in (a, b))
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
    alone = ([base.ops.keys[i] for i in only[0]], [new.ops.keys[j] for j in only[1]])
    if wanted:
        of_a, of_b = (
            set(run.operations(tell_workers=tell_workers)[0].keys) for run in filtered((a, b), wanted)
        )
        op_changes = [op for op in op_changes if OpKey(op.name, op.cat) in of_a]
        alone = ([key for key in alone[0] if key in of_a], [key for key in alone[1] if key in of_b])
    return Comparison(
        a,
        b,
        op_changes,
        alone,
        _categories(base, new),
        rank_changes(base, new, iteration),
        iteration,
        steps,
        later_ns(a, b),
        notes,
    )


def _match(
    a: Side, b: Side, jobs: int | None
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


def _left(a: Side, b: Side, pairs: Sequence[tuple[int, int]]) -> tuple[list[int], list[int]]:
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


def _op_changes(a: Side, b: Side, rows: Sequence[tuple[int, int]]) -> list[OpChange]:
    in_a, in_b = np.array(rows).T
    sides = ((a, in_a), (b, in_b))
    keys, others = ([side.ops.keys[i] for i in of] for side, of in sides)
    family = families(
        [key.name for key in keys],
        first_of(a.ops.role[in_a], b.ops.role[in_b]),
        (a.share_of_step[in_a] + b.share_of_step[in_b]) / 2,
    )
    in_families = partial(changes, correct=family.corrected, alike=family.family)
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


def _categories(a: Side, b: Side) -> list[CategoryChange]:
    """Return the change of each category that any run has, the largest part of the step first."""
    names = list(dict.fromkeys([*a.categories, *b.categories, NOTHING]))
    (count_a, average_a, part_a), (count_b, average_b, part_b) = a.by_category(names), b.by_category(names)
    either = np.nan_to_num(part_a.mean) + np.nan_to_num(part_b.mean)
    parts = changes(part_a, part_b, tested=either >= WORTH_TESTING * either.sum())
    rows = zip(names, count_a, count_b, changes(average_a, average_b), parts, strict=True)
    found = [
        CategoryChange(name, (int(n_a), int(n_b)), average, part)
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
