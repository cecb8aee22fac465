"""A step as a timeline, with the critical path through it; of many ranks those that matter."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from arrays import Int64
from arrays.numbering import unique
from dag.critical_path import CATS, NO_EVENT, CriticalPath
from dag.path_summary import kind_of_work, named_path, step_length
from dag.step_graph import Bool, Recording, StepGraph
from dialects.step_parts import Operation
from errors import listed
from function_names import brief
from result import Bars, OnPath, Span, Timeline, in_ms

#: Ranks that are drawn at most, and boxes: shorter ones that follow each other become one.
MOST_RANKS = 16
MOST_BOXES = 8_000
#: Stretches of the path that are drawn at most: the longest; one before shorter ones goes on in their place.
MOST_STRETCHES = 3_000
#: Up to so many ranks each stage of communication has a lane; up to so many input and device have theirs.
_EACH_STAGE, _EACH_KIND = 4, 12
_FINEST, _COARSEST = 4_000, 25  # boxes are joined across breaks of this part of the step, from fine to coarse
#: A clock that may be further off than this part of the step: the eye would see it.
_FAR_OFF = 0.05
#: Ranks whose work differs by less than this part of the median rank's are alike.
_ALIKE = 0.05
_MOST_PARTS = 12  # of a path that have a bar of their own
_LEAST_PART = 0.01  # of the path, which a rank's part of it needs to be drawn


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
    """Return `step` drawn to scale, from the start of the step on the owner that ends last.

    Parameters
    ----------
    parts : as for `named_path`, whose names are the keys of the path's stretches
    first : the owners to be shown in any case; of more than 16 those on the path come next, then those whose
        work differs most from the median's; one stands for all that work alike
    lasts_ns : as of `step_length`, for the title

    Boxes that are not on the path and that nobody could see are joined where they follow each other.
    """
    owners, n_alike = _shown(recording, step, path, first)
    bounds = recording.clock_bounds_ns
    far = {one: bounds[one] for one in owners if bounds and bounds[one] > _FAR_OFF * path.length_ns}
    names = list(recording.owners)
    if n_alike:
        names[owners[-1]] = f"alike×{n_alike:,}"
    lanes = _lanes(recording, step, owners, far, names)
    marks = _marks(recording, step, path, parts)
    on_path = np.zeros(len(step), np.bool_)
    on_path[[mark.span for mark in marks]] = True
    is_drawn = np.isin(step.owner, owners) & (_is_part(recording)[step.operation] | on_path)
    is_drawn &= (step.end_ns > step.start_ns) | on_path
    single, joined = _joined(recording, step, lanes, is_drawn, on_path)
    zero = int(step.begin_ns[path.owner])
    spans = [_span(recording, step, lanes, event, zero) for event in single.tolist()]
    spans += [_together(recording, step, lanes, events, zero) for events in joined]
    place = {event: i for i, event in enumerate(single.tolist())}
    n = len(recording.owners)
    few = f"{len(owners)} of {n:,} ranks are drawn: those on the path, then those that differ most"
    few += f"; {recording.owners[owners[-1]]} stands for {n_alike:,} that work alike." if n_alike else "."
    notes = [*((few,) if n > len(owners) else ()), *_apart(recording, far)]
    row = {name: i for i, name in enumerate(lanes.names)}
    order = sorted(range(len(spans)), key=lambda i: (row[spans[i].lane], spans[i].start_ms))
    moved = {old: new for new, old in enumerate(order)}
    drawn = [mark._replace(span=moved[place[mark.span]]) for mark in marks if mark.span in place]
    title = f"{title}: {step_length(recording, step, path, lasts_ns)}"
    return Timeline(title, [spans[i] for i in order], path=drawn, note=" ".join(notes))


def _apart(recording: Recording, far: Mapping[int, float]) -> Iterator[str]:
    """Yield whose boxes may lie elsewhere beside those of the others, `far` by so many nanoseconds."""
    if far:
        most = in_ms(max(far.values()))
        names = listed([recording.owners[one] for one in far])
        yield f"{names} may lie up to {most} to either side: the clocks cannot be tied closer."


def path_bars(title: str, recording: Recording, step: StepGraph, path: CriticalPath) -> Bars:
    """Return the parts of the path (ms), coloured as the timeline."""
    sums: dict[tuple[str, str], int] = {}
    named = named_path(recording, path, merged=False)
    several = len(set(path.owners.tolist())) > 1
    names = [
        f"{brief(label.name)} on {label.owner}" if several else brief(label.name) for label in named.labels
    ]
    groups = [group_of(operation) for operation in recording.operations]
    columns = (named.label, path.cat, path.operation, named.dur_ns)
    for label, cat, operation, ns in zip(*(column.tolist() for column in columns), strict=True):
        key = names[label], CATS[cat] or groups[operation]
        sums[key] = sums.get(key, 0) + ns
    last = f" on {recording.owners[path.owner]}, which ends last" if len(recording.owners) > 1 else ""
    return bars_of(title, f"ms{last or ' of the step'}, along its critical path", sums)


def bars_of(title: str, label: str, sums: Mapping[tuple[str, str], int]) -> Bars:
    """Return nanoseconds by (name, group) as bars: the largest, and all others as one."""
    largest = sorted(sums, key=lambda key: -sums[key])
    parts = [(name, sums[name, group] / 1e6, group) for name, group in largest[:_MOST_PARTS]]
    if rest := [sums[key] for key in largest[_MOST_PARTS:]]:
        parts.append((f"rest ({len(rest)})", sum(rest) / 1e6, "rest"))
    series = {
        group: [ms if group == of_part else None for _, ms, of_part in parts]
        for group in dict.fromkeys(group for *_, group in parts)
    }
    return Bars(title, label, "", [name for name, *_ in parts], series, stacked=True, horizontal=True)


def key_of(owner: str, name: str) -> str:
    """Return the key of what an owner does under a name (see `Table.about`)."""
    return f"{owner}.{name}"


def stretch_key(place: int) -> str:
    """Return the key of the stretch at `place` of a `named_path`."""
    return f"#{place}"


def _shown(
    recording: Recording, step: StepGraph, path: CriticalPath, first: Collection[str]
) -> tuple[list[int], int]:
    """Return the owners that are drawn, in their order, and for how many the last one stands, if any."""
    n = len(recording.owners)
    if n <= MOST_RANKS:
        return list(range(n)), 0
    on_path = np.zeros(n)
    np.add.at(on_path, path.owners, path.end_ns - path.start_ns)
    work = np.bincount(step.owner, step.work_ns, n)
    wanted = np.array([owner in first for owner in recording.owners])
    usual = float(np.median(work))
    differs = np.abs(work - usual)
    on_path[on_path < _LEAST_PART * path.length_ns] = 0
    order = np.lexsort((-work, -differs, -on_path, ~wanted))
    n_own = int((wanted | (on_path > 0) | (differs > _ALIKE * usual)).sum())
    if n_own >= MOST_RANKS:
        return sorted(order[:MOST_RANKS].tolist()), 0
    return [*sorted(order[:n_own].tolist()), int(order[-1])], n - n_own


# ---- lanes


def _lanes(
    recording: Recording,
    step: StepGraph,
    owners: Sequence[int],
    far: Mapping[int, float],
    named: Sequence[str],
) -> _Lanes:
    """Return the lanes: per owner, as it is `named`, its input, computation, device, and communication.

    The first one of an owner whose clock may be `far` off (ns) says by how much.
    """
    kinds = [_kind(operation, len(owners)) for operation in recording.operations]
    begin = np.full(len(kinds), np.iinfo(np.int64).max)
    of_shown = np.isin(step.owner, owners)
    np.minimum.at(begin, step.operation[of_shown], step.start_ns[of_shown])
    begun: dict[str, int] = {}
    for at in unique(step.operation[of_shown]).tolist():
        begun[kinds[at]] = min(begun.get(kinds[at], int(begin[at])), int(begin[at]))
    fixed = ("input", "computation", "device")
    known = {kind: i for i, kind in enumerate(fixed)}
    order = sorted(begun, key=lambda kind: (known.get(kind, len(fixed)), begun[kind]))
    several = len(recording.owners) > 1
    names = [f"{named[owner]} {kind}" if several else kind for owner in owners for kind in order]
    for i, owner in enumerate(owners):
        if owner in far and order:
            names[i * len(order)] += f" ±{in_ms(far[owner])}"
    column, row = {kind: i for i, kind in enumerate(order)}, {owner: i for i, owner in enumerate(owners)}
    of = [
        row.get(operation.owner, 0) * len(order) + column.get(kind, 0)
        for operation, kind in zip(recording.operations, kinds, strict=True)
    ]
    return _Lanes(names, np.array(of, np.int64))


def _kind(operation: Operation, n_owners: int) -> str:
    if operation.is_communication:
        return (operation.transfer.stage if n_owners <= _EACH_STAGE else "") or "communication"
    if n_owners > _EACH_KIND:
        return "computation"
    if not operation.is_compute:
        return "input"
    return "device" if operation.on_device else "computation"


def _is_part(recording: Recording) -> Bool:
    """Return which operations (n,) are drawn: all but wholes of which the parts are."""
    divided = {(one.owner, one.transfer.whole) for one in recording.operations if one.transfer.whole}
    return recording.which(lambda one: (one.owner, one.name) not in divided)


# ---- boxes


def _joined(
    recording: Recording, step: StepGraph, lanes: _Lanes, is_drawn: Bool, on_path: Bool
) -> tuple[Int64, list[Int64]]:
    """Return the events with a box of their own, and those that share one.

    The path's and the longest are drawn alone; of the others those of one lane and kind that follow each
    other share a box.
    """
    events = np.flatnonzero(is_drawn)
    if len(events) <= MOST_BOXES:
        return events, []
    length = step.end_ns - step.start_ns
    by_length = events[np.lexsort((-length[events], ~on_path[events]))]
    n_single = max(MOST_BOXES // 2, int(on_path.sum()))
    single, rest = by_length[:n_single], by_length[n_single:]
    groups = [group_of(operation) for operation in recording.operations]
    number = {group: i for i, group in enumerate(dict.fromkeys(groups))}
    kind = lanes.of * len(number) + np.array([number[group] for group in groups], np.int64)
    kinds = kind[step.operation[rest]]
    rest = rest[np.lexsort((step.start_ns[rest], kinds))]
    whole = max(int(step.end_ns.max() - step.start_ns.min()), 1)
    part = _FINEST
    while True:
        shared = _runs(step, kind[step.operation[rest]], rest, whole // part)
        if len(shared) <= MOST_BOXES // 2 or part <= _COARSEST:
            return np.sort(single), shared
        part //= 2


def _runs(step: StepGraph, kinds: Int64, events: Int64, most_ns: int) -> list[Int64]:
    """Return sorted events in runs: of one kind, with breaks of at most `most_ns`."""
    first = step.start_ns.min()
    start, end = step.start_ns[events] - first, step.end_ns[events] - first
    # the latest end so far within a kind: kinds are shifted apart, so that one accumulation serves all
    place = np.unique(kinds, return_inverse=True)[1].reshape(-1)
    apart = place * (int(end.max()) + most_ns + 1)
    until = np.maximum.accumulate(end + apart)
    breaks = np.flatnonzero((start + apart)[1:] > until[:-1] + most_ns) + 1
    return np.split(events, breaks)


def _span(recording: Recording, step: StepGraph, lanes: _Lanes, event: int, zero: int) -> Span:
    at = int(step.operation[event])
    operation = recording.operations[at]
    owner = recording.owners[operation.owner]
    keys = dict.fromkeys((key_of(owner, operation.main), key_of(owner, operation.label)))
    start, end = int(step.start_ns[event]), int(step.end_ns[event])
    lane = lanes.names[lanes.of[at]]
    return Span(
        lane,
        brief(operation.label),
        (start - zero) / 1e6,
        (end - start) / 1e6,
        group_of(operation),
        (*keys,),
    )


def _together(recording: Recording, step: StepGraph, lanes: _Lanes, events: Int64, zero: int) -> Span:
    if len(events) == 1:
        return _span(recording, step, lanes, int(events[0]), zero)
    at = int(step.operation[events[0]])
    start, end = int(step.start_ns[events].min()), int(step.end_ns[events].max())
    busy = float((step.end_ns[events] - step.start_ns[events]).sum())
    name = f"{len(events):,} short operations, {in_ms(busy)} together"
    group = group_of(recording.operations[at])
    return Span(lanes.names[lanes.of[at]], name, (start - zero) / 1e6, (end - start) / 1e6, group)


def _words(name: str, operation: Operation, *, is_idle: bool) -> str:
    """Return the words for a stretch of the path: with the stage of a transfer, without decoration.

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
    """Return the group that decides the colour: the stage of a transfer, else the kind of work."""
    return operation.transfer.stage or kind_of_work(operation) or "other"


# ---- the path


def _marks(recording: Recording, step: StepGraph, path: CriticalPath, parts: bool) -> list[OnPath]:
    """Return the stretches that are drawn, their events in place of boxes.

    One without an event is drawn beside the next one that has, or the last.
    """
    named = named_path(recording, path, parts=parts, merged=False)
    n = len(named)
    with_event = np.flatnonzero(path.event != NO_EVENT)
    if len(with_event) == 0:
        return []
    beside = path.event[
        with_event[np.minimum(np.searchsorted(with_event, np.arange(n)), len(with_event) - 1)]
    ]
    item = np.cumsum(np.diff(named.label, prepend=named.label[:1]) != 0)  # its place in the merged path
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
            (keys[label], stretch_key(place)),
        )
        for event, start, duration, label, is_idle, place in zip(
            *(column.tolist() for column in columns), strict=True
        )
    ]
