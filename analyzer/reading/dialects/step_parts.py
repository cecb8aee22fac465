"""One rank's steps by its dialect: events, their times, and why one event waits for another.

An event's *head* is its start, its *body* the work up to its end. Inputs that an event needs to start enter
its head; those that it waits for once started (other ranks, a busy link, a device) enter its body, so that
waiting is not mistaken for work. Gaps, work and waits follow from times and edges (``graph/step_graph.py``).
"""

from __future__ import annotations

import re
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
    """The ends of two events that an edge joins."""

    END_TO_HEAD = 0
    START_TO_HEAD = 1
    END_TO_BODY = 2
    START_TO_BODY = 3


#: Slices of category overhead that are the driver's: it loads and compiles code, or its queue is full.
_OF_DRIVER = re.compile(r"(?i).*(?:loading|compil).*|command[ _]buffer[ _]full")
#: What a rank's steps note where its recording marks none.
UNMARKED = Note("no steps are marked; the whole recording is taken for one", NoteKind.UNMARKED)


class Direction(Enum):
    """Where a part of a communication moves its bytes, if not to all ranks of a group."""

    TO_HOST = "from the device to the host's memory"
    TO_SERVER = "from a worker to a server"
    FROM_SERVER = "from a server to a worker"


class Transfer(NamedTuple):
    """The properties of a part of a communication; all are empty for other operations."""

    whole: str = ""  # the communication that this part belongs to: Comm.x for Comm.x.PUSH
    stage: str = ""  # the system's name of this part
    key: int | None = None  # of the partition
    link: str = ""  # occupied by the body, one transfer at a time
    n_bytes: int = 0  # 0 means unknown
    direction: Direction | None = None
    server: str = ""  # the server at the other end

    @property
    def is_sent(self) -> bool:
        """True for bytes on a link to a server."""
        return self.direction is Direction.TO_SERVER and bool(self.link)

    @property
    def is_answer(self) -> bool:
        """True for bytes on a link from a server."""
        return self.direction is Direction.FROM_SERVER and bool(self.link)

    @property
    def is_wait(self) -> bool:
        """True for the time of a message to or from a server beyond its bytes, on no link."""
        return self.direction in (Direction.TO_SERVER, Direction.FROM_SERVER) and not self.link

    @property
    def tensor(self) -> int:
        """The number of the partition's tensor: the next step needs low numbers first; -1 without a key."""
        return -1 if self.key is None else self.key >> 16


class Whose(NamedTuple):
    """The rank that did an operation, where one owner records the work of all ranks."""

    name: str = ""  # as words; "" where unknown
    rank: int | None = None
    is_guess: bool = False  # concluded from other steps of the recording


class Operation(NamedTuple):
    """The operation of an event, the same in every step in which it occurs."""

    name: str  # as in the trace, without worker and rank
    cat: str  # as in the trace
    track: Track
    role: Role = Role.COMPUTE
    phase: Phase = Phase.NONE
    transfer: Transfer = Transfer()
    owner: int = 0  # index into `Recording.owners`; given when ranks are joined
    is_collective: bool = False  # done by several ranks together
    on_device: bool = False  # ran on an accelerator
    whose: Whose | None = None
    from_earlier_step: bool = False  # requested, or begun, before the step in which it ran
    is_span: bool = False  # an annotation: its time outside of other events was not recorded

    @property
    def label(self) -> str:
        """The name for users, with its communication or partition, and a mark of an earlier step."""
        whole, key, label = self.transfer.whole, self.transfer.key, self.name
        if whole and not label.startswith(whole):
            label = f"{whole}.{label}"
        elif key is not None:
            label = f"{label}.{key}"
        return f"{label} of an earlier step" if self.from_earlier_step else label

    @property
    def main(self) -> str:
        """The name of the whole communication, else the operation's name."""
        return self.transfer.whole or self.name

    @property
    def purpose(self) -> str:
        """The phase in the words of edits (FW BW Comm I/O STEP callback frame wait); "" on a device."""
        return self.role.word or ("" if self.on_device else self.phase.word)

    @property
    def kind_of_work(self) -> str:
        """The kind of work in the words of edits: the purpose, else the category."""
        return "not recorded" if self.role is Role.UNTRACED else self.purpose or self.cat

    @property
    def stage_or_kind(self) -> str:
        """The stage of a transfer, else the kind of work: what drawings colour alike."""
        return self.transfer.stage or self.kind_of_work or "other"

    @property
    def category(self) -> str:
        """The category in tables: the recording's, or communication."""
        return COMMUNICATION if self.is_communication and self.cat != self.purpose else self.cat

    @property
    def is_communication(self) -> bool:
        """True for data moved between ranks: a part, the whole, or the meeting."""
        return self.role in _COMMUNICATION

    @property
    def is_compute(self) -> bool:
        """True for work of a rank that is neither communication nor the loading of input."""
        return not self.is_communication and self.phase is not Phase.INPUT

    @property
    def is_overhead(self) -> bool:
        """True for work of the profiler or the driver that the recording marks as such."""
        return self.cat == "overhead"

    @property
    def is_of_profiler(self) -> bool:
        """True for overhead of the profiler; the driver's is loading code, and a full queue."""
        return self.is_overhead and _OF_DRIVER.fullmatch(self.name) is None

    @property
    def is_kernel(self) -> bool:
        """True for computation on a device."""
        return self.on_device and self.role is Role.COMPUTE

    @property
    def is_traced(self) -> bool:
        """True for an event of the trace."""
        return self.role not in (Role.UNTRACED, Role.MEETING)


_COMMUNICATION = frozenset((Role.COMM, Role.WHOLE_COMM, Role.MEETING))


class OperationTable(Sequence[Operation]):
    """Operations (n,): indices `kind` (n,) into the distinct `kinds`, in order of first appearance."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        index_of: dict[Operation, int] = {}
        self.kind = np.array([index_of.setdefault(op, len(index_of)) for op in operations], np.int32)
        self.kinds = list(index_of)

    @classmethod
    def of(cls, kinds: Sequence[Operation], kind: NDArray[np.integer]) -> OperationTable:
        """Make a table of known `kinds`, distinct and in order of first appearance."""
        operations = cls(())
        operations.kinds, operations.kind = list(kinds), kind.astype(np.int32)
        return operations

    @overload
    def __getitem__(self, index: int) -> Operation: ...
    @overload
    def __getitem__(self, index: slice) -> list[Operation]: ...
    def __getitem__(self, index: int | slice) -> Operation | list[Operation]:
        if isinstance(index, slice):
            return [self.kinds[kind] for kind in self.kind[index].tolist()]
        return self.kinds[int(self.kind[index])]

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

    Of all events of one `key`, those that leave wait for the events of *other* ranks that enter, along
    `joint` and `rule` of the event that leaves. A collective enters and leaves with START_TO_BODY (no member
    ends before the last has begun); a BytePS PULL leaves what the workers' PUSHes enter, END_TO_BODY. If the
    source ends after the target, the target waits for its start only; if it starts later, not at all (the
    root of a broadcast). A key with its turn (earlier occurrences) is equal across ranks and unique in the
    recording.
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
        """Take the given rows and assign them to new events."""
        others = (self.key, self.turn, self.enters, self.leaves, self.joint, self.rule)
        return Meetings(self.keys, event, *(column[rows] for column in others))


def meetings_table(meetings: Iterable[Meeting]) -> Meetings:
    """Convert a few meetings to columns."""
    index_of: dict[Hashable, int] = {}
    rows = [(met.event, index_of.setdefault(met.key, len(index_of)), met.turn, *met[2:6]) for met in meetings]
    event, key, turn, enters, leaves, joint, rule = np.array(rows, np.int64).reshape(-1, 7).T
    flags = enters.astype(np.bool_), leaves.astype(np.bool_)
    return Meetings(list(index_of), event, key, turn, *flags, joint.astype(np.int8), rule.astype(np.int8))


class RankStep(Struct, frozen=True):
    """The n events of one step of one rank, on that rank's clock.

    Everything that ran between `begin_ns` and `next_ns` belongs to the step, whenever it was launched. Work
    that began earlier is cut to begin at `begin_ns`, and listed in `continued`. Work requested in an earlier
    step has its edges in `across`.
    """

    number: int  # the recording's: ProfilerStep#N, a batch's number; else counted from 1
    begin_ns: int
    next_ns: int  # begin of the next step; -1 where unknown
    operation: Int64  # (n,) index into `RankSteps.operations`
    start_ns: Int64
    end_ns: Int64
    edges: Int64  # (m, 4) source, target, joint, rule
    meetings: Meetings = field(default_factory=lambda: meetings_table(()))
    #: The events that end before the next step begins (the main thread's last operation); None: every event
    #: that ends in the step and has no successor there.
    last: Int64 | None = None
    continued: Int64 = field(default_factory=lambda: np.empty((0, 2), np.int64))  # event before, event here
    #: (k, 4) source in an earlier step, target in this step, joint, number of steps between them.
    across: Int64 = field(default_factory=lambda: np.empty((0, 4), np.int64))
    since_ns: int = 0  # from where `start_ns` and `end_ns` count; the begin of a compact step

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
        """Make a step of a few events; `times` (n, 2) are starts and ends, `bounds` begin and next begin."""
        rows = np.array(edges, np.int64).reshape(-1, 4)
        return cls(number, *bounds, operation, times[:, 0], times[:, 1], rows, meetings_table(meetings))

    def compact(self) -> RankStep:
        """Store numbers in few bits, and times from the begin of the step on."""
        later_ns = self.begin_ns - self.since_ns
        event, key, turn = map(narrowest, (self.meetings.event, self.meetings.key, self.meetings.turn))
        return replace(
            self,
            since_ns=self.begin_ns,
            operation=narrowest(self.operation),
            start_ns=narrowest(self.start_ns - later_ns),
            end_ns=narrowest(self.end_ns - later_ns),
            edges=narrowest(self.edges),
            meetings=replace(self.meetings, event=event, key=key, turn=turn),
        )

    def later(self, by_ns: int) -> RankStep:
        """Move the step `by_ns` later."""
        return replace(
            self,
            begin_ns=self.begin_ns + by_ns,
            next_ns=-1 if self.next_ns == -1 else self.next_ns + by_ns,
            since_ns=self.since_ns + by_ns,
        )


class RankSteps(Struct, frozen=True):
    """One rank's steps, in order, its operations, and notes for the user."""

    name: str  # "rank0", "wk0.rank1"
    operations: Sequence[Operation]
    steps: Sequence[RankStep]
    notes: Sequence[str] = ()
    worker: int | None = None
    rank: int | None = None  # local to the worker where the job has workers
    is_numbered: bool = True  # by the job's own count; False: the first recorded step is called 1
    step_kind: str = ""  # the kind of these steps, where the recording has several
    n_before: int = 0  # kernels and copies that were launched before the recording began

    def compact(self) -> RankSteps:
        """Store numbers in few bits: 64 ranks of 20 MB take half the memory."""
        return replace(self, steps=[step.compact() for step in self.steps])

    def later(self, by_ns: int) -> RankSteps:
        """Move the steps `by_ns` later."""
        return replace(self, steps=[step.later(by_ns) for step in self.steps])


class RankTrace(Struct, frozen=True):
    """One rank's trace (read for `Need.EDGES`, with points) and the data of BytePS's graph and logs."""

    name: str  # "rank0", "wk0.rank1"
    trace: Trace
    worker: int | None = None
    dag_edges: Sequence[tuple[str, str]] | None = None  # names of operations; None without a graph beside it
    parameters: Mapping[str, str] = field(default_factory=dict)  # byteps.gradient_<i> -> parameter
    bytes_of: Mapping[int, int] = field(default_factory=dict)  # partition key -> bytes
    server_of: Mapping[int, int] = field(default_factory=dict)  # partition key -> server
    most_steps: int | None = None  # about how many steps to take; None: all
    #: All args of the slices with the given names, in file order; none where they cannot be read.
    args_of: Callable[[Collection[str]], Sequence[Mapping[str, Any]]] = lambda names: ()


def narrow(numbers: NDArray[np.integer]) -> Int64:
    """Convert numbers of events or operations to 32 bits; sums of them become wider."""
    narrowed: Any = numbers.astype(np.int32, copy=False)
    return cast(Int64, narrowed)


def from_start(edges: Int64) -> NDArray[np.bool_]:
    """Mask the edges (m,) that wait only for the start of their source."""
    return (edges[:, 2] & 1).astype(np.bool_)  # START_TO_HEAD, START_TO_BODY


def edge_rows(sources: Int64, targets: Int64, joint: Joint | Int64, rule: Rule | Int64) -> Int64:
    """Build the rows (m, 4) of `RankStep.edges`, with one joint and rule or with one for each (m,)."""
    rows = np.empty((len(sources), 4), np.int32)
    for column, values in enumerate((sources, targets, joint, rule)):
        rows[:, column] = values
    return narrow(rows)


def renumbered(edges: Int64, by: int) -> Int64:
    """Raise the numbers of the events in edges (m, 4)."""
    rows: Any = edges.astype(np.int32)
    rows[:, :2] += by
    return cast(Int64, rows)
