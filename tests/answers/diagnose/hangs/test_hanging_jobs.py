"""Why simulated jobs of a few calls hang, in which messages are launched in batches and groups are alike."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from test_hangs import named, standings

from analyzer.answers.diagnose.hangs.find_hang import Hang, find_hang
from analyzer.reading.formats.recorder.standing import Standing
from oracles.hanging_jobs import START_NS, Do, Job, Simulation
from oracles.hangs import write_case

_HOUR_NS = 3600 * 10**9
_PAIRS = {"1": ("TENSOR", (0, 1)), "2": ("TENSOR", (2, 3)), "3": ("TENSOR", (4, 5))}


def call(group: str, size: int = 8, taken: int | None = None, kind: str = "all_reduce") -> Do:
    return Do("call", group=group, kind=kind, given=(size,), taken=(size if taken is None else taken,))


def hang_of(folder: Path, job: Job, stops: Mapping[int, int] | None = None) -> Hang:
    run = Simulation(job, random.Random(1), stops)
    run.write(folder, lambda _: run.last_ns + _HOUR_NS)
    return find_hang(standings(folder))


def in_pairs(program: Sequence[Do], odd: Sequence[Do]) -> Job:
    """Return a job of six ranks, in groups of two, of which rank 3 has a program of its own."""
    name = {rank: group for group, (_, own) in _PAIRS.items() for rank in own}
    programs = {
        rank: [do._replace(group=do.group or name[rank]) for do in (odd if rank == 3 else program)]
        for rank in range(6)
    }
    return Job({"0": ("default_pg", tuple(range(6))), **_PAIRS}, programs)


@pytest.mark.parametrize("size", [7, 9])
def test_similar_groups_decide_which_of_two_calls_is_wrong(tmp_path: Path, size: int) -> None:
    job = in_pairs([call("", 4), call("")], [call("", 4), call("", size)])
    hang = hang_of(tmp_path, job)
    assert named(hang) == {"MISMATCH": [3]}
    assert hang.roots[0].differ == {
        "all_reduce, BFloat16, 8->8 elements": [2],
        f"all_reduce, BFloat16, {size}->{size} elements": [3],
    }


def test_a_rank_that_skips_a_call_differs_later(tmp_path: Path) -> None:
    """The second call of rank 2 meets the third one of rank 3, which is alike; their third calls are not."""
    job = in_pairs([call(""), call(""), call("", 5)], [call(""), call("", 5)])
    assert named(hang_of(tmp_path, job)) == {"MISMATCH": [3]}


def test_an_all_to_all_with_unequal_sums_is_a_mismatch(tmp_path: Path) -> None:
    """Each gives 8; ranks 2 and 3 take 10 and 6, but rank 3 gives 9."""
    sizes = {0: (8, 5), 1: (8, 11), 2: (8, 10), 3: (9, 6), 4: (8, 8), 5: (8, 8)}
    job = in_pairs([], [])
    for rank, (given, taken) in sizes.items():
        job.programs[rank].append(call(str(rank // 2 + 1), given, taken, "all_to_all"))
    hang = hang_of(tmp_path, job)
    assert named(hang) == {"MISMATCH": [3]}
    assert hang.roots[0].differ == {
        "gives 8 and takes 10 elements": [2],
        "gives 9 and takes 6 elements": [3],
    }


def ring(n: int) -> Job:
    """Return a job in which each rank sends to the next one and receives from the one before, as one."""
    programs = {
        rank: [
            Do("batch", group="1", messages=(("send", (rank + 1) % n, (8,)), ("recv", (rank - 1) % n, (8,))))
        ]
        * 5
        for rank in range(n)
    }
    return Job({"0": ("default_pg", tuple(range(n))), "1": ("CONTEXT", tuple(range(n)))}, programs)


def test_the_absent_rank_of_a_ring_is_named(tmp_path: Path) -> None:
    """The batches of ranks 0, 1 and 3 are open, though what rank 4 answers of them may be done."""
    hang = hang_of(tmp_path, ring(5), {2: 3})
    assert named(hang) == {"ABSENT": [2]}
    assert hang.roots[0].call.peer == 2
    assert {rank: list(wait.on) for rank, wait in hang.waits.items() if 2 in wait.on} == {1: [2], 3: [2]}


def test_a_ring_with_all_batches_called_may_run(tmp_path: Path) -> None:
    run = Simulation(ring(4), random.Random(1))
    moments = sorted(call.end_ns for call in run.calls[0])
    run.write(tmp_path, lambda _: moments[0] - 1)  # all have called, and nothing is complete
    hang = find_hang(standings(tmp_path))
    assert (named(hang), "may still be running" in hang.reason) == ({}, True)


def test_a_ring_with_some_batches_complete_may_be_slow(tmp_path: Path) -> None:
    """Ranks 0 and 3 are through with the last batch, ranks 1 and 2 not yet: these seem to wait for those."""
    write_case("lives, at one moment", random.Random("lives, at one moment/64028"), tmp_path)
    hang = find_hang(standings(tmp_path))
    assert (named(hang), hang.doubt != "") == ({"CYCLE": [0, 1, 2, 3]}, True)


@pytest.mark.parametrize(("later_ns", "is_hang"), [(10**7, False), (10**9, True)])
def test_calls_completed_just_before_the_dump_show_progress(
    tmp_path: Path, later_ns: int, is_hang: bool
) -> None:
    """A watchdog that looks each 0.1 s has retired the first calls, but not yet those of the last moments."""
    program = [call("0"), Do("pause", 3 * 10**8), call("0"), call("0")]
    run = Simulation(
        Job({"0": ("default_pg", (0, 1, 2))}, dict.fromkeys(range(3), program)), random.Random(1), {1: 3}
    )
    assert run.calls[0][1].end_ns > START_NS + 3 * 10**8
    run.write(tmp_path, lambda _: run.calls[0][1].end_ns + later_ns, keeps_times=False)
    hang = find_hang(standings(tmp_path))
    assert bool(named(hang)) == is_hang
    assert ("completed just before the dumps were written" in hang.reason) != is_hang


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    ["a rank stops", "a rank is a step behind", "another size", "another kind", "two calls exchanged",
     "a call left out", "two groups in two orders"],
)  # fmt: skip
def test_faults_of_simulated_jobs_are_named(tmp_path: Path, fault: str) -> None:
    for seed in range(2):
        case = write_case(fault, random.Random(f"test {fault} {seed}"), tmp_path / str(seed))
        found: dict[int, Standing] = standings(tmp_path / str(seed))
        ranks = {rank for root in find_hang(found).roots for rank in root.ranks}
        assert case.guilty <= ranks <= case.allowed, (fault, seed)
