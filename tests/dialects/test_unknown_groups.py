"""Groups of ranks that no recording names: those that fit what all ranks did, and when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from dag.join_ranks import join
from dialects.step_parts import Kind, Meeting, RankSteps
from dialects.unknown_groups import Among, Group
from make import rank_steps

MS = 1_000_000
ALL = (0, 1, 2, 3)
#: Of each rank: thread, begin and end (ms) of what it does with others.
Done = Sequence[tuple[int, int, int]]


def rank(number: int, groups: Sequence[tuple[int, ...]], done: Done, *, all_wait: bool = True) -> RankSteps:
    """Return a step of a rank with its groups; what is done among all has the same key as without groups."""
    keyed = tuple(Group("reduce" if group == ALL else ("reduce", group), group) for group in groups)
    threads = [thread for thread, _, _ in done]
    meetings = [
        Meeting(
            Among(thread, keyed, all_wait) if groups else "reduce",
            event,
            enters=True,
            leaves=True,
            turn=threads[:event].count(thread) if groups else event,
        )
        for event, thread in enumerate(threads)
    ]
    events = {f"reduce {event}": (begin * MS, end * MS) for event, (_, begin, end) in enumerate(done)}
    steps = rank_steps(f"rank{number}", events, bounds=(0, 100 * MS), meetings=meetings)
    return replace(steps, rank=number)


def met(ranks: Sequence[RankSteps]) -> list[set[tuple[int, ...]]]:
    """Return of each rank's events, in their order, which ranks they wait for."""
    step = join(ranks).steps[0]
    edges = step.edges[step.edges[:, 3] == Kind.GROUP]
    found: list[set[tuple[int, ...]]] = []
    for owner in range(len(ranks)):
        events = np.flatnonzero(step.owner == owner)
        waits = [np.unique(step.owner[edges[edges[:, 1] == event, 0]]).tolist() for event in events]
        found.append({(event, *others) for event, others in enumerate(waits)})
    return found


#: Twice with the neighbour, of whom 3 is late, and then once with the one of the other pair.
TWO_WAYS: Mapping[int, Done] = {
    0: [(4, 10, 20), (5, 30, 40), (7, 50, 90)],
    1: [(4, 11, 20), (5, 31, 40), (7, 51, 95)],
    2: [(4, 10, 61), (5, 70, 80), (7, 89, 90)],
    3: [(4, 60, 61), (5, 71, 80), (7, 94, 95)],
}


def neighbours(number: int) -> list[tuple[int, ...]]:
    low = number // 2 * 2
    return [ALL, (low, low + 1), (number % 2, number % 2 + 2)]


def test_threads_are_those_of_the_groups_whose_ranks_do_the_same_at_the_same_time() -> None:
    ranks = [rank(number, neighbours(number), done) for number, done in TWO_WAYS.items()]
    assert met(ranks) == [
        {(0, 1), (1, 1), (2, 2)},
        {(0, 0), (1, 0), (2, 3)},
        {(0, 3), (1, 3), (2, 0)},
        {(0, 2), (1, 2), (2, 1)},
    ]


@pytest.mark.parametrize(
    "lost", [[(4, 60, 61), (5, 71, 80)], [(4, 60, 61), (5, 71, 80), (7, 91, 95), (6, 96, 97)]]
)
def test_where_no_groups_fit_all_ranks_nobody_is_waited_for(lost: Done) -> None:
    ranks = [rank(number, neighbours(number), done) for number, done in {**TWO_WAYS, 3: lost}.items()]
    assert met(ranks) == [
        {(event,) for event in range(len(done))} for done in ({**TWO_WAYS, 3: lost}).values()
    ]


def test_a_group_that_is_made_and_not_used_changes_nothing() -> None:
    done = [(4, 10, 40), (5, 50, 60)]
    others = rank(2, [], done), rank(3, [], [(8, 39, 40), (9, 51, 60)])
    ranks = [*(rank(number, [ALL, (0, 1)], done) for number in (0, 1)), *others]
    assert met(ranks) == [
        {(event, *(one for one in ALL if one != number)) for event in (0, 1)} for number in ALL
    ]


def test_what_some_do_besides_on_threads_of_its_own_shifts_nothing_of_what_all_do() -> None:
    done = [(4, 10, 40), (8, 41, 42), (5, 50, 60)]
    ranks = [rank(number, [ALL, (0, 1)], done) for number in (0, 1)]
    ranks += [rank(number, [], [done[0], done[2]]) for number in (2, 3)]
    found = met(ranks)
    assert found[0] == {(0, 1, 2, 3), (1, 1), (2, 1, 2, 3)}
    assert found[3] == {(0, 0, 1, 2), (1, 0, 1, 2)}


@pytest.mark.parametrize("all_wait", [False, True])
def test_who_sends_to_all_may_be_through_before_they_come(all_wait: bool) -> None:
    groups = [(0, 1), (0, 1, 2)]
    one, other = (rank(i, groups, [(4, 10 * i, 10 * i + 1)], all_wait=all_wait) for i in (0, 1))
    assert met([one, other])[1] == ({(0,)} if all_wait else {(0, 0)})
