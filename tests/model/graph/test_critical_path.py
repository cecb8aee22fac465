"""The critical path of a recorded step: it adds up, and runs through whoever was waited for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.model.graph import join_ranks
from analyzer.model.graph.critical_path import CriticalPath, CriticalPaths, critical_path
from analyzer.model.graph.step_graph import Recording, StepGraph
from analyzer.reading.dialects.edge_rules import Rule
from analyzer.reading.dialects.step_parts import Edge, Joint, Meeting, RankSteps
from make import rank_steps, recording, stretches_of


def words(job: Recording, path: CriticalPath) -> list[tuple[str, str, int]]:
    """(event, category, length) of each stretch."""
    step = job.steps[0]
    return [(job.name_of(step, s.event) if s.event >= 0 else "", s.cat, s.dur_ns) for s in stretches_of(path)]


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
    ranks = [
        rank_steps(
            f"rank{rank}", {"work": (0, ready), "reduce": (ready, 75)}, [Edge(0, 1)], bounds=(0, 75),
            meetings=[Meeting("reduce", 1, enters=True, leaves=True)],
        )
        for rank, ready in enumerate((10, 70))
    ]  # fmt: skip
    job = recording(*ranks)
    path = critical_path(job.steps[0])
    assert words(job, path) == [("rank1.work", "", 70), ("rank0.reduce", "", 5)]
    step = job.steps[0]
    assert (step.end_ns - step.start_ns - step.work_ns).tolist() == [0, 60, 0, 0]
    # rank0 may compute 60 longer; what rank1 does is critical, and so are both transfers
    assert step.slack_ns().tolist() == [60, 0, 0, 0]


def test_parts_of_a_job_have_paths_of_their_own() -> None:
    # rank1 waits from 10 to 70 for rank0 and rank2 for nobody
    sent, received = (Meeting("send", i, i == 0, i == 1, Joint.END_TO_BODY) for i in range(2))
    job = recording(
        rank_steps("rank0", {"w": (0, 70)}, bounds=(0, 75), meetings=[sent]),
        rank_steps("rank1", {"w": (0, 10), "r": (10, 80)}, [Edge(0, 1)], bounds=(0, 80), meetings=[received]),
        rank_steps("rank2", {"w": (5, 60)}, bounds=(0, 60)),
    )
    paths = CriticalPaths(job.steps[0], [[0], [1], [2]])
    assert [words(job, paths.path(part)) for part in range(3)] == [
        [("rank0.w", "", 70), ("", "gap", 5)],
        [("rank1.w", "", 10), ("rank1.r", "wait", 60), ("rank1.r", "", 10)],
        [("rank2.w", "gap", 5), ("rank2.w", "", 55)],
    ]
    assert [paths.length_ns(part) for part in range(3)] == [75, 80, 60]
    two = CriticalPaths(job.steps[0], [[2], [0, 1]])
    assert words(job, two.path(1)) == [("rank0.w", "", 70), ("rank1.r", "", 10)]


@pytest.mark.parametrize("recorded_from", [10, 40])  # when b is asked for, or when its link is free
def test_a_busy_link_is_work_of_the_transfer_before(recorded_from: int) -> None:
    # both are asked for at 10; the link carries a until 40, then b until 60
    events = {"make": (0, 10), "a": (10, 40), "b": (recorded_from, 60)}
    links = {"a": "wire", "b": "wire"}
    job = recording(rank_steps("rank0", events, [Edge(0, 1), Edge(0, 2)], bounds=(0, 60), links=links))
    assert words(job, critical_path(job.steps[0])) == [("make", "", 10), ("a", "", 30), ("b", "", 20)]
    assert job.steps[0].gap_ns.tolist() == [0, 0, 0]


def test_the_owner_that_ends_last_gives_the_window() -> None:
    # rank1's step lasts from 5 to 100; its path reaches rank0, whose step began at 0: cut at 5
    sent, received = Meeting("m", 0, True, False), Meeting("m", 0, False, True, Joint.END_TO_BODY)
    job = recording(
        rank_steps("rank0", {"send": (0, 40)}, bounds=(0, 90), meetings=[sent]),
        rank_steps("rank1", {"receive": (10, 100)}, bounds=(5, 100), meetings=[received]),
    )
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


def test_instant_events_that_wait_for_each_other_are_no_cycle() -> None:
    edges = [Edge(0, 1), Edge(1, 0)]
    job = recording(rank_steps("rank0", {"a": (5, 5), "b": (5, 5)}, edges, bounds=(0, 9)))
    assert critical_path(job.steps[0]).length_ns == 9
    assert job.steps[0].slack_ns().tolist() == [0, 0]


def test_a_path_goes_back_and_forth_between_ranks() -> None:
    # each works while the other waits: rank0 0-10, rank1 10-30, rank0 30-60; the collectives take no time
    meetings = [Meeting("a", 1, enters=True, leaves=True), Meeting("b", 3, enters=True, leaves=True)]
    first = {"w": (0, 10), "a": (10, 10), "x": (10, 12), "b": (12, 30), "y": (30, 60)}
    second = {"w": (0, 4), "a": (4, 10), "x": (10, 30), "b": (30, 30), "y": (30, 35)}
    edges = [Edge(0, 1), Edge(1, 2), Edge(2, 3), Edge(3, 4)]
    job = recording(
        rank_steps("rank0", first, edges, bounds=(0, 60), meetings=meetings),
        rank_steps("rank1", second, edges, bounds=(0, 35), meetings=meetings),
    )
    assert words(job, critical_path(job.steps[0])) == [
        ("rank0.w", "", 10), ("rank1.x", "", 20), ("rank0.y", "", 30),
    ]  # fmt: skip
    # rank0's x may end at 30 instead of 12, and so may what only x waits for: the end of a, not its start;
    # rank1's w may take 6 more until rank0 comes, and its y 25 more until rank0 is through
    assert job.steps[0].slack_ns().tolist() == [0, 18, 18, 0, 0, 6, 0, 0, 25, 25]


# -- ranks of any events


@st.composite
def waiting_ranks(draw: st.DrawFn) -> list[RankSteps]:
    """Ranks of a few events in any order of time, which wait for each other in groups and one by one."""
    n_ranks = draw(st.integers(2, 5))
    longest = draw(st.sampled_from([3, 20, 200_000]))  # short ones tie, long ones contradict their edges
    moments = st.integers(0, longest)
    lengths = []
    events, edges, bounds = [], [], []
    for _ in range(n_ranks):
        own = draw(st.lists(st.tuples(moments, moments), min_size=1, max_size=7))
        if draw(st.booleans()):  # one after the other, as on a thread
            at, own = 0, [(start, end) for start, end in own]
            for i, (gap, took) in enumerate(own):
                own[i] = at + gap // 4, at + gap // 4 + took
                at = own[i][1]
        else:
            own = sorted((min(pair), max(pair)) for pair in own)
        begin = draw(st.integers(0, min(start for start, _ in own)))
        end = max(end for _, end in own) + draw(st.integers(-longest // 4, longest // 4))
        bounds.append((begin, max(end, begin + 1)))
        events.append(own)
        number = st.integers(0, len(own) - 1)
        ends = number, number, st.sampled_from(list(Joint)), st.sampled_from(list(Rule))
        pairs = draw(st.lists(st.tuples(*ends), max_size=10))
        edges.append([Edge(min(a, b), max(a, b), joint, rule) for a, b, joint, rule in pairs if a != b])
        lengths.append(len(own))
    meetings: list[list[Meeting]] = [[] for _ in range(n_ranks)]
    for key in range(draw(st.integers(0, 5))):
        members = draw(st.lists(st.integers(0, n_ranks - 1), unique=True, min_size=1))
        is_group = draw(st.booleans())
        joint, rule = Joint.START_TO_BODY, Rule.SERVER
        if is_group:
            rule = draw(st.sampled_from([Rule.COLLECTIVE, Rule.EXCHANGE]))
        else:
            joint = draw(st.sampled_from([Joint.START_TO_BODY, Joint.END_TO_BODY]))
        for rank in members:
            enters, leaves = (True, True) if is_group else draw(st.tuples(st.booleans(), st.booleans()))
            event = draw(st.integers(0, lengths[rank] - 1))
            meetings[rank].append(Meeting(key, event, enters, leaves, joint, rule))
    return [
        rank_steps(
            f"rank{i}", {f"e{n}": own for n, own in enumerate(events[i])}, edges[i],
            bounds=bounds[i], meetings=meetings[i],
        )
        for i in range(n_ranks)
    ]  # fmt: skip


@given(waiting_ranks(), st.sampled_from([1, 16]))
def test_paths_add_up_and_no_event_has_more_slack_than_it_may_take(
    ranks: list[RankSteps], most_paired: int
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(join_ranks, "_MOST_PAIRED", most_paired)
        step = recording(*ranks).steps[0]
    everyone = range(len(ranks))
    for owners in (everyone, *([owner] for owner in everyone)):
        path = critical_path(step, owners)
        end = path.begin_ns
        for stretch in stretches_of(path):
            assert stretch.start_ns == end
            end = stretch.end_ns
        assert end == path.begin_ns + path.length_ns
    assert ends_if(step, step.work_ns) == step.end_ns.tolist()
    for event, slack in enumerate(step.slack_ns().tolist()):
        for longer, is_late in ((slack, False), (slack + 1, True)):
            work = step.work_ns.astype(np.int64)
            work[event] += longer
            assert ends_later(step, ends_if(step, work)) is is_late


def ends_if(step: StepGraph, work_ns: np.ndarray) -> list[int]:
    """When events end that start a gap after their last input, and work after their body's last input."""
    begin, gap, work = (column.tolist() for column in (step.begin_ns[step.owner], step.gap_ns, work_ns))
    start = [at + wait for at, wait in zip(begin, gap, strict=True)]
    end = [at + dur for at, dur in zip(start, work, strict=True)]
    edges = step.edges.tolist()
    while True:
        before = [*start, *end]
        for source, target, joint, _ in edges:
            is_start = joint in (Joint.START_TO_HEAD, Joint.START_TO_BODY)
            at = start[source] if is_start else end[source]
            if joint in (Joint.START_TO_HEAD, Joint.END_TO_HEAD):
                start[target] = max(start[target], at + gap[target])
            else:
                end[target] = max(end[target], at + work[target])
        end = [max(own, at + dur) for own, at, dur in zip(end, start, work, strict=True)]
        if [*start, *end] == before:
            return end


def ends_later(step: StepGraph, end: list[int]) -> bool:
    """Test if an event ends after all steps and itself, or delays a next step until after all steps."""
    until = int(step.next_ns.max())
    late = any(own > max(until, recorded) for own, recorded in zip(end, step.end_ns.tolist(), strict=True))
    held = (
        end[event] + int(step.tail_ns[owner]) > until
        for event, owner in zip(step.last.tolist(), step.owner[step.last].tolist(), strict=True)
    )
    return late or any(held)
