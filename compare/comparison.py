"""Changes between two runs: whether significant, and what of the step they explain."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

import dialects
from arrays import Float64, NDArray
from compare.significance import Change, Samples, changes, sample
from errors import TraceError, counted
from figures.job_figures import JobFigures, filtered
from figures.operations_by_step import Operations, OpKey
from figures.time_by_role import NOTHING


class _Side(Struct, frozen=True):
    """One of the two runs: its m operations, step by step, and their categories (m)."""

    run: JobFigures
    ops: Operations
    categories: Sequence[str]

    def by_category(self, names: Sequence[str]) -> tuple[Float64, Samples, Samples]:
        """Sum over categories: event counts (m, k), average durations and the time taken of a step."""
        categories = np.array([*self.categories, NOTHING], np.object_)

        def added(of_operations: NDArray[Any]) -> NDArray[Any]:
            rows = categories[: len(of_operations)]
            return np.array([of_operations[rows == name].sum(0) for name in names])

        count = added(self.ops.count)
        return count.sum(1), sample(added(self.ops.total_ns), count), sample(added(self.ops.spent_ns.T))


def _side(run: JobFigures, *, tell_workers: bool) -> _Side:
    ops = run.operations(tell_workers=tell_workers)
    system = dialects.named(run.dialects[0])
    return _Side(run, ops, [system.category(key.name, key.cat) for key in ops.keys])


class OpChange(Struct, frozen=True):
    """One operation of both runs, or all of a category, whose name is then that of the category."""

    name: str
    cat: str
    kind: str  # the category under which it is counted
    count: tuple[int, int]
    average: Change
    explained: Change  # what it took of a step; see `figures.time_by_role`


class Comparison(Struct, frozen=True):
    """Run `b` against the base `a`, and the names of both."""

    a: JobFigures
    b: JobFigures
    names: tuple[str, str]
    operations: Sequence[OpChange]  # of both runs, by first appearance in a
    only_in: tuple[Sequence[OpChange], Sequence[OpChange]]  # which took nothing of the other run's steps
    categories: Sequence[OpChange]  # largest change of the step's time first
    iteration: Change
    steps: tuple[int, int]
    notes: Sequence[str]

    @property
    def of_either(self) -> list[OpChange]:
        """The operations of both runs, and those of one."""
        return [*self.operations, *self.only_in[0], *self.only_in[1]]


def compare(
    a: JobFigures, b: JobFigures, names: tuple[str, str] = ("base", "new"), *, wanted: Collection[str] = ()
) -> Comparison:
    """Compare two runs, the first being the base.

    Parameters
    ----------
    names : what the runs are called
    wanted : communication operations to list, beside all that is not communication; () lists all.
        Categories and steps are those of everything in either case. `AnalyzeError` if neither has one.

    Raises
    ------
    TraceError
        They have no operation in common.
    """
    tell_workers = len(a.workers) > 1 and a.workers == b.workers
    base, new = (_side(run, tell_workers=tell_workers) for run in (a, b))
    operations = _op_changes(base, new)
    if not operations:
        raise TraceError(_nothing_common(a, b))
    notes = []
    if max(len(a.workers), len(b.workers)) > 1 and not tell_workers:
        pooled = " against ".join(counted(max(1, len(run.workers)), "worker") for run in (a, b))
        notes.append(f"{pooled}: their operations are pooled")
    if a.dialects != b.dialects:
        notes.append(f"different kinds of traces: {', '.join(a.dialects)} against {', '.join(b.dialects)}")
    only_a, only_b = _only_in(base, new, in_base=True), _only_in(new, base, in_base=False)
    if wanted:
        runs = filtered((a, b), wanted)
        keys_a, keys_b = (set(run.operations(tell_workers=tell_workers).keys) for run in runs)
        operations, only_a, only_b = (
            [op for op in ops if OpKey(op.name, op.cat) in keys]
            for ops, keys in ((operations, keys_a), (only_a, keys_a), (only_b, keys_b))
        )
    iteration, steps = _iteration(a, b)
    categories = _categories(base, new)
    return Comparison(a, b, names, operations, (only_a, only_b), categories, iteration, steps, notes)


def _nothing_common(a: JobFigures, b: JobFigures) -> str:
    kinds = [" and ".join(run.dialects) for run in (a, b)]
    if kinds[0] != kinds[1]:
        return (
            f"{a.path} and {b.path}: different kinds of traces ({kinds[0]}, {kinds[1]}), "
            "no operation in common"
        )
    return f"{a.path} and {b.path}: no operation in common; are these runs of one model?"


def _op_changes(a: _Side, b: _Side) -> list[OpChange]:
    row_b = {key: row for row, key in enumerate(b.ops.keys)}
    rows_a = [row for row, key in enumerate(a.ops.keys) if key in row_b]
    sides = ((a.ops, rows_a), (b.ops, [row_b[a.ops.keys[row]] for row in rows_a]))
    averages = changes(*(sample(ops.total_ns[rows], ops.count[rows]) for ops, rows in sides))
    explained = changes(*(sample(ops.spent_ns[:, rows].T) for ops, rows in sides))
    counts = zip(*(ops.count[rows].sum(1).tolist() for ops, rows in sides), strict=True)
    return [
        OpChange(*a.ops.keys[row], a.categories[row], count, average, part)
        for row, count, average, part in zip(rows_a, counts, averages, explained, strict=True)
    ]


def _only_in(side: _Side, other: _Side, *, in_base: bool) -> list[OpChange]:
    """List the operations that only one run has."""
    of_both = set(other.ops.keys)
    rows = [row for row, key in enumerate(side.ops.keys) if key not in of_both]
    spent = sample(side.ops.spent_ns[:, rows].T)
    nothing = sample(np.zeros((len(rows), len(other.ops.spent_ns))))
    explained = changes(spent, nothing) if in_base else changes(nothing, spent)
    counts, means = side.ops.count[rows].sum(1).tolist(), side.ops.mean_ns[rows].tolist()
    return [
        OpChange(
            *side.ops.keys[row],
            side.categories[row],
            (count, 0) if in_base else (0, count),
            Change(mean, None) if in_base else Change(None, mean),
            part,
        )
        for row, count, mean, part in zip(rows, counts, means, explained, strict=True)
    ]


def _categories(a: _Side, b: _Side) -> list[OpChange]:
    names = list(dict.fromkeys([*a.categories, *b.categories, NOTHING]))
    (count_a, average_a, part_a), (count_b, average_b, part_b) = a.by_category(names), b.by_category(names)
    rows = zip(names, count_a, count_b, changes(average_a, average_b), changes(part_a, part_b), strict=True)
    categories = [
        OpChange(name, name, name, (int(n_a), int(n_b)), average, part)
        for name, n_a, n_b, average, part in rows
        if n_a or n_b or (part.a_ns or 0) > 0 or (part.b_ns or 0) > 0
    ]
    return sorted(categories, key=lambda each: -abs(each.explained.ns or 0))


def _iteration(a: JobFigures, b: JobFigures) -> tuple[Change, tuple[int, int]]:
    times = [a.iteration_ns, b.iteration_ns]
    steps = (len(times[0]), len(times[1]))
    if not all(steps):
        return Change(*(float(each.mean()) if len(each) else None for each in times)), steps
    return changes(sample(times[0]), sample(times[1]))[0], steps
