"""A Dask cluster as the engine of `parallel.map_files`: one task for each file, on workers that see it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import pickle
import queue
import re
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from errors import AnalyzeError, UsageError
from outputs.temporary import temporary_directory
from parallel import FilePart, OnRead, Work, cores

VARIABLE = "DASK_SCHEDULER_ADDRESS"  # the environment's address of a scheduler
_ADDRESS = re.compile(r"local(:[1-9]\d{0,3})?|.+\.json|[a-z]+://.+|(?!local:)[\w.-]+:\d+", re.ASCII)
_CONNECT_SECONDS = 5
_WORKER_SECONDS = 30  # how long to wait for a worker: a job scheduler may still be starting them
_LOOK_SECONDS = 2  # between looks at whether there is still somebody who works
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
        name = address
        if address.startswith("local"):
            n = int(address[6:] or jobs or cores())
            address = stack.enter_context(_own_scheduler(n))
        elif address.endswith(".json"):
            address = _in_file(Path(address))
        try:
            asyncio.run(_ask(address))
            client = distributed.Client(address, timeout=_CONNECT_SECONDS, set_as_default=False)
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

    def wait_for_worker(self) -> None:
        """Wait for the first worker. AnalyzeError where none comes."""
        while not self._client.nthreads():
            self._check_alive()
            time.sleep(0.1)

    def map(
        self,
        work: Work[_T],
        parts: Sequence[FilePart],
        jobs: int | None,
        on_read: OnRead,
    ) -> Iterator[_T]:
        """Yield the result of `work` for each part, in their order; at most `jobs` at a time.

        A task whose worker is killed is done again by another one. Raises AnalyzeError where a worker does
        not see the files or runs other code, where tasks kill their workers, and where no worker is left.
        """
        self._check_workers(work, parts)
        waiting = list(enumerate(parts))[::-1]
        number: dict[str, int] = {}
        done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        results: dict[int, _T] = {}
        n_given = 0

        def send() -> None:
            i, part = waiting.pop()
            task = pickle.dumps((work, part))
            future = self._client.submit(self._run, str(_ROOT), code(), [str(part.path)], task, pure=False)
            number[future.key] = i
            future.add_done_callback(done.put)

        for _ in range(min(jobs or len(parts), len(parts))):
            send()
        while number:
            future = self._next(done)
            i = number.pop(future.key)
            results[i] = self._result_of(future, parts[i])
            future.release()  # the worker need not keep it
            on_read(parts[i].size)
            if waiting:
                send()
            while n_given in results:
                yield results.pop(n_given)
                n_given += 1

    def _check_workers(self, work: Work[Any], parts: Sequence[FilePart]) -> None:
        """Ask all workers whether they see the files and can run `work`, before anything is begun."""
        paths = [str(part.path) for part in parts]
        task = pickle.dumps((work, None))
        answers = self._client.run(self._run, str(_ROOT), code(), paths, task, on_error="return")
        for answer in answers.values():
            if isinstance(answer, tuple) and answer[0]:
                raise AnalyzeError(answer[0])

    def _next(self, done: queue.SimpleQueue[Any]) -> Any:
        """Return the next future that is done, while somebody works on them."""
        while True:
            with contextlib.suppress(queue.Empty):
                return done.get(timeout=_LOOK_SECONDS)
            self._check_alive()

    def _result_of(self, future: Any, part: FilePart) -> Any:
        from distributed import KilledWorker

        try:
            problem, result = future.result()
        except KilledWorker as error:
            raise AnalyzeError(
                f"{part.path}: the workers that read it were killed, one after the other (memory?)"
            ) from error
        except (Exception, asyncio.CancelledError) as error:
            if future.status == "error":  # the work itself has failed
                raise
            raise self._lost() from error
        if problem:
            raise AnalyzeError(problem)
        return result

    def _check_alive(self) -> None:
        """Raise AnalyzeError where the scheduler is gone, or has no worker for too long."""
        try:
            workers = self._client.nthreads()
        except (OSError, ValueError, RuntimeError) as error:
            raise self._lost() from error
        if workers:
            self._deserted_at = None
            return
        now = time.monotonic()
        self._deserted_at = self._deserted_at or now
        if now - self._deserted_at > _WORKER_SECONDS:
            raise AnalyzeError(
                f"--cluster {self._name}: no worker for {_WORKER_SECONDS} s; start one (dask worker ADDRESS)"
            )

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


async def _ask(address: str) -> None:
    """Shake hands with a scheduler; `Client` would wait forever for one that accepts and says nothing."""
    from distributed.comm import connect
    from distributed.security import Security

    secrets = Security().get_connection_args("client")
    comm = await asyncio.wait_for(connect(address, _CONNECT_SECONDS, **secrets), _CONNECT_SECONDS)
    await comm.close()


@contextlib.contextmanager
def _own_scheduler(n: int) -> Iterator[str]:
    """Start a scheduler in this process and `n` worker processes, and give its address."""
    import dask
    from distributed import LocalCluster

    with (
        temporary_directory() as scratch,
        dask.config.set({"temporary-directory": str(scratch)}),
        LocalCluster(
            n_workers=n,
            threads_per_worker=1,
            processes=True,
            dashboard_address="127.0.0.1:0",
            memory_limit=0,
            silence_logs=logging.CRITICAL,
        ) as own,
    ):
        yield own.scheduler_address


def _in_file(path: Path) -> str:
    try:
        return str(json.loads(path.read_text())["address"])
    except OSError as error:
        raise AnalyzeError(f"--cluster {path}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise AnalyzeError(f"--cluster {path}: not a scheduler's file: it names no address") from error
