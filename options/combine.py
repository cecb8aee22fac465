"""`--option combine`: traces of several ranks and workers as one, on one clock."""

from __future__ import annotations

import re
from argparse import Namespace, _ArgumentGroup
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atomic_output import check_output
from errors import TraceError, UsageError, counted
from result import Column, Result, Table

if TYPE_CHECKING:
    from combine.merge import Combined
    from combine.sources import Member
    from jobfiles import Job

HELP = "several ranks' and workers' traces as one timeline, their clocks aligned"
EXAMPLE = "analyze.py --option combine --path worker_0 worker_1 --output combined.json.gz"
FLAGS = frozenset({"sub_option", "filter", "align", "output"})

_LOCAL_RANK = re.compile(r"(?:\d+_)?(\d+)")
_WORKERS = (
    Column("path", "worker"),
    Column("ranks", "ranks"),
    Column("offset_us", "offset added (us)", "float"),
    Column("bound_us", "± bound (us)", "float"),
    Column("drift_ppm", "drift (ppm)", "float"),
    Column("anchors", "anchors", "int"),
    Column("violations_before", "out of order before", "int"),
    Column("violations_after", "after", "int"),
)


def add_arguments(group: _ArgumentGroup) -> None:
    """Declare `--align`."""
    group.add_argument(
        "--align",
        choices=("auto", "none"),
        default="auto",
        help="whether to estimate the offsets of the hosts' clocks (default: auto)",
    )


def run(args: Namespace) -> Result:
    """Write the combined trace and say how its clocks were aligned."""
    if args.sub_option is not None:
        raise UsageError(f"--sub_option {args.sub_option}: combine has no variants")
    from combine.merge import combine
    from trace_utils import rank_notes

    members, notes = _members(args.path)
    output = args.output or _default_output(args.path[0])
    _check(members, output)
    combined = combine(
        members,
        output,
        skip_broken=args.path[0].is_dir(),  # what is named itself must be a trace
        align=args.align == "auto",
        names=args.filter,
        jobs=args.jobs,
        progress=args.progress,
    )
    if combined.dialect not in ("byteps", "mxnet") and len(members) > 1:  # of these, directories tell
        owned = {(m.host, rank) for m, rank in zip(combined.members, combined.ranks, strict=True)}
        ranks = [rank for _, rank in sorted(owned, key=str) if rank is not None]
        notes += rank_notes(args.path[0], ranks, combined.world_size)
    workers = _workers(combined)
    table = Table(
        "workers", "Workers", _WORKERS, [[_cell(worker[c.key]) for c in _WORKERS] for worker in workers]
    )
    document = {
        "option": "combine",
        "output": str(output),
        "events": combined.n_events,
        "workers": workers,
        "aligned_by": combined.aligned_by,
    }
    return Result(
        "combine",
        f"Combined {counted(len(combined.members), 'trace')} of {counted(len(workers), 'worker')}",
        document,
        tables=(table,),
        figures=(("events", f"{combined.n_events:,}"), ("aligned by", combined.aligned_by)),
        read=[f"{member.path}: {combined.dialect}" for member in combined.members],
        notes=[*_verdict(workers, combined), f"Wrote {output}; open it in chrome://tracing or Perfetto."],
        repairs=[*notes, *combined.warnings],
        xlsx_default=output.parent / "combine.xlsx",
        html_default=output.parent / "combine.html",
    )


def _members(paths: Sequence[Path]) -> tuple[list[Member], list[str]]:
    """Return the traces that the paths hold, with their worker, rank and host, and notes on the way."""
    from trace_utils import find_job

    jobs = [find_job(path) for path in paths]
    if any(job.kind == "file" for job in jobs) and any(job.kind != "file" for job in jobs):
        file = next(job.root for job in jobs if job.kind == "file")
        other = next(job.root for job in jobs if job.kind != "file")
        raise UsageError(f"{file} is a file and {other} a directory; combine files or directories, not both")
    members = _of_files(jobs) if jobs[0].kind == "file" else _of_directories(jobs)
    return members, [note for job in jobs for note in job.notes]


def _of_directories(jobs: Sequence[Job]) -> list[Member]:
    """Return the members of worker or job directories; each worker of each is a host."""
    from combine.sources import Member

    members: list[Member] = []
    several = len(jobs) > 1 or any(source.worker is not None for job in jobs for source in job.sources)
    n_workers = n_hosts = 0
    for job in jobs:
        is_ranks = job.kind == "ranks"
        for i, source in enumerate(job.sources):
            worker = n_workers + (source.worker or 0)
            rank = source.rank if is_ranks else _local_rank(source.path, source.rank)
            members.append(
                Member(
                    path=source.path,
                    owner=source.path if is_ranks else _worker_directory(job, source.path),
                    host=n_hosts + (i if is_ranks else source.worker or 0),
                    worker=worker if several and not is_ranks else None,
                    rank=rank,
                )
            )
        workers = max(source.worker or 0 for source in job.sources) + 1
        n_workers += workers
        n_hosts += len(job.sources) if is_ranks else workers
    return members


def _of_files(jobs: Sequence[Job]) -> list[Member]:
    """Return the members of files; those of GPU directories side by side are one worker's."""
    from combine.sources import Member

    paths = [job.root for job in jobs]
    homes = [path.resolve().parent for path in paths]
    is_gpu = [_LOCAL_RANK.fullmatch(home.name) is not None for home in homes]
    workers = dict.fromkeys(
        home.parent if gpu else path.resolve() for path, home, gpu in zip(paths, homes, is_gpu, strict=True)
    )
    order = {owner: i for i, owner in enumerate(workers)}
    members = []
    for path, home, gpu in zip(paths, homes, is_gpu, strict=True):
        worker = order[home.parent if gpu else path.resolve()]
        members.append(
            Member(
                path=path,
                owner=path,
                host=worker,
                worker=worker if len(order) > 1 else None,
                rank=_local_rank(path, None) if gpu else _rank_in_name(path),
            )
        )
    return members


def _local_rank(path: Path, known: int | None) -> int | None:
    """Return the local rank of the GPU directory that `path` lies in."""
    if known is not None:
        return known
    match = _LOCAL_RANK.fullmatch(path.resolve().parent.name)
    return int(match.group(1)) if match else None


def _rank_in_name(path: Path) -> int | None:
    match = re.search(r"rank[-_.]?(\d+)", path.name, re.IGNORECASE)
    return int(match.group(1)) if match else None


def _worker_directory(job: Job, path: Path) -> Path:
    return job.root if job.kind in ("gpu", "worker") else path.parent.parent


def _default_output(path: Path) -> Path:
    return (path if path.is_dir() else path.parent) / "combined.json"


def _check(members: Sequence[Member], output: Path) -> None:
    """Refuse what would read a file twice, or write over one of them."""
    check_output(output)
    seen: dict[Path, Path] = {}
    for member in members:
        path = member.path.resolve()
        if path in seen:
            raise UsageError(f"{member.path}: given twice")
        seen[path] = member.path
    if not output.resolve().parent.is_dir():
        raise TraceError(f"{output}: cannot be written: no such directory {output.parent}")


def _workers(combined: Combined) -> list[dict[str, Any]]:
    """Return one entry for each host."""
    entries: dict[int, dict[str, Any]] = {}
    for member, clock, rank in zip(combined.members, combined.clocks, combined.ranks, strict=True):
        entry = entries.setdefault(
            member.host,
            {
                "path": str(member.owner),
                "ranks": [],
                "offset_us": clock.offset_ns / 1e3,
                "drift_ppm": clock.drift_ppm,
                "bound_us": None if clock.bound_ns is None else clock.bound_ns / 1e3,
                "anchors": clock.anchors,
                "violations_before": clock.violations_before,
                "violations_after": clock.violations_after,
            },
        )
        if rank is not None and rank not in entry["ranks"]:  # several files of it are one rank
            entry["ranks"].append(rank)
    return list(entries.values())


def _verdict(workers: Sequence[dict[str, Any]], combined: Combined) -> list[str]:
    if combined.aligned_by not in ("causality", "matched ends"):
        return []
    if all(worker["offset_us"] == 0 and worker["bound_us"] is not None for worker in workers):
        return ["All clocks agree within the bounds: no worker was shifted."]
    return []


def _cell(value: Any) -> Any:
    return ", ".join(map(str, value)) if isinstance(value, list) else value
