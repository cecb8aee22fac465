"""Which ranks share a host, and so a clock."""

from __future__ import annotations

from pathlib import Path

from analyzer.reading.traces.paths import JobFiles, JobKind, Source


def hosts(kind: JobKind, *sources: Source) -> list[int]:
    return JobFiles(Path("job"), kind, sources).hosts


def test_the_gpus_of_a_worker_share_its_host() -> None:
    gpus = [Source(Path(f"{worker}/{rank}/t.json"), worker, rank) for worker in (0, 3) for rank in (0, 1)]
    assert hosts("job", *gpus) == [0, 0, 1, 1]
    assert hosts("worker", Source(Path("0/t.json"), rank=0), Source(Path("1/t.json"), rank=1)) == [0, 0]


def test_files_of_ranks_have_a_host_each_and_the_ranks_of_a_file_share_one() -> None:
    a, b = Path("a.json"), Path("b.json")
    assert hosts("ranks", Source(a, rank=0), Source(a, rank=1), Source(b, rank=2)) == [0, 0, 1]
