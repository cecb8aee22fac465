"""`--comm NAME`: what the user says is communication is so under every option."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from conftest import ask, run_cli
from make import span, step, write

COMM = ("--comm", "shuffle")


def job(folder: Path, name: str = "moe_shuffle_kernel") -> Path:
    """Write two ranks with two steps of 1 ms: 600 us of gemm, and 300 us of another kernel on stream 9.

    The last 100 us of the second kernel run alone.
    """
    for rank in range(2):
        events: list[dict[str, Any]] = []
        for number, at in ((1, 0), (2, 1000)):
            gemm = span("gemm", at + 100, 600, "kernel", 0, 7)
            other = span(name, at + 500, 300, "kernel", 0, 9)
            events += [step(number, at, 1000), gemm, other, span("aten::shuffle", at + 10, 5, "cpu_op", 1, 1)]
        info = {"rank": rank, "world_size": 2}
        write(folder / f"rank{rank}.pt.trace.json", events, schemaVersion=1, distributedInfo=info)
    return folder


def answer(*words: object) -> Any:
    return ask(*words, "--jobs", 1)


@pytest.mark.parametrize(("words", "expected"), [((), (0.0, 0.0)), (COMM, (0.3, 0.1))])
def test_a_breakdown_counts_named_communication(
    tmp_path: Path, words: Sequence[str], expected: tuple[float, float]
) -> None:
    found = answer("--option", "statistic", "--path", job(tmp_path), "--sub_option", "breakdown", *words)
    rows = [(row["comm_ms"], row["exposed_comm_ms"]) for row in found["breakdown"]]
    assert rows == [pytest.approx(expected)] * 4


def test_an_unknown_name_is_noted(tmp_path: Path) -> None:
    code, _, err = run_cli("--option", "statistic", "--path", job(tmp_path), "--comm", "dispatch", *COMM)
    assert (code, err.count("(--comm)")) == (0, 1)
    assert "no operation that may communicate has 'dispatch' in its name" in err


def test_a_digest_keeps_its_rule_for_communication(tmp_path: Path) -> None:
    digest = tmp_path / "digest.json"
    words = ("--option", "statistic", "--path")
    assert run_cli(*words, job(tmp_path / "job"), *COMM, "--save", digest)[0] == 0
    found = answer(*words, digest, "--sub_option", "breakdown")["breakdown"]
    assert [row["comm_ms"] for row in found] == pytest.approx([0.3] * 4)
    code, _, err = run_cli(*words, digest, *COMM)
    assert code == 2
    assert "was saved with its own rule for communication" in err
