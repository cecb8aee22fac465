"""A comparison in a sentence: what the iteration time did, and what explains it."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

import numpy as np

from compare.comparison import Comparison, OpChange, RankChange
from compare.significance import Change, rank_sum, sample
from compare.thresholds import FEWEST_STEPS, LEVEL, STRAGGLES
from figures.time_by_role import NOTHING
from function_names import brief
from options.step_charts import doubt
from result import in_ms, in_percent

_WORTH_NAMING = 0.05  # of the change: what a category must explain to be named
_WORTH_STATING = 0.1  # of the step: what a category must take for "unchanged" to be worth a word
_NOTHING = 0.0005  # of the step: a smaller change counts as unchanged
_MOST = 4  # categories that are named
_BULK = 0.25  # of the change: what one operation must explain to be named


def verdict(comparison: Comparison) -> str:
    """Return the sentence, e.g. ``iteration time +12.4 ms (+9.8 %, 95 % CI 9.1–15.6): PUSH +10.9 ms, …``."""
    iteration = comparison.iteration
    if iteration.ns is None:
        return _without_steps(comparison)
    head = f"iteration time {_signed(iteration.ns)}{_brackets(comparison)}"
    if iteration.relative is not None and abs(iteration.relative) < _NOTHING:
        return f"iteration time unchanged ({in_ms(iteration.a_ns or 0)})"
    if iteration.p is not None and not iteration.significant:
        return f"{head}: {_median(comparison) or _unsteady(comparison)}"
    clauses = [_categories(comparison.categories, iteration), _operations(comparison), _straggler(comparison)]
    named = [clause for clause in clauses if clause]
    return f"{head}: {'; '.join(named)}" if named else head


def _unsteady(comparison: Comparison) -> str:
    """Say what may be chance, where steps that drift tell little, and what is sure all the same."""
    times = {"base": comparison.a.iteration_ns, "new run": comparison.b.iteration_ns}
    worth = [(name, len(own), float(sample(own).n[0])) for name, own in times.items() if len(own)]
    drift = [f"the {k} steps of the {name} drift and count as {n:.0f}" for name, k, n in worth if 2 * n <= k]
    if not drift:
        return "no more than chance"
    sure = _largest(comparison, [op for op in comparison.of_either if op.explained.significant])
    but = "" if sure is None else f"; but {_part(sure)} is more than chance"
    return f"it may be chance, as {' and '.join(drift)}{but}"


def _median(comparison: Comparison) -> str:
    """Say what the median step did where that is not chance, though a few long steps hide it in the mean."""
    a, b = (run.iteration_ns for run in (comparison.a, comparison.b))
    if min(len(a), len(b)) < FEWEST_STEPS or rank_sum(a, b) > LEVEL:
        return ""
    change = Change(float(np.median(a)), float(np.median(b)))
    if abs(change.relative or 0.0) < _WORTH_STATING:
        return ""
    return (
        "no more than chance on average, as some steps are far longer than the others; but the median step "
        f"changed by {_signed(change.ns or 0)} ({_percent(change)}), which is more than chance"
    )


def _without_steps(comparison: Comparison) -> str:
    """Return the sentence where a run marks no steps: what the operations say."""
    ops = comparison.operations
    changed = [op for op in ops if op.average.significant]
    a, b = comparison.steps
    stepless = "both runs" if a == b == 0 else "the new run" if a else "the base"
    head = f"no iteration time (steps are not marked in {stepless})"
    if not changed:
        return f"{head}; no operation of {len(ops)} changed significantly"
    top = max(changed, key=lambda op: abs((op.average.ns or 0) * max(op.count)))
    return (
        f"{head}; {len(changed)} of {len(ops)} operations changed significantly, most of all "
        f"{brief(top.name)} {_signed(top.average.ns or 0)} ({_percent(top.average)})"
    )


def _brackets(comparison: Comparison) -> str:
    change = comparison.iteration
    if change.low_ns is None or change.high_ns is None:
        a, b = comparison.steps
        few = f"too few steps for a test: {a} and {b}, {FEWEST_STEPS} needed"
        return f" ({_percent(change)}, {few})"
    return f" ({_percent(change)}, 95 % CI {interval(change)} ms)"


def interval(change: Change) -> str:
    """Return the confidence interval in milliseconds, ``9.1–15.6``; ``−3.0 to 1.2`` below zero."""
    if change.low_ns is None or change.high_ns is None:
        return ""
    low, high = (in_ms(value, unit="") for value in (change.low_ns, change.high_ns))
    return f"{low}–{high}" if change.low_ns >= 0 else f"{low} to {high}"


def _categories(categories: Sequence[OpChange], iteration: Change) -> str:
    """Name what explains the change, largest first, and what large part of the step did not change."""
    size, whole = abs(iteration.ns or 0), iteration.a_ns or 0
    large = [each for each in categories if abs(each.explained.ns or 0) >= _WORTH_NAMING * size]
    parts = [
        f"{each.cat} {_signed(each.explained.ns or 0)}{doubt(each.explained)}"
        for each in large[:_MOST]
        if each.cat
    ]
    parts += [
        f"{each.cat} unchanged"
        for each in categories
        if each not in large and each.cat not in ("", NOTHING) and not each.explained.significant
        if (each.explained.a_ns or 0) >= _WORTH_STATING * whole
    ]
    return ", ".join(parts)


def _operations(comparison: Comparison) -> str:
    """Name the operation that explains most, where it says more than its category."""
    top = _largest(comparison, comparison.of_either)
    if top is None or _suspect(comparison) is not None:
        return ""
    sides = zip(comparison.names, top.count, strict=True)
    alone = [f" (only in {name})" for name, count in sides if count == sum(top.count)]
    return f"most of it in {_part(top)}{''.join(alone)}"


def _largest(comparison: Comparison, ops: Sequence[OpChange]) -> OpChange | None:
    """Return which of some operations explains most; None if it is not a bulk, or a category of its own."""
    sign, size = (1 if (comparison.iteration.ns or 0) > 0 else -1), abs(comparison.iteration.ns or 0)
    parts = [(sign * (op.explained.ns or 0), op) for op in ops if op.kind != op.name]
    part, top = max(parts, key=itemgetter(0), default=(0.0, None))
    return top if part >= _BULK * size else None


def _part(op: OpChange) -> str:
    return f"{brief(op.name)} {_signed(op.explained.ns or 0)}"


def _suspect(comparison: Comparison) -> RankChange | None:
    """Return the straggler; one that may be by chance only where what explains most is others' waiting."""
    top = _largest(comparison, comparison.of_either)
    waits = top is not None and top.name in {rank.top_wait[0] for rank in comparison.ranks}
    return comparison.leading if waits else comparison.straggler


def _straggler(comparison: Comparison) -> str:
    """Name the rank for which the others wait."""
    iteration, rank = comparison.iteration, _suspect(comparison)
    verb = "is" if (iteration.ns or 0) > 0 else "was"
    if rank is None:
        return _late(comparison, verb)
    if not rank.ahead.significant:
        verb = "may be" if verb == "is" else "may have been"
    name, change = rank.top
    waits = max(
        (each for each in comparison.ranks if each.name != rank.name),
        key=lambda each: abs(each.communication.ns or 0),
    )
    waiting = ""
    if (waits.communication.ns or 0) * (iteration.ns or 0) > 0 and waits.top_wait[0]:
        more = "wait" if (iteration.ns or 0) > 0 else "wait less"
        longest, ns = waits.top_wait
        waiting = f", the others {more} ({waits.name}: {brief(longest)} {_signed(ns)})"
    return f"{rank.name} {verb} the straggler: {brief(name)} {_signed(change)} there{waiting}"


def _late(comparison: Comparison, verb: str) -> str:
    """Name the rank that became ready later than before, where the trace tells (Horovod)."""
    if len(comparison.late_ns) < 2 or not comparison.iteration.ns:
        return ""
    sign = 1 if comparison.iteration.ns > 0 else -1
    rank, ns = max(comparison.late_ns.items(), key=lambda item: sign * item[1])
    if sign * ns < STRAGGLES * abs(comparison.iteration.ns):
        return ""
    when = f"it becomes ready {in_ms(abs(ns))} {'later' if sign > 0 else 'earlier'}"
    return f"{rank} {verb} the straggler: {when}"


def _signed(ns: float) -> str:
    return in_ms(ns, sign="+")


def _percent(change: Change) -> str:
    if change.relative is None:
        return "from nothing"
    return in_percent(change.relative, 1, sign="+")
