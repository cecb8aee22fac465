"""`--filter` means the same events wherever it is asked: of what is loaded, and of what `combine` writes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from conftest import run_cli
from make import comm, span, write
from trace_utils import Request, read_ranks

Event = dict[str, Any]


_CALL = "user_annotation"


def _kernel(name: str, ts: float) -> Event:
    return span(name, ts, 5, "kernel", 0, 7)


def _tensor(pid: int) -> list[Event]:
    name = {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": f"grad.{pid}"}}
    return [name, span("NEGOTIATE_ALLREDUCE", 0, 5, pid=pid), span("ALLREDUCE", 5, 5, pid=pid)]


_SYSTEMS = {
    "byteps": [comm("w", "PUSH", 1, 0, 5), comm("w", "PUSH", 2, 5, 5), comm("v", "PUSH", 3, 9, 5),
               span("FW.a", 20, 5, "operator")],
    "kineto": [span("gloo:all_reduce", 0, 5, _CALL), span("gloo:barrier", 9, 5, _CALL),
               span("aten::add", 20, 5, "cpu_op")],
    "kineto with a device": [_kernel("ncclDevKernel_AllReduce", 0), _kernel("ncclDevKernel_SendRecv", 9),
                             span("nccl:all_reduce", 1, 1, _CALL), _kernel("gemm", 20)],
    "horovod": [*_tensor(1), *_tensor(2)],
    "composer": [{"ph": "M", "name": "clock_sync_timestamp_us", "pid": 0, "tid": 0, "args": {"value": 1}},
                 span("gloo:all_reduce", 0, 5, _CALL), span("gloo:barrier", 9, 5, _CALL),
                 span("event/batch", 20, 5)],
    "chrome": [span("MyAllReduce", 0, 5), span("exchange", 9, 5, "comm"), span("work", 20, 5)],
    "mxnet": [{"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "gpu/0"}},
              span("broadcast_add", 0, 5), span("broadcast_mul", 9, 5)],
}  # fmt: skip
_ASKED = [
    ("byteps", "Comm.w", 3), ("byteps", "Comm.w.PUSH.2", 2), ("byteps", "Comm.v.PUSH", 2),
    ("byteps", "rank0.Comm.v.PUSH", 2),
    ("kineto", "gloo:all_reduce", 2),
    ("kineto with a device", "ncclDevKernel_SendRecv", 2), ("kineto with a device", "nccl:all_reduce", 2),
    ("horovod", "grad.2", 2),
    ("composer", "gloo:all_reduce", 2),
    ("chrome", "MyAllReduce", 2), ("chrome", "exchange", 2),
]  # fmt: skip


def _loaded(path: Path, *only: str) -> Counter[str]:
    trace = read_ranks([path], request=Request(only=only, progress=False)).made[0]
    return Counter(trace.names[i] for i in trace.name_id.tolist())


@pytest.mark.parametrize(("system", "name", "n"), _ASKED)
def test_combine_keeps_the_same_events_as_loading(tmp_path: Path, system: str, name: str, n: int) -> None:
    path = write(tmp_path / "0" / "comm.json", _SYSTEMS[system])
    kept = _loaded(path, name)
    assert kept.total() == n
    output = tmp_path / "combined.json"
    code, _, err = run_cli(
        *("--option", "combine", "--path", path, "--output", output, "--filter", name, "--align", "none")
    )
    assert code == 0, err
    assert {text.removeprefix("rank0."): k for text, k in _loaded(output).items()} == kept


def test_only_communication_can_be_filtered(tmp_path: Path) -> None:
    path = write(tmp_path / "profile.json", _SYSTEMS["mxnet"])
    for option in ("statistic", "combine"):
        code, _, err = run_cli("--option", option, "--path", path, "--filter", "broadcast_add")
        assert code == 1
        assert "--filter broadcast_add: no communication in this job has that name" in err


def test_calls_inside_a_collective_share_its_fate(tmp_path: Path) -> None:
    calls = [span("allreduce", 0, 50), span("memcpy", 10, 5), span("allgather", 60, 5), span("memcpy", 80, 5)]
    path = write(tmp_path / "trace.json", calls)
    assert _loaded(path, "allgather") == {"allgather": 1, "memcpy": 1}
    assert _loaded(path, "allreduce") == {"allreduce": 1, "memcpy": 2}
