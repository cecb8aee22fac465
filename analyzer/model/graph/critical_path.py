"""The critical path of a recorded step, and the slack of all other events.

The path is walked backwards from the step's end on the rank that ends last: through an event's work to
what let it go on last, or to its start; from a start through the gap before it to the input that ended
last; until the step's start. So it adds up to the step's duration, and nobody's waiting lies on it: the
path runs through whoever was waited for. While a device works the path follows that, whatever its host does.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from analyzer.base.arrays import Int64, Mask
from analyzer.base.arrays.numbering import unique
from analyzer.model.graph.step_graph import StepGraph, operation_edges
from analyzer.reading.dialects.edge_rules import Rule
from analyzer.reading.dialects.system import Frames

#: `CriticalPath.event` of time that belongs to no event of the path.
NO_EVENT = -1
#: What a gap before an event is called, in which nothing was recorded, and a wait for what is out of scope.
GAP, WAIT = "gap", "wait"
#: Categories of stretches; the first is work.
CATS = ("", GAP, WAIT)
_WORK, _GAP, _WAIT = range(3)
#: A gap that needs a name lasts this share of the path.
_LONG = 0.001


class Inputs(NamedTuple):
    """The last input of each start (2 * event) and body (2 * event + 1), (2n,); see `_last_inputs`."""

    let_on_ns: Int64
    before: Int64
    rule: Int64


class CriticalPath(Struct, frozen=True):
    """The critical path of a step: k stretches in time order, which add up to `length_ns`.

    A stretch is an event's work, the gap before it, or its wait for ranks out of scope.

    Attributes
    ----------
    owner, begin_ns : the owner whose step ends last, and when that step begins
    event, operation : (k,) of the step; `NO_EVENT` for none
    owners : (k,) of the stretches
    cat : (k,) a number of `CATS`
    start_ns, end_ns : (k,)
    rule : (k,) the `Rule` of the edge by which the path enters the stretch, -1 for none
    """

    owner: int
    begin_ns: int
    length_ns: int
    event: Int64
    operation: Int64
    owners: Int64
    cat: Int64
    start_ns: Int64
    end_ns: Int64
    rule: Int64

    @property
    def is_work(self) -> Mask:
        """Marks the stretches that are work of an event (k,)."""
        return np.equal(self.cat, _WORK)

    @property
    def is_gap(self) -> Mask:
        """Marks the stretches that are gaps, in which nothing was recorded (k,)."""
        return np.equal(self.cat, _GAP)

    def gap_covers(self, frames: Sequence[Frames | None]) -> dict[int, tuple[str, bool]]:
        """Find the Python function, annotation or call around most of each long gap, by its stretch.

        `frames` are those of the recording's owners. The second value is whether the host only waits in it.
        Gaps without such a cover are left out.
        """
        if not any(frames):
            return {}
        dur_ns = self.end_ns - self.start_ns
        long_ns = _LONG * float(dur_ns.sum())
        covers: dict[int, tuple[str, bool]] = {}
        for stretch in np.flatnonzero(self.is_gap & (dur_ns >= long_ns)).tolist():
            of_owner = frames[int(self.owners[stretch])]
            if of_owner is not None:
                name, waits = of_owner.during(int(self.start_ns[stretch]), int(self.end_ns[stretch]))
                if name:
                    covers[stretch] = name, waits
        return covers


def critical_path(step: StepGraph, owners: Sequence[int] | None = None) -> CriticalPath:
    """Return the critical path of `step`, among the events of `owners` (None: all).

    It covers the step of the owner that ends last, from its start to its end. Where the path reaches
    another owner that began its step later, the time before that is a gap. With a part of the owners,
    what these wait for others is a stretch of category `WAIT`.
    """
    return CriticalPaths(step, [range(len(step.begin_ns)) if owners is None else owners]).path(0)


class CriticalPaths:
    """The critical paths among several parts of a step's owners, none of whom is in two of them.

    What each event waited for is worked out once for all parts, when the first path is asked for.
    """

    def __init__(self, step: StepGraph, parts: Sequence[Sequence[int]]) -> None:
        self.step, self.parts = step, parts
        self._ends_ns = step.end_of_owners_ns

    def length_ns(self, part: int) -> int:
        """Length of the path of a part."""
        _, begin, end = self._span(part)
        return end - begin

    def path(self, part: int) -> CriticalPath:
        """Return the path of a part (see `critical_path`)."""
        step = self.step
        owner, begin, end = self._span(part)
        last, over = _last_event(step, owner)
        nodes = np.array(_places(self._inputs, 2 * last + 1, over, begin), np.int64)
        event, is_body = np.divmod(nodes, 2)
        entered = np.where(is_body, step.end_ns[event], step.start_ns[event])
        through = entered - np.where(is_body, step.work_ns[event], step.gap_ns[event])
        left, _, rule = (column[nodes] for column in self._inputs)
        begins_at_once = (is_body[:-1] == 1) & (step.gap_ns[event[:-1]] == 0) & (event[1:] == event[:-1])
        rule[:-1] = np.where(begins_at_once & (rule[:-1] < 0), rule[1:], rule[:-1])  # the edge into its start
        n = len(event)
        # backwards: from the last event to the end, of each place its work or gap and its wait, the start
        stretches = np.empty((7, 2 * n + 2), np.int64)
        stretches[:, 0] = NO_EVENT, NO_EVENT, owner, _GAP, over, end, -1
        of = event, step.operation[event], step.owner[event]
        stretches[:, 1:-1:2] = *of, np.where(is_body, _WORK, _GAP), through, entered, rule
        stretches[:, 2:-1:2] = *of, np.full(n, _WAIT), left, through, np.full(n, -1)
        first, until = (step.owner[event[-1]], left[-1]) if n else (owner, begin)
        stretches[:, -1] = NO_EVENT, NO_EVENT, first, _GAP, begin, until, -1
        stretches[4] = np.maximum(stretches[4], begin)
        stretches = stretches[:, stretches[5] > stretches[4]][:, ::-1]
        return CriticalPath(owner, begin, end - begin, *_beside_devices(step, stretches))

    @cached_property
    def _inputs(self) -> Inputs:
        part = np.full(len(self._ends_ns), -1)
        for number, owners in enumerate(self.parts):
            part[list(owners)] = number
        return _last_inputs(self.step, part[self.step.owner])

    def _span(self, part: int) -> tuple[int, int, int]:
        """Return the owner of a part that ends last, and begin and end of its step."""
        owner = max(self.parts[part], key=lambda owner: (int(self._ends_ns[owner]), -owner))
        return owner, int(self.step.begin_ns[owner]), int(self._ends_ns[owner])


def _last_inputs(step: StepGraph, part: Int64) -> Inputs:
    """Return the last input of each event's start (2 * event) and body (2 * event + 1), within its part.

    Per start and body (2n,): the time, the start or body, and the `Rule` or -1. A body that waited for
    nothing since its start has that as its last input. An event without a recorded input has -1, at the
    start of its owner's step. A transfer's body also waits for the one before it on its link.
    `part` (n,) is -1 for events of no part.
    """
    edges = step.edges
    if (part != part[:1]).any():
        edges = edges[part[edges[:, 0]] == part[edges[:, 1]]]
    source, target = operation_edges(edges)
    times = np.column_stack([step.start_ns, step.end_ns]).reshape(-1)
    let_on_ns = np.full(len(times), np.iinfo(np.int64).min)
    before, rule = np.full(len(times), -1), np.full(len(times), -1)
    when = times[source]
    np.maximum.at(let_on_ns, target, when)
    last = np.flatnonzero(when == let_on_ns[target])[::-1]  # of several the first edge: it is written last
    before[target[last]], rule[target[last]] = source[last], edges[last, 3]
    served, then = step.bodies_on_links().T
    later = (part[served // 2] == part[then // 2]) & (times[served] > let_on_ns[then])
    served, then = served[later], then[later]
    let_on_ns[then], before[then], rule[then] = times[served], served, Rule.LINK
    begin = step.begin_ns[step.owner]
    for half, earliest, instead in ((0, begin, -1), (1, step.start_ns, 2 * np.arange(len(step)))):
        early = let_on_ns[half::2] <= earliest
        let_on_ns[half::2] = np.where(early, earliest, let_on_ns[half::2])
        before[half::2] = np.where(early, instead, before[half::2])
        rule[half::2][early] = -1
    return Inputs(let_on_ns, before, rule)


def _beside_devices(step: StepGraph, stretches: Int64) -> Int64:
    """Replace what a path's stretches (7, k) have of a host, and of gaps, while its device works by that.

    So the host has no more of the path than its device idles, which is all that a faster host can save.
    """
    works = step.on_device[step.work_ns[step.on_device] > 0]
    if not len(works):
        return stretches
    event, _, owner, cat, *_ = stretches
    is_beside = (event >= 0) & (cat != _WAIT) & ((cat == _GAP) | ~np.isin(event, works))
    parts = [stretches[:, ~is_beside]]
    for rank in unique(owner[is_beside]).tolist():
        beside = stretches[:, is_beside & (owner == rank)]
        parts.append(_replaced(step, beside, works[step.owner[works] == rank]))
    pieces = np.concatenate(parts, axis=1)
    return pieces[:, np.argsort(pieces[4], kind="stable")]


def _replaced(step: StepGraph, stretches: Int64, works: Int64) -> Int64:
    """Replace stretches (7, k) of a rank, in order, by the `works` of its device while these run.

    Of several at a time it is the one that began last, or else the one that ends last.
    """
    works = works[np.argsort(step.end_ns[works] - step.work_ns[works], kind="stable")]
    begin_ns, end_ns = step.end_ns[works] - step.work_ns[works], np.append(step.end_ns[works], 0)
    longest_ns = np.maximum.accumulate(end_ns)
    longest = np.maximum.accumulate(np.where(end_ns == longest_ns, np.arange(len(end_ns)), 0))
    moments = unique(np.concatenate([stretches[4], begin_ns, end_ns[:-1]]))
    within = np.searchsorted(stretches[4], moments, side="right") - 1
    is_within = (within >= 0) & (moments < stretches[5, within])
    moments, pieces = moments[is_within], stretches[:, within[is_within]]
    pieces[4], pieces[5] = moments, np.minimum(np.append(moments[1:], pieces[5, -1:]), pieces[5])
    begun = np.searchsorted(begin_ns, moments, side="right") - 1
    running = np.where(end_ns[begun] > moments, begun, longest[begun])
    busy = np.flatnonzero((begun >= 0) & (end_ns[running] > moments))
    works = works[running[busy]]
    pieces[0, busy], pieces[1, busy], pieces[3, busy], pieces[6, busy] = (
        works, step.operation[works], _WORK, Rule.BUSY,
    )  # fmt: skip
    goes_on = (np.diff(pieces[0]) == 0) & (pieces[6, 1:] == Rule.BUSY) & (pieces[4, 1:] == pieces[5, :-1])
    first = np.flatnonzero(np.append(True, ~goes_on)[: len(moments)])
    last = np.append(first[1:], len(moments)) - 1
    return np.concatenate([pieces[:5, first], pieces[5:6, last], pieces[6:, first]])


def _last_event(step: StepGraph, owner: int) -> tuple[int, int]:
    """Return the event that an owner's next step waited for, and its end; else `NO_EVENT` and the start."""
    last = step.last[step.owner[step.last] == owner]
    if not len(last):
        return NO_EVENT, int(step.begin_ns[owner])
    event = int(last[np.argmax(step.end_ns[last])])
    return event, int(step.end_ns[event])


def _places(inputs: Inputs, node: int, now_ns: int, begin: int) -> list[int]:
    """Return the starts and bodies by which a path goes back from one of them, until `begin`."""
    let_on_ns, befores = (
        column.data for column in inputs[:2]
    )  # whose numbers are Python's own: twice as fast
    nodes = []
    while now_ns > begin and node >= 0:
        nodes.append(node)
        now_ns, node = let_on_ns[node], befores[node]
    return nodes
