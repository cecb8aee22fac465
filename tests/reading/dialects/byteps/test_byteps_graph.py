"""BytePS's steps as graphs: hand-made GPUs whose edges are known, and recorded jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path

import numpy as np
import pytest

import recorded
from analyzer.base.errors import TraceError
from analyzer.model.graph.join_ranks import join
from analyzer.model.graph.step_graph import Recording
from analyzer.reading import dialects
from analyzer.reading.dialects.step_parts import Joint, Operation, RankStep, RankSteps, RankTrace
from analyzer.reading.formats.columns import Id, Trace, Track
from conftest import REPO
from dag_utils import critical_path, load_steps
from make import stretches_of, trace_of
from trace_utils import Request

MS = 1_000_000
KEY = 65536
Row = tuple[str, Id, Id, float, float]  # name, pid, tid, start and end in ms
Pair = tuple[str, str]

PASS: Sequence[Pair] = (("FW.a", "BW.a"), ("BW.a", "Comm.a"), ("Comm.a", "STEP"), ("STEP", "FW.a"))


def trace(rows: Sequence[Row], inputs: Mapping[str, Mapping[int, str]] | None = None) -> Trace:
    """A BytePS trace of these slices; `inputs` by key of args, then row."""
    made = [
        (name, Track(pid, tid), int(start * MS), int(end * MS) - int(start * MS))
        for name, pid, tid, start, end in rows
    ]
    return trace_of(made, "byteps", args=inputs)


def compute(name: str, start: float, end: float, tid: int = 7) -> Row:
    return (name, 0, tid, start, end)


def tensor(
    name: str, start: float, end: float, *stages: tuple[str, float, float], key: int = KEY
) -> list[Row]:
    """A communication of one partition that passes these stages."""
    pid = f"Comm.{name}"
    return [
        (pid, pid, "total", start, end),
        *((f"{pid}.{stage}", pid, str(key), begin, over) for stage, begin, over in stages),
    ]


def gpu(
    rows: Sequence[Row],
    edges: Sequence[Pair] = (),
    *,
    name: str = "rank0",
    worker: int | None = None,
    **beside: object,
) -> RankSteps:
    found = trace(rows)
    return dialects.of(found).rank_steps(RankTrace(name, found, worker, edges, **beside))  # type: ignore[arg-type]


def operation(steps: RankSteps, step: RankStep, event: int) -> Operation:
    return steps.operations[int(step.operation[event])]


def labels(steps: RankSteps, row: int = 0) -> list[str]:
    step = steps.steps[row]
    return [operation(steps, step, event).label for event in range(len(step))]


def edges(steps: RankSteps, row: int = 0) -> set[tuple[str, str, Joint]]:
    names = labels(steps, row)
    return {(names[a], names[b], Joint(joint)) for a, b, joint, _ in steps.steps[row].edges.tolist()}


def interval(steps: RankSteps, label: str, row: int = 0) -> tuple[float, float]:
    step, event = steps.steps[row], labels(steps, row).index(label)
    return float(step.start_ns[event]) / MS, float(step.end_ns[event]) / MS


HEAD, BODY, FROM_START = Joint.END_TO_HEAD, Joint.END_TO_BODY, Joint.START_TO_HEAD


def one_step(at: float = 0) -> list[Row]:
    """A step of 23: FW 4, BW 10, a tensor pushed in 3 and pulled in 5, 1 until the next."""
    stages = (("PUSH", at + 14, at + 17), ("PULL", at + 17, at + 22))
    return [
        compute("FW.a", at, at + 4),
        compute("BW.a", at + 4, at + 14),
        *tensor("a", at + 14, at + 22, *stages),
    ]


def test_a_step_is_its_operations_and_the_stages_of_its_partitions() -> None:
    steps = gpu([*one_step(), *one_step(23), compute("FW.a", 46, 50)], PASS)
    assert [(step.number, step.begin_ns, step.next_ns) for step in steps.steps] == [
        (1, 0, 23 * MS), (2, 23 * MS, 46 * MS)]  # fmt: skip
    assert labels(steps) == ["FW.a", "BW.a", "Comm.a.PUSH.65536", "Comm.a", "Comm.a.PULL.65536"]
    assert edges(steps) == edges(steps, 1) == {
        ("FW.a", "BW.a", HEAD),
        ("BW.a", "Comm.a", HEAD),
        ("Comm.a", "Comm.a.PUSH.65536", FROM_START),
        ("Comm.a.PUSH.65536", "Comm.a.PULL.65536", HEAD),
        ("Comm.a.PULL.65536", "Comm.a", BODY),
    }  # fmt: skip


def test_operations_have_a_purpose_and_a_transfer() -> None:
    rows = [*one_step(), compute("FW.a", 23, 27), ("I/O", "I/O", None, 22, 22.5), ("STEP", 0, None, 14, 22.5)]
    steps = gpu(rows, worker=1, bytes_of={KEY: 40}, server_of={KEY: 3})
    told = {one.label: (one.cat, one.purpose, *itemgetter(0, 3, 4)(one.transfer)) for one in steps.operations}
    assert told["Comm.a.PUSH.65536"] == ("Comm", "Comm", "Comm.a", "worker 1 PUSH", 40)
    assert told["Comm.a.PULL.65536"] == ("Comm", "Comm", "Comm.a", "server 3 PULL", 40)
    assert told["Comm.a"] == ("Comm", "Comm", "", "", 0)
    assert [told[name][:2] for name in ("FW.a", "I/O", "STEP")] == [
        ("FW", "FW"), ("I/O", "I/O"), ("STEP", "STEP")]  # fmt: skip
    assert {one.is_communication for one in steps.operations if one.transfer.whole} == {True}


def test_operations_of_a_thread_follow_each_other() -> None:
    rows = [
        compute("FW.a", 0, 2),
        compute("FW.b", 2, 5, tid=8),
        compute("BW.b", 6, 9),
        compute("FW.a", 10, 11),
    ]
    assert edges(gpu(rows)) == {
        ("FW.a", "BW.b", HEAD),  # thread 7
        ("FW.a", "FW.b", HEAD), ("FW.b", "BW.b", HEAD),  # the one that ended last before it
    }  # fmt: skip


def test_an_edge_that_the_recording_contradicts_is_not_used() -> None:
    rows = [*one_step(), *one_step(23), compute("FW.a", 46, 50)]
    assert ("Comm.a", "BW.a", HEAD) not in edges(gpu(rows, [("Comm.a", "BW.a"), ("BW.a", "Comm.a")]))
    # in one of two steps BW.b begins before FW.b has ended: then it does not wait for it in the other one
    rows = []
    for at, early in ((0, 0), (50, 1)):
        rows += [compute("FW.a", at, at + 5), compute("FW.b", at + 5, at + 10)]
        rows += [compute("BW.b", at + 10 - early, at + 15, tid=8)]
    steps = gpu([*rows, compute("FW.a", 100, 105)], [("FW.a", "FW.b"), ("FW.b", "BW.b"), ("FW.a", "BW.b")])
    assert ("FW.b", "BW.b", HEAD) not in edges(steps)
    assert ("FW.a", "BW.b", HEAD) in edges(steps)


def test_nodes_without_events_are_bridged_but_not_into_the_next_step() -> None:
    pairs = [
        ("FW.a", "OUTPUT0"),
        ("OUTPUT0", "BW.a"),
        ("BW.a", "Comm.a"),
        ("Comm.a", "STEP"),
        ("STEP", "FW.a"),
    ]
    steps = gpu([*one_step(), compute("FW.a", 23, 24)], pairs)
    assert edges(steps) == edges(gpu([*one_step(), compute("FW.a", 23, 24)], PASS))


def test_step_waits_for_communications_during_its_course() -> None:
    rows = [*one_step(), ("STEP", 0, None, 14.5, 22.5), compute("FW.a", 23, 24)]
    assert {edge for edge in edges(gpu(rows, PASS)) if "STEP" in edge[:2]} == {
        ("Comm.a", "STEP", BODY), ("BW.a", "STEP", HEAD)}  # fmt: skip


def test_step_is_cut_where_the_next_step_begins() -> None:
    # the next load begins at 23, the next forward operation at 27, until which STEP is recorded
    rows = [
        row
        for at in (0, 23)
        for row in (("I/O", "I/O", None, at, at + 2), *one_step(at), ("STEP", 0, None, at + 14, at + 27))
    ]
    rows = [row if row[0] != "FW.a" else compute("FW.a", row[3] + 4, row[4]) for row in rows]
    steps = gpu([*rows, ("I/O", "I/O", None, 46, 48)], PASS)
    assert interval(steps, "STEP") == (14, 23)
    assert interval(steps, "STEP of an earlier step", 1) == (23, 27)
    assert steps.steps[1].continued.tolist() == [[labels(steps).index("STEP"), 0]]
    assert ("STEP of an earlier step", "FW.a", HEAD) in edges(steps, 1)
    last = steps.steps[0].last
    assert last is not None and [labels(steps)[event] for event in last] == ["STEP"]


# ---- communication that reaches into the next step


def overlapping(late: float = 23) -> RankSteps:
    """Steps of 20: FW.z FW.a BW.a, then Comm.a from 15 to `late`, beside FW.z of the next step."""
    rows = []
    for at in (0, 20, 40):
        rows += [
            compute("FW.z", at, at + 4),
            compute("FW.a", at + 5, at + 10),
            compute("BW.a", at + 10, at + 15),
        ]
        rows += tensor("a", at + 15, at + late, ("PUSH", at + 15, at + 16), ("PULL", at + 16, at + late))
    pairs = [("FW.z", "FW.a"), ("FW.a", "BW.a"), ("BW.a", "Comm.a")]
    return gpu([*rows, compute("FW.z", 60, 64)], pairs)


def test_the_layer_of_the_next_step_waits_for_its_gradient() -> None:
    steps = overlapping()
    carried = "Comm.a of an earlier step"
    assert (carried, "FW.a", HEAD) in edges(steps, 1)
    assert ("Comm.a.PULL.65536 of an earlier step", carried, BODY) in edges(steps, 1)
    assert interval(steps, carried, 1) == (20, 23)
    pairs = [(labels(steps)[a], labels(steps, 1)[b]) for a, b in steps.steps[1].continued.tolist()]
    assert sorted(pairs) == [
        ("Comm.a", carried), ("Comm.a.PULL.65536", "Comm.a.PULL.65536 of an earlier step")]  # fmt: skip


# ---- forms


def test_inputs_may_name_the_weights_of_the_step_before() -> None:
    # ByteProfile's documented form: FW waits for arg1: Comm.a, whose communication reaches into the step
    rows = [row for at in (0, 20) for row in (
        compute("FW.z", at, at + 4), compute("FW.a", at + 6, at + 10), compute("BW.a", at + 10, at + 15),
        *tensor("a", at + 15, at + 25))]  # fmt: skip
    rows.append(compute("FW.z", 40, 44))
    inputs = [("FW.a", 0, "FW.z"), ("FW.a", 1, "Comm.a"), ("BW.a", 0, "FW.a"), ("Comm.a", 0, "BW.a")]
    by_key: dict[str, dict[int, str]] = {}
    for name, place, source in inputs:
        for row, (other, *_) in enumerate(rows):
            if other == name:
                by_key.setdefault(f"arg{place}", {})[row] = source
    found = trace(rows, by_key)
    pairs = [(source, name) for name, _, source in inputs]
    steps = dialects.of(found).rank_steps(RankTrace("rank0", found, dag_edges=pairs))
    assert ("Comm.a of an earlier step", "FW.a", HEAD) in edges(steps, 1)
    assert ("Comm.a", "FW.a", HEAD) not in edges(steps) | edges(steps, 1)


def test_communication_alone_has_the_time_before_each_gradient_as_computation() -> None:
    # rounds end at 20 and 60: the step from 20 to 60 computes b until 45, then a until 50
    rows = [*tensor("b", 5, 15), *tensor("a", 10, 20), *tensor("b", 45, 55), *tensor("a", 50, 60)]
    steps = gpu(rows)
    assert [(step.number, step.begin_ns, step.next_ns) for step in steps.steps] == [(2, 20 * MS, 60 * MS)]
    assert interval(steps, "untraced.b") == (20, 45) and interval(steps, "untraced.a") == (45, 50)
    assert edges(steps) == {
        ("untraced.b", "untraced.a", HEAD),
        ("untraced.b", "Comm.b", HEAD),
        ("untraced.a", "Comm.a", HEAD),
    }
    assert [one.is_traced for one in steps.operations if one.cat == "untraced"] == [False] * 2
    assert steps.notes == ["no forward and backward operations recorded; "
                           "the time before each gradient stands for them"]  # fmt: skip


def test_a_last_step_is_kept_only_with_all_its_events() -> None:
    whole = gpu([*one_step(), *one_step(23)], PASS)
    assert [(step.number, step.next_ns) for step in whole.steps] == [(1, 23 * MS), (2, -1)]
    cut = gpu([*one_step(), *one_step(23)[:3]], PASS)
    assert [step.number for step in cut.steps] == [1]


def test_a_trace_without_steps_is_refused_in_a_line() -> None:
    with pytest.raises(TraceError, match=r"^made\.json: no training step is recorded in it$"):
        gpu([compute("BW.a", 0, 1)])


# ---- several GPUs


def joined_edges(recording: Recording, row: int = 0) -> set[tuple[str, str, Joint]]:
    """The edges between owners."""
    step = recording.steps[row]
    return {
        (recording.name_of(step, a), recording.name_of(step, b), Joint(joint))
        for a, b, joint, _ in step.edges.tolist()
        if step.owner[a] != step.owner[b]
    }


def two_workers(late: float, acknowledged: float = 1) -> Recording:
    """Two workers; the second computes and pushes `late` longer, the answers take 2 each.

    The acknowledgement of a push comes after `acknowledged`.
    """
    ranks = []
    for worker, push in enumerate((10.0, 10.0 + late)):
        answered = 10.0 + late + 1 + 2 * (worker + 1)
        rows = [
            compute("FW.a", 0, 4), compute("BW.a", 4, push),
            *tensor("a", push, answered, ("PUSH", push, push + acknowledged), ("PULL", push + 1, answered)),
            compute("FW.a", 60, 61),
        ]  # fmt: skip
        ranks.append(gpu(rows, PASS, name=f"wk{worker}.rank0", worker=worker))
    return join(ranks)


def pushed_before_pulled(rank: int) -> set[tuple[str, str, Joint]]:
    """The edges between the PUSHes and PULLs of two workers, whose root GPU is `rank`."""
    return {
        (f"wk{a}.rank{rank}.Comm.a.PUSH.{KEY}", f"wk{b}.rank{rank}.Comm.a.PULL.{KEY}", BODY)
        for a, b in ((0, 1), (1, 0))
    }


def test_a_key_is_answered_once_every_worker_has_pushed_it() -> None:
    assert joined_edges(two_workers(30)) == pushed_before_pulled(rank=0)


def test_waiting_for_the_other_worker_is_not_work() -> None:
    # worker 0's PULL lasts from 11 to 43; the other PUSH ended at 41: 2 of it are work
    job = two_workers(30)
    step = job.steps[0]
    names = [job.name_of(step, event) for event in range(len(step))]
    pull = names.index(f"wk0.rank0.Comm.a.PULL.{KEY}")
    waits_ns = step.end_ns - step.start_ns - step.work_ns
    assert (int(step.work_ns[pull]) / MS, int(waits_ns[pull]) / MS) == (2, 30)
    # the server's link answers worker 0 until 43, then worker 1 until 45
    assert int(step.work_ns[names.index(f"wk1.rank0.Comm.a.PULL.{KEY}")]) / MS == 2


def local(rank: int, worker: int = 0) -> RankSteps:
    """One of two GPUs of a worker: rank 1 is the root."""
    common = [compute("FW.a", 0, 4), compute("BW.a", 4, 10 + rank)]
    if rank == 1:
        stages = (
            ("REDUCE", 11, 13),
            ("PUSH", 14, 16),
            ("PULL", 16, 20),
            ("COPYH2D", 20, 21),
            ("BROADCAST", 23, 24),
        )
    else:
        stages = (("REDUCE", 10, 13), ("COORDINATE_PUSH", 13, 14), ("COPYH2D", 20.5, 21.5),
                  ("COORDINATE_BROADCAST", 21.5, 22), ("BROADCAST", 22, 24))  # type: ignore[assignment]  # fmt: skip
    rows = [*common, *tensor("a", 10 + rank, 25, *stages), compute("FW.a", 26, 27)]
    return gpu(rows, PASS, name=f"wk{worker}.rank{rank}", worker=worker)


def test_gpus_of_a_worker_reduce_together_and_go_through_the_root() -> None:
    def at(rank: int, stage: str) -> str:
        return f"wk0.rank{rank}.Comm.a.{stage}.{KEY}"

    together = Joint.START_TO_BODY
    assert joined_edges(join([local(0), local(1)])) == {
        (at(0, "REDUCE"), at(1, "REDUCE"), together), (at(1, "REDUCE"), at(0, "REDUCE"), together),
        (at(0, "COORDINATE_PUSH"), at(1, "PUSH"), HEAD),
        (at(1, "PULL"), at(0, "COPYH2D"), HEAD),
        (at(0, "COORDINATE_BROADCAST"), at(1, "BROADCAST"), HEAD),
        (at(0, "BROADCAST"), at(1, "BROADCAST"), together),
        (at(1, "BROADCAST"), at(0, "BROADCAST"), together),
    }  # fmt: skip


def test_a_gpu_that_cannot_number_its_steps_takes_the_numbers_of_the_others() -> None:
    # rank0 records a load of a step before the traced ones, 2 and 3; of rank1 only communication is there,
    # whose second round ends the second traced step
    loads = [("I/O", "I/O", None, at, at + 0.5) for at in (-23, -1, 22, 45)]
    numbered = gpu([*loads, *one_step(), *one_step(23), compute("FW.a", 46, 50)], PASS)
    alone = gpu([row for at in (0, 23) for row in one_step(at)[2:]], name="rank1")
    assert [step.number for step in numbered.steps] == [2, 3]
    assert ([step.number for step in alone.steps], alone.is_numbered) == ([2], False)
    assert [step.number for step in join([numbered, alone]).steps] == [3]


# ---- recorded jobs


@pytest.mark.thorough
def test_every_recorded_job_has_the_steps_of_its_marks_and_edges_that_its_times_respect() -> None:
    for job in recorded.jobs("byteps"):
        loaded = load_steps([job])
        traces = loaded.load_traces()
        bounds = [{step.label: step for step in dialects.of(one).find_steps(one).whole} for one in traces]
        common = set.intersection(*(set(own) for own in bounds))
        assert common <= {step.number for step in loaded.recording.steps}, job
        for step in loaded.recording.steps:
            for own, begin, following in zip(
                bounds, step.begin_ns.tolist(), step.next_ns.tolist(), strict=True
            ):
                marked = own.get(step.number)
                assert marked is None or (begin, following) == (marked.start_ns, marked.end_ns), job


def test_every_event_of_a_recorded_step_is_there(shared_data: Path) -> None:
    # 10 tensors' 33 partitions pass 6 stages; lenet has 39 nodes: OUTPUT0 has no event; STEP runs on
    lenet = load_steps([REPO / "examples" / "lenet"]).recording
    step = lenet.steps[3]
    names = [lenet.operations[i] for i in step.operation.tolist()]
    assert [sum(one.owner == owner and bool(one.transfer.stage) for one in names) for owner in (0, 1)] == [
        198,
        198,
    ]
    assert sum(one.owner == 0 and not one.transfer.stage and not one.from_earlier_step for one in names) == 38
    assert [one.label for one in names if one.from_earlier_step] == ["STEP of an earlier step"] * 2


def by_category(recording: Recording, row: int) -> dict[tuple[str, str], float]:
    """(owner, category or kind of time) -> share of the critical path."""
    step = recording.steps[row]
    path = critical_path(step)
    found: dict[tuple[str, str], float] = {}
    for one in stretches_of(path):
        cat = one.cat or recording.operations[int(step.operation[one.event])].cat
        key = recording.owners[one.owner], cat
        found[key] = found.get(key, 0) + one.dur_ns / path.length_ns
    return found


def test_the_slow_worker_is_blamed_not_the_network(shared_data: Path) -> None:
    lenet = load_steps([REPO / "examples" / "lenet"]).recording
    share = by_category(lenet, [step.number for step in lenet.steps].index(13))
    assert share["wk1.rank0", "BW"] > 0.4
    assert sum(part for (_, cat), part in share.items() if cat == "Comm") < 0.05
    straggler = load_steps(
        [shared_data / "byteps" / "fork_lenet_straggler"], Request(progress=False)
    ).recording
    shares = [by_category(straggler, row) for row in range(len(straggler.steps))]
    assert (
        np.median([sum(part for (who, _), part in one.items() if who == "wk1.rank0") for one in shares]) > 0.9
    )
    assert np.median([sum(part for (_, cat), part in one.items() if cat == "Comm") for one in shares]) < 0.1
