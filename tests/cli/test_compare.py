"""`--option compare`: known changes are found and explained, nothing else is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analyzer.answers.compare.significance import LEVEL, Samples, sample, welch
from analyzer.model.figures.job_figures import Wanted, load_figures
from conftest import REPO, ask, run_cli
from make import comm, step, two_workers, write
from make import span as x


def compared(*args: object) -> dict[str, Any]:
    document: dict[str, Any] = ask("--option", "compare", "--as_recorded", "--path", *args)
    return document


def job(path: Path, seed: int, *, mm: float = 30, push: float = 20, steps: int = 8, name: str = "mm") -> Path:
    """A Kineto file: in each step of about 100 µs an operator, a collective that nothing hides, a rest."""
    rng = np.random.default_rng(seed)
    events, at = [], 1000.0
    for number in range(steps):
        work, wait = mm + rng.uniform(-1, 1), push + rng.uniform(-1, 1)
        events += [step(number, at, work + wait + 50), x(f"aten::{name}", at, work, "cpu_op"),
                   x("gloo:all_reduce", at + work, wait, "user_annotation", tid=9),
                   x("aten::copy_", at + work + wait, 40 + rng.uniform(-1, 1), "cpu_op")]  # fmt: skip
        at += 500
    return write(path, events, schemaVersion=1)


def named(document: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(op for op in document["operations"] if op["name"] == name)
    return found


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """A job, and the same job with a collective that takes 15 µs more."""
    return job(tmp_path / "a.json", 1), job(tmp_path / "b.json", 2, push=35)


def test_only_the_slower_operation_is_found_and_it_explains_the_step(pair: tuple[Path, Path]) -> None:
    document = compared(*pair)
    significant = {op["name"] for op in document["operations"] if op["significant"]}
    assert {"gloo:all_reduce"} <= significant <= {"gloo:all_reduce", "ProfilerStep*"}
    slower = named(document, "gloo:all_reduce")
    assert slower["count"] == [8, 8]
    assert slower["avg_absolute_ms"] == pytest.approx(0.015, abs=0.002)
    assert slower["ci_low_ms"] < 0.015 < slower["ci_high_ms"]
    parts = {part["cat"]: part["explained_ms"] for part in document["categories"]}
    base, new = document["iteration_ms"]
    assert sum(parts.values()) == pytest.approx(new - base)
    assert parts["communication"] == pytest.approx(new - base, abs=0.003)
    assert "gloo:all_reduce" in document["verdict"]


def test_averages_are_those_of_statistic(tmp_path: Path) -> None:
    paths = job(tmp_path / "a.json", 1), job(tmp_path / "b.json", 2)
    found = compared(*paths)
    for side, path in enumerate(paths):
        _, out, _ = run_cli("--option", "statistic", "--format", "json", "--path", path)
        stat = next(op for op in json.loads(out)["operations"] if op["name"] == "aten::mm")
        assert named(found, "aten::mm")["avg_ms"][side] == pytest.approx(stat["avg_ms"])


def test_a_run_does_not_differ_from_itself(tmp_path: Path) -> None:
    path = job(tmp_path / "a.json", 1)
    found = compared(path, path)
    assert {op["avg_absolute_ms"] for op in found["operations"]} == {0}
    assert not any(op["significant"] for op in found["operations"])
    assert (found["only_in"], found["verdict"][:9]) == ([[], []], "Unchanged")


def test_operations_of_one_run_are_listed(tmp_path: Path) -> None:
    a, b = job(tmp_path / "a.json", 1), job(tmp_path / "b.json", 2, name="mm_fused")
    assert compared(a, b)["only_in"] == [["aten::mm"], ["aten::mm_fused"]]


def test_a_new_operation_that_explains_the_change_is_named(tmp_path: Path) -> None:
    a, b = job(tmp_path / "a.json", 1), job(tmp_path / "b.json", 2)
    document = json.loads(b.read_text())
    events = document["traceEvents"]
    starts = [event["ts"] for event in events if event["name"] == "aten::copy_"]
    events += [x("aten::extra", ts + 42, 100 + at, "cpu_op") for at, ts in enumerate(starts)]
    for event in events:
        event["dur"] += 120 * event["name"].startswith("ProfilerStep")
    b.write_text(json.dumps(document))
    found = compared(a, b)
    assert found["only_in"] == [[], ["aten::extra"]]
    assert "most of it in aten::extra +0.103 ms (only in b.json)" in found["verdict"]
    text = run_cli("compare", a, b)[1].splitlines()
    table = text[text.index("Operations that explain most of the change") :]
    assert next(line.split()[0] for line in table if "::" in line) == "aten::extra"


def test_sort_puts_the_largest_part_of_the_change_first_and_head_cuts(pair: tuple[Path, Path]) -> None:
    parts = [abs(op["explained_ms"]) for op in compared(*pair, "--sort")["operations"]]
    assert parts == sorted(parts, reverse=True)
    assert [op["name"] for op in compared(*pair, "--sort", "--head", 1)["operations"]] == ["gloo:all_reduce"]


def test_the_filter_leaves_other_communication_out(tmp_path: Path) -> None:
    events = [comm(tensor, "PUSH", key, 100 * n, 5) for n in range(4) for key, tensor in enumerate("vw")]
    events += [x("FW.a", 100 * n, 5, "operator") for n in range(4)]
    path = write(tmp_path / "t.json", events)
    found = compared(path, path, "--filter", "Comm.w")
    assert {op["name"] for op in found["operations"]} == {"Comm.w.PUSH.1", "FW.a"}


@pytest.mark.parametrize(("push", "percent", "code"), [(35, 5, 3), (35, "50%", 0), (20, 0, 0)])
def test_fail_above_is_for_significant_growth_beyond_the_limit(
    tmp_path: Path, push: float, percent: object, code: int
) -> None:
    a, b = job(tmp_path / "a.json", 1), job(tmp_path / "b.json", 2, push=push)
    assert run_cli("--option", "compare", "--path", a, b, "--fail_above", percent)[0] == code


@pytest.mark.slow
def test_the_verdict_is_the_exit_code_though_nobody_reads_the_answer(pair: tuple[Path, Path]) -> None:
    words = f"--option compare --path {pair[0]} {pair[1]} --fail_above 5 --format json"
    command = f"{sys.executable} analyze.py {words} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], cwd=REPO, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (3, "")


def test_workers_are_told_apart_in_jobs_of_equally_many(tmp_path: Path) -> None:
    a, b = two_workers(tmp_path / "a"), two_workers(tmp_path / "b")
    assert [op["name"] for op in compared(a, b)["operations"]] == ["wk0.Comm.w.PUSH.1", "wk1.Comm.w.PUSH.1"]


def test_three_inputs_are_each_compared_with_the_first(tmp_path: Path) -> None:
    paths = [job(tmp_path / f"{n}.json", n, push=push) for n, push in enumerate((20, 35, 50))]
    found = compared(*paths)
    assert [len(found["iteration_ms"]), len(found["comparisons"])] == [3, 2]
    changes = [named(each, "gloo:all_reduce")["avg_absolute_ms"] for each in found["comparisons"]]
    assert changes == pytest.approx([0.015, 0.030], abs=0.002)
    _, out, _ = run_cli("compare", *paths, "--sort", "--quiet")
    head, _, names, _, *rows = out.split("\n")
    assert head.startswith("2.json changed most of 2 runs: Slower: ")
    assert names.split()[:4] == ["run", "base", "step", "(ms)"]
    assert [row.split()[0] for row in rows[:2]] == ["2.json", "1.json"]


@pytest.mark.parametrize(
    ("paths", "code", "words"),
    [
        (["a.json"], 2, "two paths"),
        (["a.json", ""], 2, "a directory"),
        (["a.json", "b.json"], 1, "no operation in common"),
        (["a.json", "a.json", "--fail_above=-1"], 2, "--fail_above"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_line(
    tmp_path: Path, paths: list[str], code: int, words: str
) -> None:
    job(tmp_path / "a.json", 1)
    write(tmp_path / "b.json", [x("two", 0, 5, "other")])
    given = [word if word.startswith("--") else tmp_path / word for word in paths]
    status, out, err = run_cli("--option", "compare", "--path", *given)
    assert (status, out, err.count("\n"), words in err) == (code, "", 1, True)


# ---- real jobs, with changes that were made on purpose


def test_a_slow_network_is_pushes_and_pulls(shared_data: Path) -> None:
    found = compared(shared_data / "byteps/fork_lenet_base", shared_data / "byteps/fork_lenet_slownet")
    assert found["iteration_ms"] == pytest.approx([145, 422], rel=0.01)  # as the training scripts measured
    parts = {part["cat"]: part for part in found["categories"]}
    assert found["categories"][0]["cat"] == "PULL"
    assert parts["PULL"]["explained_ms"] + parts["PUSH"]["explained_ms"] > 0.7 * (422 - 145)
    # transfers and computation share two cores: the backward events in both temp.json, added up by hand
    assert parts["BW"]["step_ms"] == pytest.approx([(50.69 + 62.83) / 2, (110.78 + 103.31) / 2], rel=1e-3)


def test_a_slow_loader_shows_where_composer_waits_for_it(shared_data: Path) -> None:
    found = compared(*(shared_data / f"composer/{each}/trace" for each in ("ws2", "ws2-slow-rank1")))
    parts = {part["cat"] for part in found["categories"] if part["explains"]}
    assert parts == {"event/forward", "event/backward"}
    assert found["iteration"]["significant"]


def part_of(total: np.ndarray, count: np.ndarray, steps: slice) -> Samples:
    return sample(total[:, steps], count[:, steps])


@pytest.mark.parametrize(
    "run",
    [
        "byteps/fork_lenet_base",
        "byteps/fork_lenet_slownet",
        "byteps/fork_lenet_2w2g",
        "kineto/ddp2-gloo-base/trace",
        "kineto/gpu-hta-compare/control",
        "kineto/gpu-kineto-old-list/num_workers_0",
        "horovod/2ranks-base/trace",
    ],
)
def test_the_steps_of_one_run_are_not_called_different(shared_data: Path, run: str) -> None:
    ops = load_figures([shared_data / run], Wanted(operations=True)).operations(tell_workers=True)
    odd, even = (part_of(ops.total_ns, ops.count, slice(start, None, 2)) for start in (0, 1))
    p = welch(odd, even).p
    assert np.nansum(p <= LEVEL) <= 0.05 * np.isfinite(p).sum()
