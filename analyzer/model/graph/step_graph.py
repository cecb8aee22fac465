"""`StepGraph`: one recorded step of a job as the graph that is drawn, walked and simulated.

The nodes are events: what ran, on every rank. Each has its recorded interval, its *work* (what it needed
itself), its *wait* (for others, after its start) and its *gap* (from its last input to its start, which
nothing explains). These three follow from the times and the edges, so that replaying a step with its own
work and gaps gives the recorded times.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import force_setattr, replace

from analyzer.base.arrays import Float64, Int64, NDArray
from analyzer.base.arrays.distributions import n_warm_up
from analyzer.base.arrays.numbering import unique
from analyzer.base.arrays.spill import Spill
from analyzer.base.errors import NoteKind, TraceError, listed, notes_of
from analyzer.base.lazy_sequence import LazySequence
from analyzer.reading.dialects.step_parts import Joint, Operation, OperationTable, from_start
from analyzer.reading.dialects.system import Frames

Bool = NDArray[np.bool_]

#: About what the columns of a step need for each event.
_EVENT_BYTES = 64
#: The link of an operation that occupies none.
NO_LINK = -1


class StepGraph(Struct, frozen=True):
    """The n events of one step of all m owners, on one clock, and why one waits for another.

    What many owners do together is an event too (`Role.MEETING`), behind all others: those who leave
    wait for it, and it for those who enter. Numbers of events, operations and owners have 32 bits.

    Attributes
    ----------
    number : the step's own number in the recording
    operation : (n,) index into `Recording.operations`
    owner, link : (n,) indices into `Recording.owners` and `Recording.links`
    start_ns, end_ns : (n,) as recorded, but for what `held` says
    edges : (e, 4) rows of source, target, `Joint`, `Rule`; none contradicts the recorded times
    work_ns : (n,) the last part of the event, in which it waited for nothing
    gap_ns : (n,) from the event's last input to its start
    begin_ns, next_ns : (m,) when each owner's step, and the one after it, begins; -1 where unknown
    tail_ns : (m,) from the last event that holds up the next step to its start
    last : events that must be over before the next step of their owner begins
    on_device : events that ran on a device
    turn : (n,) the order in which links served the step's transfers
    overtaken : (k, 2) transfers of one link, the second of which could have begun earlier than the first
        but was served after it: several are in flight, and the order is the network's
    held : (n,) transfers that were recorded from when the link served them, not from when they were asked
        for; `start_ns` is the latter, so that they have no gap but wait for the link
    continued : (c, 2) events of the step before, and the events of this one that are the rest of them
    across : (k, 4) events of an earlier step, the device work of this one that they asked for or that
        follows them, the `Joint`, and how many steps earlier
    """

    number: int
    operation: Int64
    owner: Int64
    link: Int64
    start_ns: Int64
    end_ns: Int64
    edges: Int64
    work_ns: Int64
    gap_ns: Int64
    begin_ns: Int64
    next_ns: Int64
    tail_ns: Int64
    last: Int64
    on_device: Int64
    turn: Int64
    overtaken: Int64
    held: Bool
    continued: Int64
    across: Int64

    def __len__(self) -> int:
        return len(self.operation)

    @property
    def lead_ns(self) -> Int64:
        """Start of the step of each owner (m,), after the earliest owner's, in ns."""
        return np.subtract(self.begin_ns, int(self.begin_ns.min()))

    @property
    def bounds(self) -> StepBounds:
        """The step without its events."""
        return StepBounds(self.number, self.begin_ns, self.next_ns)

    @property
    def iteration_ns(self) -> Int64:
        """Duration of the step for each owner (m,) in ns; -1 where unknown."""
        return self.bounds.iteration_ns

    @property
    def last_end_ns(self) -> Int64:
        """When the last event that holds up each owner's next step ends (m,); its start without one."""
        end: Int64 = self.begin_ns.copy()
        np.maximum.at(end, self.owner[self.last], self.end_ns[self.last])
        return end

    @property
    def end_of_owners_ns(self) -> Int64:
        """End of the step of each owner (m,): as recorded, else the usual time after its last event."""
        by_tail = self.last_end_ns + np.maximum(self.tail_ns, 0)
        return np.where(self.next_ns < 0, by_tail, self.next_ns)

    def by_link(self) -> list[Int64]:
        """Return the transfers of each link in the order in which it served them."""
        transfers = np.flatnonzero(self.link != NO_LINK)
        if not len(transfers):
            return []
        order = np.lexsort((self.start_ns[transfers], self.end_ns[transfers], self.link[transfers]))
        transfers = transfers[order]
        return [transfers[self.link[transfers] == link] for link in unique(self.link[transfers])]

    def bodies_on_links(self) -> Int64:
        """Return the bodies (2 * event + 1) of the transfers that follow each other on a link (k, 2)."""
        pairs = [np.column_stack((served[:-1], served[1:])) for served in self.by_link()]
        return 2 * np.concatenate([np.empty((0, 2), np.int64), *pairs]) + 1

    def slack_ns(self) -> Int64:
        """Slack: how much longer each event may take before the step ends later (n,); 0 on the critical path.

        An event without successors in the step may last until the step's end.

        Raises
        ------
        TraceError
            Events wait for each other.
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
    """Return edges as sources and targets among starts (2 * event) and bodies (2 * event + 1)."""
    return 2 * edges[:, 0] + ~from_start(edges), 2 * edges[:, 1] + (edges[:, 2] >= Joint.END_TO_BODY)


def _tighten(latest_ns: Int64, cost_ns: Int64, source: Int64, target: Int64) -> None:
    """Lower the latest end of each of n nodes, so that none of its successors is late.

    `latest_ns` (n,): its own latest end; `cost_ns` (n,): its duration; `source` and `target` (e,): the edges.
    """
    n = len(cost_ns)
    waits = np.bincount(source, minlength=n)
    free = np.flatnonzero(waits == 0).tolist()
    # Memoryviews yield Python's own numbers, as lists do, but lists would take 200 bytes more for each event.
    sources = source[np.argsort(target, kind="stable")].data
    bounds = np.cumsum(np.bincount(target + 1, minlength=n + 1)).data
    waiting, costs, latest = waits.data, cost_ns.data, latest_ns.data
    done = 0
    while free:
        node = free.pop()
        done += 1
        limit = latest[node] - costs[node]
        for before in sources[bounds[node] : bounds[node + 1]]:
            if limit < latest[before]:
                latest[before] = limit
            waiting[before] -= 1
            if waiting[before] == 0:
                free.append(before)
    if done < n:
        raise TraceError(f"{n - done} starts and ends of events wait for each other: the graph has a cycle")


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
    """Time that the job took for each step (steps,), until its last owner was through.

    Counted from when the last owner was through with the step before. So a step in which one owner is
    late is long itself, and not the next one, in which the others wait for it. Where the step before is not
    there, from when the owner began it that was through last. 0 where an end is unknown.
    """
    last = [(step, int(step.next_ns.argmax())) for step in bounds]
    ends, begins = (
        np.array([getattr(step, column)[owner] for step, owner in last], np.float64)
        for column in ("next_ns", "begin_ns")
    )
    follows = np.diff([step.number for step in bounds], prepend=[step.number for step in bounds[:1]]) == 1
    begins[1:] = np.where(follows[1:], ends[:-1], begins[1:])
    is_known = [bool((step.next_ns >= 0).all()) for step in bounds]
    return np.where(is_known, ends - begins, 0.0)


def number_ranges(numbers: Sequence[int]) -> str:
    """Return numbers as text, consecutive ones as a range: ``2–4, 7–9``."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][-1] + 1:
            spans[-1] = [spans[-1][0], number]
        else:
            spans.append([number])
    return ", ".join("–".join(map(str, span)) for span in spans[:8]) + (", …" if len(spans) > 8 else "")


class LazySteps(LazySequence[StepGraph]):
    """Steps joined on first access: of many ranks most options look at only one.

    With `most` only so many are kept, and any other is joined again. The columns of those that are kept go to
    `spill`.
    """

    def __init__(
        self,
        bounds: Sequence[StepBounds],
        join: Callable[[int], StepGraph],
        most: int | None = None,
        spill: Spill | None = None,
    ) -> None:
        self._items = range(len(bounds))
        self.bounds, self.spill = bounds, spill
        self._join, self._most = join, most
        self._joined: dict[int, StepGraph] = {}

    def _make(self, row: int) -> StepGraph:
        if row not in self._joined:
            if self._most is not None and len(self._joined) >= self._most:
                del self._joined[next(iter(self._joined))]
            step = self._join(row)
            self._joined[row] = step if self.spill is None else self.spill.put(step)
        if self.spill is not None:
            self.spill.look_at(_EVENT_BYTES * len(self._joined[row]))
        return self._joined[row]

    def replaced(self, steps: Iterable[StepGraph]) -> LazySteps:
        """Return other steps, put aside as these are."""
        kept = [step if self.spill is None else self.spill.put(step) for step in steps]
        steps = LazySteps([step.bounds for step in kept], kept.__getitem__, spill=self.spill)
        steps._joined = dict(enumerate(kept))
        return steps


class Recording(Struct, frozen=True, dict=True):
    """The steps of a job.

    Attributes
    ----------
    owners : what runs its own sequence of steps: ``rank0``, ``wk0.rank1``
    workers, ranks : (owners,) the worker of each, None where the job has no workers; its rank, local to it
    links : what carries one transfer at a time
    sides : of each link the two sides of the network that it shares with others (-1: none); () without any
    carries : of each side, how many times as fast as recorded it lets what uses it alone be; () for once
    operations, steps : what occurs, and when
    notes : what the reader of the answer should know about the recording, a sentence each
    frames : (owners,) what may cover the gaps of each, None where nothing is known; () for all
    clock_bounds_ns : (owners,) how far off the clock of each may be, 0 where unknown; () on one clock
    clock_groups : (owners,) equal numbers for those whose clocks are tied to each other; () on one clock
    step_kind : what the steps do (``decode``), where the recording tells; else ""
    """

    owners: Sequence[str]
    workers: Sequence[int | None]
    ranks: Sequence[int | None]
    links: Sequence[str]
    operations: Sequence[Operation]
    steps: Sequence[StepGraph]
    notes: Sequence[str] = ()
    frames: Sequence[Frames | None] = ()
    step_kind: str = ""
    sides: Sequence[tuple[int, int]] = ()
    carries: Sequence[float] = ()
    clock_bounds_ns: Sequence[int] = ()
    clock_groups: Sequence[int] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.operations, OperationTable):
            force_setattr(self, "operations", OperationTable(self.operations))

    def edited(self, edit: Callable[[StepGraph], StepGraph]) -> Recording:
        """Return the recording with each step as `edit` makes it."""
        return self.with_steps(map(edit, self.steps))

    def with_steps(self, steps: Iterable[StepGraph]) -> Recording:
        """Return the recording with other steps, kept as its own are: in memory or in a file."""
        recorded = self.steps
        return replace(
            self, steps=recorded.replaced(steps) if isinstance(recorded, LazySteps) else list(steps)
        )

    def to_file(self, column: Int64) -> Int64:
        """Move a column of events to the file of the steps, where these have one."""
        spill = self.steps.spill if isinstance(self.steps, LazySteps) else None
        return column if spill is None else spill.put_arrays([column])[0]

    @property
    def table(self) -> OperationTable:
        """The operations as a table of the distinct ones."""
        assert isinstance(self.operations, OperationTable)
        return self.operations

    @property
    def one_step(self) -> str:
        """The word for a step at the beginning of a sentence; "The recording" where no steps are marked."""
        return f"A {self.step_kind} step".replace("  ", " ") if self.has_steps else "The recording"

    @property
    def has_steps(self) -> bool:
        """True if steps are marked; else the whole recording stands for one."""
        return len(self.steps) > 1 or not notes_of(NoteKind.UNMARKED, self.notes)

    @property
    def unaligned(self) -> str:
        """Why moments of different owners cannot be compared; "" where their clocks are tied."""
        return listed(notes_of(NoteKind.UNALIGNED, self.notes), 1)

    def untied(self, owners: Sequence[str]) -> str:
        """Why the clocks of some of `owners`, or of all, are tied to nobody's; "" where all are to some."""
        groups = dict(zip(self.owners, self.clock_groups, strict=False))
        asked = groups.keys() & set(owners) or groups.keys()
        return self.unaligned if any(self.clock_groups.count(groups[owner]) == 1 for owner in asked) else ""

    @cached_property
    def whole_steps(self) -> list[int]:
        """The rows of the steps whose duration is known for some owner (all where none is), but the warm-up.

        What takes far longer in the first steps is done once, and says nothing of the steps to come.
        """
        return self.every_whole_step[self.n_warm_up :]

    @cached_property
    def n_warm_up(self) -> int:
        """Number of whole steps that are the warm-up: the first ones, far longer than all others."""
        return n_warm_up(np.array([self.bounds[row].mean_ns for row in self.every_whole_step]))

    @cached_property
    def every_whole_step(self) -> list[int]:
        """The rows of the steps whose duration is known for some owner, warm-up too; all where none is."""
        whole = [row for row, step in enumerate(self.bounds) if (step.iteration_ns > 0).any()]
        return whole or list(range(len(self.steps)))

    def choose_step(self, number: int | None = None) -> int:
        """Return the row of the step called `number`; without one, that of the whole step of median length.

        Raises
        ------
        TraceError
            There is no such step.
        """
        bounds = self.bounds
        numbers = [step.number for step in bounds]
        if number is None:
            by_length = sorted(self.whole_steps, key=lambda row: (bounds[row].mean_ns, row))
            return by_length[(len(by_length) - 1) // 2]
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

    def which(self, accept: Callable[[Operation], object]) -> Bool:
        """Mark the accepted operations (n,)."""
        return np.array([bool(accept(kind)) for kind in self.table.kinds], np.bool_)[self.table.kind]

    def numbered(self, value: Callable[[Operation], Hashable]) -> tuple[list[Any], Int64]:
        """Return the distinct values of the operations in order, and the number of each operation's (n,)."""
        number_of: dict[Hashable, int] = {}
        of_kind = [number_of.setdefault(value(operation), len(number_of)) for operation in self.table.kinds]
        return list(number_of), np.array(of_kind, np.int64)[self.table.kind]

    def chosen_kinds(self, chosen: Bool) -> list[Operation]:
        """Return the distinct operations of which some are `chosen` (n,)."""
        return [self.table.kinds[kind] for kind in unique(self.table.kind[chosen]).tolist()]

    def column(self, value: Callable[[Operation], int]) -> Int64:
        """Return a number of each operation (n,)."""
        return np.array([value(kind) for kind in self.table.kinds], np.int64)[self.table.kind]

    def by_kind(self, column: str, rows: Sequence[int], chosen: Sequence[bool] | None = None) -> Float64:
        """Return a column of events added up by kind of operation (the `chosen`) in some steps (steps, k)."""
        kind, n = self.table.kind, len(self.table.kinds)
        kept = np.arange(n) if chosen is None else np.flatnonzero(chosen)
        sums = np.empty((len(rows), len(kept)))
        for of_step, step in zip(sums, map(self.steps.__getitem__, rows), strict=True):
            of_step[:] = np.bincount(kind[step.operation], getattr(step, column), n)[kept]
        return sums

    def name_of(self, step: StepGraph, event: int) -> str:
        """Return the name of an event's operation, with its owner's where there are several."""
        operation = self.operations[int(step.operation[event])]
        prefix = f"{self.owners[operation.owner]}." if len(self.owners) > 1 else ""
        return prefix + operation.label
