"""A step as a timeline, with the critical path through it; of many ranks those that matter."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from analyzer.base.arrays import Int64
from analyzer.base.arrays.numbering import unique
from analyzer.base.errors import listed
from analyzer.base.names import brief
from analyzer.base.units import in_ms
from analyzer.model.graph.step_graph import Bool, Recording, StepGraph
from analyzer.reading.dialects.step_parts import Operation
from analyzer.report.result import OnPath, Span, Timeline, key_of, stretch_key
from dag_utils import CriticalPath, NamedPath, step_length

#: Most ranks and boxes in a drawing: those on the path and the longest.
MOST_RANKS = 16
MOST_BOXES = 8_000
#: Most stretches of the path in a drawing: the longest; each also covers the shorter ones after it.
MOST_STRETCHES = 3_000
#: Most ranks with a lane for each stage of communication.
_EACH_STAGE = 4
#: Share of the step; a clock bound above it is visible in the drawing and gets a note.
_FAR_OFF = 0.05


class _Lanes(NamedTuple):
    """The lanes of a timeline in their order, and which of them each operation (n,) is drawn in."""

    names: Sequence[str]
    of: Int64


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

    Parameters
    ----------
    parts : as for `NamedPath.of`, whose names are the keys of the path's stretches
    first : the owners to be shown in any case; of more than 16 those on the path come next, then those whose
        work differs most from the median's
    lasts_ns : as of `step_length`, for the title

    Of very many boxes those that are not on the path are left out, the shortest first.
    """
    owners = _shown(recording, step, path, first)
    lanes = _lanes(recording, step, owners)
    marks = _marks(recording, step, path, parts)
    on_path = np.zeros(len(step), np.bool_)
    on_path[[mark.span for mark in marks]] = True
    is_drawn = np.isin(step.owner, owners) & (_is_part(recording)[step.operation] | on_path)
    is_drawn &= (step.end_ns > step.start_ns) | on_path
    events = np.flatnonzero(is_drawn)
    events = events[np.lexsort((step.start_ns[events] - step.end_ns[events], ~on_path[events]))]
    left_out, events = len(events[MOST_BOXES:]), np.sort(events[:MOST_BOXES])
    zero = int(step.begin_ns[path.owner])
    spans = [_span(recording, step, lanes, event, zero) for event in events.tolist()]
    index = {event: i for i, event in enumerate(events.tolist())}
    n = len(recording.owners)
    notes = [*_apart(recording, owners, path)]
    if n > len(owners):
        notes.insert(
            0, f"{len(owners)} of {n:,} ranks are drawn: those on the path, then those that differ most."
        )
    if left_out:
        notes.append(f"{left_out:,} boxes are left out: the shortest beside the path.")
    row = {name: i for i, name in enumerate(lanes.names)}
    order = sorted(range(len(spans)), key=lambda i: (row[spans[i].lane], spans[i].start_ms))
    moved = {old: new for new, old in enumerate(order)}
    drawn = [mark._replace(span=moved[index[mark.span]]) for mark in marks if mark.span in index]
    title = f"{title}: {step_length(recording, step, path, lasts_ns)}"
    return Timeline(title, [spans[i] for i in order], path=drawn, note=" ".join(notes))


def _apart(recording: Recording, owners: Sequence[int], path: CriticalPath) -> Iterator[str]:
    """Yield a note that names the owners with loosely tied clocks, and how far their boxes may be off."""
    bounds = recording.clock_bounds_ns
    far = [owner for owner in owners if bounds and bounds[owner] > _FAR_OFF * path.length_ns]
    if far:
        most = in_ms(max(bounds[owner] for owner in far))
        names = listed([recording.owners[owner] for owner in far])
        yield f"{names} may lie up to {most} to either side: the clocks cannot be tied closer."


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


def _lanes(recording: Recording, step: StepGraph, owners: Sequence[int]) -> _Lanes:
    """Give each owner its lanes: input, computation, device, communication."""
    kinds = [_kind(operation, len(owners)) for operation in recording.operations]
    begin = np.full(len(kinds), np.iinfo(np.int64).max)
    of_shown = np.isin(step.owner, owners)
    np.minimum.at(begin, step.operation[of_shown], step.start_ns[of_shown])
    begun: dict[str, int] = {}
    for number in unique(step.operation[of_shown]).tolist():
        begun[kinds[number]] = min(begun.get(kinds[number], int(begin[number])), int(begin[number]))
    fixed = ("input", "computation", "device")
    known = {kind: i for i, kind in enumerate(fixed)}
    order = sorted(begun, key=lambda kind: (known.get(kind, len(fixed)), begun[kind]))
    several = len(recording.owners) > 1
    names = [f"{recording.owners[owner]} {kind}" if several else kind for owner in owners for kind in order]
    column, row = {kind: i for i, kind in enumerate(order)}, {owner: i for i, owner in enumerate(owners)}
    of = [
        row.get(operation.owner, 0) * len(order) + column.get(kind, 0)
        for operation, kind in zip(recording.operations, kinds, strict=True)
    ]
    return _Lanes(names, np.array(of, np.int64))


def _kind(operation: Operation, n_owners: int) -> str:
    if operation.is_communication:
        return (operation.transfer.stage if n_owners <= _EACH_STAGE else "") or "communication"
    if not operation.is_compute:
        return "input"
    return "device" if operation.on_device else "computation"


def _is_part(recording: Recording) -> Bool:
    """Mark the operations (n,) to draw: all except communications whose parts are drawn."""
    divided = {
        (operation.owner, operation.transfer.whole)
        for operation in recording.operations
        if operation.transfer.whole
    }
    return recording.which(lambda operation: (operation.owner, operation.name) not in divided)


# ---- boxes


def _span(recording: Recording, step: StepGraph, lanes: _Lanes, event: int, zero: int) -> Span:
    number = int(step.operation[event])
    operation = recording.operations[number]
    owner = recording.owners[operation.owner]
    keys = dict.fromkeys((key_of(owner, operation.main), key_of(owner, operation.label)))
    start, end = int(step.start_ns[event]), int(step.end_ns[event])
    lane = lanes.names[lanes.of[number]]
    return Span(
        lane,
        brief(operation.label),
        (start - zero) / 1e6,
        (end - start) / 1e6,
        group_of(operation),
        (*keys,),
    )


def _words(name: str, operation: Operation, *, is_idle: bool) -> str:
    """Name a stretch of the path, with the stage of a transfer and without decoration.

    ``PULL dense0_weight``; ``idle before Memset`` where nothing ran; ``forward`` for ``## forward ##``.
    """
    name = brief(name)
    if is_idle:
        return f"idle {name}" if name.startswith("before ") else name
    stage = operation.transfer.stage
    if stage and stage not in name:
        return f"{stage} {name.removeprefix(f'{operation.cat}.')}"
    return name


def group_of(operation: Operation) -> str:
    """Choose the group that decides the colour: the stage of a transfer, else the kind of work."""
    return operation.transfer.stage or operation.kind_of_work or "other"


# ---- the path


def _marks(recording: Recording, step: StepGraph, path: CriticalPath, parts: bool) -> list[OnPath]:
    """Choose the stretches to draw; their `span` is still the number of an event.

    One without an event is drawn beside the next one that has, or the last.
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
    first = np.arange(n)
    if n > MOST_STRETCHES:
        first = np.sort(np.argsort(-named.dur_ns, kind="stable")[:MOST_STRETCHES])
    dur_ms = np.add.reduceat(named.dur_ns, first) / 1e6
    columns = (
        beside[first],
        named.start_ns[first] / 1e6,
        dur_ms,
        named.label[first],
        path.cat[first] > 0,
        item[first],
    )
    return [
        OnPath(
            event,
            start,
            duration,
            _words(named.labels[label].name, recording.operations[step.operation[event]], is_idle=is_idle),
            is_idle,
            (keys[label], stretch_key(number)),
        )
        for event, start, duration, label, is_idle, number in zip(
            *(column.tolist() for column in columns), strict=True
        )
    ]
