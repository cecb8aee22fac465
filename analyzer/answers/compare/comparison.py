"""Changes between two runs: their significance, and their share in the change of the step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from math import erfc, hypot, sqrt
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from analyzer.answers.compare.significance import Change, Samples, changes, sample
from analyzer.base.arrays import NDArray
from analyzer.base.errors import TraceError, counted
from analyzer.base.names import OpName
from analyzer.model.figures.durations import Operations, OpKey
from analyzer.model.figures.job_figures import JobFigures, RealSteps, filtered
from analyzer.model.figures.time_by_role import NOTHING
from analyzer.reading import dialects
from analyzer.reading.dialects import System
from replay.answer import Z_95

_Totals = dict[tuple[str, str], list[float]]  # (operation, category) -> nanoseconds, events
_Measured = tuple[list[int], Samples, Samples]  # counts, average durations, and shares of steps


class SweepRow(Struct, frozen=True):
    """The averages (ns) of an operation, or of a category, per run; None where a run lacks it."""

    name: str
    cat: str
    mean_ns: Sequence[float | None]


def sweep(runs: Sequence[JobFigures]) -> tuple[list[SweepRow], list[SweepRow]]:
    """Average each operation, grouped by category, and each category over all ranks of each run.

    Partitions of a communication count as one operation. TraceError if no operation occurs in several runs.
    """
    parts = [(run.operations(tell_workers=False), dialects.named(run.dialects[0])) for run in runs]
    cats = _rows([_totals(*part, merged=True) for part in parts])
    order = {row.cat: i for i, row in enumerate(cats)}
    rows = sorted(_rows([_totals(*part, merged=False) for part in parts]), key=lambda row: order[row.cat])
    if not any(sum(mean is not None for mean in row.mean_ns) > 1 for row in rows):
        raise TraceError(f"{runs[0].path} and the other runs have no operation in common")
    return rows, cats


def _totals(ops: Operations, system: System, *, merged: bool) -> _Totals:
    """Add up time and events of each operation, partitions together; or, `merged`, of each category."""
    table: _Totals = {}
    for key, ns, events in zip(ops.keys, ops.total_ns.sum(1), ops.count.sum(1), strict=True):
        cat = system.category(key.name, key.cat)
        name = cat if merged else str(OpName.parse(key.name)._replace(key=None))
        total = table.setdefault((name, cat), [0, 0])
        total[0] += float(ns)
        total[1] += int(events)
    return table


def _rows(tables: Sequence[_Totals]) -> list[SweepRow]:
    """Average each row's events per run; rows come by first appearance."""
    keys = dict.fromkeys(key for table in tables for key in table)
    return [
        SweepRow(*key, [table[key][0] / table[key][1] if key in table else None for table in tables])
        for key in keys
    ]


class _Side:
    """One of the two runs: its m operations, step by step, and the category of each."""

    def __init__(self, run: JobFigures, *, tell_workers: bool) -> None:
        self.ops = run.operations(tell_workers=tell_workers)
        system = dialects.named(run.dialects[0])
        self.category = {key: system.category(key.name, key.cat) for key in self.ops.keys}
        self._row = {key: row for row, key in enumerate(self.ops.keys)}

    def by_operation(self, keys: Sequence[OpKey]) -> _Measured:
        """Measure operations that the run may lack."""
        rows = [self._row.get(key, -1) for key in keys]
        return self._measured(lambda table: np.pad(table[: len(self._row)], ((0, 1), (0, 0)))[rows])

    def by_category(self, names: Sequence[str]) -> _Measured:
        """Measure all operations of a category."""
        categories = np.array([*self.category.values(), NOTHING], np.object_)
        return self._measured(
            lambda table: np.array([table[categories[: len(table)] == name].sum(0) for name in names])
        )

    def _measured(self, rows_of: Callable[[NDArray[Any]], NDArray[Any]]) -> _Measured:
        count, total_ns, spent_ns = map(rows_of, (self.ops.count, self.ops.total_ns, self.ops.spent_ns.T))
        return count.sum(1).tolist(), sample(total_ns, count), sample(spent_ns)


class OpChange(Struct, frozen=True):
    """An operation of both runs, or a category."""

    name: str
    cat: str
    kind: str  # the category in tables
    count: tuple[int, int]
    average: Change
    explained: Change  # share of a step; see `figures.time_by_role`


class Comparison(Struct, frozen=True):
    """Run `b` against the base `a`, and the names of both."""

    a: JobFigures
    b: JobFigures
    names: tuple[str, str]
    operations: Sequence[OpChange]  # of both runs, by first appearance in a
    only_in: tuple[Sequence[OpChange], Sequence[OpChange]]
    categories: Sequence[OpChange]  # largest change of the step's time first
    iteration: Change
    steps: tuple[int, int]
    notes: Sequence[str]
    device: Sequence[tuple[str, Change]] = ()  # by kind of kernel; () if nothing tells the profiler's cost

    @property
    def of_either(self) -> list[OpChange]:
        """The operations of both runs, and those of one."""
        return [*self.operations, *self.only_in[0], *self.only_in[1]]


def compare(
    a: JobFigures, b: JobFigures, names: tuple[str, str] = ("base", "new"), *, wanted: Collection[str] = ()
) -> Comparison:
    """Compare two runs, the first being the base.

    `wanted` limits the listed communications (AnalyzeError if neither run has one), but not categories and
    steps. TraceError if the runs have no operation in common.
    """
    tell_workers = len(a.workers) > 1 and a.workers == b.workers
    base, new = (_Side(run, tell_workers=tell_workers) for run in (a, b))
    in_both = [key for key in base.ops.keys if key in new.category]
    only_a = [key for key in base.ops.keys if key not in new.category]
    only_b = [key for key in new.ops.keys if key not in base.category]
    if not in_both:
        raise TraceError(_nothing_common(a, b))
    notes = []
    if max(len(a.workers), len(b.workers)) > 1 and not tell_workers:
        pooled = " against ".join(counted(max(1, len(run.workers)), "worker") for run in (a, b))
        notes.append(f"{pooled}: their operations are pooled")
    if a.dialects != b.dialects:
        notes.append(f"different kinds of traces: {', '.join(a.dialects)} against {', '.join(b.dialects)}")
    operations, of_a, of_b = (_op_changes(base, new, keys) for keys in (in_both, only_a, only_b))
    if wanted:
        runs = filtered((a, b), wanted)
        keys_a, keys_b = (set(run.operations(tell_workers=tell_workers).keys) for run in runs)
        operations, of_a, of_b = (
            [op for op in ops if OpKey(op.name, op.cat) in keys]
            for ops, keys in ((operations, keys_a), (of_a, keys_a), (of_b, keys_b))
        )
    times = [a.iteration_ns, b.iteration_ns]
    steps = (len(times[0]), len(times[1]))
    if all(steps):
        iteration = changes(sample(times[0]), sample(times[1]))[0]
    else:
        iteration = Change(*(float(lengths.mean()) if len(lengths) else None for lengths in times))
    categories = _categories(base, new)
    device: list[tuple[str, Change]] = []
    if a.real is not None and b.real is not None:
        iteration, device = step_change(a.real, b.real), device_changes(a.real, b.real)
        notes.append("The step is that without the profiler; operations and categories are as recorded")
        notes += [*only_causes(a.real, b.real, names[0]), *only_causes(b.real, a.real, names[1])]
    else:
        notes += profiler_notes([a, b])
    return Comparison(a, b, names, operations, (of_a, of_b), categories, iteration, steps, notes, device)


def only_causes(run: RealSteps | None, other: RealSteps | None, name: str) -> list[str]:
    """List the causes that only the run `name` has: ``only in new: rank1 late, most of it in data``."""
    if run is None or other is None:
        return []
    return [f"only in {name}: {cause}" for cause in run.causes if cause not in other.causes]


def profiler_notes(runs: Sequence[JobFigures]) -> list[str]:
    """Say that steps are as recorded, where their profiler slows the host."""
    note = "The steps are as recorded, with the time that the profiler takes"
    return [note] if any(run.is_slowed for run in runs) else []


def _nothing_common(a: JobFigures, b: JobFigures) -> str:
    kinds = [" and ".join(run.dialects) for run in (a, b)]
    runs = f"{a.path} and {b.path}"
    if kinds[0] != kinds[1]:
        return f"{runs}: different kinds of traces ({kinds[0]}, {kinds[1]}), no operation in common"
    return f"{runs}: no operation in common; are these runs of one model?"


def _op_changes(a: _Side, b: _Side, keys: Sequence[OpKey]) -> list[OpChange]:
    kinds = b.category | a.category
    changed = _changes(a.by_operation(keys), b.by_operation(keys))
    return [
        OpChange(key.name, key.cat, kinds[key], count, average, part)
        for key, (count, average, part) in zip(keys, changed, strict=True)
    ]


def _categories(a: _Side, b: _Side) -> list[OpChange]:
    names = list(dict.fromkeys([*a.category.values(), *b.category.values(), NOTHING]))
    changed = _changes(a.by_category(names), b.by_category(names))
    categories = [
        OpChange(name, name, name, count, average, part)
        for name, (count, average, part) in zip(names, changed, strict=True)
        if any(count) or (part.a_ns or 0) > 0 or (part.b_ns or 0) > 0
    ]
    return sorted(categories, key=lambda category: -abs(category.explained.ns or 0))


def _changes(a: _Measured, b: _Measured) -> Iterator[tuple[tuple[int, int], Change, Change]]:
    counts = zip(a[0], b[0], strict=True)
    return zip(counts, changes(a[1], b[1]), changes(a[2], b[2]), strict=True)


def step_change(a: RealSteps, b: RealSteps) -> Change:
    """Test the change of the step.

    The profiler has the same cost in both runs, be it the most or the least; the interval joins the change
    with these two and that of Welch's test, and the p-value is that of its end towards 0.
    """
    tested = changes(sample(a.length_ns), sample(b.length_ns))[0]
    ns, low_ns, high_ns = tested.ns, tested.low_ns, tested.high_ns
    if ns is None or low_ns is None or high_ns is None:
        return tested
    others = [b.most_cost_ns - a.most_cost_ns, b.least_cost_ns - a.least_cost_ns]
    below, above = hypot(ns - low_ns, ns - min(ns, *others)), hypot(high_ns - ns, max(ns, *others) - ns)
    error = (below if ns > 0 else above) / Z_95
    p = erfc(abs(ns) / error / sqrt(2)) if error else float(ns == 0)
    return replace(tested, low_ns=ns - below, high_ns=ns + above, p=p)


def device_changes(a: RealSteps, b: RealSteps) -> list[tuple[str, Change]]:
    """Test the device's time in a step by kind of kernel, the largest change first."""
    kinds = list(dict.fromkeys([*a.kinds, *b.kinds]))
    if not kinds:
        return []
    times = []
    for run in (a, b):
        nothing, of_kind = np.zeros(run.device_ns.shape[1]), dict(zip(run.kinds, run.device_ns, strict=True))
        times.append(sample(np.array([of_kind.get(kind, nothing) for kind in kinds])))
    tested = zip(kinds, changes(*times), strict=True)
    return sorted(tested, key=lambda pair: -abs(pair[1].ns or 0.0))
