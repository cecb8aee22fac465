"""A contracted step has the paths, lengths and slack of the whole one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import recorded
from arrays import Int64
from dag import join_ranks
from dag.contracted_step import ContractedStep, _contract, critical_paths, examined, slacks
from dag.critical_path import CriticalPaths, slack_ns
from dag.model import Dag
from dag.step_graph import StepGraph
from dag_utils import choose_step, load_steps
from dialects.step_parts import Edge, Joint, Kind, Meeting, RankSteps
from errors import AnalyzeError
from make import random_dags, rank_steps, recording

_COLUMNS = ("event", "operation", "owners", "cat", "start_ns", "end_ns", "kind")


def same(contracted: StepGraph | ContractedStep, whole: StepGraph, *groupings: list[list[int]]) -> None:
    """Assert that paths, lengths and slack of one step are the same: of each rank, of all, and of groups."""
    everyone = range(len(whole.begin_ns))
    for parts in ([[owner] for owner in everyone], [list(everyone)], *groupings):
        ours, theirs = critical_paths(contracted, parts), CriticalPaths(whole, parts)
        for part in range(len(parts)):
            assert ours.length_ns(part) == theirs.length_ns(part)
            one, other = ours.path(part), theirs.path(part)
            assert (one.owner, one.begin_ns, one.length_ns) == (other.owner, other.begin_ns, other.length_ns)
            for column in _COLUMNS:
                assert getattr(one, column).tolist() == getattr(other, column).tolist(), column
    found = list(slacks(contracted))
    slack = np.concatenate([own for _, own in found])
    assert slack.tolist() == slack_ns(whole)[: len(slack)].tolist()
    for column in ("operation", "start_ns", "end_ns", "work_ns", "gap_ns"):
        own = np.concatenate([getattr(graph, column) for graph, _ in found])
        assert own.tolist() == getattr(whole, column)[: len(slack)].tolist(), column


@st.composite
def jobs(draw: st.DrawFn) -> list[RankSteps]:
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
        ends = number, number, st.sampled_from(list(Joint)), st.sampled_from(list(Kind))
        pairs = draw(st.lists(st.tuples(*ends), max_size=10))
        edges.append([Edge(min(a, b), max(a, b), joint, kind) for a, b, joint, kind in pairs if a != b])
        lengths.append(len(own))
    meetings: list[list[Meeting]] = [[] for _ in range(n_ranks)]
    for key in range(draw(st.integers(0, 5))):
        members = draw(st.lists(st.integers(0, n_ranks - 1), unique=True, min_size=1))
        is_group = draw(st.booleans())
        joint = (
            Joint.START_TO_BODY
            if is_group
            else draw(st.sampled_from([Joint.START_TO_BODY, Joint.END_TO_BODY]))
        )
        of_group = st.sampled_from([Kind.GROUP, Kind.EXCHANGE])
        kind = draw(of_group) if is_group else Kind.MESSAGE
        for rank in members:
            enters, leaves = (True, True) if is_group else draw(st.tuples(st.booleans(), st.booleans()))
            event = draw(st.integers(0, lengths[rank] - 1))
            meetings[rank].append(Meeting(key, event, enters, leaves, joint, kind))
    return [
        rank_steps(
            f"rank{i}", {f"e{n}": own for n, own in enumerate(events[i])}, edges[i],
            bounds=bounds[i], meetings=meetings[i],
        )
        for i in range(n_ranks)
    ]  # fmt: skip


@pytest.mark.slow
@settings(max_examples=50)
@given(jobs(), st.integers(1, 6), st.sampled_from([1, 16]), st.integers(0, 3))
def test_random_ranks(ranks: list[RankSteps], together: int, most_paired: int, seed: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(join_ranks, "_MOST_PAIRED", most_paired)
        contracted, whole = examined(recording(*ranks), 0, together), recording(*ranks).steps[0]
        members = np.random.default_rng(seed).integers(0, 2, len(ranks))
        groups = [np.flatnonzero(members == part).tolist() for part in range(2)]
        same(contracted, whole, [group for group in groups if group])


@given(random_dags(), st.data())
def test_the_longest_ways_between_what_is_kept_stay(dag: Dag, data: st.DataObject) -> None:
    n = len(dag)
    kept = data.draw(st.lists(st.booleans(), min_size=n, max_size=n))
    between = data.draw(st.lists(st.integers(0, 9), min_size=dag.n_edges, max_size=dag.n_edges))
    source, target = dag.edges[:, 0].astype(np.int64), dag.edges[:, 1].astype(np.int64)
    edges = source, target, np.array(between, np.int64)
    fewer = _contract(*edges, dag.dur_ns, np.array(kept, np.bool_))
    assert len(fewer[0]) <= len(source)
    for one in np.flatnonzero(kept).tolist():
        before, after = (ways(one, *found, dag.dur_ns) for found in (edges, fewer))
        assert {end: way for end, way in before.items() if kept[end]} == {
            end: way for end, way in after.items() if kept[end]
        }


def ways(begin: int, source: Int64, target: Int64, between: Int64, cost: Int64) -> dict[int, int]:
    """How long the longest way from a place to each other takes: its edges, and the places on it."""
    rows = sorted(
        zip(source.tolist(), target.tolist(), between.tolist(), strict=True)
    )  # of lower numbers first
    longest = {begin: 0}
    for a, b, way in rows:
        if a in longest:
            own = int(cost[a]) if a != begin else 0
            longest[b] = max(longest.get(b, 0), longest[a] + own + way)
    return longest


def test_a_long_chain_is_one_edge() -> None:
    # 0 -> 1 -> ... -> 999, each of 1 ns: 998 between the ends; and beside it a shorter way of 5 ns
    n = 1000
    numbers = np.arange(n)
    source, target = np.append(numbers[:-1], 0), np.append(numbers[1:], n - 1)
    between = np.append(np.zeros(n - 1, np.int64), 5)
    is_kept = (numbers == 0) | (numbers == n - 1)
    found = _contract(source, target, between, np.ones(n, np.int64), is_kept)
    assert [column.tolist() for column in found] == [[0], [n - 1], [998]]


@pytest.mark.slow
@pytest.mark.parametrize("path", recorded.jobs(), ids=lambda path: "/".join(path.parts[-3:]))
def test_recorded_jobs(path: Path) -> None:
    try:
        job = load_steps([path], jobs=1, progress=False).recording
    except AnalyzeError as error:
        pytest.skip(str(error))
    row = choose_step(job)
    contracted = examined(job, row, most=1)  # every rank by itself
    if "kineto" in path.parts:
        assert isinstance(contracted, ContractedStep)
    whole = job.steps[row]
    halves = [list(range(len(job.owners)))[half::2] for half in range(2)]
    same(contracted, whole, [half for half in halves if half])


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
    step = examined(job, 0, most=1)
    assert isinstance(step, ContractedStep)
    path = critical_paths(step, [[0, 1]]).path(0)
    names = [job.operations[at].name for at in path.operation.tolist()]
    lengths = (path.end_ns - path.start_ns).tolist()
    parts = list(zip(names, path.owners.tolist(), lengths, strict=True))
    assert parts == [("w", 0, 10), ("x", 1, 20), ("y", 0, 30)]
    # rank0's x may end at 30 instead of 12, and so may what only x waits for: the end of a, not its start;
    # rank1's w may take 6 more until rank0 comes, and its y 25 more until rank0 is through
    assert np.concatenate([own for _, own in slacks(step)]).tolist() == [0, 18, 18, 0, 0, 6, 0, 0, 25, 25]


def test_ranks_that_wait_for_each_other_in_one_moment_are_joined_whole() -> None:
    # at 10 one rank goes from the second collective to the first, the other from the first to the second
    one, two = Meeting("one", 0, enters=True, leaves=True), Meeting("two", 0, enters=True, leaves=True)
    events = {"x": (0, 10), "y": (10, 20)}
    job = recording(
        rank_steps("rank0", events, [Edge(0, 1)], bounds=(0, 20), meetings=[two, one._replace(event=1)]),
        rank_steps("rank1", events, [Edge(0, 1)], bounds=(0, 20), meetings=[one, two._replace(event=1)]),
    )
    step = examined(job, 0, most=1)
    assert isinstance(step, StepGraph)
    assert len(step.edges) == 5  # of six one is left out
