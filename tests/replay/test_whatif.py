"""Edits of a model: what they change, and what they leave."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_model_byteps import KEY, MS, Row, one_gpu, trace, two_workers
from test_model_ranks import timeline

from conftest import run_cli
from errors import UsageError
from replay import horovod
from replay.answer import answer
from replay.byteps import GpuTrace, record
from replay.model import Model, fit
from replay.sensitivity import delay_each, speed_up_each
from replay.whatif.bandwidth import link_rate
from replay.whatif.edits import apply, communication, computation, select
from replay.whatif.straggler import stragglers, why_none


def iteration_ms(model: Model, *edits: str) -> float:
    return answer(apply(model, edits)).iteration_ns / MS


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        # FW 4, BW 10, PUSH 3, PULL 5, then 1 to the next step
        ("BW=0.8", 21),
        ("BW=1", 23),
        ("FW=2", 27),
        ("FW.a=2", 27),
        ("rank0.FW=2", 27),
        ("rank0=2", 37),
        ("PUSH=2", 26),
        ("Comm.a.PULL=2", 28),
        ("Comm.a.PULL.65536=2", 28),
        ("Comm=2", 31),
        ("BW=+2.5ms", 25.5),
        ("bandwidth=2", 19),
        ("bandwidth=1", 23),
        ("drop=Comm.a", 15),
        ("schedule=fifo", 23),
        ("schedule=priority", 23),
        ("straggler=none", 23),
    ],
)
def test_an_edit_changes_the_step_by_what_it_says(edit: str, expected: float) -> None:
    assert iteration_ms(one_gpu(), edit) == expected


def test_without_a_dag_a_communication_follows_the_operation_before_it() -> None:
    rows: list[Row] = []
    for at in (0.0, 30.0):
        rows += [("BW.a", 0, 7, at, at + 10), ("Comm.a", "Comm.a", "total", at + 11, at + 20)]
    model = fit(record([GpuTrace("rank0", None, trace([*rows, ("BW.a", 0, 7, 60, 70)]))]))
    assert iteration_ms(model, "BW=1.5") == 35


@pytest.mark.parametrize("worker", [0, 1])
def test_with_one_gpu_a_worker_a_rank_is_a_worker(worker: int) -> None:
    model = two_workers(late=20)
    by_rank, by_worker = (select(model, f"{name}{worker}.PUSH", "") for name in ("rank", "wk"))
    assert by_rank.operations.tolist() == by_worker.operations.tolist()
    assert by_rank.operations.sum() == 1


def test_negotiation_is_no_transfer() -> None:
    rows: list[Row] = []
    for at in (0, 30, 60):
        rows += [("NEGOTIATE_ALLREDUCE", 1, None, at, at + 20), ("ALLREDUCE", 1, None, at + 20, at + 24)]
    model = fit(horovod.record(trace(rows)))
    assert iteration_ms(model) == 30
    assert iteration_ms(model, "bandwidth=2") == 28
    assert iteration_ms(model, "Comm=2") == 34


def behind_on_the_link(idle: float = 0) -> Model:
    """BW.b to 30, BW.a to 45; b is pushed until 50 and pulled until 65; a, 5 each, finds both links busy.

    The link for a's PUSH is `idle` for so long before it carries it; the update takes from 70 to 75.
    """
    rows: list[Row] = [
        ("BW.b", 0, 7, 0, 30),
        ("BW.a", 0, 7, 30, 45),
        ("Comm.b", "Comm.b", "total", 30, 65),
        ("Comm.b.PUSH", "Comm.b", str(KEY), 30, 50),
        ("Comm.b.PULL", "Comm.b", str(KEY), 50, 65),
        ("Comm.a", "Comm.a", "total", 45, 70),
        ("Comm.a.PUSH", "Comm.a", str(2 * KEY), 50 + idle, 55 + idle),
        ("Comm.a.PULL", "Comm.a", str(2 * KEY), 65, 70),
        ("BW.b", 0, 7, 70, 100),
    ]
    edges = [("BW.b", "BW.a"), ("BW.b", "Comm.b"), ("BW.a", "Comm.a")]
    return fit(record([GpuTrace("rank0", None, trace(rows), edges)]))


def test_a_transfer_behind_another_goes_at_once_when_that_is_gone() -> None:
    # without b: a is ready at 45, pushed until 50, pulled until 55
    assert iteration_ms(behind_on_the_link()) == 70
    assert iteration_ms(behind_on_the_link(), "drop=Comm.b") == 55


def test_a_pause_that_the_link_does_not_explain_stays() -> None:
    # the link was free from 50 and a began at 54: ready at 45, it still starts 9 later
    assert iteration_ms(behind_on_the_link(idle=4), "drop=Comm.b") == 45 + 9 + 5 + 5


def test_a_transfer_that_waited_for_its_link_starts_where_it_was_recorded() -> None:
    model = behind_on_the_link()
    start, _ = answer(model).result.interval(0)
    assert start.tolist() == model.recording.steps[0].start_ns.tolist()


def test_edits_add_up() -> None:
    assert iteration_ms(one_gpu(), "BW=0.5", "FW=2") == 22


def test_computation_and_communication_are_all_there_is() -> None:
    model = one_gpu()
    both = computation(model).operations | communication(model).operations
    assert both.all()


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        ("BW=0", "above 0"),
        ("BW=-1", "above 0"),
        ("BW=nan", "above 0"),
        ("BW=fast", "not a number"),
        ("BW", "name=value"),
        ("=2", "name=value"),
        ("=", "name=value"),
        ("bandwidth=0", "above 0"),
        ("partition_bytes=0", "bytes above 0"),
        ("partition_bytes=1.5", "bytes above 0"),
        ("schedule=random", "priority or fifo"),
        ("straggler=some", "none"),
        ("rank5.FW=2", "no operation"),
    ],
)
def test_a_wrong_edit_is_said(edit: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        apply(one_gpu(), [edit])


def test_an_unknown_operation_suggests_the_nearest() -> None:
    with pytest.raises(
        UsageError, match=r"no operation is called Comm\.b\.PUSH; the nearest are Comm\.a\.PUSH"
    ):
        apply(one_gpu(), ["Comm.b.PUSH=2"])


def test_what_is_not_critical_costs_nothing() -> None:
    # two tensors; b is enqueued first and done long before a
    rows: list[Row] = []
    for at in (0.0, 40.0):
        rows += [
            ("BW.b", 0, 7, at, at + 5),
            ("Comm.b", "Comm.b", "total", at + 5, at + 7),
            ("BW.a", 0, 7, at + 5, at + 20),
            ("Comm.a", "Comm.a", "total", at + 20, at + 30),
        ]
    rows.append(("BW.b", 0, 7, 80, 85))
    edges = [("BW.b", "BW.a"), ("BW.b", "Comm.b"), ("BW.a", "Comm.a")]
    model = fit(record([GpuTrace("rank0", None, trace(rows), edges)]))
    effects = {one.group.name: one for one in delay_each(model, 2, parts=False, jobs=1)}
    assert effects["Comm.b"].added_ns == 2 * MS and effects["Comm.b"].effect_ns == 0
    assert effects["Comm.a"].added_ns == 10 * MS and effects["Comm.a"].effect_ns == 10 * MS
    assert effects["BW.b"].effect_ns == 5 * MS


def test_the_dearest_comes_first() -> None:
    effects = [one.effect_ns for one in delay_each(one_gpu(), 1.5, parts=True, jobs=1)]
    assert effects == sorted(effects, reverse=True)


def test_processes_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model = one_gpu()
    alone = delay_each(model, 1.5, parts=True, jobs=1)
    monkeypatch.setattr("replay.sensitivity._FORK_FROM", 0)
    together = delay_each(model, 1.5, parts=True, jobs=2)
    assert [(a.group.name, a.effect_ns) for a in alone] == [(b.group.name, b.effect_ns) for b in together]


def test_a_bottleneck_can_be_a_category_a_link_or_an_operation() -> None:
    found = {
        (one.group.kind, one.group.name): one.effect_ns / MS
        for one in speed_up_each(one_gpu(), 0.9, parts=False)
    }
    assert found["category", "BW"] == -1
    assert found["link", "PULL"] == -0.5
    assert found["operation", "BW.a"] == -1
    assert found["category", "Comm"] == pytest.approx(-0.8)


def partitions(sizes: list[int], ms_each: list[float]) -> Model:
    """One tensor of several partitions, pushed one after the other on one link."""
    rows: list[Row] = [("BW.a", 0, 7, 0, 20)]
    at = 20.0
    for part, ms in enumerate(ms_each):
        rows.append(("Comm.a.PUSH", "Comm.a", str(KEY + part), 20, at + ms))
        at += ms
    rows.append(("Comm.a", "Comm.a", "total", 20, at))
    rows.append(("BW.a", 0, 7, at + 1, at + 21))
    known = {KEY + part: size for part, size in enumerate(sizes)}
    return fit(record([GpuTrace("rank0", None, trace(rows), [("BW.a", "Comm.a")], bytes_of=known)]))


def test_the_rate_of_a_link_is_that_of_its_fastest_burst() -> None:
    # ten partitions of 1,000,000 bytes in 2 ms each: 0.5 bytes a nanosecond
    assert link_rate(partitions([1_000_000] * 10, [2.0] * 10)) == pytest.approx(0.5)


def test_only_the_time_of_the_bytes_follows_the_bandwidth() -> None:
    # the last partition took 3 ms longer than its bytes do; at half the rate every one takes 2 ms more
    model = partitions([1_000_000] * 10, [2.0] * 9 + [5.0])
    assert iteration_ms(model, "bandwidth=0.5") == pytest.approx(20 + 9 * 4 + 7 + 1)


def test_without_sizes_the_whole_transfer_follows_the_bandwidth() -> None:
    assert link_rate(partitions([0] * 10, [2.0] * 10)) is None
    assert iteration_ms(partitions([0] * 10, [2.0] * 10), "bandwidth=0.5") == 20 + 40 + 1


def test_the_same_partition_size_changes_nothing() -> None:
    model = partitions([1_000_000] * 10, [2.0] * 10)
    assert iteration_ms(model, "partition_bytes=1000000") == pytest.approx(41)


def test_larger_partitions_carry_the_same_bytes() -> None:
    model = partitions([1_000_000] * 10, [2.0] * 10)
    bigger = apply(model, ["partition_bytes=5000000"])
    keys = [
        one.key
        for i, one in enumerate(bigger.recording.operations)
        if i in bigger.recording.steps[0].operation
    ]
    assert [key for key in keys if key is not None] == [KEY, KEY + 1]
    assert answer(bigger).iteration_ns / MS == pytest.approx(41)


def test_a_straggler_is_brought_to_the_median_of_its_peers() -> None:
    gpus = []
    for rank, compute in enumerate((10, 10, 30)):
        rows: list[Row] = []
        for at in (0.0, 50.0, 100.0):
            rows += [("BW.a", 0, 7, at, at + compute), ("Comm.a", "Comm.a", "total", at + compute, at + 40)]
        gpus.append(GpuTrace(f"rank{rank}", None, trace([*rows, ("BW.a", 0, 7, 150, 160)])))
    model = fit(record(gpus))
    assert stragglers(model) == [2]
    after = apply(model, ["straggler=none"])
    slow = [i for i, one in enumerate(model.recording.operations) if one.owner == 2 and one.name == "BW.a"]
    changed = np.flatnonzero(np.isin(after.recording.steps[0].operation, slow))
    assert after.steps[0].service_ns[changed].tolist() == [10 * MS]


def test_without_a_straggler_nothing_changes() -> None:
    model = two_workers(late=0)
    assert apply(model, ["straggler=none"]) is model
    assert "no rank works 10% longer" in why_none(model)


def test_a_timeline_of_one_rank_knows_no_straggler() -> None:
    assert "only one rank" in why_none(one_gpu())
    assert "does not tell the ranks' own work apart" in why_none(fit(horovod.record(timeline())))


def test_why_straggler_none_changes_nothing_is_said(shared_data: Path) -> None:
    path = shared_data / "horovod/2ranks-slow-rank1/trace"
    args = ("--option", "replay", "--path", path, "--sub_option", "whatif", "--output", "-")
    code, out, err = run_cli(*args, "--set", "straggler=none")
    assert code == 0 and "straggler=none changes nothing: a Horovod timeline" in out + err


def test_priority_lets_the_lower_tensor_go_first() -> None:
    # key 2 << 16 was ready first by a hair and went first; by priority 1 << 16 waits no longer
    rows: list[Row] = [("BW.a", 0, 7, 0, 10)]
    spans = {KEY * 3: (10, 12), KEY * 2: (10, 15), KEY: (10, 19)}
    for key, (pushed, arrived) in spans.items():
        rows.append((f"Comm.t{key}.PUSH", f"Comm.t{key}", str(key), pushed, arrived))
    rows.append(("BW.a", 0, 7, 21, 31))
    model = apply(fit(record([GpuTrace("rank0", None, trace(rows))])), ["schedule=priority"])
    _, end = answer(model).result.interval(0)
    keys = [model.recording.operations[i].key for i in model.recording.steps[0].operation]
    ends = {key: int(at) // MS for key, at in zip(keys, end, strict=True) if key}
    assert ends == {KEY: 14, KEY * 2: 17, KEY * 3: 19}


def test_models_are_not_changed_by_edits() -> None:
    model = one_gpu()
    before = [step.service_ns.copy() for step in model.steps]
    apply(model, ["BW=3", "bandwidth=0.1", "drop=Comm.a"])
    assert all((a == b.service_ns).all() for a, b in zip(before, model.steps, strict=True))
    assert replace(model) == model


# ---- recorded pairs


def predicted(path: Path, *edits: str) -> dict[str, Any]:
    sets = [word for edit in edits for word in ("--set", edit)]
    code, out, err = run_cli("--option", "replay", "--path", path, "--sub_option", "whatif", *sets,
                             "--output", "-", "--format", "json")  # fmt: skip
    assert code == 0, err
    document: dict[str, Any] = json.loads(out)
    return document


def test_a_slower_network_is_foreseen(shared_data: Path) -> None:
    found = predicted(shared_data / "byteps/fork_lenet_base", "bandwidth=0.1")
    # mean of the traced steps of the same job at a tenth of the bandwidth, by its own log
    recorded = np.mean([352, 430, 406, 382, 394, 385, 484, 463, 355, 504, 453])
    assert found["after_ms"] == pytest.approx(recorded, rel=0.05)
    assert found["interval_ms"][0] <= recorded <= found["interval_ms"][1]


def test_a_rank_without_its_delay_is_foreseen(shared_data: Path) -> None:
    found = predicted(shared_data / "kineto/ddp2-gloo-slow-rank1/trace", "straggler=none")
    recorded = np.mean([589.6, 547.6, 829.4, 586.6, 618.4, 611.6, 632.1, 652.4, 742.5, 552.1, 667.7, 597.0])
    assert found["after_ms"] == pytest.approx(recorded, rel=0.05)
    assert found["path_before_ms"]["I/O"] > 300 > 10 > found["path_after_ms"]["I/O"]


def test_each_edit_and_all_together_are_told(shared_data: Path) -> None:
    found = predicted(shared_data / "byteps/fork_mlp_2w2s_pcap/worker_0/0", "BW=2", "FW=2")
    assert [row["set"] for row in found["whatif"]] == ["BW=2", "FW=2", "BW=2 FW=2"]
    assert found["after_ms"] == found["whatif"][-1]["after_ms"] > found["before_ms"]
