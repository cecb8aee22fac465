"""`--option statistic`: how long each operation takes, per operation and category."""

from __future__ import annotations

import math
import re
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analyzer.base.errors import UsageError, counted, number_ranges
from analyzer.base.inputs import is_digest
from analyzer.base.names import brief
from analyzer.base.units import LazySequence, in_ms, in_percent
from analyzer.cli import (
    READING,
    REAL,
    above_zero,
    add_flags,
    add_variants,
    asked,
    command,
    damage_notes,
    name_files,
    refuse,
    variant_of,
)
from analyzer.cli.runs import check_digests, check_grouped, digest_note, group_of, saved
from analyzer.report.result import MOST_BARS, Bars, Chart, Column, Result, Table, ms_column

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from analyzer.model.figures.durations import Stat
    from analyzer.model.figures.job_figures import JobFigures
    from analyzer.model.figures.time_by_role import RankSummary

HELP = "how long each operation takes, and the totals per category"
EXAMPLE = "analyze.py statistic examples/lenet --sort --head 20"

#: Titles of the table for values of `--group_by`.
_TITLES = {
    "operator": "Operators", "module": "Modules", "annotation": "Annotations",
    "kernel_kind": "Kinds of kernels",
}  # fmt: skip
_MOST_RANKS = 16  # ranks; with more, a terminal shows a row for each operation over all ranks

_OWNER = re.compile(r"^(?:wk\d+\.)?(?:rank|host)\d+\.")
_MOST_ROWS = 20  # rows of a table on a terminal; more steps are shown only with `--full` or `--head`

_DASF = ("function_bottleneck", "task_bottleneck", "task_balance")
VARIANTS = {
    "breakdown": "computation, communication and idle time of each step",
    "collectives": "size, time and bandwidth of collectives",
    "bubbles": "idle time of a pipeline's stages while it fills, is full, and drains",
    "flops": "FLOP/s and MFU of each step, and of each kind of kernel",
    "memory": "who holds the memory of a device at its peak",
    "function_bottleneck": "time and data of each function of a DASF profile",
    "task_bottleneck": "time and memory of its tasks",
    "task_balance": "tasks that its workers hold, by second",
}


_SHARE = Column("share", "share", "percent", 1)  # of the own total in the recording, or in work of devices
_OPERATIONS = (
    Column("name", "operation"),
    Column("cat", "category"),
    ms_column("own_total_ms", "own total", "own_ns"),
    _SHARE,
    Column("count", "count", "int"),
    ms_column("total_ms", "total", "total_ns"),
    ms_column("min_ms", "min", "min_ns"),
    ms_column("max_ms", "max", "max_ns"),
    ms_column("avg_ms", "avg", "mean_ns"),
    ms_column("p50_ms", "p50", "p50_ns"),
    ms_column("p95_ms", "p95", "p95_ns"),
    ms_column("p99_ms", "p99", "p99_ns"),
    Column("var_ms2", "variance (ms²)", "float", value=lambda stat: stat.var_ns2 / 1e12),
)
#: Columns that a terminal shows only with `--full`.
_LESS = ("cat", "total_ms", "min_ms", "p50_ms", "p95_ms", "var_ms2", "ranks", "fastest_avg_ms")
#: Titles of a terminal's tables by `System.side`, and the rows of those with less than `_MOST_ROWS`.
_SIDES = {"device": "On the device", "host": "On the host", "apart": "Waits, and marks of steps"}
_MOST_OF = {"On the host": 15, "Waits, and marks of steps": 5}
#: Columns of an operation over all ranks.
_OVER_RANKS = (
    *_OPERATIONS,
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
        "outlier_steps",
        "steps far longer than the median",
        "sentence",
        value=lambda rank: number_ranges(rank.outlier_steps),
    ),
)


def _by_own_total(stat: Stat) -> float:
    """Make the sort key of the largest own total first."""
    return -stat.own_ns


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the flags of this option."""
    add_flags(parser, *READING, "sort", "head", "group_by", "save", *REAL)
    add_variants(parser, VARIANTS)
    parser.add_argument(
        "--peak_tflops",
        metavar="N",
        type=above_zero("number of TFLOP/s", float),
        help="flops: the peak of a device, dense, in the type of its products",
    )


def run(args: Namespace) -> Result:
    """Answer with the statistics of operations, or the variant that `--sub_option` names."""
    if args.sub_option in _DASF:
        refuse(args, variant_of(args), *READING, *REAL, "peak_tflops", "save", "sort", "group_by")
        return _dasf(args)
    if args.sub_option is not None:
        refuse(args, variant_of(args), "group_by")
    of_steps = args.sub_option in ("flops", "bubbles")
    refuse(args, variant_of(args), *(("save", "filter") if of_steps else REAL))
    if args.sub_option == "flops":
        from analyzer.cli.statistic.flops_tables import flops

        return flops(args)
    refuse(args, variant_of(args), "peak_tflops")
    if args.sub_option == "bubbles":
        from analyzer.cli.statistic.bubble_tables import bubbles

        return bubbles(args)
    if args.sub_option == "collectives":
        from analyzer.cli.statistic.statistic_tables import collectives

        refuse(args, variant_of(args), "save", "step_by")
        return collectives(args)
    if args.sub_option == "memory":
        from analyzer.cli.statistic.memory_tables import memory

        refuse(args, variant_of(args), "save", "step_by", "filter", "comm", "sort")
        return memory(args)
    check_digests(args)
    job = _figures(args)
    result = (_breakdown if args.sub_option == "breakdown" else _statistic)(args, job)
    damage = [] if any(map(is_digest, args.path)) else damage_notes(job.files)
    notes = [*result.notes, *damage, *_profiled(job), *digest_note(args), command(args, "diagnose")]
    return result._replace(notes=notes)


def _profiled(job: JobFigures) -> list[str]:
    """Say that times have the profiler's cost in them, if its system has one."""
    if not job.is_slowed:
        return []
    real = "diagnose says how long a step takes without it"
    if job.real is not None:
        real = f"without it a step takes about {in_ms(float(job.real.length_ns.mean()))}"
    return [f"as recorded, with the profiler's cost; {real}"]


def _figures(args: Namespace) -> JobFigures:
    """Load the figures of the job at `--path`."""
    by_step = args.sub_option == "breakdown"
    if any(map(is_digest, args.path)):
        from analyzer.model.figures.digest import read_digest

        if len(args.path) > 1:
            raise UsageError("a digest is a whole job: statistic takes it alone")
        return read_digest(args.path[0], args.step_by, steps=by_step or args.step_by is not None)
    if args.save is not None:
        return saved(args, args.path)
    from analyzer.model.figures.job_figures import Wanted, load_figures

    wanted = Wanted(durations=not by_step, breakdown=by_step, group_by=group_of(args))
    return load_figures(args.path, wanted, asked(args))


def _statistic(args: Namespace, job: JobFigures) -> Result:
    from analyzer.model.figures.durations import categories, over_ranks, rows_of

    check_grouped(args, job)
    groups, grouped = job.by_prefix, group_of(args) is not None
    is_long = args.group_by is None and args.format == "table" and len(groups) > _MOST_RANKS
    over = is_long or args.group_by not in (None, "rank")
    rows = (rows_of(of_rank, prefix) for prefix, (_, of_rank) in groups.items())
    stats = over_ranks(groups.values()) if over else [row for of_rank in rows for row in of_rank]
    spans_ns = [stat.own_ns for stat in stats] if grouped else [rank.span_ns for rank in job.ranks]
    whole_ns = sum(spans_ns) / max(1 if over else sum(map(bool, spans_ns)), 1) or 1
    share = _SHARE._replace(value=lambda stat: stat.own_ns / whole_ns)
    name = _OPERATIONS[0]._replace(title="work of" if grouped else "operation")
    rest = (_OVER_RANKS if over else _OPERATIONS)[1:]
    columns = [name, *(share if column is _SHARE else column for column in rest)]
    cats = categories(job.category_ns, stats)
    title = _TITLES.get(args.group_by, "Operations")
    sides = {title: sorted(stats, key=_by_own_total)} if grouped else _sides(job, stats)
    of_ranks = f"Over {len(groups):,} ranks; --group_by rank has a row for each operation of each rank."
    tables = (
        *_brief(args, columns, sides),
        Table.of("operations", title, columns, stats, _by_own_total, full=True),
        Table.of("categories", "Categories", _CATEGORIES, cats, detail=args.group_by == "kernel_kind"),
    )
    traces = [
        {"path": str(file.path), "dialect": file.dialect, "events": file.n_events, "ranks": list(file.ranks)}
        for file in job.files
    ]
    spans = sum(file.phases.get(phase, 0) for file in job.files for phase in ("b", "S"))
    note = f"{spans:,} asynchronous spans (phases b and S) are not counted: they belong to no track."
    return _result(
        args,
        "Statistics",
        job.files[0].path,
        tables,
        traces,
        headline=_headline(sides),
        charts=_charts(args, sides) if args.html and sides else (),
        figures=((title.lower(), f"{len(stats):,}"), ("slices", f"{job.n_slices:,}")),
        notes=[*([of_ranks] if is_long else []), *([note] if spans else [])],
        repairs=job.repairs,
    )


def _charts(args: Namespace, sides: Mapping[str, Sequence[Stat]]) -> list[Chart]:
    """Draw what takes most time; of modules, how they lie in each other."""
    from analyzer.cli.statistic.statistic_tables import icicle

    stats = next(iter(sides.values()))
    ms = [stat.own_ns / 1e6 for stat in stats[:MOST_BARS]]
    names = [brief(stat.name) for stat in stats[:MOST_BARS]]
    bars = Bars("What takes most time", "own total (ms)", names, {"operation": ms})
    return [icicle(stats), bars] if args.group_by == "module" else [bars]


def _sides(job: JobFigures, stats: Sequence[Stat]) -> dict[str, list[Stat]]:
    """Split operations by `System.side`, the largest own total first; the keys are titles of tables."""
    from analyzer.reading import dialects

    system = dialects.named(next(iter(job.dialects), "chrome"))
    sides: dict[str, list[Stat]] = {side: [] for side in _SIDES}
    for stat in sorted(stats, key=_by_own_total):
        sides[system.side(_OWNER.sub("", stat.name), stat.cat)].append(stat)
    titles = _SIDES if sides["device"] else {**_SIDES, "host": "Operations"}
    return {titles[side]: of_side for side, of_side in sides.items() if of_side}


def _brief(
    args: Namespace, columns: Sequence[Column], sides: Mapping[str, Sequence[Stat]]
) -> Iterator[Table]:
    """Make a table of each side for a terminal, without the columns that only `--full` shows."""
    shown = [column for column in columns if column.key not in _LESS]
    for title, stats in sides.items():
        most = args.head or _MOST_OF.get(title, _MOST_ROWS)
        note = f"{len(stats) - most:,} more; --full shows all" if len(stats) > most else ""
        yield Table.of("operations", title, shown, stats[:most], note=note, brief=True, full=False)


def _headline(sides: Mapping[str, Sequence[Stat]]) -> str:
    """Name the operation of the device, or else of the host, with the largest own total."""
    if not sides:
        return "No operation is recorded."
    most = next(iter(sides.values()))[0]
    own, events, each = in_ms(most.own_ns), counted(most.count, "event"), in_ms(most.mean_ns)
    return f"{brief(most.name)} takes most time: {own} of its own in {events} of {each} on average."


def _result(
    args: Namespace, what: str, first: Path, tables: Sequence[Table], traces: Any = None, **more: Any
) -> Result:
    """Make a result whose document has the tables; unnamed files go beside the `first` trace."""
    name_files(args, args.path[0] if any(map(is_digest, args.path)) else first)
    title = f"{what} of {', '.join(map(str, args.path))}"
    document = {"traces": traces} if traces else {}
    return Result("statistic", title, {**document, **{t.name: t for t in tables}}, tables, **more)


def _breakdown(args: Namespace, job: JobFigures) -> Result:
    from analyzer.model.figures.time_by_role import summaries

    of_ranks = summaries((rank.name, rank.breakdown) for rank in job.settled.ranks)
    if is_whole := all(rank.idle_ns == rank.mean_ns for rank in of_ranks):  # steps alone are recorded
        nan = math.nan
        of_ranks = [
            rank._replace(compute_ns=nan, comm_ns=nan, exposed_comm_ns=nan, idle_ns=nan) for rank in of_ranks
        ]
    ranks = Table.of("ranks", "Steps of each rank", _RANKS, of_ranks)
    steps = _steps(job, is_whole=is_whole)
    is_long = len(steps.rows) > _MOST_ROWS and args.head is None
    rules = list(dict.fromkeys(rank.breakdown.rule for rank in job.ranks if rank.breakdown.rule))
    return _result(
        args,
        "Breakdown",
        job.ranks[0].source.path,
        (ranks._replace(brief=True), steps._replace(full=is_long or None), ranks._replace(detail=True)),
        headline=_where_time_goes(job.settled, of_ranks),
        charts=[] if is_whole else [_mean_steps(of_ranks)],
        notes=[*rules, *dict.fromkeys(rank.steps.note for rank in job.ranks if rank.steps.note)],
        repairs=job.repairs,
    )


def _steps(job: JobFigures, *, is_whole: bool) -> Table:
    """Make a table with a row for each step of each rank; without its parts if it `is_whole`."""
    import numpy as np

    parts = [rank.breakdown for rank in job.ranks]
    names = [rank.name for rank in job.ranks for _ in rank.breakdown.step]
    labels = [step for part in parts for step in part.step]
    columns = ("wall_ns", "compute_ns", "comm_ns", "overlap_ns", "exposed_comm_ns", "idle_ns")
    ms = np.concatenate([np.column_stack([getattr(part, name) for name in columns]) for part in parts]) / 1e6
    if is_whole:
        ms[:, 1:] = math.nan
    rows = LazySequence(range(len(labels)), lambda row: (names[row], labels[row], *ms[row].tolist()))
    return Table("breakdown", "Time of each step", _BREAKDOWN, rows, order=(-ms[:, 0]).tolist())


def _where_time_goes(job: JobFigures, ranks: Sequence[RankSummary]) -> str:
    """State the length of a step and its exposed communication, both as means over the ranks."""
    if not ranks:
        return "No step is recorded."
    lengths = job.iteration_ns
    on = f" on {counted(len(ranks), 'rank')}" if len(ranks) > 1 else ""
    if len(lengths):
        length = f"A step takes {in_ms(lengths.mean())} (mean of {counted(len(lengths), 'step')}{on})"
    else:
        mean_ns = sum(rank.mean_ns for rank in ranks) / len(ranks)
        length = f"No step is marked; the recording takes {in_ms(mean_ns)}{on}"
    if all(math.isnan(rank.idle_ns) for rank in ranks):
        return f"{length}; what happens in a step is not recorded."
    if not any(rank.comm_ns for rank in ranks):
        lost = [note.partition(":")[0] for file in job.files for note in file.lost_work]
        return f"{length}; {lost[0] if lost else 'no communication was recorded'}."
    most, has_work = max(ranks, key=lambda rank: rank.exposed_comm_ns), any(rank.compute_ns for rank in ranks)
    comm_ns = sum(rank.exposed_comm_ns if has_work else rank.comm_ns for rank in ranks)
    share = in_percent(comm_ns / max(sum(rank.mean_ns for rank in ranks), 1))
    part = f"{length}; {in_ms(comm_ns / len(ranks))} ({share}) is"
    if not has_work:
        return f"{part} communication; no computation is recorded, so its overlap is unknown."
    rank = f"; most on {most.rank}, {in_ms(most.exposed_comm_ns)}" if len(ranks) > 1 and comm_ns else ""
    return f"{part} exposed communication, waiting for other ranks included{rank}."


def _mean_steps(ranks: Sequence[RankSummary]) -> Bars:
    """Draw the parts of each rank's mean step."""
    parts = {"compute": "compute_ns", "exposed communication": "exposed_comm_ns", "idle": "idle_ns"}
    series = {part: [getattr(rank, of) / 1e6 for rank in ranks] for part, of in parts.items()}
    return Bars("Where the time of a step goes", "ms of a step", [rank.rank for rank in ranks], series)


def _dasf(args: Namespace) -> Result:
    """Run one of DASF's own analyses of its profiles."""
    from analyzer.answers.statistic.dasf_analyses import read_profiles
    from analyzer.cli.statistic.statistic_tables import dasf_table

    traces, repairs = read_profiles(args.path, jobs=args.jobs, progress=args.progress)
    table, headline = dasf_table(args.sub_option, traces)
    return _result(args, args.sub_option, args.path[0], [table], headline=headline, repairs=repairs)
