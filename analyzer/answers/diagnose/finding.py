"""The parts of a diagnosis: findings, each with the edits that remove it, and what was skipped."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Literal, NamedTuple

from msgspec import Struct

from replay.edit import EditRequest

FindingKind = Literal[
    "late_rank", "uneven_work", "exposed_communication", "slow_collective", "small_messages", "server",
    "priority_inversion", "input", "host_bound", "host_sync", "copies", "idle", "hot_operation",
    "outlier_steps", "profiling_overhead", "memory", "negotiation", "capture_quality", "hang",
]  # fmt: skip


#: As `FindingScope.ranks`: every rank of the job.
EVERY_RANK: Sequence[str] = ("every rank",)
#: As `Finding.look`: where the time of each step goes.
BREAKDOWN = ("statistic", "--sub_option", "breakdown")


def edit(name: str, value: object) -> EditRequest:
    """Return the edit ``name=value``; a ratio has three digits."""
    return EditRequest(name, f"{value:.3g}" if isinstance(value, float) else str(value))


class Evidence(Struct, frozen=True):
    """A recorded event, or stretch of a step, that shows a finding; times are from the step's start.

    Without a step they are from the first open call, and `dur_ns` is how long it is known to be open.
    """

    path: str
    rank: str
    step: int | None
    name: str
    start_ns: int
    dur_ns: int


class StepSpan(NamedTuple):
    """The numbers of the `first` and the `last` of some steps, and the time that all of them have cost."""

    first: int
    last: int
    lost_ns: float


class FindingScope(Struct, frozen=True):
    """The ranks, steps and operations that a finding is about.

    `span` is the part of the recording in which it holds; its saving is that of a step of these.
    """

    ranks: Sequence[str] = EVERY_RANK
    steps: Sequence[int] = ()
    operations: Sequence[str] = ()
    span: StepSpan | None = None


class ListPlace(Enum):
    """The place of a finding in the list, whatever it saves."""

    FIRST = "most of the step, with a name"
    BY_GAIN = "by its saving"
    LAST = "an assumed improvement, which every job has"


class Finding(Struct, frozen=True):
    """A cause that makes the steps longer, and what to do about it.

    Attributes
    ----------
    title : the problem, a clause whose subject is the culprit and which goes on in a sentence
    edits : make the job one without it: its gain, its interval and its command come from them; none where
        no saving is claimed
    look : arguments of the command that shows where to look closer, without the path; (): the critical path
    weight : how much it matters where no saving is claimed, as a share of the step
    """

    kind: FindingKind
    title: str
    cause: str
    action: str
    edits: Sequence[EditRequest] = ()
    scope: FindingScope = FindingScope()
    evidence: Sequence[Evidence] = ()
    caveat: str = ""
    look: Sequence[str] = ()
    weight: float = 0.0
    place: ListPlace = ListPlace.BY_GAIN


class Skipped(Struct, frozen=True):
    """A kind of finding that was not examined, and why."""

    kind: FindingKind
    reason: str
