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
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

from analyzer.base.errors import AnalyzeError, UsageError, optional
from analyzer.base.inputs import opened
from analyzer.base.parallel import Elsewhere, FilePart, OnRead, Work

VARIABLE = "DASK_SCHEDULER_ADDRESS"  # the environment's address of a scheduler
_ADDRESS = re.compile(r".+\.json|[a-z]+://.+|(?!local:)[\w.-]+:\d+", re.ASCII)
_CONNECT_SECONDS = 5
_WORKER_SECONDS = 30  # a job scheduler may still be starting workers
_STUCK_SECONDS = 120  # without the next file's result, a worker is taken to be stuck
_LARGEST_FILE = 1 << 20  # bytes of a scheduler's file, which has some 10 kB
_ROOT = Path(__file__).resolve().parents[3]
_DOORS, _PACKAGES = ("analyze", "trace_utils", "dag_utils"), ("analyzer", "collector", "replay")
_T = TypeVar("_T")


def checked_address(given: str) -> str:
    """Check the address of `--cluster`; "" means the environment's. Raises UsageError."""
    address = given or os.environ.get(VARIABLE, "")
    if not address:
        raise UsageError(f"--cluster: needs an address, because {VARIABLE} is not set")
    if address.partition(":")[0] == "local":
        raise UsageError(f"--cluster {address}: --jobs N uses N processes of this machine")
    if not _ADDRESS.fullmatch(address):
        raise UsageError(f"--cluster {address}: neither tcp://host:port nor a scheduler file (*.json)")
    return address


@contextlib.contextmanager
def connected(address: str) -> Iterator[Elsewhere]:
    """Connect to the scheduler at `address` (of `checked_address`); its workers do the work in the block.

    Raises AnalyzeError without a scheduler or a worker.
    """
    distributed = _quiet_library()
    target = _address_in_file(Path(address)) if address.endswith(".json") else address
    security = distributed.Security()  # of Dask's own configuration
    try:
        asyncio.run(_shake_hands(target, security))
        client = distributed.Client(target, timeout=_CONNECT_SECONDS, security=security, set_as_default=False)
    except Exception as error:  # any program may listen at that port
        raise AnalyzeError(f"--cluster {address}: no Dask scheduler answers there") from error
    with client:
        try:
            client.wait_for_workers(1, timeout=_WORKER_SECONDS)
        except asyncio.TimeoutError as error:  # of its own in Python 3.10
            raise AnalyzeError(
                f"--cluster {address}: no worker for {_WORKER_SECONDS} s; start one (dask worker ADDRESS)"
            ) from error
        yield partial(_map, client, address)


def _map(
    client: Any, address: str, work: Work[_T], parts: Sequence[FilePart], on_read: OnRead
) -> Iterator[_T]:
    """Yield the result of `work` for each part, in order.

    Raises AnalyzeError if a worker does not see the files or runs other code, if tasks kill their workers, if
    the connection is lost, and if there is no result for two minutes.
    """
    from distributed import CancelledError, KilledWorker
    from distributed.comm import CommClosedError

    lost = "the connection to the scheduler is lost"
    failures = {
        KilledWorker: "the workers that read a file were killed, one after the other (memory?)",
        CommClosedError: lost,
        CancelledError: lost,
        asyncio.TimeoutError: f"no result for {_STUCK_SECONDS} s; has a worker stopped?",
    }
    run, tasks = _run_on_worker(), [pickle.dumps((work, part)) for part in parts]
    try:
        for problem, _ in client.run(
            run, str(_ROOT), code(), [str(part.path) for part in parts], None
        ).values():
            if problem:
                raise AnalyzeError(problem)
        futures = deque(
            client.submit(run, str(_ROOT), code(), [str(part.path)], task, pure=False)
            for part, task in zip(parts, tasks, strict=True)
        )
        for part in parts:
            problem, result = futures.popleft().result(timeout=_STUCK_SECONDS)  # no future is kept
            if problem:
                raise AnalyzeError(problem)
            on_read(part.size)
            yield result
    except tuple(failures) as error:
        why = next(why for kind, why in failures.items() if isinstance(error, kind))
        raise AnalyzeError(f"--cluster {address}: {why}") from error


@cache
def code() -> str:
    """Compute a checksum of the program's code."""
    files = [_ROOT / f"{name}.py" for name in _DOORS]
    files += [file for package in _PACKAGES for file in (_ROOT / package).rglob("*.py")]
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(f"{file.relative_to(_ROOT)}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()


def _run_on_worker() -> Callable[..., tuple[str, Any]]:
    """Make the function that workers run, sent by value because workers cannot import our modules.

    It returns an error of the worker, or "", and the task's result.
    """

    def run(root: str, expected_code: str, paths: list[str], task: bytes | None) -> tuple[str, Any]:
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
            from analyzer.base.parallel import cluster

            if cluster.code() != expected_code:
                return f"{worker} runs another version of this program; restart it", None
            if task is None:
                return "", None
            work, part = pickle.loads(task)
        except (ImportError, AttributeError) as error:
            return f"{worker} cannot run this program ({error}); install requirements.txt there", None
        return "", work(part, int)

    return run


def _quiet_library() -> Any:
    """Import `distributed` without its log."""
    names = ("distributed", "tornado", "asyncio")
    for name in names:
        os.environ.setdefault(f"DASK_LOGGING__{name.upper()}", "critical")
    distributed = optional("distributed", "distributed", "--cluster")
    for logger in (logging.getLogger(name) for name in (*names, "distributed.client", "asyncio.events")):
        logger.handlers = []
        logger.propagate = True
    return distributed


async def _shake_hands(address: str, security: Any) -> None:
    """Connect once; `Client` waits forever for a program that accepts and sends nothing."""
    from distributed.comm import connect

    secrets = security.get_connection_args("client")
    comm = await asyncio.wait_for(connect(address, _CONNECT_SECONDS, **secrets), _CONNECT_SECONDS)
    await comm.close()


def _address_in_file(path: Path) -> str:
    try:
        with opened(path) as file:
            return str(json.loads(file.read(_LARGEST_FILE))["address"])
    except OSError as error:
        raise AnalyzeError(f"--cluster {path}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise AnalyzeError(f"--cluster {path}: not a scheduler's file: it names no address") from error
