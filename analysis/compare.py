"""What changed between two runs, whether it is real, and what of the iteration time it explains."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis import renamed
from analysis.exposure import COMMUNICATION, exposed_ns, layers
from analysis.measured import (
    MeasuredRun,
    Operations,
    OpKey,
    Rank,
    category,
    filtered,
    iteration_ns,
    load_run,
    op_keys,
    operations,
)
from analysis.significance import LEVEL, Samples, corrected, sample, welch
from errors import TraceError

Float = NDArray[np.float64]

NOTHING = "(nothing recorded)"
_STRAGGLES = 0.3  # of the iteration's change: what a straggler's own work must explain


@dataclass(frozen=True, slots=True)
class Change:
    """One quantity in two runs, in nanoseconds: b - a with its 95 % interval.

    `low_ns`, `high_ns` and `p` (corrected for the number of quantities beside it) are None where a
    run has too few steps for a test, all but the averages where it does not occur in one run.
    """

    a_ns: float | None
    b_ns: float | None
    low_ns: float | None = None
    high_ns: float | None = None
    p: float | None = None

    @property
    def ns(self) -> float | None:
        """The difference b - a."""
        return None if self.a_ns is None or self.b_ns is None else self.b_ns - self.a_ns

    @property
    def relative(self) -> float | None:
        """The difference as a share of a; None where a is 0 and b is not."""
        if self.a_ns is None or self.b_ns is None:
            return None
        if self.a_ns == 0:
            return 0.0 if self.b_ns == 0 else None
        return (self.b_ns - self.a_ns) / self.a_ns

    @property
    def significant(self) -> bool:
        """Whether the difference is more than chance."""
        return self.p is not None and self.p <= LEVEL


@dataclass(frozen=True, slots=True)
class OpChange:
    """One operation of both runs; `renamed_to` is its name in the second where that differs."""

    name: str
    cat: str
    kind: str  # the category under which it is counted
    count: tuple[int, int]
    average: Change
    explained: Change  # what it took of a step; see `analysis.exposure`
    renamed_to: str | None = None


@dataclass(frozen=True, slots=True)
class CategoryChange:
    """One category: its events' average duration, and what it took of a step."""

    cat: str
    count: tuple[int, int]
    average: Change
    explained: Change


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


@dataclass(frozen=True, slots=True)
class Comparison:
    """MeasuredRun `b` against the base `a`."""

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
        return _straggler(self.ranks, self.iteration)


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
    spent_a, spent_b = (_spent(run, ops, tell_workers) for run, ops in ((a, ops_a), (b, ops_b)))
    notes = []
    if max(len(a.workers), len(b.workers)) > 1 and not tell_workers:
        notes.append(f"{_workers(a)} against {_workers(b)}: their operations are pooled")
    if a.dialects != b.dialects:
        notes.append(f"different kinds of traces: {', '.join(a.dialects)} against {', '.join(b.dialects)}")
    iteration, steps = _iteration(a, b)
    found = _op_changes(ops_a, ops_b, rows, spent_a, spent_b, a.dialects[0])
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
        _ranks(spent_a, spent_b, iteration),
        iteration,
        steps,
        _later(a, b),
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
    if "kineto" not in run.dialects:
        return run
    return load_run(run.path, args=renamed.SHAPE_ARGS, jobs=jobs, progress=False)


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
    spent_a: _Spent,
    spent_b: _Spent,
    dialect: str,
) -> list[OpChange]:
    in_a, in_b = [i for i, _ in rows], [j for _, j in rows]
    averages = changes(sample(a.total_ns[in_a], a.count[in_a]), sample(b.total_ns[in_b], b.count[in_b]))
    explained = changes(sample(spent_a.job[:, in_a].T), sample(spent_b.job[:, in_b].T))
    counts = zip(a.count[in_a].sum(1).tolist(), b.count[in_b].sum(1).tolist(), strict=True)
    found = []
    for (i, j), count, average, part in zip(rows, counts, averages, explained, strict=True):
        key, other = a.keys[i], b.keys[j]
        kind = category(key.name, key.cat, dialect)
        to = other.name if other.name != key.name else None
        found.append(OpChange(key.name, key.cat, kind, count, average, part, to))
    return found


def _categories(
    a: MeasuredRun, b: MeasuredRun, ops_a: Operations, ops_b: Operations, spent_a: _Spent, spent_b: _Spent
) -> list[CategoryChange]:
    """Return the change of each category that any run has, the largest part of the step first."""
    kinds = [
        [category(key.name, key.cat, run.dialects[0]) for key in ops.keys]
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
    found = [
        CategoryChange(name, (int(n_a), int(n_b)), average, part)
        for name, n_a, n_b, average, part in zip(
            names,
            count_a.sum(1),
            count_b.sum(1),
            changes(average_a, average_b),
            changes(part_a, part_b),
            strict=True,
        )
        if n_a or n_b or (part.a_ns or 0) > 0 or (part.b_ns or 0) > 0
    ]
    return sorted(found, key=lambda each: -abs(each.explained.ns or 0))


def changes(a: Samples, b: Samples) -> list[Change]:
    """Return the changes of m quantities, p-values corrected for their number."""
    found = welch(a, b)
    columns = (a.mean, b.mean, found.low, found.high, corrected(found.p))
    return [Change(*map(_known, row)) for row in zip(*(column.tolist() for column in columns), strict=True)]


def _known(value: float) -> float | None:
    return value if np.isfinite(value) else None


# ---- the step, and the ranks


@dataclass(frozen=True, slots=True)
class _RankSpent:
    """What each operation took of the whole steps of one rank: (k, m + 1), the last for nothing."""

    rank: Rank
    spent: Float
    is_comm: NDArray[np.bool_]  # (m + 1)
    names: Sequence[str]  # (m + 1)


@dataclass(frozen=True, slots=True)
class _Spent:
    """The same for a run: `job` is averaged over the ranks, step by step."""

    job: Float
    ranks: Sequence[_RankSpent]


def _spent(run: MeasuredRun, ops: Operations, tell_workers: bool) -> _Spent:
    index = {key: i for i, key in enumerate(ops.keys)}
    m = len(ops.keys)
    names = [*(key.name for key in ops.keys), NOTHING]
    by_label: dict[int, list[Float]] = {}
    ranks: list[_RankSpent] = []
    for rank in run.ranks:
        if not rank.steps.whole:
            continue
        keys, ids = op_keys(rank, tell_workers=tell_workers)
        to_run = np.array([index[key] for key in keys], np.int64)
        layer = layers(rank.trace)
        spent = exposed_ns(rank.trace, layer, to_run[ids], m, rank.steps.whole)
        is_comm = np.zeros(m + 1, np.bool_)
        is_comm[to_run[ids[layer == COMMUNICATION]]] = True
        ranks.append(_RankSpent(rank, spent, is_comm, names))
        for step, row in zip(rank.steps.whole, spent, strict=True):
            by_label.setdefault(step.label, []).append(row)
    job = [np.mean(by_label[label], axis=0) for label in sorted(by_label)]
    return _Spent(np.array(job).reshape(-1, m + 1), ranks)


def _iteration(a: MeasuredRun, b: MeasuredRun) -> tuple[Change, tuple[int, int]]:
    times = [iteration_ns(run) for run in (a, b)]
    steps = (len(times[0]), len(times[1]))
    if not all(steps):
        means = [float(each.mean()) if len(each) else None for each in times]
        return Change(means[0], means[1]), steps
    return changes(sample(times[0]), sample(times[1]))[0], steps


def _ranks(a: _Spent, b: _Spent, iteration: Change) -> list[RankChange]:
    """Return the change of each rank, where both runs have the same several ranks."""
    of_b = {part.rank.name: part for part in b.ranks}
    both = [(part, of_b[part.rank.name]) for part in a.ranks if part.rank.name in of_b]
    if len(both) < 2 or len(both) < max(len(a.ranks), len(b.ranks)):
        return []
    sides = ([x for x, _ in both], [y for _, y in both])
    of_kind = [[_measures(side, i) for i in range(len(both))] for side in sides]
    whole, own, comm, ahead = (
        changes(*(_stacked([sample(rank[kind]) for rank in side]) for side in of_kind)) for kind in range(4)
    )
    sign = float(np.sign(iteration.ns or 0.0)) or 1.0
    return [
        RankChange(
            x.rank.name,
            whole[i],
            own[i],
            comm[i],
            ahead[i],
            _top(x, y, sign, comm=False),
            _top(x, y, sign, comm=True),
        )
        for i, (x, y) in enumerate(both)
    ]


def _measures(ranks: Sequence[_RankSpent], index: int) -> tuple[Float, Float, Float, Float]:
    """Return (whole, own, communication, ahead) of one of the ranks of a run, step by step."""
    whole, own, comm = (measure(ranks[index]) for measure in (_whole, _own, _communication))
    labels = [[step.label for step in part.rank.steps.whole] for part in ranks]
    common = sorted(set(labels[0]).intersection(*labels[1:]))
    rows = [[each.index(label) for label in common] for each in labels]
    owns = np.array([_own(part)[at] for part, at in zip(ranks, rows, strict=True)])
    return whole, own, comm, owns[index] - np.delete(owns, index, 0).mean(0)


def _whole(part: _RankSpent) -> Float:
    return np.asarray(part.spent.sum(1))


def _own(part: _RankSpent) -> Float:
    return np.asarray(part.spent[:, ~part.is_comm].sum(1))


def _communication(part: _RankSpent) -> Float:
    return np.asarray(part.spent[:, part.is_comm].sum(1))


def _stacked(samples: Sequence[Samples]) -> Samples:
    """Join the samples of single quantities."""
    mean, sd, n = (np.concatenate([getattr(each, name) for each in samples]) for name in ("mean", "sd", "n"))
    return Samples(mean, sd, n, np.concatenate([each.steps for each in samples]))


def _top(a: _RankSpent, b: _RankSpent, sign: float, *, comm: bool) -> tuple[str, float]:
    """Return the operation of a rank that changed most in one direction: (name, change in ns)."""
    change: dict[str, float] = {}
    for part, factor in ((a, -1.0), (b, 1.0)):
        chosen = np.flatnonzero(part.is_comm == comm)
        for i, value in zip(chosen.tolist(), part.spent[:, chosen].mean(0).tolist(), strict=True):
            change[part.names[i]] = change.get(part.names[i], 0.0) + factor * value
    if not change:
        return "", 0.0
    name = max(change, key=lambda each: sign * change[each])
    return name, change[name]


def _straggler(ranks: Sequence[RankChange], iteration: Change) -> RankChange | None:
    """Return the rank whose own part changed by far the most, where that makes up the iteration's change."""
    if len(ranks) < 2 or not iteration.significant or not iteration.ns:
        return None
    sign = np.sign(iteration.ns)
    first = max(ranks, key=lambda rank: sign * (rank.ahead.ns or 0))
    explains = sign * (first.ahead.ns or 0) >= _STRAGGLES * abs(iteration.ns)
    return first if explains and first.ahead.significant and sign * (first.own.ns or 0) > 0 else None


def _later(a: MeasuredRun, b: MeasuredRun) -> dict[str, float]:
    before, after = _late_ns(a), _late_ns(b)
    return {rank: after[rank] - before[rank] for rank in sorted(before.keys() & after.keys())}


def _late_ns(run: MeasuredRun) -> dict[str, float]:
    """Return how long after the first rank each rank became ready, on average: Horovod's ticks.

    A rank's tick is an event without duration, named by its number, in a negotiation of a tensor.
    """
    waits: dict[str, list[int]] = {}
    for rank in run.ranks:
        trace = rank.trace
        if trace.dialect != "horovod":
            continue
        names = [trace.names[i] for i in trace.name_id.tolist()]
        reduced = {
            track for name, track in zip(names, trace.track_id.tolist(), strict=True) if "REDUCE" in name
        }
        ready: dict[int, dict[str, int]] = {}
        for name, track, at_ns in zip(names, trace.track_id.tolist(), trace.ts_ns.tolist(), strict=True):
            if name.isdecimal() and track in reduced:
                ready.setdefault(track, {}).setdefault(f"rank{name}", at_ns)
        for ticks in ready.values():
            first = min(ticks.values())
            for name, at_ns in ticks.items():
                waits.setdefault(name, []).append(at_ns - first)
    return {name: float(np.mean(each)) for name, each in waits.items()}
