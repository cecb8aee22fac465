"""The same event in other steps, and its usual times."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from analyzer.base.arrays import Float64, Int64, NDArray
from analyzer.base.arrays.numbering import narrowest, occurrence_number
from analyzer.model.graph.step_graph import Recording, StepGraph

#: Largest number of cells in a lookup table for each cell in use, which limits memory.
_SPARSE = 4
#: Number of slots whose times are gathered together, which limits memory.
_AT_ONCE = 1 << 13


def slots(steps: Sequence[StepGraph]) -> list[Int64]:
    """Identify the events of each step by a number for operation and occurrence.

    Events of different steps with the same number are the same.
    """
    if not steps:
        return []
    repeats, nths = [], []
    for step in steps:
        events = np.flatnonzero((np.bincount(step.operation) > 1)[step.operation])
        nth = occurrence_number(step.operation[events])
        repeats.append(events[nth > 0])
        nths.append(nth[nth > 0])
    n_operations = 1 + max(int(step.operation.max(initial=0)) for step in steps)
    operation = np.concatenate(
        [step.operation[of_step] for step, of_step in zip(steps, repeats, strict=True)]
    )
    further = n_operations + pair_numbers(operation, np.concatenate(nths))
    numbers = []
    for step, of_step in zip(steps, repeats, strict=True):
        number = step.operation
        if len(of_step):  # the columns of a step may be read-only
            number = number.copy()
            number[of_step], further = further[: len(of_step)], further[len(of_step) :]
        numbers.append(number)
    return numbers


def pair_numbers(first: NDArray[np.integer[Any]], second: NDArray[np.integer[Any]]) -> Int64:
    """Assign equal pairs of values (n,) equal numbers, from 0 without a gap."""
    pair = first.astype(np.int64) * (int(second.max(initial=0)) + 1) + second
    if int(pair.max(initial=0)) < _SPARSE * len(pair):
        is_taken = np.zeros(_SPARSE * len(pair), np.bool_)
        is_taken[pair] = True
        return (np.cumsum(is_taken) - 1)[pair]
    return np.unique(pair, return_inverse=True)[1].reshape(-1).astype(np.int64)


def medians(group: Int64, value: Int64, n_groups: int) -> Int64:
    """Median of the values (n,) of each group, rounded down; 0 for an empty group."""
    order = np.argsort(value)
    order = order[np.argsort(narrowest(group)[order], kind="stable")]
    ordered = np.append(value[order], 0)
    count = np.bincount(group, minlength=n_groups)
    first = np.cumsum(np.append(0, count))
    low, high = first[:-1] + np.maximum(count - 1, 0) // 2, first[:-1] + count // 2
    middle = (ordered[np.minimum(low, len(value))] + ordered[np.minimum(high, len(value))]) // 2
    return np.where(count > 0, middle, 0)


def usual(column: str, steps: Sequence[StepGraph], number: Sequence[Int64]) -> tuple[Int64, Int64]:
    """Count each slot (see `slots`), and take the median of its ``gap_ns`` or ``work_ns``."""
    n_slots = 1 + max((int(slot.max(initial=-1)) for slot in number), default=-1)
    count, middle = np.zeros((2, n_slots), np.int64)
    for begin in range(0, n_slots, _AT_ONCE):  # memory need not hold the times of all events at once
        chosen = [np.flatnonzero((slot >= begin) & (slot < begin + _AT_ONCE)) for slot in number]
        slot = np.concatenate([of_step[events] for of_step, events in zip(number, chosen, strict=True)])
        times = [getattr(step, column)[events] for step, events in zip(steps, chosen, strict=True)]
        n = min(_AT_ONCE, n_slots - begin)
        count[begin : begin + n] = np.bincount(slot - begin, minlength=n)
        middle[begin : begin + n] = medians(slot - begin, np.concatenate(times), n)
    return count, middle


def pace(works: Float64) -> Float64:
    """Time of all kinds of operations in each step (steps,) relative to their usual time.

    It is the median over kinds in every step, weighted by time; `works` (steps, k) has their times. Only a
    changed clock makes all kernels of a device slower alike.

    >>> pace(np.array([[30, 20, 10], [30, 20, 90], [33, 22, 11]])).round(3).tolist()
    [1.0, 1.0, 1.1]
    """
    works = works[:, (works > 0).all(axis=0)]
    if not works.size:
        return np.ones(len(works))
    usual = np.median(works, axis=0)
    ratio = works / usual
    order = np.argsort(ratio, axis=1)
    half = np.cumsum(usual[order], axis=1) >= usual.sum() / 2
    return np.take_along_axis(np.take_along_axis(ratio, order, 1), half.argmax(axis=1)[:, None], 1)[:, 0]


class UsualGaps:
    """Median gap of each event of a recording over its steps."""

    def __init__(self, recording: Recording) -> None:
        self._recorded = [(step.operation, step.gap_ns) for step in recording.steps]
        self._number = [recording.to_file(number) for number in slots(recording.steps)]
        self._gaps = usual("gap_ns", recording.steps, self._number)[1]

    def are_of(self, recording: Recording) -> bool:
        """Check whether a recording has the same events and gaps as the measured one."""
        measured = zip(recording.steps, self._recorded, strict=True)
        return all(step.operation is operation and step.gap_ns is gap for step, (operation, gap) in measured)

    def capped(self, row: int, step: StepGraph) -> StepGraph:
        """Limit the gaps of the step in a row to the usual ones."""
        return replace(step, gap_ns=np.minimum(step.gap_ns, self._gaps[self._number[row]]))


def with_usual_gaps(recording: Recording) -> Recording:
    """Limit gaps to the usual ones: the median of the event over the steps.

    A delay that happened once (another process, a page fault) need not happen in the edited job.
    """
    gaps = UsualGaps(recording)
    return recording.with_steps(itertools.starmap(gaps.capped, enumerate(recording.steps)))
