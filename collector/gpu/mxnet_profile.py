"""MXNet's profile (`temp.json`): the forward and backward operations of the DAG, and the model update."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from msgspec import Struct

from arrays import Int64
from arrays.numbering import unique
from collector.gpu.parts import Event, TracePart, listing
from dialects.byteps import after_longest_pause
from dialects.masks import by_name
from formats.columns import Id, Trace
from opname import OpName

Inputs = Mapping[str, Sequence[str]]  # every node of a DAG and what it depends on

_NAMED = re.compile(r"name=([^;]*)")
#: The engine frees memory whenever it likes, between any two operations: no part of the update.
_HOUSEKEEPING = frozenset({"DeleteVariable"})


def collect_operators(profile: Trace, inputs: Inputs) -> TracePart:
    """Return the operations of the DAG as the final trace has them, and one ``STEP`` a step.

    An operation of several profiler processes counts once: in the process that has most of them, or
    in another if it is only there. ``STEP`` spans what this process ran from the last backward
    operation of a step to the first forward one of the next: found by order, not by names; only the
    freeing of memory is left out.
    """
    nodes = [node_of(name, inputs) for name in profile.names]
    chosen = _one_process_each(profile, nodes)
    if not len(chosen.rows):
        n = len(unique(profile.name_id))
        nothing = (
            f"none of its {n} operations is in the DAG (names of operator types instead of nodes, or the DAG "
            "of another model): no FW and BW"
        )
        return TracePart(warnings=[nothing if n else "no operator in it: no FW and BW"])
    events = [_operation_event(profile, row, nodes, inputs) for row in chosen.rows.tolist()]
    updates = _updates(profile, chosen, nodes, inputs)
    for rows in updates:
        start, end = int(profile.ts_ns[rows].min()), int(profile.end_ns[rows].max())
        step = {"name": "STEP", "ts": _us(start), "dur": _us(end - start), "ph": "X", "cat": "operator"}
        events.append({**step, "pid": chosen.process, "args": {"name": "STEP"}})
    forward = {node for node in inputs if OpName.parse(node).cat == "FW"}
    n_met = len(forward & set(nodes))
    doubt = f"only {n_met} of the DAG's {len(forward)} forward operations occur: another model's DAG?"
    doubts = [doubt] if 2 * n_met < len(forward) else []
    return TracePart(events, doubts, _remarks(profile, chosen, nodes, updates))


def node_of(name: str, nodes: Inputs) -> str | None:
    """Return the DAG's node of an operator's `name`; None if the DAG has none.

    Forward operators are called as their node or ``<node>_fwd``, backward ones ``<node>_backward`` or
    ``<node>_fwd_backward``; Gluon may wrap this in ``…name=<node>;…``.
    """
    named = _NAMED.search(name)
    text = named[1] if named else name
    kind = name[: named.start()] if named else ""
    base, backward, _ = text.partition("_backward")
    prefix = "BW." if backward or "_backward_" in kind else "FW."
    candidates = (base, base.removesuffix("_fwd"), base.partition("_fwd")[0])
    return next((f"{prefix}{c}" for c in candidates if f"{prefix}{c}" in nodes), None)


def passes(profile: Trace) -> tuple[list[str], list[str]]:
    """Return the operations of one forward and one backward pass in the order in which they ran.

    Without a DAG: a backward operator is called ``<forward operator>_backward``, so whatever has
    such a partner, or is called ``…_fwd``, is an operation of the model. Names are without ``_fwd``.
    """
    parts = [(name, name.partition("_backward")) for name in profile.names]
    backward = {name: base.removesuffix("_fwd") for name, (base, marker, _) in parts if base and marker}
    partners = set(backward.values())
    forward = {
        n: n.removesuffix("_fwd")
        for n in profile.names
        if n not in backward and (n.removesuffix("_fwd") in partners or n.endswith("_fwd"))
    }
    is_forward = by_name(profile, forward.__contains__)
    rows = np.argsort(profile.ts_ns, kind="stable")
    if is_forward.any():
        first = after_longest_pause(profile, is_forward)
        rows = rows[np.flatnonzero(profile.name_id[rows] == first)[0] :]
    names = [profile.names[i] for i in profile.name_id[rows].tolist()]
    fw = dict.fromkeys(forward[name] for name in names if name in forward)
    bw = dict.fromkeys(backward[name] for name in names if name in backward)
    return list(fw), list(bw)


class _Chosen(Struct, frozen=True):
    rows: Int64  # slices of the DAG's operations, by start
    process: Id  # the profiler's process that most of them are of
    others: list[Id]  # processes that were passed over


def _one_process_each(profile: Trace, nodes: Sequence[str | None]) -> _Chosen:
    known = np.array([node is not None for node in nodes], np.bool_)
    rows = np.flatnonzero(known[profile.name_id])
    pids = [profile.tracks[t].pid for t in profile.track_id[rows].tolist()]
    names = [nodes[i] for i in profile.name_id[rows].tolist()]
    ranked = [pid for pid, _ in Counter(pids).most_common()]  # at a tie the first one met
    place = {pid: i for i, pid in enumerate(ranked)}
    places = [place[pid] for pid in pids]
    # of each name the first of its places
    best = dict(sorted(zip(names, places, strict=True), key=itemgetter(1), reverse=True))
    kept = [at == best[name] for name, at in zip(names, places, strict=True)]
    others = [pid for pid in ranked if place[pid] not in best.values()]
    rows = rows[np.array(kept, np.bool_)]
    return _Chosen(_by_start(profile, rows), ranked[0] if ranked else None, others)


def _updates(profile: Trace, chosen: _Chosen, nodes: Sequence[str | None], inputs: Inputs) -> list[Int64]:
    """Return for every step the slices between its last backward operation and what follows it."""
    names = [nodes[i] or "" for i in profile.name_id[chosen.rows].tolist()]
    begins = {node for node, of in inputs.items() if node.startswith("FW.") and {"I/O", "STEP"} & set(of)}
    first = next((name for name in names if name in begins), None)
    marks = [i for i, name in enumerate(names) if name == first] or [0]
    bounds = [*marks, len(names)]
    if marks[0] > 0:  # the profile begins within a step
        bounds.insert(0, 0)
    named = zip(nodes, profile.names, strict=True)  # the candidates are not in the DAG
    counted = np.array([node is None and name not in _HOUSEKEEPING for node, name in named])
    here = np.array([track.pid == chosen.process for track in profile.tracks])
    candidates = _by_start(profile, np.flatnonzero(counted[profile.name_id] & here[profile.track_id]))
    starts = profile.ts_ns[candidates]
    updates = []
    for start, end in itertools.pairwise(bounds):
        backward = [i for i in range(start, end) if names[i].startswith("BW.")]
        if not backward:
            continue
        since = profile.ts_ns[chosen.rows[backward[-1]]]
        until = profile.ts_ns[chosen.rows[end]] if end < len(names) else np.iinfo(np.int64).max
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


def _remarks(
    profile: Trace, chosen: _Chosen, nodes: Sequence[str | None], updates: Sequence[Int64]
) -> list[str]:
    outside = Counter(profile.names[i] for i in profile.name_id.tolist() if nodes[i] is None)
    remarks = []
    if outside:
        remarks.append(
            f"{outside.total()} events of {len(outside)} operations outside the DAG: {listing(outside)}"
        )
    if chosen.others:
        others = ", ".join(map(str, chosen.others))
        remarks.append(f"operations of process {chosen.process} counted, not again those of process {others}")
    if updates:
        within = Counter(profile.names[i] for rows in updates for i in profile.name_id[rows].tolist())
        remarks.append(f"STEP is what runs after the last BW and before the next FW: {listing(within)}")
    else:
        remarks.append("no STEP: nothing runs between the last BW and the next FW")
    return remarks
