"""A comparison in a sentence: how the iteration time changed, and what explains it."""

from __future__ import annotations

from analyzer.answers.compare.comparison import Comparison, only_causes
from analyzer.answers.compare.significance import FEWEST_STEPS, Change
from analyzer.base.names import brief
from analyzer.base.units import in_ms, in_percent, in_range
from analyzer.model.figures.job_figures import JobFigures
from analyzer.reading.dialects.system import DEVICE_CATS

_WORTH_NAMING = 0.05  # least share of the change for a category to be named
_UNCHANGED = 0.0005  # share of the step; a smaller change counts as unchanged
_MOST = 3  # named categories
_HALF = 0.5  # share of the change from which on the device explains it
_BULK = 0.25  # least share of the change for an operation to be named


def verdict(comparison: Comparison) -> str:
    """Write the change of the step and its causes: ``Slower: 127 → 139 ms (+9.8 %, 95 % CI …): PUSH …``."""
    iteration = comparison.iteration
    if iteration.ns is None:
        return _without_steps(comparison)
    if iteration.relative is not None and abs(iteration.relative) < _UNCHANGED:
        return f"Unchanged: {in_ms(iteration.a_ns or 0)} a step"
    times = in_range(iteration.a_ns or 0, iteration.b_ns or 0, to=" → ")
    sizes = f"{times} ({_percent(iteration)}, {_certainty(comparison)})"
    if iteration.p is not None and not iteration.significant:
        return f"Not significant: {sizes}"
    change = f"{'Slower' if iteration.ns > 0 else 'Faster'}: {sizes}"
    on_device = sum(change.ns or 0.0 for _, change in comparison.device)
    parts = (_device,) if abs(on_device) > _HALF * abs(iteration.ns) else (_categories, _operation)
    clauses = [clause for clause in (part(comparison) for part in parts) if clause]
    reals = [comparison.a.real, comparison.b.real]
    slower = int(iteration.ns > 0)
    clauses += only_causes(reals[slower], reals[1 - slower], comparison.names[slower])[:1]
    return f"{change}: {'; '.join(clauses)}" if clauses else change


def _without_steps(comparison: Comparison) -> str:
    """Name the changed operations where a run marks no steps."""
    ops = comparison.operations
    changed = [op for op in ops if op.average.significant]
    base, new = comparison.steps
    stepless = "the new run" if base else "the base" if new else "both runs"
    (lasts_a, device_a), (lasts_b, device_b) = map(_recorded_ns, (comparison.a, comparison.b))
    head = f"The recording takes {in_range(lasts_a, lasts_b, to=' → ')}"
    if device_a or device_b:
        head += f" and has {in_range(device_a, device_b, to=' → ')} of device work a rank"
    head += f"; no step is marked in {stepless}"
    if not changed:
        return f"{head}; no operation of {len(ops)} changed significantly"
    top = max(changed, key=lambda op: abs((op.average.ns or 0) * max(op.count)))
    return (
        f"{head}; {len(changed)} of {len(ops)} operations changed significantly, most of all "
        f"{brief(top.name)} {_signed(top.average)} ({_percent(top.average)})"
    )


def _recorded_ns(run: JobFigures) -> tuple[float, float]:
    """Measure the mean rank's recording, and its work of devices."""
    operations = run.operations(tell_workers=False)
    took = zip(operations.keys, operations.total_ns.sum(1).tolist(), strict=True)
    device_ns = sum(ns for key, ns in took if key.cat in DEVICE_CATS)
    lasts_ns = [rank.span_ns for rank in run.ranks if rank.span_ns] or [0]
    return sum(lasts_ns) / len(lasts_ns), device_ns / len(lasts_ns)


def _certainty(comparison: Comparison) -> str:
    if between := interval(comparison.iteration):
        return f"95 % CI {between}"
    a, b = comparison.steps
    return f"too few steps for a test: {a} and {b}, {FEWEST_STEPS} needed"


def interval(change: Change) -> str:
    """Format the confidence interval of a change: ``+9.1 to +15.6 ms``."""
    if change.low_ns is None or change.high_ns is None:
        return ""
    return in_range(change.low_ns, change.high_ns, sign="+")


def _categories(comparison: Comparison) -> str:
    """Name the categories that explain most of the change, largest first."""
    least = _WORTH_NAMING * abs(comparison.iteration.ns or 0)
    changes = [(category.cat, category.explained) for category in comparison.categories if category.cat]
    large = [(cat, change) for cat, change in changes if abs(change.ns or 0) >= least]
    return ", ".join(f"{cat} {_signed(change)}{doubt(change)}" for cat, change in large[:_MOST])


def _device(comparison: Comparison) -> str:
    """Name the kinds of kernels whose time explains most of the change; matrix products may change type."""
    least = _WORTH_NAMING * abs(comparison.iteration.ns or 0)
    large = [(kind, change) for kind, change in comparison.device if abs(change.ns or 0) >= least]
    products = [(kind.split()[-1], change) for kind, change in large if kind.startswith("GEMM ")]
    was, now = (
        max((((getattr(change, side) or 0.0), kind) for kind, change in products), default=(0.0, ""))[1]
        for side in ("a_ns", "b_ns")
    )
    changed = f"matrix products changed from {was} to {now}" if was and now and was != now else ""
    named = ", ".join(f"{kind} {_signed(change)}{doubt(change)}" for kind, change in large[:_MOST])
    of_device = f"{named} of the device" if named else "the device works as long as before"
    return "; ".join(filter(None, [changed, of_device]))


def _operation(comparison: Comparison) -> str:
    """Name the operation that explains most, where that is much and more than its category tells."""
    sign, size = (1 if (comparison.iteration.ns or 0) > 0 else -1), abs(comparison.iteration.ns or 0)
    ops = [op for op in comparison.of_either if op.kind != op.name]
    top = max(ops, key=lambda op: sign * (op.explained.ns or 0), default=None)
    if top is None or sign * (top.explained.ns or 0) < _BULK * size:
        return ""
    sides = zip(comparison.names, top.count, strict=True)
    alone = [f" (only in {name})" for name, count in sides if count == sum(top.count)]
    return f"most of it in {brief(top.name)} {_signed(top.explained)}{''.join(alone)}"


def doubt(change: Change) -> str:
    """Mark a tested change that is not significant."""
    return " (not significant)" if change.p is not None and not change.significant else ""


def _signed(change: Change) -> str:
    return in_ms(change.ns or 0, sign="+")


def _percent(change: Change) -> str:
    return "from nothing" if change.relative is None else in_percent(change.relative, 1, sign="+")
