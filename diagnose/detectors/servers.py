"""BytePS's servers: pulls that take longer than their bytes, and the order in which tensors are sent."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec.structs import replace

from dag.step_graph import NO_LINK, Recording, StepGraph
from diagnose.detectors.slow_transfers import NO_BYTES
from diagnose.finding import Finding, Skipped
from diagnose.job_view import JobView
from dialects.step_parts import Operation
from replay.whatif.bandwidth import is_sized, link_rate
from replay.whatif.edits import apply
from result import in_ms

#: A server that holds this many times the bytes of the mean one has too many.
_UNEVEN = 1.5
_NO_LINKS = "no links to servers are recorded"


def slow_server(view: JobView) -> Iterator[Finding | Skipped]:
    """Find pulls that take longer than their bytes although everything was pushed: the server's own time."""
    recording = view.recording
    pulls = view.which(_is_pull)
    if not pulls.any():
        yield Skipped("server", _NO_LINKS)
        return
    known = link_rate(recording) if is_sized(recording) else None
    if known is None:
        yield Skipped("server", f"{NO_BYTES}; BytePS's log has them")
        return
    rate = known.carried
    wire = recording.column(lambda one: one.n_bytes) / rate
    beyond = []
    for step in view.steps:
        mine = pulls[step.operation]
        beyond.append(np.maximum(step.work_ns - wire[step.operation], 0)[mine].sum() / len(recording.owners))
    usual = float(np.median(beyond))
    uneven = _uneven_servers(view)
    yield Finding(
        kind="server",
        title=f"the servers take {in_ms(usual)} a step of each worker beyond the time of the bytes",
        cause="pulls end that much after the last push and the time that their bytes need"
        + uneven
        + view.network,
        action="give the servers more cores or threads (BYTEPS_SERVER_ENGINE_THREAD), or use more servers",
        edit=lambda one: _as_fast_as_wire(one, rate),
        ranks=recording.owners,
        operations=["PULL"],
        evidence=view.show(pulls, 3),
        caveat="an upper bound: servers that take no time at all",
    )


def _is_pull(one: Operation) -> bool:
    return bool(one.link) and one.stage == "PULL"


def _uneven_servers(view: JobView) -> str:
    """Return how uneven the bytes lie on the servers, as words that end a cause; "" where they are even."""
    load: dict[str, int] = {}
    for one in view.recording.operations:
        if one.stage == "PULL" and one.owner == 0:
            load[one.link] = load.get(one.link, 0) + one.n_bytes
    if len(load) < 2 or max(load.values()) < _UNEVEN * np.mean(list(load.values())):
        return ""
    most = max(load, key=lambda link: load[link])
    return f"; {most.removesuffix(' PULL')} holds {load[most] / sum(load.values()):.0%} of the bytes"


def _as_fast_as_wire(recording: Recording, rate: float) -> Recording:
    """Return the recording in which pulls take no longer than their bytes at `rate` (bytes/ns)."""
    pulls = recording.which(_is_pull)
    wire_ns = recording.column(lambda one: one.n_bytes) / rate

    def edited(step: StepGraph) -> StepGraph:
        least = np.minimum(step.work_ns, np.rint(wire_ns[step.operation])).astype(np.int64)
        return replace(step, work_ns=np.where(pulls[step.operation], least, step.work_ns))

    return recording.edited(edited)


def priority_inversion(view: JobView) -> Iterator[Finding | Skipped]:
    """Find tensors that the next step needs first and that are sent last."""
    if not view.recording.links:
        yield Skipped("priority_inversion", _NO_LINKS)
        return
    late = _overtaken(view)
    if late is None:
        return
    first, share = late
    yield Finding(
        kind="priority_inversion",
        title=f"{first} is needed first but waits behind others",
        cause=f"in {share:.0%} of the steps one that the next forward pass needs later was sent before it",
        action="send by priority (BYTEPS_SCHEDULING_CREDIT, smaller partitions)",
        edit=lambda one: apply(one, ["schedule=priority"]),
        change="schedule=priority",
        ranks=view.recording.owners,
        operations=[first],
        evidence=view.show(view.which(lambda one: one.main == first and one.stage == "PUSH"), 1),
    )


def _overtaken(view: JobView) -> tuple[str, float] | None:
    """Return the tensor of the lowest index that waited for another on its link, and in how many steps."""
    recording = view.recording
    index = recording.column(lambda one: -1 if one.key is None else one.key >> 16)
    waited: dict[int, int] = {}
    for step in view.steps:
        moving = np.flatnonzero((step.link != NO_LINK) & (step.end_ns - step.start_ns > step.work_ns))
        late = set()
        for event in moving.tolist():
            same = (step.link == step.link[event]) & (index[step.operation] > index[step.operation[event]])
            same &= (step.end_ns > step.start_ns[event]) & (step.end_ns <= step.end_ns[event])
            if same.any():
                late.add(int(index[step.operation[event]]))
        for one in late:
            waited[one] = waited.get(one, 0) + 1
    if not waited:
        return None
    lowest = min(waited)
    name = next(one.main for one in recording.table.kinds if one.key is not None and one.key >> 16 == lowest)
    return name, waited[lowest] / len(view.rows)
