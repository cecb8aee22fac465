"""Horovod timelines as recordings: negotiation, then one response at a time.

Rank 0 writes for all, so there is one owner. A tensor is negotiated until every rank has it; then the
background thread reduces the tensors that are ready together, one group after the other. What ranks
compute is not in the timeline: the time before a tensor is handed over stands for it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from errors import TraceError
from formats.columns import Trace, Track
from replay.recording import WAIT, EdgeList, Operation, RecordedStep, Recording

#: Category of the time before a tensor is handed over.
UNTRACED = "untraced"

_NEGOTIATE = "NEGOTIATE_"


@dataclass(frozen=True, slots=True)
class _Event:
    """One event in one round."""

    tensor: str
    name: str
    cat: str
    track: Track
    start_ns: int
    end_ns: int
    kind: str  # "negotiate", "reduce", "part", or "untraced"


def record(trace: Trace, only: Collection[str] = ()) -> Recording:
    """Return the recording of a Horovod job from its timeline, of the tensors in `only` (() is all).

    Raises
    ------
    TraceError
        No round of reductions is in it.
    """
    rounds = [kept for one in _rounds(trace) if (kept := [e for e in one if not only or e.tensor in only])]
    if not rounds:
        raise TraceError(f"{trace.path}: no round of reductions is recorded in it: nothing to replay")
    numbers: dict[tuple[str, str], int] = {}
    operations: list[Operation] = []
    begins = [min(event.start_ns for event in events) for events in rounds]
    steps = []
    for i, events in enumerate(rounds):
        edges = EdgeList()
        events = _connect(edges, events)
        steps.append(
            RecordedStep(
                operation=np.array([_number(event, numbers, operations) for event in events], np.int64),
                start_ns=np.array([event.start_ns for event in events], np.int64),
                end_ns=np.array([event.end_ns for event in events], np.int64),
                edges=edges.freeze(),
                begin_ns=np.array([begins[i]], np.int64),
                next_ns=np.array([begins[i + 1] if i + 1 < len(rounds) else -1], np.int64),
            )
        )
    note = "Horovod's timeline has no computation; the time before each tensor is handed over stands for it"
    return Recording(owners=["rank0"], devices=[], operations=operations, steps=steps, notes=[note])


def _number(event: _Event, numbers: dict[tuple[str, str], int], operations: list[Operation]) -> int:
    identity = (event.tensor, event.name)
    if identity not in numbers:
        numbers[identity] = len(operations)
        is_traced, waits = event.kind != "untraced", event.kind == "negotiate"
        operations.append(
            Operation(
                name=event.name,
                cat=WAIT if waits else "Comm" if is_traced else UNTRACED,
                track=event.track,
                owner=0,
                trace_cat=event.cat,
                phase=WAIT if waits else "Comm" if is_traced else "BW",
                whole=event.tensor if is_traced else "",
                stage=event.name if is_traced else "",
                is_traced=is_traced,
                is_collective=is_traced and not waits,
            )
        )
    return numbers[identity]


def _rounds(trace: Trace) -> list[list[_Event]]:
    """Return the events of each round over all tensors, by start.

    The n-th reduction of a tensor belongs to the n-th round; a negotiation to the reduction after it,
    and what lies in a reduction to that.
    """
    by_pid: dict[object, list[int]] = defaultdict(list)
    for row in np.argsort(trace.ts_ns, kind="stable").tolist():
        by_pid[trace.tracks[trace.track_id[row]].pid].append(row)
    reductions = {
        f"{name.removeprefix(_NEGOTIATE)}"
        for name in trace.names
        if name.startswith(_NEGOTIATE) and "BROADCAST" not in name
    }
    tensors = _tensor_names(trace)
    counts = Counter(
        n
        for rows in by_pid.values()
        if (n := sum(trace.names[trace.name_id[row]] in reductions for row in rows))
    )
    if not counts:
        return []
    n_rounds = counts.most_common(1)[0][0]
    rounds: list[list[_Event]] = [[] for _ in range(n_rounds)]
    for pid, rows in by_pid.items():
        reduced = [row for row in rows if trace.names[trace.name_id[row]] in reductions]
        if abs(len(reduced) - n_rounds) > 1:
            continue
        starts = trace.ts_ns[reduced]
        for row in rows:
            kind = _kind(trace.names[trace.name_id[row]], reductions)
            side: Literal["left", "right"] = "left" if kind == "negotiate" else "right"
            number = int(np.searchsorted(starts, trace.ts_ns[row], side=side)) - (kind != "negotiate")
            if kind == "part" and number >= 0 and trace.ts_ns[row] > trace.end_ns[reduced[number]]:
                continue  # of a reduction that was cut off
            if kind and 0 <= number < min(n_rounds, len(reduced)):
                rounds[number].append(_event(trace, row, tensors.get(pid, str(pid)), kind))
    return [sorted(events, key=lambda event: (event.start_ns, -event.end_ns)) for events in rounds if events]


def _kind(name: str, reductions: set[str]) -> str:
    """Return what an event is; "" for the ticks of ranks and what is no reduction."""
    if name in reductions:
        return "reduce"
    if name.startswith(_NEGOTIATE):
        return "negotiate" if name.removeprefix(_NEGOTIATE) in reductions else ""
    return "" if name.isdecimal() or name == "CYCLE_START" else "part"


def _event(trace: Trace, row: int, tensor: str, kind: str) -> _Event:
    start = int(trace.ts_ns[row])
    return _Event(
        tensor=tensor,
        name=trace.names[trace.name_id[row]],
        cat=trace.cats[trace.cat_id[row]],
        track=trace.tracks[trace.track_id[row]],
        start_ns=start,
        end_ns=start + int(trace.dur_ns[row]),
        kind=kind,
    )


def _tensor_names(trace: Trace) -> Mapping[object, str]:
    return {
        event.get("pid"): str(event["args"]["name"])
        for event in trace.metadata
        if event.get("name") == "process_name"
        and isinstance(event.get("args"), dict)
        and "name" in event["args"]
    }


# ---- what connects them


def _connect(edges: EdgeList, events: Sequence[_Event]) -> list[_Event]:
    """Add the edges of one round; return its events, with those for the time before each tensor."""
    found: list[_Event] = list(events)
    order = range(len(events))
    reduce_of = {events[i].tensor: i for i in order if events[i].kind == "reduce"}
    negotiated = [i for i in order if events[i].kind == "negotiate"]
    first = {events[i].tensor: i for i in reversed(order) if events[i].kind in ("negotiate", "reduce")}
    for i in negotiated:
        if events[i].tensor in reduce_of and events[reduce_of[events[i].tensor]].start_ns >= events[i].end_ns:
            edges.after_end.append((i, reduce_of[events[i].tensor]))
    _connect_parts(edges, events, reduce_of)
    _connect_groups(edges, events, reduce_of, negotiated)
    handed_over = sorted(first.values(), key=lambda i: (events[i].start_ns, i))
    for before, i in zip([None, *handed_over[:-1]], handed_over, strict=True):
        if before is not None:
            _hand_over(edges, found, reduce_of, before, i)
    return found


def _hand_over(
    edges: EdgeList, found: list[_Event], reduce_of: Mapping[str, int], before: int, i: int
) -> None:
    """Let a tensor be handed over after the one before, or what was reduced by then, and computing."""
    event = found[i]
    done = [r for r in reduce_of.values() if found[r].end_ns <= event.start_ns]
    last = max(done, key=lambda r: found[r].end_ns, default=None)
    since = found[before].start_ns
    if last is not None and found[last].end_ns > since:
        since = found[last].end_ns
    number = len(found)
    name = f"{UNTRACED}.{event.tensor}"
    found.append(_Event(event.tensor, name, UNTRACED, event.track, since, event.start_ns, "untraced"))
    if last is not None and found[last].end_ns == since:
        edges.after_end.append((last, number))
    else:
        edges.after_start.append((before, number))
    edges.after_end.append((number, i))


def _connect_parts(edges: EdgeList, events: Sequence[_Event], reduce_of: Mapping[str, int]) -> None:
    """Lead from the begin of a reduction through its parts to its end."""
    last: dict[str, int] = {}
    for i, event in enumerate(events):
        if event.kind != "part" or event.tensor not in reduce_of:
            continue
        whole = reduce_of[event.tensor]
        if event.tensor in last:
            edges.after_end.append((last[event.tensor], i))
        else:
            edges.after_start.append((whole, i))
        last[event.tensor] = i
    edges.body_after_end.extend((part, reduce_of[tensor]) for tensor, part in last.items())


def _connect_groups(
    edges: EdgeList, events: Sequence[_Event], reduce_of: Mapping[str, int], negotiated: Sequence[int]
) -> None:
    """Let the background thread finish one group of reductions before it turns to the next."""
    by_end = sorted(reduce_of.values(), key=lambda i: events[i].end_ns)
    ends = np.array([events[i].end_ns for i in by_end], np.int64)
    for i in [*negotiated, *reduce_of.values()]:
        event = events[i]
        at = event.start_ns if event.kind == "reduce" else event.end_ns
        before = int(np.searchsorted(ends, at, side="right")) - 1
        if before >= 0 and by_end[before] != i:
            kind = edges.after_end if event.kind == "reduce" else edges.body_after_end
            kind.append((by_end[before], i))
