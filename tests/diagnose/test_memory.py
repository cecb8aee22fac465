"""Memory events of which every peak is known, and what recording costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from answers import diagnosed, titles
from made_jobs import DeviceStep, Job, byteps, device


@pytest.mark.parametrize(
    ("peaks", "words"),
    [
        ([5.0, 5.1, 5.2, 5.3, 5.4, 5.5, 5.6, 5.7], "grows from step to step"),
        ([39.0] * 8, "nearly full"),
        ([5.0, 5.4, 5.1, 5.2, 5.3, 5.0, 5.1, 5.2], ""),
    ],
)
def test_memory_that_grows_or_fills_the_device(tmp_path: Path, peaks: Sequence[float], words: str) -> None:
    directory, _ = device(tmp_path / "job", replace(DeviceStep(), peak_gb=peaks))
    found = titles(diagnosed(directory), "memory")
    assert len(found) == bool(words)
    assert all(words in title for title in found)


def test_a_rank_that_needs_much_more_memory_than_the_others(tmp_path: Path) -> None:
    home = tmp_path / "job"
    home.mkdir()
    for rank, peak in enumerate((10.0, 10.5, 20.0)):
        directory, _ = device(tmp_path / str(rank), replace(DeviceStep(), peak_gb=[peak] * 8))
        (directory / "rank0.pt.trace.json").rename(home / f"rank{rank}.pt.trace.json")
    assert titles(diagnosed(home), "memory") == ["rank2 needs much more memory than the other ranks"]


def test_memory_that_is_not_recorded_is_skipped_with_the_reason(tmp_path: Path) -> None:
    directory, _ = device(tmp_path / "job", DeviceStep())
    assert "memory" in [one.kind for one in diagnosed(directory).skipped]


def test_memory_of_the_host_alone_is_said_to_be_none_of_a_device(tmp_path: Path) -> None:
    directory, _ = device(tmp_path / "job", replace(DeviceStep(), peak_gb=[5.0] * 8))
    path = directory / "rank0.pt.trace.json"
    path.write_text(path.read_text().replace('"Device Type": 1', '"Device Type": 0'))
    (skipped,) = [one for one in diagnosed(directory).skipped if one.kind == "memory"]
    assert skipped.reason == "memory events of the host are recorded, but none of a device"


@pytest.mark.parametrize(("before_ms", "is_found"), [(80.0, True), (100.1, False)])
def test_traced_steps_that_take_longer_than_those_before(
    tmp_path: Path, before_ms: float, is_found: bool
) -> None:
    # a traced step takes 1 + 40 + 50 + 4 + 5 = 100 ms; the first steps before them are the warm-up
    before = [500.0, 300.0, *(before_ms + 0.1 * (i % 3) for i in range(10))]
    diagnosis = diagnosed(byteps(tmp_path / "job", replace(Job(ranks=2), before=before)))
    found = titles(diagnosis, "profiling_overhead")
    assert bool(found) == is_found
    assert all("25 % longer" in title for title in found)
