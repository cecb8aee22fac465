"""What a diagnosis consists of: findings, each with the edit that removes it, and what was skipped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from msgspec import Struct, field

from dag.step_graph import Recording

Edit = Callable[[Recording], Recording]

FindingKind = Literal[
    "late_rank", "uneven_work", "exposed_communication", "slow_collective", "small_messages", "server",
    "priority_inversion", "input", "host_bound", "host_sync", "copies", "idle", "hot_operation",
    "outlier_steps", "profiling_overhead", "memory", "negotiation", "capture_quality",
]  # fmt: skip


def replayed(edit: str) -> Sequence[str]:
    """Return the arguments of the command that replays the job with an edit; it leaves no file in the job."""
    return "--option", "replay", "--sub_option", "whatif", "--set", edit, "--output", "-"


class Evidence(Struct, frozen=True):
    """One recorded event, or stretch of a step, that shows a finding; times from the step's begin."""

    path: str
    rank: str
    step: int
    name: str
    start_ns: int
    dur_ns: int


class Finding(Struct, frozen=True):
    """Something that makes the steps longer, and what to do about it.

    Attributes
    ----------
    title : what is wrong, a clause that begins with whose fault it is and goes on in a sentence
    edit : the job without it; None where nothing can be claimed to be won
    change : the same in the words of ``replay --set``, separated by blanks; "" where there are none
    doubt_ns : by how much more than the replay knows its gain may be off, 19 times in 20
    queued_ns : transfers on the critical path that queue for links, and may queue otherwise without it
    least_share : of a step, what it has to win at least
    weight : how much it matters where nothing is claimed to be won, as a share of the step
    look : arguments of the command that shows more; the job's path is added
    """

    kind: FindingKind
    title: str
    cause: str
    action: str
    edit: Edit | None = None
    change: str = ""
    ranks: Sequence[str] = ()
    steps: Sequence[int] = ()
    operations: Sequence[str] = ()
    evidence: Sequence[Evidence] = ()
    caveat: str = ""
    look: Sequence[str] = field(default_factory=lambda: ("--option", "critical"))
    doubt_ns: float = 0.0
    queued_ns: float = 0.0
    least_share: float = 0.0
    weight: float = 0.0
    as_recorded: bool = False  # it is about what happened in these steps, unusual gaps included


class Skipped(Struct, frozen=True):
    """What was not examined, and why."""

    kind: FindingKind
    reason: str
