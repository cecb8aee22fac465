"""DASF's tasks as one step: what each computed, on which worker, from the results of which others.

A task's key may be computed more than once (the same pipeline run again). Runs of a key are told apart by
time: a task waits for the run of each dependency that ended last before the task began.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dialects.step_parts import Edge, Joint, Kind, Meet, Operation, RankStep, RankSteps, edge_table
from errors import TraceError, counted
from formats.columns import Trace, Track
from formats.dasf_records import COMPUTE

#: Keys of the records' args that this module needs.
ARGS = ("key", "dependencies", "dependents")

#: A result that is stamped this much later than the task that takes it began still counts: both are rounded.
_TOLERANCE_NS = 1_000_000


@dataclass(frozen=True, slots=True)
class _Task:
    """One `Compute` record; `run` counts the runs of its key from 1."""

    key: str
    run: int
    function: str
    track: Track
    start_ns: int
    end_ns: int
    dependencies: Sequence[str]


def record(name: str, trace: Trace) -> RankSteps:
    """Return the tasks of one database (read with `ARGS`) as step 1.

    An operation is a key; the category is its function. A task waits for its dependencies (a message where
    another worker computed them) and for the task before it on its worker. Dependencies that another
    database computed are met there.

    Raises
    ------
    TraceError
        No task is recorded.
    """
    tasks = _tasks(trace)
    if not tasks:
        raise TraceError(f"{trace.path}: no task is recorded in it (no Compute record)")
    runs: dict[str, list[int]] = {}
    for event, task in enumerate(tasks):
        runs.setdefault(task.key, []).append(event)
    edges: list[Edge] = []
    meets = [Meet((task.key, task.run), event, True, False) for event, task in enumerate(tasks)]
    elsewhere: set[str] = set()
    for event, task in enumerate(tasks):
        for need in task.dependencies:
            if need not in runs:
                elsewhere.add(need)
                meets.append(Meet((need, task.run), event, False, True, Joint.END_TO_HEAD, Kind.MESSAGE))
            elif (source := _run_before(tasks, runs[need], task)) is not None and source != event:
                kind = Kind.DATA if tasks[source].track == task.track else Kind.MESSAGE
                edges.append(Edge(source, event, Joint.END_TO_HEAD, kind))
    edges += _along_workers(tasks, {(edge.source, edge.target) for edge in edges})
    operations, numbers = _operations(tasks)
    start = np.array([task.start_ns for task in tasks], np.int64)
    end = np.array([task.end_ns for task in tasks], np.int64)
    step = RankStep(
        number=1,
        begin_ns=int(start.min()),
        next_ns=int(end.max()),
        operation=np.array(numbers, np.int64),
        start_ns=start,
        end_ns=end,
        edges=edge_table(edges),
        meets=meets,
    )
    return RankSteps(name, operations, [step], _notes(runs, elsewhere))


def _tasks(trace: Trace) -> list[_Task]:
    """Return the recorded tasks by their end."""
    key_of, needs, needed_by = (
        trace.args[arg].as_dict() if arg in trace.args else {}
        for arg in ("key", "dependencies", "dependents")
    )
    before: dict[str, list[str]] = {}
    for row, keys in needed_by.items():
        for key in keys if isinstance(keys, list) and row in key_of else ():
            before.setdefault(str(key), []).append(str(key_of[row]))
    tasks = []
    count: Counter[str] = Counter()
    end_ns = trace.end_ns
    for row in np.lexsort((trace.ts_ns, end_ns)).tolist():
        if row not in key_of or trace.cats[trace.cat_id[row]] != COMPUTE:
            continue
        key = str(key_of[row])
        count[key] += 1
        named = needs.get(row)
        own = [str(need) for need in named] if isinstance(named, list) else []
        tasks.append(
            _Task(
                key=key,
                run=count[key],
                function=trace.names[trace.name_id[row]],
                track=trace.tracks[trace.track_id[row]],
                start_ns=int(trace.ts_ns[row]),
                end_ns=int(end_ns[row]),
                dependencies=list(dict.fromkeys([*own, *before.get(key, ())])),
            )
        )
    return tasks


def _run_before(tasks: Sequence[_Task], runs: Sequence[int], task: _Task) -> int | None:
    """Return the run of a dependency that ended last before the task began.

    If none did, the first that at least began before: the clocks of two workers may differ a little.
    """
    ends = [tasks[run].end_ns for run in runs]
    last = bisect_right(ends, task.start_ns + _TOLERANCE_NS) - 1
    if last >= 0:
        return runs[last]
    return next((run for run in runs if tasks[run].start_ns < task.start_ns), None)


def _along_workers(tasks: Sequence[_Task], known: set[tuple[int, int]]) -> list[Edge]:
    """Let each task wait for the one before it on its worker, unless it is known to wait for its result."""
    edges = []
    last: dict[Track, int] = {}
    for event, task in enumerate(tasks):
        if task.track in last and (last[task.track], event) not in known:
            edges.append(Edge(last[task.track], event, Joint.END_TO_HEAD, Kind.DEVICE))
        last[task.track] = event
    return edges


def _operations(tasks: Sequence[_Task]) -> tuple[list[Operation], list[int]]:
    """Return the distinct tasks, and which each of `tasks` is."""
    numbers: dict[tuple[str, Track], int] = {}
    operations: list[Operation] = []
    for task in tasks:
        if (task.key, task.track) not in numbers:
            numbers[task.key, task.track] = len(operations)
            operations.append(Operation(task.key, task.function, task.track))
    return operations, [numbers[task.key, task.track] for task in tasks]


def _notes(runs: dict[str, list[int]], elsewhere: set[str]) -> list[str]:
    notes = []
    again = sum(len(events) > 1 for events in runs.values())
    if again:
        notes.append(
            f"{counted(again, 'task')} ran more than once: who depends on one waits for its last run before"
        )
    if elsewhere:
        notes.append(
            f"{counted(len(elsewhere), 'result')} that tasks depend on come from another file, or from "
            f"no recorded task: {', '.join(sorted(elsewhere)[:3])}"
        )
    return notes
