"""The critical path of a recorded step, and the slack of all other events.

The path is walked backwards from the step's end on the rank that ends last: through an event's work to the
last input of its body, or to its start; from a start through the gap to its last input; until the step's
start. So it adds up to the step's duration, and no waiting lies on it: it runs through the awaited rank.
While a device works, the path follows the device and not its host.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from analyzer.base.arrays import Int64, Mask
from analyzer.base.arrays.intervals import innermost
from analyzer.base.arrays.numbering import ranges
from analyzer.model.graph.step_graph import StepGraph, operation_edges
from analyzer.reading.dialects.edge_rules import Rule
from analyzer.reading.dialects.system import Frames

#: `CriticalPath.event` of time that belongs to no event of the path.
NO_EVENT = -1
#: Categories of stretches: work, a gap in which nothing was recorded, a wait for ranks out of scope.
CATS = ("", "gap", "wait")
_, GAP, WAIT = CATS
_WORK, _GAP, _WAIT = range(3)
#: A gap that needs a name lasts this share of the path.
_LONG = 0.001


class _Inputs(NamedTuple):
    """The last inputs of starts (2 * event) and bodies (2 * event + 1), all (2n,)."""

    let_on_ns: Int64  # the time
    before: Int64  # the start or body, -1 for none
    rule: Int64  # -1 for none


class CriticalPath(Struct, frozen=True):
    """The critical path of a step: k stretches in time order, which add up to `length_ns`.

    A stretch is an event's work, the gap before it, or its wait for ranks out of scope.
    """

    owner: int  # whose step ends last
    begin_ns: int  # of that step
    length_ns: int
    event: Int64  # (k,) `NO_EVENT` for none
    operation: Int64  # (k,) `NO_EVENT` for none
    owners: Int64  # (k,)
    cat: Int64  # (k,) index into `CATS`
    start_ns: Int64  # (k,)
    end_ns: Int64  # (k,)
    rule: Int64  # (k,) the `Rule` of the edge by which the path enters the stretch, -1 for none

    @property
    def is_work(self) -> Mask:
        """Mask of the stretches that are work (k,)."""
        return np.equal(self.cat, _WORK)

    @property
    def is_gap(self) -> Mask:
        """Mask of the stretches that are gaps (k,)."""
        return np.equal(self.cat, _GAP)

    def gap_covers(
        self, frames: Sequence[Frames | None], recorded: StepGraph | None = None
    ) -> dict[int, tuple[str, bool]]:
        """Find the Python function, annotation or call around most of each long gap, by its stretch.

        The second value is True if the host only waits in it. `frames` are those of the recording's owners,
        and `recorded` is the step with its recorded times, if the path has others.
        """
        dur_ns = self.end_ns - self.start_ns
        long_ns = _LONG * float(dur_ns.sum())
        covers: dict[int, tuple[str, bool]] = {}
        for stretch in np.flatnonzero(self.is_gap & (dur_ns >= long_ns)).tolist():
            of_owner = frames[int(self.owners[stretch])] if frames else None
            if of_owner is not None:
                begin, end = int(self.start_ns[stretch]), int(self.end_ns[stretch])
                if recorded is not None:
                    begin, end = self._recorded_gap(stretch, recorded)
                name, waits = of_owner.during(begin, end)
                if name:
                    covers[stretch] = name, waits
        return covers

    def _recorded_gap(self, stretch: int, recorded: StepGraph) -> tuple[int, int]:
        """Find begin and end of a gap as recorded: before its event, or at an end of the owner's step."""
        event, owner = int(self.event[stretch]), int(self.owners[stretch])
        if event == NO_EVENT:
            ends = recorded.begin_ns if stretch == 0 else recorded.end_of_owners_ns
            end = int(ends[owner])
            return end - int(self.end_ns[stretch] - self.start_ns[stretch]), end
        end = int(recorded.start_ns[event])
        return end - int(recorded.gap_ns[event]), end


def critical_path(step: StepGraph, owners: Sequence[int] | None = None) -> CriticalPath:
    """Find the critical path among the events of `owners` (None: all).

    It covers the step of the owner that ends last. If the path reaches an owner that began its step later,
    the time before that is a gap. Waits for ranks out of `owners` are stretches of category `WAIT`.
    """
    return CriticalPaths(step, [range(len(step.begin_ns)) if owners is None else owners]).path(0)


class CriticalPaths:
    """The critical paths of disjoint parts of a step's owners; they share the inputs of all events."""

    def __init__(self, step: StepGraph, parts: Sequence[Sequence[int]]) -> None:
        self.step, self.parts = step, parts
        self._ends_ns = step.end_of_owners_ns

    def length_ns(self, part: int) -> int:
        """Length of the path of a part."""
        _, begin, end = self._span(part)
        return end - begin

    def path(self, part: int) -> CriticalPath:
        """Find the path of a part (see `critical_path`)."""
        step = self.step
        owner, begin, end = self._span(part)
        last, last_end = _last_event(step, owner)
        nodes = np.array(_walk(self._inputs, 2 * last + 1, last_end, begin), np.int64)
        event, is_body = np.divmod(nodes, 2)
        entered = np.where(is_body, step.end_ns[event], step.start_ns[event])
        through = entered - np.where(is_body, step.work_ns[event], step.gap_ns[event])
        left, _, rule = (column[nodes] for column in self._inputs)
        begins_at_once = (is_body[:-1] == 1) & (step.gap_ns[event[:-1]] == 0) & (event[1:] == event[:-1])
        rule[:-1] = np.where(begins_at_once & (rule[:-1] < 0), rule[1:], rule[:-1])  # the edge into its start
        n = len(event)
        # Backwards: the time after the last event, the work or gap and the wait of each node, and the start.
        stretches = np.empty((7, 2 * n + 2), np.int64)
        stretches[:, 0] = NO_EVENT, NO_EVENT, owner, _GAP, last_end, end, -1
        names = event, step.operation[event], step.owner[event]
        stretches[:, 1:-1:2] = *names, np.where(is_body, _WORK, _GAP), through, entered, rule
        stretches[:, 2:-1:2] = *names, np.full(n, _WAIT), left, through, np.full(n, -1)
        first, until = (step.owner[event[-1]], left[-1]) if n else (owner, begin)
        stretches[:, -1] = NO_EVENT, NO_EVENT, first, _GAP, begin, until, -1
        stretches[4] = np.maximum(stretches[4], begin)
        stretches = stretches[:, stretches[5] > stretches[4]][:, ::-1]
        return CriticalPath(owner, begin, end - begin, *_beside_devices(step, stretches))

    @cached_property
    def _inputs(self) -> _Inputs:
        part = np.full(len(self._ends_ns), -1)
        for number, owners in enumerate(self.parts):
            part[list(owners)] = number
        return _last_inputs(self.step, part[self.step.owner])

    def _span(self, part: int) -> tuple[int, int, int]:
        """Find the owner of a part that ends last, and begin and end of its step."""
        owner = max(self.parts[part], key=lambda owner: (int(self._ends_ns[owner]), -owner))
        return owner, int(self.step.begin_ns[owner]), int(self._ends_ns[owner])


def _last_inputs(step: StepGraph, part: Int64) -> _Inputs:
    """Find the last input of each event's start and body within its part (n,), which is -1 for none.

    A body that waited for nothing since its start has the start as its last input. An event without a
    recorded input has -1, at the begin of its owner's step. A transfer's body also waits for the previous
    transfer of its link.
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
    last = np.flatnonzero(when == let_on_ns[target])[::-1]  # the first edge is written last
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
    return _Inputs(let_on_ns, before, rule)


def _beside_devices(step: StepGraph, stretches: Int64) -> Int64:
    """Replace the host's work and the gaps of a path (7, k) where the rank's device works at that time.

    So the host has no more of the path than its device idles, which is all that a faster host can save.
    """
    works = step.on_device[step.work_ns[step.on_device] > 0]
    if not len(works):
        return stretches
    event, _, owner, cat, begin, end, _ = stretches
    is_beside = (event >= 0) & (cat != _WAIT) & ((cat == _GAP) | ~np.isin(event, works))
    begun = step.end_ns[works] - step.work_ns[works]
    row, busy, idle = innermost(begun, step.end_ns[works], step.owner[works])  # what began last counts
    works = works[row]
    stretch, segment = ranges(np.searchsorted(end, busy, side="right"), np.searchsorted(begin, idle))
    replaced = is_beside[stretch] & (owner[stretch] == step.owner[works[segment]])
    stretch, segment = stretch[replaced], segment[replaced]
    device = stretches[:, stretch]
    device[0], device[1] = works[segment], step.operation[works[segment]]
    device[3], device[6] = _WORK, Rule.BUSY
    device[4], device[5] = np.maximum(begin[stretch], busy[segment]), np.minimum(end[stretch], idle[segment])
    # Stretches do not overlap, so the n-th begin and the n-th end of what remains belong together.
    begin, end = np.sort(np.append(begin, device[5])), np.sort(np.append(end, device[4]))
    remaining = stretches[:, np.searchsorted(stretches[4], begin, side="right") - 1]
    remaining[4], remaining[5] = begin, end
    pieces = np.concatenate([remaining[:, end > begin], device], axis=1)
    pieces = pieces[:, np.argsort(pieces[4])]
    continues = (np.diff(pieces[0]) == 0) & (pieces[6, 1:] == Rule.BUSY) & (pieces[4, 1:] == pieces[5, :-1])
    first = np.flatnonzero(np.append(True, ~continues))
    pieces[5, first] = pieces[5, np.append(first[1:] - 1, -1)]
    return pieces[:, first]


def _last_event(step: StepGraph, owner: int) -> tuple[int, int]:
    """Find the last event before an owner's next step, and its end; else `NO_EVENT` and the step's begin."""
    last = step.last[step.owner[step.last] == owner]
    if not len(last):
        return NO_EVENT, int(step.begin_ns[owner])
    event = int(last[np.argmax(step.end_ns[last])])
    return event, int(step.end_ns[event])


def _walk(inputs: _Inputs, node: int, now_ns: int, begin: int) -> list[int]:
    """List the starts and bodies of a path backwards from one of them, until `begin`."""
    # Memoryviews yield Python's own numbers: twice as fast.
    let_on_ns, befores = inputs.let_on_ns.data, inputs.before.data
    nodes = []
    while now_ns > begin and node >= 0:
        nodes.append(node)
        now_ns, node = let_on_ns[node], befores[node]
    return nodes
