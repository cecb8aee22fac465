"""Events that an edit names: by operation, part, category, link, rank or pipeline stage."""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct

from analyzer.base.arrays import Mask
from analyzer.base.arrays.numbering import connected, occurrence_number
from analyzer.base.errors import UsageError, meant
from analyzer.base.names import brief
from analyzer.model.graph.step_graph import Recording, StepGraph
from analyzer.reading.dialects.edge_rules import Rule
from analyzer.reading.dialects.roles import Phase, Role
from analyzer.reading.dialects.step_parts import Operation
from replay.edit import EditRequest

_OWNER = re.compile(r"(?:wk(?P<worker>\d{1,18})\.?)?(?:rank(?P<rank>\d{1,18})\.?)?(?P<target>.*)", re.DOTALL)
#: The first steps show which ranks send to each other. A pair that meets less often than this share of the
#: most frequent pair may have met by chance.
_FIRST_STEPS, _BY_CHANCE = 4, 0.1
#: The largest ratio for which nanoseconds of work still fit into 64 bits.
_MOST_TIMES = 1_000_000


def as_ratio(request: EditRequest, else_: str = "") -> float:
    """Parse the ratio of a request; the error mentions the alternatives `else_`."""
    try:
        ratio = float(request.value)
    except ValueError:
        raise request.refused(f"{request.value} is not a ratio such as 2 or 0.5{else_}") from None
    return checked_ratio(f"--set {request}", ratio)


def checked_ratio(flag: str, ratio: float) -> float:
    """Check the `ratio` that the user gave with `flag`."""
    if not 1 / _MOST_TIMES <= ratio <= _MOST_TIMES:
        raise UsageError(
            f"{flag}: a ratio must be above 0 (1 changes nothing), from 1/{_MOST_TIMES:,} to {_MOST_TIMES:,}"
        )
    return ratio


def named_ranks(recording: Recording, request: EditRequest, ranks: str) -> list[int]:
    """Owners named by ``rank<r>,rank<s>``; at least one other must remain for comparison."""
    chosen = np.zeros(len(recording.owners), np.bool_)
    for name in ranks.split(","):
        owners, target = named_owners(recording, name)
        if target or not name or not owners.any():
            raise request.refused(f"no such rank; there are {', '.join(recording.owners)}")
        chosen |= owners
    if chosen.all():
        raise request.refused("no rank is left to compare with")
    return list(np.flatnonzero(chosen).tolist())


class Selection(Struct, frozen=True):
    """The targets of an edit: operations (n,), and owners (m,) whose time between steps changes.

    Where a rank's computation was not traced, its forward pass is a part of that time.
    """

    operations: Mask
    tails: Mask

    def __bool__(self) -> bool:
        return bool(self.operations.any() or self.tails.any())

    def events(self, step: StepGraph) -> Mask:
        """Mask of the selected events of a step (n,)."""
        return self.operations[step.operation]


def select(
    recording: Recording, request: EditRequest, name: str, *, may_be_nothing: bool = False
) -> Selection:
    """Select the operations that `name` means in the requested edit.

    It is a name as recorded, or as tables show it. The prefix ``wk<i>.`` restricts it to that worker;
    ``rank<r>.`` to that local rank, or where all have the same (one GPU per worker) or none has it, to the
    r-th rank of the job. Raises UsageError if there is none; the message suggests similar names.
    """
    everyone = np.ones(len(recording.owners), np.bool_)
    if selection := _matching(recording, name, everyone):
        return selection
    owners, target = named_owners(recording, name)
    if may_be_nothing:
        return _matching(recording, target, owners & bool(target))
    return select_of(recording, request, target, owners)


def named_owners(recording: Recording, name: str) -> tuple[Mask, str]:
    """Split ``wk<i>.`` and ``rank<r>.`` off a name: their owners (m,), and the bare name."""
    match = _OWNER.fullmatch(name)
    assert match is not None  # every part is optional
    return _owners(recording, match["worker"], match["rank"]), match["target"]


def select_of(recording: Recording, request: EditRequest, target: str, owners: Mask) -> Selection:
    """Select `target` ("": the computation) on some `owners` (m,); see `select`."""
    selection = _matching(recording, target, owners)
    if not selection and not owners.any():
        raise request.refused(f"no such rank; there are {', '.join(recording.owners)}")
    if not selection:  # as tables show it
        alike = {op.name for op in recording.operations.kinds if brief(op.name) == target}
        chosen = recording.which(lambda op: owners[op.owner] and op.name in alike)
        selection = Selection(chosen, np.zeros(len(owners), np.bool_))
    if not selection:
        name = target or request.name
        words = {word for op in recording.operations.kinds for word in _names(op) if word}
        near = meant(name, sorted({*words, *recording.owners}), most=3)
        raise request.refused(f"no operation has the name {name}{near or '; --set help lists all'}")
    return selection


def computation(recording: Recording) -> Selection:
    """Select all work of the ranks."""
    return _matching(recording, "", np.ones(len(recording.owners), np.bool_))


def communication(recording: Recording) -> Selection:
    """Select all communication between ranks."""
    chosen = recording.which(lambda op: op.is_communication)
    return Selection(chosen, np.zeros(len(recording.owners), np.bool_))


def _matching(recording: Recording, target: str, owners: Mask) -> Selection:
    """Select the operations of `owners` with a name `target`; their computation where it is empty."""
    chosen = recording.which(
        lambda op: owners[op.owner] and (target in _names(op) if target else op.is_compute)
    )
    untraced = np.zeros(len(owners), np.bool_)
    if target in ("", Phase.FORWARD.word):
        untraced[[op.owner for op in recording.operations.kinds if op.role is Role.UNTRACED]] = True
    return Selection(chosen, untraced & owners)


def _names(operation: Operation) -> tuple[str, ...]:
    transfer = operation.transfer
    phase = "" if operation.is_communication else operation.phase.word
    names = operation.name, operation.label, operation.main, operation.cat, operation.purpose
    return (*names, phase, transfer.stage, transfer.link)


def _owners(recording: Recording, worker: str | None, rank: str | None) -> Mask:
    of_worker = np.array([worker is None or number == int(worker) for number in recording.workers], np.bool_)
    if rank is None:
        return of_worker
    local = of_worker & np.array([number == int(rank) for number in recording.ranks], np.bool_)
    all_alike = len(local) > 1 and bool(local.all())
    if worker is not None or (local.any() and not all_alike):
        return local
    return np.asarray(np.arange(len(local)) == int(rank))


def pipeline_stages(recording: Recording) -> list[int] | None:
    """Find the pipeline stage (part of the model) of each owner; None without a pipeline.

    Owners that send to each other make one pipeline; the n-th of each are stage n. In an all-to-all, which
    NCCL makes of sends, a group meets.
    """
    ends = []
    for step in recording.steps[:_FIRST_STEPS]:
        source, target = step.edges[:, 0], step.edges[:, 1]
        crosses = (step.owner[source] != step.owner[target]) & (step.edges[:, 3] == Rule.TRANSFER)
        ends.append(np.stack([step.owner[source[crosses]], step.owner[target[crosses]]]))
    pairs, count = np.unique(np.concatenate(ends, axis=1), axis=1, return_counts=True)
    usual = pairs[:, count >= _BY_CHANCE * count.max(initial=0)]
    pipeline = connected(len(recording.owners), *usual)
    if len(set(np.bincount(pipeline).tolist()) - {0}) != 1 or (pipeline == pipeline[0]).sum() < 2:
        return None
    return list(occurrence_number(pipeline).tolist())


def of_stage(recording: Recording, request: EditRequest, number: int, target: str) -> Selection:
    """Select `target` ("": the computation) on the owners of stage `number`. Raises UsageError."""
    stages = pipeline_stages(recording)
    if stages is None:
        raise request.refused("no pipeline stages: no rank sends to another")
    if number not in stages:
        raise request.refused(f"the pipeline has the stages 0 to {max(stages)}")
    return select_of(recording, request, target, np.array(stages) == number)
