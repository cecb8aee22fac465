"""Laws of what every option shows first, on recorded jobs of all systems."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from analyzer.base.units import in_ms
from conftest import REPO, few, run_cli

pytestmark = pytest.mark.slow

JOBS = (
    "lenet", "ddp-h200", "horovod/2ranks-base/trace", "step-logs/a", "kineto/gpu-param-dlrm-8ranks/trace",
    "kineto/ddp2-gloo-base/trace", "jax/slow1of2", "nsys/mfu_2gpu_before.sqlite", "composer/ws2/trace",
    "nccl-flight-recorder/gpu_error_1st", "byteps/fork_lenet_straggler", "dasf/one-host-2workers/trace",
    "kineto/gpu-hta-rank0of16/trace", "generic/cmake", "pipeline/straggler-AR",
    "kineto/gpu-tracelens-ddp-mi300-rank0of8/trace", "horovod/2ranks-slow-rank1/trace",
)  # fmt: skip
#: Options that write nothing unasked.
OPTIONS = ("diagnose", "statistic", "breakdown", "collectives", "kernels", "critical", "replay", "whatif")


@pytest.fixture
def screens(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """The lines of each option on a terminal of 80 columns; no option may write a file."""
    (tmp_path / "here").mkdir()
    (tmp_path / "job").symlink_to(path)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("COLUMNS", "80")
    before = files_at(path)
    shown = {}
    for option in (*OPTIONS, "compare"):
        more = [tmp_path / "job"] if option == "compare" else []
        code, out, _ = run_cli(option, tmp_path / "job", *more)
        if code == 0:
            shown[option] = out.splitlines()
    assert (files_at(path), os.listdir()) == (before, [])
    return shown


def files_at(path: Path) -> list[tuple[str, float]]:
    return sorted((str(file), file.stat().st_mtime) for file in [path, *path.rglob("*")])


@pytest.mark.parametrize("job", few(2, JOBS))
def test_lines_fit_durations_are_legible_and_nothing_is_written(screens: dict[str, list[str]]) -> None:
    assert "diagnose" in screens
    for option, lines in screens.items():
        # commands are not broken, so that they can be copied, nor are single words, such as a path
        wide = [line for line in lines if len(line) > 80 and "analyze.py" not in line and " " in line.strip()]
        assert not wide, option
        words = [line for line in lines if "  " not in line.strip()]  # tables are in ms
        long = [line for line in words if re.search(r"\d\d,\d{3} ms", line)]
        assert not long, option


def documents(path: Path) -> Iterator[dict[str, Any]]:
    for words in (("diagnose", path), ("whatif", path)):
        code, out, _ = run_cli(*words, "--format", "json")
        if code == 0:
            yield json.loads(out)


def gains(document: dict[str, Any], *, assumed: bool) -> list[float]:
    """What the findings save, by the order of the list: those of causes, or those that every job has."""
    shown = [finding for finding in document["findings"] if finding["gain_ms"]["mid"] is not None]
    return [
        finding["gain_ms"]["mid"] / (3 if finding["kind"] == "outlier_steps" else 1)  # may not happen again
        for finding in shown
        if ("the gain assumes" in finding["caveat"]) is assumed
    ]


@pytest.mark.parametrize("job", few(2, JOBS))
def test_findings_are_in_the_order_of_savings_that_are_certain(path: Path) -> None:
    for document in documents(path):
        if document["option"] == "replay":
            lows = [edit["interval_ms"] and edit["interval_ms"][1] < edit["before_ms"]
                    for edit in document["whatif"]]  # fmt: skip
            assert all(low is not False for low in lows)
            continue
        for group in (gains(document, assumed=False), gains(document, assumed=True)):
            assert all(a >= b for a, b in pairwise(group))
        bounds = [finding["gain_ms"] for finding in document["findings"]]
        assert all(gain["low"] is None or gain["low"] > 0 for gain in bounds)
        if "can be saved" in document["headline"]:
            assert any(in_ms(1e6 * gain["mid"]) in document["headline"] for gain in bounds if gain["mid"])


@pytest.mark.parametrize("job", few(2, JOBS))
def test_the_share_of_a_saving_is_of_the_step_of_the_headline(path: Path) -> None:
    document = json.loads(run_cli("diagnose", path, "--format", "json")[1])
    for finding in document["findings"]:
        if finding["gain_share"] is not None and "from_step" not in finding["scope"]:
            share = finding["gain_ms"]["mid"] / document["iteration_ms"]["real"]["mid"]
            assert finding["gain_share"] == pytest.approx(share)


def test_a_saving_that_assumes_free_transfers_is_an_upper_bound() -> None:
    free, late = (
        json.loads(run_cli("diagnose", REPO / "examples" / job, "--format", "json")[1])["findings"][0]
        for job in ("lenet", "ddp-h200")
    )
    assert (free["kind"], free["bound"]) == ("exposed_communication", "upper")
    assert (late["kind"], late["bound"]) == ("late_rank", None)


@pytest.mark.parametrize("job", few(2, JOBS))
def test_all_options_speak_of_one_length_of_a_step(path: Path) -> None:
    told = {}
    for words in (("diagnose",), ("breakdown",), ("compare", path)):
        code, out, _ = run_cli(*words[:1], path, *words[1:], "--format", "json")
        document = json.loads(out) if code == 0 else {}
        takes = re.search(
            r"takes (?:about )?([\d,.]+ m?s)|: ([\d,.]+ m?s) a step", document.get("headline", "")
        )
        if takes:
            told[words[0]] = takes[1] or takes[2]
    if "compare" in told:  # of the step without the profiler, where that is another
        real = json.loads(run_cli("diagnose", path, "--format", "json")[1])["iteration_ms"]["real"]
        assert told.pop("compare") in {*told.values(), real and in_ms(1e6 * real["mid"])}
    assert len(set(told.values())) <= 1
