"""`--option statistic`: how long each operation takes, per operation and category."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from errors import UsageError, counted
from opname import without_number, without_partition
from options import READING, add_flags, add_variants, asked, command, is_drawn, refuse, variant_of
from options.runs import check_digests, check_grouped, digest_note, group_of, saved
from outputs.marks import is_digest
from result import Chart, Column, LazySequence, Result, Table, ms_column

if TYPE_CHECKING:
    from figures.durations import CategoryStat, Durations, Stat, Stats
    from figures.job_figures import JobFigures
    from figures.time_by_role import Breakdown

HELP = (
    "how long each operation takes: per operation and per category; variants: each step (breakdown), "
    "transfer, waiting and bandwidth of collectives, and the three analyses of DASF profiles"
)
EXAMPLE = "analyze.py statistic examples/lenet --sort --head 20"

#: Titles of the table by `--group_by`, where it is not of operations.
_TITLES = {
    "operator": "Operators",
    "module": "Modules",
    "annotation": "Annotations",
    "kernel_kind": "Kinds of kernels",
}
#: What a terminal says of operations that are one row, and what stands before how many they are.
_FOLDED = "A row with × is of operations that differ by a number alone; --full has each."
_TIMES = " ×"
_LEAST = 4  # importance of columns that say nothing new
_NAMED = 3  # kernels
_MOST_RANKS = 16  # of which a terminal shows a row for each operation and rank

_DASF = ("function_bottleneck", "task_bottleneck", "task_balance")
VARIANTS = ("breakdown", "collectives", *_DASF)


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
    ms_column("exposed_comm_ms", "exposed comm", "exposed_comm_ns"),
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


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the flags of this option."""
    add_flags(parser, *READING, "sort", "head", "group_by", "save")
    add_variants(parser, VARIANTS)


def run(args: Namespace) -> Result:
    """Return the statistics of the operations, or the variant that `--sub_option` names."""
    if args.sub_option in _DASF:
        refuse(args, variant_of(args), *READING, "save", "sort", "group_by")
        return _dasf(args)
    if args.sub_option is not None:
        refuse(args, variant_of(args), "group_by")
    if args.sub_option == "collectives":
        from options.statistic.collective_table import collectives

        refuse(args, variant_of(args), "save", "step_by")
        return collectives(args)
    check_digests(args)
    show = _breakdown if args.sub_option == "breakdown" else _statistic
    result = show(args, _figures(args))._replace(ask=command(args, "diagnose"))
    if any(map(is_digest, args.path)):
        return result._replace(beside=args.path[0])
    return result._replace(notes=[*result.notes, *digest_note(args)])


def _is_drawn(args: Namespace) -> bool:
    """Whether somebody looks at charts of operations."""
    return is_drawn(args) and args.sub_option is None


def _figures(args: Namespace) -> JobFigures:
    """Return the figures of what is at `--path`; with operations by step if they are drawn."""
    by_step = args.sub_option == "breakdown"
    if any(map(is_digest, args.path)):
        from figures.digest import read_digest

        if len(args.path) > 1:
            raise UsageError("a digest is a whole job: statistic takes it alone")
        return read_digest(
            args.path[0], args.step_by, steps=by_step or _is_drawn(args) or args.step_by is not None
        )
    if args.save is not None:
        return saved(args, args.path)
    from figures.job_figures import load_figures
    from figures.rank_figures import Wanted

    drawn = _is_drawn(args)
    wanted = Wanted(
        durations=not by_step, breakdown=by_step, operations=drawn, spent=drawn, may_lack=True,
        group_by=group_of(args),
    )  # fmt: skip
    return load_figures(args.path, wanted, asked(args))


def _statistic(args: Namespace, job: JobFigures) -> Result:
    from figures.durations import all_of, categories, over_ranks, statistics
    from options.statistic.headlines import where_time_goes, whose_time

    check_grouped(args, job)
    groups = job.by_prefix
    brief = args.group_by is None and args.format == "table" and len(groups) > _MOST_RANKS
    by_rank = args.group_by in (None, "rank")
    grouped = over_ranks(groups.values() if brief or not by_rank else ())
    stats = grouped
    if by_rank:
        stats = all_of([statistics(own, prefix) for prefix, (_, own) in groups.items()])
    cats = categories(job.category_ns, stats)
    shown = _longest_first(stats, args)
    columns: Sequence[Column] = _OPERATIONS if by_rank else _OVER_RANKS
    if group_of(args) is not None:
        columns = _of_groups(stats, len(groups))
    operations = _operations(columns, shown, args)._replace(title=_TITLES.get(args.group_by, "Operations"))
    if brief:
        note = f"Over {len(groups):,} ranks; --group_by rank has a row for each operation of each rank."
        ranks, all_own = zip(*groups.values(), strict=True)
        folded = grouped if args.full else over_ranks([*zip(ranks, _folded(all_own), strict=True)])
        table = _operations(_OVER_RANKS, few := _longest_first(folded, args), args)
        note = f"{note} {_told(few)}".rstrip()
        operations = operations._replace(brief=table._replace(note=note))
    elif args.group_by is None and args.format == "table" and not args.full:
        folded = all_of([statistics(_folded([own])[0], prefix) for prefix, (_, own) in groups.items()])
        if len(folded) < len(stats):
            table = _operations(columns, few := _longest_first(folded, args), args)
            operations = operations._replace(brief=table._replace(note=_told(few)))
    of_cats = Table.of(
        "categories",
        "Categories",
        _CATEGORIES,
        cats,
        weights=lambda: [cat.total_ns for cat in cats],
        detail=args.group_by == "kernel_kind",  # which are the categories
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
    settled = job.settled
    spans = sum(file.phases.get(phase, 0) for file in job.files for phase in ("b", "S"))
    note = f"{spans:,} asynchronous spans (phases b and S) are not counted: they belong to no track."
    return _result(
        f"Statistics of {', '.join(map(str, args.path))}",
        job.files[0].path,
        {"traces": traces, **({"quantile_error": error[0]} if error else {})},
        tables,
        headline=where_time_goes(settled.ranks)
        if group_of(args) is None
        else whose_time(stats, len(job.ranks)),
        charts=_charts(settled, stats, cats) if _is_drawn(args) else (),
        figures=(
            (operations.title.lower(), f"{len(rows):,}{of_ranks}{of_all}"),
            ("slices", f"{job.n_slices:,}"),
        ),
        read=_read_lines(job),
        notes=[*([note] if spans else []), *error[1:]],
        repairs=job.repairs,
    )


def _of_groups(stats: Sequence[Stat], n_ranks: int) -> list[Column]:
    """Return the columns of what the work of devices belongs to: with its share of all of that work."""
    whole = max(sum(stat.total_ns for stat in stats), 1)
    share = Column("share", "share", "percent", 1, value=lambda stat: stat.total_ns / whole)
    shared, of_ranks = _OVER_RANKS[: len(_OPERATIONS)], _OVER_RANKS[len(_OPERATIONS) :]
    if n_ranks == 1:
        of_ranks = tuple(column._replace(minor=_LEAST) for column in of_ranks)
    return [shared[0]._replace(title="work of"), *shared[1:4], share, *shared[4:], *of_ranks]


def _charts(job: JobFigures, stats: Stats, cats: Sequence[CategoryStat]) -> list[Chart]:
    from options.statistic.operation_charts import operation_charts

    return operation_charts(job, stats, cats)


def _operations(columns: Sequence[Column], stats: Sequence[Stat], args: Namespace) -> Table:
    """Return the table of operations; of many a terminal shows the first if sorted, else what took most."""
    from dialects.system import is_frame_of_all

    def weights() -> list[int]:
        names = [stat.name.partition(_TIMES)[0] for stat in stats]
        return [
            0 if is_frame_of_all(name) else stat.total_ns for name, stat in zip(names, stats, strict=True)
        ]

    return Table.of("operations", "Operations", columns, stats, weights=None if args.sort else weights)


def _sketch_error(job: JobFigures) -> tuple[()] | tuple[float, str]:
    """Return by how much percentiles may be off, and a sentence that says so; () where all are exact."""
    n_sketched = len(
        {durations.operations[i] for _, durations in job.by_prefix.values() for i in durations.moments}
    )
    if not n_sketched:
        return ()
    from figures.durations import ERROR, MOST_VALUES

    return ERROR, (
        f"Percentiles of {counted(n_sketched, 'operation')} with more than {MOST_VALUES} events on a rank "
        f"are from a sketch: at most {100 * ERROR:g} % off. All else is exact."
    )


def _folded(parts: Sequence[Durations]) -> Sequence[Durations]:
    """Return durations in which operations that differ by a partition or a number alone are one.

    Its name says how many they are in all of the parts.
    """
    from msgspec.structs import replace

    from figures.durations import NO_DURATIONS, joined

    alike = {
        pair: (without_number(without_partition(pair[0])), pair[1])
        for own in parts
        for pair in own.operations
    }
    n_alike = Counter(alike.values())
    if len(n_alike) == len(alike):
        return parts
    named = {
        pair: (f"{one[0]}{_TIMES}{n_alike[one]}" if n_alike[one] > 1 else without_partition(pair[0]), one[1])
        for pair, one in alike.items()
    }
    return [
        joined([replace(own, operations=[named[pair] for pair in own.operations]), NO_DURATIONS])
        for own in parts
    ]


def _told(stats: Stats) -> str:
    """Return the note on rows that are of several operations; "" where there are none."""
    return _FOLDED if any(_TIMES in stat.name for stat in stats) else ""


def _longest_first(stats: Stats, args: Namespace) -> Stats:
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


def _breakdown(args: Namespace, job: JobFigures) -> Result:
    import numpy as np

    from figures.time_by_role import summaries
    from options.statistic.headlines import exposed_and_outliers
    from options.step_charts import breakdown_charts, idle_or_not_recorded

    parts = [rank.breakdown for rank in job.ranks]
    first = np.cumsum([0, *map(len, parts)])
    order: Sequence[int] = range(first[-1])
    if args.sort:
        order = np.argsort(-np.concatenate([part.wall_ns for part in parts]), kind="stable").tolist()

    def step(at: int) -> Breakdown:
        rank = int(np.searchsorted(first, at, side="right")) - 1
        return parts[rank].row(at - first[rank])

    shown = LazySequence(order, step)
    settled = [rank.breakdown for rank in job.settled.ranks]
    of_ranks = summaries(settled)
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
        headline=exposed_and_outliers(settled, job.warm_up),
        charts=breakdown_charts(parts),
        read=_read_lines(job),
        notes=[
            *rules,
            *dict.fromkeys(rank.steps.note for rank in job.ranks if rank.steps.note),
            *_unknown(job),
        ],
        repairs=job.repairs,
    )


def _unknown(job: JobFigures) -> list[str]:
    """Return lines on communication of a job of several ranks that no rule may know."""
    import dialects
    from dialects.roles import MAY_BE, NONE_SHOWN
    from function_names import named

    if job.n_ranks < 2:
        return []
    notes = []
    shows = any(dialects.named(name).shows_communication for name in job.dialects)
    if shows and not any(rank.breakdown.comm_ns.any() for rank in job.ranks):
        notes.append(f"{NONE_SHOWN.format(job.n_ranks)}; --comm NAME says what is communication")
    kernels = list(dict.fromkeys(name for rank in job.ranks for name in rank.own_streams))
    if kernels:
        notes.append(f"{named(kernels, _NAMED)} {MAY_BE}; add --comm NAME if they move data between ranks")
    return notes


def _dasf(args: Namespace) -> Result:
    """Return one of DASF's own analyses of its profiles."""
    from options.statistic.dasf_charts import dasf_charts
    from statistic.dasf_analyses import analyse, dasf_headline

    table, repairs = analyse(args.sub_option, args.path, jobs=args.jobs, progress=args.progress)
    first, charts = dasf_headline(table), dasf_charts(table)
    table = table._replace(rows=table.rows[: args.head])
    title = f"{args.sub_option} of {', '.join(map(str, args.path))}"
    return _result(title, args.path[0], {}, (table,), headline=first, charts=charts, repairs=repairs)


def _read_lines(job: JobFigures) -> list[str]:
    return [f"{file.path}: {file.dialect}, {file.n_events:,} events" for file in job.files]
