"""The hosts of a job's ranks: each has one clock."""

from __future__ import annotations

from traces.paths import Job


def hosts_of(job: Job) -> list[int]:
    """Return the host of each source: the GPUs of a worker share one, and so do the ranks of a file."""
    workers = [source.worker or 0 for source in job.sources]
    if job.has_gpus or any(workers):
        place: dict[object, int] = {worker: i for i, worker in enumerate(sorted(set(workers)))}
        return [place[worker] for worker in workers]
    paths = [source.path for source in job.sources]
    place = {path: i for i, path in enumerate(dict.fromkeys(paths))}
    return [place[path] for path in paths]
