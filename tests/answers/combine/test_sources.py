"""The law of a combined file: it holds the ranks of its inputs, of the same system, with all their slices."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import few, run_cli
from make import comm, dasf_bytes, dasf_compute, span, two_workers, write
from trace_utils import Request, read_ranks

Event = dict[str, Any]
_RECORDED = [
    *("horovod/2ranks-killed", "kineto/edge-rank-missing", "composer/ws2-slow-rank1"),
    *("byteps/fork_lenet_straggler", "byteps/fork_lenet_2w2g", "kineto/gpu-param-dlrm-8ranks"),
    *("kineto/accel-mtia-inference", "pipeline/straggler-ST"),
]


def _owned(*paths: Path) -> list[tuple[str, int | None, int | None, str, int]]:
    """Name, worker, rank, system and number of slices of each rank that has any."""
    job = read_ranks(paths, request=Request(progress=False))
    ranks = zip(job.names, job.job.sources, job.made, strict=True)
    return [
        (name.partition(":")[0], source.worker, source.rank, trace.dialect, len(trace))
        for name, source, trace in ranks
        if len(trace)
    ]


def _two(folder: Path, events: Callable[[int], list[Event]], **header: Callable[[int], Any]) -> list[Path]:
    """Write files of ranks 3 and 5, which their names do not tell."""
    return [
        write(folder / f"{name}.json", events(rank), **{key: of(rank) for key, of in header.items()})
        for name, rank in (("a", 3), ("b", 5))
    ]


def _kineto(folder: Path) -> list[Path]:
    return _two(
        folder,
        lambda rank: [span("gloo:all_reduce", 10 * rank, 5, "user_annotation")],
        distributedInfo=lambda rank: {"rank": rank, "world_size": 6},
    )


def _two_hosts(folder: Path) -> list[Path]:
    """Nothing but members of the header, different on each host, says what wrote the files."""
    return _two(
        folder,
        lambda rank: [span("copy", 10 * rank, 5, "privateuse1_runtime")],
        deviceProperties=lambda rank: [{"id": rank}],
        host_name=lambda rank: f"host{rank}",
        distributedInfo=lambda rank: {"rank": rank, "world_size": 6},
    )


def _composer(folder: Path) -> list[Path]:
    def events(rank: int) -> list[Event]:
        tells = {"clock_sync_timestamp_us": 1, "global_rank": rank}
        metadata = [
            {"ph": "M", "name": k, "pid": 0, "tid": 0, "args": {"value": v}} for k, v in tells.items()
        ]
        return [*metadata, span("event/batch", 10, 5)]

    return _two(folder, events)


def _horovod(folder: Path) -> list[Path]:
    start = {"start_time_since_epoch_in_micros": 1_700_000_000_000_000}
    metadata = [
        {"ph": "M", "name": "process_name", "pid": pid, "args": args}
        for pid, args in ((0, start), (1, {"name": "g"}))
    ]
    events = [*metadata, span("NEGOTIATE_ALLREDUCE", 5, 5, pid=1)]
    return [write(folder / f"rank{rank}.json", events) for rank in (3, 5)]


def _chrome(folder: Path) -> list[Path]:
    return [write(folder / f"rank_{rank}.json", [span("work", rank, 5)]) for rank in (3, 5)]


def _nothing_known(folder: Path) -> list[Path]:
    return [write(folder / f"{name}.json", [span("work", 1, 5)]) for name in ("a", "b")]


def _one_named(folder: Path) -> list[Path]:
    return [write(folder / "rank7.json", [span("work", 1, 5), span("work", 1, 5, pid=2)])]


def _workers(folder: Path) -> list[Path]:
    return [two_workers(folder)]


def _one_gpu(folder: Path) -> list[Path]:
    return [write(folder / "2" / "comm.json", [comm("w", "PUSH", 1, 0, 5)]).parent]


@pytest.mark.parametrize(
    "made",
    [_workers, _one_gpu, _kineto, _two_hosts, _composer, _horovod, _chrome, _nothing_known, _one_named],
)
def test_combining_keeps_the_ranks_of_every_system(
    tmp_path: Path, made: Callable[[Path], list[Path]]
) -> None:
    paths = made(tmp_path / "job")
    output = tmp_path / "combined.json"
    code, _, err = run_cli("--option", "combine", "--path", *paths, "--output", output)
    assert code == 0, err
    assert _owned(output) == _owned(*paths)


def test_a_dasf_profile_is_not_combined(tmp_path: Path) -> None:
    path = tmp_path / "profile.msgpack"
    path.write_bytes(dasf_bytes(dasf_compute(1.0, 0.5)))
    code, _, err = run_cli("--option", "combine", "--path", path, "--output", tmp_path / "combined.json")
    assert (code, "combine takes chrome-trace files only" in err) == (1, True)


@pytest.mark.parametrize("job", few(2, _RECORDED))
def test_combining_keeps_the_ranks_of_recorded_jobs(shared_data: Path, tmp_path: Path, job: str) -> None:
    output = tmp_path / "combined.json"
    code, _, err = run_cli("--option", "combine", "--path", shared_data / job, "--output", output)
    assert code == 0, err
    assert _owned(output) == _owned(shared_data / job)
    listed = json.loads(output.read_text())["otherData"]["combined"]
    assert len(listed) >= len(_owned(output))
