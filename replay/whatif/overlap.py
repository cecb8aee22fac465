"""Gradients that are reduced only when the backward pass of their rank has ended."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from arrays import Int64
from dag.step_graph import Bool, Recording, StepGraph, operation_edges
from dialects.roles import Phase
from dialects.step_parts import EdgeKind, Joint
from replay.edit import Edit, EditRequest, Job
from replay.engine import make_plan, simulate

NAME = "overlap=off"
HELP = "collectives of the gradients begin only when the backward pass of their rank has ended"


def parse(request: EditRequest, job: Job) -> Edit | None:
    """Return the edit without overlap; None for any other request."""
    if not request.asks("overlap", "off"):
        return None
    recording = job.recording
    if not any(gradients(recording, recording.steps[row])[0].any() for row in recording.whole_steps):
        raise request.refused("no collective that reduces gradients is known to begin in a backward pass")
    return Edit(lambda recording, _: without_overlap(recording), order=1)


def without_overlap(recording: Recording) -> Recording:
    """Return the recording in which collectives of the gradients wait for their rank's backward pass.

    What itself waits for one of them (buckets that are copied back) is not counted to that pass.
    """
    track = recording.numbered(lambda one: (one.owner, one.track))[1]

    def edited(step: StepGraph) -> StepGraph:
        reduces, works = gradients(recording, step)
        works &= ~_after(step, reduces)
        own = np.flatnonzero(works)
        own = own[np.lexsort((step.end_ns[own], track[step.operation[own]]))]
        last = own[np.diff(track[step.operation[own]], append=-1) != 0]  # of each thread, or stream
        late, early = np.nonzero(step.owner[None, last] == step.owner[reduces, None])
        chosen = np.flatnonzero(reduces)[late]
        zeros = np.zeros_like(chosen)
        edges = np.column_stack((last[early], chosen, zeros + Joint.END_TO_HEAD, zeros + EdgeKind.DATA))
        # one that began after the pass anyway begins when it did: its gap is from its last input on
        after = step.start_ns[chosen] - step.end_ns[last[early]]
        gap = step.gap_ns.copy()
        np.minimum.at(gap, chosen, np.where(after >= 0, after, step.gap_ns[chosen]).astype(gap.dtype))
        return replace(step, edges=np.concatenate((step.edges, edges)).astype(step.edges.dtype), gap_ns=gap)

    return recording.edited(edited)


def gradients(recording: Recording, step: StepGraph) -> tuple[Bool, Bool]:
    """Return which events (n,) of a step are collectives of the gradients, and which are the backward pass.

    A rank launches the former in its backward pass, and nothing there waits for them until it has launched
    the last one. (A collective that the rest of the pass waits for is a part of the model.)
    """
    moves = recording.which(lambda one: one.is_communication)[step.operation]
    together = recording.which(lambda one: one.is_communication and one.is_collective)[step.operation]
    works = recording.which(lambda one: one.phase is Phase.BACKWARD)[step.operation] & ~moves
    launch, launched = step.edges[step.edges[:, 3] == EdgeKind.LAUNCH, :2].T
    asked_ns = step.start_ns.copy()  # when the host began the call that launched it
    asked_ns[launched] = step.start_ns[launch]
    begin, end, last = (np.full(len(recording.owners), at) for at in (np.iinfo(np.int64).max, -1, -1))
    np.minimum.at(begin, step.owner[works], step.start_ns[works])
    np.maximum.at(end, step.owner[works], step.end_ns[works])
    reduces = together & (asked_ns >= begin[step.owner]) & (asked_ns <= end[step.owner])
    np.maximum.at(last, step.owner[reduces], asked_ns[reduces])
    works[launched[works[launch] & ~moves[launched]]] = True
    goes_on = works & (asked_ns < last[step.owner])
    return reduces & ~_leads_to(step, goes_on, but_through=reduces), works


def _after(step: StepGraph, chosen: Bool) -> Bool:
    """Return which events (n,) of a step cannot end before one of the `chosen` (n,) has begun."""
    return _reached(*operation_edges(step.edges), chosen)[1::2]


def _leads_to(step: StepGraph, chosen: Bool, *, but_through: Bool) -> Bool:
    """Return which events (n,) the `chosen` wait for, directly or through any but those."""
    source, target = operation_edges(step.edges[~but_through[step.edges[:, 1]]])
    return _reached(target ^ 1, source ^ 1, chosen)[::2]


def _reached(source: Int64, target: Int64, chosen: Bool) -> Bool:
    """Return which heads (2i) and bodies (2i + 1) come after the head of a chosen event, or are it.

    A plan in which only these heads take time delays what comes after them, and nothing else.
    """
    heads = np.arange(0, 2 * len(chosen), 2)
    edges = np.concatenate((np.column_stack((source, target)), np.column_stack((heads, heads + 1))))
    delay = np.zeros(2 * len(chosen), np.int64)
    delay[::2] = chosen
    return simulate(make_plan(delay, edges)).end_ns > 0
