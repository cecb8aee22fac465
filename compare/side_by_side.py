"""Many runs side by side: the average time of each operation and category in each of them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import dialects
from compare.run_table import MeasuredRun, labels, operations
from errors import TraceError
from opname import OpName

_Key = TypeVar("_Key", bound=Hashable)
_Totals = dict[_Key, tuple[float, int]]


@dataclass(frozen=True, slots=True)
class SweepRow:
    """The averages (ns) of an operation, or of a category, per run; None where a run lacks it."""

    name: str
    cat: str
    mean_ns: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Sweep:
    """Averages over all events of all ranks and workers; operations grouped by category."""

    operations: Sequence[SweepRow]
    categories: Sequence[SweepRow]


def sweep(runs: Sequence[MeasuredRun]) -> Sweep:
    """Put runs side by side, in the order given; partitions of a communication count as one operation.

    Raises
    ------
    TraceError
        No operation occurs in more than one run.
    """
    parts = [_totals(run) for run in runs]
    per_op = _side_by_side([by_op for by_op, _ in parts])
    per_cat = _side_by_side([by_cat for _, by_cat in parts])
    if not any(sum(mean is not None for mean in means) > 1 for means in per_op.values()):
        raise TraceError(f"{runs[0].path} and the other runs have no operation in common")
    order = {cat: at for at, cat in enumerate(per_cat)}
    rows = [SweepRow(name, cat, means) for (name, cat), means in per_op.items()]
    rows.sort(key=lambda row: order[row.cat])
    return Sweep(rows, [SweepRow(cat, cat, means) for cat, means in per_cat.items()])


def run_labels(paths: Sequence[Path]) -> list[str]:
    """Name runs by their directories; files that share one by their own names."""
    folders = [path if path.is_dir() else path.resolve().parent for path in paths]
    shared = len({folder.resolve() for folder in folders}) < len({path.resolve() for path in paths})
    return labels(paths if shared else folders)


def _totals(run: MeasuredRun) -> tuple[_Totals[tuple[str, str]], _Totals[str]]:
    """Return (nanoseconds, events) per (operation without partition, category), and per category."""
    ops = operations(run, tell_workers=False)
    system = dialects.named(run.dialects[0])
    by_op: _Totals[tuple[str, str]] = {}
    by_cat: _Totals[str] = {}
    for key, total, count in zip(
        ops.keys, ops.total_ns.sum(1).tolist(), ops.count.sum(1).tolist(), strict=True
    ):
        cat = system.category(key.name, key.cat)
        name = str(OpName.parse(key.name)._replace(key=None))
        _add(by_op, (name, cat), total, count)
        _add(by_cat, cat, total, count)
    return by_op, by_cat


def _add(table: _Totals[_Key], key: _Key, total: float, count: int) -> None:
    before, n = table.get(key, (0.0, 0))
    table[key] = (before + total, n + count)


def _side_by_side(tables: Sequence[_Totals[_Key]]) -> dict[_Key, list[float | None]]:
    """Return the averages per key and run, keys by first appearance."""
    keys = dict.fromkeys(key for table in tables for key in table)
    return {
        key: [table[key][0] / table[key][1] if key in table else None for table in tables] for key in keys
    }
