"""The parts of a diagnosis: findings, each with the edits that remove it, and what was skipped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from replay.edit import EditRequest

FindingKind = Literal[
    "late_rank", "uneven_work", "exposed_communication", "slow_collective", "small_messages", "server",
    "priority_inversion", "input", "host_bound", "host_sync", "copies", "idle", "hot_operation",
    "outlier_steps", "profiling_overhead", "memory", "negotiation", "capture_quality", "hang",
]  # fmt: skip


#: As `Finding.ranks`: every rank of the job.
EVERY_RANK: Sequence[str] = ("every rank",)
#: As `Finding.look`: where the time of each step goes.
BREAKDOWN = ("statistic", "--sub_option", "breakdown")


def edit(name: str, value: object) -> EditRequest:
    """Return the edit ``name=value``; a ratio has three digits."""
    return EditRequest(name, f"{value:.3g}" if isinstance(value, float) else str(value))


class Evidence(Struct, frozen=True):
    """One recorded event, or stretch of a step, that shows a finding; times from the step's start.

    Without a step they are from the first call that is open, and `dur_ns` is how long it is known to be open.
    """

    path: str
    rank: str
    step: int | None
    name: str
    start_ns: int
    dur_ns: int


class Finding(Struct, frozen=True):
    """Something that makes the steps longer, and what to do about it.

    Attributes
    ----------
    title : what is wrong, a clause that begins with whose fault it is and goes on in a sentence
    edits : make the job one without it: its gain, its interval and its command come from them; none where
        no saving is claimed
    least_share : the smallest saving, as a share of the step, with which it is shown
    weight : how much it matters where no saving is claimed, as a share of the step
    leads : it is most of the step and has a name, so it comes first whatever others save
    is_assumed : the saving is that of an assumed improvement, true of every job, so it comes after all others
    span : the first and the last step of the part of the recording that it is about; its saving is that of
        a step of these, and `lost_ns` what all of them have cost
    look : arguments of the command that shows where to look closer, without the path; (): the critical path
    """

    kind: FindingKind
    title: str
    cause: str
    action: str
    edits: Sequence[EditRequest] = ()
    ranks: Sequence[str] = EVERY_RANK
    steps: Sequence[int] = ()
    operations: Sequence[str] = ()
    evidence: Sequence[Evidence] = ()
    caveat: str = ""
    look: Sequence[str] = ()
    least_share: float = 0.0
    weight: float = 0.0
    leads: bool = False
    is_assumed: bool = False
    span: tuple[int, int] | None = None
    lost_ns: float | None = None


class Skipped(Struct, frozen=True):
    """A kind of finding that was not examined, and why."""

    kind: FindingKind
    reason: str
