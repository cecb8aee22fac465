"""Jobs in which exactly one thing is wrong by a known amount: it is found first, and nothing else."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from answers import diagnosed, holds, kinds, titles, winning
from made_cells import WITH_WORK
from made_jobs import WRITERS, Job, composer, moments

from analyzer.answers.diagnose.diagnosis import _order, _Search, headline
from analyzer.answers.diagnose.finding import CHANCE, Finding, FindingKind, FindingScope, edit
from analyzer.answers.diagnose.steps.detectors.late_ranks import behind_peers, late_ranks
from conftest import THOROUGH, few, run_cli
from make import span, step, write

HEALTHY = Job()
#: Systems whose traces tell what loads input.
WITH_INPUT = [system for system in WITH_WORK if system != "chrome"]


@pytest.mark.parametrize("ranks", [2, 4, 7])
@pytest.mark.parametrize("jitter", [0.01, 0.03])
@pytest.mark.parametrize("system", few(2, ["kineto", "horovod", "byteps"]))
def test_even_ranks_with_noise_are_not_late(tmp_path: Path, system: str, ranks: int, jitter: float) -> None:
    diagnosis = diagnosed(WRITERS[system](tmp_path / "job", replace(HEALTHY, ranks=ranks, jitter=jitter)))
    assert kinds(diagnosis) == []
    assert diagnosis.view is not None
    assert not any(isinstance(answer, Finding) for answer in late_ranks(diagnosis.view))


@pytest.mark.parametrize(("ranks", "stages"), [(4, 1), (8, 2)])
def test_ranks_alike_are_late_no_more_often_than_by_chance(ranks: int, stages: int) -> None:
    """The detector is asked, before small gains are left out: its test is of 5 %."""
    view: Any = SimpleNamespace(stage=np.arange(ranks) % stages, step_ns=1e8)
    noise = np.random.default_rng(0).normal(size=(200, 10, ranks))
    # by chance; certain, but negligible; certain, but no rank stands out
    for differ, jitter, most in ((0.0, 0.05, 1.5 * CHANCE), (0.005, 0.0005, 0), (0.04, 0.001, 0)):
        works = 9e7 * (1 + view.stage) * np.linspace(1, 1 + differ, ranks) * np.exp(jitter * noise)
        assert np.mean([bool(behind_peers(view, work)) for work in works]) <= most


#: Jobs of one seed each, as unlike as machines: how many ranks, how noisy, how often a rank is disturbed.
NOISY = [
    (system, Job(ranks=ranks, jitter=jitter, hiccups=hiccups))
    for system in WRITERS
    for ranks in (2, 4, 8)
    for jitter in (0.02, 0.05, 0.1)
    for hiccups in (0.0, 0.03)
]


@pytest.mark.slow
@pytest.mark.thorough
def test_in_noisy_jobs_of_even_ranks_hardly_any_rank_is_called_late_slow_or_uneven(tmp_path: Path) -> None:
    called, n = [], 40 if THOROUGH else 10
    for seed in range(n):
        system, job = NOISY[(seed * 7919) % len(NOISY)]
        found = kinds(diagnosed(WRITERS[system](tmp_path / str(seed), replace(job, seed=seed))))
        called += [(seed, kind) for kind in found if kind in ("late_rank", "uneven_work", "slow_collective")]
    assert len(called) <= n // 20, called  # a test of 5 % is made for each


def test_no_loader_is_blamed_where_ranks_wait_at_its_end(tmp_path: Path) -> None:
    """Composer's ranks ask each other, before they leave the loading, whether one has no batch left."""
    job = replace(HEALTHY, load=20.0)
    (slow,) = winning(diagnosed(composer(tmp_path / "composer", job)))
    assert slow.finding.kind == "input"
    assert "does not tell whose loading is slow" in slow.finding.caveat
    (slow,) = winning(diagnosed(WRITERS["kineto"](tmp_path / "kineto", job)))
    assert slow.finding.caveat == ""


@pytest.mark.parametrize("system", few(2, WITH_WORK))
def test_two_late_ranks_are_one_finding_because_each_alone_wins_less(tmp_path: Path, system: str) -> None:
    job = replace(HEALTHY, ranks=5, more_forward=[0.0, 30.0, 0.0, 20.0, 0.0])
    diagnosis = diagnosed(WRITERS[system](tmp_path / "job", job))
    assert kinds(diagnosis) == ["late_rank"]
    (late,) = winning(diagnosis)
    assert late.finding.scope.ranks in (["rank1", "rank3"], ["wk1.rank0", "wk3.rank0"])
    holds(late, 30.0)


def test_of_two_late_ranks_a_timeline_of_negotiations_tells_the_later_one(tmp_path: Path) -> None:
    job = replace(HEALTHY, ranks=5, more_forward=[0.0, 30.0, 0.0, 20.0, 0.0])
    diagnosis = diagnosed(WRITERS["horovod"](tmp_path / "job", job))
    assert kinds(diagnosis) == ["late_rank"]
    (late,) = winning(diagnosis)
    assert late.finding.scope.ranks == ["rank1"]
    holds(late, 30.0 - 20.0)  # then the other one holds them up


def test_a_step_that_began_late_on_all_ranks_hides_no_late_rank_from_a_timeline(tmp_path: Path) -> None:
    job = replace(HEALTHY, ranks=2, more_forward=[0, 25.0])
    directory = WRITERS["horovod"](tmp_path / "job", job)
    events = json.loads((directory / "timeline.json").read_text())
    since = round(moments(job)[0][5].begin * 1000)
    for event in events:
        event["ts"] = event.get("ts", 0) + 400_000 * (event.get("ts", 0) > since)
    (directory / "timeline.json").write_text(json.dumps(events))
    late = next(one for one in winning(diagnosed(directory)) if one.finding.kind == "late_rank")
    assert late.finding.scope.ranks == ["rank1"]
    holds(late, 25.0)


@pytest.mark.parametrize("system", few(2, ["kineto", "composer", "byteps"]))
def test_the_first_step_is_warm_up_and_no_outlier(tmp_path: Path, system: str) -> None:
    diagnosis = diagnosed(WRITERS[system](tmp_path / "job", replace(HEALTHY, more_in_step=(0, 200.0))))
    assert kinds(diagnosis) == []
    (title,) = titles(diagnosis, "profiling_overhead")
    took = re.fullmatch(r"step \d+, the first recorded, took ([\d.]+) ms longer than the others", title)
    assert took is not None
    assert float(took[1]) == pytest.approx(200.0, rel=0.002)


def hiccups(directory: Path, slow: tuple[int, ...], more_ms: int) -> Path:
    """Write a rank with 12 steps of 100 ms, of which the `slow` ones (from 0) take `more_ms` more."""
    events, at = [], 0
    for i in range(12):
        work = 90_000 + 1000 * more_ms * (i in slow)
        events += [step(i, at, work + 10_000), span("aten::mm", at, work - 30_000, "cpu_op"),
                   span("aten::add", at + work - 30_000, 30_000, "cpu_op")]  # fmt: skip
        at += work + 10_000
    info = {"rank": 0, "world_size": 1}
    return write(directory / "rank0.json", events, schemaVersion=1, distributedInfo=info).parent


def test_the_begin_of_slower_steps_is_named(tmp_path: Path) -> None:
    diagnosis = diagnosed(hiccups(tmp_path / "job", (7, 8, 9, 10, 11), 30))
    assert "from step 7 on a step takes 30.0 ms longer" in headline(diagnosis)
    (scope,) = [one.finding.scope for one in diagnosis.findings if one.finding.scope.span]
    assert (scope.span, scope.operations) == ((7, 11, 150e6), ["aten::mm"])
    other = diagnosed(hiccups(tmp_path / "other", (3, 5, 6, 9, 11), 30))  # now and then
    assert not any(one.finding.scope.span for one in other.findings)


@pytest.mark.parametrize(
    ("backward", "more_backward", "is_evaluation"), [(1, 0, True), (1, 8, False), (0, 0, False)]
)
def test_steps_that_run_forward_without_backward_are_evaluations(
    tmp_path: Path, backward: int, more_backward: int, is_evaluation: bool
) -> None:
    # a training step is an operator forward and one backward; steps 3 and 7 run eight more forward, as an
    # evaluation does; with as many backward they accumulate gradients, and without any the job is inference
    events: list[dict[str, object]] = []
    now = 0
    for number in range(12):
        more = number in (3, 7)
        names = ["aten::linear"] * (9 if more else 1)
        names += ["autograd::engine::evaluate_function: AddmmBackward0"] * (backward + more_backward * more)
        events.append(step(number, now, 10_000 * len(names)))
        events += [span(name, now + 10_000 * i, 10_000, "cpu_op") for i, name in enumerate(names)]
        now += 10_000 * len(names)
    info = {"rank": 0, "world_size": 1}
    path = write(tmp_path / "rank0.json", events, schemaVersion=1, distributedInfo=info)
    (title,) = titles(diagnosed(path), "outlier_steps")
    assert title.startswith("steps 3 and 7 take much longer than the others")
    assert title.endswith("without a backward pass, as an evaluation does") == is_evaluation


@pytest.mark.parametrize("more_ms", [30, 180])
def test_recurring_long_steps_are_no_warm_up(tmp_path: Path, more_ms: int) -> None:
    diagnosis = diagnosed(hiccups(tmp_path / "job", (0, 4, 8), more_ms))
    assert titles(diagnosis, "profiling_overhead") == []
    # 3 * 30 / 12 = 7.5 ms, or 45; and a tenth of 60, or of what that is on average (67.5, or 105)
    assert kinds(diagnosis) == ["outlier_steps", "hot_operation"]
    assert winning(diagnosis)[0].finding.scope.steps == [0, 4, 8]
    assert "makes up" not in headline(diagnosis)


def test_steps_that_wait_for_the_loader_now_and_then_are_input_and_no_outliers(tmp_path: Path) -> None:
    # twelve steps of 100 ms; before four of them the loader takes 200 ms
    directory = hiccups(tmp_path / "job", (3, 6, 9, 10), 200)
    (path,) = directory.iterdir()
    document = json.loads(path.read_text())
    for event in document["traceEvents"]:
        if event["name"] == "aten::mm" and event["dur"] > 200_000:
            name = "enumerate(DataLoader)#It.__next__"
            document["traceEvents"].append(span(name, event["ts"], 200_000, "user_annotation"))
            event["ts"], event["dur"] = event["ts"] + 200_000, event["dur"] - 200_000
    path.write_text(json.dumps(document))
    diagnosis = diagnosed(directory)
    assert kinds(diagnosis) == ["input", "hot_operation"]
    found = winning(diagnosis)[0]
    holds(found, 4 * 200 / 12)


def test_an_annotation_is_no_hot_operation_but_time_without_a_recorded_one(tmp_path: Path) -> None:
    (path,) = hiccups(tmp_path / "job", (), 0).iterdir()  # steps of 100 ms, 60 of them in aten::mm
    document = json.loads(path.read_text())
    for event in document["traceEvents"]:
        if event["name"] == "aten::mm":
            event.update(name="## backward ##", cat="user_annotation")
    path.write_text(json.dumps(document))
    diagnosis = diagnosed(path.parent)
    assert kinds(diagnosis) == []
    said = headline(diagnosis)
    assert said.startswith("A step takes 100 ms: 60 % of the step is inside backward")


def waits_unseen(directory: Path) -> Path:
    """Write ten steps of two ranks, of which rank 1 begins and ends each 0.5 ms later.

    In step 5 it computes 50 ms longer. Rank 0 goes on 1 ms before the recorded end of the collective, so
    that it is not seen to wait for that.
    """
    for rank in range(2):
        events: list[dict[str, Any]] = []
        at, later = 0.0, 500.0 * rank
        for i in range(10):
            late = 50_000.0 * (i == 5)
            sent, over = 10_000 + late * rank, 12_000 + late
            early = 1_000 * (late > 0 and rank == 0)
            events += [
                step(i, at + later, over + 4_000),
                span("aten::mm", at + later, sent - later, "cpu_op"),
                span("c10d::allreduce_", at + sent, 100, "cpu_op"),
                span("gloo:all_reduce", at + sent + 100, over - sent - 100, "user_annotation", tid=2),
                span("aten::add_", at + over - early, 3_000 + early, "cpu_op"),
            ]
            at += over + 4_000
        info = {"rank": rank, "world_size": 2, "backend": "gloo"}
        header = {"schemaVersion": 1, "distributedInfo": info, "host_name": "a"}
        write(directory / f"rank{rank}.json", events, **header)
    return directory


def test_the_operation_that_grew_on_the_path_is_blamed_for_a_long_step(tmp_path: Path) -> None:
    (outlier,) = [
        one.finding
        for one in winning(diagnosed(waits_unseen(tmp_path / "job")))
        if one.finding.kind == "outlier_steps"
    ]
    scope = outlier.scope
    assert (scope.steps, scope.ranks, scope.operations) == ([5], ["rank1"], ["aten::mm"])


def test_the_largest_saving_comes_first_whoever_it_is_of() -> None:
    # of a step of 100: launching costs all ranks 60, one rank is late by 11, another one each time by 20
    late = Finding(kind="late_rank", title="", cause="", action="", scope=FindingScope(["rank1"]))
    launching = msgspec.structs.replace(late, kind="host_bound", scope=FindingScope(["rank0", "rank1"]))
    each = msgspec.structs.replace(late, scope=launching.scope)
    forecasts = [(late, _forecast(11.0)), (launching, _forecast(60.0)), (each, _forecast(20.0))]
    placed = sorted(forecasts, key=lambda one: _order(one[0], cast(Any, one[1])))
    assert [one for one, _ in placed] == [launching, each, late]


def _forecast(saved_ns: float) -> SimpleNamespace:
    return SimpleNamespace(saved_ns=saved_ns, before_ns=100.0, gain_ns=SimpleNamespace(low_ns=1.0))


#: Jobs in which two things are wrong: the systems that record both, the job, and what each costs, in order.
PAIRS = (
    (
        [system for system in WRITERS if system != "composer"],
        replace(HEALTHY, transfer=25.0, more_forward=[0.0, 0.0, 0.0, 45.0]),
        {"late_rank": 45.0, "exposed_communication": 25.0},
    ),
    (
        WITH_INPUT,
        replace(HEALTHY, load=20.0, more_forward=[0.0, 35.0, 0.0, 0.0]),
        {"late_rank": 35.0, "input": 20.0},
    ),
    (
        WITH_INPUT,
        replace(HEALTHY, load=25.0, more_forward=[0.0, 10.0, 20.0, 30.0]),
        {"input": 25.0, "uneven_work": 30.0 - 15.0},
    ),
    (
        [system for system in WITH_WORK if system != "composer"],
        replace(HEALTHY, forward=90.0, hot=0.85, transfer=45.0),  # 76.5 of 191 ms
        {"exposed_communication": 45.0, "hot_operation": 0.1 * 76.5},
    ),
)


@pytest.mark.parametrize(
    ("system", "job", "costs"),
    [case for systems, job, costs in PAIRS for case in few(2, ((one, job, costs) for one in systems))],
)
def test_two_things_wrong_are_both_found_in_their_order(
    tmp_path: Path, system: str, job: Job, costs: dict[str, float]
) -> None:
    diagnosis = diagnosed(WRITERS[system](tmp_path / "job", job))
    assert kinds(diagnosis) == [*costs]
    for one, cost_ms in zip(winning(diagnosis), costs.values(), strict=True):
        holds(one, cost_ms)
    assert one.after_above_ns is not None
    assert one.after_above_ns / 1e6 == pytest.approx(cost_ms, rel=0.1)


@pytest.mark.parametrize("system", few(2, WITH_WORK))
def test_a_late_rank_leads_the_headline_though_one_step_costs_more(tmp_path: Path, system: str) -> None:
    job = replace(HEALTHY, more_forward=[0.0, 15.0, 0.0, 0.0], more_in_step=(4, 300.0))
    diagnosis = diagnosed(WRITERS[system](tmp_path / "job", job))
    assert kinds(diagnosis) == ["late_rank", "outlier_steps"]
    late, outlier = winning(diagnosis)
    # in step 4 the other rank has 300 ms more, so 15 ms are won in 9 of 10 steps
    holds(late, 15.0 * 9 / 10, near=0.15)
    assert late.estimate is not None
    assert late.after_above_ns == late.estimate.mid_ns  # nothing is above it
    assert outlier.finding.scope.ranks in (["rank3"], ["wk3.rank0"])
    assert ("is late by" in headline(diagnosis)) == (late.gain is not None)


def test_what_python_ran_in_a_pause_is_named_where_stacks_are_recorded(tmp_path: Path) -> None:
    directory = WRITERS["kineto"](tmp_path / "job", replace(HEALTHY, more_pause=40.0))
    path = directory / "rank3.pt.trace.json"
    document = json.loads(path.read_text())
    for mark in [one for one in document["traceEvents"] if one["name"].startswith("ProfilerStep")]:
        frame = {**mark, "cat": "python_function"}  # a pause of 40 ms, of which sleep takes 35
        document["traceEvents"] += [
            {**frame, "name": "train.py(7): step", "dur": 40_000},
            {**frame, "name": "<built-in function sleep>", "ts": mark["ts"] + 1000, "dur": 35_000},
        ]
    path.write_text(json.dumps(document))
    late = winning(diagnosed(directory))[0].finding
    assert late.evidence[0].name.endswith("__next__, in which sleep ran")


def renamed_loads(directory: Path, rank: int) -> Path:
    """Call what a rank loads otherwise, as nobody else does."""
    path = directory / f"rank{rank}.pt.trace.json"
    document = json.loads(path.read_text())
    for event in document["traceEvents"]:
        if "DataLoader" in event["name"]:
            event["name"] = "evaluate"
    path.write_text(json.dumps(document))
    return directory


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_that_does_what_no_other_does_is_late_by_as_much_as_it_works_longer(
    tmp_path: Path, ranks: int
) -> None:
    even = replace(HEALTHY, ranks=ranks)
    late = replace(even, more_load=[30.0 * (rank == ranks - 1) for rank in range(ranks)])
    assert kinds(diagnosed(renamed_loads(WRITERS["kineto"](tmp_path / "even", even), ranks - 1))) == []
    (found,) = winning(diagnosed(renamed_loads(WRITERS["kineto"](tmp_path / "late", late), ranks - 1)))
    assert found.finding.scope.ranks == [f"rank{ranks - 1}"]
    assert found.finding.scope.operations == ["evaluate"]
    assert "in evaluate, which not all ranks run" in found.finding.title
    holds(found, 30.0)


def test_the_evidence_of_a_late_rank_is_of_a_step_in_which_it_is_late(tmp_path: Path) -> None:
    # two steps of four take 60 ms more on rank 1, 30 on average: the shown one is not one of the others
    directory = WRITERS["kineto"](tmp_path / "job", replace(HEALTHY, ranks=2, steps=4, more_load=[0, 60.0]))
    path = directory / "rank1.pt.trace.json"
    document = json.loads(path.read_text())
    for event in document["traceEvents"][: len(document["traceEvents"]) // 2]:
        if "DataLoader" in event["name"]:
            event["dur"] -= 60_000
    path.write_text(json.dumps(document))
    (late,) = [one.finding for one in winning(diagnosed(directory)) if one.finding.kind == "late_rank"]
    assert late.evidence[0].dur_ns == pytest.approx(61e6, rel=0.05)


def test_a_step_in_which_one_rank_pauses_is_long_and_not_the_next(tmp_path: Path) -> None:
    # the last rank pauses at the end of step 6; in step 7, which it begins late, the others wait for it
    diagnosis = diagnosed(WRITERS["kineto"](tmp_path / "job", replace(HEALTHY, pause_after=(3, 200.0))))
    assert kinds(diagnosis) == ["outlier_steps"]
    (outlier,) = winning(diagnosis)
    assert (outlier.finding.scope.steps, outlier.finding.scope.ranks) == ([6], ["rank3"])
    (seen,) = outlier.finding.evidence
    assert (seen.name, seen.dur_ns) == ("the gap before the next step", 200_000_000)
    holds(outlier, 200.0 / HEALTHY.steps)


def test_operations_that_differ_in_each_step_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = [
        event for i in range(60) for event in (step(i, 100 * i, 90), span(f"op{i}", 100 * i, 80, "cpu_op"))
    ]
    path = write(tmp_path / "rank0.json", events, schemaVersion=1)
    assert run_cli("--option", "diagnose", "--path", path)[0] == 0
    monkeypatch.setattr(
        "analyzer.base.errors._MOST_CELLS", 1000
    )  # there are 60 x 60 and more, and 120 events
    code, out, err = run_cli("--option", "diagnose", "--path", path)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(f"analyze.py: error: {path}: ") and "--step_by NAME" in err


def test_an_operation_of_one_step_only_is_named_with_its_saving(tmp_path: Path) -> None:
    # at the end of step 7 the last rank evaluates: 8 times 20 ms of an operator that no other step has
    directory = WRITERS["kineto"](tmp_path / "job", replace(HEALTHY, pause_after=(4, 160.0)))
    path = directory / "rank3.pt.trace.json"
    document = json.loads(path.read_text())
    (mark,) = (one for one in document["traceEvents"] if one["name"] == "ProfilerStep#7")
    end = mark["ts"] + mark["dur"]
    document["traceEvents"] += [
        {**mark, "cat": "cpu_op", "name": "aten::evaluate", "ts": end - 20_000 * (i + 1), "dur": 20_000}
        for i in range(8)
    ]
    path.write_text(json.dumps(document))
    diagnosis = diagnosed(directory)
    assert kinds(diagnosis) == ["outlier_steps"]
    (outlier,) = winning(diagnosis)
    assert (outlier.finding.scope.ranks, outlier.finding.scope.operations) == (["rank3"], ["aten::evaluate"])
    holds(outlier, 160.0 / HEALTHY.steps)


@pytest.mark.parametrize("system", WITH_WORK)
def test_what_a_late_rank_costs_is_a_share_of_the_steps_after_the_warm_up(
    tmp_path: Path, system: str
) -> None:
    job = replace(HEALTHY, more_forward=[0.0, 15.0, 0.0, 0.0], more_in_step=(0, 2000.0))
    (late,) = winning(diagnosed(WRITERS[system](tmp_path / "job", job)))
    # load 1, forward 40 + 15, backward 50, transfer 4, update 5: 115 ms; step 0, in which another rank is
    # longer, is no step to learn from: neither its length counts nor what a late rank costs in it
    holds(late, 15.0)
    assert late.gain is not None
    assert late.share == pytest.approx(late.gain.mid_ns / 115e6, rel=0.002)


def test_a_compiled_graph_is_the_same_on_ranks_with_other_shapes(tmp_path: Path) -> None:
    # the digest in its name is that of the shapes too; rank 1 has 30 ms more, half of it in such graphs
    directory = WRITERS["kineto"](tmp_path / "job", replace(HEALTHY, more_forward=[0.0, 30.0, 0.0, 0.0]))
    for rank in range(4):
        path = directory / f"rank{rank}.pt.trace.json"
        text = path.read_text()
        for layer in "ab":
            compiled = f"## Call CompiledFxGraph f{'x' if rank == 1 else 'y'}{layer}7q ##"
            text = text.replace(f"aten::forward_{layer}", compiled)
        path.write_text(text)
    (late,) = winning(diagnosed(directory))
    assert late.finding.scope.ranks == ["rank1"]
    assert late.finding.scope.operations[0] == "## Call CompiledFxGraph ##"
    holds(late, 30.0)


def test_in_a_timeline_a_rank_is_late_anew_after_an_exchange_but_not_after_a_reduction(
    tmp_path: Path,
) -> None:
    # rank 1 is ready to exchange 10 ms after rank 0, and 15 ms after it with what follows: 25 ms a step. With
    # the second gradient it is as late as with the first, because nobody waited for the reduction.
    tensors = ["tokens", "b", "a"]
    events: list[dict[str, object]] = [
        {"ph": "M", "name": "process_name", "pid": i, "args": {"name": name}}
        for i, name in enumerate(tensors, 1)
    ]

    def collective(pid: int, kind: str, ready: list[int], begin: int, end: int) -> None:
        events.append({"ph": "B", "name": f"NEGOTIATE_{kind}", "pid": pid, "ts": ready[0]})
        for rank, at in enumerate(ready):
            events.append({"ph": "X", "name": str(rank), "pid": pid, "ts": at, "dur": 0})
        events.append({"ph": "E", "pid": pid, "ts": ready[1]})
        events.append({"ph": "B", "name": kind, "pid": pid, "ts": begin})
        events.append({"ph": "E", "pid": pid, "ts": end})

    for at in range(1000, 1_001_000, 100_000):
        collective(1, "ALLTOALL", [at + 20_000, at + 30_000], at + 30_000, at + 34_000)
        collective(2, "ALLREDUCE", [at + 60_000, at + 75_000], at + 75_000, at + 78_000)
        collective(3, "ALLREDUCE", [at + 70_000, at + 85_000], at + 85_000, at + 90_000)
    (tmp_path / "timeline.json").write_text(json.dumps(events))
    late = winning(diagnosed(tmp_path / "timeline.json"))[0]
    assert late.finding.scope.ranks == ["rank1"]
    holds(late, 25.0)


def test_a_late_arrival_is_named_with_delay_and_place(tmp_path: Path) -> None:
    """In each step of 60 ms rank 2 pauses for 10 before the gather, the others after they waited there."""
    for rank in range(3):
        late, events = 10 * (rank == 2), []
        for n in range(8):
            for name, begin, took, cat in (
                (f"ProfilerStep#{n}", 0, 60, "user_annotation"),
                ("aten::mm", 0, 30, "cpu_op"),
                ("gloo:all_gather", 30 + late, 11 - late, "user_annotation"),
                ("aten::add", 51 - late, 5, "cpu_op"),
            ):
                events.append(span(name, 1000 * (60 * n + begin), 1000 * took, cat, pid=1, tid=1))
        info = {"rank": rank, "world_size": 3}
        write(tmp_path / f"rank{rank}.json", events, schemaVersion=1, distributedInfo=info)
    late_rank = next(one.finding for one in winning(diagnosed(tmp_path)) if one.finding.kind == "late_rank")
    assert late_rank.title.startswith("rank2 is late by 10.0 ms, most of it before gloo:all_gather")
    assert late_rank.evidence[0].name == "the gap before gloo:all_gather"


def test_loads_of_one_moment_are_no_steps(tmp_path: Path) -> None:
    steps = [span("I/O", 2_000_000 + 10_000 * i, 300) for i in range(6)]
    path = write(tmp_path / "io.json", [span("I/O", 1_000_000, 1)] * 8 + steps)
    code, _, err = run_cli("--path", path)
    assert (code, err) == (0, "")


@pytest.mark.parametrize("kind", ["host_bound", "host_sync"])
def test_where_the_limit_is_undecided_neither_finding_of_the_host_claims_a_saving(kind: FindingKind) -> None:
    search = _Search(cast(Any, None), cast(Any, None), is_undecided=True)
    search.judge([Finding(kind, "", "", "", edits=[edit("host", "none")])], ())
    assert [(finding.edits, forecast) for finding, forecast in search.known] == [((), None)]
