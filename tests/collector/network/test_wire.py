"""Initial pushes, and how long transfers wait for other workers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from collector.network.transfers import TRANSFER
from collector.network.wire import UNKNOWN, initial_pushes, waiting_ns


def array(*values: int) -> NDArray[np.int64]:
    return np.array(values, np.int64)


def test_a_push_before_another_push_of_the_key_is_initial() -> None:
    worker, key = array(0, 0, 0, 0, 1), array(5, 5, 5, 6, 5)
    push = np.array([True, True, False, True, True])
    initial = initial_pushes(worker.astype(np.int32), key, push, array(0, 10, 20, 30, 40))
    assert initial.tolist() == [True, False, False, False, False]


def waits(rows: list[tuple[int, bool, int, int]], n_workers: int | None) -> list[int]:
    """Rows are (worker, is a push, end of the request, start of the response), all of one key."""
    worker, push, sent, answered = (np.array(column) for column in zip(*rows, strict=True))
    wire = np.zeros(len(rows), TRANSFER).view(np.recarray)
    wire.worker, wire.push, wire.request_end_ns, wire.response_start_ns = worker, push, sent, answered
    return [int(ns) for ns in waiting_ns(wire, n_workers)]


def test_a_pull_waits_until_the_last_worker_has_pushed() -> None:
    #  worker 0 pushes at 0 and pulls at 10; worker 1 pushes at 50 and pulls at 60
    rows = [(0, True, 0, 5), (0, False, 10, 70), (1, True, 50, 55), (1, False, 60, 72)]
    assert waits(rows, 2) == [0, 40, 0, 0]


def test_a_push_of_the_next_step_is_not_waited_for() -> None:
    rows = [(0, True, 0, 5), (0, False, 10, 70), (1, True, 50, 55), (1, False, 60, 72), (1, True, 100, 105)]
    assert waits(rows, 2)[1] == 40


def test_where_a_worker_is_not_captured_waiting_is_not_known() -> None:
    rows = [(0, True, 0, 5), (0, False, 10, 70)]
    assert waits(rows, 2) == [0, UNKNOWN]
    assert waits(rows, None) == [0, UNKNOWN]


def test_a_lone_worker_waits_for_nobody() -> None:
    assert waits([(0, True, 0, 5), (0, False, 10, 70)], 1) == [0, 0]
