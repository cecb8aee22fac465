"""Stragglers and outliers: ranks that work, or pause, as their peers, and steps that last as usual."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from msgspec.structs import replace

from analyzer.base.arrays import Int64
from analyzer.base.units import in_percent
from analyzer.model.graph.step_graph import Recording, StepGraph
from analyzer.reading.dialects.edge_rules import EdgeKind, kinds_of
from analyzer.reading.dialects.roles import Role
from analyzer.reading.dialects.step_parts import Joint
from replay.edit import Edit, EditRequest, Job, Order, measured
from replay.selection import named_ranks
from replay.usual_times import (
    as_peers,
    as_usual,
    done_by_all,
    excess_ns,
    is_own_work,
    medians,
    of_mean_owner,
    pair_numbers,
    peers_usual,
    scaled,
    slots,
    stages,
    usual,
    with_work,
    work_by_owner,
)

#: A rank is a straggler if it works so many times as long in a step as the median of its peers.
THRESHOLD = 1.1
_STEP = re.compile(r"step(\d{1,18})")


def parse(request: EditRequest, job: Job) -> Edit | None:
    """Parse `straggler=`, `=peers` of ranks, `gap=even` and `=usual` of steps; None for any other request."""
    kinds: dict[str, Callable[[Recording], Recording]] = {
        "even": _evened,
        "mean": at_mean_work,
        "each_step": partial(_evened, over_steps=False),
    }
    if not request.asks("straggler", "none", *kinds):
        return (_of_steps if request.value == "usual" else _of_ranks)(request, job)
    if request.value == "none":
        why = why_none(job.recording)
        caution = f"straggler=none changes nothing: {why}" if why else ""
        return replace(measured(job, without_stragglers), caution=caution)
    return Edit(kinds[request.value], order=Order.EVENED)


def _of_ranks(request: EditRequest, job: Job) -> Edit | None:
    """Parse `=peers` of ranks and `gap=even`; None for any other request."""
    ranks, _, part = request.name.rpartition(".")
    if part == "gap" and request.value == "even":
        if ranks:
            raise request.refused("gaps are evened out over all ranks: gap=even")
        return Edit(_gaps_even_in_each_step, order=Order.EVENED, as_recorded=True)
    if request.value != "peers":
        return None
    if part == "gap" or (ranks and part == "extra"):
        late = named_ranks(job.recording, request, ranks)
        if part == "extra":
            return measured(job, lambda recording: _without_extra(recording, late))
        return measured(job, lambda recording: as_peers(recording, late, work=False, gaps=True))
    if part.rpartition(",")[2].startswith(("rank", "wk")):
        late = named_ranks(job.recording, request, request.name)
        return measured(job, lambda recording: as_peers(recording, late))
    raise request.refused(
        "peers is a value of a rank, its gap, its extra work or ready: e.g. rank1.gap=peers"
    )


def stragglers(recording: Recording) -> list[int]:
    """Find owners whose host or device exceeds its peers' median by `THRESHOLD` in the median step."""
    if len(recording.owners) < 2:
        return []
    group = stages(recording)
    work_of_rank = recording.which(lambda op: not op.is_communication)
    on_device = recording.which(lambda op: op.on_device)
    slow: set[int] = set()
    for chosen in (on_device, ~on_device):
        work = work_by_owner(recording, work_of_rank & chosen)
        ratio = np.median(work / np.maximum(peers_usual(work, group), 1), axis=0)
        slow.update(np.flatnonzero(ratio > THRESHOLD).tolist())
    return sorted(slow)


def why_none(recording: Recording) -> str:
    """Explain why `without_stragglers` changes nothing; "" if there is a straggler."""
    if len(recording.owners) > 1:
        why = f"no rank works {in_percent(THRESHOLD - 1)} longer than its peers in the median step"
        return "" if stragglers(recording) else why
    if any(op.role is Role.WAIT for op in recording.operations.kinds):
        unknown = "a Horovod timeline is that of rank 0 and does not tell the ranks' own work apart"
        return f"{unknown}; try rank1.ready=peers"
    return "only one rank is recorded, without a peer to compare it with"


def without_stragglers(recording: Recording) -> Recording:
    """Make stragglers work, and pause, as long as their peers."""
    slow = stragglers(recording)
    if len(slow) == len(recording.owners):
        return recording
    return as_peers(recording, slow, gaps=True, over_steps=False)


def _evened(recording: Recording, *, over_steps: bool = True) -> Recording:
    work = recording.which(lambda op: not op.is_communication)
    chosen = work & done_by_all(recording) if over_steps else work
    return as_usual(recording, "work_ns", of_mean_owner, chosen, over_steps=over_steps)


def at_mean_work(recording: Recording) -> Recording:
    """Give each kind of work its mean over ranks and steps, so that no rank is behind another.

    A kind is a name and the number of ranks that take part: a reduction of two ranks differs from one of all
    (S of the published pipelines). A transfer (communication without the waiting for others) takes the median
    of its kind. A job of one rank stays: its operations of one name need not be alike.
    """
    if len(recording.owners) < 2:
        return recording
    steps = recording.steps
    _, name = recording.numbered(lambda op: op.name)
    moves = recording.which(lambda op: op.is_communication)
    operation = np.concatenate([step.operation for step in steps])
    work = np.concatenate([step.work_ns for step in steps])
    kind = pair_numbers(name[operation], np.concatenate([_others_met(step) for step in steps]))
    n_kinds = int(kind.max(initial=-1)) + 1
    mean = np.bincount(kind, work, n_kinds) / np.maximum(np.bincount(kind, minlength=n_kinds), 1)
    ideal = np.where(
        moves[operation], medians(kind, work, n_kinds)[kind], np.rint(mean).astype(np.int64)[kind]
    )
    of_steps = np.split(ideal, np.cumsum([len(step) for step in steps])[:-1])
    return with_work(recording, of_steps)


def _others_met(step: StepGraph) -> Int64:
    """Count the other ranks that each event (n,) of a step waits for.

    Many ranks enter an event that stands for their meeting; two wait for each other directly.
    """
    source, target, joint, _ = step.edges.T
    entered = np.bincount(target[joint == Joint.START_TO_HEAD], minlength=len(step))
    meets = (joint >= Joint.END_TO_BODY) & np.isin(kinds_of(step.edges), (EdgeKind.GROUP, EdgeKind.DATA))
    others = np.where(joint == Joint.END_TO_BODY, entered[source], 1)
    return np.bincount(target[meets], others[meets], len(step)).astype(np.int64)


def _without_extra(recording: Recording, late: Sequence[int]) -> Recording:
    """Shorten work that not all ranks do, until the `late` owners work no longer than their peers.

    A kernel with another name on another rank is no additional work: the time removed is at most the excess
    of all own work of the late owners over their peers.
    """
    work, group = is_own_work(recording), stages(recording)
    extra = work & ~done_by_all(recording)
    chosen = extra & recording.which(lambda op: op.owner in late)
    more = min(excess_ns(work_by_owner(recording, part), late, group) for part in (work, extra))
    taken = float(np.median(work_by_owner(recording, chosen)[:, list(late)].mean(axis=1)))
    return scaled(recording, np.where(chosen, max(1 - more / max(taken, 1.0), 0.0), 1.0))


def _gaps_even_in_each_step(recording: Recording) -> Recording:
    everything = np.ones(len(recording.operations), np.bool_)
    return as_usual(
        recording, "gap_ns", of_mean_owner, everything, kind_of=lambda op: "gap", over_steps=False, most=1.0
    )


# ---- steps


def _of_steps(request: EditRequest, job: Job) -> Edit:
    """Parse `step<n>=usual`."""
    row_of = {step.number: row for row, step in enumerate(job.recording.bounds)}
    rows = []
    for name in request.name.split(","):
        match = _STEP.fullmatch(name)
        if match is None or int(match[1]) not in row_of:
            raise request.refused(f"there is no such step; the steps are {min(row_of)} to {max(row_of)}")
        rows.append(row_of[int(match[1])])

    def apply(recording: Recording) -> Recording:
        return at_usual_length(recording, rows, job.apart)

    return Edit(apply, order=Order.LIMITS, as_recorded=True)


def at_usual_length(recording: Recording, rows: Sequence[int], of: Recording | None = None) -> Recording:
    """Shorten each event of the steps `rows`, and the gap before it, to its median over the steps.

    The medians are of the same recording, or of a recording `of` the same events. Events in few steps (an
    evaluation) take no time.
    """
    of = recording if of is None else of
    number = slots(of.steps)
    longest_ns = {}
    for column in ("work_ns", "gap_ns"):
        times, median_ns = usual(column, of.steps, number)
        longest_ns[column] = np.where(2 * times < len(of.steps), 0, median_ns)
    usual_tail = np.median([step.tail_ns for step in of.steps], axis=0).astype(np.int64)
    steps = list(recording.steps)
    for row in rows:
        step, slot = steps[row], number[row]
        limited = {
            column: np.minimum(getattr(step, column), longest[slot]) for column, longest in longest_ns.items()
        }
        steps[row] = replace(step, **limited, tail_ns=np.minimum(step.tail_ns, usual_tail))
    return recording.with_steps(steps)
