"""The slices in which a critical path runs are found by their names and times."""

from __future__ import annotations

from pathlib import Path

import pytest

from dag.marked_timeline import _InnermostSlices
from dialects.step_parts import Operation
from make import span, write
from trace_utils import read_trace


@pytest.mark.parametrize(
    ("name", "moment_us", "row"),
    [("outer", 50, 0), ("op", 20, 1), ("op", 25, 2), ("aten::op", 20, 3), ("op", 90, 4),
     ("FW.a", 95, 5), ("none", 20, 3), ("op", 200, None)],
)  # fmt: skip
def test_a_stretch_lies_in_the_innermost_slice_of_its_name(
    tmp_path: Path, name: str, moment_us: int, row: int | None
) -> None:
    """Rows: outer 0-100, op 10-40 and in it op 22-30, aten::op 12-21, op 80-90, rank0.FW.a 91-99."""
    spans = (("outer", 0, 100), ("op", 10, 30), ("op", 22, 8), ("aten::op", 12, 9), ("op", 80, 10),
             ("rank0.FW.a", 91, 8))  # fmt: skip
    events = [span(name, ts, dur, "x") | {"pid": 1, "tid": 1} for name, ts, dur in spans]
    write(tmp_path / "t.json", events)
    trace = read_trace(tmp_path / "t.json")
    assert _InnermostSlices(trace).at(Operation(name, "x", trace.tracks[0]), 1000 * moment_us) == row
