"""DASF's three analyses of its profiles: functions and tasks that take long, and tasks per worker.

The tables are those of DASF's own analyser (`dasf.profile.analysis`), column for column. Three things
differ, all in the two columns about the GPU:

- A task ran *until* the timestamp of its `Compute` record; DASF takes that as its start.
- A resource sample goes to every task that ran at that instant; DASF gives it to the first in the file.
- Monotonic clocks of two hosts have nothing in common: a sample counts for the tasks of its own host.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from analyzer.base.errors import TraceError, counted
from analyzer.base.units import in_digits
from analyzer.reading import dialects
from analyzer.reading.dialects import Need
from analyzer.reading.formats.columns import Trace
from analyzer.reading.formats.dasf_records import COMPUTE, MANAGED_MEMORY, RESOURCE_USAGE
from analyzer.report.result import Cell, Column, Table
from trace_utils import Request, read_ranks

#: What the args of events are needed for, beside the points.
NEEDS = (Need.EDGES, Need.SIZES)

_GPU_NOTE = (
    "A GPU sample counts for every task of its host that ran at that instant (DASF: for the first task in "
    "the file, of any host, taken as running for its duration after its end)."
)


class _Task(Struct, frozen=True):
    """One `Compute` record."""

    host: str
    worker: str
    function: str
    key: str
    start_ns: int
    dur_ns: int
    size: int  # bytes of its result
    dependencies: Sequence[str]
    dependents: Sequence[str]


def analyse(
    sub_option: str, paths: Sequence[Path], *, jobs: int | None = None, progress: bool | None = None
) -> tuple[Table, list[str]]:
    """Return the table of one analysis of DASF databases, and a line for each that was repaired or left out.

    `paths` are databases, or directories that hold some; together they are one run. Raises `TraceError` where
    one is not a DASF profile, or none holds the records that the analysis needs.
    """
    traces: list[Trace] = []
    repairs: list[str] = []
    for path in paths:
        if path.is_file() and path.stat().st_size == 0 and len(paths) > 1:  # a monitor that never ran
            repairs.append(f"{path}: empty, no records")
            continue
        loaded = read_ranks([path], request=Request(NEEDS, points=True, jobs=jobs, progress=progress))
        traces.extend(loaded.made)
        repairs += loaded.repairs
    for trace in traces:
        if not dialects.of(trace).has_tasks:
            raise TraceError(f"{trace.path}: not a DASF profile but a {trace.dialect} trace")
    if not traces:
        raise TraceError(f"{paths[0]}: no records, nor in the other databases")
    return table(sub_option, traces), list(dict.fromkeys(repairs))


def table(sub_option: str, traces: Sequence[Trace]) -> Table:
    """Return the table of one analysis; `traces` were read for `NEEDS`, with their points."""
    if sub_option == "task_balance":
        return _task_balance(traces)
    tasks = [task for trace in traces for task in _tasks(trace)]
    if not tasks:
        raise TraceError(
            f"{traces[0].path}: no Compute records, so no {sub_option} "
            "(DASF writes none with dask's newer keys, which are tuples); task_balance needs none"
        )
    if sub_option == "task_bottleneck":
        return _task_bottleneck(tasks)
    return _function_bottleneck(tasks, [sample for trace in traces for sample in _samples(trace)])


def _tasks(trace: Trace) -> Iterator[_Task]:
    key, size, dependencies, dependents = (
        trace.args[name].as_dict() if name in trace.args else {}
        for name in ("key", "size", "dependencies", "dependents")
    )
    for row in range(len(trace)):
        if trace.cats[trace.cat_id[row]] == COMPUTE:
            host, worker = map(_text, trace.tracks[trace.track_id[row]])
            yield _Task(
                host=host,
                worker=worker,
                function=trace.names[trace.name_id[row]],
                key=str(key.get(row, "")),
                start_ns=int(trace.ts_ns[row]),
                dur_ns=int(trace.dur_ns[row]),
                size=_integer(size.get(row)),
                dependencies=dependencies.get(row, ()),
                dependents=dependents.get(row, ()),
            )


#: One `Resource Usage` record of a host with a GPU: host, time (ns), utilization (percent), memory (bytes).
_Sample = tuple[str, int, float, float]


def _samples(trace: Trace) -> Iterator[_Sample]:
    for host, _, at_ns, args in _points(trace, RESOURCE_USAGE):
        used, memory = args.get("gpu_utilization"), args.get("gpu_memory_used")
        if isinstance(used, int | float) and isinstance(memory, int | float):
            yield host, at_ns, float(used), float(memory)


def _points(trace: Trace, name: str) -> Iterator[tuple[str, str, int, Mapping[str, Any]]]:
    """Yield (host, thread, time, args) of the samples called `name`, in file order."""
    points = trace.points
    for row, args in enumerate(trace.header.get("point_args", ())):
        if trace.names[points.name_id[row]] == name:
            host, thread = map(_text, trace.tracks[points.track_id[row]])
            yield host, thread, int(points.ts_ns[row]), args


def _function_bottleneck(tasks: Sequence[_Task], samples: Sequence[_Sample]) -> Table:
    """Return, per worker and function, its share of the worker's time, its data and its GPU; longest first.

    The size of a task's data is the sum of the results it depends on; its throughput that size by its
    duration; both are averaged over tasks, and over the runs of one that ran again. GPU figures are averages
    over the samples that fell into any task of the function, on whatever worker, and 0 where none did.
    """
    data = _input_bytes(tasks)
    usage = _usage_per_function(tasks, samples)

    def used(group: list[_Task], which: int) -> float:
        return _mean(sample[which] for sample in usage[group[0].function])

    columns = (
        *_worker_columns(tasks, "Function", lambda group: group[0].function),
        _column("Mean GPU Utilization (%)", lambda group: used(group, 0), 3),
        _column("Mean GPU Memory Used (GB)", lambda group: used(group, 1) / 1e9, 3),
        _column("Mean Data Size (MB)", lambda group: _mean(data[task.key] for task in group) / 1e6, 3),
        _column("Mean Throughput (MB/s)",
                lambda group: _mean(data[task.key] / task.dur_ns * 1e3 for task in group if task.dur_ns), 3),
        _column("Num Tasks (chunks)", len, 0),
        _column("Mean Task time (s)", lambda group: _dur_ns(group) / len(group) / 1e9, 6),
    )  # fmt: skip
    notes = [_GPU_NOTE] if samples else []
    if again := sum(n > 1 for n in Counter(task.key for task in tasks).values()):
        notes.append(
            f"{counted(again, 'task')} ran more than once: the throughput of each run is by its own duration "
            "(DASF: by that of the last run)."
        )
    rows = _longest_first(tasks, "function")
    return Table.of("function_bottleneck", "Function bottleneck", columns, rows, note=" ".join(notes))


def _task_bottleneck(tasks: Sequence[_Task]) -> Table:
    """Return, per worker and task, its share of the worker's time and the size of its result; longest first.

    A task that a worker ran more than once is one row with the sum of its durations.
    """
    size = {task.key: task.size for task in tasks}
    columns = (
        *_worker_columns(tasks, "Task Key", lambda group: group[0].key),
        _column("Memory usage (Mb)", lambda group: size[group[0].key] / 1e6, 3),
    )
    return Table.of("task_bottleneck", "Task bottleneck", columns, _longest_first(tasks, "key"))


def _longest_first(tasks: Sequence[_Task], by: str) -> list[list[_Task]]:
    groups: dict[tuple[str, str, str], list[_Task]] = defaultdict(list)
    for task in tasks:
        groups[task.host, task.worker, getattr(task, by)].append(task)
    return sorted(groups.values(), key=_dur_ns, reverse=True)


def _worker_columns(tasks: Sequence[_Task], title: str, what: Callable[[list[_Task]], Cell]) -> list[Column]:
    """Return the columns that tell groups of tasks apart, and what each took of its worker's time."""
    total: Counter[tuple[str, str]] = Counter()
    for task in tasks:
        total[task.host, task.worker] += task.dur_ns

    def percent(group: list[_Task]) -> float:
        return 100 * _dur_ns(group) / max(1, total[group[0].host, group[0].worker])

    return [
        _column("Host", lambda group: group[0].host),
        _column("GPU", lambda group: group[0].worker.rpartition("-")[2]),  # DASF calls it so
        _column(title, what),
        _column("Duration (s)", lambda group: _dur_ns(group) / 1e9, 6),
        _column("Percentage of total time (%)", percent, 3),
    ]


def _task_balance(traces: Sequence[Trace]) -> Table:
    """Return how many results each worker held, per second from the first sample on.

    As in DASF the last sample of a second counts (in file order), a worker without one in that second
    has 0, and seconds without any sample have no row.
    """
    held: dict[int, dict[str, int]] = defaultdict(dict)
    for trace in traces:
        for _, worker, at_ns, args in _points(trace, MANAGED_MEMORY):
            held[at_ns // 10**9][worker] = _integer(args.get("tasks"))
    if not held:
        raise TraceError(f"{traces[0].path}: no Managed Memory records, so no task_balance")
    workers = sorted({worker for second in held.values() for worker in second})
    first = min(held)
    titles = ("Time Interval (seconds from begin)", *workers)
    rows = [[second - first, *(held[second].get(worker, 0) for worker in workers)] for second in sorted(held)]
    columns = [Column(title, title, "int") for title in titles]
    missing = max(held) - first + 1 - len(held)
    note = f"{counted(missing, 'second')} without any sample: no row." if missing else ""
    return Table("task_balance", "Tasks held per worker", columns, rows, note=note)


def dasf_headline(table: Table) -> str:
    """Name what takes longest, or how many results a worker holds at most."""
    if not table.rows:
        return ""
    rows: Sequence[Sequence[Any]] = table.rows
    if table.name == "task_balance":
        return f"A worker holds {max(max(row[1:]) for row in rows)} tasks at most."
    host, gpu, name, seconds, _ = rows[0][:5]
    return f"{name} takes longest: {in_digits(seconds)} s on GPU {gpu} of {host}."


def _input_bytes(tasks: Sequence[_Task]) -> dict[str, int]:
    """Return per task key the bytes of the results it takes; an edge counts once, whoever names it."""
    size = {task.key: task.size for task in tasks}
    inputs: dict[str, set[str]] = {key: set() for key in size}
    for task in tasks:
        inputs[task.key].update(task.dependencies)
        for after in task.dependents:
            if after in inputs:
                inputs[after].add(task.key)
    return {key: sum(size.get(each, 0) for each in sources) for key, sources in inputs.items()}


def _usage_per_function(
    tasks: Sequence[_Task], samples: Sequence[_Sample]
) -> Mapping[str, list[tuple[float, float]]]:
    """Return per function the samples that fell into its tasks; one for each task that covers it."""
    from intervaltree import IntervalTree

    trees: dict[str, Any] = defaultdict(IntervalTree)
    if samples:
        for number, task in enumerate(tasks):  # the number keeps equal intervals apart
            end_ns = task.start_ns + task.dur_ns + 1  # the tree's intervals exclude their end
            trees[task.host].addi(task.start_ns, end_ns, (number, task.function))
    usage: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for sample in samples:
        for interval in sorted(trees[sample[0]].at(sample[1]), key=lambda each: int(each.data[0])):
            usage[interval.data[1]].append(sample[2:])
    return usage


def _dur_ns(group: Sequence[_Task]) -> int:
    return sum(task.dur_ns for task in group)


def _column(title: str, value: Callable[[list[_Task]], Cell], digits: int | None = None) -> Column:
    """Return a column of groups of tasks: of text, or of numbers with so many decimals."""
    return Column(
        title, title, "float" if digits else "text" if digits is None else "int", digits or 3, value=value
    )


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return sum(known) / len(known) if known else 0.0


def _integer(value: object) -> int:
    return int(value) if isinstance(value, int | float) else 0


def _text(value: object) -> str:
    return "" if value is None else str(value)
