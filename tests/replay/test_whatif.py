"""Edits of a recording: what they change, and what they leave."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs import KEY, MS, apply, foreseen, job, lockstep, one_gpu, partitions, rank
from msgspec.structs import replace

from analyzer.base.errors import UsageError
from analyzer.model.graph.step_graph import Recording
from analyzer.reading.dialects.edge_rules import Rule
from analyzer.reading.dialects.roles import Role
from analyzer.reading.dialects.step_parts import OperationTable
from conftest import REPO, ask
from make import span, step, write
from replay.edit import EDITS
from replay.links import link_rate
from replay.runs import replayed_ns, simulated
from replay.selection import named_owners, pipeline_stages
from replay.sensitivity import changed_in_turn
from replay.slowdown import slowdown
from replay.whatif.straggler import stragglers


def iteration_ms(recording: Recording, *edits: str) -> float:
    return float(replayed_ns(apply(recording, edits), recording.whole_steps).mean() / MS)


def foreseen_ms(recording: Recording, *edits: str) -> float:
    return foreseen(recording, *edits).after_ns / MS


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        # FW 4, BW 10, PUSH 3, PULL 5, then 1 to the next step
        ("BW=0.8", 21),
        ("FW=2", 27),
        ("rank0=2", 37),
        ("PUSH=2", 26),
        ("Comm.a.PULL=2", 28),
        ("BW=+2.5ms", 25.5),
        ("bandwidth=2", 19),
        ("drop=Comm.a", 15),
        ("schedule=priority", 23),
        ("straggler=none", 23),
        ("straggler=mean", 23),
    ],
)
def test_an_edit_changes_the_step_by_what_it_says(edit: str, expected: float) -> None:
    assert iteration_ms(one_gpu(), edit) == expected
    assert foreseen_ms(one_gpu(), edit) == pytest.approx(expected)


def test_an_edited_job_has_no_unusual_gaps() -> None:
    # three steps of FW 10, 5 ms of gap, BW 10; in the last one the gap is 65
    steps = []
    at = 0.0
    for gap in (5, 5, 65):
        steps.append(({"FW.a": (at, at + 10), "BW.a": (at + 10 + gap, at + 20 + gap)}, (at, at + 20 + gap)))
        at += 20 + gap
    recording = job(rank("rank0", steps, {"BW.a": ["FW.a"]}))
    assert foreseen(recording, "rank0=1").recorded.recorded_ns == 45 * MS
    # the usual step of 25 becomes one of 15; the recorded 45 change in that ratio
    assert foreseen_ms(recording, "rank0=0.5") == pytest.approx(45 * 15 / 25)


def test_an_outlier_counts_as_the_longest_usual_step_before_and_after() -> None:
    # steps of 15, 15, 15, 15 and 95 ms; what deviates by none in the median is an outlier beyond a tenth
    forecast = foreseen(lockstep([10, 10, 10, 10, 90]), "reduce=3")
    assert forecast.recorded.recorded_ns == 31 * MS
    assert forecast.before_ns == pytest.approx((4 * 15 + 16.5) / 5 * MS)
    # 10 ms more in each: 25 and 105, of which the last counts as 27.5
    assert forecast.after_ns == pytest.approx((4 * 25 + 27.5) / 5 * MS)


@pytest.mark.parametrize(
    ("edit", "before", "after"),
    [
        # steps of 20, 20, 80, 20 and 20 ms, 60 of them for what is done in one step only; usual are up to 22
        ("drop=save", 32, 20),
        ("save=0.5", 20.4 + 30 / 5, 20.4),  # the third counts as 22 and what it loses
        ("save=2", 20.4, 20.4 + 60 / 5),
        ("FW=0.5", 20.4, 10.2),  # what it leaves of the step that is far longer counts as before
    ],
)
def test_the_effect_of_an_edit_on_an_outlier_counts_fully(edit: str, before: float, after: float) -> None:
    steps: list[tuple[dict[str, tuple[float, float]], tuple[float, float]]] = []
    for i in range(5):
        at, more = 20.0 * i + 60 * (i > 2), 60 * (i == 2)
        extra = {"save": (at + 20, at + 80)} if more else {}
        steps.append(({"FW.a": (at, at + 20), **extra}, (at, at + 20 + more)))
    recording = job(rank("rank0", steps, {"save": ["FW.a"]}))
    forecast = foreseen(recording, edit)
    assert forecast.before_ns == pytest.approx(before * MS)
    assert forecast.after_ns == pytest.approx(after * MS)
    assert forecast.ratio == pytest.approx(after / before)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        ("BW=0", "above 0"),
        ("BW=fast", "not a ratio such as 2 or 0.5"),
        ("bandwidth=0Mbit", "above 0"),
        ("partition_bytes=0", "bytes above 0"),
        ("bandwidth=0.000001Kbit", "at least 8 Kbit"),
        ("BW=+99999999999s", "more than a day"),
        ("schedule=random", "priority or fifo"),
        ("rank0.FW=peers", "peers is a value of a rank"),
        ("step7=usual", "no such step; the steps are 1 to 1"),
        ("rank0.gap=peers", "no rank is left"),
        ("stage0=2", "no pipeline stages"),
    ],
)
def test_a_wrong_edit_is_refused(edit: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        apply(one_gpu(), [edit])


@pytest.mark.parametrize("worker", [0, 1])
def test_with_one_gpu_per_worker_a_rank_is_a_worker(worker: int) -> None:
    step = ({"FW.a": (0, 4)}, (0, 5))
    recording = job(*(rank(f"wk{i}.rank0", [step], worker=i) for i in range(2)))
    by_rank, by_worker = (named_owners(recording, f"{name}{worker}.FW")[0] for name in ("rank", "wk"))
    assert by_rank.tolist() == by_worker.tolist() == [worker == 0, worker == 1]


def test_an_annotation_is_dropped_with_all_that_runs_inside_it() -> None:
    # "extra" spans two operations of its own thread; what a stream runs meanwhile stays
    times = {"FW.a": (0, 4), "extra": (4, 14), "mm": (5, 9), "add": (9, 13), "BW.a": (14, 20)}
    inputs = {"extra": ["FW.a"], "mm": ["FW.a"], "add": ["mm"], "BW.a": ["extra", "add"]}
    recording = job(rank("rank0", [(times, (0, 20))], inputs))
    track = recording.operations[0].track
    one_thread = OperationTable(op._replace(track=track) for op in recording.operations)
    assert iteration_ms(replace(recording, operations=one_thread), "drop=extra") == 10


def test_unrecorded_time_is_dropped_with_its_annotation(tmp_path: Path) -> None:
    events = []
    for number in range(4):  # of 10 ms
        at = 10_000 * number
        events += [
            step(number, at, 10_000),
            span("aten::mm", at, 4_000, "cpu_op"),
            span("save", at + 4_500, 3_500, "user_annotation"),  # around a copy, idle before and after it
            span("aten::copy_", at + 5_000, 1_000, "cpu_op"),
            span("aten::add", at + 8_200, 800, "cpu_op"),
            span("save", at + 9_000, 800, "user_annotation"),  # ends when the step is nearly over
            span("aten::view", at + 9_100, 100, "cpu_op"),
        ]
    path = write(tmp_path / "rank0.pt.trace.json", events, schemaVersion=1)
    answer = predicted(path, "drop=save")
    # what is left are mm, add, and 0.2 ms behind each annotation
    assert (answer["before_ms"], answer["after_ms"]) == pytest.approx((10, 5.2))


# ---- links and partitions


def test_a_link_rate_comes_from_a_stretch_of_time() -> None:
    # ten partitions of 100,000 bytes in 2 ms each: 0.05 bytes a nanosecond
    rate = link_rate(partitions([100_000] * 10, [2.0] * 10))
    assert rate is not None and rate.is_certain
    assert (rate.at_least, rate.likely, rate.at_most) == pytest.approx((0.05, 0.05, 0.05))


def test_a_plateau_of_threads_shows_no_link_rate() -> None:
    # 1,000,000 bytes in 1 ms each are 8 Gbit/s
    rate = link_rate(partitions([1_000_000] * 10, [1.0] * 10))
    assert rate is not None and not rate.is_certain
    assert (rate.at_least, rate.at_most) == pytest.approx((1, 2))


def test_bandwidth_changes_only_the_time_of_the_bytes() -> None:
    # the last acknowledgement came 3 ms after the bytes, the others at once
    recording = partitions([100_000] * 10, [2.0] * 9 + [5.0])
    # at twice the rate each of ten takes 1 ms, and those 3 ms, a wait for other bytes, half of them
    assert iteration_ms(recording, "bandwidth=2") == pytest.approx(20 + 10 * 1 + 1.5 + 1)
    # at half the rate the bytes of each take 4 ms; the 3 ms stay
    assert iteration_ms(recording, "bandwidth=0.5") == pytest.approx(20 + 10 * 4 + 3 + 1)


def test_without_sizes_the_whole_transfer_follows_the_bandwidth() -> None:
    assert link_rate(partitions([0] * 10, [2.0] * 10)) is None
    assert iteration_ms(partitions([0] * 10, [2.0] * 10), "bandwidth=0.5") == 20 + 40 + 1


def test_new_partitions_go_to_the_server_of_their_key() -> None:
    of = {"stage": "PULL", "role": Role.COMM, "whole": "Comm.a"}
    kinds = {
        "a0": {**of, "link": "server 0 PULL", "key": KEY, "n_bytes": 4_000_000},
        "a1": {**of, "link": "server 0 PULL", "key": KEY + 1, "n_bytes": 1_000_000},
        "b": {**of, "link": "server 1 PULL", "key": 2 * KEY, "n_bytes": 80, "whole": "Comm.b"},
    }
    times = {"BW.a": (0, 1), "a0": (1, 9), "a1": (1, 11), "b": (1, 2)}
    recording = job(rank("rank0", [(times, (0, 12))], {name: ["BW.a"] for name in kinds}, kinds=kinds))

    cut = apply(recording, ["partition_bytes=1000000"])
    step, names = cut.steps[0], cut.operations
    pulls = [(names[one], link) for one, link in zip(step.operation, step.link, strict=True) if link >= 0]
    assert all(one.transfer.link == cut.links[link] for one, link in pulls)
    # the keys of the first two were on server 0; those of the others nobody saw
    assert sorted(
        (one.transfer.key - KEY, one.transfer.link[:8])
        for one, _ in pulls
        if one.transfer.key and one.transfer.whole == "Comm.a"
    ) == [(0, "server 0"), (1, "server 0"), (2, "server 0"), (3, "server 1"), (4, "server 0")]


def test_priority_lets_the_lower_tensor_go_first() -> None:
    # key 3 << 16 was served first; by priority 1 << 16 waits no longer
    times: dict[str, tuple[float, float]] = {"BW.a": (0, 10)}
    kinds = {}
    for tensor, end in ((3, 12), (2, 15), (1, 19)):
        times[f"t{tensor}"] = (10, end)
        kinds[f"t{tensor}"] = {"link": "PUSH", "key": tensor * KEY, "cat": "Comm"}
    recording = job(rank("rank0", [(times, (0, 21))], {name: ["BW.a"] for name in kinds}, kinds=kinds))
    first = apply(recording, ["schedule=priority"])
    ends = simulated(first, [0]).step(0).end_ns // MS
    assert dict(zip(times, ends.tolist(), strict=True)) == {"BW.a": 10, "t1": 14, "t2": 17, "t3": 19}


# ---- stragglers


def test_a_straggler_is_brought_to_the_median_of_its_peers() -> None:
    recording = lockstep([10, 10], [10, 10], [30, 30])
    assert stragglers(recording) == [2]
    assert iteration_ms(recording, "straggler=none") == 15


def test_a_rank_that_only_waits_is_no_straggler() -> None:
    # rank 1 pauses for 40 before it reduces: no work
    ranks = []
    for number, pause in enumerate((0, 40)):
        times = {"BW.a": (0, 10), "reduce": (10 + pause, 55)}
        ranks.append(rank(f"rank{number}", [(times, (0, 55))], {"reduce": ["BW.a"]}, together=["reduce"]))
    assert stragglers(job(*ranks)) == []


def test_work_that_no_peer_has_takes_no_time() -> None:
    ranks = []
    for number in range(3):
        late = 30 if number == 2 else 0
        extra = {"extra": (10, 40)} if late else {}
        times = {"BW.a": (0, 10), **extra, "reduce": (10 + late, 45)}
        inputs = {"extra": ["BW.a"], "reduce": ["BW.a", "extra"]}
        ranks.append(rank(f"rank{number}", [(times, (0, 45))], inputs, together=["reduce"]))
    assert iteration_ms(job(*ranks), "straggler=none") == 15


def test_the_slowdown_is_the_own_work_over_its_mean() -> None:
    # steps of 10, 10, 40 and a transfer of 5: 45 instead of the mean 20 and 5
    result = slowdown(lockstep([10, 10], [10, 10], [40, 40]))
    assert result.ratio == pytest.approx(45 / 25)
    # with only the own work of one rank put back: 20 of the others, or 40
    assert result.by["rank"] == pytest.approx({"rank2": 45 / 25, "rank0": 1, "rank1": 1})
    assert result.by["kind"] == pytest.approx({"BW.a": 45 / 25, "reduce": 1})
    assert result.by["stage"] == {}, "no pipeline"


def test_a_reduction_of_two_ranks_is_not_one_of_all() -> None:
    ranks = []
    for number in range(4):
        times = {"BW.a": (0, 10), "reduce": (10, 12), "BW.b": (12, 20), "reduce_": (20, 30)}
        made = rank(f"rank{number}", [(times, (0, 30))], {"reduce": ["BW.a"], "reduce_": ["BW.b"]},
                    together=["reduce", "reduce_"])  # fmt: skip
        step = made.steps[0]
        keys = np.where(step.meetings.event == step.meetings.event.min(), number // 2, 2)
        meetings = replace(step.meetings, keys=["low", "high", "all"], key=keys)
        ranks.append(replace(made, steps=[replace(step, meetings=meetings)]))
    recording = job(*ranks)
    same_name = OperationTable(op._replace(name=op.name.rstrip("_")) for op in recording.operations)
    assert slowdown(replace(recording, operations=same_name)).ratio == 1, "all ranks are alike"


def pipeline(rule: Rule = Rule.TRANSFER) -> Recording:
    """Two pipelines of two stages: the first stage computes 10 and sends, the second one 30."""
    ranks = []
    for number in range(4):
        is_late = number % 2 == 1
        times = {"send": (10, 12), "BW.a": (12, 42)} if is_late else {"BW.a": (0, 10), "send": (10, 12)}
        inputs = {"BW.a": ["send"]} if is_late else {"send": ["BW.a"]}
        made = rank(f"rank{number}", [(times, (0, 42))], inputs, together=["send"])
        step = made.steps[0]
        sent = np.full(len(step.meetings), rule)
        meetings = replace(step.meetings, keys=[number // 2], rule=sent)
        ranks.append(replace(made, steps=[replace(step, meetings=meetings)]))
    return job(*ranks)


def test_ranks_that_send_to_each_other_are_the_stages_of_a_pipeline() -> None:
    for edit in ("stage1=0.5", "stage1.BW=0.5"):
        result = simulated(apply(pipeline(), [edit]), [0])
        assert (result.iteration_ns[0] / MS).tolist() == [42, 27, 42, 27]
    found = slowdown(pipeline())
    # own: 10 + 2 + 30 = ideal 20 + 2 + 20; one stage put back: 32 or 52
    assert found.ratio == 1
    assert found.by["stage"] == pytest.approx({"1": 52 / 42, "0": 32 / 42})
    with pytest.raises(UsageError, match="stages 0 to 1"):
        apply(pipeline(), ["stage2=0.5"])
    assert pipeline_stages(pipeline(Rule.COLLECTIVE)) is None  # an all-to-all


# ---- each in turn


def test_what_is_not_critical_costs_nothing() -> None:
    # two tensors; b is enqueued first and done long before a
    times = {"BW.b": (0, 5), "Comm.b": (5, 7), "BW.a": (5, 20), "Comm.a": (20, 30)}
    inputs = {"BW.a": ["BW.b"], "Comm.b": ["BW.b"], "Comm.a": ["BW.a"]}
    recording = job(rank("rank0", [(times, (0, 30))], inputs))
    effects = {one.name: one for one in changed_in_turn(recording, 2, parts=False)}
    assert effects["Comm.b"].added_ns == 2 * MS and effects["Comm.b"].effect_ns == 0
    assert effects["Comm.a"].added_ns == 10 * MS and effects["Comm.a"].effect_ns == 10 * MS
    assert effects["BW.b"].effect_ns == 5 * MS


def test_a_bottleneck_can_be_a_category_a_link_or_an_operation() -> None:
    effects = changed_in_turn(one_gpu(), 0.9, parts=False, groups=True)
    effects_ms = {(one.kind, one.name): one.effect_ns / MS for one in effects}
    assert effects_ms["category", "BW"] == -1
    assert effects_ms["link", "PULL"] == -0.5
    assert effects_ms["operation", "BW.a"] == -1
    assert effects_ms["category", "Comm"] == pytest.approx(-0.8)


# ---- recorded pairs


def predicted(path: Path, *edits: str) -> dict[str, Any]:
    document: dict[str, Any] = ask("whatif", path, *edits, "--as_recorded")
    return document


@pytest.mark.parametrize("edit", ["bandwidth=0.1", "bandwidth=100Mbit"])
def test_a_slower_network_is_foreseen(edit: str, shared_data: Path) -> None:
    answer = predicted(shared_data / "byteps/fork_lenet_base", edit)
    # mean of the traced steps of the same job at a tenth of the bandwidth, by its own log
    recorded = np.mean([352, 430, 406, 382, 394, 385, 484, 463, 355, 504, 453])
    assert answer["after_ms"] == pytest.approx(recorded, rel=0.1)
    assert answer["interval_ms"][0] <= recorded <= answer["interval_ms"][1]


def test_a_rank_without_its_delay_is_foreseen(shared_data: Path) -> None:
    answer = predicted(shared_data / "kineto/ddp2-gloo-slow-rank1/trace", "straggler=none")
    recorded = np.mean([589.6, 547.6, 829.4, 586.6, 618.4, 611.6, 632.1, 652.4, 742.5, 552.1, 667.7, 597.0])
    assert answer["after_ms"] == pytest.approx(recorded, rel=0.05)


def test_where_the_device_is_the_limit_only_kernels_count(shared_data: Path) -> None:
    path = shared_data / "kineto/gpu-hta-ns-resolution"
    faster, host, backward, _ = predicted(path, "kernel=0.5", "cpu_op=2", "BW=2")["whatif"]
    assert -0.50 <= faster["change"] <= -0.40
    assert abs(host["change"]) < 0.02
    assert backward["change"] > 0.4  # work of a device is its launch's


def test_the_manual_has_a_row_for_each_edit() -> None:
    rows = re.findall(r"^\| (`.*?) \|", (REPO / "docs/options/replay.md").read_text(), re.MULTILINE)
    told = {word for row in rows for word in re.findall(r"([a-z_]+)=", row)}
    words = {word for _, forms, _ in EDITS for word in re.findall(r"([a-z_]+)=", forms)}
    assert words <= told
