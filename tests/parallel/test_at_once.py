"""`parallel.at_once`: the same results in threads as one after the other, in their order."""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import partial
from pathlib import Path

import pytest

import parallel
from conftest import REPO, is_alive
from errors import AnalyzeError
from figures.durations import statistics
from figures.rank_figures import Wanted, rank_figures
from parallel import at_once, process_pool, run_program, spare_cores
from trace_utils import load_paths


def test_where_cores_are_spare_works_run_side_by_side_and_come_in_order() -> None:
    both_there = threading.Barrier(2, timeout=20)  # breaks unless both wait at it at once

    def work(number: int) -> int:
        both_there.wait()
        return number

    with spare_cores(2):
        assert at_once([partial(work, 1), partial(work, 2)]) == [1, 2]


def test_without_spare_cores_they_run_in_this_thread() -> None:
    assert at_once([threading.get_ident] * 3) == [threading.get_ident()] * 3


@pytest.mark.parametrize("cores", [1, 2])
def test_an_error_is_that_of_the_work(cores: int) -> None:
    with spare_cores(cores), pytest.raises(ZeroDivisionError):
        at_once([int, partial(divmod, 1, 0)])


def test_the_figures_of_a_rank_are_the_same_in_threads() -> None:
    job = load_paths([REPO / "examples" / "lenet"])
    source, trace = job.job.sources[0], job.made[0]
    alone = rank_figures(source, trace, Wanted(durations=True))
    with spare_cores(2):
        beside = rank_figures(source, trace, Wanted(durations=True))
    assert list(statistics(beside.durations)) == list(statistics(alone.durations))
    assert (beside.category_ns, beside.breakdown) == (alone.category_ns, alone.breakdown)
    assert (beside.longest, beside.annotated) == (alone.longest, alone.annotated)


def test_what_a_program_started_ends_with_it_when_it_takes_too_long(tmp_path: Path) -> None:
    child = tmp_path / "child"
    script = f"sleep 60 >/dev/null 2>&1 & echo $! > {child}; wait"
    with pytest.raises(RuntimeError, match=r"not done after 0\.5 s"):
        run_program(["sh", "-c", script], 0.5)
    deadline = time.monotonic() + 30
    while is_alive(int(child.read_text())) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_alive(int(child.read_text()))


def test_a_process_that_stays_stopped_ends_the_work_with_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_STILL_SECONDS", 0.3)
    with (
        pytest.raises(AnalyzeError, match=r"^a worker process was stopped for 0\.3 s; try --jobs 1$"),
        process_pool(1) as pool,
    ):
        child = pool.submit(os.getpid).result()
        os.kill(child, signal.SIGSTOP)
        pool.submit(int).result(timeout=20)
    assert not is_alive(child)


def test_a_process_that_goes_on_in_time_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_STILL_SECONDS", 0.5)
    with process_pool(1) as pool:
        child = pool.submit(os.getpid).result()
        for _ in range(2):  # longer than that together
            os.kill(child, signal.SIGSTOP)
            time.sleep(0.3)
            os.kill(child, signal.SIGCONT)
            time.sleep(0.3)
        assert pool.submit(os.getpid).result(timeout=20) == child
