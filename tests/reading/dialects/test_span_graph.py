"""Spans of threads as steps, and arrows between them: the path runs through whoever was waited for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.model.graph.critical_path import critical_path
from analyzer.model.graph.join_ranks import join
from analyzer.model.graph.step_graph import Recording
from analyzer.reading import dialects
from analyzer.reading.dialects.recorded_collectives import SyncPart
from analyzer.reading.dialects.roles import Role, by_name
from analyzer.reading.dialects.span_graph import Meaning, record_spans
from analyzer.reading.dialects.step_parts import RankSteps, RankTrace
from analyzer.reading.formats.columns import Trace
from dag_utils import load_steps
from make import path_of, span, stretches_of, write
from replay.runs import simulated
from trace_utils import Request, read_trace

Span = tuple[str, int, int, int]  # name, thread, start, end (µs)


def trace_of(folder: Path, spans: Sequence[Span], name: str = "t") -> Trace:
    events = [span(what, start, end - start, tid=tid) for what, tid, start, end in spans]
    return read_trace(write(folder / f"{name}.json", events))


def record(trace: Trace, name: str = "rank0", by: str | None = None) -> RankSteps:
    return dialects.of(trace).rank_steps(RankTrace(name, trace), by)


def test_an_idle_thread_starts_after_the_last_end(tmp_path: Path) -> None:
    # thread 1 takes over from thread 0 after 3 µs; thread 0 is long over when the step ends
    job = join([record(trace_of(tmp_path, [("load", 0, 0, 20), ("other", 2, 0, 5), ("train", 1, 23, 60)]))])
    assert path_of(job) == [("load", "", 20), ("train", "gap", 3), ("train", "", 37)]


def meaning_of(trace: Trace, **known: Any) -> Meaning:
    """What is known of spans of which those called x are a collective."""
    is_collective = by_name(trace, lambda name: name.startswith("x"))
    roles = np.where(is_collective, Role.COMM, Role.COMPUTE).astype(np.int8)
    return Meaning(roles, is_collective, {}, lambda name, cat: cat, **known)


def test_a_system_may_mark_waits(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, [("result", 0, 0, 50), ("work", 1, 2, 45)])
    meaning = meaning_of(trace, waits=by_name(trace, "result".__eq__))
    assert path_of(join([record_spans(RankTrace("rank0", trace), trace, (), meaning)])) == [
        ("work", "gap", 2), ("work", "", 43), ("result", "", 5),
    ]  # fmt: skip


def test_only_one_half_of_a_collective_waits_for_the_other_half_on_other_ranks(tmp_path: Path) -> None:
    parts = {0: SyncPart("x", ends=False), 1: SyncPart("x", begins=False)}
    ranks = []
    for name, start in (("rank0", 0), ("rank1", 30)):
        trace = trace_of(tmp_path, [("x-start", 0, start, start + 2), ("x-done", 0, 35, 40)], name)
        ranks.append(record_spans(RankTrace(name, trace), trace, (), meaning_of(trace, parts=parts)))
    (step,) = join(ranks).steps
    names = [(ranks[0].operations[0].name, 0), ("x-done", 0), ("x-start", 1), ("x-done", 1)]
    across = {(names[a], names[b]) for a, b, *_ in step.edges.tolist() if names[a][1] != names[b][1]}
    assert across == {(("x-start", 0), ("x-done", 1)), (("x-start", 1), ("x-done", 0))}


def test_groups_meet_by_themselves(tmp_path: Path) -> None:
    ranks = []
    for i, end in enumerate((10, 10, 60, 60)):
        name = f"rank{i}"
        trace = trace_of(tmp_path, [("work", 0, 0, end - 5), ("x", 0, end - 5, end)], name)
        parts = {1: SyncPart(("x", i // 2))}
        ranks.append(record_spans(RankTrace(name, trace), trace, (), meaning_of(trace, parts=parts)))
    (step,) = join(ranks).steps
    owner = step.owner.tolist()
    assert {(owner[a], owner[b]) for a, b, *_ in step.edges.tolist() if owner[a] != owner[b]} == {
        (0, 1), (1, 0), (2, 3), (3, 2),
    }  # fmt: skip


def test_a_span_waits_in_its_own_time_for_communication_of_another_thread(tmp_path: Path) -> None:
    spans = [("backward", 0, 0, 50), ("op", 0, 0, 10), ("allreduce", 1, 10, 48), ("noise", 2, 40, 49)]
    assert path_of(join([record(trace_of(tmp_path, spans))])) == [
        ("op", "", 10), ("allreduce", "", 38), ("backward", "", 2),
    ]  # fmt: skip


LOOP = [
    span for at in (0, 100, 200) for span in (("train_step", 0, at, at + 80), ("forward", 0, at, at + 30))
]


def test_steps_are_from_one_outermost_span_that_repeats_to_the_next(tmp_path: Path) -> None:
    steps = record(trace_of(tmp_path, [*LOOP, ("save", 0, 185, 195)]))
    assert [(step.number, step.begin_ns // 1000, step.next_ns // 1000) for step in steps.steps] == [
        (1, 0, 100), (2, 100, 200), (3, 200, 280),
    ]  # fmt: skip
    assert [len(step) for step in steps.steps] == [2, 3, 2]


def test_events_that_reach_into_a_step_continue_there(tmp_path: Path) -> None:
    steps = record(trace_of(tmp_path, [*LOOP, ("checkpoint", 1, 50, 150)]))
    first, second, _ = steps.steps
    ((then, now),) = second.continued.tolist()
    names = [steps.operations[int(part.operation[i])].name for part, i in ((first, then), (second, now))]
    assert names == ["checkpoint", "checkpoint"]
    assert (second.start_ns[now] // 1000, second.end_ns[now] // 1000) == (100, 150)


CASES = (
    "viztracer/viz.json.gz",
    "cmake/cmake_trace.json",
    "catapult/main_thread_has_unclosed_slices.json",
    "node/node_trace.json",
    "derived/viz_small_as_BE_list.json.gz",
)


@pytest.mark.parametrize("case", CASES)
def test_the_paths_of_recorded_steps_are_as_long_as_the_steps(shared_data: Path, case: str) -> None:
    job = join([record(read_trace(shared_data / "generic" / case))])
    for step in job.steps:
        path = critical_path(step)
        assert path.length_ns == step.next_ns[0] - step.begin_ns[0]
        assert sum(stretch.dur_ns for stretch in stretches_of(path)) == path.length_ns


@pytest.mark.parametrize(
    ("name", "cat", "communicates"),
    [
        ("all-reduce.1", "", True),
        ("ncclDevKernel_AllGather", "", True),
        ("send_forward", "comm", True),
        ("broadcast.5", "", False),  # XLA's: a value repeated along an axis
        ("compile", "common", False),
    ],
)
def test_communication_is_recognised_by_name_or_category(
    tmp_path: Path, name: str, cat: str, communicates: bool
) -> None:
    trace = read_trace(write(tmp_path / "t.json", [span(name, 0, 9, cat)]))
    expected = Role.COMM if communicates else Role.COMPUTE
    assert dialects.of(trace).roles(trace).tolist() == [expected]


# ---- arrows between the processes of one file

Slice = tuple[str, int, int, int]  # name, process, start, end (µs)
End = tuple[str, int, int]  # phase, process, time (µs)


def linked(path: Path, slices: Sequence[Slice], *arrows: Sequence[End], ranks: bool = False) -> Recording:
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
    assert path_of(linked(tmp_path, WORK)) == [
        ("noise", "", 58),
        ("consume", "gap", 2),
        ("consume", "", 40),
    ]
    found = path_of(linked(tmp_path, WORK, [("s", 0, 50), ("f", 1, 60)]))
    assert found == [("produce", "", 50), ("consume", "gap", 10), ("consume", "", 40)]


def test_an_arrow_that_ends_between_slices_holds_up_the_next_one(tmp_path: Path) -> None:
    found = path_of(
        linked(tmp_path, WORK, [("s", 0, 0), ("f", 1, 55)])
    )  # begins with the slice that is over then
    assert found == [("produce", "", 50), ("consume", "gap", 10), ("consume", "", 40)]


def test_a_slice_in_whose_middle_an_arrow_ends_waited_until_then(tmp_path: Path) -> None:
    slices = [("send", 0, 0, 45), ("receive", 1, 10, 60), ("noise", 2, 0, 59)]
    found = path_of(linked(tmp_path, slices, [("s", 0, 44), ("f", 1, 50)]))
    # cut where the arrow begins; 5 on the way, and 10 more
    assert found == [("send", "", 44), ("send", "", 1), ("receive", "", 15)]


def test_an_arrow_may_go_on(tmp_path: Path) -> None:
    slices = [("ask", 0, 0, 20), ("relay", 1, 25, 40), ("answer", 2, 43, 70), ("noise", 3, 0, 42)]
    found = path_of(linked(tmp_path, slices, [("s", 0, 20), ("t", 1, 25), ("f", 2, 43)]))
    assert found == [
        ("ask", "", 20), ("relay", "gap", 5), ("relay", "", 15), ("answer", "gap", 3), ("answer", "", 27),
    ]  # fmt: skip


def test_an_arrow_from_one_rank_to_another_in_a_file_is_where_they_meet(tmp_path: Path) -> None:
    alone = path_of(linked(tmp_path / "alone", WORK, ranks=True))
    assert alone == [("rank1.think", "", 10), ("rank1.consume", "gap", 50), ("rank1.consume", "", 40)]
    found = path_of(linked(tmp_path / "met", WORK, [("s", 0, 50), ("f", 1, 60)], ranks=True))
    assert found == [("rank0.produce", "", 50), ("rank1.consume", "gap", 10), ("rank1.consume", "", 40)]


def test_arrows_of_one_id_follow_each_other(tmp_path: Path) -> None:
    slices = [("a", 0, 0, 10), ("b", 1, 12, 20), ("a", 0, 30, 40), ("b", 1, 45, 60), ("noise", 2, 0, 44)]
    twice = [("s", 0, 10), ("f", 1, 12), ("s", 0, 40), ("f", 1, 45)]
    for ranks in (False, True):
        found = path_of(linked(tmp_path / str(ranks), slices, twice, ranks=ranks))
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
        recording = linked(Path(scratch), made, *arrows, ranks=ranks)
    (step,) = recording.steps
    assert sum(one.dur_ns for one in stretches_of(critical_path(step))) == critical_path(step).length_ns
    again = simulated(recording, [0]).step(0)
    np.testing.assert_array_equal(again.start_ns - again.start_ns.min(), step.start_ns - step.start_ns.min())
    np.testing.assert_array_equal(again.end_ns - again.start_ns.min(), step.end_ns - step.start_ns.min())
