"""Steps are the same wherever the files of ranks are read, however many files a rank has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from analyzer.base import parallel
from analyzer.base.errors import TraceError
from conftest import run_cli
from dag_utils import LoadedSteps, load_steps
from make import span, write
from trace_utils import Request

_US = 1_000


def write_rank(
    path: Path, rank: int, steps: range, *, late_us: float = 0, fast: float = 1, every_us: int = 1_000
) -> None:
    """Write steps of one rank, one `every_us`; its clock is `late_us` ahead and runs `fast` times as fast.

    Of a step's 900 us the rank computes 300 + 100 * rank, and then reduces until 600.
    """

    def event(name: str, cat: str, begin: float, end: float) -> dict[str, object]:
        tid = 1 if cat != "user_annotation" else 2
        return span(name, round(late_us + begin * fast, 3), end - begin, cat, 1, tid)

    events: list[dict[str, object]] = []
    for number in steps:
        begin = number * every_us
        own = 300 + 100 * rank
        events.append({**event(f"ProfilerStep#{number}", "user_annotation", begin, begin + 900), "tid": 1})
        events.append(event("aten::mm", "cpu_op", begin + 10, begin + own))
        events.append(event("gloo:all_reduce", "user_annotation", begin + own, begin + 600))
        events.append(event("aten::add", "cpu_op", begin + 610, begin + 850))
    write(path, events, schemaVersion=1, distributedInfo={"rank": rank, "world_size": 2})


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Two ranks of eight steps; rank 1 has two files, one for each cycle of its profiler."""
    folder = tmp_path / "job"
    write_rank(folder / "rank0.json", 0, range(1, 9))
    write_rank(folder / "rank1_a.json", 1, range(1, 5), late_us=5_000)
    write_rank(folder / "rank1_b.json", 1, range(5, 9), late_us=5_000)
    return folder


def names(loaded: LoadedSteps) -> Iterator[list[str]]:
    for step in loaded.recording.steps:
        yield sorted(loaded.recording.name_of(step, event) for event in range(len(step)))


def test_the_files_of_a_rank_are_one_rank_on_the_others_clock(job: Path) -> None:
    loaded = load_steps([job], Request(jobs=1, progress=False))
    recording = loaded.recording
    assert recording.owners == ["rank0", "rank1"]
    assert [step.number for step in recording.steps] == list(range(1, 9))
    every = [f"rank{rank}.{name}" for rank in (0, 1) for name in ("aten::add", "aten::mm", "gloo:all_reduce")]
    assert list(names(loaded)) == [sorted(every)] * 8
    assert [step.begin_ns.tolist() for step in recording.steps] == [[n * 1000 * _US] * 2 for n in range(1, 9)]
    assert [rank.path for rank in loaded.ranks] == [str(job / "rank0.json"), str(job / "rank1_a.json")]


def test_traces_can_be_read_again_on_one_clock(job: Path) -> None:
    loaded = load_steps([job], Request(jobs=1, progress=False))
    first, second = loaded.load_traces()
    assert (len(first), len(second)) == (32, 32)
    assert first.ts_ns.min() == second.ts_ns.min() == 1000 * _US


@pytest.mark.slow
@pytest.mark.parametrize("option", ["critical", "replay", "diagnose"])
def test_processes_give_the_same_bytes(option: str, job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_FORK_WORTH", 0)  # even for so little
    monkeypatch.chdir(job.parent)
    command = ["--option", option, "--path", "job", "--format", "json"]
    command += ["--output", "-"] if option == "replay" else []
    alone = run_cli(*command, "--jobs", "1")
    assert alone[0] == 0, alone[2]
    assert run_cli(*command, "--jobs", "2") == alone


def test_a_rank_that_cannot_be_read_is_a_note_and_one_without_steps_an_error(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(job.parent)
    (job / "rank2.json").write_text('{"traceEvents": 5}')
    for jobs in (1, 2):
        repairs = load_steps([Path("job")], Request(jobs=jobs, progress=False)).repairs
        assert any(line.startswith("job/rank2.json: JSON, but no trace") for line in repairs)
        with pytest.raises(TraceError, match=r"job/rank0\.json: --step_by nothing: no annotation"):
            load_steps([Path("job")], Request(step_by="nothing", jobs=jobs, progress=False))


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_unreadable_file_does_not_cost_its_rank(tmp_path: Path, jobs: int) -> None:
    write_rank(tmp_path / "rank0.json", 0, range(1, 9))
    (tmp_path / "rank1_a.json").write_text('{"traceEvents": 5}')
    write_rank(tmp_path / "rank1_b.json", 1, range(5, 9))
    loaded = load_steps([tmp_path], Request(jobs=jobs, progress=False))
    assert loaded.recording.owners == ["rank0", "rank1"]
    assert [step.number for step in loaded.recording.steps] == [5, 6, 7, 8]
    assert any("rank1_a.json: JSON, but no trace" in line for line in loaded.repairs)
