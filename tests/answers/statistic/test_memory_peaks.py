"""Memory at the peak: who holds it, against a simulated allocator, sums by hand and recordings."""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from conftest import ask, few, run_cli
from make import span, step, write
from oracles.allocator import BACKWARD, FORWARD, UPDATE, Allocator, by_addition, train

MEMORY = ("--sub_option", "memory", "--no-progress")


def written(
    folder: Path, device: Allocator, name: str = "rank0.pickle", protocol: int = 4, **more: Any
) -> Path:
    path = folder / name
    path.write_bytes(pickle.dumps(device.snapshot(**more), protocol))
    return path


def peaks(path: Path) -> Any:
    return ask("statistic", path, *MEMORY)["memory"]


def peak(path: Path) -> Any:
    (only,) = peaks(path)
    return only


def categories(peak: Any) -> dict[str, int]:
    return {name: n for name, n in peak["categories"].items() if name != "cached but free"}


def adds_up(peak: Any) -> bool:
    parts, cached = categories(peak), peak["categories"].get("cached but free")
    assert sum(parts.values()) == sum(held["bytes"] for held in peak["holders"]) == peak["peak_bytes"]
    return cached is None or peak["peak_bytes"] + cached == peak["reserved_bytes"]


# ---- snapshots


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_each_category_is_that_of_the_simulated_loop(tmp_path: Path, protocol: int) -> None:
    device = train()
    found = peak(written(tmp_path, device, protocol=protocol))
    assert (found["peak_bytes"], categories(found)) == (device.peak, device.held)
    assert adds_up(found)


@pytest.mark.parametrize("seed", range(1, 9))
def test_stacks_of_frees_are_not_needed(tmp_path: Path, seed: int) -> None:
    device = train(seed, stacks_of_frees=False)
    found = peak(written(tmp_path, device))
    assert (found["peak_bytes"], categories(found)) == (device.peak, device.held)


@pytest.mark.parametrize("last", [0, 1, 7, 30])
def test_a_late_history_begins_with_the_blocks_that_were_there(tmp_path: Path, last: int) -> None:
    device = train(3)
    found = peak(written(tmp_path, device, last=last))
    kept = device.trace[len(device.trace) - last :]
    changes = [{"alloc": 1, "free_requested": -1}.get(entry["action"], 0) * entry["size"] for entry in kept]
    at_end = sum(n for n, _ in device.alive.values())
    totals = [at_end - sum(changes[i:]) for i in range(len(changes) + 1)]
    assert found["peak_bytes"] == max(totals)
    assert found["reserved_bytes"] == device.reserved
    assert adds_up(found)


def test_the_line_outside_of_pytorch_is_named(tmp_path: Path) -> None:
    held = {each["holder"] for each in peak(written(tmp_path, train()))["holders"]}
    assert {"model.py:9 __init__", "model.py:17 forward", "train.py:44 <module>"} <= held


def test_free_blocks_are_those_of_the_snapshot(tmp_path: Path) -> None:
    # of a segment of 20 MiB, 3 MiB stay in use between 5 MiB and 12 MiB
    device = Allocator()
    first = device.allocate(5 << 20, "x", FORWARD)
    device.allocate(3 << 20, "x", FORWARD)
    device.free(first, FORWARD)
    found = peak(written(tmp_path, device))
    assert (found["free_blocks"], found["free_bytes"], found["largest_free_bytes"]) == (2, 17 << 20, 12 << 20)


def test_what_outlives_no_pass_is_unknown(tmp_path: Path) -> None:
    device = Allocator()
    device.allocate(100, "", FORWARD)
    device.allocate(30, "", BACKWARD)
    assert categories(peak(written(tmp_path, device))) == {
        "unknown, from forward": 100, "unknown, from backward": 30,
    }  # fmt: skip


def test_ranks_stand_beside_each_other_and_the_largest_is_in_the_headline(tmp_path: Path) -> None:
    for rank in range(3):
        written(tmp_path, train(rank), f"rank{rank}.pickle")
    found = ask("statistic", tmp_path, *MEMORY)
    assert [each["peak_bytes"] for each in found["memory"]] == [train(rank).peak for rank in range(3)]
    largest = max(range(3), key=lambda rank: train(rank).peak)
    assert found["headline"].startswith(f"rank{largest} holds ")


def test_two_snapshots_differ_by_what_was_added(tmp_path: Path) -> None:
    base, new = Allocator(), Allocator()
    for device in (base, new):
        device.allocate(5_000_000, "", UPDATE)
    new.allocate(700_000, "", UPDATE)
    paths = [written(tmp_path, device, f"{i}.pickle") for i, device in enumerate((base, new))]
    _, text, _ = run_cli("statistic", *paths, *MEMORY, "--format", "markdown")
    rows = [[cell.strip() for cell in line.split("|")] for line in text.splitlines() if "device 0" in line]
    (difference,) = (line.split("|")[-3].strip() for line in text.splitlines() if "difference" in line)
    assert [row[-3] for row in rows] == ["5.0", "5.7"]
    assert difference == "0.7"


def test_an_allocation_that_failed_is_told(tmp_path: Path) -> None:
    device = train()
    device.trace.append({
        "action": "oom", "device_free": 7_000_000, "size": 9_000_000_000, "stream": 0, "frames": FORWARD,
    })  # fmt: skip
    code, text, _ = run_cli("statistic", written(tmp_path, device), *MEMORY)
    assert code == 0
    assert "An allocation of 9.00 GB failed with 7.00 MB free on the device." in text


@pytest.mark.parametrize("option", ["diagnose", "statistic", "critical", "replay"])
def test_options_about_steps_refuse_a_snapshot_in_a_line(tmp_path: Path, option: str) -> None:
    code, _, error = run_cli(option, written(tmp_path, train()), "--no-progress")
    assert code == 1
    assert "a snapshot of PyTorch's allocator, which has no steps" in error


def test_a_snapshot_beside_traces_is_left_out(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", [step(0, 0, 100), span("gemm", 5, 10, "kernel", 0, 7)], schemaVersion=1)
    written(tmp_path, train(), "memory_rank0.pickle")
    code, _, error = run_cli("statistic", tmp_path, "--no-progress")
    assert code == 0
    assert "memory_rank0.pickle: a snapshot of PyTorch's allocator" in error


# ---- the profiler's instants


def instant(ts: float, n_bytes: int, address: int, total: int, tid: int = 1, **more: Any) -> dict[str, Any]:
    args = {
        "Device Type": 1, "Device Id": 0, "Addr": address, "Bytes": n_bytes, "Total Allocated": total,
        "Total Reserved": 1000,
    }  # fmt: skip
    return {
        "ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 1, "tid": tid, "ts": ts,
        "args": {**args, **more},
    }  # fmt: skip


def recorded(folder: Path, events: Sequence[Any]) -> Path:
    path = folder / "rank0.json"
    write(path, events, schemaVersion=1, distributedInfo={"rank": 0, "world_size": 1})
    return path


def host(name: str, ts: float, dur: float, cat: str = "cpu_op") -> dict[str, Any]:
    return span(name, ts, dur, cat, 1, 1)


def test_phases_around_the_instants_tell_the_category(tmp_path: Path) -> None:
    # 400 bytes are there before; 20 are saved for backward, 8 are a gradient, 3 are temporary, 50 are state
    found = peak(recorded(tmp_path, [
        host("ProfilerStep#3", 0, 1000, "user_annotation"),
        host("aten::linear", 10, 20), instant(15, 20, 64, 420),
        host("autograd::engine::evaluate_function: AddmmBackward0", 40, 40),
        instant(45, 8, 128, 428), instant(50, 3, 192, 431), instant(55, -3, 192, 428),
        instant(60, -20, 64, 408),
        host("Optimizer.step#Adam.step", 100, 50, "user_annotation"), host("aten::zeros_like", 110, 20),
        instant(115, 50, 256, 458), instant(120, 3, 320, 461), instant(125, -3, 320, 458),
        host("Optimizer.zero_grad#Adam.zero_grad", 200, 50, "user_annotation"), instant(210, -8, 128, 450),
        host("aten::linear", 300, 20), instant(310, 5, 64, 455),
    ]))  # fmt: skip
    assert categories(found) == {
        "gradients": 8, "optimizer state": 50, "temporary": 3, "not attributed": 400,
    }  # fmt: skip
    assert (found["peak_bytes"], found["step"], found["at_ms"]) == (461, 3, 0.105)
    assert found["categories"]["cached but free"] == 1000 - 461
    assert {"category": "optimizer state", "holder": "aten::zeros_like", "bytes": 50, "allocations": 1} in (
        found["holders"]
    )


def test_what_lives_from_one_step_to_the_next_is_not_temporary(tmp_path: Path) -> None:
    found = peak(recorded(tmp_path, [
        host("ProfilerStep#1", 0, 100, "user_annotation"),
        host("ProfilerStep#2", 100, 100, "user_annotation"),
        host("aten::linear", 10, 20), instant(15, 20, 64, 20), instant(18, 5, 128, 25),
        host("aten::linear", 110, 20), instant(115, -20, 64, 5), instant(118, -5, 128, 0),
    ]))  # fmt: skip
    assert categories(found) == {"unknown, from forward": 25}


def test_nobody_is_named_where_frees_are_missing(tmp_path: Path) -> None:
    found = peak(recorded(tmp_path, [
        host("aten::linear", 10, 20), instant(15, 20, 64, 20), instant(16, 30, 128, 30),
    ]))  # fmt: skip
    assert found["peak_bytes"] == 30
    assert categories(found) == {"not attributed": 30}


def test_old_recordings_without_totals_give_the_growth_alone(tmp_path: Path) -> None:
    events = [instant(10.0 * i, n_bytes, 0, 0) for i, n_bytes in enumerate((5, 7, -5, 2), 1)]
    for event in events:
        event["args"] = {key: event["args"][key] for key in ("Device Type", "Device Id", "Bytes")}
    found = peak(recorded(tmp_path, [host("aten::linear", 5, 60), *events]))
    assert (found["peak_bytes"], categories(found)) == (12, {"not attributed": 12})


def test_a_recording_without_memory_says_how_to_record_it(tmp_path: Path) -> None:
    code, _, error = run_cli("statistic", recorded(tmp_path, [host("aten::linear", 10, 20)]), *MEMORY)
    assert code == 1
    assert "no memory is recorded" in error
    assert "torch.profiler records it with profile_memory=True" in error


RECORDED = (
    "kineto/gpu-hta-rank1of2-memory/trace/df_index_resolver.json.gz",
    "kineto/gpu-switch-a100/trace.json.gz",
    "kineto/gpu-tracelens-bert-h100-vs-mi300/mi300/gaunernst_bert-small-uncased__1016001.json.gz",
    "kineto/gpu-tracelens-qwen-h100-vs-mi300/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
)


@pytest.mark.parametrize("name", few(2, RECORDED))
def test_the_peak_is_the_largest_running_sum_of_a_recording(shared_data: Path, name: str) -> None:
    events = json.loads(gzip.decompress((shared_data / name).read_bytes()))["traceEvents"]
    instants = [event for event in events if event.get("name") == "[memory]"]
    found = peak(shared_data / name)
    kind = {"cuda": 1, "hip": 6}[found["device"].partition(":")[0]]
    own = [event for event in instants if event["args"]["Device Type"] == kind]
    own.sort(key=lambda event: float(event["ts"]))
    totals = [(event["args"]["Bytes"], event["args"]["Total Allocated"]) for event in own]
    assert found["peak_bytes"] == by_addition(totals)
    assert adds_up(found)
