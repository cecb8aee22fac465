"""Final traces that are first collected from a profiler's raw files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from outputs.temporary import temporary_directory
from traces.gpu_folders import GpuDir
from traces.paths import Job


@contextmanager
def files_to_read(job: Job, jobs: int | None = None) -> Iterator[tuple[list[Path], list[str]]]:
    """Yield the file to read for each source of `job`, and a line for each flaw of the raw files.

    A GPU that has no final trace yet gets one for as long as the block lasts, collected from its profiler's
    files; where that fails, its communications alone (``comm.json``) have to do.
    """
    gpus = {s.path: GpuDir(s.raw, s.worker, s.rank) for s in job.sources if s.raw is not None}
    if not gpus:
        yield [source.path for source in job.sources], []
        return
    from collector.gpu.final_trace import collect_gpus

    with temporary_directory() as directory:
        reports = collect_gpus(list(gpus.values()), into=directory, jobs=jobs, progress=False)
        made = {
            path: next(iter(report.new.values()), path) for path, report in zip(gpus, reports, strict=True)
        }
        files = [made.get(source.path, source.path) for source in job.sources]
        yield files, [line for report in reports for line in report.warnings]
