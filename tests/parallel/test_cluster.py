"""The same answers from a Dask cluster: real schedulers and workers, and what goes wrong with them."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import parallel
from conftest import REPO, few, run_cli
from errors import AnalyzeError
from parallel import FilePart, attempts, cluster, map_files, working_on
from sent_work import die_once, fill_disk, forget, hide, sizes, slow_once, stop_once
from traces.files import read_trace

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
def connected(scheduler: str) -> Iterator[cluster.Cluster]:
    with cluster.connected(scheduler) as made, working_on(made.map):
        yield made


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


def test_answers_are_in_the_order_of_files_and_progress_is_told(
    connected: cluster.Cluster, tmp_path: Path
) -> None:
    own = FilePart(tmp_path / "own.txt", size=1)  # no other host may see it
    read: list[int] = []
    answers = list(map_files(sizes, [own, *shared_files(tmp_path, 5)], on_read=read.append))
    assert [name for name, _ in answers] == ["own.txt", *(f"{i}.txt" for i in range(5))]
    assert [process == os.getpid() for _, process in answers] == [True] + 5 * [False]
    assert sum(read) == 35


def test_jobs_limits_how_many_tasks_run_at_a_time(connected: cluster.Cluster, tmp_path: Path) -> None:
    work = partial(sizes, log=tmp_path / "log")  # fails where another one runs
    assert len(list(map_files(work, shared_files(tmp_path, 6), jobs=1))) == 6


def test_columns_are_sent_as_they_lie_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    n = 10_000
    event = '{"ph": "X", "name": "op", "ts": %d, "dur": 1, "pid": 0, "tid": 0}'
    path.write_text(f"[{','.join(event % i for i in range(n))}]")
    buffers: list[pickle.PickleBuffer] = []
    message = pickle.dumps(read_trace(path), protocol=5, buffer_callback=buffers.append)
    assert len(message) < 3_000
    assert sum(buffer.raw().nbytes for buffer in buffers) == n * (3 * 4 + 2 * 8)


# ---- addresses


def test_a_schedulers_file_and_the_environment_name_it_too(
    scheduler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "scheduler.json"
    file.write_text(json.dumps({"type": "Scheduler", "address": scheduler}))
    command = ["--option", "statistic", "--path", LENET, "--format", "csv"]
    here = run_cli(*command)
    assert run_cli(*command, "--cluster", file) == here
    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", scheduler)
    assert run_cli(*command, "--cluster") == here


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        ((), 2, "DASK_SCHEDULER_ADDRESS is not set"),
        (("nonsense",), 2, "neither tcp://host:port"),
        (("local:0",), 2, "neither tcp://host:port"),
        (("local:two",), 2, "neither tcp://host:port"),
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


@pytest.mark.parametrize("text", ["[]", "{", '{"workers": {}}', "[" * 100_000])
def test_a_file_that_no_scheduler_wrote_is_one_line(text: str, tmp_path: Path) -> None:
    file = tmp_path / "scheduler.json"
    file.write_text(text)
    code, out, err = run_cli("--option", "statistic", "--path", LENET, "--cluster", file)
    assert (code, out) == (1, "")
    assert "names no address" in only_line(err)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_a_schedulers_file_that_is_no_file_is_one_line(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "scheduler.json")
    with pytest.raises(AnalyzeError, match=r"scheduler.json: not a regular file"):
        cluster.connected(str(tmp_path / "scheduler.json")).__enter__()


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


def test_a_scheduler_without_workers_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dask, distributed = pytest.importorskip("dask"), pytest.importorskip("distributed")
    monkeypatch.setattr(cluster, "_WORKER_SECONDS", 0.2)
    with (
        dask.config.set({"temporary-directory": str(tmp_path)}),
        distributed.LocalCluster(n_workers=0, dashboard_address="127.0.0.1:0", silence_logs=50) as empty,
    ):
        code, _, err = run_cli("--option", "statistic", "--path", LENET, "--cluster", empty.scheduler_address)
    assert code == 1
    assert "no worker for" in only_line(err)


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
        working_on(connected.map),
        pytest.raises(AnalyzeError) as caught,
    ):
        list(map_files(partial(sizes, log=log), parts))
    said = f"{parts[0].path}: the worker on {socket.gethostname()} cannot see it"
    assert str(caught.value).startswith(said)
    assert not log.exists()


def test_a_worker_with_other_code_is_refused(
    connected: cluster.Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "code", lambda: "another")
    with pytest.raises(AnalyzeError, match="runs another version of this program; restart it"):
        list(map_files(sizes, shared_files(tmp_path, 1)))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait a second for who is silent, not half a minute."""
    for name, seconds in (("SAID_SECONDS", 0.5), ("SILENT_SECONDS", 1.0), ("_LOOK_SECONDS", 0.1)):
        monkeypatch.setattr(attempts, name, seconds)


@contextlib.contextmanager
def stopped(scheduler: str, n: int) -> Iterator[list[str]]:
    """Stop `n` of the workers for as long as the block lasts."""
    import distributed

    with distributed.Client(scheduler, set_as_default=False) as client:
        processes = client.run(os.getpid)
        found = list(processes)[:n]
        for address in found:
            os.kill(processes[address], signal.SIGSTOP)
        try:
            yield found
        finally:
            for address in processes:
                os.kill(processes[address], signal.SIGCONT)


@pytest.mark.parametrize("after", [False, True])
def test_the_work_of_a_worker_that_stops_is_done_by_the_other(
    connected: cluster.Cluster, scheduler: str, tmp_path: Path, after: bool, impatient: None
) -> None:
    with stopped(scheduler, 0):
        answers = list(map_files(partial(stop_once, after=after), shared_files(tmp_path, 4)))
    assert answers == ["0.txt", "1.txt", "2.txt", "3.txt"]
    assert (tmp_path / "1.txt").read_text() == "stopped"


def test_a_worker_that_has_stopped_before_is_left_out(
    connected: cluster.Cluster, scheduler: str, tmp_path: Path, impatient: None, caplog: Any
) -> None:
    with stopped(scheduler, 1) as found:
        assert [name for name, _ in map_files(sizes, shared_files(tmp_path, 3))] == [
            "0.txt",
            "1.txt",
            "2.txt",
        ]
    assert f"no word from the worker {found[0]}" in caplog.text


def test_where_all_workers_have_stopped_a_line_names_one(
    connected: cluster.Cluster, scheduler: str, tmp_path: Path, impatient: None
) -> None:
    with stopped(scheduler, 2), pytest.raises(AnalyzeError, match="no word from the worker tcp://"):
        list(map_files(sizes, shared_files(tmp_path, 3)))


def test_what_a_slow_worker_has_to_do_is_done_by_one_of_another_host(
    connected: cluster.Cluster, scheduler: str, tmp_path: Path, impatient: None
) -> None:
    command = [sys.executable, "-m", "distributed.cli.dask_worker", "--host", "127.0.0.2", "--nthreads", "1"]
    command += ["--no-nanny", "--no-dashboard", "--local-directory", str(tmp_path / "worker"), scheduler]
    with subprocess.Popen(
        command, stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    ) as other:
        try:
            while not any("127.0.0.2" in address for address in connected._look()):
                time.sleep(0.05)
            assert list(map_files(slow_once, shared_files(tmp_path, 4))) == [
                "0.txt",
                "1.txt",
                "2.txt",
                "3.txt",
            ]
            assert (tmp_path / "1.txt").read_text() == "slow"  # the first attempt has not ended
        finally:
            (tmp_path / "1.txt").write_text("done")
            other.terminate()


def test_a_worker_whose_disk_is_full_gives_the_same_answer(scheduler: str) -> None:
    import distributed

    command = ["--option", "diagnose", "--path", LENET, "--format", "json"]
    with distributed.Client(scheduler, set_as_default=False) as client:
        assert run_cli(*command, "--cluster", scheduler) == run_cli(*command)
        client.run(fill_disk, True)
        try:
            assert run_cli(*command, "--cluster", scheduler) == run_cli(*command)
        finally:
            client.run(fill_disk, False)


@contextlib.contextmanager
def link(to: str) -> Iterator[tuple[str, threading.Event]]:
    """Pass on what comes and goes for an address; yield another one for it, and what stops that if clear."""
    host, port = to.removeprefix("tcp://").split(":")
    passes = threading.Event()
    passes.set()

    def pump(one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError), one, other:
            while data := one.recv(1 << 16):
                passes.wait()
                other.sendall(data)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                near, far = listening.accept()[0], socket.create_connection((host, int(port)))
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=pump, args=ends, daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=accept, daemon=True).start()
        try:
            yield f"tcp://127.0.0.1:{listening.getsockname()[1]}", passes
        finally:
            passes.set()
            listening.shutdown(socket.SHUT_RDWR)


def test_a_link_that_is_dropped_is_a_line(scheduler: str, tmp_path: Path, impatient: None) -> None:
    with link(scheduler) as (address, passes), cluster.connected(address) as one:
        assert len(list(one.map(sizes, shared_files(tmp_path, 2), None, int))) == 2
        passes.clear()
        with pytest.raises(AnalyzeError, match="no word from the scheduler for 1 s"):
            list(one.map(sizes, shared_files(tmp_path, 2), None, int))
        passes.set()


@pytest.mark.fuzz  # as above, by a process of its own
def test_a_scheduler_that_stops_is_a_line(tmp_path: Path, impatient: None) -> None:
    distributed = pytest.importorskip("distributed")
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--no-dashboard", "--port", "0"]
    file = tmp_path / "scheduler.json"
    with subprocess.Popen([*command, "--scheduler-file", file], stderr=subprocess.DEVNULL) as process:
        try:
            while not file.exists():
                time.sleep(0.05)
            with distributed.Client(scheduler_file=file, timeout=1, set_as_default=False) as client:
                process.send_signal(signal.SIGSTOP)
                with pytest.raises(AnalyzeError, match="--cluster x: no word from the scheduler for 1 s"):
                    cluster.Cluster(client, "x").wait_for_worker()
        finally:
            process.kill()


def test_two_commands_share_the_workers(scheduler: str, tmp_path: Path) -> None:
    parts = shared_files(tmp_path, 6)
    with cluster.connected(scheduler) as one, cluster.connected(scheduler) as other:
        both = zip(one.map(sizes, parts, None, int), other.map(sizes, parts, 2, int), strict=True)
        assert [mine[0] == its[0] for mine, its in both] == 6 * [True]


# the last ones: who needs both workers then waits for new ones


def test_the_task_of_a_killed_worker_is_done_again(connected: cluster.Cluster, tmp_path: Path) -> None:
    assert list(map_files(die_once, shared_files(tmp_path, 3))) == ["0.txt", "1.txt", "2.txt"]
    assert (tmp_path / "1.txt").read_text() == "x" * 6


def test_a_task_that_kills_again_is_one_line(connected: cluster.Cluster, tmp_path: Path) -> None:
    with pytest.raises(AnalyzeError, match=r"1.txt: the workers that read it were killed"):
        # alone: what lies on the same worker is lost with it and may be named instead
        list(map_files(partial(die_once, times=9), shared_files(tmp_path, 3)[1:2]))
    assert (tmp_path / "1.txt").read_text() == "x" * 5  # tried once more, no oftener


# ---- an own cluster


def test_no_cluster_is_started_that_others_could_reach(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # where no openssl is
    code, out, err = run_cli("--option", "statistic", "--path", LENET, "--cluster", "local:1")
    assert (code, out) == (1, "")
    line = only_line(err)
    assert "--cluster local: no certificate (openssl: " in line
    assert line.endswith("without one every user of this machine could reach it; --jobs needs none")


def test_an_own_cluster_lets_nobody_else_in_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import dask
    import distributed

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with cluster.connected("local:1") as engine:
        address, security = engine._client.scheduler.address, engine._client.security
        (tmp_path / "other").mkdir()
        strangers = (
            (address, distributed.Security()),
            (address, cluster._own_certificate(tmp_path / "other")),
            (address.replace("tls", "tcp"), None),
        )
        shutil.rmtree(tmp_path / "other")
        for name, other in strangers:
            with pytest.raises((OSError, TypeError)):
                distributed.Client(name, security=other, timeout=0.5, set_as_default=False)
        ours = {
            "distributed.comm.tls.ca-file": security.tls_ca_file,
            "distributed.comm.tls.client.cert": security.tls_client_cert,
            "distributed.comm.tls.client.key": security.tls_client_key,
        }
        with dask.config.set(ours):  # as somebody has configured it who uses TLS
            command = ["--option", "statistic", "--path", LENET, "--format", "csv"]
            # but for standard error, on which the scheduler of this process says whom it refused
            assert run_cli(*command, "--cluster", address)[:2] == run_cli(*command)[:2]
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_a_worker_that_stops_while_it_starts_is_a_line(tmp_path: Path) -> None:
    script = f"""
import multiprocessing, os, signal, sys, threading, time
sys.path.insert(0, {str(REPO)!r})
import analyze
from parallel import attempts, cluster

def stop():
    while not (found := multiprocessing.active_children()):
        time.sleep(0.01)
    os.kill(found[0].pid, signal.SIGSTOP)

if __name__ == "__main__":
    attempts.SAID_SECONDS, cluster._WORKER_SECONDS = 0.5, 2
    threading.Thread(target=stop).start()
    sys.exit(analyze.main(["statistic", {str(LENET)!r}, "--cluster", "local:1"]))
"""
    (tmp_path / "script.py").write_text(script)
    command = [sys.executable, str(tmp_path / "script.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    said, error = done.stderr.splitlines()
    assert "--cluster local: no word from its workers for " in said
    assert (done.returncode, error) == (
        1,
        "analyze.py: error: --cluster local: a worker does not start; --jobs needs none",
    )


def test_where_no_worker_can_be_started_a_line_says_so(tmp_path: Path) -> None:
    command = [sys.executable, str(REPO / "analyze.py"), "statistic", str(LENET), "--cluster", "local:1"]
    within = ["bash", "-c", f'cd {tmp_path}; rmdir {tmp_path}; exec "$@"', "-", *command]
    done = subprocess.run(within, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "a worker does not start" in only_line(done.stderr)


@pytest.mark.fuzz
def test_ctrl_c_ends_a_local_cluster(tmp_path: Path) -> None:
    file = tmp_path / "worker"
    file.touch()
    script = (
        f"import sys; sys.path[:0] = [{str(REPO)!r}, {str(Path(__file__).parent)!r}]\n"
        "import pathlib, signal, parallel, parallel.cluster, sent_work\n"
        "if __name__ == '__main__':\n"
        "    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background\n"
        "    try:\n"
        "        with parallel.cluster.connected('local:1') as engine, parallel.working_on(engine.map):\n"
        f"            part = parallel.FilePart(pathlib.Path({str(file)!r}), is_shared=True)\n"
        "            list(parallel.map_files(sent_work.sleep, [part]))\n"
        "    except KeyboardInterrupt:\n"
        "        print('interrupted')\n"
    )
    (tmp_path / "script.py").write_text(script)
    with subprocess.Popen(
        [sys.executable, tmp_path / "script.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as started:
        while not file.read_text() and started.poll() is None:
            time.sleep(0.05)
        os.killpg(started.pid, signal.SIGINT)
        out, err = started.communicate(timeout=30)
    assert (out, err) == ("interrupted\n", "")
    deadline = time.monotonic() + 30
    while (left := living(started.pid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []
    assert {path.name for path in tmp_path.iterdir()} == {"worker", "script.py"}


def living(session: int) -> list[str]:
    """Return the command lines of the processes of a session that have not ended."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, _, _, own_session = (process / "stat").read_text().rpartition(")")[2].split()[:4]
            if own_session == str(session) and state != "Z":
                found.append((process / "cmdline").read_text().replace("\0", " "))
    return found


def test_without_the_flag_the_library_is_not_imported() -> None:
    script = (
        "import sys, analyze\n"
        f"analyze.main(['--option', 'statistic', '--path', {str(LENET)!r}])\n"
        "loaded = {'parallel.cluster', 'dask', 'distributed'} & set(sys.modules)\n"
        "print(sorted(loaded), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=REPO, capture_output=True, text=True, check=True
    )
    assert done.stderr.strip() == "[]"
    assert parallel._elsewhere.get() is None
