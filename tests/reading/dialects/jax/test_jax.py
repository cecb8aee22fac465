"""XLA's profiles of CPUs, GPUs and TPUs: devices are ranks, and share the threads of their host."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import system_laws

from analyzer.reading import dialects
from analyzer.reading.dialects import Need, Role
from analyzer.reading.dialects.jax import parts_of
from analyzer.reading.dialects.jax.xla_slices import role_of
from analyzer.reading.dialects.steps import Step
from analyzer.reading.formats.columns import Trace
from conftest import ask, few
from make import span as event
from trace_utils import Request, read_ranks

Event = Mapping[str, Any]
HOST, PYTHON = 701, 1


def named(pid: int, process: str, threads: Mapping[int, str]) -> Iterator[Event]:
    yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": process}}
    for tid, name in threads.items():
        yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}}


def span(name: str, pid: int, tid: int, ts: float, dur: float, /, **args: object) -> Event:
    text = {key: str(value) for key, value in args.items()}
    return event(name, ts, dur, "", pid, tid) | ({"args": text} if text else {})


def write(log: Path, events: Sequence[Event], host: str = "vm") -> Path:
    """Write a log directory as `jax.profiler` does."""
    run = log / "plugins" / "profile" / "2026_11_23_07_45_57"
    run.mkdir(parents=True, exist_ok=True)
    document = {"displayTimeUnit": "ns", "metadata": {"highres-ticks": True}, "traceEvents": [*events, {}]}
    (run / f"{host}.trace.json.gz").write_bytes(gzip.compress(json.dumps(document).encode()))
    return log


def cpu(first: int = 0, begin: float = 0, is_marked: bool = True) -> list[Event]:
    """Three steps of 100 us of two devices: `dot` takes 30 and 50 us, a sum ends after 70, `add` after 80."""
    threads = {PYTHON: "python", 2: "tf_XLAEigen/1", 3: "tf_XLAEigen/2", 4: "tf_XLAPjRtCpuClient/3"}
    events = [*named(HOST, "/host:CPU", threads)]
    for step in range(3):
        at, run = begin + 100 * step, 1000 + step
        if is_marked:
            events.append(span("train", HOST, PYTHON, at, 99, step_num=step + 7))
        events.append(span("PjitFunction(step)", HOST, PYTHON, at + 1, 5))
        events.append(span("$array.py:500 block_until_ready", HOST, PYTHON, at + 8, 75))
        for device, dur in enumerate((30, 50)):
            swapped = (device + step) % 2  # devices change threads
            own = {"device_ordinal": first + device, "hlo_module": "jit_step", "run_id": run}
            met = f"all reduce RendezvousKey{{run_id=RunId: {run}, global_devices=[0, 1], op_id=1}}"
            events += [
                span("dot.1", HOST, 2 + swapped, at + 10, dur, hlo_op="dot.1", **own),
                span("ThreadpoolListener::Record", HOST, 2 + swapped, at + 12, 0.000001),
                span("SlinkyThreadPool::Await", HOST, 2 + swapped, at + 14, 20),
                span("end: dot.1", HOST, 2 + swapped, at + 80, 0.5),
                span("psum.7", HOST, 4 + swapped, at + 11 + dur, 59 - dur, hlo_op="psum.7", **own),
                span("Rendezvous", HOST, 4 + swapped, at + 12 + dur, 50 - dur, name=met),
                span("add.2", HOST, 4 + swapped, at + 71, 9, hlo_op="add.2", **own),
            ]
    return events


def gpu() -> list[Event]:
    """Three steps of 100 us on two GPUs, of which the second is 20 us late; a third one only copies."""
    events = [*named(HOST, "/host:CPU", {PYTHON: "python"})]
    streams = {1: "Stream #16(Kernel)", 2: "Stream #13(MemcpyH2D)", 3: "XLA Ops - from #16"}
    for device in range(3):
        events += named(1 + device, f"/device:GPU:{device}", streams)
    for step in range(3):
        at = 100 * step
        events += [
            span("train", HOST, PYTHON, at, 99, step_num=step),
            span("PjitFunction(step)", HOST, PYTHON, at + 1, 9),
            span("$api.py:3001 block_until_ready", HOST, PYTHON, at + 12, 86),
        ]
        for device, dur in enumerate((30, 50)):
            works = (
                ("gemm_fusion_dot_1", "gemm_fusion_dot.1", 15, dur),
                ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "all-reduce-start.1", 16 + dur, 69 - dur),
                ("loop_add_fusion", "loop_add_fusion", 86, 8),
            )
            events += [
                span("MemcpyH2D", 1 + device, 2, at + 5, 4),
                span("gemm_fusion_dot.1", 1 + device, 3, at + 15, dur, hlo_module="jit_step"),
                *(span(name, 1 + device, 1, at + begin, took, hlo_op=op, hlo_module="jit_step")
                  for name, op, begin, took in works),
            ]  # fmt: skip
        events.append(span("MemcpyP2P", 3, 2, at + 5, 4))
    return events


def tpu(*, is_marked: bool = True) -> list[Event]:
    """Three steps of 100 us on four TPUs, which lag 500 us behind the host; reductions are of pairs."""
    events = [*named(HOST, "/host:CPU", {PYTHON: "python"})]
    lines = {1: "Steps", 2: "XLA Modules", 3: "XLA Ops", 4: "XLA TraceMe", 5: "Framework Name Scope"}
    of_pairs = "%all-reduce.1 = f32[8] all-reduce(f32[8] %p), replica_groups={{0,1},{2,3}}, to_apply=%add"
    for device in range(4):
        pid = 1 + device
        events += named(pid, f"/device:TPU:{device}", lines if is_marked else {**lines, 1: "Source code"})
        for step in range(3):
            at, dur = 500 + 100 * step, 20 + 10 * device
            events += [
                span(str(step), pid, 1, at, 99),
                span("jit_step(123)", pid, 2, at, 99, run_id=-5 + step),
                span("jit_init(4)", pid, 2, at + 99.2, 0.1, run_id=50 + step),
                span("EventFDAsyncWorker", pid, 4, at, 1),
                span("jit(step)", pid, 5, at, 99),
                span("all-gather-start.2", pid, 3, at, 1),
                span("while.3", pid, 3, at + 1, 88),
                span("fusion.4", pid, 3, at + 2, dur),
                span("all-reduce.1", pid, 3, at + 2 + dur, 38 + 20 * (device > 1) - dur, long_name=of_pairs),
                span("copy.5", pid, 3, at + 62, 20),
                span("all-gather-done.2", pid, 3, at + 90, 5),
            ]
    if is_marked:
        events += [span("train", HOST, PYTHON, 10 * step, 9, step_num=step) for step in range(3)]
    return events


def traces(path: Path, *needs: Need) -> list[Trace]:
    return read_ranks([path], request=Request(needs=needs, hosts=True, jobs=1, progress=False)).made


def roles_of(trace: Trace) -> dict[str, Role]:
    roles = dialects.of(trace).roles(trace).tolist()
    return {trace.names[name]: Role(role) for name, role in zip(trace.name_id.tolist(), roles, strict=True)}


def breakdown_of(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = ask("statistic", path, "--sub_option", "breakdown")["breakdown"]
    return rows


def steps_of(path: Path) -> list[Sequence[Step]]:
    return [dialects.of(trace).find_steps(trace).whole for trace in traces(path, Need.STEPS)]


@pytest.mark.parametrize(
    ("events", "n_ranks"), [(cpu(), 2), (gpu(), 2), (tpu(), 4)], ids=["cpu", "gpu", "tpu"]
)
def test_devices_of_a_host_keep_the_laws_of_systems(
    tmp_path: Path, events: Sequence[Event], n_ranks: int
) -> None:
    system_laws.check_system(write(tmp_path / "log", events), [f"rank{i}" for i in range(n_ranks)], tmp_path)


def test_two_processes_are_workers_whose_clocks_are_aligned(tmp_path: Path) -> None:
    write(tmp_path / "log" / "0", cpu())
    write(tmp_path / "log" / "1", cpu(first=2048, begin=5000))
    ranks = ["wk0.rank0", "wk0.rank1", "wk1.rank2", "wk1.rank3"]
    system_laws.check_system(tmp_path / "log", ranks, tmp_path)
    combined = ("--option", "combine", "--path", tmp_path / "log", "--output", tmp_path / "c.json")
    assert [worker["offset_us"] for worker in ask(*combined)["workers"]] == [0, -5000]


def test_gpus_of_two_hosts_keep_the_laws_of_systems(tmp_path: Path) -> None:
    log, _ = (write(tmp_path / "log", gpu(), host) for host in ("a", "b"))
    system_laws.check_system(log, [f"wk{i // 2}.rank{i % 2}" for i in range(4)], tmp_path)


def test_what_devices_share_is_counted_once_and_marks_of_the_profiler_not_at_all(tmp_path: Path) -> None:
    rows = ask("--option", "statistic", "--path", write(tmp_path, cpu()))["operations"]
    assert {row["name"]: row["count"] for row in rows} == {
        **{f"host0.{name}": 3 for name in ("train", "PjitFunction(step)", "$array.py:500 block_until_ready")},
        **{f"rank{rank}.{name}": 3 for rank in (0, 1)
           for name in ("dot.1", "psum.7", "Rendezvous", "add.2", "SlinkyThreadPool::Await")},
    }  # fmt: skip


def test_sleep_is_what_a_thread_does_that_could_ask_for_work_and_waiting_elsewhere(tmp_path: Path) -> None:
    asleep = [span("$time sleep", HOST, PYTHON, 90, 5), span("$threading sleep", HOST, 77, 10, 50)]
    roles = roles_of(traces(write(tmp_path, [*cpu(), *asleep]))[-1])
    assert roles["$time sleep"] is Role.HOST
    assert roles["$threading sleep"] is Role.IDLE


def test_a_step_is_computation_then_communication_that_nothing_hides(tmp_path: Path) -> None:
    rows = breakdown_of(write(tmp_path, cpu()))
    times = {(row["rank"], row["step"]): (row["compute_ms"], row["comm_ms"], row["idle_ms"]) for row in rows}
    for step in (7, 8, 9):
        idle = 0.031 if step == 9 else 0.032  # until the next step begins
        assert times["rank0", step] == pytest.approx((0.039, 0.029, idle))
        assert times["rank1", step] == pytest.approx((0.059, 0.009, idle))


def test_steps_are_the_numbers_of_annotations_else_the_runs_of_the_main_program(tmp_path: Path) -> None:
    marked, _, host = steps_of(write(tmp_path / "marked", cpu()))
    assert marked == host == (Step(7, 0, 100_000), Step(8, 100_000, 200_000), Step(9, 200_000, 299_000))
    args = {"device_ordinal": 0, "hlo_op": "s", "hlo_module": "jit_s", "run_id": 1}
    other = span("wrapped_slice", HOST, PYTHON, 0.5, 0.2, **args)
    runs, *_ = steps_of(write(tmp_path / "bare", [*cpu(is_marked=False), other]))
    assert runs == (Step(2, 80_000, 180_000), Step(3, 180_000, 280_000))  # when the first begins is unknown


def test_steps_of_a_tpu_are_its_own_else_the_runs_of_the_main_program(tmp_path: Path) -> None:
    own, *_ = steps_of(write(tmp_path / "marked", tpu()))
    assert own == (Step(1, 599_000, 699_000), Step(2, 699_000, 799_000))
    runs, *_ = steps_of(write(tmp_path / "bare", tpu(is_marked=False)))
    assert runs == tuple(step._replace(label=step.label + 1) for step in own)


def test_of_several_groups_of_devices_none_is_known(tmp_path: Path) -> None:
    (first, *_) = traces(write(tmp_path, tpu()), Need.EDGES)
    assert {part.key for part in parts_of(first).values()} == {("all-gather.2", None)}


def test_the_path_runs_through_the_late_device_and_never_through_a_wait(tmp_path: Path) -> None:
    scope = ask("critical", write(tmp_path, cpu()), "--step", "8")["scopes"][-1]
    path = [(part["name"], part["dur_ms"]) for part in scope["path"] if part["cat"] != "gap"]
    # both devices do the last two together; the host resumes 3 us after them
    assert path == [
        ("rank1.PjitFunction(step)", 0.005), ("rank1.dot.1", 0.05), ("rank0.psum.7", 0.009),
        ("rank0.add.2", 0.009), ("rank0.$array.py:500 block_until_ready", 0.003),
    ]  # fmt: skip


def test_steps_last_from_completion_to_completion_and_wait_for_what_the_host_loads(tmp_path: Path) -> None:
    """The host gets a batch for 60 µs, 50 of them in a function of its own; the device then works for 40."""
    threads = {2: "Steps", 3: "XLA Ops"}
    events = [*named(HOST, "/host:CPU", {PYTHON: "python"}), *named(1, "/device:TPU:0", threads)]
    for step in range(6):
        at = 100 * step
        events += [
            span("train", HOST, PYTHON, at, 100, step_num=step),
            span("next_batch", HOST, PYTHON, at, 60),
            span("$image.py:9 decode", HOST, PYTHON, at + 5, 50),
            span("block_until_ready", HOST, PYTHON, at + 60, 40),
            span(str(step), 1, 2, at + 60, 40),
            span("fusion.1", 1, 3, at + 60, 40.001),  # rounded otherwise
        ]
    path = write(tmp_path, events)
    (steps,) = steps_of(path)
    assert [step.dur_ns for step in steps] == [100_000] * 5
    (first, *_) = ask("--path", path)["findings"]
    assert (first["kind"], first["change"]) == ("input", "I/O=0.001")
    assert first["gain_ms"]["mid"] == pytest.approx(0.06, abs=0.001)


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("all-reduce.1", Role.COMM), ("psum_invariant.49", Role.COMM), ("reduce-scatter-start", Role.COMM),
        ("collective-permute-done.2", Role.COMM), ("all_gather.3", Role.COMM), ("recv-done.1", Role.COMM),
        ("ncclKernel_AllGather", Role.COMM), ("%all-to-all.4 = f32[8]", Role.COMM),
        ("reduce.3", Role.COMPUTE), ("broadcast_add_fusion", Role.COMPUTE),
        ("copy_subtract_fusion.1", Role.COMPUTE), ("copy.3", Role.COPY), ("copy-done", Role.COPY),
        ("copy_fusion.2", Role.COPY), ("MemcpyD2H", Role.COPY), ("infeed.1", Role.INPUT),
    ],
)  # fmt: skip
def test_an_operation_s_name_tells_its_role(name: str, role: Role) -> None:
    assert role_of(name) is role


# ---- recordings of JAX 0.10.2 on CPUs


def test_exposed_communication_of_a_recorded_job(shared_data: Path) -> None:
    # 47 % computation, 25 % communication that nothing hides: an independent script's
    steps = breakdown_of(shared_data / "jax" / "shard4")
    wall = sum(step["wall_ms"] for step in steps)
    assert sum(step["compute_ms"] for step in steps) / wall == pytest.approx(0.47, abs=0.005)
    exposed = sum(step["comm_ms"] - step["overlap_ms"] for step in steps)
    assert exposed / wall == pytest.approx(0.25, abs=0.005)


def test_diagnose_names_the_device_that_does_three_times_the_work(shared_data: Path) -> None:
    first = ask("--option", "diagnose", "--path", shared_data / "jax" / "slow1of2")["findings"][0]
    assert (first["kind"], first["scope"]["ranks"]) == ("late_rank", ["rank1"])
    # 37 ms more work a step; an independent simulation says that 57 % of a step can be saved
    assert first["gain_ms"]["low"] < 37 < first["gain_ms"]["high"]
    assert first["gain_share"] == pytest.approx(0.57, abs=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "ranks"),
    few(1, [
        ("two_proc", ["wk0.rank0", "wk0.rank1", "wk1.rank2", "wk1.rank3"]),
        ("shard4", ["rank0", "rank1", "rank2", "rank3"]),
        ("slow1of2", ["rank0", "rank1"]),
    ]),
)  # fmt: skip
def test_recorded_jobs_keep_the_laws_of_systems(
    shared_data: Path, tmp_path: Path, job: str, ranks: list[str]
) -> None:
    system_laws.check_system(shared_data / "jax" / job, ranks, tmp_path)


def test_the_kind_that_the_recording_states_counts(tmp_path: Path) -> None:
    events = [*named(1, "/device:TPU:0", {3: "XLA Ops"})]
    for name, begin, category in (
        ("fusion.1", 0, "all-reduce fusion"),
        ("psum_like.2", 10, "loop fusion"),
        ("all-gather.3", 20, "all-gather"),
        ("all-gather-done.4", 30, "async-done"),
        ("copy.5", 40, "copy"),
    ):
        events.append(span(name, 1, 3, begin, 5, hlo_category=category))
    assert roles_of(traces(write(tmp_path, events))[0]) == {
        "fusion.1": Role.COMM, "psum_like.2": Role.COMPUTE, "all-gather.3": Role.COMM,
        "all-gather-done.4": Role.COMM, "copy.5": Role.COPY,
    }  # fmt: skip


def calls_on_a_gpu(*, is_marked: bool = False) -> list[Event]:
    """Four calls, 100 us apart, whose marks end at once: two kernels take 30 us, and Python waits for them.

    XLA tries a kernel for 35 us after each. The profiler starts and stops for 1 ms each.
    """
    events = [
        *named(HOST, "/host:CPU", {PYTHON: "python"}),
        *named(1, "/device:GPU:0", {1: "Stream #16(Kernel)"}),
        span("$contextlib.py:141 __enter__", HOST, PYTHON, 0, 1001),
        span("$profiler.py:151 start_trace", HOST, PYTHON, 0, 1000),
        span("$profiler.py:271 stop_trace", HOST, PYTHON, 1500, 1000),
    ]
    for call, begin in enumerate(range(1100, 1500, 100)):
        events += [span("train", HOST, PYTHON, begin, 12, step_num=call + 17)] * is_marked
        events += [
            span("PjitFunction(step)", HOST, PYTHON, begin, 10),
            span("Execute (jit_step)", HOST, PYTHON, begin + 1, 3, run_id=call),
            span("Execute (jit_stage)", HOST, PYTHON, begin + 5, 3, run_id=-call),
            span("$api.py:2757 block_until_ready", HOST, PYTHON, begin + 12, 40),
            span("fusion", 1, 1, begin + 15, 10, hlo_op="fusion", hlo_module="jit_step"),
            span("gemm", 1, 1, begin + 25, 20, hlo_op="dot", hlo_module="jit_step"),
            span("tried", 1, 1, begin + 60, 35, hlo_op="tried", hlo_module="tried"),
        ]
    return events


def test_a_step_ends_with_the_program_that_the_host_calls(tmp_path: Path) -> None:
    for is_marked, labels in ((False, (2, 3, 4)), (True, (18, 19, 20))):
        rows = breakdown_of(write(tmp_path / str(is_marked), calls_on_a_gpu(is_marked=is_marked)))
        steps = [(row["step"], row["wall_ms"], row["compute_ms"], row["idle_ms"]) for row in rows]
        assert steps == [(step, *map(pytest.approx, (0.1, 0.065, 0.035))) for step in labels]


def test_starting_and_stopping_the_profiler_is_not_of_the_job(tmp_path: Path) -> None:
    trace = traces(write(tmp_path, calls_on_a_gpu()))[0]
    assert not [name for name in roles_of(trace) if "profiler.py" in name or "contextlib" in name]
    assert int(trace.end_ns.max() - trace.ts_ns.min()) == 395_000
