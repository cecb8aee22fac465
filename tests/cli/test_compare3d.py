"""`--option 3dcompare`: averages side by side, gaps where a run lacks an operation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conftest import ask, run_cli
from make import comm, write
from make import span as x


def run(folder: Path, push: float, *, extra: bool = False) -> Path:
    """A GPU's directory: two partitions pushed for `push` and `push` + 10 µs, FW, and maybe BW."""
    events = [comm("w", "PUSH", 65536 + part, 100 * n, push + 10 * part) for n in range(3) for part in (0, 1)]
    events += [x("FW.a", 100 * n, 40, "operator") for n in range(3)]
    if extra:
        events += [x("BW.a", 100 * n + 40, 20, "operator") for n in range(3)]
    return write(folder / "bps_trace_final.json", events).parent


def document(tmp_path: Path, *args: object) -> dict[str, Any]:
    output = tmp_path / "sweep.svg"
    found: dict[str, Any] = ask("3dcompare", *args, "--output", output, "--force")
    return found


def test_partitions_are_averaged_into_one_operation_per_run(tmp_path: Path) -> None:
    found = document(tmp_path, run(tmp_path / "bs16", 20), run(tmp_path / "bs32", 50))
    rows = {row["name"]: (row["cat"], row["avg_ms"]) for row in found["operations"]}
    assert rows["Comm.w.PUSH"] == ("PUSH", pytest.approx([0.025, 0.055]))
    assert rows["FW.a"] == ("FW", pytest.approx([0.04, 0.04]))


def test_steps_are_those_that_a_mark_begins(tmp_path: Path) -> None:
    events = [x("turn", 100 * n, 90) for n in range(4)] + [x("a", 50 * n, 10) for n in range(8)]
    path = write(tmp_path / "t.json", events)
    assert (
        document(tmp_path, path, path, "--step_by", "turn")["iteration_ms"] == [0.0975] * 2
    )  # 100, 100, 100, 90 µs
    assert document(tmp_path, path, path, "--step_by", "a")["iteration_ms"] == [0.045] * 2


def test_what_a_run_lacks_is_a_gap(tmp_path: Path) -> None:
    found = document(tmp_path, run(tmp_path / "a", 20), run(tmp_path / "b", 20, extra=True))
    assert next(row for row in found["operations"] if row["name"] == "BW.a")["avg_ms"] == [None, 0.02]
    assert next(row for row in found["categories"] if row["cat"] == "BW")["avg_ms"] == [None, 0.02]


def test_an_output_that_is_no_picture_is_refused(tmp_path: Path) -> None:
    path = run(tmp_path / "a", 20)
    status, out, err = run_cli("3dcompare", path, path, "--output", "x.doc")
    assert (status, out, err.count("\n"), ".html" in err) == (2, "", 1, True)
