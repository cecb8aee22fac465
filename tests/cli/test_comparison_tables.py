"""`cli.compare.comparison_tables`: what people see of a comparison."""

from __future__ import annotations

from msgspec.structs import replace

from analyzer.answers.compare.comparison import Comparison, OpChange
from analyzer.answers.compare.significance import Change
from analyzer.cli.compare.comparison_tables import change_record, charts_of, tables_of
from analyzer.report.result import Bars, Table


def _comparison(*ops: OpChange, only_a: int = 0, only_b: int = 0) -> Comparison:
    alone = {"a": (only_a, (5, 0), Change(1e6, None)), "b": (only_b, (0, 5), Change(None, 1e6))}
    only = tuple(
        [OpChange(f"{side}{i}", "c", "c", count, average, Change(0.0, 0.0)) for i in range(n)]
        for side, (n, count, average) in alone.items()
    )
    return Comparison(None, None, ("a", "b"), ops, only, (), Change(1e6, 2e6), (5, 5), ())  # type: ignore[arg-type]


def _tables(found: Comparison, *, brief: bool = False) -> dict[str, Table]:
    tables = tables_of(found)
    return {table.name: table for table in tables if table.brief == brief}


def test_cells_are_those_of_the_columns() -> None:
    assert change_record(Change(10e6, 12e6, 1e6, 3e6, 0.01)) == {
        "avg_absolute_ms": 2.0, "avg_relative": 0.2, "significant": True, "p_value": 0.01,
        "ci_low_ms": 1.0, "ci_high_ms": 3.0,
    }  # fmt: skip


def test_what_only_one_run_has_is_among_what_explains_most() -> None:
    both = OpChange("FW.a", "c", "c", (5, 5), _change(5.0, 6.0), _change(5.0, 6.0))
    new = OpChange("spin", "c", "c", (0, 5), Change(None, 20e6), Change(0.0, 20e6, p=0.001))
    gone = OpChange("old", "c", "c", (5, 0), Change(3e6, None), Change(3e6, 0.0))
    found = replace(_comparison(), operations=[both], only_in=([gone], [new]))
    table = _tables(found, brief=True)["operations"]
    assert [tuple(row) for row in table.rows] == [
        ("spin", 20.0, None, 20.0, True), ("old", -3.0, 3.0, None, False), ("FW.a", 1.0, 5.0, 6.0, False),
    ]  # fmt: skip
    [*_, bars] = charts_of(found)
    assert isinstance(bars, Bars)
    assert bars.series == {"change": [20.0, -3.0, 1.0]}


def _change(a_ms: float, b_ms: float) -> Change:
    return Change(a_ms * 1e6, b_ms * 1e6)
