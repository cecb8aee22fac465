"""One rank's steps by its dialect: events, their times, and why one event waits for another.

An event's *head* is its start, its *body* the work up to its end. What an event needs in order to start
enters its head; what it waits for once started (other ranks, a busy link, a device) enters its body, so
that the waiting is not mistaken for work. Gaps, work and waits follow from the times and the edges
(``dag/step_graph.py``); a dialect states neither.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from enum import Enum, IntEnum
from typing import Any, NamedTuple, cast, overload

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from analyzer.base.arrays import Int64, NDArray
from analyzer.base.arrays.numbering import narrowest
from analyzer.base.errors import Note, NoteKind
from analyzer.reading.dialects.edge_rules import Rule
from analyzer.reading.dialects.name_rules import COMMUNICATION
from analyzer.reading.dialects.roles import Phase, Role
from analyzer.reading.formats.columns import Trace, Track


class Joint(IntEnum):
    """Which ends of two events an edge joins: from the source's end or start to the target's head or body."""

    END_TO_HEAD = 0
    START_TO_HEAD = 1
    END_TO_BODY = 2
    START_TO_BODY = 3


#: What a rank's steps note where its recording marks none.
UNMARKED = Note("no steps are marked; the whole recording is taken for one", NoteKind.UNMARKED)


class Direction(Enum):
    """Where a part of a communication moves its bytes, if not to all ranks of a group."""

    TO_HOST = "from the device to the host's memory"
    TO_SERVER = "from a worker to a server"
    FROM_SERVER = "from a server to a worker"


class Transfer(NamedTuple):
    """The properties of a part of a communication; all are empty for other operations."""

    whole: str = ""  # the communication that it is a part of: Comm.x for Comm.x.PUSH
    stage: str = ""  # what it does there, as the system calls it
    key: int | None = None  # of the partition that it moves
    link: str = ""  # the link that its body occupies, one transfer at a time
    n_bytes: int = 0  # 0 means unknown
    direction: Direction | None = None
    server: str = ""  # the server at its other end

    @property
    def is_sent(self) -> bool:
        """Whether a link carries it to a server."""
        return self.direction is Direction.TO_SERVER and bool(self.link)

    @property
    def is_answer(self) -> bool:
        """Whether a link carries it from a server."""
        return self.direction is Direction.FROM_SERVER and bool(self.link)

    @property
    def is_wait(self) -> bool:
        """Whether it is what a message to or from a server takes beyond its bytes, on no link."""
        return self.direction in (Direction.TO_SERVER, Direction.FROM_SERVER) and not self.link

    @property
    def tensor(self) -> int:
        """The number of the partition's tensor: the next step needs low ones first; -1 without a key."""
        return -1 if self.key is None else self.key >> 16


class Whose(NamedTuple):
    """Whose work an operation is, where one owner records that of all ranks."""

    name: str = ""  # as words; "" for nobody in particular
    rank: int | None = None
    is_guess: bool = False  # as elsewhere in the recording, not here


class Operation(NamedTuple):
    """The operation of an event, the same in every step in which it occurs."""

    name: str  # as in the trace, without worker and rank
    cat: str  # as in the trace
    track: Track
    role: Role = Role.COMPUTE
    phase: Phase = Phase.NONE
    transfer: Transfer = Transfer()
    owner: int = 0  # index into `Recording.owners`; given when ranks are joined
    is_collective: bool = False  # ranks do it together
    on_device: bool = False  # ran on an accelerator, not on the host
    whose: Whose | None = None
    from_earlier_step: bool = False  # asked for, or begun, before the step in which it ran
    is_span: bool = False  # an annotation: its own time is that of something that was not recorded

    @property
    def label(self) -> str:
        """The name, with the partition, the whole where the name does not say it, and an earlier step."""
        if self.from_earlier_step:
            return f"{self._replace(from_earlier_step=False).label} of an earlier step"
        whole, key = self.transfer.whole, self.transfer.key
        if whole and not self.name.startswith(whole):
            return f"{whole}.{self.name}"
        return self.name if key is None else f"{self.name}.{key}"

    @property
    def main(self) -> str:
        """The name of the whole of which it is a part, else its own."""
        return self.transfer.whole or self.name

    @property
    def purpose(self) -> str:
        """Its phase, in the words of edits: FW BW Comm I/O STEP callback frame wait; "" unknown.

        Work of a device goes by its category.
        """
        return self.role.word or ("" if self.on_device else self.phase.word)

    @property
    def kind_of_work(self) -> str:
        """Its kind of work in the words of edits: the purpose, else the category; "" for neither."""
        return "not recorded" if self.role is Role.UNTRACED else self.purpose or self.cat

    @property
    def category(self) -> str:
        """The category under which it is counted: the recording's, or communication."""
        return COMMUNICATION if self.is_communication and self.cat != self.purpose else self.cat

    @property
    def is_communication(self) -> bool:
        """Whether it moves data between ranks, or is a part, the whole or the meeting of that."""
        return self.role in _COMMUNICATION

    @property
    def is_compute(self) -> bool:
        """Whether it is work of a rank: neither communication nor the loading of input."""
        return not self.is_communication and self.phase is not Phase.INPUT

    @property
    def is_overhead(self) -> bool:
        """Whether it is work of the profiler or the driver that the recording itself sets apart."""
        return self.cat == "overhead"

    @property
    def is_kernel(self) -> bool:
        """Whether a device computes in it: no copy, no communication."""
        return self.on_device and self.role is Role.COMPUTE

    @property
    def is_traced(self) -> bool:
        """Whether the trace has it as an event."""
        return self.role is not Role.UNTRACED and self.role is not Role.MEETING


_COMMUNICATION = frozenset((Role.COMM, Role.WHOLE_COMM, Role.MEETING))


class OperationTable(Sequence[Operation]):
    """The operations (n,) of a recording, or of one rank: most are alike, so each is a number into few kinds.

    Attributes
    ----------
    kinds : the distinct operations, in order of first appearance
    kind : (n,) which of them each operation is
    """

    def __init__(self, operations: Iterable[Operation]) -> None:
        place: dict[Operation, int] = {}
        self.kind = np.array([place.setdefault(one, len(place)) for one in operations], np.int32)
        self.kinds = list(place)

    @classmethod
    def of(cls, kinds: Sequence[Operation], kind: NDArray[np.integer]) -> OperationTable:
        """Return the operations of these kinds, which are distinct and in order of first appearance."""
        operations = cls(())
        operations.kinds, operations.kind = list(kinds), kind.astype(np.int32)
        return operations

    @overload
    def __getitem__(self, place: int) -> Operation: ...
    @overload
    def __getitem__(self, place: slice) -> list[Operation]: ...
    def __getitem__(self, place: int | slice) -> Operation | list[Operation]:
        if isinstance(place, slice):
            return [self.kinds[kind] for kind in self.kind[place].tolist()]
        return self.kinds[int(self.kind[place])]

    def __iter__(self) -> Iterator[Operation]:
        return map(self.kinds.__getitem__, self.kind.tolist())

    def __len__(self) -> int:
        return len(self.kind)


class Edge(NamedTuple):
    """One event of a step waits for another, by their numbers in the step."""

    source: int
    target: int
    joint: Joint = Joint.END_TO_HEAD
    rule: Rule = Rule.RESULT


class Meeting(NamedTuple):
    """One event's part in something that several ranks do together.

    Of all events of one `key`, on whatever ranks, those that leave wait for those of *other* ranks that
    enter: along `joint` and `rule` of the one that leaves. A collective enters and leaves with START_TO_BODY
    (nobody ends before the last has begun); a BytePS PULL leaves what the workers' PUSHes enter, END_TO_BODY.
    A source that ends later than the target is waited for by its start only; one that starts later, not at
    all (the root of a broadcast). Keys with their turns (how often it was done before) are equal across
    ranks and unique in the recording, not in the step.
    """

    key: Hashable
    event: int
    enters: bool
    leaves: bool
    joint: Joint = Joint.START_TO_BODY
    rule: Rule = Rule.COLLECTIVE
    turn: int = 0


class Meetings(Struct, frozen=True):
    """The meetings of a rank's events with others: `Meeting` as columns (k,), `key` an index into `keys`."""

    keys: Sequence[Hashable]
    event: Int64
    key: Int64
    turn: Int64
    enters: NDArray[np.bool_]
    leaves: NDArray[np.bool_]
    joint: NDArray[np.int8]
    rule: NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.event)

    def select(self, rows: NDArray[Any], event: Int64) -> Meetings:
        """Return some of them, which are now of these events."""
        others = (self.key, self.turn, self.enters, self.leaves, self.joint, self.rule)
        return Meetings(self.keys, event, *(column[rows] for column in others))


def meetings_table(meetings: Iterable[Meeting]) -> Meetings:
    """Return a few meetings as `RankStep.meetings` wants them."""
    place: dict[Hashable, int] = {}
    rows = [(one.event, place.setdefault(one.key, len(place)), one.turn, *one[2:6]) for one in meetings]
    event, key, turn, enters, leaves, joint, rule = np.array(rows, np.int64).reshape(-1, 7).T
    flags = enters.astype(np.bool_), leaves.astype(np.bool_)
    return Meetings(list(place), event, key, turn, *flags, joint.astype(np.int8), rule.astype(np.int8))


class RankStep(Struct, frozen=True):
    """The n events of one step of one rank, on that rank's clock.

    Everything that ran between `begin_ns` and `next_ns` belongs to the step, whoever launched it when.
    Work of an earlier step that still ran at `begin_ns` is an event of this step too, cut to begin there,
    and listed in `continued`, as (event of the step before, event of this step); what waited for it has
    an edge from it here. Work that was asked for in the step before but began in this one has its edges
    from there in `across`.

    Attributes
    ----------
    number : the recording's own: ProfilerStep#N, a batch's number; 1 for the first where it has none
    begin_ns, next_ns : when the step, and the one after it, begins; `next_ns` is -1 where unknown
    operation : (n,) index into `RankSteps.operations`
    start_ns, end_ns : (n,)
    edges : (source, target, joint, rule) as rows (m, 4) of numbers
    last : the events that must be over before the next step begins (the main thread's last operation);
        None where that is every event that ends in the step and that nothing else of the step follows
    across : (source in an earlier step, target in this step, joint, how many steps earlier) as rows (k, 4)
    """

    number: int
    begin_ns: int
    next_ns: int
    operation: Int64
    start_ns: Int64
    end_ns: Int64
    edges: Int64
    meetings: Meetings = field(default_factory=lambda: meetings_table(()))
    last: Int64 | None = None
    continued: Int64 = field(default_factory=lambda: np.empty((0, 2), np.int64))
    across: Int64 = field(default_factory=lambda: np.empty((0, 4), np.int64))

    def __len__(self) -> int:
        return len(self.operation)

    @classmethod
    def of(
        cls,
        number: int,
        bounds: tuple[int, int],
        operation: Int64,
        times: Int64,
        edges: Sequence[Edge],
        meetings: Sequence[Meeting] = (),
    ) -> RankStep:
        """Return a step of a few events, with the starts and ends `times` (n, 2), between its bounds."""
        rows = np.array(edges, np.int64).reshape(-1, 4)
        return cls(number, *bounds, operation, times[:, 0], times[:, 1], rows, meetings_table(meetings))

    def compact(self) -> RankStep:
        """Store numbers of events in as few bits as they need."""
        event, key, turn = map(narrowest, (self.meetings.event, self.meetings.key, self.meetings.turn))
        return replace(
            self,
            operation=narrowest(self.operation),
            edges=narrowest(self.edges),
            meetings=replace(self.meetings, event=event, key=key, turn=turn),
        )

    def later(self, by_ns: int) -> RankStep:
        """Return the step `by_ns` later."""
        return replace(
            self,
            begin_ns=self.begin_ns + by_ns,
            next_ns=-1 if self.next_ns == -1 else self.next_ns + by_ns,
            start_ns=self.start_ns + by_ns,
            end_ns=self.end_ns + by_ns,
        )


class RankSteps(Struct, frozen=True):
    """One rank's steps, in order, and its operations; `notes` are what the reader should know of them."""

    name: str  # "rank0", "wk0.rank1"
    operations: Sequence[Operation]
    steps: Sequence[RankStep]
    notes: Sequence[str] = ()
    worker: int | None = None
    rank: int | None = None  # local to the worker where the job has workers
    is_numbered: bool = True  # by the job's own count; False: the first recorded step is called 1
    step_kind: str = ""  # what the steps do, where the recording has others as well
    n_before: int = 0  # kernels and copies that were launched before the recording began

    def compact(self) -> RankSteps:
        """Store numbers of events in as few bits as they need: 64 ranks of 20 MB take 100 MB less."""
        return replace(self, steps=[step.compact() for step in self.steps])

    def later(self, by_ns: int) -> RankSteps:
        """Return the steps `by_ns` later."""
        return replace(self, steps=[step.later(by_ns) for step in self.steps])


class RankTrace(Struct, frozen=True):
    """One rank's trace (read for `Need.EDGES`, with points), and what its graph and logs tell of BytePS."""

    name: str  # "rank0", "wk0.rank1"
    trace: Trace
    worker: int | None = None
    dag_edges: Sequence[tuple[str, str]] | None = None  # names of operations; None without a graph beside it
    parameters: Mapping[str, str] = field(default_factory=dict)  # byteps.gradient_<i> -> parameter
    bytes_of: Mapping[int, int] = field(default_factory=dict)  # partition key -> bytes
    server_of: Mapping[int, int] = field(default_factory=dict)  # partition key -> server
    most_steps: int | None = None  # of how many steps the graph is made, about; None: of all
    #: All args of the slices that have one of some names, in file order; none where they cannot be told.
    args_of: Callable[[Collection[str]], Sequence[Mapping[str, Any]]] = lambda names: ()


def narrow(numbers: NDArray[np.integer]) -> Int64:
    """Return numbers of events or operations in 32 bits, which hold any; what is summed becomes wider."""
    narrowed: Any = numbers.astype(np.int32, copy=False)
    return cast(Int64, narrowed)


def from_start(edges: Int64) -> NDArray[np.bool_]:
    """Mask the edges (m,) that wait only for the start of their source."""
    return (edges[:, 2] & 1).astype(np.bool_)  # START_TO_HEAD, START_TO_BODY


def edge_rows(sources: Int64, targets: Int64, joint: Joint | Int64, rule: Rule | Int64) -> Int64:
    """Return edges, of one joint and rule or of several (m,), as `RankStep.edges` has them (m, 4)."""
    rows = np.empty((len(sources), 4), np.int32)
    for column, values in enumerate((sources, targets, joint, rule)):
        rows[:, column] = values
    return narrow(rows)


def renumbered(edges: Int64, by: int) -> Int64:
    """Return edges (m, 4) between events whose numbers are `by` higher."""
    rows: Any = edges.astype(np.int32)
    rows[:, :2] += by
    return cast(Int64, rows)
