"""Edits as requested (`EditRequest`) and as applied (`Edit`), and the job's facts for them (`Job`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import cache, cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from analyzer.base.errors import UsageError
from analyzer.model.graph.step_graph import Recording, StepGraph
from analyzer.reading.formats.columns import Trace
from dag_utils import LoadedSteps, RankFacts
from replay.answer import EXTRAPOLATED
from replay.links import LinkRate, link_rate, with_sizes
from replay.messages import as_messages

if TYPE_CHECKING:
    from replay.whatif.sized_collectives import SizedCollectives


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
        from replay.whatif.sized_collectives import SizedCollectives

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
