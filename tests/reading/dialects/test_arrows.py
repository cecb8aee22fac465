"""Arrows between the processes of one file: the path runs through whoever was waited for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.model.graph.critical_path import critical_path
from analyzer.model.graph.step_graph import Recording
from dag_utils import load_steps
from make import path_of, span, stretches_of, write
from replay.runs import simulated
from trace_utils import Request

Slice = tuple[str, int, int, int]  # name, process, start, end (µs)
End = tuple[str, int, int]  # phase, process, time (µs)


def job(path: Path, slices: Sequence[Slice], *arrows: Sequence[End], ranks: bool = False) -> Recording:
    events = [span(name, start, end - start, pid=pid) for name, pid, start, end in slices]
    for number, ends in enumerate(arrows):
        common = {"name": "sent", "cat": "net", "id": number, "tid": 0}
        events += [{"ph": phase, "pid": pid, "ts": at, **common} for phase, pid, at in ends]
    for pid in {pid for _, pid, *_ in slices}:
        name = f"rank {pid}" if ranks else f"process {pid}"
        events.append({"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}})
    return load_steps([write(path / "trace.json", events)], Request(jobs=1, progress=False)).recording


#: The second process has something to do at first; a third one ends last before the second goes on.
WORK = [("produce", 0, 0, 50), ("think", 1, 0, 10), ("consume", 1, 60, 100), ("noise", 2, 0, 58)]


def test_a_slice_waits_for_the_source_of_its_arrow(tmp_path: Path) -> None:
    assert path_of(job(tmp_path, WORK)) == [("noise", "", 58), ("consume", "gap", 2), ("consume", "", 40)]
    found = path_of(job(tmp_path, WORK, [("s", 0, 50), ("f", 1, 60)]))
    assert found == [("produce", "", 50), ("consume", "gap", 10), ("consume", "", 40)]


def test_an_arrow_that_ends_between_slices_holds_up_the_next_one(tmp_path: Path) -> None:
    found = path_of(
        job(tmp_path, WORK, [("s", 0, 0), ("f", 1, 55)])
    )  # begins with the slice that is over then
    assert found == [("produce", "", 50), ("consume", "gap", 10), ("consume", "", 40)]


def test_a_slice_in_whose_middle_an_arrow_ends_waited_until_then(tmp_path: Path) -> None:
    slices = [("send", 0, 0, 45), ("receive", 1, 10, 60), ("noise", 2, 0, 59)]
    found = path_of(job(tmp_path, slices, [("s", 0, 44), ("f", 1, 50)]))
    # cut where the arrow begins; 5 on the way, and 10 more
    assert found == [("send", "", 44), ("send", "", 1), ("receive", "", 15)]


def test_an_arrow_may_go_on(tmp_path: Path) -> None:
    slices = [("ask", 0, 0, 20), ("relay", 1, 25, 40), ("answer", 2, 43, 70), ("noise", 3, 0, 42)]
    found = path_of(job(tmp_path, slices, [("s", 0, 20), ("t", 1, 25), ("f", 2, 43)]))
    assert found == [
        ("ask", "", 20), ("relay", "gap", 5), ("relay", "", 15), ("answer", "gap", 3), ("answer", "", 27),
    ]  # fmt: skip


def test_an_arrow_from_one_rank_to_another_in_a_file_is_where_they_meet(tmp_path: Path) -> None:
    alone = path_of(job(tmp_path / "alone", WORK, ranks=True))
    assert alone == [("rank1.think", "", 10), ("rank1.consume", "gap", 50), ("rank1.consume", "", 40)]
    found = path_of(job(tmp_path / "met", WORK, [("s", 0, 50), ("f", 1, 60)], ranks=True))
    assert found == [("rank0.produce", "", 50), ("rank1.consume", "gap", 10), ("rank1.consume", "", 40)]


def test_arrows_of_one_id_follow_each_other(tmp_path: Path) -> None:
    slices = [("a", 0, 0, 10), ("b", 1, 12, 20), ("a", 0, 30, 40), ("b", 1, 45, 60), ("noise", 2, 0, 44)]
    twice = [("s", 0, 10), ("f", 1, 12), ("s", 0, 40), ("f", 1, 45)]
    for ranks in (False, True):
        found = path_of(job(tmp_path / str(ranks), slices, twice, ranks=ranks))
        assert [(name[-1], cat, us) for name, cat, us in found[-3:]] == [
            ("a", "", 10), ("b", "gap", 5), ("b", "", 15),
        ]  # fmt: skip


slices_ = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 20), st.integers(1, 20)), min_size=1, max_size=8
)
ends_ = st.lists(st.tuples(st.sampled_from("stf"), st.integers(0, 2), st.integers(0, 40)), max_size=4)


@pytest.mark.slow
@given(slices_, st.lists(ends_, max_size=4), st.booleans())
def test_whatever_the_arrows_a_step_replays_as_recorded_and_its_path_adds_up(
    slices: list[tuple[int, int, int]], arrows: list[list[End]], ranks: bool
) -> None:
    with TemporaryDirectory() as scratch:
        made = [(f"slice{i}", pid, at, at + dur) for i, (pid, at, dur) in enumerate(slices)]
        recording = job(Path(scratch), made, *arrows, ranks=ranks)
    (step,) = recording.steps
    assert sum(one.dur_ns for one in stretches_of(critical_path(step))) == critical_path(step).length_ns
    again = simulated(recording, [0]).step(0)
    np.testing.assert_array_equal(again.start_ns - again.start_ns.min(), step.start_ns - step.start_ns.min())
    np.testing.assert_array_equal(again.end_ns - again.start_ns.min(), step.end_ns - step.start_ns.min())
