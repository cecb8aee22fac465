"""A device whose clock changes, and one that pauses between its kernels."""

from __future__ import annotations

from pathlib import Path

from answers import diagnosed, titles
from made_jobs import DeviceStep, device

from dag_utils import load_steps
from replay.edit import EditRequest, Job
from replay.forecast import Forecasts
from trace_utils import Request


def relative_width(job: DeviceStep, path: Path, edit: EditRequest, steps: int = 12) -> float:
    """Return how wide the interval of an edited job is, as a share of its step."""
    path, _ = device(path, job, steps=steps)
    loaded = load_steps([path], Request(jobs=1, progress=False))
    found = Forecasts(Job.of(loaded), loaded.recording.whole_steps).of([edit])
    low, high = found.interval_ns or (0, 0)
    return (high - low) / found.after_ns


def test_a_forecast_allows_for_another_clock_in_another_run(tmp_path: Path) -> None:
    steady, changing = (
        relative_width(DeviceStep(pace=pace), tmp_path / name, EditRequest("kernel", "0.98"))
        for name, pace in (("steady", [1.0] * 12), ("changing", [1.0, 1.1] * 6))
    )
    # the paces 1 and 1.1 in turn have a standard deviation of 5 % of their logarithm
    assert steady < 0.09 < 0.18 < changing


def test_a_forecast_allows_for_another_pace_of_launches_in_another_run(tmp_path: Path) -> None:
    """A host that launches 100 kernels of 10 µs in 20 ms; beside it one that loads for 180 ms as well."""
    launching, loading = (
        relative_width(
            DeviceStep(kernels=100, launch=0.2, kernel=0.01, load=load),
            tmp_path / f"loads for {load}",
            EditRequest("kernel", "1"),
        )
        for load in (0.0, 180.0)
    )
    # nine tenths of 15 % (the device works for a twentieth), to both sides 1.96 times; and a tenth of that
    assert 0.45 < launching < 0.65
    assert loading < 0.15


def test_pauses_of_a_device_between_its_kernels_are_told_as_such(tmp_path: Path) -> None:
    """Kernels of 20 µs that wait for none: each begins 3 µs after the one before."""
    job = DeviceStep(kernels=400, launch=0.002, kernel=0.02, pause=0.003)
    path, _ = device(tmp_path / "job", job)
    (title,) = titles(diagnosed(path), "idle")
    assert title == "13 % of the step is between kernels"
