"""`--option statistic --sub_option collectives`: what collectives take, wait and carry."""

from __future__ import annotations

from argparse import Namespace

from analyzer.answers.statistic.collective_stats import CollectiveStats, collective_stats
from analyzer.base.errors import UsageError, counted
from analyzer.base.outputs.marks import is_digest
from analyzer.base.units import in_ms, in_percent
from analyzer.cli import asked, damage_notes, name_files
from analyzer.report.result import Column, Result, Table, ms_column

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


def collectives(args: Namespace) -> Result:
    """List the collectives of the job at `--path`."""
    from dag_utils import read_partitions
    from trace_utils import held_by

    digests = [path for path in args.path if is_digest(path)]
    if digests:
        raise UsageError(
            f"--sub_option collectives: {digests[0]} is a digest, which has no single collectives; "
            "give the traces"
        )
    if held_by(args.path) == "steps":
        raise UsageError(
            f"--sub_option collectives: {args.path[0]} is a step log, which has no collectives; "
            "analyze.py statistic shows its columns"
        )
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
