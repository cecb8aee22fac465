"""DASF's three analyses of its profiles: functions and tasks that take long, and tasks per worker.

The tables are those of DASF's own analyser (`dasf.profile.analysis`), column for column. Three things
differ, all in the two columns about the GPU:

- A task ran *until* the timestamp of its `Compute` record; DASF takes that as its start.
- A resource sample goes to every task that ran at that instant; DASF gives it to the first in the file.
- Monotonic clocks of two hosts have nothing in common: a sample counts for the tasks of its own host.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dialects
from errors import TraceError, UsageError, counted
from formats.columns import Trace
from formats.dasf_records import COMPUTE, MANAGED_MEMORY, RESOURCE_USAGE
from result import Cell, Column, Kind, Repairs, Table
from trace_utils import load_job

SUB_OPTIONS = ("function_bottleneck", "task_bottleneck", "task_balance")

#: What `read_traces` must decode for these analyses, together with ``points=True``.
ARGS = ("key", "size", "dependencies", "dependents")

_GPU_NOTE = (
    "A GPU sample counts for every task of its host that ran at that instant (DASF: for the first task in "
    "the file, of any host, taken as running for its duration after its end)."
)


@dataclass(frozen=True, slots=True)
class Task:
    """One `Compute` record; `gpu` is what DASF calls so: the last part of the worker's name."""

    host: str
    worker: str
    function: str
    key: str
    start_ns: int
    dur_ns: int
    size: int  # bytes of its result
    dependencies: Sequence[str]
    dependents: Sequence[str]

    @property
    def gpu(self) -> str:
        """The last part of the worker's name."""
        return self.worker.rpartition("-")[2]


@dataclass(frozen=True, slots=True)
class Sample:
    """One `Resource Usage` record of a host with a GPU."""

    host: str
    at_ns: int
    utilization: float  # percent
    memory: float  # bytes


def tables(
    sub_option: str,
    paths: Sequence[Path],
    *,
    jobs: int | None = None,
    progress: bool | None = None,
    repairs: Repairs | None = None,
) -> list[Table]:
    """Return the table of one analysis of DASF databases.

    Parameters
    ----------
    sub_option : one of `SUB_OPTIONS`
    paths : databases, or directories that hold some; together they are one run
    jobs, progress : as in `trace_utils.read_traces`
    repairs : collects what was repaired or left out

    Returns
    -------
    list of Table, length 1
        Named like the analysis; keys and titles of its columns are DASF's own.

    Raises
    ------
    TraceError
        A path is no DASF profile, or none holds the records that the analysis needs.
    """
    return [table(sub_option, load(paths, jobs=jobs, progress=progress, repairs=repairs))]


def load(
    paths: Sequence[Path],
    *,
    jobs: int | None = None,
    progress: bool | None = None,
    repairs: Repairs | None = None,
) -> list[Trace]:
    """Load the DASF databases at `paths` with all that the analyses need; see `tables`."""
    traces: list[Trace] = []
    for path in paths:
        if path.is_file() and path.stat().st_size == 0 and len(paths) > 1:  # a monitor that never ran
            if repairs is not None:
                repairs.add(path, "empty, no records")
            continue
        loaded = load_job(path, args=ARGS, points=True, jobs=jobs, progress=progress)
        traces.extend(loaded.traces)
        if repairs is not None:
            repairs.lines.extend(line for line in loaded.repairs if line not in repairs.lines)
    for trace in traces:
        if not dialects.of(trace).has_tasks:
            raise TraceError(f"{trace.path}: not a DASF profile but a {trace.dialect} trace")
    if not traces:
        raise TraceError(f"{paths[0]}: no records, nor in the other databases")
    return traces


def table(sub_option: str, traces: Sequence[Trace]) -> Table:
    """Return the table of one analysis; `traces` were read with `ARGS` and their points."""
    if sub_option not in SUB_OPTIONS:
        raise UsageError(f"--sub_option {sub_option}: must be one of {', '.join(SUB_OPTIONS)}")
    if sub_option == "task_balance":
        return task_balance(traces)
    tasks = [task for trace in traces for task in tasks_of(trace)]
    if not tasks:
        raise TraceError(
            f"{traces[0].path}: no Compute records, so no {sub_option} "
            "(DASF writes none with dask's newer keys, which are tuples); task_balance needs none"
        )
    if sub_option == "task_bottleneck":
        return task_bottleneck(tasks)
    return function_bottleneck(tasks, [sample for trace in traces for sample in samples_of(trace)])


def tasks_of(trace: Trace) -> list[Task]:
    """Return the tasks of a database, in file order."""
    values = {key: trace.args[key].as_dict() if key in trace.args else {} for key in ARGS}
    is_compute = [cat == COMPUTE for cat in trace.cats]
    tasks: list[Task] = []
    for row in range(len(trace)):
        if is_compute[trace.cat_id[row]]:
            pid, tid = trace.tracks[trace.track_id[row]]
            tasks.append(
                Task(
                    _text(pid),
                    _text(tid),
                    trace.names[trace.name_id[row]],
                    str(values["key"].get(row, "")),
                    int(trace.ts_ns[row]),
                    int(trace.dur_ns[row]),
                    _integer(values["size"].get(row)),
                    values["dependencies"].get(row, ()),
                    values["dependents"].get(row, ()),
                )
            )
    return tasks


def samples_of(trace: Trace) -> list[Sample]:
    """Return the resource samples of a database that tell of a GPU, in file order."""
    return [
        Sample(host, at_ns, float(args["gpu_utilization"]), float(args["gpu_memory_used"]))
        for host, _, at_ns, args in _points(trace, RESOURCE_USAGE)
        if _is_number(args.get("gpu_utilization")) and _is_number(args.get("gpu_memory_used"))
    ]


def function_bottleneck(tasks: Sequence[Task], samples: Sequence[Sample]) -> Table:
    """Return, per worker and function, its share of the worker's time, its data and its GPU; longest first.

    The size of a task's data is the sum of the results it depends on; its throughput that size by its
    duration; both are averaged over tasks, and over the runs of one that ran again. GPU figures are averages
    over the samples that fell into any task of the function, on whatever worker, and 0 where none did.
    """
    total = _total_per_worker(tasks)
    input_bytes = _input_bytes(tasks)
    usage = _usage_per_function(tasks, samples)
    groups: dict[tuple[str, str, str], list[Task]] = defaultdict(list)
    for task in tasks:
        groups[task.host, task.worker, task.function].append(task)
    rows: list[tuple[Cell, ...]] = []
    for (host, worker, function), group in groups.items():
        dur_ns = sum(task.dur_ns for task in group)
        sizes = [input_bytes[task.key] for task in group]
        rates = [size / task.dur_ns * 1e3 for size, task in zip(sizes, group, strict=True) if task.dur_ns]
        used = usage[function]
        rows.append(
            (
                host,
                group[0].gpu,
                function,
                dur_ns / 1e9,
                _percent(dur_ns, total[host, worker]),
                _mean([sample.utilization for sample in used]),
                _mean([sample.memory for sample in used]) / 1e9,
                _mean(sizes) / 1e6,
                _mean(rates),
                len(group),
                dur_ns / len(group) / 1e9,
            )
        )
    columns = (
        _column("Host"),
        _column("GPU"),
        _column("Function"),
        _column("Duration (s)", "float", 6),
        _column("Percentage of total time (%)", "float"),
        _column("Mean GPU Utilization (%)", "float"),
        _column("Mean GPU Memory Used (GB)", "float"),
        _column("Mean Data Size (MB)", "float"),
        _column("Mean Throughput (MB/s)", "float"),
        _column("Num Tasks (chunks)", "int"),
        _column("Mean Task time (s)", "float", 6),
    )
    notes = [_GPU_NOTE] if samples else []
    if again := sum(n > 1 for n in Counter(task.key for task in tasks).values()):
        notes.append(
            f"{counted(again, 'task')} ran more than once: the throughput of each run is by its own duration "
            "(DASF: by that of the last run)."
        )
    return Table("function_bottleneck", "Function bottleneck", columns, _longest_first(rows), " ".join(notes))


def task_bottleneck(tasks: Sequence[Task]) -> Table:
    """Return, per worker and task, its share of the worker's time and the size of its result; longest first.

    A task that a worker ran more than once is one row with the sum of its durations.
    """
    total = _total_per_worker(tasks)
    size = {task.key: task.size for task in tasks}
    dur_ns: dict[tuple[str, str, str], int] = defaultdict(int)
    for task in tasks:
        dur_ns[task.host, task.worker, task.key] += task.dur_ns
    rows: list[tuple[Cell, ...]] = [
        (host, worker.rpartition("-")[2], key, ns / 1e9, _percent(ns, total[host, worker]), size[key] / 1e6)
        for (host, worker, key), ns in dur_ns.items()
    ]
    columns = (
        _column("Host"),
        _column("GPU"),
        _column("Task Key"),
        _column("Duration (s)", "float", 6),
        _column("Percentage of total time (%)", "float"),
        _column("Memory usage (Mb)", "float"),
    )
    return Table("task_bottleneck", "Task bottleneck", columns, _longest_first(rows))


def task_balance(traces: Sequence[Trace]) -> Table:
    """Return how many results each worker held, per second from the first sample on.

    As in DASF the last sample of a second counts (in file order), a worker without one in that second
    has 0, and seconds without any sample have no row.

    Raises
    ------
    TraceError
        No database has a `Managed Memory` record.
    """
    held: dict[int, dict[str, int]] = defaultdict(dict)
    for trace in traces:
        for _, worker, at_ns, args in _points(trace, MANAGED_MEMORY):
            held[at_ns // 10**9][worker] = _integer(args.get("tasks"))
    if not held:
        raise TraceError(f"{traces[0].path}: no Managed Memory records, so no task_balance")
    workers = sorted({worker for second in held.values() for worker in second})
    first = min(held)
    rows = [[second - first, *(held[second].get(worker, 0) for worker in workers)] for second in sorted(held)]
    interval = _column("Time Interval (seconds from begin)", "int")
    columns = (interval, *(_column(worker, "int") for worker in workers))
    return Table("task_balance", "Tasks held per worker", columns, rows)


def _input_bytes(tasks: Sequence[Task]) -> dict[str, int]:
    """Return per task key the bytes of the results that the task takes.

    An edge counts once, whichever of its ends names it.
    """
    size = {task.key: task.size for task in tasks}
    inputs: dict[str, set[str]] = {key: set() for key in size}
    for task in tasks:
        inputs[task.key].update(task.dependencies)
        for after in task.dependents:
            if after in inputs:
                inputs[after].add(task.key)
    return {key: sum(size.get(each, 0) for each in sources) for key, sources in inputs.items()}


def _usage_per_function(tasks: Sequence[Task], samples: Sequence[Sample]) -> Mapping[str, list[Sample]]:
    """Return per function the samples that fell into its tasks; one for each task that covers it."""
    from intervaltree import IntervalTree

    trees: dict[str, Any] = defaultdict(IntervalTree)
    if samples:
        for number, task in enumerate(tasks):  # the number keeps equal intervals apart
            end_ns = task.start_ns + task.dur_ns + 1  # the tree's intervals exclude their end
            trees[task.host].addi(task.start_ns, end_ns, (number, task.function))
    usage: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        for interval in sorted(trees[sample.host].at(sample.at_ns), key=lambda each: int(each.data[0])):
            usage[interval.data[1]].append(sample)
    return usage


def _points(trace: Trace, name: str) -> Iterator[tuple[str, str, int, Mapping[str, Any]]]:
    """Yield (host, thread, time, args) of the samples called `name`, in file order."""
    points = trace.points
    for row, args in enumerate(trace.header.get("point_args", ())):
        if trace.names[points.name_id[row]] == name:
            pid, tid = trace.tracks[points.track_id[row]]
            yield _text(pid), _text(tid), int(points.ts_ns[row]), args


def _total_per_worker(tasks: Sequence[Task]) -> dict[tuple[str, str], int]:
    total: dict[tuple[str, str], int] = defaultdict(int)
    for task in tasks:
        total[task.host, task.worker] += task.dur_ns
    return total


def _longest_first(rows: Sequence[tuple[Cell, ...]]) -> list[tuple[Cell, ...]]:
    return sorted(rows, key=lambda row: -float(row[3] or 0))


def _column(name: str, kind: Kind = "text", digits: int = 3) -> Column:
    return Column(name, name, kind, digits)


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def _integer(value: object) -> int:
    return int(value) if isinstance(value, int | float) else 0


def _text(value: object) -> str:
    return "" if value is None else str(value)
