"""Computation that takes longer while transfers are on their way."""

from __future__ import annotations

import numpy as np
import pytest
from jobs import _PUSH, foreseen, job, rank

from dag.step_graph import Recording
from replay.whatif.shared_cores import shared_cores


def two_ranks(meets: float) -> Recording:
    """FW of both ranks takes 10 ms, `meets` times as long on rank 1, whose push is on its way meanwhile."""
    steps: list[list[tuple[dict[str, tuple[float, float]], tuple[float, float]]]] = [[], []]
    for at in (100.0 * i for i in range(5)):
        for number, of_rank in enumerate(steps):
            forward = at + 10 * (meets if number else 1)
            times = {"FW.a": (at, forward), "BW.a": (at + 40, at + 60)}
            times["Comm.a.PUSH"] = (at, forward) if number else (at + 70, at + 80)
            of_rank.append((times, (at, at + 100)))
    kinds = {"Comm.a.PUSH": {**_PUSH, "n_bytes": 1_000_000}}
    inputs = {"BW.a": ["FW.a"]}
    return job(*(rank(f"rank{i}", of_rank, inputs, kinds=kinds) for i, of_rank in enumerate(steps)))


@pytest.mark.parametrize("meets", [1.5, 2.0])
def test_an_operation_is_compared_with_itself_on_a_rank_that_meets_no_transfer(meets: float) -> None:
    found = shared_cores(two_ranks(meets))
    assert found is not None
    # BW, as long on both, says that rank 1 is no slower
    assert found.factor == pytest.approx(meets, rel=0.01)
    assert sorted(found.share.round(2)) == [0, 0, 0, 0, 0, 1]
    meeting = found.share == 1
    assert found.at(0)[meeting] == pytest.approx(1 / meets, rel=0.01)
    assert np.all(found.at(2) == 1), "what meets transfers all the time cannot meet more of them"


def test_computation_as_long_on_both_says_nothing() -> None:
    assert shared_cores(two_ranks(1.05)) is None


def test_the_interval_of_a_faster_network_holds_computation_that_meets_no_transfer() -> None:
    intervals = [foreseen(two_ranks(meets), "bandwidth=4").interval_ns for meets in (1.0, 2.0)]
    widths = [high / low for low, high in filter(None, intervals)]
    assert widths[1] > widths[0]
