"""PyTorch's machines, functions that cover a pause, and the steps of serving programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analyzer.reading.dialects.kineto import Kineto
from analyzer.reading.formats.columns import no_slices
from conftest import ask
from dag_utils import load_steps
from make import span, write
from trace_utils import Request, read_trace


def test_the_header_names_the_machine() -> None:
    headers: list[dict[str, Any]] = [{"host_name": "node7"}, {"host_name": None}, {"host_name": "localhost"}]
    machines = [Kineto().machine(no_slices("t.json", "kineto", header, [])) for header in headers]
    assert machines == ["node7", "", ""]


@pytest.mark.parametrize(
    ("inner", "covers"),
    [
        ("<method 'acquire' of '_thread.lock' objects>", "__next__"),
        ("threading.py(320): wait", "__next__"),
        ("<built-in function sleep>", "sleep"),
        ("<method 'sort' of 'list' objects>", "sort"),
        ("data.py(7): decode", "decode"),
    ],
)
def test_of_functions_the_innermost_that_does_more_than_wait_covers_a_pause(
    tmp_path: Path, inner: str, covers: str
) -> None:
    """Thread 2 only waits, for longer than the pause; in microseconds."""
    slices = [
        ("aten::add", "cpu_op", 1, 0, 1000), ("data.py(3): __next__", "python_function", 1, 1000, 9000),
        (inner, "python_function", 1, 1500, 8000), ("poll.py(1): watch", "python_function", 2, 1400, 8200),
    ]  # fmt: skip
    events = [span(name, ts, dur, cat, 1, tid) for name, cat, tid, ts, dur in slices]
    path = write(tmp_path / "rank0.json", events, schemaVersion=1)
    frames = Kineto().frames(read_trace(path))
    assert frames is not None
    assert frames.during(1_500_000, 9_500_000) == (covers, False)


# ---- steps of serving programs: kinds that are kept apart, and replays of CUDA graphs

_CALL, _DECODE, _PREFILL = 0.1, 10.0, 80.0  # ms


def serve(directory: Path, names: tuple[str, str], steps: int = 30) -> Path:
    """Write steps of a server, the fifth of each ten a prompt's; `names`: of decoding, and of prompts.

    A step replays a graph of ten kernels, or launches four kernels for a prompt, and waits for them; the next
    one begins 0.5 ms later.
    """
    events: list[dict[str, Any]] = []

    def add(name: str, cat: str, begin: float, took: float, correlation: int = -1) -> None:
        on_device = cat == "kernel"
        event = span(name, 1000 * begin, 1000 * took, cat, pid=int(not on_device), tid=7 if on_device else 1)
        events.append({**event, "args": {"correlation": correlation, "stream": 7}})

    begin, correlation = 0.0, 0
    for i in range(steps):
        is_prompt = i % 10 == 4
        call, launches, kernels, took = (
            ("cudaLaunchKernel", 4, 1, _PREFILL / 4)
            if is_prompt
            else ("cudaGraphLaunch", 1, 10, _DECODE / 10)
        )
        free = begin + _CALL
        for launch in range(launches):
            correlation += 1
            add(call, "cuda_runtime", begin + 0.02 * launch, 0.01, correlation)
            for _ in range(kernels):
                add("gemm", "kernel", free, took, correlation)
                free += took
        called = begin + 0.02 * launches
        add("cudaStreamSynchronize", "cuda_runtime", called, free - called)
        add(names[is_prompt], "user_annotation", begin, free - begin)
        begin = free + 0.5
    info = {"rank": 0, "world_size": 1}
    return write(directory / "rank0.json", events, schemaVersion=1, distributedInfo=info)


SERVERS = {
    "vllm": (("execute_context_0(0)_generation_16(16)", "execute_context_2(512)_generation_0(0)"), "prefill"),
    "older_vllm": (("execute_new_0_cached_16", "execute_new_2_cached_14"), "mixed"),
    "sglang": (("step[DECODE bs=16]", "step[EXTEND bs=2 toks=512]"), "prefill"),
    "tensorrt_llm": (
        (
            "[Executor] _forward_step 7: 0 ctx reqs, 0 ctx tokens, 16 gen reqs",
            "[Executor] _forward_step 8: 2 ctx reqs, 512 ctx tokens, 0 gen reqs",
        ),
        "prefill",
    ),
}
PROMPTS = [5, 15, 25]


@pytest.mark.parametrize("server", SERVERS)
def test_prompts_and_decoding_are_kinds_of_steps_that_are_kept_apart(tmp_path: Path, server: str) -> None:
    names, prompts = SERVERS[server]
    path = serve(tmp_path, names)
    decoding = load_steps([path]).recording
    assert [step.number for step in decoding.bounds] == [n for n in range(1, 31) if n not in PROMPTS]
    assert decoding.one_step == "A decode step"
    # from completion to completion; the first, and one after a prompt, has the call before it too
    assert {round(int(step.iteration_ns[0]) / 1e6, 1) for step in decoding.bounds} == {10.1, 10.6}
    (note,) = [note for note in decoding.notes if "in the median" in note]
    assert f"3 {prompts} steps, 80.6 ms in the median (show with --step_by {prompts})" in note
    other = load_steps([path], Request(step_by=prompts)).recording
    assert [step.number for step in other.bounds] == PROMPTS
    assert other.one_step == f"A {prompts} step"


def test_statistic_and_diagnose_do_not_mix_them(tmp_path: Path) -> None:
    path = serve(tmp_path, SERVERS["vllm"][0])
    statistic = ask("statistic", path, "--sub_option", "breakdown")
    assert not set(PROMPTS) & {row["step"] for row in statistic["breakdown"]}
    assert [row["outlier_steps"] for row in statistic["ranks"]] == [""]
    diagnosis = ask("diagnose", path)
    assert diagnosis["headline"].startswith("A decode step takes 10.6 ms")
    assert diagnosis["iteration_ms"]["mean"] == pytest.approx(10.6, rel=0.01)
    assert "outlier_steps" not in [finding["kind"] for finding in diagnosis["findings"]]
