"""The same answers from a Dask cluster: real schedulers and workers, and what goes wrong with them."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from analyzer.base.errors import AnalyzeError
from analyzer.base.parallel import FilePart, cluster, map_files, working_on
from conftest import REPO, few, run_cli
from sent_work import die_once, forget, hide, sizes, stop_once

pytestmark = pytest.mark.slow

LENET = REPO / "examples" / "lenet"
SLOW = REPO / "examples" / "lenet-100mbit"


@pytest.fixture(scope="module", autouse=True)
def _no_client_is_closed_while_another_begins() -> Iterator[None]:
    """Keep clients that could not connect: collected while another one holds Dask's lock they wait for it."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a scheduler with two workers of one thread each, which know nothing of the project."""
    dask, distributed = pytest.importorskip("dask"), pytest.importorskip("distributed")
    scratch = tmp_path_factory.mktemp("dask")
    with (
        patch.object(
            distributed.scheduler, "heartbeat_interval", lambda n: 0.2
        ),  # else a word each half second
        dask.config.set({"temporary-directory": str(scratch), "distributed.scheduler.allowed-failures": 1}),
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            dashboard_address="127.0.0.1:0",
            silence_logs=50,
        ) as started,
        distributed.Client(started.scheduler_address, set_as_default=False) as client,
    ):
        client.run(forget, str(REPO))
        yield started.scheduler_address


@pytest.fixture
def scheduler(two_workers: str) -> str:
    """The scheduler's address, once workers that a test before killed are there again."""
    import distributed

    with distributed.Client(two_workers, set_as_default=False) as client:
        client.wait_for_workers(2, timeout=120)
    return two_workers


@pytest.fixture
def connected(scheduler: str) -> Iterator[None]:
    with cluster.connected(scheduler) as workers, working_on(workers):
        yield


def only_line(err: str) -> str:
    lines = err.splitlines()
    assert len(lines) == 1, err
    return lines[0]


# ---- the same answer


@pytest.mark.parametrize(
    ("option", "paths"),
    few(3, [
        ("diagnose", [LENET]),
        ("combine", [LENET]),
        ("statistic", [REPO / "examples" / "mlp-raw"]),  # read from files that are made on the way
        ("compare", [LENET, SLOW]),
    ]),
)  # fmt: skip
def test_options_say_the_same(option: str, paths: list[Any], scheduler: str, tmp_path: Path) -> None:
    shutil.copytree(REPO / "examples", tmp_path / "examples")
    paths = [tmp_path / path.relative_to(REPO) if isinstance(path, Path) else path for path in paths]
    command = ["--option", option, "--path", *paths, "--format", "json"]
    if option == "combine":
        command += ["--output", tmp_path / "output.json"]
    here = run_cli(*command)
    assert here[0] == 0, here[2]
    assert run_cli(*command, "--cluster", scheduler) == here


def test_paths_from_here_and_a_rank_that_fails(
    scheduler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = tmp_path / "job"
    ranks.mkdir()
    for rank in range(3):
        event = {"ph": "X", "name": f"op{rank}", "ts": 1, "dur": 1 + rank, "pid": 0, "tid": 0}
        (ranks / f"rank{rank}.json").write_text(json.dumps({"traceEvents": [event]}))
    (ranks / "rank1.json").write_text('{"traceEvents": 5}')
    monkeypatch.chdir(tmp_path)
    command = ["--option", "statistic", "--path", "job", "--format", "json"]
    here = run_cli(*command)
    repairs = json.loads(here[1])["repairs"]
    assert any(line.startswith("job/rank1.json: JSON, but no trace: there is no list") for line in repairs)
    assert run_cli(*command, "--cluster", scheduler) == here
    broken = ["--option", "statistic", "--path", "job/rank1.json"]
    assert run_cli(*broken, "--cluster", scheduler) == run_cli(*broken)


def shared_files(folder: Path, n: int) -> list[FilePart]:
    paths = [folder / f"{i}.txt" for i in range(n)]
    for path in paths:
        path.write_text("x" * 7)
    return [FilePart(path, size=7, is_shared=True) for path in paths]


def test_answers_are_in_the_order_of_files_and_progress_is_told(connected: None, tmp_path: Path) -> None:
    own = FilePart(tmp_path / "own.txt", size=1)  # no other host may see it
    read: list[int] = []
    answers = list(map_files(sizes, [own, *shared_files(tmp_path, 5)], on_read=read.append))
    assert [name for name, _ in answers] == ["own.txt", *(f"{i}.txt" for i in range(5))]
    assert [process == os.getpid() for _, process in answers] == [True] + 5 * [False]
    assert sum(read) == 35


# ---- addresses


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        ((), 2, "DASK_SCHEDULER_ADDRESS is not set"),
        (("nonsense",), 2, "neither tcp://host:port"),
        (("local:2",), 2, "--jobs N uses N processes of this machine"),
        (("missing.json",), 1, "No such file"),
    ],
)
def test_a_wrong_address_is_one_line(
    given: tuple[str, ...], code: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DASK_SCHEDULER_ADDRESS", raising=False)
    found, out, err = run_cli("--option", "statistic", "--path", LENET, "--cluster", *given)
    assert (found, out) == (code, "")
    assert words in only_line(err)


@pytest.mark.parametrize("listens", [False, True])
def test_an_address_where_no_scheduler_answers_is_one_line(
    listens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "_CONNECT_SECONDS", 0.3)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        if listens:
            taken.listen()  # and never says a word
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        began = time.monotonic()
        code, out, err = run_cli("--option", "statistic", "--path", LENET, "--cluster", address)
    assert (code, out) == (1, "")
    assert f"--cluster {address}: no Dask scheduler answers there" in only_line(err)
    assert time.monotonic() - began < 10


# ---- workers


def test_a_worker_that_does_not_see_the_files_is_named_before_anything_begins(
    scheduler: str, tmp_path: Path
) -> None:
    import distributed

    parts = shared_files(tmp_path, 2)
    with distributed.Client(scheduler, set_as_default=False) as client:
        blind = next(iter(client.nthreads()))
        client.run(hide, str(tmp_path), workers=[blind])
    log = tmp_path / "log"
    with (
        cluster.connected(scheduler) as connected,
        working_on(connected),
        pytest.raises(AnalyzeError) as caught,
    ):
        list(map_files(partial(sizes, log=log), parts))
    said = f"{parts[0].path}: the worker on {socket.gethostname()} cannot see it"
    assert str(caught.value).startswith(said)
    assert not log.exists()


def test_a_worker_that_stops_is_a_line(
    scheduler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import distributed

    monkeypatch.setattr(cluster, "_STUCK_SECONDS", 1.0)
    with (
        cluster.connected(scheduler) as workers,
        distributed.Client(scheduler, set_as_default=False) as client,
    ):
        processes = client.run(os.getpid)
        parts = shared_files(tmp_path, 2)
        work = partial(stop_once, after=False)
        try:
            with pytest.raises(AnalyzeError, match=r"no result for 1.0 s; has a worker stopped\?"):
                list(workers(work, parts, int))
        finally:
            for process in processes.values():
                os.kill(process, signal.SIGCONT)


# the last ones: who needs both workers then waits for new ones


def test_the_task_of_a_killed_worker_is_done_again(connected: None, tmp_path: Path) -> None:
    assert list(map_files(die_once, shared_files(tmp_path, 3))) == ["0.txt", "1.txt", "2.txt"]
    assert (tmp_path / "1.txt").read_text() == "x" * 6


def test_a_task_that_kills_again_is_one_line(connected: None, tmp_path: Path) -> None:
    with pytest.raises(AnalyzeError, match="the workers that read a file were killed"):
        # alone: what lies on the same worker is lost with it and may be named instead
        list(map_files(partial(die_once, times=9), shared_files(tmp_path, 3)[1:2]))
    assert (tmp_path / "1.txt").read_text() == "x" * 5  # tried once more, no oftener
