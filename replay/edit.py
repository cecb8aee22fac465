"""Edits: as requested (`EditRequest`), all that there are (`EDITS`), and as applied to a `Job` (`Edit`)."""

from __future__ import annotations

import contextlib
import difflib
import re
import shlex
from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import cache, cached_property
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from analyzer.base.errors import SIMILAR, UsageError
from analyzer.model.graph.step_graph import Recording, StepGraph
from analyzer.reading.formats.columns import Trace
from dag_utils import LoadedSteps, RankFacts
from replay.answer import EXTRAPOLATED
from replay.links import LinkRate, link_rate, with_sizes
from replay.messages import as_messages

if TYPE_CHECKING:
    from replay.whatif.collective_times import SizedCollectives


class EditRequest(NamedTuple):
    """An edit as written in ``--set name=value`` and in printed commands."""

    name: str
    value: str

    def __str__(self) -> str:
        return f"{self.name}={self.value}"

    @classmethod
    def of(cls, text: str) -> EditRequest:
        """Parse a user's ``name=value``; the name may contain ``=`` itself. Raises UsageError."""
        name, _, value = text.rpartition("=")
        if not name.strip() or not value.strip():
            raise UsageError(
                f"--set {text}: an edit is name=value, e.g. BW=0.8, bandwidth=2, schedule=priority; "
                "--set help lists all"
            )
        return cls(name.strip(), value.strip())

    def asks(self, name: str, *values: str) -> bool:
        """Check for the edit `name`; a number as its value scales an operation of that name instead.

        Raises UsageError if the value is neither one of `values` nor a number.
        """
        if self.name != name or self.value.lstrip("+-.")[:1].isdigit():
            return False
        if self.value not in values:
            *others, last = values
            raise self.refused(f"{name} is {' or '.join([', '.join(others), last] if others else values)}")
        return True

    def refused(self, why: str) -> UsageError:
        """Make the error of an impossible edit."""
        return UsageError(f"--set {self}: {why}")


#: Number of edited recordings that a job keeps.
_KEPT = 3
#: PUSHes are served one by one if more than this share waits for the PUSH before.
_SERIAL = 0.5


class Order(IntEnum):
    """Order of application: no edit depends on what a later edit does."""

    MEASURED = 0  # times measured in the recorded job: see `measured`
    LIMITS = 1  # upper limits measured in the recorded job
    EVENED = 2  # ranks work alike
    EVENTS = 3  # partitions are cut, buckets are joined
    WAITS = 4  # edges change
    BANDWIDTH = 5
    LATENCY = 6
    TIMES = 7  # times become shorter or vanish
    FACTORS = 8
    SUMS = 9


class Edit(Struct, frozen=True):
    """A change of a job; edits are applied by `order`, then by `name`."""

    apply: Callable[[Recording], Recording]
    order: Order = Order.TIMES
    as_recorded: bool = False  # it concerns single recorded steps, which keep their unusual gaps
    of_host: bool = False  # it removes host time, of which a part may be the profiler's
    error: float = EXTRAPOLATED  # standard deviation of the error of the effect, as a share of the effect
    error_ns: float = 0.0  # further error of the effect (95 %)
    name: str = ""  # as requested
    caution: str = ""  # a clause: an assumption of the answer, or why nothing changes


class Job:
    """Facts of a recorded job that edits use, computed once.

    Edits take facts such as link rates and the meaning of names from the recorded job, never from the job as
    changed by other edits.
    """

    def __init__(
        self,
        recording: Recording,
        ranks: Sequence[RankFacts] = (),
        load_traces: Callable[[], Sequence[Trace]] = tuple,
    ) -> None:
        self.recording, self.ranks = recording, ranks
        #: Reads the traces of the owners, in order, again from their files.
        self.load_traces = cache(load_traces)
        self._edited: dict[tuple[Edit, ...], Recording] = {}

    @classmethod
    def of(cls, loaded: LoadedSteps) -> Job:
        """Make the job from loaded steps."""
        return cls(loaded.recording, loaded.ranks, loaded.load_traces)

    @cached_property
    def links(self) -> LinkRate | None:
        """The rate of a link; None if unknown."""
        return link_rate(self.recording)

    @cached_property
    def collectives(self) -> SizedCollectives:
        """The collectives whose bytes are recorded."""
        from replay.whatif.collective_times import SizedCollectives

        return SizedCollectives(self.recording.as_recorded, self.ranks)

    @cached_property
    def apart(self) -> Recording:
        """The recording that edits change: transfers are split into messages if their bytes are known.

        PUSHes of which most start when the one before ends are served in turn by something other than the
        network, so transfers stay whole.
        """
        recording = self.recording
        if self.links is None or not recording.links:
            return recording
        pushes = recording.which(lambda op: op.transfer.is_sent)
        held = [step.held[pushes[step.operation]] for step in recording.steps]
        is_serial = np.concatenate([np.zeros(1, np.bool_), *held]).mean() > _SERIAL
        return recording if is_serial else as_messages(with_sizes(recording), self.links)

    def after(self, edits: Sequence[Edit]) -> Recording:
        """Apply `edits`, given in any order, to the recording."""
        if not edits:
            return self.apart
        edits = in_order(edits)
        edited = self._edited.pop(edits, None) or edits[-1].apply(self.after(edits[:-1]))
        while len(self._edited) >= _KEPT:
            del self._edited[next(iter(self._edited))]
        self._edited[edits] = edited  # the latest is last
        return edited


def in_order(edits: Sequence[Edit]) -> tuple[Edit, ...]:
    """Sort edits into their order of application."""
    return tuple(sorted(edits, key=lambda edit: (edit.order, edit.name)))


def measured(
    job: Job, change: Callable[[Recording], Recording], *, error: float = EXTRAPOLATED, error_ns: float = 0.0
) -> Edit:
    """Make an edit that sets the event times that a `change` of the recorded job sets.

    Times that the change leaves as recorded keep the values of other edits. So each such edit compares with
    the recorded job, whatever the other edits are.
    """

    def apply(recording: Recording) -> Recording:
        base = job.apart
        changed = change(base)
        if recording is base:
            return changed
        edited = recording.with_steps(map(_put, recording.steps, base.steps, changed.steps))
        return edited if changed.carries == base.carries else replace(edited, carries=changed.carries)

    return Edit(apply, order=Order.MEASURED, error=error, error_ns=error_ns)


def _put(step: StepGraph, was: StepGraph, new: StepGraph) -> StepGraph:
    """Copy the times of `new` that differ from the recorded ones (`was`) into a step."""
    times = {}
    for column in ("work_ns", "gap_ns", "tail_ns", "begin_ns"):
        time, recorded, wanted = (getattr(graph, column) for graph in (step, was, new))
        if wanted is not recorded:
            times[column] = np.where(wanted != recorded, wanted, time)
    return replace(step, **times)


# ---- all edits

#: Modules of `replay.whatif`, each with the forms and the meaning of its edits; the last makes all edits that
#: no other knows.
EDITS = (
    (
        "bandwidth",
        "bandwidth=R|200Mbit, latency=R",
        "bandwidth: links are R times as fast, or have this rate (Kbit, Mbit, Gbit); other parts of a "
        "transfer stay; latency: the fixed cost of a collective is R times as long",
    ),
    (
        "partition",
        "partition_bytes=N",
        "tensors are cut into pieces of N bytes; needs their sizes, from BytePS's log",
    ),
    (
        "bandwidth",
        "schedule=priority|fifo",
        "links serve the lowest tensor index first, or first come, first served, instead of the recorded "
        "order",
    ),
    (
        "straggler",
        "straggler=none|even|mean|each_step",
        "none: slow ranks work as long as their peers; even: an operation takes its time on the mean rank; "
        "mean: the ideal step, each kind of work at its mean over ranks and steps; each_step: every rank "
        "works as long as the mean rank of that step",
    ),
    (
        "scaling",
        "drop=NAME",
        "the operation takes no time; an annotation is removed with everything inside, idle time included",
    ),
    (
        "negotiation",
        "negotiation=none, ready=first, rank1.ready=peers",
        "negotiation: reductions start as soon as the last rank is ready; first: all ranks are ready as "
        "early as the first; peers: a rank is ready as early as its peers",
    ),
    (
        "straggler",
        "step20=usual",
        "replace these steps (step20,step31) by the median step: no event takes longer or starts later",
    ),
    (
        "server_times",
        "servers=even|none",
        "even: a slow server is as fast per byte as the others; none: pulls take no longer than their bytes",
    ),
    (
        "collective_times",
        "collectives=peers|merged",
        "peers: slow collectives reach the bus bandwidth of others of their kind and size; merged: one of "
        "ten short collectives remains",
    ),
    (
        "gradients",
        "overlap=off, bucket_cap=50MB",
        "overlap: gradients are reduced only after the backward pass of their rank; bucket_cap: recorded "
        "buckets are joined until they hold this much (KB, MB, GB)",
    ),
    (
        "host",
        "host=none, sync=none, allocations=none",
        "host: launches take no time, and device work starts as soon as the work before it ends; sync: no "
        "host call waits for the device; allocations: allocating and freeing device memory takes no time",
    ),
    (
        "straggler",
        "rank1=peers, rank1.extra=peers, rank1.gap=peers, gap=even",
        "a rank (rank1,rank2) works as long as its peers; extra: work that not all ranks do is shortened "
        "until the rank works as long as they do; gap: its pauses are as short as theirs; even: no rank "
        "pauses longer in a step than the mean rank",
    ),
    (
        "scaling",
        "NAME=R|+400ms",
        "an operation (Comm.x.PUSH, FW.conv0), a category (FW, BW, Comm, I/O), a rank (rank1), a part of a "
        "rank (rank1.FW) or a pipeline stage (stage0) takes R times as long, or this much longer once in "
        "each step",
    ),
)
_WORD = re.compile(r"[a-z_]{4,}")
_NUMBER = re.compile(r"\d+")


def parse(request: EditRequest, job: Job) -> Edit:
    """Parse a request with the first module that knows it; only modules that may know it are loaded.

    Raises UsageError for a value that the edit does not have, or a name that nothing in the job has.
    """
    untried = _modules(request)
    try:
        while untried:
            edit: Edit | None = import_module(f"replay.whatif.{untried.pop(0)}").parse(request, job)
            if edit is not None:
                return replace(edit, name=str(request))
        raise request.refused("no such edit")
    except UsageError as error:
        forms, meant = _forms(), meant_name(request.name)
        if request.name == meant and not untried:
            raise request.refused(f"it is {forms[meant]}; --set help lists all") from error
        if meant in ("", request.name):
            raise
        suggestion = forms[meant]
        with contextlib.suppress(UsageError):
            suggestion = str(parse(EditRequest(meant, request.value), job).name)
        raise request.refused(
            f"there is no such edit; did you mean {suggestion}? --set help lists all"
        ) from error


def _modules(request: EditRequest) -> list[str]:
    """List the modules that may know a request, by the last word of its name or by its value."""
    words = request.name.rpartition(".")[2], request.value
    names = [name for name, forms, _ in EDITS if any(_word(form) in words for form in forms.split(", "))]
    return [*names, "scaling"]


def _word(form: str) -> str:
    """Take the word of an edit's form that no name of an operation has: of its name, else its value.

    >>> _word("rank1.gap=peers"), _word("rank1=peers"), _word("latency=R")
    ('gap', 'peers', 'latency')
    """
    name, _, value = form.partition("=")
    word = name.rpartition(".")[2]
    return value if _NUMBER.search(word) else word


def _forms() -> dict[str, str]:
    """List the written form of each edit by its name."""
    return {form.partition("=")[0]: form for _, forms, _ in EDITS for form in forms.split(", ")}


def meant_name(name: str) -> str:
    """Find the edit with this or the most similar name; "" for names of the job's operations."""
    words = [word for word in _forms() if _WORD.fullmatch(word)]
    return next(iter(difflib.get_close_matches(name, words, n=1, cutoff=SIMILAR)), "")


def as_edit(flag: str, value: str) -> str:
    """Write the edit that a user typed as a flag; "" if no edit has this or a similar name.

    >>> as_edit("bandwith", "2"), as_edit("rank3.gap", "peers"), as_edit("schedule", "")
    ('bandwidth=2', 'rank3.gap=peers', 'schedule=priority|fifo')
    """
    forms = {_NUMBER.sub("#", name): form for name, form in _forms().items() if name != "NAME"}
    name = flag if _NUMBER.sub("#", flag) in forms else meant_name(flag)
    if not name or not value:
        return name and forms[_NUMBER.sub("#", name)]
    return f"{name}={shlex.quote(value)}"
