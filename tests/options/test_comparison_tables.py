"""`options.compare.comparison_tables`: what people see of a comparison."""

from __future__ import annotations

import json
from argparse import Namespace

from msgspec.structs import replace

from compare.comparison import Comparison, OpChange
from compare.significance import Change
from options.compare.comparison_tables import change_record, charts_of, tables_of
from report.html import _table as html_table
from result import Bars, Table


def _comparison(*ops: OpChange, only_a: int = 0, only_b: int = 0) -> Comparison:
    alone = {"a": (only_a, (5, 0), Change(1e6, None)), "b": (only_b, (0, 5), Change(None, 1e6))}
    only = tuple(
        [OpChange(f"{side}{i}", "c", "c", count, average, Change(0.0, 0.0)) for i in range(n)]
        for side, (n, count, average) in alone.items()
    )
    return Comparison(None, None, ("a", "b"), ops, only, (), Change(1e6, 2e6), (5, 5), ())  # type: ignore[arg-type]


def _tables(found: Comparison, head: int | None = None) -> dict[str, Table]:
    tables = tables_of(found, Namespace(sort=False, head=head, full=False), alone=True)
    return {table.name: table for table in tables}


def test_cells_are_those_of_the_columns() -> None:
    assert change_record(Change(10e6, 12e6, 1e6, 3e6, 0.01)) == {
        "avg_absolute_ms": 2.0, "avg_relative": 0.2, "significant": True, "p_value": 0.01,
        "ci_low_ms": 1.0, "ci_high_ms": 3.0,
    }  # fmt: skip


def test_rows_that_may_be_chance_are_told_apart() -> None:
    sure, chance = Change(10e6, 12e6, 1e6, 3e6, 0.01), Change(1e6, 17e6, -1e6, 30e6, 0.51)
    ops = [OpChange(name, "c", "c", (5, 5), change, change) for name, change in (("x", sure), ("y", chance))]
    table = _tables(_comparison(*ops))["operations"]
    page = html_table(table, {})
    assert page["certain"] is not None
    assert [row[page["certain"]] for row in page["rows"]] == [True, False]
    assert "certain" not in json.dumps([*table.records()])


def test_head_limits_what_only_one_run_has() -> None:
    table = _tables(_comparison(only_a=30, only_b=3), head=2)["only_in"]
    assert [row[1] for row in table.rows] == ["a0", "a1", "b0", "b1"]
    assert table.note.startswith("29 more")
    assert len(_tables(_comparison(only_a=30, only_b=3))["only_in"].rows) == 33


def test_what_only_one_run_has_is_among_what_explains_most() -> None:
    both = OpChange("FW.a", "c", "c", (5, 5), _change(5.0, 6.0), _change(5.0, 6.0))
    new = OpChange("spin", "c", "c", (0, 5), Change(None, 20e6), Change(0.0, 20e6, p=0.001))
    gone = OpChange("old", "c", "c", (5, 0), Change(3e6, None), Change(3e6, 0.0))
    found = replace(_comparison(), operations=[both], only_in=([gone], [new]))
    table = _tables(found)["operations"].brief
    assert table is not None
    assert [tuple(row) for row in table.rows] == [
        ("spin", 20.0, None, 20.0, True), ("old", -3.0, 3.0, None, False), ("FW.a", 1.0, 5.0, 6.0, False),
    ]  # fmt: skip
    [*_, bars] = charts_of(found)
    assert isinstance(bars, Bars)
    assert bars.series == {"change": [20.0, -3.0, 1.0]}


def _change(a_ms: float, b_ms: float) -> Change:
    return Change(a_ms * 1e6, b_ms * 1e6)


def test_changes_are_bars_to_either_side_of_zero() -> None:
    # ms: 10 + 4 + 1 become 16 + 3 + 1; that of the transfers may be chance
    changes = {
        "I/O": Change(1e6, 1e6, -1e6, 1e6, 0.9),
        "Comm": Change(4e6, 3e6, -3e6, 1e6, 0.3),
        "FW": Change(10e6, 16e6, 5e6, 7e6, 0.01),
    }
    categories = tuple(OpChange(cat, cat, cat, (5, 5), change, change) for cat, change in changes.items())
    first, *_ = charts_of(replace(_comparison(), categories=categories, names=("old", "new")))
    assert isinstance(first, Bars)
    assert list(first.x) == ["FW", "Comm (uncertain)"]
    assert first.series == {"change": [6.0, -1.0]}
    assert first.between == [(5.0, 7.0), (-3.0, 1.0)]
