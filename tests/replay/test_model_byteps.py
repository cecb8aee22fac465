"""Recordings to models and back: hand-made jobs with known answers, and recorded ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conftest import run_cli
from errors import UsageError
from formats.columns import Id, Trace, Track
from replay.answer import answer, change_interval, leave_one_out, mean_interval, path_items
from replay.byteps import GpuTrace, record
from replay.model import Model, fit
from replay.model import replay as run_steps
from trace_utils import read_trace

MS = 1_000_000
KEY = 65536
Row = tuple[str, Id, Id, float, float]  # name, pid, tid, start and end in ms


def trace(rows: Sequence[Row]) -> Trace:
    """A BytePS trace from (name, pid, tid, start, end), milliseconds."""
    names = list(dict.fromkeys(row[0] for row in rows))
    tracks = list(dict.fromkeys(Track(row[1], row[2]) for row in rows))
    start = np.array([row[3] * MS for row in rows], np.int64)
    return Trace(
        path="made.json",
        dialect="byteps",
        names=names,
        cats=[""],
        tracks=tracks,
        name_id=np.array([names.index(row[0]) for row in rows], np.int32),
        cat_id=np.zeros(len(rows), np.int32),
        track_id=np.array([tracks.index(Track(row[1], row[2])) for row in rows], np.int32),
        ts_ns=start,
        dur_ns=np.array([row[4] * MS for row in rows], np.int64) - start,
    )


def one_gpu_step(at: float, compute: float = 10) -> list[Row]:
    """One step: FW 4, BW `compute`, a tensor of one partition pushed in 3 and pulled in 5, 1 to the next."""
    enqueued = at + 4 + compute
    return [
        ("FW.a", 0, 7, at, at + 4),
        ("BW.a", 0, 7, at + 4, enqueued),
        ("Comm.a", "Comm.a", "total", enqueued, enqueued + 8),
        ("Comm.a.PUSH", "Comm.a", str(KEY), enqueued, enqueued + 3),
        ("Comm.a.PULL", "Comm.a", str(KEY), enqueued + 3, enqueued + 8),
    ]


def one_gpu(computes: Sequence[float] = (10, 10, 10)) -> Model:
    rows, at = [], 0.0
    for compute in computes:
        rows += one_gpu_step(at, compute)
        at += 4 + compute + 8 + 1
    rows.append(("FW.a", 0, 7, at, at + 4))
    edges = [("FW.a", "BW.a"), ("BW.a", "Comm.a"), ("Comm.a", "STEP"), ("STEP", "FW.a")]
    return fit(record([GpuTrace("rank0", None, trace(rows), edges)]))


def two_workers(late: float) -> Model:
    """Two workers of one step each; the second pushes `late` ms after the first, the answers take 2 each."""
    gpus = []
    for worker, push in enumerate((10.0, 10.0 + late)):
        answered = 10.0 + late + 1 + 2 * (worker + 1)
        rows = [
            ("Comm.a", "Comm.a", "total", push, answered),
            ("Comm.a.PUSH", "Comm.a", str(KEY), push, push + 1),
            ("Comm.a.PULL", "Comm.a", str(KEY), push + 1, answered),
        ]
        gpus.append(GpuTrace(f"wk{worker}.rank0", worker, trace(rows)))
    return fit(record(gpus))


def service_ms(model: Model, owner: int, name: str) -> float:
    step, recorded = model.steps[0], model.recording.steps[0]
    for event, operation in enumerate(recorded.operation.tolist()):
        one = model.recording.operations[operation]
        if one.owner == owner and one.name == name:
            return float(step.service_ns[event]) / MS
    raise AssertionError(name)


def test_a_step_ends_where_the_next_one_begins() -> None:
    assert answer(one_gpu()).predicted_ns.tolist() == [23 * MS]


def test_steps_are_told_apart() -> None:
    assert answer(one_gpu([10, 12, 20])).result.iteration_ns[:, 0].tolist() == [23 * MS, 25 * MS, 33 * MS]


def test_the_last_step_ends_with_its_update_where_nothing_follows() -> None:
    rows = [*one_gpu_step(0), ("STEP", "STEP", 1, 14, 23), *one_gpu_step(23), ("STEP", "STEP", 1, 37, 48)]
    model = fit(record([GpuTrace("rank0", None, trace(rows))]))
    assert answer(model).result.iteration_ns[:, 0].tolist() == [23 * MS, 25 * MS]


def test_steps_come_round_again() -> None:
    found = answer(one_gpu([10, 12]), 5)
    assert found.result.iteration_ns[:, 0].tolist() == [ms * MS for ms in (23, 25, 23, 25, 23)]


def test_n_steps_cost_no_more_than_n_times_one() -> None:
    model = one_gpu([10])
    one = run_steps(model, [0]).schedule.makespan_ns
    assert run_steps(model, [0] * 4).schedule.makespan_ns <= 4 * one


def test_waiting_for_the_other_worker_is_not_work() -> None:
    # worker 0's PULL lasts from 11 to 43; the other PUSH ended at 41: 2 of it are work
    assert service_ms(two_workers(late=30), 0, "Comm.a.PULL") == 2


def test_waiting_for_the_link_is_not_work() -> None:
    # the server answers worker 0 from 41 to 43, then worker 1 until 45
    assert service_ms(two_workers(late=30), 1, "Comm.a.PULL") == 2


def test_a_late_worker_delays_the_others_answer_in_the_replay() -> None:
    model = two_workers(late=30)
    step = model.steps[0]
    lead = step.lead_ns.copy()
    lead[1] += 7 * MS  # it begins later still
    result = run_steps(replace(model, steps=[replace(step, lead_ns=lead)]), [0])
    start, end = result.interval(0)
    pull = [i for i, op in enumerate(model.recording.operations) if op.name == "Comm.a.PULL"]
    assert ((end[pull] - start[pull]) / MS).tolist() == [39, 4]


def test_a_partition_is_the_tid_and_total_is_not() -> None:
    names = {op.label for op in one_gpu().recording.operations}
    assert names == {"FW.a", "BW.a", "Comm.a", "Comm.a.PUSH.65536", "Comm.a.PULL.65536"}


def test_an_edge_that_the_recording_contradicts_is_not_used() -> None:
    rows = one_gpu_step(0) + one_gpu_step(23) + [("FW.a", 0, 7, 46, 50)]
    model = fit(record([GpuTrace("rank0", None, trace(rows), [("Comm.a", "BW.a"), ("BW.a", "Comm.a")])]))
    assert answer(model).predicted_ns.tolist() == [23 * MS]


def test_the_critical_path_adds_up_to_the_step() -> None:
    found = answer(one_gpu())
    assert [sum(item.dur_ns for item in step) for step in path_items(found, parts=True)] == [23 * MS] * 3


def test_the_critical_path_names_what_was_waited_for() -> None:
    names = [item.name for item in path_items(answer(one_gpu()), parts=True)[1]]
    assert names == ["FW.a", "BW.a", "Comm.a.PUSH.65536", "Comm.a.PULL.65536", "before the next step"]


def overlapping() -> Model:
    """Steps of 20: FW.a 5, BW.a 5, then Comm.a for 8, of which 3 lie beside FW.z of the next step."""
    rows: list[Row] = []
    for at in (0, 20, 40):
        rows += [
            ("FW.z", 0, 7, at, at + 4),
            ("FW.a", 0, 7, at + 5, at + 10),
            ("BW.a", 0, 7, at + 10, at + 15),
            ("Comm.a", "Comm.a", "total", at + 15, at + 23),
        ]
    rows.append(("FW.z", 0, 7, 60, 64))
    return fit(
        record(
            [GpuTrace("rank0", None, trace(rows), [("FW.z", "FW.a"), ("FW.a", "BW.a"), ("BW.a", "Comm.a")])]
        )
    )


def test_communication_reaches_into_the_next_step() -> None:
    assert answer(overlapping()).result.iteration_ns[:, 0].tolist() == [20 * MS] * 3


def test_the_layer_of_the_next_step_waits_for_its_gradient() -> None:
    # Comm.a takes 10 more and ends at 33; FW.a of the next step, with its gap of 1, follows, not at 25
    model = overlapping()
    chosen = [i for i, one in enumerate(model.recording.operations) if one.name == "Comm.a"]
    longer = [
        replace(step, service_ns=step.service_ns + 10 * MS * np.isin(recorded.operation, chosen))
        for step, recorded in zip(model.steps, model.recording.steps, strict=True)
    ]
    result = run_steps(replace(model, steps=longer), [0, 1, 2])
    forward = next(i for i, one in enumerate(model.recording.operations) if one.name == "FW.a")
    start, _ = result.interval(1)
    assert start[model.recording.steps[1].operation == forward].tolist() == [34 * MS]


def test_a_step_without_backward_operations_still_has_its_time() -> None:
    rows = []
    for at in (0, 40, 80):
        rows += [("Comm.a", "Comm.a", "total", at, at + 10), ("Comm.b", "Comm.b", "total", at + 15, at + 20)]
    found = answer(fit(record([GpuTrace("rank0", None, trace(rows))])))
    assert found.predicted_ns.tolist() == [40 * MS]
    assert found.measured_ns.tolist() == [40 * MS]


def test_equal_steps_have_no_error_and_no_width() -> None:
    model = one_gpu()
    assert leave_one_out(model).tolist() == [0, 0, 0]
    interval = mean_interval([5.0e6] * 4)
    assert interval is not None
    low, high = interval
    assert low == pytest.approx(5.0e6) and high == pytest.approx(5.0e6)


def test_one_step_has_no_interval() -> None:
    assert mean_interval([5.0e6]) is None


def test_the_interval_holds_the_mean_and_grows_with_the_spread() -> None:
    narrow, wide = mean_interval([9e6, 10e6, 11e6]), mean_interval([5e6, 10e6, 15e6])
    assert narrow is not None and wide is not None
    assert wide[0] < narrow[0] < 10e6 < narrow[1] < wide[1]


def test_a_change_by_a_constant_factor_is_certain() -> None:
    before = np.array([10.0, 20.0, 30.0])
    assert change_interval(before, 1.5 * before) == pytest.approx((0.5, 0.5))


JOBS = [
    ("byteps/fork_lenet_base", 11, 144.7),
    ("byteps/fork_resnet50_2w1s", 3, 1421.6),
    ("kineto/ddp2-gloo-base/trace", 6, 635.8),
    ("horovod/2ranks-cycles/trace", 19, 32.1),
]


@pytest.mark.parametrize(("path", "steps", "iteration_ms"), JOBS)
def test_recorded_jobs_are_replayed_from_their_own_times(
    shared_data: Path, path: str, steps: int, iteration_ms: float
) -> None:
    # step times from the jobs' own logs: within 3 % of what the traces say
    code, out, _ = run_cli(
        "--option", "replay", "--path", shared_data / path, "--output", "-", "--format", "json"
    )
    found = json.loads(out)
    assert code == 0 and found["steps"] == steps
    assert abs(found["error"]) <= 0.015
    assert found["measured_ms"] == pytest.approx(iteration_ms, rel=0.03)
    assert found["interval_ms"][0] < found["iteration_ms"] < found["interval_ms"][1]


def copy_of(shared_data: Path, job: str, to: Path) -> Path:
    for source in sorted((shared_data / job).rglob("*")):
        if source.name in ("comm.json", "dag.gml") or source.name.startswith("bps_trace"):
            target = to / source.relative_to(shared_data / job)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    return to


def test_clocks_that_disagree_are_put_right(shared_data: Path, tmp_path: Path) -> None:
    job = copy_of(shared_data, "byteps/fork_lenet_base", tmp_path)
    comm = job / "worker_1/0/comm.json"
    document = json.loads(comm.read_text())
    for event in document["traceEvents"]:
        event["ts"] += 3_000_000  # worker 1's clock is 3 s ahead
    comm.write_text(json.dumps(document))
    outs = [
        run_cli("--option", "replay", "--path", path, "--output", "-", "--format", "json",
                "--sub_option", "whatif", "--set", "wk1.BW=1.5")[1]
        for path in (shared_data / "byteps/fork_lenet_base", job)
    ]  # fmt: skip
    together, apart = (json.loads(out)["after_ms"] for out in outs)
    assert apart == pytest.approx(together, rel=0.03)


def test_synthetic_json_is_a_timeline_like_the_recorded_one(shared_data: Path, tmp_path: Path) -> None:
    job = copy_of(shared_data, "byteps/fork_mlp_2w2s_pcap/worker_0/0", tmp_path)
    code, out, _ = run_cli("--option", "replay", "--path", job, "--format", "json")
    assert code == 0 and json.loads(out)["output"] == str(job / "synthetic.json")
    recorded, replayed = read_trace(next(job.glob("bps_trace*"))), read_trace(job / "synthetic.json")

    def kinds(one: Trace) -> set[tuple[str, str, Track]]:
        columns = zip(one.name_id.tolist(), one.cat_id.tolist(), one.track_id.tolist(), strict=True)
        return {(one.names[name], one.cats[cat], one.tracks[track]) for name, cat, track in columns}

    assert kinds(replayed) == kinds(recorded)


def test_the_timeline_holds_as_many_steps_as_asked_for(shared_data: Path, tmp_path: Path) -> None:
    job = copy_of(shared_data, "byteps/fork_mlp_2w2s_pcap/worker_0/0", tmp_path)
    assert run_cli("--option", "replay", "--path", job, "--step_num", 9)[0] == 0
    names = [event["name"] for event in json.loads((job / "synthetic.json").read_text())["traceEvents"]]
    assert names.count("FW.hybridsequential0_dense0") == 9


def test_output_dash_writes_nothing(shared_data: Path, tmp_path: Path) -> None:
    job = copy_of(shared_data, "byteps/fork_mlp_2w2s_pcap/worker_0/0", tmp_path)
    before = sorted(job.iterdir())
    assert run_cli("--option", "replay", "--path", job, "--output", "-")[0] == 0
    assert sorted(job.iterdir()) == before


def test_del_queue_counts_partitions_and_stages(shared_data: Path) -> None:
    args = ("--option", "replay", "--path", shared_data / "byteps/fork_mlp_2w2s_pcap/worker_0/0",
            "--output", "-", "--format", "json")  # fmt: skip
    whole, parts = (json.loads(run_cli(*args, *more)[1])["operations"] for more in ((), ("--del_queue",)))
    # 6 stages of each of 13 + 1 + 1 + 1 partitions more
    assert parts - whole == 6 * 16


def test_only_the_communications_of_the_filter_are_replayed(shared_data: Path) -> None:
    path = shared_data / "byteps/fork_mlp_2w2s_pcap/worker_0/0"
    args = ("--option", "replay", "--path", path, "--output", "-", "--format", "json")
    code, out, _ = run_cli(*args, "--filter", "Comm.hybridsequential0_dense1_bias")
    every = json.loads(run_cli(*args)[1])
    assert code == 0 and every["operations"] - json.loads(out)["operations"] == 3


def test_an_unknown_name_in_the_filter_suggests_the_nearest(shared_data: Path) -> None:
    path = shared_data / "byteps/fork_mlp_2w2s_pcap/worker_0/0"
    code, _, err = run_cli(
        "--option", "replay", "--path", path, "--filter", "Comm.hybridsequential0_dense1_bia"
    )
    assert code == 1 and "Comm.hybridsequential0_dense1_bias" in err


def test_too_many_steps_are_refused() -> None:
    with pytest.raises(UsageError, match="do not fit"):
        answer(one_gpu(), 10**9)


def test_a_cyclic_graph_is_one_line(shared_data: Path, tmp_path: Path) -> None:
    job = copy_of(shared_data, "byteps/fork_mlp_2w2s_pcap/worker_0/0", tmp_path)
    (job / "dag.gml").write_text(
        'graph [ directed 1 node [ id 0 label "FW.a" ] node [ id 1 label "FW.b" ] '
        "edge [ source 0 target 1 ] edge [ source 1 target 0 ] ]"
    )
    code, out, err = run_cli("--option", "replay", "--path", job)
    assert code == 1 and out == "" and "cycle" in err and err.count("\n") == 1


def test_one_broken_graph_does_not_cost_the_job(tmp_path: Path) -> None:
    # two GPUs, 4 + 10 of computation; each communicates for 2, and the step takes 20
    for rank in ("0", "1"):
        (tmp_path / rank).mkdir()
        times = [(name, 20 * n + at, ms) for n in (0, 1, 2) for name, at, ms in
                 (("FW.a", 0, 4), ("BW.a", 4, 10), ("Comm.a", 14, 2))]  # fmt: skip
        events = [
            {"ph": "X", "name": name, "cat": "Comm" if name == "Comm.a" else "operator", "pid": name,
             "tid": "total" if name == "Comm.a" else 1, "ts": at * 1000, "dur": ms * 1000}
            for name, at, ms in times
        ]  # fmt: skip
        (tmp_path / rank / "bps_trace_final.json").write_text(json.dumps({"traceEvents": events}))
    (tmp_path / "0" / "dag.gml").write_text('graph [ directed 1 node [ id 0 label "FW.a" ] ]')
    (tmp_path / "1" / "dag.gml").write_text("graph [ ")
    args = ("--option", "replay", "--path", tmp_path, "--output", "-", "--format", "json")
    code, out, err = run_cli(*args)
    assert code == 0 and json.loads(out)["predicted_ms"] == {"rank0": 20, "rank1": 20}
    assert err.count("\n") == 1 and str(tmp_path / "1" / "dag.gml") in err
    (tmp_path / "0" / "dag.gml").write_text("graph [ ")
    code, _, err = run_cli(*args)
    assert code == 1 and "dag.gml" in err and err.count("\n") == 1


def test_no_operation_with_a_duration_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text('{"traceEvents": []}')
    code, _, err = run_cli("--option", "replay", "--path", tmp_path / "t.json")
    assert code == 1 and "nothing to replay" in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--step_num", 0), "1 or more"),
        (("--delay_ratio", 0, "--sub_option", "smlt_delay_cmp"), "above 0"),
        (("--delay_ratio", -1), "above 0"),
        (("--sub_option", "nothing"), "map_delay"),
        (("--sub_option", "whatif"), "--set"),
        (("--set", "BW=2"), "whatif"),
    ],
)
def test_a_wrong_command_line_is_said_before_anything_is_read(more: tuple[object, ...], words: str) -> None:
    code, _, err = run_cli("--option", "replay", "--path", "nowhere", *more)
    assert code == 2 and words in err
