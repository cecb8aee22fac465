"""Owners of device work (`--group_by`): on made traces, and by an independent count on recorded ones."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from conftest import ask
from make import write
from recorded import files

_DEVICE = {"kernel", "Kernel", "gpu_memcpy", "gpu_memset", "Memcpy", "Memset"}
_CALLS = {"cuda_runtime", "cuda_driver", "Runtime"}
_NO_LAUNCH = "(not attributed: no launch in the file)"


def event(name: str, cat: str, ts: float, dur: float, tid: int = 1, /, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "name": name, "cat": cat, "pid": 9, "tid": tid, "ts": ts, "dur": dur, "args": args}


def launch(ts: float, number: int, dur: float, tid: int = 1) -> list[dict[str, Any]]:
    """Make a call, and the kernel that it launches, later on stream 7."""
    return [
        event("cudaLaunchKernel", "cuda_runtime", ts, 1, tid, correlation=number),
        event("k", "kernel", ts + 1000, dur, 7, correlation=number, stream=7),
    ]


def groups(path: Path, by: str) -> dict[tuple[str, str], int]:
    """Read the nanoseconds by name and category from `statistic --group_by`."""
    rows = ask("statistic", path, "--group_by", by)["operations"]
    return {(row["name"], row["cat"]): round(row["total_ms"] * 1e6) for row in rows}


def test_work_belongs_to_the_innermost_operator_module_and_annotation_around_its_launch(
    tmp_path: Path,
) -> None:
    path = write(
        tmp_path / "a.json",
        [
            event("ProfilerStep#1", "user_annotation", 0, 900),
            event("layer", "user_annotation", 10, 100),
            event("nn.Module: Net_0", "python_function", 11, 90),
            event("nn.Module: Linear_3", "python_function", 20, 50),
            event("aten::linear", "cpu_op", 30, 30),
            event("aten::addmm", "cpu_op", 35, 20),
            *launch(40, 1, dur=7),
            *launch(56, 2, dur=5),  # after addmm, within linear
            *launch(85, 3, dur=3),  # no operator: the annotation stands in
            *launch(400, 4, dur=2),  # nothing but the step
            event("k", "kernel", 2000, 1, 7, stream=7),  # no launch
        ],
    )
    assert groups(path, "operator") == {
        ("aten::addmm", "forward"): 7000,
        ("aten::linear", "forward"): 5000,
        ("layer", "forward"): 3000,
        ("(outside operators)", ""): 2000,
        (_NO_LAUNCH, ""): 1000,
    }
    assert groups(path, "module") == {
        ("Net_0.Linear_3", "forward"): 12000,
        ("Net_0", "forward"): 3000,
        ("(outside modules)", ""): 2000,
        (_NO_LAUNCH, ""): 1000,
    }
    assert groups(path, "annotation") == {
        ("layer", "forward"): 15000,
        ("(outside annotations)", ""): 2000,
        (_NO_LAUNCH, ""): 1000,
    }


def test_without_a_device_operators_are_grouped_by_their_own_time(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.json",
        [
            event("nn.Module: Net_0", "python_function", 0, 100),
            event("nn.Module: Linear_3", "python_function", 20, 50),
            event("aten::linear", "cpu_op", 30, 30),
            event("aten::addmm", "cpu_op", 35, 20),  # of linear's 30 µs
            event("aten::relu", "cpu_op", 80, 10),
            event("aten::mul_", "cpu_op", 200, 5),
        ],
    )
    rows = ask("statistic", path, "--group_by", "module")["operations"]
    own_us = {row["name"]: pytest.approx(1e3 * row["own_total_ms"]) for row in rows}
    assert own_us == {"Net_0.Linear_3": 30, "Net_0": 10, "(outside modules)": 5}


def test_where_no_module_is_recorded_python_functions_stand_in(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.json",
        [
            event("train.py(3): <module>", "python_function", 0, 900),
            event("train.py(7): step", "python_function", 10, 100),
            event("aten::mm", "cpu_op", 30, 30),
            *launch(40, 1, dur=7),
            event("aten::mm", "cpu_op", 200, 30),
            *launch(210, 2, dur=5),
        ],
    )
    assert groups(path, "module") == {
        ("train.py(3): <module>;train.py(7): step", "forward"): 7000,
        ("train.py(3): <module>", "forward"): 5000,
    }


def test_a_backward_operator_has_the_module_of_the_forward_one_with_its_sequence_number(
    tmp_path: Path,
) -> None:
    backward = {"Sequence number": 5, "Fwd thread id": 1}
    path = write(
        tmp_path / "a.json",
        [
            event("nn.Module: Linear_0", "python_function", 0, 50),
            event("aten::linear", "cpu_op", 5, 40, **{"Sequence number": 5, "Fwd thread id": 0}),
            event("nn.Module: Norm_0", "python_function", 60, 50),
            event("aten::norm", "cpu_op", 65, 40, **{"Sequence number": 6, "Fwd thread id": 0}),
            event("aten::other", "cpu_op", 70, 20, 3, **{"Sequence number": 5, "Fwd thread id": 0}),
            event("autograd::engine::evaluate_function: NormBackward0", "cpu_op", 180, 15, 2),
            event("NormBackward0", "cpu_op", 181, 10, 2, **backward | {"Sequence number": 6}),
            *launch(183, 1, tid=2, dur=4),
            event("autograd::engine::evaluate_function: LinearBackward0", "cpu_op", 200, 50, 2),
            event("LinearBackward0", "cpu_op", 201, 40, 2, **backward),
            event("aten::mm", "cpu_op", 205, 20, 2),
            *launch(210, 2, tid=2, dur=9),
            event("autograd::engine::evaluate_function: AccumulateGrad", "cpu_op", 260, 20, 2),
            *launch(265, 3, tid=2, dur=2),  # adds up the gradients of LinearBackward0
            event("Optimizer.step#SGD.step", "user_annotation", 300, 50),
            *launch(310, 4, dur=1),
        ],
    )
    assert groups(path, "module") == {
        ("Norm_0", "backward"): 4000,
        ("Linear_0", "backward"): 11000,
        ("(outside modules)", "update"): 1000,
    }
    assert groups(path, "operator")["aten::mm", "backward"] == 9000


def test_all_of_a_graph_belongs_to_what_is_around_its_launch(tmp_path: Path) -> None:
    kernels = [event(f"k{i}", "kernel", 100 + i, 1, 7, correlation=3, stream=7) for i in range(500)]
    call = event("cudaGraphLaunch", "cuda_runtime", 20, 5, correlation=3)
    around = event("decode", "user_annotation", 10, 50)
    assert groups(write(tmp_path / "a.json", [around, call, *kernels]), "operator") == {
        ("decode", "forward"): 500_000
    }


# ---- recorded jobs


def _events(path: Path) -> Iterable[dict[str, Any]]:
    text = gzip.decompress(path.read_bytes()).decode(errors="replace")
    document = json.loads(text, strict=False, parse_float=Decimal)
    events = document if isinstance(document, list) else document["traceEvents"]
    return [event for event in events if event.get("ph") == "X"]


def _ns(number: Any) -> int:
    return round(Decimal(number) * 1000)


_GPU = [path for path in files("kineto") if "/gpu-" in str(path)]


@pytest.mark.parametrize("path", _GPU, ids=lambda path: "/".join(path.parts[-3:-1]))
@pytest.mark.slow
def test_groups_of_recorded_work_add_up_to_it_to_the_nanosecond(path: Path) -> None:
    total = sum(_ns(e.get("dur", 0)) for e in _events(path) if e.get("cat") in _DEVICE)
    for by in ("operator", "module", "annotation", "kernel_kind"):
        assert sum(groups(path, by).values()) == total > 0


#: Recorded jobs that launch operator by operator; those with Python's stacks have modules, too.
_EAGER = {
    "gpu-param-dlrm-8ranks/trace": False,
    "gpu-hta-nccl-rank0of2/trace": False,
    "gpu-param-resnet": False,
    "gpu-tracelens-bert-h100-vs-mi300/h100": True,
    "gpu-tracelens-resnet-ckpt-mi300-rank0of8": True,
    "gpu-tracelens-timesformer-h100": True,
}


@pytest.mark.parametrize("path", [path for path in _GPU if str(path.parent).endswith(tuple(_EAGER))], ids=str)
@pytest.mark.slow
def test_launched_work_has_an_operator_and_with_stacks_a_module(path: Path) -> None:
    has_stacks = next(stacks for name, stacks in _EAGER.items() if str(path.parent).endswith(name))
    for by, least in (("operator", 0.99), *([("module", 0.95)] if has_stacks else [])):
        known = {name: ns for name, ns in groups(path, by).items() if name[0] != _NO_LAUNCH}
        attributed = sum(ns for (name, _), ns in known.items() if not name.startswith("("))
        assert attributed >= least * sum(known.values())


@pytest.mark.parametrize(
    "path", [path for path in _GPU if "bert" in str(path) or "dlrm" in str(path)], ids=str
)
@pytest.mark.slow
def test_operators_of_recorded_work_are_those_of_a_plain_count(path: Path) -> None:
    events = [*_events(path)]
    operators = [e for e in events if e.get("cat") == "cpu_op"]
    calls = {e["args"]["correlation"]: e for e in events if e.get("cat") in _CALLS}
    expected: Counter[str] = Counter()
    for work in (e for e in events if e.get("cat") in _DEVICE):
        call = calls.get(work["args"]["correlation"])
        around = [e for e in operators if call is not None and _is_in(call, e)]
        innermost = max(around, key=lambda e: (e["ts"], -e["dur"]), default={"name": _NO_LAUNCH})
        expected[innermost["name"]] += _ns(work["dur"])
    for (name, _), ns in groups(path, "operator").items():
        expected[name] -= ns
    assert not any(expected.values())


def _is_in(call: dict[str, Any], operator: dict[str, Any]) -> bool:
    same_thread = (call["pid"], call["tid"]) == (operator["pid"], operator["tid"])
    return bool(same_thread and 0 <= call["ts"] - operator["ts"] < operator["dur"])
