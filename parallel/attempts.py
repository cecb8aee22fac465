"""Tasks on a cluster: each is given to a worker, and to another where that one is silent or slow."""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple
from uuid import uuid4

SAID_SECONDS = 10.0  # after so long without a word a line says for whom we wait
SILENT_SECONDS = 30.0  # who has said nothing for so long has stopped, or cannot be reached
_LOOK_SECONDS = 2.0  # between looks at how the workers stand


class WorkerState(NamedTuple):
    """How a worker stands, as its scheduler knows it: `tasks` are those asked for that it has, or did."""

    silent_s: float  # since its last word
    is_idle: bool
    tasks: Sequence[str]


#: Begins an attempt at a task: the task's number, the attempt's key, the workers that may do it (None: all).
Begin = Callable[[int, str, Sequence[str] | None], Future[Any]]
#: Tells by address how each worker stands, with those of some keys that it has; raises where nobody is left.
Look = Callable[[Sequence[str]], Mapping[str, WorkerState]]


class Attempts:
    """The attempts at each of some tasks: one, or several of which the first answer counts.

    All tasks of a silent worker are given to others. Where nothing is done for as long as all that was done
    before took, idle workers of other hosts try what is left as well.
    """

    def __init__(self, begin: Begin, look: Look, name: str) -> None:
        self._begin = begin
        self._look = look
        self._name = name
        self._open: dict[int, dict[str, Future[Any]]] = {}  # the attempts by key, for tasks that are not done
        self._done: queue.SimpleQueue[tuple[int, str, Future[Any]]] = queue.SimpleQueue()
        self._said: set[str] = set()  # silent workers of which a line tells

    def outcomes(self, n: int, at_once: int) -> Iterator[tuple[int, Any]]:
        """Yield the number and the result of each of `n` tasks, as they come; so many are open at once."""
        began = heard = time.monotonic()
        n_begun = 0
        while n_begun < n or self._open:
            while n_begun < n and len(self._open) < at_once:
                self._attempt(n_begun)
                n_begun += 1
            try:
                i, key, attempt = self._done.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                is_slow = time.monotonic() - heard > max(SAID_SECONDS, heard - began)
                self._give_again(n_begun == n and is_slow)
                continue
            if i not in self._open:  # done by another attempt
                continue
            if attempt.cancelled():  # the cluster took it back: what a worker made cannot be fetched from it
                del self._open[i][key]
                if not self._open[i]:
                    self._attempt(i)
            elif attempt.exception() is not None and len(self._open[i]) > 1:
                del self._open[i][key]  # another one may succeed
            else:
                for other in self._open.pop(i).values():
                    other.cancel()
                heard = time.monotonic()
                yield i, attempt.result()

    def _attempt(self, i: int, workers: Sequence[str] | None = None) -> None:
        key = f"analyze-{uuid4().hex}"
        attempt = self._begin(i, key, workers)
        self._open.setdefault(i, {})[key] = attempt
        attempt.add_done_callback(lambda done: self._done.put((i, key, done)))

    def _give_again(self, is_slow: bool) -> None:
        states = self._look([key for attempts in self._open.values() for key in attempts])
        for address, state in states.items():
            if state.tasks and state.silent_s > SAID_SECONDS and address not in self._said:
                self._said.add(address)
                logging.warning("--cluster %s: %s", self._name, silence(f"the worker {address}"))
        heard = [address for address, one in states.items() if one.silent_s < SILENT_SECONDS]
        holder = {key: address for address, state in states.items() for key in state.tasks}
        idle = [address for address in heard if is_slow and states[address].is_idle]
        for i, attempts in self._open.items():
            holders = {holder.get(key) for key in attempts}
            if None in holders:  # another attempt is still to begin
                continue
            if holders.isdisjoint(heard):
                self._attempt(i, heard)
            elif other := next((one for one in idle if _host(one) not in map(_host, holders)), None):
                idle.remove(other)
                self._attempt(i, [other])


def silence(whom: str, seconds: float = SAID_SECONDS) -> str:
    """Return the words about somebody who does not answer."""
    return f"no word from {whom} for {seconds:.0f} s"


def _host(address: str | None) -> str:
    return (address or "").rpartition(":")[0]
