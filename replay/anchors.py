"""What ties the clocks of a job's hosts together: operations that nobody ends before all have begun."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from formats.columns import Trace
from opname import OpName
from replay.plan import Int64

#: Occurrences of synchronous operations on one host: operation -> (begins, ends), each by time.
Anchors = Mapping[Hashable, tuple[Int64, Int64]]
#: From the anchors of all hosts to what is to be added to the times (n,) of each.
Aligner = Callable[[Sequence[Anchors]], Sequence[Callable[[Int64], Int64]]]

#: Collectives that no rank leaves before all have entered; the root of a broadcast may.
_ALL_WITH_ALL = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|barrier", re.IGNORECASE)


def anchors(traces: Sequence[Trace]) -> Anchors:
    """Return the anchors in the traces of one host.

    BytePS: of each partition the begins of PUSH and the ends of PULL. Others: begins and ends of the
    collectives in which all wait for all.
    """
    begins: dict[Hashable, list[Int64]] = defaultdict(list)
    ends: dict[Hashable, list[Int64]] = defaultdict(list)
    for trace in traces:
        for key, begin, end in _spans(trace):
            begins[key].append(begin)
            ends[key].append(end)
    return {
        key: (np.sort(np.concatenate(begins[key])), np.sort(np.concatenate(ends[key])))
        for key in begins
        if sum(map(len, begins[key])) and sum(map(len, ends[key]))
    }


def _spans(trace: Trace) -> list[tuple[Hashable, Int64, Int64]]:
    """Return (operation, begins, ends) of one trace; none of either where the event does not tell it."""
    none = np.empty(0, np.int64)
    found: list[tuple[Hashable, Int64, Int64]] = []
    by_place: dict[tuple[int, int], list[int]] = defaultdict(list)
    wanted = {i: kind for i, name in enumerate(trace.names) if (kind := _kind(trace, name))}
    for row in np.flatnonzero(np.isin(trace.name_id, list(wanted))).tolist():
        by_place[int(trace.name_id[row]), int(trace.track_id[row])].append(row)
    for (name, track), rows in by_place.items():
        kind, key = wanted[name], str(trace.tracks[track].tid)
        if kind == "PUSH":
            found.append((key, trace.ts_ns[rows], none))
        elif kind == "PULL":
            found.append((key, none, trace.end_ns[rows]))
        else:
            found.append((kind, trace.ts_ns[rows], trace.end_ns[rows]))
    return found


def _kind(trace: Trace, name: str) -> str | None:
    if trace.dialect == "byteps":
        stage = OpName.parse(name).queue
        return stage if stage in ("PUSH", "PULL") else None
    is_collective = (
        name.startswith(("gloo:", "mpi:", "ucc:")) or "ncclDevKernel" in name or "ncclKernel" in name
    )
    return name if is_collective and _ALL_WITH_ALL.search(name) else None


def aligned(traces: Sequence[Trace], hosts: Sequence[int], align: Aligner) -> list[Trace]:
    """Return the traces on the clock of the first host; `hosts` (n,) is the host of each, from 0."""
    of_host = [[t for t, h in zip(traces, hosts, strict=True) if h == host] for host in range(max(hosts) + 1)]
    shifts = align([anchors(mine) for mine in of_host])
    return [
        replace(trace, ts_ns=trace.ts_ns + shifts[host](trace.ts_ns))
        for trace, host in zip(traces, hosts, strict=True)
    ]
