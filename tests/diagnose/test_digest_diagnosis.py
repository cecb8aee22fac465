"""What `diagnose` tells of a digest: what its traces do, but for what only single events can tell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from answers import answer

from conftest import REPO, few, run_cli

US = 0.001  # milliseconds


def write(path: Path, rank: int, own_us: int, steps: range = range(1, 9)) -> None:
    """Steps of 900 us: computing from 10 to `own_us`, reducing until 600, computing from 610 to 850."""
    events = []
    for number in steps:
        spans = (
            (f"ProfilerStep#{number}", "user_annotation", 0, 900),
            ("aten::mm", "cpu_op", 10, own_us),
            ("gloo:all_reduce", "user_annotation", own_us, 600),
            ("aten::add", "cpu_op", 610, 850),
        )
        for name, cat, begin, end in spans:
            tid = 2 if name.startswith("gloo") else 1
            events.append({"ph": "X", "name": name, "cat": cat, "pid": 1, "tid": tid,
                           "ts": 1000 * number + begin, "dur": end - begin})  # fmt: skip
    info = {"rank": rank, "world_size": 3}
    path.write_text(json.dumps({"schemaVersion": 1, "distributedInfo": info, "traceEvents": events}))


def diagnosed(tmp_path: Path, *more: str) -> dict[str, Any]:
    digest = tmp_path / "job.digest.json.gz"
    code, _, err = run_cli("--option", "statistic", "--path", tmp_path / "job", "--save", digest)
    assert code == 0, err
    code, out, err = run_cli("--option", "diagnose", "--path", digest, "--format", "json", *more)
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Three ranks that compute 290, 390 and 490 us before they reduce, and 240 us after it."""
    (tmp_path / "job").mkdir()
    for rank in range(3):
        write(tmp_path / "job" / f"rank{rank}.json", rank, 300 + 100 * rank)
    return tmp_path


def test_gains_are_those_of_the_sums(job: Path) -> None:
    found = diagnosed(job)
    assert found["iteration_ms"] == pytest.approx(
        {"median": 1.0, "mean": 7.9 / 8, "p95": 1.0}
    )  # the last has no next
    assert (found["ranks"], found["steps"]) == (["rank0", "rank1", "rank2"], list(range(1, 9)))
    kinds = [one["kind"] for one in found["findings"]]
    assert kinds == ["late_rank", "exposed_communication", "uneven_work", "idle", "hot_operation"]
    late, exposed, uneven, idle, hot = found["findings"]
    # rank2 works 800 us of each step, its peers 600 and 700: the step is shorter by what rank1 waits for it
    assert late["scope"]["ranks"] == ["rank2"]
    assert late["scope"]["operations"] == ["aten::mm"]
    assert late["cause"].startswith("its own work takes 0.150 ms longer")
    assert late["gain_ms"]["mid"] == pytest.approx(100 * US)
    assert late["gain_share"] == pytest.approx(100 / 987.5)
    # rank2 itself only communicates for 100 us: that is left when nobody waits for it
    assert exposed["gain_ms"]["mid"] == pytest.approx(100 * US, rel=0.01)
    assert exposed["gain_after_above_ms"] == pytest.approx(100 * US, rel=0.01)
    assert exposed["scope"]["operations"] == ["gloo:all_reduce"]
    # rank2 at the median of the others, 650: all at their mean are 50 us earlier than rank1
    assert uneven["gain_ms"]["mid"] == pytest.approx(50 * US)
    # aten::mm is then 340 us on all; a tenth of it is its gain
    assert hot["gain_ms"]["mid"] == pytest.approx(34 * US)
    # 10 us before aten::mm, 10 before aten::add, 50 after it, 100 until the next step: 1,260 of 7,900
    assert idle["gain_ms"] == {"low": None, "mid": None, "high": None}
    assert idle["title"].startswith("16 % of")
    assert all("from the sums of a digest" in one["caveat"] for one in found["findings"])
    assert all(one["evidence"] == [] and "breakdown" in one["command"] for one in found["findings"])


#: What a digest can be asked for.
BOTH = ("late_rank", "uneven_work", "outlier_steps", "exposed_communication", "hot_operation", "idle")


def of_both(tmp_path: Path, job: Path) -> list[list[dict[str, Any]]]:
    """Return what the traces and the digest of a job are found to have, of the kinds that both can tell."""
    digest = tmp_path / "both.digest.json"
    assert run_cli("--option", "statistic", "--path", job, "--save", digest)[0] == 0
    return [[one for one in answer(path)["findings"] if one["kind"] in BOTH] for path in (job, digest)]


def test_a_digest_and_its_traces_give_the_same_findings(job: Path) -> None:
    of_traces, of_digest = of_both(job, job / "job")
    for one, other in zip(of_traces, of_digest, strict=True):
        assert (one["kind"], one["scope"]["ranks"]) == (other["kind"], other["scope"]["ranks"])
        if one["kind"] != "idle":  # the pause before the next step, which no digest has, is idle too
            assert one["gain_ms"]["mid"] == pytest.approx(other["gain_ms"]["mid"], rel=1e-6)
            assert one["title"] == other["title"] or one["kind"] == "uneven_work"
            assert one["scope"]["operations"] == other["scope"]["operations"]


@pytest.mark.slow
@pytest.mark.parametrize("name", few(1, ["byteps/fork_lenet_straggler", "kineto/ddp2-gloo-slow-rank1"]))
def test_a_digest_and_its_traces_name_the_same_late_rank(
    shared_data: Path, tmp_path: Path, name: str
) -> None:
    late = [
        [one["scope"]["ranks"] for one in found if one["kind"] == "late_rank"]
        for found in of_both(tmp_path, shared_data / name)
    ]
    assert late[0] == late[1] != []


@pytest.mark.fuzz
def test_a_digest_and_its_traces_of_ranks_that_wait_in_turn_agree(shared_data: Path, tmp_path: Path) -> None:
    of_traces, of_digest = of_both(tmp_path, shared_data / "kineto" / "ddp4-gloo-base")
    assert [one["kind"] for one in of_traces] == [one["kind"] for one in of_digest]
    for one, other in zip(of_traces, of_digest, strict=True):
        if one["gain_ms"]["mid"] is not None:
            assert one["gain_ms"]["mid"] == pytest.approx(other["gain_ms"]["mid"], rel=0.15)


def test_what_needs_events_is_not_examined(job: Path) -> None:
    found = diagnosed(job)
    reasons = {one["kind"]: one["reason"] for one in found["skipped"]}
    assert {"small_messages", "host_sync", "copies", "memory"} <= set(reasons)
    assert set(reasons.values()) == {"a digest holds no single events; give the traces"}
    assert not set(reasons) & {one["kind"] for one in found["findings"]}


def test_ranks_that_work_alike_are_not_late(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    for rank in range(3):
        write(tmp_path / "job" / f"rank{rank}.json", rank, 400)
    assert "late_rank" not in [one["kind"] for one in diagnosed(tmp_path)["findings"]]


def test_a_long_step_is_an_outlier_and_no_rank_is_late_for_it(job: Path) -> None:
    path = job / "job" / "rank0.json"
    trace = json.loads(path.read_text())
    for event in trace["traceEvents"]:  # the last step takes 9,000 us on each rank
        if event["name"] == "ProfilerStep#8":
            event["dur"] = 9_000
    for rank in range(3):
        own = json.loads((job / "job" / f"rank{rank}.json").read_text())
        next(one for one in own["traceEvents"] if one["name"] == "ProfilerStep#8")["dur"] = 9_000
        (job / "job" / f"rank{rank}.json").write_text(json.dumps(own))
    first = diagnosed(job)["findings"][0]
    assert (first["kind"], first["scope"]["steps"]) == ("outlier_steps", [8])
    assert first["gain_ms"]["mid"] == pytest.approx((9_000 - 1_000) / 8 * US)


def test_steps_of_different_numbers_are_no_job(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    write(tmp_path / "job" / "rank0.json", 0, 300, range(1, 5))
    write(tmp_path / "job" / "rank1.json", 1, 300, range(5, 9))
    digest = tmp_path / "d.json"
    assert run_cli("--option", "statistic", "--path", tmp_path / "job", "--save", digest)[0] == 0
    code, _, err = run_cli("--option", "diagnose", "--path", digest)
    assert code == 1
    assert err == f"analyze.py: error: {digest}: no step is in every rank of this digest\n"


def test_what_does_not_go_with_a_digest_is_refused(job: Path) -> None:
    diagnosed(job)
    digest = str(job / "job.digest.json.gz")
    for words in (["--path", digest, digest], ["--path", digest, "--filter", "gloo:all_reduce"],
                  ["--path", digest, "--step_by", "other"]):  # fmt: skip
        code, _, err = run_cli("--option", "diagnose", *words)
        assert (code, err.count("\n")) == (2, 1), err


def test_the_page_of_a_digest_has_its_charts(job: Path) -> None:
    page = job / "page.html"
    diagnosed(job, "--html", str(page))
    text = page.read_text()
    assert "holds up the others" in text
    assert "Exposed communication" in text


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lenet", "lenet-100mbit"])
def test_it_speaks_of_the_steps_that_the_traces_have(tmp_path: Path, name: str) -> None:
    digest = tmp_path / "d.json.gz"
    job = REPO / "examples" / name
    assert run_cli("--option", "statistic", "--path", job, "--save", digest)[0] == 0
    of_both = [
        json.loads(run_cli("--option", "diagnose", "--path", path, "--format", "json")[1])
        for path in (digest, job)
    ]
    assert of_both[0]["iteration_ms"] == pytest.approx(of_both[1]["iteration_ms"], rel=1e-3)
    assert of_both[0]["steps"] == of_both[1]["steps"]
    assert "exposed_communication" in [one["kind"] for one in of_both[0]["findings"]]
