"""A Dask cluster as the engine of `parallel.map_files`: one task for each file, on workers that see it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import pickle
import re
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar, cast

from errors import AnalyzeError, UsageError, listed
from inputs import opened
from outputs.interrupts import uninterrupted
from outputs.temporary import temporary_directory
from parallel import FilePart, OnRead, Work, attempts, cores, kill_children, run_program
from parallel.attempts import Attempts, WorkerState, silence

VARIABLE = "DASK_SCHEDULER_ADDRESS"  # the environment's address of a scheduler
_ADDRESS = re.compile(r"local(:[1-9]\d{0,3})?|.+\.json|[a-z]+://.+|(?!local:)[\w.-]+:\d+", re.ASCII)
_CONNECT_SECONDS = 5
_WORKER_SECONDS = 30  # how long to wait for a worker: a job scheduler may still be starting them
_KEY_SECONDS = 10  # for making a key, which takes milliseconds
_LARGEST_FILE = 1 << 20  # bytes of a scheduler's file, which has some 10 kB
_DEATHS = 1  # how many workers a task of an own cluster may lose before it is given up
_ROOT = Path(__file__).resolve().parents[1]
_T = TypeVar("_T")


def checked_address(given: str) -> str:
    """Return the address meant by `--cluster`; "" means the environment's. UsageError for anything else."""
    address = given or os.environ.get(VARIABLE, "")
    if not address:
        raise UsageError(f"--cluster: needs an address, because {VARIABLE} is not set")
    if not _ADDRESS.fullmatch(address):
        raise UsageError(
            f"--cluster {address}: neither tcp://host:port, nor a scheduler file (*.json), nor local[:N]"
        )
    return address


@contextlib.contextmanager
def connected(address: str, jobs: int | None = None) -> Iterator[Cluster]:
    """Connect to the scheduler at `address` (of `checked_address`) for as long as the block lasts.

    ``local[:N]`` starts N workers on this machine (default: `jobs`, else as many as cores), and ends them.
    Raises AnalyzeError where nobody answers, or no worker comes.
    """
    with contextlib.ExitStack() as stack:
        distributed = _quiet_library(stack)
        name, security = address, distributed.Security()  # of Dask's own configuration
        if address.startswith("local"):
            n = int(address[6:] or jobs or cores())
            address, security = stack.enter_context(_own_scheduler(n))
        elif address.endswith(".json"):
            address = _in_file(Path(address))
        try:
            asyncio.run(_ask(address, security))
            client = distributed.Client(
                address, timeout=_CONNECT_SECONDS, security=security, set_as_default=False
            )
        except Exception as error:  # whatever it is that speaks there
            raise AnalyzeError(f"--cluster {name}: no Dask scheduler answers there") from error
        stack.enter_context(client)
        cluster = Cluster(client, name)
        cluster.wait_for_worker()
        yield cluster


class Cluster:
    """A connection to a scheduler and its workers."""

    def __init__(self, client: Any, name: str) -> None:
        self._client = client
        self._name = name
        self._deserted_at: float | None = None  # since when there is no worker
        self._run = _run_on_worker()
        self._stand = _run_on_scheduler()

    def wait_for_worker(self) -> None:
        """Wait for the first worker. AnalyzeError where none comes."""
        while not self._look():
            time.sleep(0.1)

    def map(
        self, work: Work[_T], parts: Sequence[FilePart], jobs: int | None, on_read: OnRead
    ) -> Iterator[_T]:
        """Yield the result of `work` for each part, in their order; at most `jobs` at a time.

        What a worker that is killed, silent or slow has to do is done by another one. Raises AnalyzeError
        where a worker does not see the files or runs other code, where tasks kill their workers, and where
        no worker is left.
        """
        self._check_workers(work, parts)

        def begin(i: int, key: str, workers: Sequence[str] | None) -> Future[Any]:
            return self._start(partial(self._attempt, work, parts[i], key=key, workers=workers))

        results: dict[int, _T] = {}
        n_given = 0
        for i, result in Attempts(begin, self._look, self._name).outcomes(len(parts), jobs or len(parts)):
            results[i] = result
            on_read(parts[i].size)
            while n_given in results:
                yield results.pop(n_given)
                n_given += 1

    async def _attempt(self, work: Work[_T], part: FilePart, **how: Any) -> _T:
        from distributed import KilledWorker

        task = pickle.dumps((work, part))
        future = self._client.submit(self._run, str(_ROOT), code(), [str(part.path)], task, **how)
        try:
            problem, result = await future
        except KilledWorker as error:
            raise AnalyzeError(
                f"{part.path}: the workers that read it were killed, one after the other (memory?)"
            ) from error
        except (Exception, asyncio.CancelledError) as error:
            if future.status in ("lost", "cancelled"):
                raise self._lost() from error
            raise  # the work itself has failed, or another attempt has succeeded
        if problem:
            raise AnalyzeError(problem)
        return cast("_T", result)

    def _check_workers(self, work: Work[Any], parts: Sequence[FilePart]) -> None:
        """Ask all workers whether they see the files and can run `work`, before anything is begun."""
        paths = [str(part.path) for part in parts]
        call = (self._run, str(_ROOT), code(), paths, pickle.dumps((work, None)))
        asked = {
            f"the worker {address}": partial(self._client.run, *call, workers=[address], on_error="return")
            for address in self._look()
        }
        for answers in self._answers(asked):
            for answer in answers.values():
                if isinstance(answer, tuple) and answer[0]:
                    raise AnalyzeError(answer[0])

    def _look(self, keys: Sequence[str] = ()) -> dict[str, WorkerState]:
        """Return how each worker stands, by address, and which of `keys` it has.

        Raises AnalyzeError where the scheduler is gone or silent, or has for too long had no worker, or
        silent ones only.
        """
        ask = partial(self._client.run_on_scheduler, self._stand, keys)
        (answer,) = self._answers({"the scheduler": ask})
        workers = {address: WorkerState(*state) for address, state in answer.items()}
        if workers and all(state.silent_s > attempts.SILENT_SECONDS for state in workers.values()):
            raise self._silent(f"the worker {next(iter(workers))}")
        now = time.monotonic()
        self._deserted_at = None if workers else self._deserted_at or now
        if self._deserted_at is not None and now - self._deserted_at > _WORKER_SECONDS:
            raise AnalyzeError(
                f"--cluster {self._name}: no worker for {_WORKER_SECONDS} s; start one (dask worker ADDRESS)"
            )
        return workers

    def _answers(self, asked: Mapping[str, Callable[[], Awaitable[Any]]]) -> list[Any]:
        """Return the answers of those asked; of who is silent a line says so, and others are enough.

        AnalyzeError where nobody answers.
        """
        waiting = {self._start(ask): whom for whom, ask in asked.items()}
        done, silent = wait(waiting, attempts.SAID_SECONDS)
        if silent:
            logging.warning("--cluster %s: %s", self._name, silence(listed([waiting[one] for one in silent])))
        if waiting and not done:
            done, _ = wait(waiting, attempts.SILENT_SECONDS - attempts.SAID_SECONDS, FIRST_COMPLETED)
        if waiting and not done:
            raise self._silent(next(iter(asked)))
        try:
            return [one.result() for one in done]
        except Exception as error:
            raise self._lost() from error

    def _start(self, ask: Callable[[], Awaitable[_T]]) -> Future[_T]:
        """Begin what `ask` awaits where the client works, which awaits nothing in this thread."""

        async def answer() -> _T:
            return await ask()

        return asyncio.run_coroutine_threadsafe(answer(), self._client.loop.asyncio_loop)

    def _silent(self, whom: str) -> AnalyzeError:
        words = silence(whom, attempts.SILENT_SECONDS)
        return AnalyzeError(f"--cluster {self._name}: {words}; has it stopped?")

    def _lost(self) -> AnalyzeError:
        return AnalyzeError(f"--cluster {self._name}: the connection to the scheduler is lost")


@cache
def code() -> str:
    """Return a digest of the program's code, as it was when this was first asked."""
    folders = [path.parent for path in _ROOT.glob("*/__init__.py")]
    files = [*_ROOT.glob("*.py"), *(file for folder in folders for file in folder.rglob("*.py"))]
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(f"{file.relative_to(_ROOT)}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()


def _run_on_worker() -> Callable[..., tuple[str, Any]]:
    """Return the function that workers run; it is sent by value, since they cannot import our modules.

    It returns why the worker cannot do a task, or "", and the task's result.
    """

    def run(root: str, own_code: str, paths: list[str], task: bytes) -> tuple[str, Any]:
        import os
        import pickle
        import socket
        import sys

        worker = f"the worker on {socket.gethostname()}"
        for path in (root, *paths):
            if not os.path.exists(path):
                return f"{path}: {worker} cannot see it; the path must be the same on every host", None
        if root not in sys.path:
            sys.path.insert(0, root)
        try:
            from parallel import cluster

            if cluster.code() != own_code:
                return f"{worker} runs another version of this program; restart it", None
            work, part = pickle.loads(task)
        except (ImportError, AttributeError) as error:
            return f"{worker} cannot run this program ({error}); install requirements.txt there", None
        return "", None if part is None else work(part, int)

    return run


def _run_on_scheduler() -> Callable[..., dict[str, tuple[float, bool, list[str]]]]:
    """Return the function that a scheduler runs, sent by value: the `WorkerState` of each, for some keys."""

    def stand(keys: list[str], dask_scheduler: Any) -> dict[str, tuple[float, bool, list[str]]]:
        from time import time

        tasks = [task for key in keys if (task := dask_scheduler.tasks.get(key)) is not None]
        return {
            address: (
                time() - worker.last_seen,
                not worker.processing,
                [task.key for task in tasks if task in worker.processing or task in worker.has_what],
            )
            for address, worker in dask_scheduler.workers.items()
        }

    return stand


def _quiet_library(stack: contextlib.ExitStack) -> Any:
    """Import `distributed` so that what it logs reaches nobody, here or in processes that it starts."""
    names = ("distributed", "tornado", "asyncio")
    for name in names:
        os.environ.setdefault(f"DASK_LOGGING__{name.upper()}", "critical")
    import dask
    import distributed

    for name in ("", ".client", ".gc", ".application"):
        for top in names:
            logger = logging.getLogger(top + name)
            logger.handlers = []
            logger.propagate = True
    stack.enter_context(dask.config.set({"distributed.scheduler.allowed-failures": _DEATHS}))
    return distributed


async def _ask(address: str, security: Any) -> None:
    """Shake hands with a scheduler; `Client` would wait forever for one that accepts and says nothing."""
    from distributed.comm import connect

    secrets = security.get_connection_args("client")
    comm = await asyncio.wait_for(connect(address, _CONNECT_SECONDS, **secrets), _CONNECT_SECONDS)
    await comm.close()


@contextlib.contextmanager
def _own_scheduler(n: int) -> Iterator[tuple[str, Any]]:
    """Start a scheduler in this process and `n` worker processes; give its address, and what opens it."""
    from multiprocessing import resource_tracker

    import dask

    quiet: dict[str, Any] = {f"distributed.{who}.http.routes": [] for who in ("scheduler", "worker")}
    with temporary_directory() as scratch, dask.config.set({"temporary-directory": str(scratch), **quiet}):
        security = _own_certificate(scratch)
        with contextlib.ExitStack() as stack:
            with uninterrupted():  # a signal to all that this process started is for this one alone
                resource_tracker.ensure_running()  # where it is begun later, it lets some through again
            with uninterrupted(signal.SIGINT):  # workers inherit it: a terminal's Ctrl-C is for this process
                own = stack.enter_context(_started(n, security))
            yield own.scheduler_address, security


def _started(n: int, security: Any) -> Any:
    """Start a `LocalCluster`. AnalyzeError where a worker does not start, or has stopped before."""
    from distributed import LocalCluster

    words = f"--cluster local: {silence('its workers')}"
    line = threading.Timer(attempts.SAID_SECONDS, logging.warning, [words])
    line.start()
    try:
        return LocalCluster(
            n_workers=n,
            threads_per_worker=1,
            processes=True,
            dashboard_address="127.0.0.1:0",
            scheduler_kwargs={"dashboard": False},  # whoever is on this machine could read it
            memory_limit=0,
            silence_logs=logging.CRITICAL,
            protocol="tls://",
            security=security,
            death_timeout=_WORKER_SECONDS,
        )
    except Exception as error:  # whatever keeps a process from beginning
        kill_children()
        raise AnalyzeError("--cluster local: a worker does not start; --jobs needs none") from error
    finally:
        line.cancel()


def _own_certificate(directory: Path) -> Any:
    """Return the key and certificate that let this command alone into its cluster; they live as long as it.

    Dask makes none without the package `cryptography`. AnalyzeError where ``openssl`` makes none: without it
    whoever uses this machine would be let in.
    """
    from distributed import Security

    key, certificate = str(directory / "key.pem"), str(directory / "certificate.pem")
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -batch -subj /CN=dask"
    )
    try:
        run_program([*command.split(), "-keyout", key, "-out", certificate], _KEY_SECONDS)
    except (OSError, RuntimeError) as error:
        raise AnalyzeError(
            f"--cluster local: no certificate (openssl: {error}); without one every user of this machine "
            "could reach it; --jobs needs none"
        ) from error
    files = {f"tls_{who}_key": key for who in ("client", "scheduler", "worker")}
    files |= {name.replace("_key", "_cert"): certificate for name in files}
    return Security(require_encryption=True, tls_ca_file=certificate, **files)


def _in_file(path: Path) -> str:
    try:
        with opened(path) as file:
            return str(json.loads(file.read(_LARGEST_FILE))["address"])
    except OSError as error:
        raise AnalyzeError(f"--cluster {path}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise AnalyzeError(f"--cluster {path}: not a scheduler's file: it names no address") from error
