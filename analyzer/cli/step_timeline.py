"""A step as a timeline with its critical path; of many ranks, those on the path and the most different."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from analyzer.base.arrays import Int64, Mask
from analyzer.base.errors import listed
from analyzer.base.names import brief
from analyzer.base.units import in_ms
from analyzer.model.graph.step_graph import Recording, StepGraph
from analyzer.reading.dialects.roles import Role
from analyzer.reading.dialects.step_parts import Operation
from analyzer.report.result import IDLE, Span, Timeline, key_of, stretch_key
from dag_utils import CriticalPath, NamedPath, step_length

#: Most ranks and boxes in a drawing.
MOST_RANKS = 16
MOST_BOXES = 8_000
#: Most stretches of the path in a drawing: the longest; each covers the shorter stretches after it, too.
MOST_STRETCHES = 3_000
#: Most ranks with a lane for each stage of communication.
_EACH_STAGE = 4
#: Share of the step; a larger clock bound is visible in the drawing and gets a note.
_FAR_OFF = 0.05


def step_timeline(
    title: str,
    recording: Recording,
    step: StepGraph,
    path: CriticalPath,
    *,
    parts: bool = False,
    first: Collection[str] = (),
    lasts_ns: float | None = None,
) -> Timeline:
    """Draw `step` to scale, from its start on the owner that ends last.

    The owners `first` are always drawn. If there are more than 16, the owners on the path come next, then
    those whose work differs most from the median. If there are too many boxes, the shortest boxes beside the
    path are left out. `parts` is that of `NamedPath.of`, `lasts_ns` that of `step_length`.
    """
    owners = _shown(recording, step, path, first)
    lanes, lane_of = _lanes(recording, step, owners)
    marks = _marks(recording, step, path, parts)
    on_path = np.zeros(len(step), np.bool_)
    on_path[[mark.on for mark in marks]] = True
    is_drawn = np.isin(step.owner, owners) & (_is_part(recording)[step.operation] | on_path)
    is_drawn &= (step.end_ns > step.start_ns) | on_path
    events = np.flatnonzero(is_drawn)
    events = events[np.lexsort((step.start_ns[events] - step.end_ns[events], ~on_path[events]))]
    left_out, events = len(events[MOST_BOXES:]), np.sort(events[:MOST_BOXES])
    events = events[np.lexsort((step.start_ns[events], lane_of[step.operation[events]]))]
    zero = int(step.begin_ns[path.owner])
    spans = []
    for event in events.tolist():
        operation = recording.operations[step.operation[event]]
        lane, owner = lanes[lane_of[step.operation[event]]], recording.owners[operation.owner]
        start, end = int(step.start_ns[event]), int(step.end_ns[event])
        times = ((start - zero) / 1e6, (end - start) / 1e6)
        keys = dict.fromkeys((key_of(owner, operation.main), key_of(owner, operation.label)))
        spans.append(Span(lane, brief(operation.label), *times, _group(operation), (*keys,)))
    index = {event: i for i, event in enumerate(events.tolist())}
    drawn = [mark._replace(on=index[mark.on]) for mark in marks if mark.on in index]
    title = f"{title}: {step_length(recording, step, path, lasts_ns)}"
    return Timeline(title, spans, path=drawn, note=" ".join(_notes(recording, owners, path, left_out)))


def _notes(recording: Recording, owners: Sequence[int], path: CriticalPath, left_out: int) -> Iterator[str]:
    """Yield notes on ranks that are not drawn, loosely tied clocks, and boxes left out."""
    n, bounds = len(recording.owners), recording.clock_bounds_ns
    if n > len(owners):
        yield f"{len(owners)} of {n:,} ranks are drawn: those on the path, then those that differ most."
    if far := [owner for owner in owners if bounds and bounds[owner] > _FAR_OFF * path.length_ns]:
        most = in_ms(max(bounds[owner] for owner in far))
        names = listed([recording.owners[owner] for owner in far])
        yield f"{names} may lie up to {most} to either side: the clocks cannot be tied closer."
    if left_out:
        yield f"{left_out:,} boxes are left out: the shortest beside the path."


def _shown(recording: Recording, step: StepGraph, path: CriticalPath, first: Collection[str]) -> list[int]:
    """Choose the owners to draw, in their order."""
    n = len(recording.owners)
    on_path = np.bincount(path.owners, path.end_ns - path.start_ns, n)
    work = np.bincount(step.owner, step.work_ns, n)
    wanted = np.array([owner in first for owner in recording.owners])
    order = np.lexsort((-work, -np.abs(work - np.median(work)), -on_path, ~wanted))
    shown: list[int] = np.sort(order[:MOST_RANKS]).tolist()
    return shown


# ---- lanes


def _lanes(recording: Recording, step: StepGraph, owners: Sequence[int]) -> tuple[list[str], Int64]:
    """Name the lanes of the owners in order; return also the lane of each operation (n,).

    Each owner has lanes for input, computation, device and, by their first start, communication.
    """
    kinds = [_kind(operation, len(owners)) for operation in recording.operations]
    begun: dict[str, int] = {}
    events = np.flatnonzero(np.isin(step.owner, owners))
    for event in events[np.argsort(step.start_ns[events], kind="stable")].tolist():
        begun.setdefault(kinds[step.operation[event]], len(begun))
    fixed = {"input": -3, "computation": -2, "device": -1}
    order = sorted(begun, key=lambda kind: fixed.get(kind, begun[kind]))
    several = len(recording.owners) > 1
    names = [f"{recording.owners[owner]} {kind}" if several else kind for owner in owners for kind in order]
    column, row = {kind: i for i, kind in enumerate(order)}, {owner: i for i, owner in enumerate(owners)}
    lane_of = [
        row.get(operation.owner, 0) * len(order) + column.get(kind, 0)
        for operation, kind in zip(recording.operations, kinds, strict=True)
    ]
    return names, np.array(lane_of, np.int64)


def _kind(operation: Operation, n_owners: int) -> str:
    if operation.is_communication:
        return (operation.transfer.stage if n_owners <= _EACH_STAGE else "") or "communication"
    if not operation.is_compute:
        return "input"
    return "device" if operation.on_device else "computation"


def _group(operation: Operation) -> str:
    """Choose what is coloured alike: JAX gives each call of its runtime a kind of its own."""
    return "host" if operation.role is Role.HOST and not operation.purpose else operation.stage_or_kind


def _is_part(recording: Recording) -> Mask:
    """Mark the operations (n,) to draw: all except communications whose parts are drawn."""
    transfers = [(operation.owner, operation.transfer.whole) for operation in recording.operations]
    divided = {(owner, whole) for owner, whole in transfers if whole}
    return recording.which(lambda operation: (operation.owner, operation.name) not in divided)


def _words(name: str, operation: Operation, *, is_idle: bool) -> str:
    """Name a stretch of the path, with the stage of a transfer and without decoration.

    ``PULL dense0_weight``; ``idle before Memset`` for a gap; ``forward`` for ``## forward ##``.
    """
    name = brief(name)
    if is_idle:
        return f"idle {name}" if name.startswith("before ") else name
    stage = operation.transfer.stage
    if stage and stage not in name:
        return f"{stage} {name.removeprefix(f'{operation.cat}.')}"
    return name


# ---- the path


def _marks(recording: Recording, step: StepGraph, path: CriticalPath, parts: bool) -> list[Span]:
    """Choose the stretches to draw; each is still `on` the number of an event.

    A stretch without an event is drawn beside the next event, or the last.
    """
    named = NamedPath.of(recording, path, parts=parts, merged=False)
    n = len(named)
    with_event = np.flatnonzero(path.event >= 0)
    if len(with_event) == 0:
        return []
    beside = path.event[
        with_event[np.minimum(np.searchsorted(with_event, np.arange(n)), len(with_event) - 1)]
    ]
    item = np.cumsum(np.diff(named.label, prepend=named.label[:1]) != 0)  # number in the merged path
    keys = [key_of(label.owner, label.name) for label in named.labels]
    first = np.sort(np.argsort(-named.dur_ns, kind="stable")[:MOST_STRETCHES])
    dur_ms = np.add.reduceat(named.dur_ns, first) / 1e6
    start_ms, is_idle = named.start_ns[first] / 1e6, path.cat[first] > 0
    columns = (beside[first], start_ms, dur_ms, named.label[first], is_idle, item[first])
    marks = []
    for event, start, duration, label, idle, number in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        operation = recording.operations[step.operation[event]]
        words = _words(named.labels[label].name, operation, is_idle=idle)
        group = IDLE if idle else _group(operation)
        marks.append(Span("", words, start, duration, group, (keys[label], stretch_key(number)), on=event))
    return marks
