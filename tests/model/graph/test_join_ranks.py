"""What many ranks do together is one event; it says the same as an edge for every pair."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.model.graph import join_ranks
from analyzer.model.graph.critical_path import critical_path
from analyzer.model.graph.step_graph import Recording
from analyzer.reading.dialects.edge_rules import Rule
from analyzer.reading.dialects.step_parts import Edge, Joint, Meeting
from make import rank_steps, recording, stretches_of
from replay.runs import simulated

Times = list[tuple[int, int, int]]  # of each rank: begin and end of the collective, work before it

times = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 60), st.integers(0, 20)), min_size=2, max_size=6
)


def joined(ranks: Times, most_paired: int) -> Recording:
    """Return a step in which ranks compute, reduce together, and compute again."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(join_ranks, "_MOST_PAIRED", most_paired)
        job = recording(
            *(
                rank_steps(
                    f"rank{rank}",
                    {
                        "before": (begin, begin + 5),
                        "reduce": (begin + 5, begin + 5 + took),
                        "after": (begin + 5 + took, begin + 10 + took + work),
                    },
                    [Edge(0, 1), Edge(1, 2)],
                    bounds=(begin, begin + 10 + took + work),
                    meetings=[Meeting("all", 1, enters=True, leaves=True)],
                )
                for rank, (begin, took, work) in enumerate(ranks)
            )
        )
        list(job.steps)  # made while patched
        return job


@given(times)
def test_a_meeting_of_many_gives_the_work_path_and_slack_of_pairs(ranks: Times) -> None:
    pairs, meeting = joined(ranks, 1000).steps[0], joined(ranks, 1).steps[0]
    zeros = [0] * (len(meeting) - len(pairs))
    for column in ("work_ns", "gap_ns"):
        assert getattr(meeting, column).tolist() == [*getattr(pairs, column).tolist(), *zeros]
    assert pairs.last.tolist() == meeting.last.tolist()
    for owners in (None, [0], [len(ranks) - 1]):
        assert stretches_of(critical_path(pairs, owners)) == stretches_of(critical_path(meeting, owners))
    assert np.array_equal(pairs.slack_ns(), meeting.slack_ns()[: len(pairs)])


@given(times, st.integers(0, 5), st.integers(0, 100))
def test_who_comes_later_than_recorded_holds_up_the_same_ranks(ranks: Times, late: int, by_ns: int) -> None:
    ends = []
    for job in (joined(ranks, 1000), joined(ranks, 1)):
        job.steps[0].work_ns[3 * (late % len(ranks))] += by_ns
        ends.append(simulated(job, [0]).step(0).end_ns[: 3 * len(ranks)].tolist())
    assert ends[0] == ends[1]


def test_nobody_waits_for_who_entered_after_it_had_left() -> None:
    ranks = [(0, 10, 0), (2, 10, 0), (100, 10, 0)]  # the third enters at 105, the others have left at 17
    step = joined(ranks, 1).steps[0]
    assert step.work_ns[[1, 4, 7]].tolist() == [8, 10, 10]  # from 7 to 15, from 7 to 17, from 105 to 115


def test_only_collectives_meet_in_one_event() -> None:
    meetings = [Meeting("m", 0, enters=True, leaves=True, joint=Joint.END_TO_BODY)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(join_ranks, "_MOST_PAIRED", 1)
        ranks = [rank_steps(f"rank{i}", {"a": (0, 5)}, bounds=(0, 5), meetings=meetings) for i in range(3)]
        assert len(recording(*ranks).steps[0]) == 3


def test_of_ranks_that_wait_for_each_other_in_one_moment_an_edge_is_left_out() -> None:
    # at 10 one rank goes from the second collective to the first, the other from the first to the second
    one, two = Meeting("one", 0, enters=True, leaves=True), Meeting("two", 0, enters=True, leaves=True)
    events = {"x": (0, 10), "y": (10, 20)}
    job = recording(
        rank_steps("rank0", events, [Edge(0, 1)], bounds=(0, 20), meetings=[two, one._replace(event=1)]),
        rank_steps("rank1", events, [Edge(0, 1)], bounds=(0, 20), meetings=[one, two._replace(event=1)]),
    )
    assert len(job.steps[0].edges) == 5  # of six


# -- exchanges: which ranks take part is not recorded


def exchanging(*ranks: list[tuple[int, int]]) -> Recording:
    """Return a step in which each rank's kernels move data from begin to end (us), with whom is unknown."""
    return recording(
        *(
            rank_steps(
                f"rank{number}",
                {f"SendRecv{i}": (1000 * begin, 1000 * end) for i, (begin, end) in enumerate(kernels)},
                bounds=(0, 1_000_000),
                meetings=[
                    Meeting("SendRecv", i, enters=True, leaves=True, rule=Rule.EXCHANGE, turn=i)
                    for i in range(len(kernels))
                ],
            )
            for number, kernels in enumerate(ranks)
        )
    )


def partners(found: Recording) -> set[frozenset[tuple[int, int]]]:
    """Return which kernels, as (rank, n-th of its kernels), wait for each other."""
    step = found.steps[0]
    first = [0, *np.cumsum(np.bincount(step.owner)).tolist()]
    named = [(owner, event - first[owner]) for event, owner in enumerate(step.owner.tolist())]
    return {
        frozenset((named[source], named[target]))
        for source, target in step.edges[:, :2].tolist()
        if step.owner[source] != step.owner[target]
    }


def test_ranks_of_a_pipeline_meet_whom_they_end_with() -> None:
    # rank 0 sends to 1 twice, which sends to 2 in between; the last one's kernel ends with nobody's
    found = exchanging([(0, 50), (60, 205)], [(10, 52), (60, 120), (130, 200)], [(0, 123), (300, 400)])
    pairs = {((0, 0), (1, 0)), ((0, 1), (1, 2)), ((1, 1), (2, 0))}
    assert partners(found) == {frozenset(pair) for pair in pairs}
    work = dict(zip([(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (2, 0)], found.steps[0].work_ns, strict=False))
    assert work[2, 0] == 63_000  # 60, when rank 1 began, to 123
    assert work[0, 1] == 75_000  # 130 to 205


def test_what_all_ranks_do_as_often_and_end_together_is_of_all() -> None:
    found = exchanging([(0, 50), (60, 90)], [(10, 52), (60, 93)], [(5, 54), (70, 95)])
    assert partners(found) == {
        frozenset(((a, n), (b, n))) for n in range(2) for a in range(3) for b in range(a)
    }
