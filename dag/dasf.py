"""DASF profiles: the tasks of a pipeline and their dependencies as a `Dag`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dag.model import Dag, Kind, new_dag
from formats.columns import Trace
from formats.dasf_records import COMPUTE

#: Keys of the records' args that this module needs.
TASK_ARGS = ("key", "dependencies")


def dasf_dag(traces: Sequence[Trace]) -> Dag | None:
    """Return the task graph that DASF's databases (read with `TASK_ARGS`) hold; None without a task.

    A task is one `Compute` record, named by its key, of the category of its function; run again under the
    same key it is ``key #2``, and who depends on the key waits for the last run before. It waits for its
    dependencies (a message where another worker computed them) and for the task before it on its worker.
    A dependency that is no record (fused, or lost) is named in the notes. ``attrs["row"]`` gives the
    trace's number and the row of each task.
    """
    cats: list[str] = []
    device: list[str] = []
    start: list[int] = []
    dur: list[int] = []
    wanted: list[Sequence[object]] = []
    keys: list[str] = []
    events: list[tuple[int, int]] = []
    for number, trace in enumerate(traces):
        key_of = trace.args["key"].as_dict() if "key" in trace.args else {}
        needs = trace.args["dependencies"].as_dict() if "dependencies" in trace.args else {}
        for row in np.argsort(trace.end_ns, kind="stable").tolist():
            if row not in key_of or trace.cats[trace.cat_id[row]] != COMPUTE:
                continue
            track = trace.tracks[trace.track_id[row]]
            keys.append(str(key_of[row]))
            events.append((number, row))
            cats.append(trace.names[trace.name_id[row]])
            device.append(f"{track.pid} {track.tid}")
            start.append(int(trace.ts_ns[row]))
            dur.append(int(trace.dur_ns[row]))
            found = needs.get(row)
            wanted.append(found if isinstance(found, list) else [])
    if not keys:
        return None
    names = _distinct(keys)
    edges, lost = _edges(keys, wanted, device, start, dur)
    dag = new_dag(names, cats, dur, edges, device=device)
    notes = [] if not lost else [
        f"{len(lost)} dependencies are not among the recorded tasks: {', '.join(sorted(lost)[:3])}"
    ]  # fmt: skip
    return replace(
        dag,
        step_start_ns=np.array([start], np.int64),
        step_dur_ns=np.array([dur], np.int64),
        attrs={"row": dict(enumerate(events))},
        notes=notes,
    )


def _distinct(keys: Sequence[str]) -> list[str]:
    seen: dict[str, int] = {}
    names = []
    for key in keys:
        seen[key] = seen.get(key, 0) + 1
        names.append(key if seen[key] == 1 else f"{key} #{seen[key]}")
    return names


def _edges(
    keys: Sequence[str],
    wanted: Sequence[Sequence[object]],
    device: Sequence[str],
    start: Sequence[int],
    dur: Sequence[int],
) -> tuple[list[tuple[int, int, int]], set[str]]:
    """Return the edges between tasks, and the dependencies that no task answers."""
    edges: dict[tuple[int, int], int] = {}
    lost: set[str] = set()
    on_worker: dict[str, list[int]] = {}
    runs: dict[str, list[int]] = {}
    for node, key in enumerate(keys):
        runs.setdefault(key, []).append(node)
        on_worker.setdefault(device[node], []).append(node)
    for node, needs in enumerate(wanted):
        for need in map(str, needs):
            if need not in runs:
                lost.add(need)
                continue
            source = _run_before(runs[need], node)
            if source != node:
                kind = Kind.DATA if device[source] == device[node] else Kind.MESSAGE
                edges[source, node] = kind
    for nodes in on_worker.values():
        nodes.sort(key=lambda node: (start[node] + dur[node], node))
        for a, b in itertools.pairwise(nodes):
            edges.setdefault((a, b), Kind.DEVICE)
    return [(a, b, kind) for (a, b), kind in edges.items()], lost


def _run_before(runs: Sequence[int], node: int) -> int:
    """Return which run of a key a task waits for: the last one before it, else the first there is."""
    return max((run for run in runs if run < node), default=runs[0])
