"""Where the boxes of a timeline are drawn, and the names of its path."""

from __future__ import annotations

import pytest

from report.timeline_chart import flags, lane_rows
from result import OnPath, Span, Timeline


def test_spans_of_a_lane_that_overlap_have_rows_of_their_own() -> None:
    spans = [Span("l", "a", 0, 4, "FW"), Span("l", "b", 2, 4, "FW"), Span("l", "c", 4, 1, "FW")]
    rows = [[span.name for span in row] for row in lane_rows(spans)["l"]]
    assert rows == [["a", "c"], ["b"]]


def test_rows_are_fewer_where_all_lanes_together_would_have_too_many() -> None:
    # ten spans at once on each of ten lanes: of 12, 8, 5 and 3 rows a lane the last gives 64 at most
    spans = [Span(f"l{i}", f"s{j}", 0.0, 1.0, "FW") for i in range(10) for j in range(10)]
    assert {len(rows) for rows in lane_rows(spans).values()} == {5 if 10 * 5 <= 64 else 3}


def test_stretches_of_one_name_that_follow_each_other_are_one() -> None:
    spans = [Span("l", "a", 0.0, 20.0, "FW")]
    parts = [("a", 0.0, 2.0), ("a", 2.0, 3.0), ("b", 5.0, 4.0), ("a", 9.0, 1.0)]
    chart = Timeline("T", spans, path=[OnPath(0, start, ms, name) for name, start, ms in parts])
    assert chart.longest(9) == [(0.0, 5.0, "a"), (5.0, 4.0, "b"), (9.0, 1.0, "a")]
    assert chart.longest(2) == [(0.0, 5.0, "a"), (5.0, 4.0, "b")]


def test_names_of_a_path_fly_below_each_other_where_they_would_overlap() -> None:
    # the middles are at 10, 20 and 500 of 1,000 pixels; a text of 9 characters takes about 58
    found = flags([(0.0, 20.0, "first one"), (15.0, 10.0, "secondone"), (450.0, 100.0, "third")], float, 1e3)
    assert [(flag.text, flag.row, flag.left) for flag in found] == [
        ("third", 0, 500.0), ("secondone", 0, 20.0), ("first one", 1, 10.0)
    ]  # fmt: skip


@pytest.mark.parametrize("step", [1.0, 30.0, 70.0])
def test_nothing_goes_through_the_name_of_a_stretch(step: float) -> None:
    stretches = [(i * step, step, f"operation {i}" * (1 + i % 3)) for i in range(10)]
    found = flags(stretches, float, 720.0)
    assert len(found) == 10
    ends = {flag.text: flag.left + 5.8 * len(flag.text) for flag in found}
    assert max(ends.values()) <= 720
    assert [flag.left for flag in found] == sorted(
        (flag.left for flag in found), reverse=True
    )  # no poles cross
    for one in found:
        for other in found:
            if one is not other and one.left <= other.left <= ends[one.text]:
                assert other.row < one.row  # it ends below the text, and its own text is in another row
