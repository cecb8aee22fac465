"""Timelines of pipeline jobs in one file: their ranks, steps and stages, and a slowdown by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from system_laws import check_system

from analyzer.reading.dialects import pipeline
from analyzer.reading.dialects.pipeline import Place
from dag_utils import load_steps
from make import span, write
from replay.slowdown import slowdown

Slice = tuple[str, str, float, float]  # thread's kind, name, begin and end in ms

#: Two micro-batches on two stages, one forward, one backward; a pass of the second stage takes twice as long.
FIRST: list[Slice] = [
    ("compute", "forward-compute", 0, 10), ("compute", "forward-compute", 10, 20),
    ("pp-comm", "forward-send", 10, 11), ("pp-comm", "forward-send", 20, 21),
    ("pp-comm", "backward-recv", 71, 72), ("compute", "backward-compute", 72, 92),
    ("pp-comm", "backward-recv", 131, 132), ("compute", "backward-compute", 132, 152),
    ("dp-comm", "grads-reduce-scatter", 152, 156),
]  # fmt: skip
SECOND: list[Slice] = [
    ("pp-comm", "forward-recv", 10, 11), ("pp-comm", "forward-recv", 20, 21),
    ("compute", "forward-compute", 11, 31), ("compute", "backward-compute", 31, 71),
    ("pp-comm", "backward-send", 71, 72), ("compute", "forward-compute", 71, 91),
    ("compute", "backward-compute", 91, 131), ("pp-comm", "backward-send", 131, 132),
    ("dp-comm", "grads-reduce-scatter", 131, 135),
]  # fmt: skip
KINDS = ("compute", "pp-comm", "dp-comm")


def timeline(steps: tuple[int, ...] = (3, 7, 9, 12), n_replicas: int = 2) -> list[dict[str, Any]]:
    """Processes are replicas, threads stages and kinds of work; steps do not follow each other."""
    events: list[dict[str, Any]] = []
    for replica in range(n_replicas):
        name = {"name": f"DP rank [{replica}]"}
        events.append({"ph": "M", "name": "process_name", "pid": replica, "args": name})
        for stage, slices in enumerate((FIRST, SECOND)):
            for i, kind in enumerate(KINDS):
                label = {"name": f"PP rank {stage}, TP rank 0, {kind}"}
                tid = 10 * stage + i
                events.append({"ph": "M", "name": "thread_name", "pid": replica, "tid": tid, "args": label})
            for i, step in enumerate(steps):
                events += [
                    span(name, 1e3 * (200 * i + begin), 1e3 * (end - begin), name, replica,
                         10 * stage + KINDS.index(kind), step=step)
                    for kind, name, begin, end in slices
                ]  # fmt: skip
    return events


def test_laws(tmp_path: Path) -> None:
    check_system(write(tmp_path / "job.json", timeline()), ["rank0", "rank1", "rank2", "rank3"], tmp_path)


def test_a_phase_that_is_forgotten_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "_PHASES", pipeline._PHASES[:1])
    with pytest.raises(AssertionError, match="a forward pass without a backward one"):
        test_laws(tmp_path)


def test_different_names_for_one_collective_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = pipeline._key

    def with_own_place(name: str, thread: str, place: Place) -> Any:
        return key(name, thread, place), place

    monkeypatch.setattr(pipeline, "_key", with_own_place)
    with pytest.raises(AssertionError, match="meet nobody"):
        test_laws(tmp_path)


def test_the_slowdown_of_two_stages_is_what_arithmetic_says(tmp_path: Path) -> None:
    """A mean pass takes 15 ms forward and 30 backward, so T is 137 ms and 4 for the gradients, not 156.

    With the second stage's own work alone it is 171, with the first one's 126.
    """
    found = slowdown(load_steps([write(tmp_path / "job.json", timeline())]).recording)
    assert found.ratio == pytest.approx(156 / 141)
    assert dict(found.by["stage"]) == pytest.approx({"1": 171 / 141, "0": 126 / 141})


def test_waiting_for_another_stage_is_no_gap(tmp_path: Path) -> None:
    """The first stage waits from 21 ms on for the gradients, which come at 72."""
    loaded = load_steps([write(tmp_path / "job.json", timeline())])
    step = loaded.recording.steps[0]
    names = [loaded.recording.operations[one].name for one in step.operation]
    received = next(i for i, name in enumerate(names) if name == "backward-recv" and step.owner[i] == 0)
    took = step.end_ns[received] - step.start_ns[received]
    assert (step.gap_ns[received], took, step.work_ns[received]) == (0, 51_000_000, 1_000_000)


def test_processes_with_a_full_place_are_ranks(tmp_path: Path) -> None:
    """MegaScan: a process for each rank, ``args.iteration``; iterations follow each other every 100 ms."""
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 90 + stage, "args": {"name": f"DP0-PP{stage}-TP0"}}
        for stage in range(2)
    ]
    events += [
        {"ph": "X", "name": name, "pid": 90 + stage, "tid": 0, "args": {"iteration": i},
         "ts": 1e5 * i + 1e4 * begin, "dur": 1e4 * took}
        for i in range(5) for stage in range(2) for name, begin, took in (
            (("forward", 0, 2), ("send-forward", 2, 1), ("recv-backward", 6, 1), ("backward", 7, 2)),
            (("recv-forward", 0, 3), ("forward", 3, 1), ("backward", 4, 2), ("send-backward", 6, 1)),
        )[stage]
    ]  # fmt: skip
    loaded = load_steps([write(tmp_path / "job.json", events)]).recording
    assert loaded.owners == ["rank0", "rank1"]
    assert [step.number for step in loaded.bounds] == [0, 1, 2, 3, 4]
    assert [step.iteration_ns.tolist() for step in loaded.bounds] == [[100_000_000, 100_000_000]] * 5


@pytest.mark.slow
def test_of_a_published_timeline_s_is_the_published_one(shared_data: Path) -> None:
    loaded = load_steps([shared_data / "pipeline/timeline-ST.json.gz"])
    found = slowdown(loaded.recording)
    assert found.ratio == pytest.approx(1.1787, abs=0.01)
    published = {"3": 1.2323, "0": 0.9980, "1": 0.9831, "2": 0.9825}
    assert dict(found.by["stage"]) == pytest.approx(published, abs=0.02)
