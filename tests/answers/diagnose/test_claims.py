"""What a diagnosis claims: savings above chance, ranks that work much longer, and no error of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from answers import answer, diagnosed
from made_jobs import WRITERS, Job

from analyzer.answers.diagnose import diagnosis as diagnosis_module
from analyzer.answers.diagnose.diagnosis import Ranked, further, headline
from analyzer.answers.diagnose.finding import Finding, edit
from analyzer.answers.diagnose.steps.detectors.late_ranks import _extra_work, compared_operations
from analyzer.answers.diagnose.steps.job_view import JobView
from conftest import run_cli
from dag_utils import load_steps
from make import span, step, write
from replay.forecast import Gain
from replay.slowdown import slowdown, slowdown_ratio


@pytest.mark.parametrize(("low_ns", "is_claimed"), [(-1.0, False), (0.0, False), (1.0, True), (None, True)])
def test_an_interval_that_includes_zero_claims_no_saving(low_ns: float | None, is_claimed: bool) -> None:
    finding = Finding(kind="input", title="the loader is slow", cause="", action="")
    ranked = Ranked(finding, Gain(5.0, low_ns, 9.0))
    assert (ranked.gain is not None) == is_claimed


def test_a_doubtful_saving_is_in_no_headline(tmp_path: Path) -> None:
    """One of ten steps is 300 ms longer: the mean of further steps may be longer or shorter."""
    diagnosis = diagnosed(WRITERS["device"](tmp_path / "job", Job(more_in_step=(4, 300.0))))
    (outlier,) = [ranked for ranked in diagnosis.findings if ranked.finding.kind == "outlier_steps"]
    assert outlier.estimate is not None
    assert outlier.gain is None
    assert outlier.finding.title not in f"{headline(diagnosis)} {further(diagnosis)}".lower()


@pytest.mark.slow
@pytest.mark.parametrize("job", ["kineto/ddp2-gloo-base", "kineto/ddp4-gloo-base", "jax/shard4"])
def test_of_healthy_recorded_jobs_no_doubtful_saving_is_claimed(shared_data: Path, job: str) -> None:
    for finding in answer(shared_data / job)["findings"]:
        gain = finding["gain_ms"]
        assert gain["low"] is None or gain["low"] > 0


@pytest.mark.slow
def test_a_rank_that_works_twice_as_long_as_its_peers_comes_first(shared_data: Path) -> None:
    document = answer(shared_data / "pipeline/straggler-AR")
    first = document["findings"][0]
    assert (first["kind"], first["scope"]["ranks"]) == ("late_rank", ["rank0"])
    assert "45.4 s of work in a step of 46.7 s" in first["cause"]
    # published: without the slow rank a step takes 23.4 of 46.3 s; pauses that remain take 2.9 s
    assert first["gain_ms"]["mid"] == pytest.approx(20_201, rel=0.01)
    assert "rank0 is late" in document["headline"]


@pytest.mark.slow
@pytest.mark.parametrize(("job", "published"), [("straggler-ST", 1.1787), ("straggler-AR", 1.9730)])
def test_a_pipeline_has_its_published_slowdown(shared_data: Path, job: str, published: float) -> None:
    recording = load_steps([shared_data / "pipeline" / job]).recording
    assert slowdown_ratio(recording) == pytest.approx(published, abs=0.01)
    assert slowdown_ratio(recording) == pytest.approx(slowdown(recording).ratio)
    cause = answer(shared_data / "pipeline" / job)["findings"][0]["cause"]
    assert f"a step takes {slowdown_ratio(recording):.2f} times as long" in cause


def test_a_rank_with_most_of_the_work_comes_first_of_all(tmp_path: Path) -> None:
    """Rank 1 works 60 + 90 ms longer in each step than its three peers."""
    diagnosis = diagnosed(WRITERS["device"](tmp_path / "job", Job(more_forward=[0.0, 150.0, 0.0, 0.0])))
    first = diagnosis.findings[0]
    assert first.finding.scope.ranks == ["rank1"]
    assert "on its peers" in first.finding.cause


def test_work_of_one_rank_alone_is_named_though_steps_scatter(tmp_path: Path) -> None:
    """Rank 1 dumps for 10 ms in each of eight steps; common work takes 40, 60, 80 or 100 ms by turns."""
    common = [[40, 60, 100, 80, 60, 40, 80, 100], [60, 40, 80, 100, 40, 60, 100, 80]]
    for rank, lengths in enumerate(common):
        events: list[dict[str, object]] = []
        for number, work_ms in enumerate(lengths):
            begin, work = 200_000 * number, 1000 * work_ms
            done = begin + work + 10_000 * rank
            events += [
                step(number, begin, 200_000),
                span("work", begin, work, "cpu_op"),
                *[span("dump", begin + work, 10_000, "cpu_op")] * rank,
                span("gloo:all_reduce", done, begin + 190_000 - done, "user_annotation", tid=2),
            ]
        info = {"backend": "gloo", "rank": rank, "world_size": 2}
        path = tmp_path / "job" / f"rank{rank}.pt.trace.json"
        write(path, events, schemaVersion=1, distributedInfo=info)
    view = JobView(load_steps([tmp_path / "job"]))
    cause = _extra_work(view, compared_operations(view))
    assert cause is not None
    assert (cause.owners, cause.most) == ([1], "in dump, which not all ranks run")
    assert cause.late_ns == pytest.approx(10e6)


def test_an_edit_that_cannot_be_made_ends_in_no_usage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def odd(_: JobView) -> Iterator[Finding]:
        yield Finding(kind="input", title="odd", cause="", action="", edits=[edit("no such name", 0.001)])

    monkeypatch.setattr(diagnosis_module, "DETECTORS", ((odd,),))
    assert diagnosed(WRITERS["device"](tmp_path / "job", Job())).findings == []


@pytest.mark.parametrize(
    "case", ["attack-same-moment-ranks", "attack-own-edit-refused", "attack-loads-at-one-time"]
)
def test_times_that_stand_still_end_in_an_answer(shared_data: Path, case: str) -> None:
    code, out, err = run_cli("--path", shared_data / "cases" / case)
    assert (code, "takes" in out) == (0, True), err
