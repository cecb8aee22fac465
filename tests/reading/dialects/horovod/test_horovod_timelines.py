"""Fragments of Horovod's timelines are read, and nothing is said of an overlap that they do not record."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conftest import ask


def events(rounds: int, tensors: int = 2) -> list[str]:
    """Write rounds of 50 ms: each tensor is negotiated for 1 ms and reduced for 5 ms, one after the other."""
    lines = []
    for i in range(rounds):
        for tensor in range(tensors):
            begin = 1_000_000 + 50_000 * i + 30_000 + 10_000 * tensor
            for phase, name, ts in (
                ("B", "NEGOTIATE_ALLREDUCE", begin), ("E", None, begin + 1000),
                ("B", "ALLREDUCE", begin + 1000), ("E", None, begin + 6000),
            ):  # fmt: skip
                event = {"ph": phase, "ts": ts, "pid": tensor + 1} | ({"name": name} if name else {})
                lines.append(json.dumps(event) + ",")
    return lines


def rounds_of(path: Path) -> list[tuple[float, float]]:
    """Take length and communication of each whole round in ms."""
    rows = ask("--option", "statistic", "--sub_option", "breakdown", "--path", path)["breakdown"]
    return [(row["wall_ms"], row["comm_ms"]) for row in rows]


def test_a_recorded_fragment_has_its_whole_rounds(shared_data: Path) -> None:
    path = shared_data / "cases" / "headless-horovod" / "timeline.json"
    assert rounds_of(path) == [pytest.approx((100.0, 24.0), rel=0.01)] * 2


def claims(path: Path) -> list[tuple[str, float | None]]:
    """Take titles and savings of findings about the overlap of communication."""
    findings = ask("--path", path)["findings"]
    return [
        (finding["title"], finding["gain_ms"]["mid"])
        for finding in findings
        if finding["kind"] == "exposed_communication"
    ]


def test_no_saving_where_only_communication_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    path.write_text("[\n" + "\n".join(events(6)))
    assert claims(path) == [("communication takes 20 % of the step; its overlap is not recorded", None)]


def test_no_saving_in_a_recorded_timeline(shared_data: Path) -> None:
    path = shared_data / "cases" / "horovod-overlap-unknown" / "timeline.json"
    assert claims(path) == [("communication takes 24 % of the step; its overlap is not recorded", None)]
