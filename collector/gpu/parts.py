"""The parts of a final trace: from BytePS's own files (io, step, comm), and from MXNet's profile."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from analyzer.base.arrays import Int64
from analyzer.base.arrays.numbering import unique
from analyzer.base.errors import counted, listed
from analyzer.base.names import OpName
from analyzer.reading.dialects.byteps import GradientNames, gradient_index
from analyzer.reading.formats.columns import Id, Trace

Event = Mapping[str, Any]  # one event of a chrome trace, as an object
PartName = Literal["io", "step", "comm", "operator"]
Inputs = Mapping[str, Sequence[str]]  # every node of a DAG and what it depends on

_LISTED = 6  # names in a remark
#: The parts in the order of their simultaneous events in the final trace.
PARTS: tuple[PartName, ...] = ("io", "step", "comm", "operator")


def part_of(event: Event) -> PartName | None:
    """Find the part of a final trace to which `event` belongs; None for foreign events.

    ``STEP`` events from `step.json` carry the category STEP; the others were made from the operators.
    """
    op = OpName.parse(str(event.get("name", "")))
    if op.is_comm:
        return "comm"
    if op.cat == "STEP" and event.get("cat") == "STEP":
        return "step"
    return None if op.cat is None else "io" if op.cat == "I/O" else "operator"


def _complete(events: Iterable[Event]) -> tuple[list[Event], list[str]]:
    """Select the X events with name and times; warn about others."""
    candidates = [event for event in events if event.get("ph") != "M"]
    kept = [
        event
        for event in candidates
        if event.get("ph") == "X" and isinstance(event.get("name"), str)
        if None not in (time_of(event), time_of(event, "dur"))
    ]
    n_dropped = len(candidates) - len(kept)
    warning = f"{counted(n_dropped, 'event')} left out: not complete (X with ts and dur)"
    return kept, [warning] if n_dropped else []


def of_category(events: Iterable[Event], cat: str) -> tuple[list[Event], list[str]]:
    """Select the complete events of one category; also warnings."""
    kept, warnings = _complete(events)
    chosen = [event for event in kept if OpName.parse(str(event["name"])).cat == cat]
    if len(chosen) < len(kept):
        warnings.append(f"{counted(len(kept) - len(chosen), 'event')} ignored: no {cat}")
    return chosen, warnings


def count_by_cat(events: Iterable[Event]) -> dict[str, int]:
    """Count the events of each category (of a foreign name: the event's own), as they appear."""
    return dict(Counter(OpName.parse(str(e.get("name"))).cat or str(e.get("cat", "")) for e in events))


def counted_names(counts: Mapping[str, int]) -> str:
    """Format the most frequent names with their counts: ``a 12, b 3 and 2 more``."""
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return listed([f"{name} {n}" for name, n in ranked], _LISTED)


def time_of(event: Event, key: str = "ts") -> float | None:
    """Get a time of an event in microseconds; None if it has none."""
    value = event.get(key)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def collect_comm(
    events: Sequence[Event], names: GradientNames | None, inputs: Inputs
) -> tuple[list[Event], list[str]]:
    """Convert the events of `comm.json`, main tasks and the stages of their partitions; also warnings.

    They get the parameters' names (BytePS's own without `names`) and their inputs in the DAG.
    """
    whole, warnings = _complete(events)
    comms = [(event, main) for event in whole if OpName.parse(main := _main(event)).is_comm]
    if len(comms) < len(whole):
        warnings.append(f"{counted(len(whole) - len(comms), 'event')} ignored: no Comm")
    renamed = [_renamed(event, main, names, inputs) for event, main in comms]
    warnings += _about_names({main for _, main in comms}, names)
    missing = Counter(main for main in map(_main, renamed) if inputs and main not in inputs)
    if missing:
        warnings.append(f"{len(missing)} tensor(s) not in the DAG, without inputs: {counted_names(missing)}")
    return renamed, warnings


def _renamed(event: Event, main: str, names: GradientNames | None, inputs: Inputs) -> Event:
    parameter = names.parameter(main.removeprefix("Comm.")) if names else None
    new = main if parameter is None else f"Comm.{parameter}"
    args = event.get("args")
    args = {**(args if isinstance(args, Mapping) else {}), "name": new}
    args |= {f"input{i}": name for i, name in enumerate(inputs.get(new, ()))}
    stage = str(event["name"]).removeprefix(main)
    return {**event, "name": new + stage, "pid": new, "cat": event.get("cat", "Comm"), "args": args}


def _main(event: Event) -> str:
    """Name the whole communication of a main task or sub-task."""
    return str(OpName.parse(str(event["name"])).main)


def _about_names(tensors: Collection[str], names: GradientNames | None) -> list[str]:
    indices = {
        index
        for name in tensors
        if (index := gradient_index(name.removeprefix("Comm."))) is not None
        and (names is None or index >= len(names.names))
    }
    if not indices:
        return []
    if names is None:
        return [f"no list of gradient names: {len(indices)} gradients keep BytePS's names"]
    return [
        f"{names.path.name} has {len(names.names)} names, but there is gradient_{max(indices)}: "
        f"{len(indices)} gradients keep BytePS's names"
    ]


# ---- the operators of MXNet's profile

_NAMED = re.compile(r"name=([^;]*)")
#: The engine frees memory between any two operations: this is no part of the update.
_HOUSEKEEPING = "DeleteVariable"


def collect_operators(profile: Trace, inputs: Inputs) -> tuple[list[Event], list[str], list[str]]:
    """Convert the operations of the DAG, and add one ``STEP`` a step; also warnings, and notes on the result.

    An operation of several profiler processes counts once: in the process that has most of them, or
    in another if it is only there. ``STEP`` spans all operations of this process, except the freeing of
    memory, from the last backward operation of a step to the first forward one of the next.
    """
    nodes = [node_of(name, inputs) for name in profile.names]
    rows, process = _one_process_each(profile, nodes)
    if not len(rows):
        n = len(unique(profile.name_id))
        nothing = (
            f"none of its {n} operations is in the DAG (names of operator types instead of nodes, or the DAG "
            "of another model): no FW and BW"
        )
        return [], [nothing if n else "no operator in it: no FW and BW"], []
    events = [_operation_event(profile, row, nodes, inputs) for row in rows.tolist()]
    updates = _updates(profile, rows, process, nodes, inputs)
    for update in updates:
        start, end = int(profile.ts_ns[update].min()), int(profile.end_ns[update].max())
        step = {"name": "STEP", "ts": _us(start), "dur": _us(end - start), "ph": "X", "cat": "operator"}
        events.append({**step, "pid": process, "args": {"name": "STEP"}})
    forward = {node for node in inputs if OpName.parse(node).cat == "FW"}
    n_met = len(forward & set(nodes))
    doubt = f"only {n_met} of the DAG's {len(forward)} forward operations occur: another model's DAG?"
    doubts = [doubt] if 2 * n_met < len(forward) else []
    outside = Counter(profile.names[i] for i in profile.name_id.tolist() if nodes[i] is None)
    note = f"{outside.total()} events of {len(outside)} operations outside the DAG: {counted_names(outside)}"
    return events, doubts, [note] if outside else []


def node_of(name: str, nodes: Inputs) -> str | None:
    """Find the DAG's node of an operator's `name`; None if the DAG has none.

    Forward operators are called like their node or ``<node>_fwd``, backward ones ``<node>_backward`` or
    ``<node>_fwd_backward``; Gluon may wrap this in ``…name=<node>;…``.
    """
    named = _NAMED.search(name)
    kind, text = (name[: named.start()], named[1]) if named else ("", name)
    base, backward, _ = text.partition("_backward")
    prefix = "BW." if backward or "_backward_" in kind else "FW."
    candidates = (base, base.removesuffix("_fwd"), base.partition("_fwd")[0])
    return next((f"{prefix}{c}" for c in candidates if f"{prefix}{c}" in nodes), None)


def _one_process_each(profile: Trace, nodes: Sequence[str | None]) -> tuple[Int64, Id]:
    """Select the slices of the DAG's operations, sorted by start, and the process with most of them."""
    known = np.array([node is not None for node in nodes], np.bool_)
    rows = np.flatnonzero(known[profile.name_id])
    pids = [profile.tracks[t].pid for t in profile.track_id[rows].tolist()]
    names = [nodes[i] for i in profile.name_id[rows].tolist()]
    ranked = [pid for pid, _ in Counter(pids).most_common()]  # ties in order of appearance
    rank_of = {pid: i for i, pid in enumerate(ranked)}
    best: dict[str | None, int] = {}  # rank of the process that counts for each name
    for name, pid in zip(names, pids, strict=True):
        best[name] = min(best.get(name, len(ranked)), rank_of[pid])
    kept = [rank_of[pid] == best[name] for name, pid in zip(names, pids, strict=True)]
    return _by_start(profile, rows[np.array(kept, np.bool_)]), ranked[0] if ranked else None


def _updates(
    profile: Trace, operations: Int64, process: Id, nodes: Sequence[str | None], inputs: Inputs
) -> list[Int64]:
    """Select the slices between the last backward operation of each step and the next step."""
    names = [nodes[i] or "" for i in profile.name_id[operations].tolist()]
    begins = {node for node, of in inputs.items() if node.startswith("FW.") and {"I/O", "STEP"} & set(of)}
    first = next((name for name in names if name in begins), None)
    marks = [i for i, name in enumerate(names) if name == first] or [0]
    bounds = [*marks, len(names)]
    if marks[0] > 0:  # the profile begins within a step
        bounds.insert(0, 0)
    named = zip(nodes, profile.names, strict=True)  # the candidates are not in the DAG
    is_update = np.array([node is None and name != _HOUSEKEEPING for node, name in named])
    in_process = np.array([track.pid == process for track in profile.tracks])
    rows = np.flatnonzero(is_update[profile.name_id] & in_process[profile.track_id])
    candidates = _by_start(profile, rows)
    starts = profile.ts_ns[candidates]
    updates = []
    for start, end in itertools.pairwise(bounds):
        backward = [i for i in range(start, end) if names[i].startswith("BW.")]
        if not backward:
            continue
        since = profile.ts_ns[operations[backward[-1]]]
        until = profile.ts_ns[operations[end]] if end < len(names) else np.iinfo(np.int64).max
        rows = candidates[np.searchsorted(starts, since) : np.searchsorted(starts, until)]
        if len(rows):
            updates.append(rows)
    return updates


def _by_start(profile: Trace, rows: Int64) -> Int64:
    return rows[np.argsort(profile.ts_ns[rows], kind="stable")]


def _operation_event(profile: Trace, row: int, nodes: Sequence[str | None], inputs: Inputs) -> Event:
    name = nodes[profile.name_id[row]]
    assert name is not None
    track = profile.tracks[profile.track_id[row]]
    args = {"name": name, **{f"input{i}": source for i, source in enumerate(inputs[name])}}
    event: dict[str, Any] = {
        "name": name, "cat": "operator", "ph": "X", "ts": _us(int(profile.ts_ns[row])), "pid": track.pid,
        "tid": track.tid, "dur": _us(int(profile.dur_ns[row])), "args": args,
    }  # fmt: skip
    return {key: value for key, value in event.items() if value is not None}


def _us(time_ns: int) -> int | float:
    return time_ns // 1000 if time_ns % 1000 == 0 else time_ns / 1000
