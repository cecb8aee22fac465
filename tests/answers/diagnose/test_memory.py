"""Memory events of which every peak is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from answers import diagnosed, titles
from made_jobs import DeviceStep, device


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


def test_memory_events_of_the_host_alone_skip_the_finding(tmp_path: Path) -> None:
    directory, _ = device(tmp_path / "job", replace(DeviceStep(), peak_gb=[5.0] * 8))
    path = directory / "rank0.pt.trace.json"
    path.write_text(path.read_text().replace('"Device Type": 1', '"Device Type": 0'))
    (skipped,) = [one for one in diagnosed(directory).skipped if one.kind == "memory"]
    assert skipped.reason == "memory events of the host are recorded, but none of a device"


@pytest.mark.parametrize("kind", [6, 12, 20])
def test_memory_of_hip_xpu_and_other_devices_counts(tmp_path: Path, kind: int) -> None:
    """Older ROCm builds of PyTorch write HIP (6) for what is CUDA (1) in all others."""
    directory, _ = device(tmp_path / "job", replace(DeviceStep(), peak_gb=[39.0] * 8))
    path = directory / "rank0.pt.trace.json"
    path.write_text(path.read_text().replace('"Device Type": 1', f'"Device Type": {kind}'))
    assert ["nearly full" in title for title in titles(diagnosed(directory), "memory")] == [True]
