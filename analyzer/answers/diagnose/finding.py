"""The parts of a diagnosis: findings, each with the edits that remove it, and what was skipped."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Literal, NamedTuple

from msgspec import Struct

from replay.edit import EditRequest

# ---- shares of a step, or of what the comment says

#: What nobody acts on: a smaller saving, a smaller excess of a rank, a mean this near to the median, or a
#: peak of memory that grows by less over the recording.
NEGLIGIBLE = 0.01
#: Work, waits and copies that are worth a look. The error that an interval allows for at least is as large
#: (docs/dev/accuracy.md, Method), and claims are counted from here on there in 8.
NOTICEABLE = 0.05
#: Communication, waiting and idle stages that are not as good as hidden.
EXPOSED = 0.10
#: Of the critical path: an operation that is hot; its gain is for being so much faster.
HOT, FASTER = 0.30, 0.10
#: Of the work of a busy device: a kind of kernels to look at first.
DOMINANT = 0.40
#: Of whatever is shared out: all the rest together is less.
HALF = 0.5
#: Steps in which a rank is behind for it to be so in most steps.
MOST_STEPS = 2 / 3
#: Of a device's idle time: one operation of the host that is the cause of it.
LIMIT = 0.7
#: Of a usual step: a step of a log that is so much longer than those around it stalls. Stalls of recorded
#: logs are from 0.4 to 13 steps long, other steps up to 0.2 (docs/step-logs.md).
STALL = 0.4
#: Of the largest excess of a rank in a span of steps: the ranks that share the blame for it. With 0.4 or 0.8
#: the same ranks are named (docs/dev/accuracy.md, 6).
SHARED_BLAME = 0.6
#: Of what steps are longer by: the part of it that the rows of the rank to blame show, as where others wait
#: in the backward pass, and only its forward pass, a third of both, tells. With 0.5 two of
#: 21 late ranks are no longer found, with 0.12 none more (docs/dev/accuracy.md, 6).
VISIBLE = 0.25
#: What stands for the whole: a device's busy time for the step, an operation for its phase.
NEARLY_ALL = 0.9
#: Of a device's memory that is nearly full: healthy jobs use more than `NEARLY_ALL`.
FULL = 0.95

# ---- ratios

#: A saving alone to what more specific findings leave of it, for the two to be alike. With 1.05 the headlines
#: of recorded jobs are the same, with 1.2 one is another (docs/dev/recorded-jobs.md).
ALIKE = 1.1
#: A rank's work, or its peak of memory, to its peers': so much that few steps show it.
MUCH = 1.25
#: A link's or server's time, or its bytes, to its peers' (docs/dev/accuracy.md, 8, jobs with even seeds).
SLOW = 1.5
#: A rank's excess to the spread of its peers; of steps `arrays.median` calls the same number outlying.
OUTLYING = 3.0
#: A value of a step log to its noise, for it to be far from all of that. A span's are by how many spans and
#: series are looked at.
FAR_NOISES = 8.0
#: The cost of steps that are outliers to the next finding's, for them to lead the headline.
FAR_MORE = 3
#: The longest event of an operation to its mean one, for its events to be called uneven.
SPIKY = 5.0

# ---- chances

#: Of a false finding in a job: the usual level of significance, which four steps (`FEWEST`) can reach.
CHANCE = 0.05

# ---- counts and sizes

#: Short collectives per rank and step, from which on they are many.
MANY_MESSAGES = 16
#: Of a device's collectives whose bytes are not known: they are latency if they take no longer. NCCL's with
#: few bytes take 10 to 50 µs on up to some tens of GPUs (ns).
MOST_LATENCY_NS = 50_000
#: Partitions below the first are small, and merged into such of the second: about BytePS's own 4,096,000.
SMALL_BYTES, LARGE_BYTES = 256 << 10, 4 << 20
#: GB/s that the slowest link between GPUs of one host carries: of the 15.75 of PCI Express 3.0 x16 (8 GT/s,
#: 128b/130b coding) copies reach about 12. Bytes of each rank from which on a collective is not only latency.
SLOWEST_LINK_GBS, BYTES_OF_A_RANK = 12.0, 512 << 10
#: A launch takes some 5 to 10 µs (ns): a kernel that takes no longer is short, and a device that pauses for
#: less waits for none; from kernel to kernel an H200 pauses for 0.4 to 5 µs.
LAUNCH_NS = 10_000
#: After a call's timeout dumps are written within so long (ns): watchdogs look each second, monitors tell
#: other ranks each few seconds, and a dump takes seconds to write.
DUMPED_WITHIN_NS = 60 * 10**9
#: Jobs that live pause for so long (ns), as to save their state: who waits for less may wait for a slow rank.
PAUSE_NS = 30 * 10**9


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
    is_upper_bound: bool = False  # the saving assumes that the cause costs nothing, as `caveat` says

    @property
    def compares_ranks(self) -> bool:
        """True if the saving is time in which ranks wait for others, which only tied clocks show."""
        makes_alike = any(request.name in ("straggler", "gap") for request in self.edits)
        return makes_alike or self.kind in ("late_rank", "uneven_work", "slow_collective")


class Skipped(Struct, frozen=True):
    """A kind of finding that was not examined, and why."""

    kind: FindingKind
    reason: str
