"""`--option statistic`: how long each operation takes, per operation and category."""

from __future__ import annotations

from argparse import Namespace, _ArgumentGroup
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from errors import TraceError, UsageError, counted
from options import check_heeded, check_variant, is_drawn
from outputs.marks import is_digest
from result import Bars, Chart, Column, Result, Table, ms_column

if TYPE_CHECKING:
    from figures.durations import CategoryStat, Stat
    from figures.job_figures import JobFigures
    from figures.run_table import MeasuredRun

HELP = (
    "how long each operation takes: per operation and per category; --sub_option breakdown (of each step), "
    "function_bottleneck, task_bottleneck or task_balance (DASF)"
)
EXAMPLE = "analyze.py --option statistic --path examples/lenet --sort --head 20"
FLAGS = frozenset({"sub_option", "filter", "step_by", "sort", "head", "output", "group_by", "save"})

_MOST_RANKS = 16  # of which a terminal shows a row for each operation and rank, and a page a bar
_MOST_BARS, _MOST_CATS = 20, 64
_IDLE, _OTHERS = "nothing recorded", "others"

_DASF = ("function_bottleneck", "task_bottleneck", "task_balance")


_OPERATIONS = (
    Column("name", "operation"),
    Column("cat", "category"),
    Column("count", "count", "int"),
    ms_column("total_ms", "total", "total_ns"),
    ms_column("min_ms", "min", "min_ns", minor=2),
    ms_column("max_ms", "max", "max_ns", minor=1),
    ms_column("avg_ms", "avg", "mean_ns"),
    Column("var_ms2", "variance (ms²)", "float", minor=3, value=lambda stat: stat.var_ns2 / 1e12),
    ms_column("p50_ms", "p50", "p50_ns", minor=1),
    ms_column("p95_ms", "p95", "p95_ns", minor=2),
    ms_column("p99_ms", "p99", "p99_ns", minor=3),
)
#: Those of an operation over all ranks; what ranks differ in goes before what events differ in.
_OVER_RANKS = (
    *(
        column._replace(minor=column.minor or column.key in ("min_ms", "max_ms", "p50_ms"))
        for column in _OPERATIONS
    ),
    Column("ranks", "ranks", "int"),
    Column("slowest_rank", "slowest rank"),
    ms_column("slowest_avg_ms", "its avg", "slowest_mean_ns"),
    ms_column("fastest_avg_ms", "fastest avg", "fastest_mean_ns"),
)
_CATEGORIES = (
    Column("cat", "category"),
    Column("count", "count", "int"),
    ms_column("total_ms", "total", "total_ns"),
    Column("max_name", "longest on average"),
    ms_column("max_avg_ms", "its avg", "max_avg_ns"),
)
_BREAKDOWN = (
    Column("rank", "rank"),
    Column("step", "step", "id"),
    ms_column("wall_ms", "wall", "wall_ns"),
    ms_column("compute_ms", "compute", "compute_ns"),
    ms_column("comm_ms", "comm", "comm_ns"),
    ms_column("overlap_ms", "both", "overlap_ns"),
    ms_column("exposed_comm_ms", "comm alone", "exposed_comm_ns"),
    ms_column("idle_ms", "idle", "idle_ns"),
)
_RANKS = (  # of a `RankSummary`
    Column("rank", "rank"),
    Column("steps", "steps", "int"),
    ms_column("mean_ms", "mean", "mean_ns"),
    ms_column("median_ms", "median", "median_ns"),
    *_BREAKDOWN[3:5],
    *_BREAKDOWN[6:],
    Column(
        "outlier_steps", "far longer than the median", value=lambda r: ", ".join(map(str, r.outlier_steps))
    ),
)


def add_arguments(group: _ArgumentGroup) -> None:
    """Declare the flag of this option alone."""
    group.add_argument("--group_by", choices=("operation", "rank"),
        help="a row for each operation of all ranks, or of each rank (default; a table of more than 16 ranks "
        "is by operation)")  # fmt: skip


def run(args: Namespace) -> Result:
    """Return the statistics of the operations, or the variant that `--sub_option` names."""
    if args.output is not None:
        raise UsageError(
            "--output: statistic writes no trace or picture; --xlsx FILE and --html FILE write its tables"
        )
    if args.sub_option in _DASF:
        if args.step_by is not None:
            raise UsageError(f"--step_by has no effect with --sub_option {args.sub_option}")
        check_heeded(args, "save", "filter", "sort", "group_by")
        return _dasf(args)
    check_variant(args, "breakdown", *_DASF)
    if args.sub_option is not None and args.group_by is not None:
        raise UsageError(f"--group_by has no effect with --sub_option {args.sub_option}")
    from figures.digest_words import check_digests

    check_digests(args)
    show = _breakdown if args.sub_option == "breakdown" else _statistic
    if any(map(is_digest, args.path)):
        return show(args, *_from_digest(args))._replace(beside=args.path[0])
    result = show(args, *_from_traces(args))
    return result if args.save is None else result._replace(notes=[*result.notes, f"Digest: {args.save}"])


def _is_drawn(args: Namespace) -> bool:
    """Whether somebody looks at charts of operations."""
    return is_drawn(args) and args.sub_option is None


def _from_traces(args: Namespace) -> tuple[JobFigures, MeasuredRun | None]:
    """Return the figures, and where operations are drawn, the job step by step."""
    how: dict[str, Any] = {"only": args.filter, "jobs": args.jobs, "progress": args.progress}
    if args.save is not None or _is_drawn(args):
        from figures.digest_saving import load_both, save

        job, figures, run = load_both(
            args.path, for_digest=args.save is not None, step_by=args.step_by, **how
        )
        if args.save is not None:
            save(args.save, job, figures, run, args.step_by)
        return figures, run if _is_drawn(args) else None
    import dialects
    from figures.job_figures import job_figures, rank_figures
    from traces.ranks import map_ranks

    by_step = args.sub_option == "breakdown"
    work = partial(rank_figures, operations=not by_step, steps=by_step, step_by=args.step_by)
    mapped = map_ranks(args.path, work, args=dialects.keys_for({dialects.Need.STEPS}), **how)
    mapped.check_any()
    return job_figures(mapped, [rank.made for rank in mapped.ranks]), None


def _from_digest(args: Namespace) -> tuple[JobFigures, MeasuredRun | None]:
    from figures.digest_reading import read_figures, read_run

    if len(args.path) > 1:
        raise UsageError("a digest is a whole job: statistic takes it alone")
    by_step = args.sub_option == "breakdown" or args.step_by is not None
    run = read_run(args.path[0], args.step_by) if _is_drawn(args) else None
    return read_figures(args.path[0], args.step_by, steps=by_step), run


def _statistic(args: Namespace, job: JobFigures, run: MeasuredRun | None) -> Result:
    from figures.durations import all_of, categories, statistics
    from statistic.over_ranks import over_ranks

    groups = job.by_prefix
    brief = args.group_by is None and args.format == "table" and len(groups) > _MOST_RANKS
    grouped = over_ranks(groups.values()) if brief or args.group_by == "operation" else []
    stats: Sequence[Stat] = grouped
    if args.group_by != "operation":
        stats = all_of([statistics(own, prefix) for prefix, (_, own) in groups.items()])
    totals = sum((Counter(rank.category_ns) for rank in job.ranks), Counter())
    cats = categories(totals, stats)
    shown = _longest_first(stats, args)
    columns = _OPERATIONS if args.group_by != "operation" else _OVER_RANKS
    operations = _operations(columns, shown, args)
    if brief:
        note = f"Over {len(groups):,} ranks; --group_by rank has a row for each operation of each rank."
        table = _operations(_OVER_RANKS, _longest_first(grouped, args), args)
        operations = operations._replace(brief=table._replace(note=note))
    of_cats = Table.of(
        "categories", "Categories", _CATEGORIES, cats, weights=lambda: [cat.total_ns for cat in cats]
    )
    tables = (operations, of_cats)
    traces = [
        {"path": str(file.path), "dialect": file.dialect, "events": file.n_events, "ranks": list(file.ranks)}
        for file in job.files
    ]
    error = _sketch_error(job)
    rows, of_ranks = (grouped, f" on {len(groups):,} ranks") if brief else (stats, "")
    n_shown = len(rows[: args.head])
    of_all = f" ({n_shown:,} shown)" if n_shown < len(rows) else ""
    spans = sum(file.phases.get(phase, 0) for file in job.files for phase in ("b", "S"))
    note = f"{spans:,} asynchronous spans (phases b and S) are not counted: they belong to no track."
    return _result(
        f"Statistics of {', '.join(map(str, args.path))}",
        job.files[0].path,
        {"traces": traces, **({"quantile_error": error[0]} if error else {})},
        tables,
        headline=job.sentence,
        charts=(run and _of_a_step(run)) or _charts(stats, cats),
        figures=(("operations", f"{len(rows):,}{of_ranks}{of_all}"), ("slices", f"{job.n_slices:,}")),
        read=_read_lines(job),
        notes=[*([note] if spans else []), *error[1:]],
        repairs=job.repairs,
    )


def _operations(columns: Sequence[Column], stats: Sequence[Stat], args: Namespace) -> Table:
    """Return the table of operations; of many a terminal shows the first if sorted, else what took most."""
    from dialects.system import is_frame_of_all

    def weights() -> list[int]:
        return [0 if is_frame_of_all(stat.name) else stat.total_ns for stat in stats]

    return Table.of("operations", "Operations", columns, stats, weights=None if args.sort else weights)


def _sketch_error(job: JobFigures) -> tuple[()] | tuple[float, str]:
    """Return by how much percentiles may be off, and a sentence that says so; () where all are exact."""
    n_sketched = len(
        {durations.operations[i] for _, durations in job.by_prefix.values() for i in durations.moments}
    )
    if not n_sketched:
        return ()
    from figures.quantile_sketch import ERROR, MOST_VALUES

    return ERROR, (
        f"Percentiles of {counted(n_sketched, 'operation')} with more than {MOST_VALUES} events on a rank "
        f"are from the digest's sketch: at most {100 * ERROR:g} % off. All else is exact."
    )


def _longest_first(stats: Sequence[Stat], args: Namespace) -> Sequence[Stat]:
    """Return the statistics that `--sort` and `--head` ask for."""
    from figures.durations import longest_first

    return (longest_first(stats) if args.sort else stats)[: args.head]


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


def _breakdown(args: Namespace, job: JobFigures, _: MeasuredRun | None) -> Result:
    from figures.step_summary import exposed_and_outliers, summaries
    from statistic.breakdown_charts import breakdown_charts, idle_or_not_recorded

    parts = [part for rank in job.ranks for part in rank.breakdown]
    shown = sorted(parts, key=lambda part: -part.wall_ns) if args.sort else parts
    of_ranks = summaries(parts)
    idle = f"{idle_or_not_recorded(parts)} (ms)"
    of_steps, of_rank = (
        [column._replace(title=idle) if column.key == "idle_ms" else column for column in columns]
        for columns in (_BREAKDOWN, _RANKS)
    )
    ranks = Table.of("ranks", "Steps of each rank", of_rank, of_ranks)
    records = [
        {**row, "outlier_steps": rank.outlier_steps}
        for row, rank in zip(ranks.records(), of_ranks, strict=True)
    ]
    rules = list(dict.fromkeys(rank.rule for rank in job.ranks if rank.rule))
    return _result(
        f"Breakdown of {', '.join(map(str, args.path))}",
        job.ranks[0].source.path,
        {"rules": rules, "ranks": records},
        (Table.of("breakdown", "Time of each step", of_steps, shown[: args.head]), ranks),
        headline=exposed_and_outliers(parts),
        charts=breakdown_charts(parts),
        read=_read_lines(job),
        notes=rules,
        repairs=job.repairs,
    )


def _dasf(args: Namespace) -> Result:
    """Return one of DASF's own analyses of its profiles."""
    from statistic.dasf_analyses import analyse, dasf_headline

    table, repairs = analyse(args.sub_option, args.path, jobs=args.jobs, progress=args.progress)
    first = dasf_headline(table)
    table = table._replace(rows=table.rows[: args.head])
    title = f"{args.sub_option} of {', '.join(map(str, args.path))}"
    return _result(title, args.path[0], {}, (table,), headline=first, repairs=repairs)


def _read_lines(job: JobFigures) -> list[str]:
    return [f"{file.path}: {file.dialect}, {file.n_events:,} events" for file in job.files]


def _of_a_step(run: MeasuredRun) -> list[Chart]:
    """Return what takes the time of a step, each instant of it counted once."""
    import numpy as np

    import dialects
    from figures.exposure import COMMUNICATION, time_spent
    from figures.run_table import operations
    from statistic.breakdown_charts import rank_map

    if not any(rank.steps.whole for rank in run.ranks):
        return []
    try:
        ops = operations(run, tell_workers=len(run.workers) > 1)
    except TraceError:  # too many operations that hardly ever occur
        return []
    spent = time_spent(run, ops)
    ms = spent.job.mean(0) / 1e6
    system = dialects.named(run.dialects[0])
    cats = [system.category(key.name, key.cat) or "(none)" for key in ops.keys]
    moves = (spent.layer == COMMUNICATION).tolist()
    mixed = {cat for cat, own in zip(cats, moves, strict=True) if not own}
    cats = ["communication" if own and c in mixed else c for c, own in zip(cats, moves, strict=True)]
    cats.append(_IDLE)
    total: Counter[str] = Counter()
    for cat, own_ms in zip(cats, ms.tolist(), strict=True):
        total[cat] += own_ms
    longest = [cat for cat, _ in total.most_common()]
    kept = longest if len(longest) <= _MOST_CATS else [*longest[: _MOST_CATS - 1], _OTHERS]
    cats = [cat if cat in kept else _OTHERS for cat in cats]
    number = {cat: i for i, cat in enumerate(kept)}
    of = np.array([number[cat] for cat in cats])
    largest = [i for i in np.argsort(-ms, kind="stable")[:_MOST_BARS].tolist() if ms[i] > 0]
    names = [spent.names[i] for i in largest]
    bars = _by_colour([(cats[i], float(ms[i])) for i in largest])
    by_rank = np.array([np.bincount(of, rank.mean / 1e6, len(number)) for rank in spent.ranks])
    ranks = [rank.name or "all" for rank in spent.ranks]
    title = "What takes the time of a step"
    parts: Chart = rank_map(title, ranks, list(number), by_rank, "category")
    if len(ranks) <= _MOST_RANKS:
        series = {cat: by_rank[:, i].tolist() for cat, i in number.items() if by_rank[:, i].any()}
        parts = Bars(f"{title}, by category and rank", "ms of a step", "", ranks, series, True, True)
    each = "ms of a step, each instant counted once"
    return [Bars(f"{title}, by operation", each, "", names, bars, True, True), parts]


def _charts(stats: Sequence[Stat], cats: Sequence[CategoryStat]) -> list[Chart]:
    """Return what takes long where no steps are marked."""
    from figures.durations import longest_first

    longest = longest_first(stats)[:_MOST_BARS]
    names = [stat.name for stat in longest]
    averages = _by_colour([(stat.cat, stat.mean_ns / 1e6) for stat in longest])
    shown, title = cats, "Time per category"
    if len(cats) > _MOST_CATS:
        shown = sorted(cats, key=lambda cat: -cat.total_ns)[:_MOST_CATS]
        title += f": the {_MOST_CATS} longest of {len(cats):,}"
    of_cats = [cat.cat or "(none)" for cat in shown]
    totals = _by_colour([(cat.cat, cat.total_ns / 1e6) for cat in shown])
    return [
        Bars("Longest operations on average", "average (ms)", "operation", names, averages, True, True),
        Bars(title, "category", "total (ms)", of_cats, totals, stacked=True),
    ]


def _by_colour(bars: Sequence[tuple[str, float]]) -> dict[str, list[float | None]]:
    """Return bars (category, milliseconds) as a series for each category."""
    cats = dict.fromkeys(cat for cat, _ in bars)
    return {cat or "(none)": [ms if own == cat else None for own, ms in bars] for cat in cats}
