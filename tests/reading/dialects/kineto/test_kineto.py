"""The machine of a recording of PyTorch's profiler, and the functions that cover a pause."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analyzer.reading.dialects.kineto import Kineto
from analyzer.reading.formats.columns import no_slices
from make import span, write
from trace_utils import read_trace


def test_the_header_names_the_machine() -> None:
    headers: list[dict[str, Any]] = [{"host_name": "node7"}, {"host_name": None}, {"host_name": "localhost"}]
    machines = [Kineto().machine(no_slices("t.json", "kineto", header, [])) for header in headers]
    assert machines == ["node7", "", ""]


@pytest.mark.parametrize(
    ("inner", "covers"),
    [
        ("<method 'acquire' of '_thread.lock' objects>", "__next__"),
        ("threading.py(320): wait", "__next__"),
        ("<built-in function sleep>", "sleep"),
        ("<method 'sort' of 'list' objects>", "sort"),
        ("data.py(7): decode", "decode"),
    ],
)
def test_of_functions_the_innermost_that_does_more_than_wait_covers_a_pause(
    tmp_path: Path, inner: str, covers: str
) -> None:
    """Thread 2 only waits, for longer than the pause; in microseconds."""
    slices = [
        ("aten::add", "cpu_op", 1, 0, 1000), ("data.py(3): __next__", "python_function", 1, 1000, 9000),
        (inner, "python_function", 1, 1500, 8000), ("poll.py(1): watch", "python_function", 2, 1400, 8200),
    ]  # fmt: skip
    events = [span(name, ts, dur, cat, 1, tid) for name, cat, tid, ts, dur in slices]
    path = write(tmp_path / "rank0.json", events, schemaVersion=1)
    frames = Kineto().frames(read_trace(path))
    assert frames is not None
    assert frames.during(1_500_000, 9_500_000) == (covers, False)
