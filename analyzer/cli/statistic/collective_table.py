"""`--option statistic --sub_option collectives`: what collectives take, wait and carry."""

from __future__ import annotations

from argparse import Namespace

from analyzer.answers.statistic.collective_stats import CollectiveStats, collective_stats
from analyzer.base.errors import UsageError, counted
from analyzer.base.outputs.marks import is_digest
from analyzer.base.units import in_ms, in_percent
from analyzer.cli import asked
from analyzer.report.result import Column, Result, Table, ms_column

_COLLECTIVES = (
    Column("kind", "kind"),
    Column("group", "group"),
    Column("ranks", "ranks", "int"),
    Column("size_class", "size"),
    Column(
        "bytes",
        "bytes",
        "int",
        value=lambda row: None if row.n_bytes is None else round(row.n_bytes),
    ),
    Column("count", "count", "int"),
    ms_column("transfer_ms", "transfer", "transfer_ns"),
    ms_column("waiting_ms", "waiting", "waiting_ns"),
    Column("algbw_gbs", "algorithm (GB/s)", "float", 2, value=lambda row: row.algbw),
    Column("busbw_gbs", "bus (GB/s)", "float", 2, value=lambda row: row.busbw),
    Column("exposed_share", "exposed", "percent", 0),
)
_HOW = (
    "Bandwidths are in GB/s of 10⁹ bytes: bytes over the time of the transfer, and on the bus times 2(n-1)/n "
    "for an all-reduce of n ranks, (n-1)/n for an all-gather, reduce-scatter or all-to-all, 1 for any other "
    "(as nccl-tests has them). Exposed is what no computation hides, as in breakdown."
)


def collectives(args: Namespace) -> Result:
    """Return the table of the collectives of the job at `--path`."""
    from dag_utils import read_partitions
    from trace_utils import held_by

    digests = [path for path in args.path if is_digest(path)]
    if digests:
        raise UsageError(
            f"--sub_option collectives: {digests[0]} is a digest, which holds no single collectives; "
            "give the traces"
        )
    if held_by(args.path) == "steps":
        raise UsageError(
            f"--sub_option collectives: {args.path[0]} is a step log, which holds no single collectives; "
            "statistic tells how long its columns are"
        )
    found = collective_stats(args.path, read_partitions(args.path).bytes_of, asked(args))
    rows = sorted(found.rows, key=lambda row: -row.total_ns) if args.sort else found.rows
    shown = rows[: args.head]
    table = Table.of("collectives", "Collectives", _COLLECTIVES, shown)
    return Result(
        "statistic",
        f"Collectives of {', '.join(map(str, args.path))}",
        {table.name: table.records()},
        tables=[table],
        beside=found.path,
        headline=_headline(found),
        notes=[_HOW, *found.notes],
        repairs=found.repairs,
    )


def _headline(found: CollectiveStats) -> str:
    if not found.rows:
        return "No collective is recorded."
    total = sum(row.total_ns for row in found.rows)
    exposed = sum(row.total_ns * (row.exposed_share or 0.0) for row in found.rows) / max(total, 1)
    n = sum(row.count for row in found.rows)
    return f"{counted(n, 'collective')} take {in_ms(total)} of a rank, {in_percent(exposed)} exposed."
