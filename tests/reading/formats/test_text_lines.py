"""Lines that training programs print: which numbers of which step and rank are in them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analyzer.base.errors import TraceError
from analyzer.reading.formats.step_log import read, text_lines
from conftest import ask, run_cli
from trace_utils import read_trace

STAMP = "2025-06-04 08:51:58,557"


def rows(*lines: str) -> list[dict[str, Any]]:
    blocks = text_lines.rows(["\n".join(lines).encode()])
    return [json.loads(line) for block in blocks for line in block.splitlines()]


@pytest.mark.parametrize(
    ("line", "row"),
    [
        (
            " [2025-04-13 23:41:12] iteration       10/    1000 | consumed samples:     160 | elapsed "
            "time per iteration (ms): 1147.6 | learning rate: 1.342E-04 | throughput (TFLOP/s/GPU): 50.7 |",
            {"step": 10, "consumed samples": 160, "iteration_ms": 1147.6, "learning rate": 1.342e-4}
            | {"throughput (TFLOP/s/GPU)": 50.7},
        ),
        (
            "[2024-06-21 10:50:42][INFO][training:1609] - iteration=    2/infinity | consumed_samples= 768 "
            "| elapsed_time_per_iteration_ms=108.2 | lm loss=nan | [LM]-TFLOPs=49.66 |",
            {"step": 2, "consumed_samples": 768, "iteration_ms": 108.2, "[LM]-TFLOPs": 49.66},
        ),
        (
            f"[titan] {STAMP} - root - INFO - \x1b[31mstep: 10  \x1b[32mloss: 10.7069  \x1b[38;2;1mmemory: "
            "30.99GiB(32.62%)  tps: 7,034  tflops: 407.35  mfu: 41.19%\x1b[39m",
            {"step": 10, "ts": "2025-06-04T08:51:58.557Z", "loss": 10.7069, "memory": 30.99}
            | {"tps": 7034, "tflops": 407.35, "mfu": 41.19},
        ),
        (
            f"[{STAMP}] [INFO] [logging.py:96:log_dist] [Rank 0] step=7, skipped=4, lr=[5e-05], mom=[0.9]",
            {"step": 7, "ts": "2025-06-04T08:51:58.557Z", "skipped": 4},
        ),
        (
            f"[{STAMP}] [INFO] [timer.py:260:stop] epoch=0/micro_step=40/global_step=10, "
            "RunningAvgSamplesPerSec=25.02, CurrSamplesPerSec=24.98, MemAllocated=0.14GB",
            {"step": 10, "ts": "2025-06-04T08:51:58.557Z", "RunningAvgSamplesPerSec": 25.02}
            | {"CurrSamplesPerSec": 24.98, "MemAllocated": 0.14},
        ),
        (
            "steps: 10 loss: 3.2045 iter time (s): 0.123 samples/sec: 260.163",
            {"step": 10, "loss": 3.2045, "iteration_s": 0.123, "samples/sec": 260.163},
        ),
        (
            " [2026-01-13 23:41:12.123456] iteration       10/    1000 | consumed samples:     160 | elapsed "
            "time per iteration (ms): 1147.6 | mtp_1 loss: 1.3E+00 | number of nan iterations:   0 |",
            {"step": 10, "ts": "2026-01-13T23:41:12.123456Z", "consumed samples": 160, "iteration_ms": 1147.6}
            | {"mtp_1 loss": 1.3, "number of nan iterations": 0},
        ),
    ],
)  # fmt: skip
def test_a_line_of_each_program(line: str, row: dict[str, Any]) -> None:
    assert rows(line) == [row]


@pytest.mark.parametrize(
    ("prefix", "owner"),
    [
        (" 3: ", {"rank": 3}),
        ("[rank5]:", {"rank": 5}),
        ("[default0]: ", {"rank": 0}),
        ("node-7: ", {"host": "node-7"}),
        ("1: [default3]:", {"host": "1", "local_rank": 3}),
        ("", {}),
    ],
)
def test_a_prefix_tells_the_rank(prefix: str, owner: dict[str, Any]) -> None:
    line = f"{prefix}iteration 1/ 9 | elapsed time per iteration (ms): 5.5 |"
    assert rows(line) == [{"step": 1, **owner, "iteration_ms": 5.5}]


def test_lines_of_ranks_may_alternate() -> None:
    lines = [f"{rank}: iteration {step}/9 | elapsed time per iteration (ms): {10 * step + rank}.5 |"
             for step in (1, 2) for rank in (0, 1)]  # fmt: skip
    told = sorted((row["rank"], row["step"], row["iteration_ms"]) for row in rows(*lines))
    assert told == [(0, 1, 10.5), (0, 2, 20.5), (1, 1, 11.5), (1, 2, 21.5)]


def test_enclosed_timers_count_once() -> None:
    (row,) = rows(
        "iteration 3/9 | elapsed time per iteration (ms): 100.0 |",
        "(min, max) time across ranks (ms):",
        "    forward-backward ...............................: (70.00, 80.00)",
        "    forward-compute ................................: (20.00, 30.00)",
        "    backward-compute ...............................: (40.00, 45.00)",
        "    batch-generator ................................: (1.00, 4.00)",
        "    optimizer ......................................: (9.00, 10.00)",
        "    save-checkpoint ................................: (9000.00, 9001.00)",
    )
    parts = {name: took for name, took in row.items() if name not in ("step", "iteration_ms")}
    assert parts == {
        "forward-backward_ms": 5.0,  # 80 - 30 - 45
        "forward-compute_ms": 26.0,  # 30 - 4
        "backward-compute_ms": 45.0,
        "batch-generator_ms": 4.0,
        "optimizer_ms": 10.0,
    }


def test_timers_of_each_rank_make_a_row_for_each() -> None:
    lines = ["iteration 3/9 | elapsed time per iteration (ms): 100.0 |", "times across ranks (ms):"]
    lines += ["  forward-compute:", "     rank  0: 53.79", "     rank  1: 63.79"]
    assert rows(*lines) == [
        {"step": 3, "iteration_ms": 100.0, "rank": rank, "forward-compute_ms": took}
        for rank, took in ((0, 53.79), (1, 63.79))
    ]


def test_steps_of_deepspeed_without_a_number_are_counted() -> None:
    timers = "[Rank 0] time (ms) | fwd: 2.0 | bwd: 5.0 | bwd_inner: 4.0 | bwd_allreduce: 1.0 | step: 3.0"
    micro = "[Rank 0] time (ms) | fwd_microstep: 1.0 | bwd_microstep: 2.0 | step_microstep: 0.1"
    begun = "[Rank 0] step=0, skipped=0, lr=[0.0]"
    told = rows(begun, micro, timers, micro, timers, "[Rank 0] step=3, skipped=0, lr=[0.1]", timers)
    assert [row["step"] for row in told] == [1, 2, 3]
    parts = {
        "fwd_ms": 2.0,
        "bwd_ms": 0.0,
        "bwd_inner_ms": 4.0,
        "bwd_allreduce_ms": 1.0,
        "optimizer-step_ms": 3.0,
    }
    assert all(parts.items() <= row.items() for row in told)


def inspected(rank: int, took_us: Sequence[int], *, marked: bool, size: int = 4) -> str:
    """Write records of NCCL Inspector, from version 4.3 on with the header in a record of its own."""
    header = {"header": {"id": "0x7f", "rank": rank, "n_ranks": size, "nnodes": 1}, "metadata": {"pid": 1}}
    done = [
        {"coll_perf": {"coll": "AllReduce", "coll_sn": number, "coll_exec_time_us": took}}
        for number, took in enumerate(took_us)
    ]
    records = [header | {"dump_stats": {}}, *done] if marked else [header | one_done for one_done in done]
    return "".join(json.dumps(record) + "\n" for record in records)


@pytest.mark.parametrize("marked", [False, True])
def test_a_collective_of_nccl_inspector_is_a_step(tmp_path: Path, marked: bool) -> None:
    text = inspected(3, [60, 70, 80], marked=marked) + inspected(1, [5], marked=marked, size=2)
    (tmp_path / "host-pid9.log").write_text(text)
    trace = read(tmp_path / "host-pid9.log")
    assert (trace.rank, (trace.dur_ns // 1000).tolist()) == (3, [60, 70, 80])


def test_steps_of_torchtitan_last_from_line_to_line(tmp_path: Path) -> None:
    moments = [(10, "08:51:58,000"), (20, "08:52:08,000"), (30, "08:52:28,000")]
    path = tmp_path / "a.log"
    lines = [
        f"[rank0]:[titan] 2025-06-04 {at} - root - INFO - step: {n}  loss: 9.1  tps: 7\n" for n, at in moments
    ]
    path.write_text("".join(lines))
    assert (read_trace(path).dur_ns // 1_000_000).tolist() == [1000, 2000]  # of ten steps each


def titan_lines(rank: int, steps: Sequence[int], step_ms: int = 100) -> str:
    """Lines of torchtitan from 8 o'clock on, behind the prefix of `srun -l`."""
    return "".join(
        f"{rank}: [titan] 2025-06-04 08:00:{step * step_ms // 1000:02}"
        f",{step * step_ms % 1000:03} - root - INFO - step: {step}  loss: 9.1  tps: 7\n"
        for step in steps
    )


def test_lengths_of_steps_alone_are_no_idle_time_and_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "slurm-7.out"
    path.write_text("".join(titan_lines(rank, range(10, 310, 10)) for rank in range(4)))
    answer = ask("statistic", path, "--sub_option", "breakdown")
    assert [rank["mean_ms"] for rank in answer["ranks"]] == [100.0] * 4
    unknown = ("compute_ms", "comm_ms", "exposed_comm_ms", "idle_ms")
    assert {row[key] for row in answer["ranks"] + answer["breakdown"] for key in unknown} == {None}
    assert answer["headline"].endswith("what happens in a step is not recorded.")
    assert "damaged" not in run_cli("statistic", path, "--sub_option", "breakdown")[1]


def test_a_rank_with_one_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "slurm-7.out"
    path.write_text(titan_lines(0, [10, 20, 30]) + titan_lines(1, [10]))
    answer = ask("statistic", path)
    assert [row["count"] for row in answer["operations"]] == [2]
    assert "1 row without a step or its durations left out" in answer["repairs"][0]


def test_a_log_without_these_lines_is_refused_in_a_line(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("0: [2025-06-04 08:51:58,557] [INFO] starting\n" * 100)
    with pytest.raises(TraceError, match="a log of text; write a row for each rank and step") as refused:
        read_trace(path)
    assert "\n" not in str(refused.value)


@pytest.mark.slow
def test_damaged_lines_never_fail() -> None:
    good = (
        "iteration 3/9 | elapsed time per iteration (ms): 100.0 |\ntimes across ranks (ms):\n  optimizer:\n"
        "     rank  0: 5.0\n[rank1]:step: 4  loss: 2.0  tps: 1,000\n[Rank 0] step=5, skipped=0\n"
        "time (ms) | fwd: 2.0 | bwd: 3.0\n" + inspected(1, [6], marked=True)
    ).encode()
    odd = [
        b"\x00",
        b"\xff\xfe",
        b"9" * 400,
        b"1e999",
        b"|" * 5000,
        b"[" * 3000,
        b"\x1b[",
        b"{}",
        b"null",
        b"-",
    ]
    for seed in range(2000):
        random = np.random.default_rng(seed)
        text = good
        for _ in range(random.integers(1, 4)):
            begin, end = sorted(random.integers(0, len(text) + 1, 2).tolist())
            end = min(end, begin + 40)
            text = text[:begin] + odd[random.integers(len(odd))] + text[end if seed % 2 else begin :]
        for block in text_lines.rows([text]):
            for line in block.splitlines():
                assert "step" in json.loads(line)
