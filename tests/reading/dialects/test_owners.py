"""Whose slices are in a file: each rank's, and the host's that its ranks share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from analyzer.reading import dialects
from analyzer.reading.dialects.owners import SHARED, processes_like_ranks, split_by_field, split_by_slices
from analyzer.reading.formats.columns import ArgColumn, Trace, Track, concatenate
from conftest import run_cli
from make import trace_of

SLICES = (("launch", 0), ("add", 1), ("mul", 2), ("launch", 0), ("add", 2))  # name, thread


def trace() -> Trace:
    """A host's thread 0, which launches, and the devices 1 and 2; a slice each 10 ns."""
    return trace_of([(name, Track(1, tid), 10 * i, 5) for i, (name, tid) in enumerate(SLICES)], "chrome")


def slices(trace: Trace) -> list[tuple[str, int]]:
    return [(trace.names[i], at) for i, at in zip(trace.name_id.tolist(), trace.ts_ns.tolist(), strict=True)]


def test_the_slices_of_a_host_are_in_the_trace_of_each_rank_and_once_alone() -> None:
    first, second, host = split_by_slices(trace(), np.array([SHARED, 0, 1, SHARED, 1]), [4, 5])
    assert (first.rank, second.rank, host.rank) == (4, 5, None)
    assert (first.is_host, host.is_host) == (False, True)
    assert slices(first.trace) == [("launch", 0), ("add", 10), ("launch", 30)]
    assert slices(second.trace) == [("launch", 0), ("mul", 20), ("launch", 30), ("add", 40)]
    assert slices(host.trace) == [("launch", 0), ("launch", 30)]


def test_shared_slices_stay_shared_in_parts_and_joined_files() -> None:
    first, *_ = split_by_slices(trace(), np.array([SHARED, 0, 1, SHARED, 1]), [4, 5])
    late = first.trace.select(np.array([1, 2]))
    assert slices(concatenate([late, trace()]).own) == [("add", 10), *slices(trace())]


def test_a_field_of_the_events_tells_their_ranks() -> None:
    by_thread = split_by_field(trace(), "tid")
    assert [(part.rank, len(part.trace)) for part in by_thread] == [(0, 2), (1, 1), (2, 2)]
    assert [(part.rank, len(part.trace)) for part in split_by_field(trace(), "pid")] == [(1, 5)]


def test_slices_without_the_rank_argument_are_shared() -> None:
    told = replace(trace(), args={"device": ArgColumn(np.array([1, 2, 4]), ["8", "12", "12"])})
    first, second, host = split_by_field(told, "args.device")
    assert (first.rank, second.rank, host.is_host) == (8, 12, True)
    assert slices(second.trace.own) == [("mul", 20), ("add", 40)]
    assert slices(host.trace) == [("launch", 0), ("launch", 30)]


@pytest.mark.parametrize(("pids", "ranks"), [((3, 0), [0, 3]), ((70_001, 70_002), [None])])
def test_processes_with_small_numbers_are_ranks_where_every_slice_says_its_step(
    pids: tuple[int, int], ranks: list[int | None]
) -> None:
    step = ArgColumn(np.arange(5), [1, 1, 1, 2, 2])
    told = replace(trace(), tracks=[Track(pids[0], 0), Track(pids[1], 0), Track(pids[1], 1)])
    assert [part.rank for part in dialects.of(told).split(replace(told, args={"step": step}))] == ranks
    some = replace(told, args={"step": step.select(np.arange(4))})
    assert [part.rank for part in dialects.of(told).split(some)] == [None]


def test_processes_with_the_same_work_look_like_ranks() -> None:
    work = [("load", 0, 10), ("train", 10, 80), ("load", 100, 10), ("train", 110, 80)]
    same = [(name, Track(pid, 1), ts, dur) for pid in ("a", "b") for name, ts, dur in work]
    assert processes_like_ranks(trace_of(same, "chrome")) == 2
    other = [(f"{name} {pid}", track, ts, dur) for pid, (name, track, ts, dur) in enumerate(same)]
    assert processes_like_ranks(trace_of(other, "chrome")) == 0
    later = [(name, track, ts + 200 * (track.pid == "b"), dur) for name, track, ts, dur in same]
    assert processes_like_ranks(trace_of(later, "chrome")) == 0


def test_a_recording_of_two_workers_asks_for_their_ranks(shared_data: Path) -> None:
    path = shared_data / "cases" / "pids-are-ranks" / "ray.json"
    assert "2 processes look like ranks: add --rank_by pid" in run_cli("--path", path)[1]
    assert "look like ranks" not in run_cli("--path", path, "--rank_by", "pid")[1]
