"""Tables of collectives and of DASF's tasks, and the icicle of modules."""

from __future__ import annotations

import re
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from analyzer.answers.statistic.collective_stats import CollectiveStats, collective_stats
from analyzer.answers.statistic.dasf_analyses import held_tasks, loads
from analyzer.base.errors import UsageError, counted
from analyzer.base.inputs import is_digest
from analyzer.base.units import in_digits, in_ms, in_percent
from analyzer.cli import asked, damage_notes, name_files, real, real_notes
from analyzer.model.figures.durations import Stat
from analyzer.reading.formats.columns import Trace
from analyzer.report.result import Column, Result, Span, Table, Timeline, ms_column

if TYPE_CHECKING:
    from dag_utils import LoadedSteps

_COLLECTIVES = (
    Column("kind", "kind"),
    Column("group", "group"),
    Column("ranks", "ranks", "int"),
    Column("bytes", "bytes", "int", value=lambda row: row.n_bytes),
    Column("count", "count", "int"),
    ms_column("transfer_ms", "transfer", "transfer_ns"),
    ms_column("waiting_ms", "waiting", "waiting_ns"),
    Column("algbw_gbs", "algorithm (GB/s)", "float", 2, value=lambda row: row.algbw),
    Column("busbw_gbs", "bus (GB/s)", "float", 2, value=lambda row: row.busbw),
    Column("exposed_share", "exposed", "percent", 0),
)
_HOW = (
    "Algorithm bandwidth = bytes / transfer time; bus bandwidth = that × the factor of nccl-tests. "
    "Exposed: not overlapped by computation."
)


_MOST_LEVELS, _MOST_BOXES = 100, 8_000  # of an icicle
_NUMBER = re.compile(r"_\d+$")  # of a module among those of its class


def check_events(args: Namespace, what: str) -> None:
    """Raise `UsageError` for digests and step logs, which have no `what`."""
    from trace_utils import held_by

    refused = f"--sub_option {args.sub_option}"
    for digest in filter(is_digest, args.path):
        raise UsageError(f"{refused}: {digest} is a digest, which has no {what}; give the traces")
    if held_by(args.path) == "steps":
        raise UsageError(
            f"{refused}: {args.path[0]} is a step log, which has no {what}; "
            "analyze.py statistic shows its columns"
        )


def real_steps(args: Namespace) -> tuple[LoadedSteps, list[str]]:
    """Load the steps without the profiler, or as `--as_recorded` and `--real_step` say, with notes."""
    from dag_utils import load_steps

    loaded = load_steps(args.path, asked(args))
    job = real(args, loaded)
    return (loaded, []) if job is None else (job.loaded, real_notes(job.step))


def collectives(args: Namespace) -> Result:
    """List the collectives of the job at `--path`."""
    from dag_utils import read_partitions

    check_events(args, "collectives")
    stats = collective_stats(args.path, read_partitions(args.path).bytes_of, asked(args))
    table = Table.of("collectives", "Collectives", _COLLECTIVES, stats.rows, lambda row: -row.total_ns)
    name_files(args, stats.files[0].path)
    return Result(
        "statistic",
        f"Collectives of {', '.join(map(str, args.path))}",
        {table.name: table},
        tables=[table],
        headline=_headline(stats),
        notes=[_HOW, *stats.notes, *damage_notes(stats.files)],
        repairs=stats.repairs,
    )


def _headline(stats: CollectiveStats) -> str:
    if not stats.rows:
        return "No collective is recorded."
    total = sum(row.total_ns for row in stats.rows)
    exposed = sum(row.total_ns * (row.exposed_share or 0.0) for row in stats.rows) / max(total, 1)
    n = sum(row.count for row in stats.rows)
    return f"{counted(n, 'collective')} take {in_ms(total)} per rank, {in_percent(exposed)} exposed."


_GPU_NOTE = (
    "A GPU sample counts for every task of its host that ran at that instant (DASF: for the first task in "
    "the file, of any host, taken as running for its duration after its end)."
)


def _column(title: str, value: Callable[[Any], Any], digits: int | None = None) -> Column:
    """Make a column of text or, with `digits` decimals, of numbers."""
    kind = "float" if digits else "text" if digits is None else "int"
    return Column(title, title, kind, digits or 3, value=value)  # type: ignore[arg-type]


def _of_worker(title: str) -> tuple[Column, ...]:
    """Make the columns of all loads; `title` names the rows."""
    return (
        _column("Host", lambda load: load.host),
        _column("GPU", lambda load: load.gpu),
        _column(title, lambda load: load.name),
        _column("Duration (s)", lambda load: load.dur_ns / 1e9, 6),
        _column("Percentage of total time (%)", lambda load: load.percent, 3),
    )


_FUNCTIONS = (
    *_of_worker("Function"),
    _column("Mean GPU Utilization (%)", lambda load: load.gpu_percent, 3),
    _column("Mean GPU Memory Used (GB)", lambda load: load.gpu_bytes / 1e9, 3),
    _column("Mean Data Size (MB)", lambda load: load.input_bytes / 1e6, 3),
    _column("Mean Throughput (MB/s)", lambda load: load.throughput, 3),
    _column("Num Tasks (chunks)", lambda load: load.n_tasks, 0),
    _column("Mean Task time (s)", lambda load: load.dur_ns / load.n_tasks / 1e9, 6),
)
_TASKS = (*_of_worker("Task Key"), _column("Memory usage (Mb)", lambda load: load.result_bytes / 1e6, 3))


def dasf_table(sub_option: str, traces: Sequence[Trace]) -> tuple[Table, str]:
    """Make the table of an analysis; also its headline: what takes longest, or how much a worker holds."""
    if sub_option == "task_balance":
        workers, seconds, counts = held_tasks(traces)
        titles = ("Time Interval (seconds from begin)", *workers)
        columns = [Column(title, title, "int") for title in titles]
        rows = [[second, *of_second] for second, of_second in zip(seconds, counts, strict=True)]
        missing = seconds[-1] + 1 - len(seconds)
        note = f"{counted(missing, 'second')} without any sample: no row." if missing else ""
        table = Table(sub_option, "Tasks held per worker", columns, rows, note=note)
        return table, f"A worker holds {max(map(max, counts))} tasks at most."
    of_tasks = sub_option == "task_bottleneck"
    of_workers, n_samples, n_repeated = loads(traces, "key" if of_tasks else "function")
    longest = of_workers[0]
    seconds_of_longest = in_digits(longest.dur_ns / 1e9)
    headline = f"{longest.name} takes longest: {seconds_of_longest} s on GPU {longest.gpu} of {longest.host}."
    if of_tasks:
        return Table.of(sub_option, "Task bottleneck", _TASKS, of_workers), headline
    notes = [_GPU_NOTE] if n_samples else []
    if n_repeated:
        notes.append(
            f"{counted(n_repeated, 'task')} ran more than once: the throughput of each run is by its "
            "own duration (DASF: by that of the last run)."
        )
    return Table.of(sub_option, "Function bottleneck", _FUNCTIONS, of_workers, note=" ".join(notes)), headline


def icicle(stats: Iterable[Stat]) -> Timeline:
    """Draw the time of modules, or of Python functions where no module is recorded.

    Below a box lie the modules inside, in the order of their first launches; beside them is its own time.
    """
    own_ns: dict[tuple[str, ...], float] = defaultdict(float)
    for stat in stats:
        separator = ";" if "(" in stat.name else "."  # functions have points in their names
        path = ("all", *stat.name.split(separator, _MOST_LEVELS))
        own_ns[path] += stat.own_ns
    whole_ns: dict[tuple[str, ...], float] = defaultdict(float)
    for path, ns in own_ns.items():
        for depth in range(1, len(path) + 1):
            whole_ns[path[:depth]] += ns
    spans: list[Span] = []
    free_ns: dict[tuple[str, ...], float] = {(): 0.0}  # where the next module inside begins
    for path, ns in whole_ns.items():  # a module stands before those inside
        start, outer = free_ns[path[:-1]], path[:-1]
        free_ns[path], free_ns[outer] = start, start + ns
        own = own_ns.get(path, 0.0)
        name = f"{path[-1]} (own {in_ms(own)})" if 0 < own < ns else path[-1]
        spans.append(Span(f"level {len(path) - 1}", name, start / 1e6, ns / 1e6, _NUMBER.sub("", path[-1])))
    spans.sort(key=lambda span: -span.dur_ms)
    note = "A box is as wide as the time of its module with those inside, below it."
    if left_out := len(spans[_MOST_BOXES:]):
        note += f" {left_out:,} boxes are left out: the shortest."
    return Timeline("Time by module", spans[:_MOST_BOXES], note=note)
