"""A device whose clock changes, and one that pauses between its kernels."""

from __future__ import annotations

from pathlib import Path

from answers import diagnosed, titles
from made_jobs import DeviceStep, device

from dag_utils import load_steps
from replay.edit import EditRequest, Job
from replay.forecast import Forecasts
from trace_utils import Request


def test_kernels_that_all_take_longer_are_told_as_the_devices_clock(tmp_path: Path) -> None:
    pace = [1.0] * 12 + [1.2] * 12
    path, _ = device(tmp_path / "job", DeviceStep(pace=pace), steps=24)
    (finding,) = (one.finding for one in diagnosed(path).findings if one.finding.kind == "outlier_steps")
    assert finding.title == "from step 12 on a step takes 8.00 ms longer"
    assert "kernels of all kinds take 20 % longer, as where a device lowers its clock" in finding.cause


def test_a_forecast_allows_for_another_clock_in_another_run(tmp_path: Path) -> None:
    widths = []
    for name, pace in (("steady", [1.0] * 12), ("changing", [1.0, 1.1] * 6)):
        path, _ = device(tmp_path / name, DeviceStep(pace=pace), steps=12)
        loaded = load_steps([path], Request(jobs=1, progress=False))
        forecasts = Forecasts(Job.of(loaded), loaded.recording.whole_steps)
        found = forecasts.of([EditRequest("kernel", "0.98")])
        low, high = found.interval_ns or (0, 0)
        widths.append((high - low) / found.after_ns)
    steady, changing = widths
    # the paces 1 and 1.1 in turn have a standard deviation of 5 % of their logarithm
    assert steady < 0.09 < 0.18 < changing


def test_pauses_of_a_device_between_its_kernels_are_told_as_such(tmp_path: Path) -> None:
    """Kernels of 20 µs that wait for none: each begins 3 µs after the one before."""
    job = DeviceStep(kernels=400, launch=0.002, kernel=0.02, pause=0.003)
    path, _ = device(tmp_path / "job", job)
    (title,) = titles(diagnosed(path), "idle")
    assert title == "13 % of the step passes between kernels"
