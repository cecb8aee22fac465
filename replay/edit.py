"""One edit of a job: as it is asked for (`EditRequest`), what it does (`Edit`), and whom it asks (`Job`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from analyzer.base.errors import UsageError
from analyzer.model.graph.step_graph import Recording, StepGraph
from analyzer.reading.formats.columns import Trace
from dag_utils import LoadedSteps, RankFacts
from replay.links import LinkRate, link_rate, with_sizes
from replay.messages import as_messages
from replay.uncertainty import EXTRAPOLATED

if TYPE_CHECKING:
    from replay.whatif.sized_collectives import SizedCollectives


class EditRequest(NamedTuple):
    """An edit in the words of ``--set name=value``: what is simulated, and what a printed command says."""

    name: str
    value: str

    def __str__(self) -> str:
        return f"{self.name}={self.value}"

    @classmethod
    def of(cls, text: str) -> EditRequest:
        """Return the request that a user wrote; a name may contain ``=`` itself.

        Raises
        ------
        UsageError
            The text is not ``name=value``.
        """
        name, _, value = text.rpartition("=")
        if not name.strip() or not value.strip():
            raise UsageError(
                f"--set {text}: an edit is name=value, e.g. BW=0.8, bandwidth=2, schedule=priority; "
                "--set help lists all"
            )
        return cls(name.strip(), value.strip())

    def asks(self, name: str, *values: str) -> bool:
        """Whether this is the edit `name`, which takes `values`; a number may be for an operation named so.

        Raises
        ------
        UsageError
            Another value, which is not a number.
        """
        if self.name != name or self.value.lstrip("+-.")[:1].isdigit():
            return False
        if self.value not in values:
            *others, last = values
            raise self.refused(f"{name} is {' or '.join([', '.join(others), last] if others else values)}")
        return True

    def refused(self, why: str) -> UsageError:
        """Return the error that says why this edit cannot be made."""
        return UsageError(f"--set {self}: {why}")


#: Of PUSHes that are served one by one, the share that waits for the one before it.
_SERIAL = 0.5


class Order(IntEnum):
    """When an edit is made, of several: no edit needs to know what a later one does."""

    MEASURED = 0  # times that the recorded job shows take the place of others: see `measured`
    LIMITS = 1  # no time is longer than the recorded job shows
    EVENED = 2  # ranks, as those before left them, work alike
    EVENTS = 3  # partitions are cut, buckets are joined
    WAITS = 4  # what waits for what
    BANDWIDTH = 5
    LATENCY = 6
    TIMES = 7  # what takes no time, or less
    FACTORS = 8
    SUMS = 9


class Edit(Struct, frozen=True):
    """A change of a job.

    Attributes
    ----------
    apply : returns a recording with the change
    order : of several edits those with the smallest are made first, of one order by their `name`
    as_recorded : whether it is about single recorded steps, which keep their unusual gaps
    error : of its effect, what the simulation misses: a standard deviation, as a share
    error_ns : by how much more than that its effect may be off (95 %)
    """

    apply: Callable[[Recording], Recording]
    order: Order = Order.TIMES
    as_recorded: bool = False
    error: float = EXTRAPOLATED
    error_ns: float = 0.0
    name: str = ""  # the request
    caution: str = ""  # an assumption behind the answer, or why it changes nothing: a clause


class Job:
    """A recorded job as edits ask it, worked out once for any number of them.

    What an edit takes from the job (the rate of the links, whom a name means) is that of the job as it is,
    not of what other edits made of it.
    """

    def __init__(
        self,
        recording: Recording,
        ranks: Sequence[RankFacts] = (),
        load_traces: Callable[[], Sequence[Trace]] = lambda: (),
    ) -> None:
        self.recording, self.ranks = recording, ranks
        self._load_traces = load_traces

    @classmethod
    def of(cls, loaded: LoadedSteps) -> Job:
        """Return the job that was loaded."""
        return cls(loaded.recording, loaded.ranks, loaded.load_traces)

    @cached_property
    def traces(self) -> Sequence[Trace]:
        """The traces of the owners, in order; they are read again for it."""
        return self._load_traces()

    @cached_property
    def links(self) -> LinkRate | None:
        """The rate of a link; None where it is not known."""
        return link_rate(self.recording)

    @cached_property
    def collectives(self) -> SizedCollectives:
        """The collectives whose bytes are recorded."""
        from replay.whatif.sized_collectives import SizedCollectives

        return SizedCollectives(self.recording, self.ranks)

    @cached_property
    def apart(self) -> Recording:
        """The recording that edits change: with its transfers taken apart, as far as their bytes are known.

        Sides of the network that never were the limit do not hold anything up. Transfers each of which begins
        when the one before it is over are served in turn by something else than the network: they stay whole.
        """
        if self.links is None or not self.recording.links or _is_serial(self.recording):
            return self.recording
        return as_messages(with_sizes(self.recording), self.links)


def measured(
    job: Job,
    change: Callable[[Recording], Recording],
    *,
    error: float = EXTRAPOLATED,
    error_ns: float = 0.0,
) -> Edit:
    """Return the edit that gives events the times that a `change` of the recorded job gives them.

    Where the change gives no other time than the recorded one, that of the other edits stays: so what each of
    them compares with is the recorded job, whatever the others are.
    """

    def apply(recording: Recording) -> Recording:
        base = job.apart
        changed = change(base)
        if recording is base:
            return changed
        made = recording.with_steps(map(_put, recording.steps, base.steps, changed.steps))
        return made if changed.carries == base.carries else replace(made, carries=changed.carries)

    return Edit(apply, order=Order.MEASURED, error=error, error_ns=error_ns)


def _put(step: StepGraph, was: StepGraph, new: StepGraph) -> StepGraph:
    """Return a step with the times that are `new`: not those that the recorded one had."""
    times = {}
    for column in ("work_ns", "gap_ns", "tail_ns", "begin_ns"):
        own, recorded, wanted = (getattr(one, column) for one in (step, was, new))
        if wanted is not recorded:
            times[column] = np.where(wanted != recorded, wanted, own)
    return replace(step, **times)


def _is_serial(recording: Recording) -> bool:
    """Whether most PUSHes are recorded from when those before them are over."""
    pushes = recording.which(lambda one: one.transfer.is_sent)
    held = [step.held[pushes[step.operation]] for step in recording.steps]
    return bool(np.concatenate([np.zeros(1, np.bool_), *held]).mean() > _SERIAL)
