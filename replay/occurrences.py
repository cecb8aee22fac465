"""The same event in other steps and on other ranks, and what is usual of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from dag.step_graph import Recording, StepGraph
from dialects.step_windows import turns
from formats.columns import Int64


def slots(steps: Sequence[StepGraph]) -> list[Int64]:
    """Return for the events of each step what they are: the n-th event of their operation in its step.

    Two events of different steps are the same where their numbers are. Numbers have no gap.
    """
    n = 1 + max((int(step.operation.max(initial=-1)) for step in steps), default=-1)
    most = np.zeros(n, np.int64)  # of each operation, the events in a step
    for step in steps:
        np.maximum(most, np.bincount(step.operation, minlength=n), out=most)
    first = np.cumsum(most) - most
    return [first[step.operation] + turns(step.operation) for step in steps]


def numbered(first: Int64, second: Int64) -> Int64:
    """Return a number for each pair of values (n,), the same for equal pairs, from 0 without a gap."""
    pair = first * (int(second.max(initial=0)) + 1) + second
    number: Int64 = np.unique(pair, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return number


def medians(group: Int64, value: Int64, n_groups: int) -> Int64:
    """Return the median of the values (n,) of each group, rounded down; 0 for a group without any."""
    order = np.lexsort((value, group))
    return _middles(value[order], np.bincount(group, minlength=n_groups))


def _middles(ordered: Int64, count: Int64) -> Int64:
    """Return the median of each group of values, which lie in order, group by group; 0 for none."""
    ends = np.cumsum(count)
    values = np.append(ordered, 0)
    low, high = ends - count + np.maximum(count - 1, 0) // 2, ends - count + count // 2
    middle = (values[np.minimum(low, len(ordered))] + values[np.minimum(high, len(ordered))]) // 2
    return np.where(count > 0, middle, 0)


def usual(column: str, steps: Sequence[StepGraph], number: Sequence[Int64]) -> Int64:
    """Return the median of a column (``gap_ns``, ``work_ns``) over the steps of each slot (see `slots`)."""
    values = np.concatenate([getattr(step, column) for step in steps])
    return medians(np.concatenate(number), values, _n_slots(number))


def usual_of_others(
    column: str, steps: Sequence[StepGraph], number: Sequence[Int64], rows: Iterable[int]
) -> Iterator[tuple[int, Int64]]:
    """Yield each of `rows` with what `usual` gives over all other steps; -1 for slots of this step alone."""
    group = np.concatenate(number)
    values = np.concatenate([getattr(step, column) for step in steps])
    of = np.repeat(np.arange(len(steps), dtype=np.int32), [len(step) for step in steps])
    order = np.lexsort((values, group))
    group, values, of = group[order], values[order], of[order]
    del order
    for row in rows:
        others = of != row
        count = np.bincount(group[others], minlength=_n_slots(number))
        yield row, np.where(count > 0, _middles(values[others], count), -1)


def _n_slots(number: Sequence[Int64]) -> int:
    return 1 + max(int(one.max(initial=0)) for one in number)


def with_usual_gaps(recording: Recording) -> Recording:
    """Return the recording with gaps no longer than usual: the median of the event's over the steps.

    What delayed an event once (another process, a page fault) says nothing about a job that was not run.
    """
    if not recording.steps:
        return recording
    number = slots(recording.steps)
    gaps = usual("gap_ns", recording.steps, number)
    steps = [
        replace(step, gap_ns=np.minimum(step.gap_ns, gaps[one]))
        for step, one in zip(recording.steps, number, strict=True)
    ]
    return replace(recording, steps=steps)
