"""`--option statistic`: how long each operation takes, per operation and category."""

from __future__ import annotations

from argparse import Namespace, _ArgumentGroup
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from errors import TraceError, UsageError
from result import Bars, Chart, Column, Repairs, Result, Table

if TYPE_CHECKING:
    from formats.columns import Trace
    from statistic.breakdown import Breakdown
    from statistic.durations import CategoryStat, Stat
    from trace_utils import LoadedJob, TraceFile

HELP = (
    "how long each operation takes: per operation and per category; --sub_option breakdown (of each step), "
    "function_bottleneck, task_bottleneck or task_balance (DASF)"
)
EXAMPLE = "analyze.py --option statistic --path examples/lenet --sort --head 20"
FLAGS = frozenset({"sub_option", "filter", "step_by", "sort", "head", "output"})

_DASF = ("function_bottleneck", "task_bottleneck", "task_balance")
_OPERATIONS = (
    Column("name", "operation"),
    Column("cat", "category"),
    Column("count", "count", "int"),
    Column("total_ms", "total (ms)", "float"),
    Column("min_ms", "min (ms)", "float"),
    Column("max_ms", "max (ms)", "float"),
    Column("avg_ms", "avg (ms)", "float"),
    Column("var_ms2", "variance (ms²)", "float", minor=True),
    Column("p50_ms", "p50 (ms)", "float"),
    Column("p95_ms", "p95 (ms)", "float"),
    Column("p99_ms", "p99 (ms)", "float", minor=True),
)
_CATEGORIES = (
    Column("cat", "category"),
    Column("count", "count", "int"),
    Column("total_ms", "total (ms)", "float"),
    Column("max_name", "longest on average"),
    Column("max_avg_ms", "its avg (ms)", "float"),
)
_BREAKDOWN = (
    Column("rank", "rank"),
    Column("step", "step", "int"),
    Column("wall_ms", "wall (ms)", "float"),
    Column("compute_ms", "compute (ms)", "float"),
    Column("comm_ms", "comm (ms)", "float"),
    Column("overlap_ms", "both (ms)", "float"),
    Column("exposed_comm_ms", "comm alone (ms)", "float"),
    Column("idle_ms", "idle (ms)", "float"),
)


def add_arguments(group: _ArgumentGroup) -> None:
    """Declare nothing: all flags of this option are shared with others.

    `--sub_option breakdown` splits each step into computation, communication and idle time;
    `function_bottleneck`, `task_bottleneck` and `task_balance` are DASF's analyses of its profiles.
    """


def run(args: Namespace) -> Result:
    """Return the statistics of the operations, or the variant that `--sub_option` names."""
    if args.output is not None:
        raise UsageError(
            "--output: statistic writes no trace or picture; --xlsx FILE and --html FILE write its tables"
        )
    if args.sub_option in _DASF:
        return _run_dasf(args)
    if args.sub_option not in (None, "breakdown"):
        variants = ", ".join(("breakdown", *_DASF))
        raise UsageError(f"--sub_option {args.sub_option}: statistic has the variants {variants}")
    from trace_utils import load_paths

    job = load_paths(args.path, only=args.filter, jobs=args.jobs, progress=args.progress)
    if not any(map(len, job.traces)):
        raise TraceError(f"{args.path[0]}: the trace holds no operation (no X event, no B with its E)")
    return _breakdown(args, job) if args.sub_option == "breakdown" else _statistic(args, job)


def _statistic(args: Namespace, job: LoadedJob) -> Result:
    from statistic.durations import categories

    stats = _statistics(job)
    cats = categories(job.traces, stats)
    if args.sort:
        stats.sort(key=lambda stat: stat.mean_ns, reverse=True)
    shown = stats[: args.head]
    operations = Table("operations", "Operations", _OPERATIONS, [_operation_row(stat) for stat in shown])
    by_cat = Table("categories", "Categories", _CATEGORIES, [_category_row(cat) for cat in cats])
    document = {
        "option": "statistic",
        "traces": [_file_entry(file) for file in job.files],
        "operations": operations.records(),
        "categories": by_cat.records(),
    }
    return Result(
        "statistic",
        f"Statistics of {', '.join(map(str, args.path))}",
        document,
        tables=(operations, by_cat),
        charts=_charts(stats, cats),
        figures=(
            (
                "operations",
                f"{len(stats):,}" + (f" ({len(shown):,} shown)" if len(shown) < len(stats) else ""),
            ),
            ("slices", f"{sum(map(len, job.traces)):,}"),
        ),
        read=_read_lines(job),
        notes=_asynchronous(job),
        repairs=job.repairs,
        beside=job.files[0].path,
    )


def _statistics(job: LoadedJob) -> list[Stat]:
    """Return every operation's statistics; files that share a prefix (or have none) count as one trace."""
    from formats.columns import concatenate
    from statistic.durations import statistics

    several = len(job.traces) > 1
    by_prefix: dict[str, list[Trace]] = {}
    for source, trace in zip(job.job.sources, job.traces, strict=True):
        by_prefix.setdefault(source.prefix if several else "", []).append(trace)
    return [stat for prefix, traces in by_prefix.items() for stat in statistics(concatenate(traces), prefix)]


def _breakdown(args: Namespace, job: LoadedJob) -> Result:
    import dialects
    from statistic.breakdown import breakdown

    rows = [
        _breakdown_row(name, part)
        for name, trace in zip(job.names, job.traces, strict=True)
        for part in breakdown(trace, args.step_by)
    ]
    table = Table("breakdown", "Time of each step", _BREAKDOWN, rows[: args.head])
    x = [f"{row[0]}/{row[1]}" for row in rows]
    parts = {
        "compute alone": [row[3] - row[5] for row in rows],
        "both": [row[5] for row in rows],
        "communication alone": [row[6] for row in rows],
        "idle": [row[7] for row in rows],
    }
    return Result(
        "statistic",
        f"Breakdown of {', '.join(map(str, args.path))}",
        {"option": "statistic", "breakdown": table.records()},
        tables=(table,),
        charts=(Bars("Where the time of a step goes", "rank / step", "time (ms)", x, parts, stacked=True),),
        read=_read_lines(job),
        notes=list(dict.fromkeys(dialects.of(trace).rule(trace) for trace in job.traces if len(trace))),
        repairs=job.repairs,
        beside=job.job.sources[0].path,
    )


def _run_dasf(args: Namespace) -> Result:
    """Return one of DASF's own analyses of its profiles."""
    from statistic import dasf_analyses as dasf

    repairs = Repairs()
    tables = dasf.tables(args.sub_option, args.path, jobs=args.jobs, progress=args.progress, repairs=repairs)
    tables = [replace(table, rows=table.rows[: args.head]) for table in tables]
    return Result(
        "statistic",
        f"{args.sub_option} of {', '.join(map(str, args.path))}",
        {"option": "statistic", **{table.name: table.records() for table in tables}},
        tables=tables,
        repairs=repairs.lines,
        beside=args.path[0],
    )


def _file_entry(file: TraceFile) -> dict[str, object]:
    return {
        "path": str(file.path),
        "dialect": file.dialect,
        "events": file.n_events,
        "ranks": list(file.ranks),
    }


def _read_lines(job: LoadedJob) -> list[str]:
    return [f"{file.path}: {file.dialect}, {file.n_events:,} events" for file in job.files]


def _asynchronous(job: LoadedJob) -> list[str]:
    """Say what was read but is no operation: spans between an async begin and its end."""
    spans = sum(file.phases.get(phase, 0) for file in job.files for phase in ("b", "S"))
    if not spans:
        return []
    return [f"{spans:,} asynchronous spans (phases b and S) are not counted: they belong to no track."]


def _charts(stats: Sequence[Stat], cats: Sequence[CategoryStat]) -> list[Chart]:
    longest = sorted(stats, key=lambda stat: stat.mean_ns, reverse=True)[:20]
    by_cat = Bars(
        "Time per category",
        "category",
        "total (ms)",
        [cat.cat or "(none)" for cat in cats],
        {"total": [cat.total_ns / 1e6 for cat in cats]},
    )
    by_op = Bars(
        "Longest operations on average",
        "average (ms)",
        "operation",
        [stat.name for stat in longest],
        {"average": [stat.mean_ns / 1e6 for stat in longest]},
        horizontal=True,
    )
    return [by_op, by_cat]


def _operation_row(
    stat: Stat,
) -> tuple[str, str, int, float, float, float, float, float, float, float, float]:
    return (
        stat.name,
        stat.cat,
        stat.count,
        stat.total_ns / 1e6,
        stat.min_ns / 1e6,
        stat.max_ns / 1e6,
        stat.mean_ns / 1e6,
        stat.var_ns2 / 1e12,
        stat.p50_ns / 1e6,
        stat.p95_ns / 1e6,
        stat.p99_ns / 1e6,
    )


def _category_row(cat: CategoryStat) -> tuple[str, int, float, str, float]:
    return cat.cat, cat.count, cat.total_ns / 1e6, cat.max_name, cat.max_avg_ns / 1e6


def _breakdown_row(
    rank: str, part: Breakdown
) -> tuple[str, int | None, float, float, float, float, float, float]:
    values = (
        part.wall_ns,
        part.compute_ns,
        part.comm_ns,
        part.overlap_ns,
        part.exposed_comm_ns,
        part.idle_ns,
    )
    wall, compute, comm, overlap, exposed, idle = (ns / 1e6 for ns in values)
    return rank, part.step, wall, compute, comm, overlap, exposed, idle
