"""DASF: profiles of tasks, one file per worker."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from analyzer.base.arrays import NDArray
from analyzer.base.errors import TraceError, counted
from analyzer.reading.dialects.roles import Role
from analyzer.reading.dialects.system import Need, System
from analyzer.reading.dialects.tolerances import LATE_RESULT_NS
from analyzer.reading.formats.columns import COMPUTE, Trace, Track

if TYPE_CHECKING:
    from analyzer.reading.dialects.step_parts import Operation, RankSteps, RankTrace


class Dasf(System):
    """Tasks and handlers; the analyses of `statistic.dasf_analyses` read them by their fields."""

    name = "dasf"
    counted_by = "A DASF profile records tasks only: all of them compute."
    has_tasks = True
    args = MappingProxyType({Need.EDGES: ("key", "dependencies", "dependents"), Need.SIZES: ("size",)})

    def recognises(self, trace: Trace) -> bool:
        """Accept the traces of its reader: they are no chrome files."""
        return trace.dialect == self.name

    def recorded_roles(self, trace: Trace) -> NDArray[np.int8]:
        return np.full(len(trace), Role.COMPUTE, np.int8)

    def filter_names(self, name: str, cat: str, tid: object, process: str | None) -> Sequence[str]:
        return ()

    def rank_steps(self, rank: RankTrace, by: str | None = None) -> RankSteps:
        """Make the graph of the tasks of one database as step 1.

        An operation is a key; the category is its function. A task waits for its dependencies (a message
        where another worker computed them) and for the task before it on its worker. Dependencies that
        another database computed are meetings.
        """
        from analyzer.reading.dialects.edge_rules import Rule
        from analyzer.reading.dialects.step_parts import UNMARKED, Edge, Joint, Meeting, RankStep, RankSteps

        tasks = _tasks(rank.trace)
        if not tasks:
            raise TraceError(f"{rank.trace.path}: no task is recorded in it (no Compute record)")
        runs: dict[str, list[int]] = defaultdict(list)
        for event, task in enumerate(tasks):
            runs[task.operation.name].append(event)
        operations: dict[Operation, int] = {}
        edges: list[Edge] = []
        meetings: list[Meeting] = []
        elsewhere: set[str] = set()
        last_on: dict[Track, int] = {}
        for event, task in enumerate(tasks):
            operations.setdefault(task.operation, len(operations))
            meetings.append(Meeting(task.operation.name, event, enters=True, leaves=False, turn=task.run))
            track = task.operation.track
            sources = set()
            for need in task.dependencies:
                if need not in runs:
                    elsewhere.add(need)
                    meeting = Meeting(need, event, False, True, Joint.END_TO_HEAD, Rule.RESULT_SENT, task.run)
                    meetings.append(meeting)
                elif (source := _run_before(tasks, runs[need], task)) is not None and source != event:
                    is_local = tasks[source].operation.track == track
                    edges.append(Edge(source, event, rule=Rule.RESULT if is_local else Rule.RESULT_SENT))
                    sources.add(source)
            if track in last_on and last_on[track] not in sources:
                edges.append(Edge(last_on[track], event, rule=Rule.THREAD))
            last_on[track] = event
        times = np.array([(task.start_ns, task.end_ns) for task in tasks], np.int64)
        bounds = int(times[:, 0].min()), int(times[:, 1].max())
        operation = np.array([operations[task.operation] for task in tasks], np.int64)
        step = RankStep.of(1, bounds, operation, times, edges, meetings)
        return RankSteps(rank.name, list(operations), [step], (UNMARKED, *_notes(runs, elsewhere)))


class _Task(Struct, frozen=True):
    """One `Compute` record; `run` counts the runs of its key from 1."""

    operation: Operation  # its key, of the category of its function
    run: int
    start_ns: int
    end_ns: int
    dependencies: Sequence[str]


def _tasks(trace: Trace) -> list[_Task]:
    """List the recorded tasks by their end."""
    from analyzer.reading.dialects.step_parts import Operation

    key_of, needs, needed_by = (
        trace.args[arg].as_dict() if arg in trace.args else {} for arg in Dasf.args[Need.EDGES]
    )
    before: dict[str, list[str]] = defaultdict(list)
    for row, keys in needed_by.items():
        for key in keys if isinstance(keys, list) and row in key_of else ():
            before[str(key)].append(str(key_of[row]))
    tasks = []
    count: Counter[str] = Counter()
    end_ns = trace.end_ns
    for row in np.lexsort((trace.ts_ns, end_ns)).tolist():
        if row not in key_of or trace.cats[trace.cat_id[row]] != COMPUTE:
            continue
        key, named = str(key_of[row]), needs.get(row)
        count[key] += 1
        listed = map(str, named if isinstance(named, list) else ())
        operation = Operation(key, trace.names[trace.name_id[row]], trace.tracks[trace.track_id[row]])
        dependencies = list(dict.fromkeys([*listed, *before[key]]))
        tasks.append(_Task(operation, count[key], int(trace.ts_ns[row]), int(end_ns[row]), dependencies))
    return tasks


def _run_before(tasks: Sequence[_Task], runs: Sequence[int], task: _Task) -> int | None:
    """Find the run of a dependency that ended last before the task began.

    If none did, the first that began before it: the clocks of two workers may differ a little.
    """
    ends = [tasks[run].end_ns for run in runs]
    last = bisect_right(ends, task.start_ns + LATE_RESULT_NS) - 1
    if last >= 0:
        return runs[last]
    return next((run for run in runs if tasks[run].start_ns < task.start_ns), None)


def _notes(runs: dict[str, list[int]], elsewhere: set[str]) -> list[str]:
    notes = []
    again = sum(len(events) > 1 for events in runs.values())
    if again:
        notes.append(
            f"{counted(again, 'task')} ran more than once: dependents wait for the last run before them"
        )
    if elsewhere:
        notes.append(
            f"{counted(len(elsewhere), 'result')} that tasks depend on come from another file, or from "
            f"no recorded task: {', '.join(sorted(elsewhere)[:3])}"
        )
    return notes
