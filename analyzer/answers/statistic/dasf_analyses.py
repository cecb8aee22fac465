"""DASF's three analyses of its profiles: the longest functions and tasks, and tasks per worker.

The figures are those of DASF's analyser (`dasf.profile.analysis`), but for the two about the GPU:

- A task ran *until* the timestamp of its `Compute` record; DASF takes that as its start.
- A resource sample counts for every task that ran at that instant; DASF gives it to the first in the file.
- A sample counts for the tasks of its own host, as monotonic clocks of hosts are unrelated.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from analyzer.base.errors import TraceError
from analyzer.reading import dialects
from analyzer.reading.dialects import Need
from analyzer.reading.formats.columns import COMPUTE, MANAGED_MEMORY, RESOURCE_USAGE, Trace
from trace_utils import Request, read_ranks

#: Uses of the events' args, beside the points.
NEEDS = (Need.EDGES, Need.SIZES)


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


class Load(Struct, frozen=True):
    """The tasks of one function, or of one key, on one worker."""

    host: str
    gpu: str  # DASF's term for the last part of the worker's name
    name: str
    dur_ns: int
    percent: float  # of the time of all tasks of the worker
    n_tasks: int
    input_bytes: float  # mean over tasks, of the results that a task depends on
    throughput: float  # MB/s, mean over tasks
    gpu_percent: float  # mean over the samples in any task of the function, on any worker
    gpu_bytes: float
    result_bytes: int  # of the last run of the last key


def read_profiles(
    paths: Sequence[Path], *, jobs: int | None = None, progress: bool | None = None
) -> tuple[list[Trace], list[str]]:
    """Read DASF databases, or directories of them, as one run; return also a line for each repair.

    TraceError if one is not a DASF profile, or none holds records.
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
    return traces, list(dict.fromkeys(repairs))


def loads(traces: Sequence[Trace], by: Literal["function", "key"]) -> tuple[list[Load], int, int]:
    """Sum the tasks of each worker and function, or key, the longest first; `traces` were read for `NEEDS`.

    Return also the number of samples of GPUs, and of tasks that ran more than once.
    """
    tasks = [task for trace in traces for task in _tasks(trace)]
    if not tasks:
        raise TraceError(
            f"{traces[0].path}: no Compute records, so no {'task' if by == 'key' else by}_bottleneck "
            "(DASF writes none with dask's newer keys, which are tuples); task_balance needs none"
        )
    samples = [sample for trace in traces for sample in _samples(trace)]
    data, usage = _input_bytes(tasks), _usage_per_function(tasks, samples)
    size = {task.key: task.size for task in tasks}
    total: Counter[tuple[str, str]] = Counter()
    groups: dict[tuple[str, str, str], list[_Task]] = defaultdict(list)
    for task in tasks:
        groups[task.host, task.worker, getattr(task, by)].append(task)
        total[task.host, task.worker] += task.dur_ns
    rows = []
    for (host, worker, name), group in groups.items():
        dur_ns, used = sum(task.dur_ns for task in group), usage[group[-1].function]
        load = Load(
            host,
            worker.rpartition("-")[2],
            name,
            dur_ns,
            percent=100 * dur_ns / max(1, total[host, worker]),
            n_tasks=len(group),
            input_bytes=_mean(data[task.key] for task in group),
            throughput=_mean(data[task.key] / task.dur_ns * 1e3 for task in group if task.dur_ns),
            gpu_percent=_mean(percent for percent, _ in used),
            gpu_bytes=_mean(memory for _, memory in used),
            result_bytes=size[group[-1].key],
        )
        rows.append(load)
    repeated = sum(n > 1 for n in Counter(task.key for task in tasks).values())
    return sorted(rows, key=lambda load: -load.dur_ns), len(samples), repeated


def held_tasks(traces: Sequence[Trace]) -> tuple[list[str], list[int], list[list[int]]]:
    """Count the results that each worker (w,) held, per second from the first sample on: (seconds, w).

    As in DASF the last sample of a second counts (in file order), a worker without one has 0, and seconds
    without any sample are left out.
    """
    held: dict[int, dict[str, int]] = defaultdict(dict)
    for trace in traces:
        for _, worker, at_ns, args in _points(trace, MANAGED_MEMORY):
            held[at_ns // 10**9][worker] = _integer(args.get("tasks"))
    if not held:
        raise TraceError(f"{traces[0].path}: no Managed Memory records, so no task_balance")
    workers = sorted({worker for second in held.values() for worker in second})
    seconds = sorted(held)
    counts = [[held[second].get(worker, 0) for worker in workers] for second in seconds]
    return workers, [second - seconds[0] for second in seconds], counts


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


def _input_bytes(tasks: Sequence[_Task]) -> dict[str, int]:
    """Add up the input bytes of each task key; an edge counts once, whichever end names it."""
    size = {task.key: task.size for task in tasks}
    inputs: dict[str, set[str]] = {key: set() for key in size}
    for task in tasks:
        inputs[task.key].update(task.dependencies)
        for after in task.dependents:
            if after in inputs:
                inputs[after].add(task.key)
    return {key: sum(size.get(source, 0) for source in sources) for key, sources in inputs.items()}


def _usage_per_function(
    tasks: Sequence[_Task], samples: Sequence[_Sample]
) -> Mapping[str, list[tuple[float, float]]]:
    """Collect the GPU samples in the tasks of each function; a sample counts for each task that covers it."""
    from intervaltree import IntervalTree

    trees: dict[str, Any] = defaultdict(IntervalTree)
    if samples:
        for number, task in enumerate(tasks):  # the number keeps equal intervals apart
            end_ns = task.start_ns + task.dur_ns + 1  # the tree's intervals exclude their end
            trees[task.host].addi(task.start_ns, end_ns, (number, task.function))
    usage: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for sample in samples:
        for interval in sorted(trees[sample[0]].at(sample[1]), key=lambda interval: int(interval.data[0])):
            usage[interval.data[1]].append(sample[2:])
    return usage


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return sum(known) / len(known) if known else 0.0


def _integer(value: object) -> int:
    return int(value) if isinstance(value, int | float) else 0


def _text(value: object) -> str:
    return "" if value is None else str(value)
