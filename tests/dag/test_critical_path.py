"""The critical path of a recorded step: it adds up, and runs through whoever was waited for."""

from __future__ import annotations

import pytest

from dag.critical_path import CriticalPath, CriticalPaths, critical_path, slack_ns
from dag.step_graph import Recording
from dialects.step_parts import Edge, Joint, Kind, Meeting
from make import rank_steps, recording


def words(job: Recording, path: CriticalPath) -> list[tuple[str, str, int]]:
    """(event, category, length) of each stretch."""
    step = job.steps[0]
    return [(job.name_of(step, s.event) if s.event >= 0 else "", s.cat, s.dur_ns) for s in path.stretches]


def test_a_chain_is_its_work_and_its_gaps() -> None:
    #  begin 0 | gap 5 | a 5-25 | gap 3 | b 28-60 | gap 4 | next 64
    job = recording(rank_steps("rank0", {"a": (5, 25), "b": (28, 60)}, [Edge(0, 1)], bounds=(0, 64)))
    path = critical_path(job.steps[0])
    assert words(job, path) == [
        ("a", "gap", 5), ("a", "", 20), ("b", "gap", 3), ("b", "", 32), ("", "gap", 4),
    ]  # fmt: skip
    assert path.length_ns == 64


def test_waiting_for_a_late_rank_is_not_on_the_path() -> None:
    # both compute, then reduce together: rank0 is ready at 10, rank1 at 70; the transfer takes 5
    group = {"key": "reduce", "enters": True, "leaves": True}
    early = rank_steps(
        "rank0", {"work": (0, 10), "reduce": (10, 75)}, [Edge(0, 1)], bounds=(0, 75),
        meetings=[Meeting(event=1, **group)],  # type: ignore[arg-type]
    )  # fmt: skip
    late = rank_steps(
        "rank1", {"work": (0, 70), "reduce": (70, 75)}, [Edge(0, 1)], bounds=(0, 75),
        meetings=[Meeting(event=1, **group)],  # type: ignore[arg-type]
    )  # fmt: skip
    job = recording(early, late)
    path = critical_path(job.steps[0])
    assert words(job, path) == [("rank1.work", "", 70), ("rank0.reduce", "", 5)]
    step = job.steps[0]
    assert (step.end_ns - step.start_ns - step.work_ns).tolist() == [0, 60, 0, 0]
    # rank0 may compute 60 longer; what rank1 does is critical, and so are both transfers
    assert slack_ns(step).tolist() == [60, 0, 0, 0]


def test_within_one_rank_the_wait_for_another_is_named_so() -> None:
    group = {"key": "reduce", "enters": True, "leaves": True}
    meetings = [Meeting(event=1, **group)]  # type: ignore[arg-type]
    early = rank_steps(
        "rank0", {"w": (0, 10), "r": (10, 75)}, [Edge(0, 1)], bounds=(0, 75), meetings=meetings
    )
    late = rank_steps("rank1", {"w": (0, 70), "r": (70, 75)}, [Edge(0, 1)], bounds=(0, 75), meetings=meetings)
    job = recording(early, late)
    path = critical_path(job.steps[0], [0])
    assert words(job, path) == [("rank0.w", "", 10), ("rank0.r", "wait", 60), ("rank0.r", "", 5)]
    assert path.length_ns == 75


def test_parts_of_a_job_have_paths_of_their_own() -> None:
    # rank1 waits from 10 to 70 for rank0 and rank2 for nobody
    meetings = {"key": "send", "joint": Joint.END_TO_BODY}
    job = recording(
        rank_steps("rank0", {"w": (0, 70)}, bounds=(0, 75),
                   meetings=[Meeting(event=0, enters=True, leaves=False, **meetings)]),  # type: ignore[arg-type]
        rank_steps("rank1", {"w": (0, 10), "r": (10, 80)}, [Edge(0, 1)], bounds=(0, 80),
                   meetings=[Meeting(event=1, enters=False, leaves=True, **meetings)]),  # type: ignore[arg-type]
        rank_steps("rank2", {"w": (5, 60)}, bounds=(0, 60)),
    )  # fmt: skip
    paths = CriticalPaths(job.steps[0], [[0], [1], [2]])
    assert [words(job, paths.path(part)) for part in range(3)] == [
        [("rank0.w", "", 70), ("", "gap", 5)],
        [("rank1.w", "", 10), ("rank1.r", "wait", 60), ("rank1.r", "", 10)],
        [("rank2.w", "gap", 5), ("rank2.w", "", 55)],
    ]
    assert [paths.length_ns(part) for part in range(3)] == [75, 80, 60]
    two = CriticalPaths(job.steps[0], [[2], [0, 1]])
    assert words(job, two.path(1)) == [("rank0.w", "", 70), ("rank1.r", "", 10)]


def test_a_busy_link_is_work_of_the_transfer_before() -> None:
    # both are asked for at 10; the link carries a until 40, then b until 60
    events = {"make": (0, 10), "a": (10, 40), "b": (10, 60)}
    job = recording(
        rank_steps(
            "rank0", events, [Edge(0, 1), Edge(0, 2)], bounds=(0, 60), links={"a": "wire", "b": "wire"}
        )
    )
    path = critical_path(job.steps[0])
    assert words(job, path) == [("make", "", 10), ("a", "", 30), ("b", "", 20)]


def test_a_transfer_recorded_from_when_it_was_served_waited_for_its_link() -> None:
    # b was asked for at 10 as well, but its event begins when the link is free
    events = {"make": (0, 10), "a": (10, 40), "b": (40, 60)}
    job = recording(
        rank_steps(
            "rank0", events, [Edge(0, 1), Edge(0, 2)], bounds=(0, 60), links={"a": "wire", "b": "wire"}
        )
    )
    assert words(job, critical_path(job.steps[0])) == [("make", "", 10), ("a", "", 30), ("b", "", 20)]
    assert job.steps[0].gap_ns.tolist() == [0, 0, 0]


def test_the_owner_that_ends_last_gives_the_window() -> None:
    # rank1's step lasts from 5 to 100; its path reaches rank0, whose step began at 0: cut at 5
    first = rank_steps("rank0", {"send": (0, 40)}, bounds=(0, 90), meetings=[
        Meeting("m", 0, enters=True, leaves=False)])  # fmt: skip
    second = rank_steps("rank1", {"receive": (10, 100)}, bounds=(5, 100), meetings=[
        Meeting("m", 0, enters=False, leaves=True, joint=Joint.END_TO_BODY, kind=Kind.MESSAGE)])  # fmt: skip
    job = recording(first, second)
    path = critical_path(job.steps[0])
    assert words(job, path) == [("rank0.send", "", 35), ("rank1.receive", "", 60)]
    assert path.length_ns == 95


def test_a_rank_that_begins_late_shows_as_a_gap() -> None:
    job = recording(
        rank_steps("rank0", {"r": (0, 50)}, bounds=(0, 50), meetings=[Meeting("m", 0, True, True)]),
        rank_steps("rank1", {"r": (30, 50)}, bounds=(20, 45), meetings=[Meeting("m", 0, True, True)]),
    )
    # rank1 begins its step at 20 and the collective at 30; 20 more for the transfer
    assert words(job, critical_path(job.steps[0])) == [
        ("", "gap", 20), ("rank1.r", "gap", 10), ("rank0.r", "", 20),
    ]  # fmt: skip


@pytest.mark.parametrize("overlap", [1_000, 50_000])
def test_a_start_just_before_its_inputs_end_is_at_that_end(overlap: int) -> None:
    events = {"a": (0, 100_000), "b": (100_000 - overlap, 300_000)}
    job = recording(rank_steps("rank0", events, [Edge(0, 1)], bounds=(0, 300_000)))
    assert words(job, critical_path(job.steps[0])) == [("a", "", 100_000), ("b", "", 200_000)]


def test_an_edge_that_the_times_contradict_joins_the_source_s_start() -> None:
    events = {"a": (0, 900_000), "b": (100_000, 900_000)}
    job = recording(rank_steps("rank0", events, [Edge(0, 1)], bounds=(0, 900_000)))
    assert job.steps[0].edges.tolist() == [[0, 1, Joint.START_TO_HEAD, Kind.DATA]]


def test_instant_events_that_wait_for_each_other_are_no_cycle() -> None:
    edges = [Edge(0, 1), Edge(1, 0)]
    job = recording(rank_steps("rank0", {"a": (5, 5), "b": (5, 5)}, edges, bounds=(0, 9)))
    assert critical_path(job.steps[0]).length_ns == 9
    assert slack_ns(job.steps[0]).tolist() == [0, 0]
