"""The same event in other steps and on other ranks, and what is usual of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dag.step_graph import Recording, StepGraph
from dialects.step_windows import turns
from formats.columns import Int64

#: A table of slots and steps in which fewer than one place in so many is taken is not worth its memory.
_SPARSE = 4


def slots(steps: Sequence[StepGraph]) -> list[Int64]:
    """Return for the events of each step what they are: the n-th event of their operation in its step.

    Two events of different steps are the same where their numbers are.
    """
    if not steps:
        return []
    again = [_again(step.operation) for step in steps]
    n_operations = 1 + max(int(step.operation.max(initial=0)) for step in steps)
    operation = np.concatenate([step.operation[own] for step, (own, _) in zip(steps, again, strict=True)])
    further = n_operations + numbered(operation, np.concatenate([nth for _, nth in again]))
    found = []
    for step, (own, _) in zip(steps, again, strict=True):
        number = step.operation
        if len(own):
            number = number.copy()
            number[own], further = further[: len(own)], further[len(own) :]
        found.append(number)
    return found


def _again(operation: Int64) -> tuple[Int64, Int64]:
    """Return the events that are not the first of their operation in their step, and which they are."""
    events = np.flatnonzero((np.bincount(operation) > 1)[operation])
    nth = turns(operation[events])
    return events[nth > 0], nth[nth > 0]


def numbered(first: NDArray[np.integer[Any]], second: NDArray[np.integer[Any]]) -> Int64:
    """Return a number for each pair of values (n,), the same for equal pairs, from 0 without a gap."""
    pair = first.astype(np.int64) * (int(second.max(initial=0)) + 1) + second
    number: Int64 = np.unique(pair, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return number


def medians(group: Int64, value: Int64, n_groups: int) -> Int64:
    """Return the median of the values (n,) of each group, rounded down; 0 for a group without any."""
    order = np.lexsort((value, group))
    ordered = np.concatenate([value[order], [0]])
    first = np.searchsorted(group[order], np.arange(n_groups + 1))
    count = np.diff(first)
    low, high = first[:-1] + np.maximum(count - 1, 0) // 2, first[:-1] + count // 2
    middle = (ordered[np.minimum(low, len(value))] + ordered[np.minimum(high, len(value))]) // 2
    return np.where(count > 0, middle, 0)


def usual(
    column: str, steps: Sequence[StepGraph], number: Sequence[Int64], *, without: int | None = None
) -> Int64:
    """Return the median of a column (``gap_ns``, ``work_ns``) of each slot (see `slots`), -1 for none.

    Over all steps, or all but one.
    """
    kept = [row for row in range(len(steps)) if row != without]
    n_slots = 1 + max(int(one.max(initial=0)) for one in number)
    count = sum((np.bincount(number[row], minlength=n_slots) for row in kept), np.zeros(n_slots, np.int64))
    if n_slots * len(kept) > _SPARSE * count.sum():
        group = np.concatenate([number[row] for row in kept])
        middle = medians(group, np.concatenate([getattr(steps[row], column) for row in kept]), n_slots)
    else:  # a slot has at most one event in a step
        longest = max(int(getattr(steps[row], column).max(initial=0)) for row in kept)
        dtype = np.int32 if longest < np.iinfo(np.int32).max else np.int64
        table = np.full((n_slots, len(kept)), np.iinfo(dtype).max, dtype)
        for place, row in enumerate(kept):
            table[number[row], place] = getattr(steps[row], column)
        table.sort(axis=1)
        every, last = np.arange(n_slots), np.maximum(count - 1, 0)
        middle = (table[every, last // 2].astype(np.int64) + table[every, last - last // 2]) // 2
    return np.where(count > 0, middle, -1)


class UsualGaps:
    """The median of the gap of each event of a recording over its steps."""

    def __init__(self, recording: Recording) -> None:
        self._number = slots(recording.steps)
        self._gaps = usual("gap_ns", recording.steps, self._number) if recording.steps else np.empty(0)
        self._made_of = [(step.operation, step.gap_ns) for step in recording.steps]

    def are_of(self, recording: Recording) -> bool:
        """Whether a recording has the events and gaps of the one that this was made of."""
        return all(
            step.operation is operation and step.gap_ns is gap_ns
            for step, (operation, gap_ns) in zip(recording.steps, self._made_of, strict=True)
        )

    def limit(self, row: int, step: StepGraph) -> StepGraph:
        """Return the step in a row of the recording with gaps no longer than usual."""
        return replace(step, gap_ns=np.minimum(step.gap_ns, self._gaps[self._number[row]]))


def with_usual_gaps(recording: Recording) -> Recording:
    """Return the recording with gaps no longer than usual: the median of the event's over the steps.

    What delayed an event once (another process, a page fault) says nothing about a job that was not run.
    """
    gaps = UsualGaps(recording)
    return replace(recording, steps=[gaps.limit(row, step) for row, step in enumerate(recording.steps)])
