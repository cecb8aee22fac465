"""Building graphs: from inputs in events, from recordings of BytePS, merged to workers and jobs."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clocks.aligned import on_one_clock
from dag.recording import without

from dag_utils import (
    MEETING,
    MISSING,
    Dag,
    Gpu,
    Kind,
    components,
    dag_from_inputs,
    dasf_dag,
    depths,
    gpus_of_trace,
    load_gpus,
    longest_path,
    merge,
    new_dag,
    record,
    subgraph,
    without_others,
)  # fmt: skip
from errors import DagError
from formats.columns import ArgColumn, Trace, Track

Event = tuple[str, str | None, float, float]  # name, tid, start ms, duration ms


def trace(events: Sequence[Event], inputs: dict[int, Sequence[str]] | None = None) -> Trace:
    """A trace of these slices; `inputs` says per row what it waits for."""
    names = list(dict.fromkeys(event[0] for event in events))
    tracks = list(dict.fromkeys(Track(0, event[1]) for event in events))
    most = max((len(each) for each in (inputs or {}).values()), default=0)
    args = {}
    for i in range(most):
        rows = [row for row, each in (inputs or {}).items() if len(each) > i]
        args[f"input{i}"] = ArgColumn(np.array(rows, np.int64), [(inputs or {})[row][i] for row in rows])
    return Trace(
        path="t.json", dialect="byteps", names=names, cats=[""], tracks=tracks,
        name_id=np.array([names.index(e[0]) for e in events], np.int32),
        cat_id=np.zeros(len(events), np.int32),
        track_id=np.array([tracks.index(Track(0, e[1])) for e in events], np.int32),
        ts_ns=np.array([round(e[2] * 1e6) for e in events], np.int64),
        dur_ns=np.array([round(e[3] * 1e6) for e in events], np.int64),
        args=args,
    )  # fmt: skip


def edges(dag: Dag) -> set[tuple[str, str, Kind]]:
    """The edges by name."""
    pairs = zip(dag.src.tolist(), dag.dst.tolist(), dag.kind.tolist(), strict=True)
    return {(dag.names[a], dag.names[b], Kind(kind)) for a, b, kind in pairs}


def chain(*names: str) -> Dag:
    """One operation after the other."""
    cats = [name.split(".")[0] for name in names]
    return new_dag(names, cats, [0] * len(names), [(i, i + 1) for i in range(len(names) - 1)])


# -- recordings


def test_the_nth_event_is_the_nth_step() -> None:
    found = record(trace([("FW.a", "1", 10, 2), ("FW.a", "2", 0, 1)]))
    assert found.names == ["FW.a"]
    assert found.dur_ns.tolist() == [[1_000_000], [2_000_000]]  # by time, whatever the thread


def test_a_sub_task_is_told_by_its_track() -> None:
    found = record(
        trace([("Comm.w", "total", 0, 9), ("Comm.w.PUSH", "65536", 0, 4), ("Comm.w.PUSH", "65537", 1, 4)])
    )
    assert found.names == ["Comm.w", "Comm.w.PUSH.65536", "Comm.w.PUSH.65537"]
    assert {main: [key for _, key, _ in parts] for main, parts in found.parts.items()} == {
        "Comm.w": [65536, 65537]
    }


def test_a_tensor_whose_name_ends_in_a_stage_is_a_whole_by_its_track() -> None:
    found = record(trace([("Comm.mlp.PUSH", "total", 0, 9)]))
    assert (found.names, dict(found.parts)) == (["Comm.mlp.PUSH"], {})


def test_loads_of_untraced_steps_are_placed_by_time() -> None:
    loads = [("I/O", None, start, 1.0) for start in (0, 10, 20, 30)]
    work = [("FW.a", "1", 12, 5), ("FW.a", "1", 22, 5)]
    found = record(trace([*loads, *work]))
    io = list(found.names).index("I/O")
    assert found.start_ns[:, io].tolist() == [10_000_000, 20_000_000]


def test_the_average_is_over_all_events() -> None:
    # the profiler records the first operations of the step after the last one, too
    found = record(trace([("Comm.w", "total", 0, 1), ("FW.a", "1", 0, 1), ("FW.a", "1", 9, 3)]))
    assert found.mean_ns[list(found.names).index("FW.a")] == 2_000_000
    assert found.n_steps == 1


def test_a_whole_that_was_cut_off_is_made_of_its_parts() -> None:
    found = record(trace([("Comm.w.PUSH", "0", 5, 4), ("Comm.w.PULL", "0", 10, 3)]))
    whole = list(found.names).index("Comm.w")
    assert (found.start_ns[0, whole], found.dur_ns[0, whole]) == (5_000_000, 8_000_000)


def test_an_operation_missing_in_a_step_is_missing() -> None:
    found = record(trace([("Comm.a", "total", 0, 1), ("Comm.a", "total", 9, 1), ("Comm.b", "total", 0, 1),
                          ("Comm.b", "total", 9, 1), ("Comm.c", "total", 0, 1)]))  # fmt: skip
    assert found.dur_ns[1, list(found.names).index("Comm.c")] == MISSING


def test_a_trace_without_operations_is_no_recording() -> None:
    assert record(trace([("aten::add", "1", 0, 1)])).names == ()
    assert record(trace([])).names == ()


def test_an_operation_may_be_left_out_of_a_recording() -> None:
    found = without(
        record(trace([("STEP", "1", 0, 7), ("Comm.w", "total", 0, 9), ("Comm.w.PUSH", "5", 1, 2)])), "STEP"
    )
    assert (list(found.names), found.dur_ns.tolist()) == (
        ["Comm.w", "Comm.w.PUSH.5"],
        [[9_000_000, 2_000_000]],
    )
    assert found.parts["Comm.w"][0][1:] == (5, 1)


# -- inputs in events


def test_inputs_become_edges_and_step_ends_the_step() -> None:
    events = [("FW.a", "1", 0, 1), ("BW.a", "1", 1, 1), ("Comm.w", "total", 2, 5), ("Comm.w.PUSH", "7", 2, 5)]
    dag = dag_from_inputs(trace(events, {0: ["STEP", "I/O"], 1: ["FW.a"], 2: ["BW.a"], 3: ["BW.a"]}))
    assert dag is not None
    assert edges(dag) == {
        ("FW.a", "BW.a", Kind.DATA),
        ("BW.a", "Comm.w", Kind.DATA),
        ("I/O", "FW.a", Kind.DATA),
    }
    assert [(dag.names[a], dag.names[b]) for a, b in zip(dag.next_src, dag.next_dst, strict=True)] == [
        ("STEP", "FW.a")
    ]


def test_a_trace_without_inputs_is_refused_in_a_line() -> None:
    with pytest.raises(DagError, match=r"^t\.json: no event says what it waits for"):
        gpus_of_trace(trace([("FW.a", "1", 0, 1)]))


def test_an_output_waits_for_the_last_forward_operations() -> None:
    events = [("FW.a", "1", 0, 1), ("FW.b", "1", 1, 1), ("BW.b", "1", 2, 1)]
    dag = dag_from_inputs(trace(events, {1: ["FW.a"], 2: ["OUTPUT0"]}))
    assert dag is not None
    assert edges(dag) == {("FW.a", "FW.b", Kind.DATA), ("OUTPUT0", "BW.b", Kind.DATA),
                          ("FW.b", "OUTPUT0", Kind.DATA)}  # fmt: skip


def test_a_combined_trace_is_several_gpus() -> None:
    events = [(f"wk{w}.rank0.{name}", "1", 10 * w, 2 + w) for w in (0, 1) for name in ("FW.a", "BW.a")]
    gpus = gpus_of_trace(trace(events, {1: ["FW.a"], 3: ["FW.a"]}))
    assert [(gpu.prefix, gpu.recording.mean_ns.tolist()) for gpu in gpus] == [
        ("wk0.rank0.", [2_000_000, 2_000_000]), ("wk1.rank0.", [3_000_000, 3_000_000])]  # fmt: skip


def test_inputs_that_form_a_cycle_are_printed() -> None:
    with pytest.raises(DagError, match=r"t\.json: the graph has a cycle: FW\.[ab] -> "):
        dag_from_inputs(trace([("FW.a", "1", 0, 1), ("FW.b", "1", 1, 1)], {0: ["FW.b"], 1: ["FW.a"]}))


# -- merging

STAGES = ("REDUCE", "PUSH", "PULL", "BROADCAST")


def worker_gpu(worker: int, rank: int, events: Sequence[Event], **changes: Any) -> Gpu:
    """A GPU with FW.a -> BW.a -> Comm.w -> STEP and this recording."""
    dag = chain("FW.a", "BW.a", "Comm.w", "STEP")
    return Gpu(dag, record(trace(events)), worker, rank, f"wk{worker}.rank{rank}.", **changes)


def test_without_a_partner_nothing_is_coupled() -> None:
    dag = merge([Gpu(chain("FW.a", "BW.a"), record(trace([("FW.a", "1", 0, 3), ("BW.a", "1", 3, 4)])))])
    assert (list(dag.names), dag.dur_ns.tolist()) == (["FW.a", "BW.a"], [3_000_000, 4_000_000])
    assert edges(dag) == {("FW.a", "BW.a", Kind.DATA)}


def test_a_communication_waits_for_every_rank() -> None:
    a = worker_gpu(0, 0, [("BW.a", "1", 0, 10), ("Comm.w", "total", 10, 30)])
    b = worker_gpu(1, 0, [("BW.a", "1", 0, 25), ("Comm.w", "total", 25, 15)])
    dag = merge([a, b])
    assert {("wk0.rank0.BW.a", "Comm.w", Kind.MESSAGE), ("wk1.rank0.BW.a", "Comm.w", Kind.MESSAGE),
            ("Comm.w", "wk0.rank0.Comm.w", Kind.MESSAGE)} <= edges(dag)  # fmt: skip
    # worker 0 waits 15 ms for worker 1; its service time is 15 ms, and no chain is longer than the 40 ms
    assert dag.wait_ns[list(dag.names).index("wk0.rank0.Comm.w")] == 15_000_000
    assert longest_path(dag).length_ns == 40_000_000


def test_the_path_runs_through_the_worker_that_was_waited_for() -> None:
    # worker 0: 10 + 30 ms, 15 of them waiting; worker 1: 25 + 15 ms: a tie of 40 ms
    a = worker_gpu(0, 0, [("BW.a", "1", 0, 10), ("Comm.w", "total", 10, 30)])
    b = worker_gpu(1, 0, [("BW.a", "1", 0, 25), ("Comm.w", "total", 25, 15)])
    dag = merge([a, b])
    path = [dag.names[node] for node in longest_path(dag).nodes]
    assert path[1:4] == ["wk1.rank0.BW.a", "Comm.w", "wk0.rank0.Comm.w"]


def test_waiting_inside_a_pull_leads_to_the_push_of_the_other_worker() -> None:
    # worker 0 pulls from 20 to 60, of which until 50 for worker 1's PUSH: 30 + 10 ms
    a = worker_gpu(0, 0, [("BW.a", "1", 0, 10), ("Comm.w.PUSH", "0", 10, 10), ("Comm.w.PULL", "0", 20, 40)])
    b = worker_gpu(1, 0, [("BW.a", "1", 0, 40), ("Comm.w.PUSH", "0", 40, 10), ("Comm.w.PULL", "0", 50, 10)])
    dag = merge([a, b], del_queue=True)
    found = longest_path(dag)
    assert found.length_ns == 60_000_000
    assert [dag.names[node] for node in found.nodes[1:5]] == [
        "wk1.rank0.BW.a", "wk1.rank0.Comm.w.PUSH.0", "Comm.w.PUSH.0", "wk0.rank0.Comm.w.PULL.0"]  # fmt: skip


def test_step_counts_from_the_end_of_what_it_waits_for() -> None:
    # FW 0-10, BW 10-20, Comm 20-50; STEP 20-55 waits 30 for Comm and works 5: 10 + 10 + 30 + 5
    events = [("FW.a", "1", 0, 10), ("BW.a", "1", 10, 10), ("Comm.w", "total", 20, 30), ("STEP", "1", 20, 35)]
    dag = merge([worker_gpu(0, 0, events)])
    found = longest_path(dag)
    assert dag.dur_ns[dag.names.index("wk0.rank0.STEP")] == 35_000_000
    assert found.length_ns == 55_000_000
    assert (found.part_ns[-1], found.kinds[-1]) == (5_000_000, Kind.JOIN)


def test_no_path_begins_with_a_step_that_waits() -> None:
    # Comm took 10 of STEP's 35 and ended after 30 of them: 10 + 5, not 35
    dag = merge([worker_gpu(0, 0, [("Comm.w", "total", 20, 10), ("STEP", "1", 0, 35)])])
    found = longest_path(dag)
    assert [dag.names[node] for node in found.nodes[-2:]] == ["wk0.rank0.Comm.w", "wk0.rank0.STEP"]
    assert found.length_ns == 15_000_000


def test_a_step_after_what_it_waits_for_counts_whole() -> None:
    dag = merge([worker_gpu(0, 0, [("Comm.w", "total", 20, 10), ("STEP", "1", 40, 35)])])
    assert longest_path(dag).length_ns == 45_000_000


def test_a_clock_that_is_behind_is_put_right() -> None:
    a = worker_gpu(0, 0, [("BW.a", "1", 0, 10), ("Comm.w", "total", 10, 30)])
    b = worker_gpu(1, 0, [("BW.a", "1", 100, 25), ("Comm.w", "total", 125, 15)], offset_ns=-100_000_000)
    assert merge([a, b]).wait_ns.max() == 15_000_000


def test_workers_clocks_are_put_on_the_first_ones() -> None:
    # the second worker's clock is ahead: its PUSH cannot begin after the first one's PULL ended (x <= -980),
    # nor the first one's PUSH after its PULL ended (x >= -1030)
    a = worker_gpu(0, 0, [*stages(10, "PUSH"), ("Comm.w.PULL", "0", 20, 20)])
    b = worker_gpu(1, 0, stages(1020, "PUSH", "PULL"))
    moved, offsets, said = on_one_clock([a, b])
    assert [gpu.offset_ns for gpu in moved] == [0, -1_005_000_000]
    assert offsets == {0: 0, 1: -1_005_000_000}
    assert said.startswith("clocks moved: worker 1 by -1,005,000.0 µs (±25,0")


def stages(start: float, *names: str, key: int = 0) -> list[Event]:
    """Stages of Comm.w of 10 ms each, one after the other."""
    return [(f"Comm.w.{name}", str(key), start + 10 * i, 10) for i, name in enumerate(names)]


def test_del_queue_puts_stages_in_their_order() -> None:
    events = [
        ("BW.a", "1", 0, 5),
        *stages(5, "REDUCE", "PUSH", "PULL"),
        *stages(5, "REDUCE", "PUSH", "PULL", key=1),
    ]
    dag = merge([Gpu(chain("BW.a", "Comm.w", "STEP"), record(trace(events)))], del_queue=True)
    expected = set()
    for key in (0, 1):
        names = ["BW.a", *(f"Comm.w.{stage}.{key}" for stage in ("REDUCE", "PUSH", "PULL")), "STEP"]
        expected |= {(a, b, Kind.DATA) for a, b in itertools.pairwise(names[:-1])}
        expected.add((names[-2], "STEP", Kind.JOIN))
    assert edges(dag) == expected
    assert longest_path(dag).length_ns == 35_000_000


def test_pull_waits_for_the_push_of_every_worker() -> None:
    a = worker_gpu(0, 0, [("BW.a", "1", 0, 10), *stages(10, "PUSH", "PULL")])
    b = worker_gpu(1, 0, [("BW.a", "1", 0, 20), *stages(20, "PUSH", "PULL")])
    dag = merge([a, b], del_queue=True)
    met = edges(dag)
    for worker in (0, 1):
        assert (f"wk{worker}.rank0.Comm.w.PUSH.0", "Comm.w.PUSH.0", Kind.MESSAGE) in met
        assert ("Comm.w.PUSH.0", f"wk{worker}.rank0.Comm.w.PULL.0", Kind.MESSAGE) in met
    assert dag.cats[list(dag.names).index("Comm.w.PUSH.0")] == MEETING
    # the second worker's PUSH ends at 30, its PULL at 40; the first one's PULL had waited from 20 to 30
    assert dag.wait_ns[list(dag.names).index("wk0.rank0.Comm.w.PULL.0")] == 10_000_000
    assert longest_path(dag).length_ns == 40_000_000


ROOT = [("BW.a", "1", 0, 10), *stages(10, "REDUCE", "PUSH", "PULL", "BROADCAST")]
OTHER = [
    ("BW.a", "1", 0, 5), ("Comm.w.COORDINATE_REDUCE", "0", 5, 1), ("Comm.w.REDUCE", "0", 9, 10),
    ("Comm.w.COORDINATE_PUSH", "0", 19, 1), ("Comm.w.COPYH2D", "0", 41, 1), ("Comm.w.BROADCAST", "0", 42, 8),
]  # fmt: skip


def test_local_ranks_reduce_together_and_go_through_the_root() -> None:
    dag = merge([worker_gpu(0, 0, OTHER), worker_gpu(0, 1, ROOT)], del_queue=True)
    assert {
        ("wk0.rank0.Comm.w.COORDINATE_REDUCE.0", "wk0.Comm.w.REDUCE.0", Kind.GROUP),
        ("wk0.rank1.BW.a", "wk0.Comm.w.REDUCE.0", Kind.GROUP),
        ("wk0.Comm.w.REDUCE.0", "wk0.rank0.Comm.w.REDUCE.0", Kind.GROUP),
        ("wk0.rank0.Comm.w.COORDINATE_PUSH.0", "wk0.rank1.Comm.w.PUSH.0", Kind.GROUP),
        ("wk0.rank1.Comm.w.PULL.0", "wk0.rank0.Comm.w.COPYH2D.0", Kind.GROUP),
    } <= edges(dag)


def test_a_gpu_alone_borrows_push_and_pull_from_the_root() -> None:
    other, root = worker_gpu(0, 0, OTHER), worker_gpu(0, 1, ROOT)
    dag = merge([other], del_queue=True, lenders=[other, root])
    assert "wk0.rank1.Comm.w.PULL.0" in dag.names
    assert "wk0.rank1.BW.a" not in dag.names
    # BW 5, COORDINATE_REDUCE 1, REDUCE 10, COORDINATE_PUSH 1, the root's PUSH and PULL 20,
    # COPYH2D 1, BROADCAST 8
    assert longest_path(dag).length_ns == 46_000_000


def test_another_workers_root_lends_nothing() -> None:
    dag = merge([worker_gpu(0, 0, OTHER)], del_queue=True, lenders=[worker_gpu(1, 1, ROOT)])
    assert not any("PULL" in name for name in dag.names)


def test_one_step_instead_of_averages() -> None:
    events = [("BW.a", "1", 0, 2), ("BW.a", "1", 10, 4)]
    dag = merge([Gpu(chain("BW.a", "STEP"), record(trace(events)))])
    assert dag.dur_ns.tolist() == [3_000_000, 0]
    assert dag.at_step(1).dur_ns.tolist() == [4_000_000, 0]
    with pytest.raises(DagError, match="step 2 was not recorded: the trace holds steps 0 to 1"):
        dag.at_step(2)


def test_what_one_side_lacks_is_named() -> None:
    dag = merge(
        [
            Gpu(
                chain("BW.a", "STEP"),
                record(trace([("BW.a", "1", 0, 2), ("BW.b", "1", 2, 2)])),
                prefix="rank3.",
            )
        ]
    )
    assert [dag.names[node] for node in dag.unrecorded] == ["rank3.STEP"]
    assert list(dag.ungraphed) == ["rank3.BW.b"]


def test_steps_never_take_longer_along_the_graph_than_they_were_recorded(shared_data: Path) -> None:
    for case in ("fork_lenet_base", "fork_resnet50_2w1s", "fork_lenet_2w2g", "fork_mlp_2w2s_pcap"):
        gpus = load_gpus([shared_data / "byteps" / case], progress=False).gpus
        for del_queue in (False, True):
            dag = merge(gpus, del_queue=del_queue)
            for step in range(dag.n_steps):
                one = dag.at_step(step)
                start, known = one.step_start_ns[0], one.step_dur_ns[0] >= 0
                span = (start + one.step_dur_ns[0])[known].max() - start[known].min()
                assert longest_path(one).length_ns <= span * 1.01


def test_all_workers_and_ranks_are_found(shared_data: Path) -> None:
    loaded = load_gpus([shared_data / "byteps" / "fork_lenet_2w2g"], progress=False)
    assert [gpu.prefix for gpu in loaded.gpus] == [f"wk{w}.rank{r}." for w in (0, 1) for r in (0, 1)]
    dag = merge(loaded.gpus)
    # 31 nodes a GPU, and a meeting for each of the 8 parameters
    assert len(dag) == 4 * 31 + 8


def test_gradients_take_their_parameters_names(shared_data: Path) -> None:
    loaded = load_gpus(
        [shared_data / "byteps" / "fork_lenet_base" / "worker_1"], progress=False
    )  # only comm.json
    assert "Comm.hybridsequential0_conv0_weight" in loaded.gpus[0].recording.names
    assert any("only communications are recorded" in line for line in loaded.repairs)


# -- selections and figures of a graph


def test_components_and_depth() -> None:
    dag = new_dag("abcde", [""] * 5, [1] * 5, [(0, 1), (1, 2), (0, 2)])
    assert components(len(dag), dag.src, dag.dst) == 3
    assert depths(len(dag), dag.order(), dag.src, dag.dst) == [1, 2, 3, 1, 1]


def test_a_subgraph_keeps_what_lies_between_its_nodes() -> None:
    dag = subgraph(
        new_dag("abc", ["x", "y", "z"], [1, 2, 3], [(0, 1), (1, 2)]), np.array([False, True, True])
    )
    assert (list(dag.names), dag.dur_ns.tolist(), edges(dag)) == (["b", "c"], [2, 3], {("b", "c", Kind.DATA)})


def test_filter_keeps_what_is_no_communication() -> None:
    dag = chain("BW.a", "Comm.w", "Comm.v", "STEP")
    assert list(without_others(dag, ["Comm.v"]).names) == ["BW.a", "Comm.v", "STEP"]
    with pytest.raises(DagError, match=r"--filter Comm\.x: no such communication"):
        without_others(dag, ["Comm.x"])


# -- DASF


def tasks(rows: Sequence[tuple[str, str, float, float, list[str]]]) -> Trace:
    """Compute records: key, worker, start, duration (ms), dependencies."""
    base = trace([(key.split("-")[0], worker, start, dur) for key, worker, start, dur, _ in rows])
    every = np.arange(len(rows), dtype=np.int64)
    args = {
        "key": ArgColumn(every, [row[0] for row in rows]),
        "dependencies": ArgColumn(every, [row[4] for row in rows]),
    }
    return Trace(
        **{**{name: getattr(base, name) for name in Trace.__slots__}, "cats": ["Compute"], "args": args}
    )


def test_tasks_wait_for_their_dependencies_and_their_worker() -> None:
    found = dasf_dag(
        [tasks([("load-1", "a", 0, 5, []), ("sum-1", "b", 6, 2, ["load-1"]), ("load-2", "a", 5, 9, [])])]
    )
    assert found is not None
    assert edges(found) == {("load-1", "sum-1", Kind.MESSAGE), ("load-1", "load-2", Kind.DEVICE)}
    assert longest_path(found).length_ns == 14_000_000


def test_a_task_run_again_is_another_operation() -> None:
    found = dasf_dag([tasks([("x-1", "a", 0, 5, []), ("y-1", "b", 5, 1, ["x-1"]), ("x-1", "a", 6, 5, []),
                             ("y-1", "b", 11, 1, ["x-1"])])])  # fmt: skip
    assert found is not None
    assert {("x-1", "y-1", Kind.MESSAGE), ("x-1 #2", "y-1 #2", Kind.MESSAGE)} <= edges(found)


def test_a_lost_dependency_is_named() -> None:
    found = dasf_dag([tasks([("y-1", "b", 5, 1, ["x-1"])])])
    assert found is not None
    assert list(found.notes) == ["1 dependencies are not among the recorded tasks: x-1"]


def test_no_task_is_no_graph() -> None:
    assert dasf_dag([trace([("FW.a", "1", 0, 1)])]) is None


def test_one_broken_gml_does_not_cost_the_job(tmp_path: Path) -> None:
    for rank, gml in (("0", 'graph [ directed 1 node [ id 0 label "FW.a" ] ]'), ("1", "graph [ ")):
        (tmp_path / rank).mkdir()
        (tmp_path / rank / "dag.gml").write_text(gml)
        event = {"ph": "X", "name": "FW.a", "cat": "operator", "pid": 0, "tid": 1, "ts": 0, "dur": 5}
        (tmp_path / rank / "bps_trace_final.json").write_text(json.dumps({"traceEvents": [event]}))
    loaded = load_gpus([tmp_path])
    assert [list(gpu.dag.names) for gpu in loaded.gpus] == [["FW.a"], ["FW.a"]]
    assert loaded.repairs[0].startswith(str(tmp_path / "1" / "dag.gml"))
    (tmp_path / "0" / "dag.gml").write_text("graph [ ")
    with pytest.raises(DagError, match=r"0/dag\.gml"):
        load_gpus([tmp_path])


def test_the_inputs_in_the_events_stand_in_for_a_broken_gml(tmp_path: Path) -> None:
    (tmp_path / "dag.gml").write_text("graph [ ")
    event = {"ph": "X", "cat": "operator", "pid": 0, "tid": 1, "ts": 0, "dur": 5}
    events = [{**event, "name": "FW.a"}, {**event, "name": "BW.a", "ts": 5, "args": {"input0": "FW.a"}}]
    (tmp_path / "bps_trace_final.json").write_text(json.dumps({"traceEvents": events}))
    loaded = load_gpus([tmp_path])
    assert edges(loaded.gpus[0].dag) == {("FW.a", "BW.a", Kind.DATA)}
    assert len(loaded.repairs) == 1
    assert loaded.repairs[0].startswith(str(tmp_path / "dag.gml"))
    assert loaded.repairs[0].endswith("; the inputs in the events say what waits instead")


@pytest.mark.parametrize("content", ["", "garbage", '{"traceEvents": []}'])
def test_comm_json_stands_in_for_a_trace_without_events(tmp_path: Path, content: str) -> None:
    (tmp_path / "dag.gml").write_text('graph [ directed 1 node [ id 0 label "Comm.w" ] ]')
    (tmp_path / "bps_trace_final.json").write_text(content)
    event = {"ph": "X", "name": "Comm.w", "cat": "Comm", "pid": "Comm.w", "tid": "total", "ts": 0, "dur": 5}
    (tmp_path / "comm.json").write_text(json.dumps({"traceEvents": [event]}))
    loaded = load_gpus([tmp_path])
    assert merge(loaded.gpus).dur_ns.tolist() == [5_000]
    said = f"{tmp_path}: comm.json is read instead of bps_trace_final.json, which gives no operation"
    assert said in loaded.repairs
