"""`--option combine`: traces of several ranks and workers as one, on one clock."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from analyzer.base.errors import UsageError, counted
from analyzer.base.units import in_ms
from analyzer.cli import add_flags, command, damage_of, name_files
from analyzer.report.result import Column, Result, Table

if TYPE_CHECKING:
    from analyzer.answers.combine.merge import Combined

HELP = "join the traces of ranks and workers into one timeline, on one clock"
EXAMPLE = "analyze.py combine worker_0 worker_1 --output combined.json.gz"

_WORKERS = (
    Column("path", "worker"),
    Column("ranks", "ranks", value=lambda worker: ", ".join(map(str, worker["ranks"]))),
    Column("offset_us", "offset added (us)", "float"),
    Column("bound_us", "± bound (us)", "float"),
    Column("anchors", "anchors", "int"),
    Column("violations_before", "out of order before", "int"),
    Column("violations_after", "after", "int"),
)
_CLOCK = ("offset_us", "bound_us", "anchors", "violations_before", "violations_after")


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the flags of this option."""
    add_flags(parser, "filter", "comm", "output")
    parser.add_argument(
        "--align",
        choices=("auto", "none"),
        default="auto",
        help="estimate the offsets of the hosts' clocks (auto, the default) or keep times as recorded (none)",
    )


def run(args: Namespace) -> Result:
    """Write the combined trace and say how its clocks were aligned."""
    if args.comm and not args.filter:
        raise UsageError("--comm has no effect with --option combine without --filter: it copies all events")
    from analyzer.answers.combine.merge import combine
    from analyzer.answers.combine.sources import Member
    from analyzer.base.outputs.atomic import check_output
    from analyzer.reading import dialects
    from trace_utils import files_to_read

    folders = [path for path in args.path if path.is_dir()]
    if folders and (files := [path for path in args.path if path.is_file()]):
        raise UsageError(
            f"{files[0]} is a file and {folders[0]} a directory; combine files or directories, not both"
        )
    output = args.output or (folders or [args.path[0].parent])[0] / "combined.json"
    with files_to_read(args.path, args.jobs) as (job, to_read, lines):
        check_output(output, is_named=args.output is not None)
        members = [
            Member(source, file, host, job.owner_of(source))
            for source, file, host in zip(job.sources, to_read, job.hosts, strict=True)
        ]
        seen: set[str] = set()
        for path in (member.source.path for member in members):
            if (real := os.path.realpath(path)) in seen:
                raise UsageError(f"{path}: given twice")
            seen.add(real)
        combined = combine(
            members,
            output,
            skip_broken=args.path[0].is_dir(),  # a file that the user names must be a trace
            align=args.align == "auto",
            names=args.filter,
            comm=args.comm,
            jobs=args.jobs,
            progress=args.progress,
        )
    notes = [*job.notes, *lines]
    # directories of workers show missing ranks
    if not dialects.named(combined.dialect).has_workers and len(members) > 1:
        owned = {(m.host, rank) for m, rank in zip(combined.members, combined.ranks, strict=True)}
        ranks = [rank for _, rank in sorted(owned, key=str) if rank is not None]
        notes += job.rank_notes(ranks, combined.world_size)
    workers = _workers(combined)
    name_files(args, output.parent)
    return Result(
        "combine",
        f"Combined {counted(len(combined.members), 'trace')} of {counted(len(workers), 'worker')}",
        {
            "output": str(output),
            "events": combined.n_events,
            "workers": workers,
            "aligned_by": combined.aligned_by,
        },
        headline=_headline(combined, workers, asked=args.align == "auto"),
        tables=(Table.of("workers", "Workers", _WORKERS, workers),),
        figures=(("events", f"{combined.n_events:,}"), ("aligned by", combined.aligned_by)),
        notes=[
            f"Wrote {output}; open it in chrome://tracing or Perfetto.",
            *damage_of(combined.damaged),
            command(args, "diagnose"),
        ],
        repairs=[*notes, *combined.warnings],
    )


def _headline(combined: Combined, workers: Sequence[Mapping[str, Any]], *, asked: bool) -> str:
    """Count the combined traces and state how well their clocks agree."""
    parts = f"{counted(len(combined.members), 'trace')} of {counted(len(workers), 'worker')}"
    sentence = f"Combined {parts}, {counted(combined.n_events, 'event')}"
    bounds = [worker["bound_us"] for worker in workers[1:] if worker["bound_us"] is not None]
    if len(workers) == 1:
        return f"{sentence}, all on one clock."
    if not asked:
        return f"{sentence}; clocks were not compared."
    if not bounds:
        return f"{sentence}; no common operation aligns their clocks."
    untied = len(workers) - 1 - len(bounds)
    rest = f"; {counted(untied, 'clock')} could not be aligned" if untied else ""
    return f"{sentence}; clocks agree within ± {in_ms(1e3 * max(bounds))} (by {combined.aligned_by}){rest}."


def _workers(combined: Combined) -> list[dict[str, Any]]:
    """Make an entry for each host."""
    entries: dict[int, dict[str, Any]] = {}
    for member, clock, rank in zip(combined.members, combined.clocks, combined.ranks, strict=True):
        entry = entries.setdefault(
            member.host,
            {"path": str(member.owner), "ranks": [], "drift_ppm": 0.0}
            | {key: getattr(clock, key) for key in _CLOCK},
        )
        if rank is not None and rank not in entry["ranks"]:  # a rank may have several files
            entry["ranks"].append(rank)
    return list(entries.values())
