"""Attempts at tasks: whom a task is given to when its worker is silent or slow. Nothing here is a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

import pytest

from parallel import attempts
from parallel.attempts import Attempts, WorkerState

FIRST, SAME_HOST, OTHER = "tcp://a:1", "tcp://a:2", "tcp://b:1"


class Workers:
    """Workers of whom the first never ends a task; those that only others may do are done at once."""

    def __init__(self, silent_s: float, *others: str) -> None:
        self.silent_s, self.others = silent_s, others
        self.keys: list[str] = []
        self.given: list[Sequence[str]] = []

    def begin(self, i: int, key: str, workers: Sequence[str] | None) -> Future[int]:
        future = Future[int]()
        if workers is None:
            self.keys.append(key)
        else:
            self.given.append(workers)
            future.set_result(i)
        return future

    def look(self, keys: Sequence[str]) -> dict[str, WorkerState]:
        others = {other: WorkerState(0, True, ()) for other in self.others}
        return {FIRST: WorkerState(self.silent_s, False, self.keys), **others}


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(attempts, "SAID_SECONDS", 0.05)


def test_the_tasks_of_a_silent_worker_are_given_to_all_others() -> None:
    workers = Workers(31, SAME_HOST, OTHER)
    done = Attempts(workers.begin, workers.look, "x").outcomes(2, 2)
    assert sorted(done) == [(0, 0), (1, 1)]
    assert workers.given == 2 * [[SAME_HOST, OTHER]]


def test_a_slow_workers_last_tasks_are_tried_by_idle_workers_of_other_hosts() -> None:
    workers = Workers(0.1, SAME_HOST, OTHER)
    done = Attempts(workers.begin, workers.look, "x").outcomes(2, 2)
    assert sorted(done) == [(0, 0), (1, 1)]
    assert workers.given == 2 * [[OTHER]]  # one after the other, as it is idle


def test_a_slow_worker_is_waited_for_where_no_other_host_is_idle() -> None:
    workers = Workers(0.1, SAME_HOST)
    looks = iter(range(20))

    def look(keys: Sequence[str]) -> dict[str, WorkerState]:
        if next(looks, None) is None:
            raise TimeoutError
        return workers.look(keys)

    with pytest.raises(TimeoutError):
        list(Attempts(workers.begin, look, "x").outcomes(1, 1))
    assert workers.given == []


def test_an_attempt_that_the_cluster_took_back_is_made_again() -> None:
    made: list[Future[int]] = []

    def begin(i: int, key: str, workers: Sequence[str] | None) -> Future[int]:
        future = Future[int]()
        made.append(future)
        if len(made) == 1:
            future.cancel()
        else:
            future.set_result(7)
        return future

    assert list(Attempts(begin, lambda keys: {}, "x").outcomes(1, 1)) == [(0, 7)]
