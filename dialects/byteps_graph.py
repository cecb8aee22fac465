"""BytePS steps as graphs: layers on threads, partitions through their stages, servers that wait.

A step lasts from where `dialects.steps` finds its begin to where it finds the next one's, and holds
whatever ran in between. The operations of a thread run one after the other; an operator starts after
those its DAG names; a communication is enqueued after the backward operation that makes its gradient,
each of its partitions passes its stages in order, and it ends with the last one. PUSH occupies the
worker's link to the servers, PULL the server's link back, which all workers share: a key is answered once
every worker has pushed it. The GPUs of a worker meet in REDUCE and BROADCAST; the root GPU pushes for all
of them, and what it pulls they copy.

Edges follow the recorded times: the source of an edge is the last event of its name that started before
the target. An edge of the DAG that leads into the next step (STEP or a communication to a forward
operation) therefore holds where the source still runs when that step begins, and no edge closes a cycle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dialects.byteps_dependencies import Span, connect, recorded_dependencies, span_of
from dialects.byteps_events import Events, GpuTrace, read_events, with_untraced
from dialects.step_parts import Joint, Kind, Meet, RankStep, RankSteps, edge_table
from dialects.steps import Step, find_steps
from errors import TraceError
from formats.columns import Int64, Trace
from opname import OpName

#: A last step whose end is not recorded is left out where it holds fewer events, of what others hold.
MIN_RECORDED = 0.9

_ALL = -1  # in place of the worker: what all workers do together


class _Role(NamedTuple):
    """What a stage has to do with those of other GPUs of its worker, or of all workers."""

    what: str
    enters: bool = False
    leaves: bool = False
    joint: Joint = Joint.END_TO_HEAD
    kind: Kind = Kind.GROUP
    all_workers: bool = False


_ROLES: Mapping[str, Sequence[_Role]] = {
    "REDUCE": [_Role("reduce", enters=True, leaves=True, joint=Joint.START_TO_BODY)],
    "COORDINATE_PUSH": [_Role("ready to push", enters=True)],
    "PUSH": [
        _Role("ready to push", leaves=True),
        _Role("pushed", enters=True, joint=Joint.END_TO_BODY, kind=Kind.MESSAGE, all_workers=True),
    ],
    "PULL": [
        _Role("pushed", leaves=True, joint=Joint.END_TO_BODY, kind=Kind.MESSAGE, all_workers=True),
        _Role("pulled", enters=True),
    ],
    "COPYH2D": [_Role("pulled", leaves=True)],
    "COORDINATE_BROADCAST": [_Role("ready to broadcast", enters=True)],
    "BROADCAST": [
        _Role("ready to broadcast", leaves=True),
        _Role("broadcast", enters=True, leaves=True, joint=Joint.START_TO_BODY),
    ],
}


def record(gpu: GpuTrace) -> RankSteps:
    """Return the steps of one GPU.

    Raises
    ------
    TraceError
        No training step is recorded in its trace.
    """
    steps = _bounds(gpu.trace)
    events = read_events(gpu)
    notes = []
    if not events.has_backward:
        events = with_untraced(events, [(step.start_ns, step.end_ns) for step in steps])
        notes.append("no forward and backward operations recorded; "
                     "the time before each gradient stands for them")  # fmt: skip
    spans = [_span(events, step) for step in steps]
    if len(steps) > 1 and steps[-1].end_ns < 0 and not _is_recorded(events, spans, steps[-1].start_ns):
        steps, spans = steps[:-1], spans[:-1]
    edges = connect(events, spans, recorded_dependencies(gpu, events))
    with_stages = {main for main, one in zip(events.mains, events.operations, strict=True) if one.stage}
    found = []
    for i, (step, span) in enumerate(zip(steps, spans, strict=True)):
        found.append(
            RankStep(
                number=step.label,
                begin_ns=step.start_ns,
                next_ns=step.end_ns,
                operation=np.array(span.operations, np.int64),
                start_ns=np.array(span.start_ns, np.int64),
                end_ns=np.array(span.end_ns, np.int64),
                edges=edge_table(edges[i]),
                meets=list(_meets(gpu, events, span, with_stages)),
                continued=_continued(spans[i - 1], span) if i else np.empty((0, 2), np.int64),
            )
        )
    return RankSteps(gpu.name, events.operations, found, notes, gpu.worker)


def _bounds(trace: Trace) -> list[Step]:
    """Return the steps of the trace; the last one ends at -1 where the next one's begin is not recorded."""
    found = find_steps(trace)
    steps = [*found.whole, *(step._replace(end_ns=-1) for step in found.partial)]
    if not steps:
        raise TraceError(f"{trace.path}: no training step is recorded in it")
    return steps


def _span(events: Events, step: Step) -> Span:
    """Return the events that ran in a step."""
    low = int(np.searchsorted(events.start_ns, step.start_ns))
    high = len(events) if step.end_ns < 0 else int(np.searchsorted(events.start_ns, step.end_ns))
    running = np.flatnonzero(events.end_ns[:low] > step.start_ns)
    rows = [*running.tolist(), *range(low, high)]
    return span_of(events, rows, step.start_ns, len(running))


def _is_recorded(events: Events, spans: Sequence[Span], begin_ns: int) -> bool:
    """Whether the last step, whose end is not recorded, is otherwise like those before.

    Where steps begin with a gradient, the computation at the end of the last one is missing.
    """
    last, before = spans[-1], [len(span.rows) - span.n_continued for span in spans[:-1]]
    first = [last.start_ns[begins[0]] for name, begins in last.begins.items() if name.is_comm]
    if not events.has_backward and first and min(first) == begin_ns:
        return False
    usual, n = float(np.median(before)), len(last.rows) - last.n_continued
    return MIN_RECORDED * usual <= n <= usual / MIN_RECORDED


def _continued(before: Span, span: Span) -> Int64:
    """Return which events (k, 2) of the step before are which events of this one."""
    place = {row: event for event, row in enumerate(before.rows)}
    pairs = [(place[row], event) for event, row in enumerate(span.rows[: span.n_continued]) if row in place]
    return np.array(pairs, np.int64).reshape(-1, 2)


def _meets(gpu: GpuTrace, events: Events, span: Span, with_stages: set[OpName]) -> Iterator[Meet]:
    """Yield what the events of a step do together with other GPUs.

    Communications recorded without stages end once every GPU has begun its own.
    """
    worker = _ALL if gpu.worker is None else gpu.worker
    turns = events.nth[span.rows].tolist()
    for event, (number, nth) in enumerate(zip(span.operations, turns, strict=True)):
        operation = events.operations[number]
        if events.is_whole(number) and events.names[number] not in with_stages:
            yield Meet((_ALL, "communicate", operation.name, nth), event, enters=True, leaves=True)
        for role in _ROLES.get(operation.stage, ()):
            key = (_ALL if role.all_workers else worker, role.what, operation.key, nth)
            yield Meet(key, event, role.enters, role.leaves, role.joint, role.kind)
