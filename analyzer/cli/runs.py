"""Runs for several options: their figures from traces or digests, and their names."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from analyzer.base.errors import UsageError
from analyzer.base.inputs import is_digest, short_names
from analyzer.cli import GROUPS, asked

if TYPE_CHECKING:
    from analyzer.model.figures.job_figures import JobFigures, Wanted


def group_of(args: Namespace) -> str | None:
    """Get the `--group_by` of device work; None for other rows."""
    return args.group_by if args.group_by in GROUPS else None


def check_digests(args: Namespace) -> None:
    """Raise `UsageError` for flags that need a digest's events, and for a digest of a part of a job."""
    digests = [path for path in args.path if is_digest(path)]
    by = f"--group_by {group_of(args)}" if group_of(args) else ""
    part = "--filter" if args.filter else by
    if digests and part:
        raise UsageError(f"{part}: {digests[0]} is a digest, which holds no single events; give the traces")
    if digests and args.comm:
        raise UsageError(
            f"--comm: the digest {digests[0]} was saved with its own rule for communication; give the traces"
        )
    if digests == args.path and args.rank_by:
        raise UsageError(f"--rank_by: {digests[0]} is a digest, whose ranks are known; leave it out")
    if args.save is not None and part:
        raise UsageError(f"--save: a digest is of all operations; leave out {part}")
    if args.save is not None and args.path[-1] in digests:
        raise UsageError(f"--save: {args.path[-1]} is a digest already")


def check_grouped(args: Namespace, run: JobFigures) -> None:
    """Raise `UsageError` for a `--group_by` without data in the recording."""
    if group_of(args) is not None and not run.n_slices:
        raise UsageError(
            f"--group_by {args.group_by}: {run.path} lacks that; it needs operators of PyTorch, or "
            "work of a device"
        )


def saved(args: Namespace, paths: Sequence[Path], told: float | None = None) -> JobFigures:
    """Compute all figures of the job at `paths`, and write them to the digest `--save`."""
    from analyzer.model.figures.digest import IN_DIGEST, save_digest
    from analyzer.model.figures.job_figures import load_figures

    job = with_real(args, load_figures(paths, IN_DIGEST, asked(args)), paths, told)
    save_digest(args.save, job)
    return job


def with_real(
    args: Namespace, job: JobFigures, paths: Sequence[Path], told: float | None = None
) -> JobFigures:
    """Add the steps without the profiler, if `told` (ms) or the system tells its cost."""
    from msgspec.structs import replace

    if args.as_recorded or not len(job.iteration_ns) or not (told or job.is_slowed):
        return job
    from analyzer.answers.diagnose.steps.detectors.dominant_kernels import real_steps
    from dag_utils import load_steps
    from replay.real_step import kept, real_job

    loaded = load_steps(paths, asked(args)._replace(only=()))
    return replace(job, real=real_steps(kept(real_job(loaded, told and told * 1e6))))


def digest_note(args: Namespace, name: str = "") -> list[str]:
    """Note where `--save` wrote the digest of a run."""
    return [] if args.save is None else [f"Digest{f' of {name}' if name else ''}: {args.save}"]


def check_runs(args: Namespace) -> None:
    """Raise `UsageError` for a single path, and for files among directories."""
    paths: list[Path] = args.path
    if len(paths) < 2:
        raise UsageError(f"{args.option} needs two paths or more: analyze.py {args.option} BASE NEW")
    check_digests(args)
    files = [path for path in paths if path.is_file() and not is_digest(path)]
    folders = [path for path in paths if path.is_dir()]
    if files and folders:
        raise UsageError(
            f"{files[0]} is a file, {folders[0]} a directory: compare files with files, "
            "or directories with directories"
        )


def load_runs(args: Namespace, wanted: Wanted) -> list[JobFigures]:
    """Load the `wanted` figures of the runs without warm-up steps; `--save` writes the last run's digest."""
    from msgspec.structs import replace

    from analyzer.model.figures.digest import read_digest
    from analyzer.model.figures.job_figures import load_figures

    wanted = replace(wanted, select=args.filter, group_by=group_of(args))
    runs: list[JobFigures] = []
    told: dict[int, float] = args.real_step or {}
    for i, path in enumerate(args.path, start=1):
        if is_digest(path):
            runs.append(read_digest(path, args.step_by))
        elif args.save is not None and i == len(args.path):
            runs.append(saved(args, [path], told.get(i)))
        else:
            run = load_figures([path], wanted, asked(args)._replace(only=()))
            if args.option == "compare":
                run = with_real(args, run, [path], told.get(i))
            runs.append(run)
            check_grouped(args, run)
    return [run.settled for run in runs]


def labels(paths: Sequence[Path]) -> list[str]:
    """Name each run by the last parts of its path; a repeated run gets `` (2)``, `` (3)``, … ."""
    names = short_names([path.resolve() for path in paths])
    turns = [names[: i + 1].count(name) for i, name in enumerate(names)]
    return [name if turn == 1 else f"{name} ({turn})" for name, turn in zip(names, turns, strict=True)]


def folder_labels(paths: Sequence[Path]) -> list[str]:
    """Name runs by their directories, digests and files that share one by their own names."""
    folders = [path if path.is_dir() or is_digest(path) else path.resolve().parent for path in paths]
    shared = len({folder.resolve() for folder in folders}) < len({path.resolve() for path in paths})
    return labels(paths if shared else folders)
