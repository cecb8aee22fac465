"""A contracted step has the paths, lengths and slack of the whole one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dag import join_ranks
from dag.contracted_step import ContractedStep, critical_paths, examined, slacks
from dag.critical_path import CriticalPaths, slack_ns
from dag.step_graph import StepGraph
from dialects.step_parts import Edge, Joint, Kind, Meet, RankSteps
from make import rank_steps, recording

_COLUMNS = ("event", "operation", "owners", "cat", "start_ns", "end_ns", "kind")


def same(contracted: StepGraph | ContractedStep, whole: StepGraph, groups: list[list[int]]) -> None:
    """Assert that paths, lengths and slack of one step are the same."""
    for parts in ([[owner] for owner in range(len(whole.begin_ns))], groups):
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
    meets: list[list[Meet]] = [[] for _ in range(n_ranks)]
    for key in range(draw(st.integers(0, 5))):
        members = draw(st.lists(st.integers(0, n_ranks - 1), unique=True, min_size=1))
        is_group = draw(st.booleans())
        joint = (
            Joint.START_TO_BODY
            if is_group
            else draw(st.sampled_from([Joint.START_TO_BODY, Joint.END_TO_BODY]))
        )
        kind = Kind.GROUP if is_group else Kind.MESSAGE
        for rank in members:
            enters, leaves = (True, True) if is_group else draw(st.tuples(st.booleans(), st.booleans()))
            event = draw(st.integers(0, lengths[rank] - 1))
            meets[rank].append(Meet(key, event, enters, leaves, joint, kind))
    return [
        rank_steps(
            f"rank{i}", {f"e{n}": own for n, own in enumerate(events[i])}, edges[i],
            bounds=bounds[i], meets=meets[i],
        )
        for i in range(n_ranks)
    ]  # fmt: skip


@given(jobs(), st.integers(1, 6), st.sampled_from([1, 16]), st.integers(0, 3))
def test_random_ranks(ranks: list[RankSteps], together: int, most_paired: int, seed: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(join_ranks, "_MOST_PAIRED", most_paired)
        contracted, whole = examined(recording(*ranks), 0, together), recording(*ranks).steps[0]
        members = np.random.default_rng(seed).integers(0, 2, len(ranks))
        groups = [np.flatnonzero(members == part).tolist() for part in range(2)]
        everyone = [list(range(len(ranks)))]
        same(contracted, whole, [group for group in groups if group])
        same(contracted, whole, everyone)
