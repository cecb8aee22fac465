"""Steps of serving programs: what they annotate, in kinds that are kept apart, and replays of CUDA graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conftest import ask
from dag_utils import load_steps
from make import span, write
from trace_utils import Request

_CALL, _DECODE, _PREFILL = 0.1, 10.0, 80.0  # ms


def serve(directory: Path, names: tuple[str, str], steps: int = 30) -> Path:
    """Write steps of a server, each tenth (from the fifth) a prompt's; `names`: of the others, of these.

    A step calls the device, by the replay of a graph of ten kernels, or kernel by kernel for a prompt;
    waits for it; and the next one begins 0.5 ms later.
    """
    events: list[dict[str, Any]] = []

    def add(name: str, cat: str, begin: float, took: float, pid: int, call: int = -1) -> None:
        event = span(name, 1000 * begin, 1000 * took, cat, pid=pid, tid=1 + 6 * (pid == 0))
        events.append({**event, "args": {"correlation": call, "stream": 7}} if call or pid == 0 else event)

    at, call = 0.0, 0
    for i in range(steps):
        is_prompt = i % 10 == 4
        launches = 4 if is_prompt else 1
        free = at + _CALL
        for k in range(launches):
            call += 1
            add(
                "cudaLaunchKernel" if is_prompt else "cudaGraphLaunch",
                "cuda_runtime",
                at + 0.02 * k,
                0.01,
                1,
                call,
            )
            kernels = 1 if is_prompt else 10
            took = (_PREFILL if is_prompt else _DECODE) / launches / kernels
            for _ in range(kernels):
                add("gemm", "kernel", free, took, 0, call)
                free += took
        called = at + 0.02 * launches
        add("cudaStreamSynchronize", "cuda_runtime", called, free - called, 1)
        if names[is_prompt]:
            add(names[is_prompt], "user_annotation", at, free - at, 1, 0)
        at = free + 0.5
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
    assert [one.number for one in decoding.bounds] == [n for n in range(1, 31) if n not in PROMPTS]
    assert decoding.one_step == "A decode step"
    # from completion to completion; the first, and one after a prompt, has the call before it too
    assert {round(int(one.iteration_ns[0]) / 1e6, 1) for one in decoding.bounds} == {10.1, 10.6}
    (note,) = [note for note in decoding.notes if "in the median" in note]
    assert f"3 {prompts} steps, 80.6 ms in the median (--step_by {prompts} looks at them)" in note
    other = load_steps([path], Request(step_by=prompts)).recording
    assert [one.number for one in other.bounds] == PROMPTS
    assert other.one_step == f"A {prompts} step"


def test_statistic_and_diagnose_do_not_mix_them(tmp_path: Path) -> None:
    path = serve(tmp_path, SERVERS["vllm"][0])
    found = ask("--option", "statistic", "--sub_option", "breakdown", "--path", path)
    assert not set(PROMPTS) & {row["step"] for row in found["breakdown"]}
    assert [row["outlier_steps"] for row in found["ranks"]] == [""]
    found = ask("--path", path)
    assert found["headline"].startswith("A decode step takes 10.6 ms")
    assert found["iteration_ms"]["mean"] == pytest.approx(10.6, rel=0.01)
    assert "outlier_steps" not in [one["kind"] for one in found["findings"]]
