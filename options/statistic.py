"""`--option statistic`: how long each operation takes, per operation and category."""

from __future__ import annotations

from argparse import Namespace, _ArgumentGroup
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from errors import TraceError, UsageError
from result import Bars, Chart, Column, Result, Table

if TYPE_CHECKING:
    from formats.columns import Trace
    from statistic.durations import CategoryStat, Stat
    from trace_utils import LoadedJob

HELP = (
    "how long each operation takes: per operation and per category; --sub_option breakdown (of each step), "
    "function_bottleneck, task_bottleneck or task_balance (DASF)"
)
EXAMPLE = "analyze.py --option statistic --path examples/lenet --sort --head 20"
FLAGS = frozenset({"sub_option", "filter", "step_by", "sort", "head", "output"})

_DASF = ("function_bottleneck", "task_bottleneck", "task_balance")


def _ms(key: str, title: str, attribute: str = "", *, minor: int = 0) -> Column:
    """Return a column of milliseconds; its items hold nanoseconds, by default in ``key`` with ``_ns``."""
    get = attrgetter(attribute or f"{key.removesuffix('_ms')}_ns")
    return Column(key, f"{title} (ms)", "float", minor=minor, value=lambda item: get(item) / 1e6)


_OPERATIONS = (
    Column("name", "operation"),
    Column("cat", "category"),
    Column("count", "count", "int"),
    _ms("total_ms", "total"),
    _ms("min_ms", "min", minor=2),
    _ms("max_ms", "max", minor=1),
    _ms("avg_ms", "avg", "mean_ns"),
    Column("var_ms2", "variance (ms²)", "float", minor=3, value=lambda stat: stat.var_ns2 / 1e12),
    _ms("p50_ms", "p50", minor=1),
    _ms("p95_ms", "p95", minor=2),
    _ms("p99_ms", "p99", minor=3),
)
_CATEGORIES = (
    Column("cat", "category"),
    Column("count", "count", "int"),
    _ms("total_ms", "total"),
    Column("max_name", "longest on average"),
    _ms("max_avg_ms", "its avg"),
)
_BREAKDOWN = (
    Column("rank", "rank"),
    Column("step", "step", "int"),
    _ms("wall_ms", "wall"),
    _ms("compute_ms", "compute"),
    _ms("comm_ms", "comm"),
    _ms("overlap_ms", "both"),
    _ms("exposed_comm_ms", "comm alone"),
    _ms("idle_ms", "idle"),
)
_RANKS = (  # of a `RankSummary`
    Column("rank", "rank"),
    Column("steps", "steps", "int"),
    _ms("mean_ms", "mean"),
    _ms("median_ms", "median"),
    *_BREAKDOWN[3:5],
    *_BREAKDOWN[6:],
    Column(
        "outlier_steps", "far longer than the median", value=lambda r: ", ".join(map(str, r.outlier_steps))
    ),
)


def add_arguments(group: _ArgumentGroup) -> None:
    """Declare nothing: all flags of this option are shared with others."""


def run(args: Namespace) -> Result:
    """Return the statistics of the operations, or the variant that `--sub_option` names."""
    if args.output is not None:
        raise UsageError(
            "--output: statistic writes no trace or picture; --xlsx FILE and --html FILE write its tables"
        )
    if args.sub_option in _DASF:
        if args.step_by is not None:
            raise UsageError(f"--step_by has no effect with --sub_option {args.sub_option}")
        return _dasf(args)
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
    from statistic.step_summary import where_time_goes

    stats = _statistics(job)
    cats = categories(job.traces, stats)
    if args.sort:
        stats.sort(key=lambda stat: stat.mean_ns, reverse=True)
    shown = stats[: args.head]
    tables = (
        Table.of("operations", "Operations", _OPERATIONS, shown),
        Table.of("categories", "Categories", _CATEGORIES, cats),
    )
    traces = [
        {"path": str(file.path), "dialect": file.dialect, "events": file.n_events, "ranks": list(file.ranks)}
        for file in job.files
    ]
    of_all = f" ({len(shown):,} shown)" if len(shown) < len(stats) else ""
    spans = sum(file.phases.get(phase, 0) for file in job.files for phase in ("b", "S"))
    note = f"{spans:,} asynchronous spans (phases b and S) are not counted: they belong to no track."
    return _result(
        f"Statistics of {', '.join(map(str, args.path))}",
        job.files[0].path,
        {"traces": traces},
        tables,
        headline=where_time_goes(dict(zip(job.names, job.traces, strict=True)), args.step_by),
        charts=_charts(stats, cats),
        figures=(
            ("operations", f"{len(stats):,}{of_all}"),
            ("slices", f"{sum(map(len, job.traces)):,}"),
        ),
        read=_read_lines(job),
        notes=[note] if spans else [],
        repairs=job.repairs,
    )


def _result(
    title: str, beside: Path, document: dict[str, Any], tables: Sequence[Table], **more: Any
) -> Result:
    """Return the result with its tables in the document; files without a name go beside what was read."""
    return Result(
        "statistic",
        title,
        {**document, **{table.name: table.records() for table in tables if table.name not in document}},
        tables=tables,
        beside=beside,
        **more,
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
    from statistic.step_summary import exposed_and_outliers, summaries

    named = zip(job.names, job.traces, strict=True)
    parts = [part for name, trace in named for part in breakdown(name, trace, args.step_by)]
    of_ranks = summaries(parts)
    ranks = Table.of("ranks", "Steps of each rank", _RANKS, of_ranks)
    records = [
        {**row, "outlier_steps": rank.outlier_steps}
        for row, rank in zip(ranks.records(), of_ranks, strict=True)
    ]
    rules = list(dict.fromkeys(dialects.of(trace).rule(trace) for trace in job.traces if len(trace)))
    stacked = {
        "compute alone": [(part.compute_ns - part.overlap_ns) / 1e6 for part in parts],
        "both": [part.overlap_ns / 1e6 for part in parts],
        "communication alone": [part.exposed_comm_ns / 1e6 for part in parts],
        "idle": [part.idle_ns / 1e6 for part in parts],
    }
    x = [f"{part.rank}/{part.step}" for part in parts]
    return _result(
        f"Breakdown of {', '.join(map(str, args.path))}",
        job.job.sources[0].path,
        {"rules": rules, "ranks": records},
        (Table.of("breakdown", "Time of each step", _BREAKDOWN, parts[: args.head]), ranks),
        headline=exposed_and_outliers(parts),
        charts=(Bars("Where the time of a step goes", "rank / step", "time (ms)", x, stacked, stacked=True),),
        read=_read_lines(job),
        notes=rules,
        repairs=job.repairs,
    )


def _dasf(args: Namespace) -> Result:
    """Return one of DASF's own analyses of its profiles."""
    from statistic.dasf_analyses import analyse

    table, repairs = analyse(args.sub_option, args.path, jobs=args.jobs, progress=args.progress)
    table = replace(table, rows=table.rows[: args.head])
    title = f"{args.sub_option} of {', '.join(map(str, args.path))}"
    return _result(title, args.path[0], {}, (table,), repairs=repairs)


def _read_lines(job: LoadedJob) -> list[str]:
    return [f"{file.path}: {file.dialect}, {file.n_events:,} events" for file in job.files]


def _charts(stats: Sequence[Stat], cats: Sequence[CategoryStat]) -> list[Chart]:
    longest = sorted(stats, key=lambda stat: stat.mean_ns, reverse=True)[:20]
    names = [stat.name for stat in longest]
    averages = {"average": [stat.mean_ns / 1e6 for stat in longest]}
    of_cats = [cat.cat or "(none)" for cat in cats]
    totals = {"total": [cat.total_ns / 1e6 for cat in cats]}
    return [
        Bars("Longest operations on average", "average (ms)", "operation", names, averages, horizontal=True),
        Bars("Time per category", "category", "total (ms)", of_cats, totals),
    ]
