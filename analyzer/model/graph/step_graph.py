"""`StepGraph`: one recorded step of a job as the graph that is drawn, walked and simulated.

The nodes are events: what ran, on every rank. Each has its recorded interval, its *work* (what it needed
itself), its *wait* (for others, after its start) and its *gap* (from its last input to its start, which
nothing explains). These three follow from the times and the edges, so that replaying a step with its own
work and gaps gives the recorded times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from analyzer.base.arrays import Float64, Int64, Mask
from analyzer.base.arrays.distributions import n_warm_up
from analyzer.base.arrays.intervals import overlap_groups
from analyzer.base.arrays.numbering import numbered, places_by_value, unique
from analyzer.base.arrays.spill import Spill
from analyzer.base.errors import NoteKind, TraceError, listed, notes_of, number_ranges
from analyzer.base.units import LazySequence
from analyzer.reading.dialects.step_parts import Joint, Operation, OperationTable, from_start
from analyzer.reading.dialects.system import Frames

#: About what the columns of a step need for each event.
_EVENT_BYTES = 64
#: The link of an operation that occupies none.
NO_LINK = -1


class StepGraph(Struct, frozen=True):
    """The n events of one step of all m owners, on one clock, and why one waits for another.

    Behind all others come the meetings of many owners (`Role.MEETING`): who leaves waits for the meeting, and
    the meeting for those who enter. Numbers of events, operations and owners have 32 bits.
    """

    number: int  # the step's own in the recording
    operation: Int64  # (n,) index into `Recording.operations`
    owner: Int64  # (n,) index into `Recording.owners`
    link: Int64  # (n,) index into `Recording.links`, or `NO_LINK`
    start_ns: Int64  # (n,) as recorded, except `held` transfers
    end_ns: Int64  # (n,)
    edges: Int64  # (e, 4) source, target, `Joint`, `Rule`; none contradicts the recorded times
    work_ns: Int64  # (n,) the last part of the event, in which it waited for nothing
    gap_ns: Int64  # (n,) from the event's last input to its start
    begin_ns: Int64  # (m,) of each owner's step
    next_ns: Int64  # (m,) begin of each owner's next step; -1 where unknown
    tail_ns: Int64  # (m,) from the last event that delays the next step to the begin of that; 0 where unknown
    last: Int64  # events that end before the next step of their owner begins
    on_device: Int64  # events that ran on a device
    turn: Int64  # (n,) the order in which links served the transfers
    #: (k, 2) transfers of one link; the second could have begun earlier but was served after the first. With
    #: several in flight the network chooses their order.
    overtaken: Int64
    #: (n,) transfers recorded from when the link served them, not from when they were asked for, which
    #: `start_ns` is: they have no gap but wait for the link.
    held: Mask
    continued: Int64  # (c, 2) event of the step before, and the event here that is its remainder
    #: (k, 4) event of an earlier step, device work of this one that it launched or precedes, `Joint`, and the
    #: number of steps between them.
    across: Int64

    def __len__(self) -> int:
        return len(self.operation)

    @property
    def lead_ns(self) -> Int64:
        """Time from the begin of the earliest owner's step to that of each owner (m,)."""
        return np.subtract(self.begin_ns, int(self.begin_ns.min()))

    @property
    def bounds(self) -> StepBounds:
        """The step without its events."""
        return StepBounds(self.number, self.begin_ns, self.next_ns)

    @property
    def last_end_ns(self) -> Int64:
        """End of the last event that delays each owner's next step (m,); else the begin of its step."""
        end: Int64 = self.begin_ns.copy()
        np.maximum.at(end, self.owner[self.last], self.end_ns[self.last])
        return end

    @property
    def end_of_owners_ns(self) -> Int64:
        """End of the step of each owner (m,): as recorded, else that of its last event and tail."""
        return np.where(self.next_ns < 0, self.last_end_ns + self.tail_ns, self.next_ns)

    def events_by_owner(self, chosen: Mask) -> list[Int64]:
        """Split the events with `chosen` operations by owner (m)."""
        events = np.flatnonzero(chosen[self.operation])
        events = events[np.argsort(self.owner[events], kind="stable")]
        return np.split(events, np.searchsorted(self.owner[events], np.arange(1, len(self.begin_ns))))

    def turns(self, events: Int64) -> Int64:
        """Assign equal numbers to events that work at the same time."""
        return overlap_groups(self.end_ns[events] - self.work_ns[events], self.end_ns[events])

    def by_link(self) -> list[Int64]:
        """List the transfers of each link in the order in which it served them."""
        transfers = np.flatnonzero(self.link != NO_LINK)
        transfers = transfers[np.lexsort((self.start_ns[transfers], self.end_ns[transfers]))]
        return [transfers[served] for served in places_by_value(self.link[transfers])]

    def bodies_on_links(self) -> Int64:
        """Pair the bodies (2 * event + 1) of transfers that follow each other on a link (k, 2)."""
        pairs = [np.column_stack((served[:-1], served[1:])) for served in self.by_link()]
        return 2 * np.concatenate([np.empty((0, 2), np.int64), *pairs]) + 1

    def slack_ns(self) -> Int64:
        """Measure how much longer each event may take before the step ends later (n,).

        An event without successors in the step may last until the step's end.
        """
        ends = self.end_of_owners_ns
        until = int(ends.max(initial=0))
        latest = np.repeat(np.maximum(self.end_ns, until), 2)
        last_nodes = 2 * self.last + 1
        np.minimum.at(latest, last_nodes, (until - ends + self.last_end_ns)[self.owner[self.last]])
        latest[::2] = latest[1::2] - self.work_ns
        starts = 2 * np.arange(len(self), dtype=np.int32)
        source, target = operation_edges(self.edges)
        served, then = self.bodies_on_links().T
        _tighten(
            latest,
            np.column_stack([self.gap_ns, self.work_ns]).reshape(-1),
            np.concatenate([starts, source, served]),
            np.concatenate([starts + 1, target, then]),
        )
        return latest[1::2] - self.end_ns


def operation_edges(edges: Int64) -> tuple[Int64, Int64]:
    """Convert edges to sources and targets among starts (2 * event) and bodies (2 * event + 1)."""
    return 2 * edges[:, 0] + ~from_start(edges), 2 * edges[:, 1] + (edges[:, 2] >= Joint.END_TO_BODY)


def _tighten(latest_ns: Int64, cost_ns: Int64, source: Int64, target: Int64) -> None:
    """Lower the latest end of each node (n,) so that none of its successors by the edges (e,) is late.

    `cost_ns` (n,) are the durations of the nodes.
    """
    n = len(cost_ns)
    waits = np.bincount(source, minlength=n)
    free = np.flatnonzero(waits == 0).tolist()
    # Memoryviews yield Python's own numbers, as lists do, but lists would take 200 bytes more for each event.
    sources = source[np.argsort(target, kind="stable")].data
    bounds = np.cumsum(np.bincount(target + 1, minlength=n + 1)).data
    waiting, costs, latest = waits.data, cost_ns.data, latest_ns.data
    while free:
        node = free.pop()
        limit = latest[node] - costs[node]
        for before in sources[bounds[node] : bounds[node + 1]]:
            if limit < latest[before]:
                latest[before] = limit
            waiting[before] -= 1
            if waiting[before] == 0:
                free.append(before)
    assert not waits.any(), "the graph has a cycle"


class StepBounds(NamedTuple):
    """A step without its events: its number, `begin_ns` and `next_ns` as in `StepGraph`."""

    number: int
    begin_ns: Int64
    next_ns: Int64

    @property
    def iteration_ns(self) -> Int64:
        """Duration of the step for each owner (m,) in ns; -1 where unknown."""
        return np.where(self.next_ns < 0, -1, self.next_ns - self.begin_ns)

    @property
    def mean_ns(self) -> float:
        """Mean duration of the step over the owners where it is known, in ns; 0 without one."""
        known = self.iteration_ns[self.iteration_ns > 0]
        return float(known.mean()) if len(known) else 0.0


def job_lengths(bounds: Sequence[StepBounds]) -> Float64:
    """Measure the time from the last owner's end of one step to that of the next (steps,).

    So a step in which one owner is late is long itself, and not the next one, in which the others wait. If
    the step before is missing, the owner that ends last gives the begin. 0 where an end is unknown.
    """
    last = [(step, int(step.next_ns.argmax())) for step in bounds]
    ends = np.array([step.next_ns[owner] for step, owner in last], np.float64)
    begins = np.array([step.begin_ns[owner] for step, owner in last], np.float64)
    begins[1:] = np.where(np.diff([step.number for step in bounds]) == 1, ends[:-1], begins[1:])
    is_known = [bool((step.next_ns >= 0).all()) for step in bounds]
    return np.where(is_known, ends - begins, 0.0)


class LazySteps(LazySequence[StepGraph]):
    """Steps made on first access: with many ranks most options look at only one.

    At most `most` are kept; any other is made again. The columns of kept steps go to `spill`.
    """

    def __init__(
        self,
        bounds: Sequence[StepBounds],
        make: Callable[[int], StepGraph],
        most: int | None = None,
        spill: Spill | None = None,
    ) -> None:
        self._items = range(len(bounds))
        self.bounds, self.spill = bounds, spill
        self._make_step, self._most = make, most
        self._kept: dict[int, StepGraph] = {}

    def _make(self, row: int) -> StepGraph:
        if row not in self._kept:
            if self._most is not None and len(self._kept) >= self._most:
                del self._kept[next(iter(self._kept))]
            step = self._make_step(row)
            self._kept[row] = step if self.spill is None else self.spill.put(step)
        if self.spill is not None:
            self.spill.look_at(_EVENT_BYTES * len(self._kept[row]))
        return self._kept[row]

    def replaced(self, steps: Iterable[StepGraph]) -> LazySteps:
        """Keep other steps in the same `spill`; columns that are those of these steps stay where they are."""
        pairs = zip(self, steps, strict=True)
        kept = [step if self.spill is None else self.spill.put(step, before) for before, step in pairs]
        steps = LazySteps([step.bounds for step in kept], kept.__getitem__, spill=self.spill)
        steps._kept = dict(enumerate(kept))
        return steps


class Recording(Struct, frozen=True, dict=True):
    """The steps of a job, of m owners."""

    owners: Sequence[str]  # what runs its own sequence of steps: ``rank0``, ``wk0.rank1``
    workers: Sequence[int | None]  # (m,) None where the job has no workers
    ranks: Sequence[int | None]  # (m,) local to the worker
    links: Sequence[str]  # what carries one transfer at a time
    operations: OperationTable
    steps: Sequence[StepGraph]
    notes: Sequence[str] = ()  # a sentence each
    frames: Sequence[Frames | None] = ()  # (m,) what may cover the gaps, None where unknown; () for all
    step_kind: str = ""  # the work of the steps (``decode``), where the recording names it
    #: The two sides of the network that each link shares with others (-1: none); () without any.
    sides: Sequence[tuple[int, int]] = ()
    carries: Sequence[float] = ()  # of each side, the speed relative to the recording; () for 1
    clock_bounds_ns: Sequence[int] = ()  # (m,) largest error of the clock, 0 where unknown; () on one clock
    recorded: Recording | None = None  # the recording itself, if the steps are without its profiler's cost
    #: By how much the mean step may be shorter, and longer, than the likely one without the profiler.
    cost_ns: tuple[float, float] = (0.0, 0.0)
    clock_groups: Sequence[int] = ()  # (m,) equal for owners whose clocks are tied; () on one clock

    def edited(self, edit: Callable[[StepGraph], StepGraph]) -> Recording:
        """Apply `edit` to each step."""
        return self.with_steps(map(edit, self.steps))

    def with_steps(self, steps: Iterable[StepGraph]) -> Recording:
        """Replace the steps; the new ones are kept as these are, in memory or in a file."""
        recorded = self.steps
        return replace(
            self, steps=recorded.replaced(steps) if isinstance(recorded, LazySteps) else list(steps)
        )

    @property
    def as_recorded(self) -> Recording:
        """The recording with the profiler's cost."""
        return self if self.recorded is None else self.recorded

    def recorded_step(self, step: StepGraph) -> StepGraph:
        """Find the events of one of the steps with their recorded times; edited events have no others."""
        recorded = self.as_recorded
        row = next(row for row, bounds in enumerate(recorded.bounds) if bounds.number == step.number)
        return recorded.steps[row] if len(recorded.steps[row]) == len(step) else step

    def to_file(self, column: Int64) -> Int64:
        """Move a column of events to the file of the steps, where these have one."""
        spill = self.steps.spill if isinstance(self.steps, LazySteps) else None
        return column if spill is None else spill.put_arrays([column])[0]

    @property
    def one_step(self) -> str:
        """A step at the beginning of a sentence: "A step", "A decode step"; "The recording" without marks."""
        return f"A {self.step_kind} step".replace("  ", " ") if self.has_steps else "The recording"

    @property
    def has_steps(self) -> bool:
        """True if steps are marked; else the whole recording stands for one."""
        return len(self.steps) > 1 or not notes_of(NoteKind.UNMARKED, self.notes)

    @property
    def unaligned(self) -> str:
        """The reason why moments of different owners cannot be compared; "" where their clocks are tied."""
        return listed(notes_of(NoteKind.UNALIGNED, self.notes), 1)

    def untied(self, owners: Sequence[str]) -> str:
        """Say why the clock of one of `owners`, or of all, is tied to no other; "" where each is."""
        groups = dict(zip(self.owners, self.clock_groups, strict=False))
        asked = groups.keys() & set(owners) or groups.keys()
        sizes = Counter(self.clock_groups)
        return self.unaligned if any(sizes[groups[owner]] == 1 for owner in asked) else ""

    @cached_property
    def whole_steps(self) -> list[int]:
        """Rows of the steps of `every_whole_step` after the warm-up, whose work is done only once."""
        return self.every_whole_step[self.n_warm_up :]

    @cached_property
    def n_warm_up(self) -> int:
        """Number of whole steps of the warm-up: the first ones, if far longer than all others."""
        return n_warm_up(np.array([self.bounds[row].mean_ns for row in self.every_whole_step]))

    @cached_property
    def every_whole_step(self) -> list[int]:
        """Rows of the steps whose duration is known for some owner; if there are none, of all steps."""
        whole = [row for row, step in enumerate(self.bounds) if (step.iteration_ns > 0).any()]
        return whole or list(range(len(self.steps)))

    def choose_step(self, number: int | None = None) -> int:
        """Find the row of the step `number`, else of the whole step of median length."""
        if number is None:
            by_length = sorted(self.whole_steps, key=lambda row: (self.bounds[row].mean_ns, row))
            return by_length[(len(by_length) - 1) // 2]
        numbers = [step.number for step in self.bounds]
        if number not in numbers:
            raise TraceError(
                f"--step {number}: no such step on every rank; there are {number_ranges(numbers)}"
            )
        return numbers.index(number)

    @property
    def bounds(self) -> Sequence[StepBounds]:
        """The bounds of the steps."""
        if isinstance(self.steps, LazySteps):
            return self.steps.bounds
        return [step.bounds for step in self.steps]

    def which(self, accept: Callable[[Operation], object]) -> Mask:
        """Mark the accepted operations (n,)."""
        return np.array([bool(accept(kind)) for kind in self.operations.kinds], np.bool_)[
            self.operations.kind
        ]

    def numbered(self, value: Callable[[Operation], Hashable]) -> tuple[list[Any], Int64]:
        """List the distinct values of the operations in order, and the index of each operation's (n,)."""
        values, of_kind = numbered(map(value, self.operations.kinds))
        return values, of_kind.astype(np.int64)[self.operations.kind]

    def chosen_kinds(self, chosen: Mask) -> list[Operation]:
        """List the distinct operations among the `chosen` (n,)."""
        return [self.operations.kinds[kind] for kind in unique(self.operations.kind[chosen]).tolist()]

    def column(self, value: Callable[[Operation], int]) -> Int64:
        """Compute an integer of each operation (n,)."""
        return np.array([value(kind) for kind in self.operations.kinds], np.int64)[self.operations.kind]

    def by_kind(self, column: str, rows: Sequence[int], chosen: Sequence[bool] | None = None) -> Float64:
        """Add up a column of events by kind of operation (the `chosen`) in each of some steps (steps, k)."""
        kind, n = self.operations.kind, len(self.operations.kinds)
        kept = np.arange(n) if chosen is None else np.flatnonzero(chosen)
        sums = np.empty((len(rows), len(kept)))
        for of_step, step in zip(sums, map(self.steps.__getitem__, rows), strict=True):
            of_step[:] = np.bincount(kind[step.operation], getattr(step, column), n)[kept]
        return sums

    def name_of(self, step: StepGraph, event: int) -> str:
        """Name an event's operation, with its owner if there are several."""
        operation = self.operations[int(step.operation[event])]
        prefix = f"{self.owners[operation.owner]}." if len(self.owners) > 1 else ""
        return prefix + operation.label
