"""Numbers of steps in as few bits as hold them; what is joined from them is the same."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from arrays.numbering import narrowest
from dag.join_ranks import join
from dialects.step_parts import Edge, Operation, RankStep, RankSteps
from formats.columns import Track

BEGIN_NS = 1_790_857_026_000_000_000
SECOND_NS = 1_000_000_000


@pytest.mark.parametrize(
    ("value", "bits"),
    [(0, 16), (2**15 - 1, 16), (2**15, 32), (-(2**15) - 1, 32), (2**31 - 1, 32), (2**31, 64), (-(2**40), 64)],
)
def test_a_number_has_the_bits_it_needs(value: int, bits: int) -> None:
    narrowed = narrowest(np.array([1, value]))
    assert (narrowed.dtype.itemsize * 8, narrowed.tolist()) == (bits, [1, value])


def test_no_number_needs_few_bits() -> None:
    assert narrowest(np.empty(0, np.int64)).dtype == np.int16


@pytest.mark.parametrize("long_ns", [9_000, SECOND_NS, 5 * SECOND_NS])
def test_a_compact_step_that_is_moved_keeps_its_times(long_ns: int) -> None:
    # two operations in a row: 3 µs after the step's begin, and from the first one's end on
    times = BEGIN_NS + np.array([(3_000, long_ns), (long_ns, long_ns + 7)])
    step = RankStep.of(1, (BEGIN_NS, BEGIN_NS + 2 * long_ns), np.array([0, 1]), times, [Edge(0, 1)])
    operations = [Operation(name, "op", Track(1, 1)) for name in "ab"]
    moved = RankSteps("rank0", operations, [step]).compact().later(-SECOND_NS)
    bits = moved.steps[0].start_ns.dtype.itemsize * 8
    assert bits == (16 if long_ns == 9_000 else 32 if long_ns == SECOND_NS else 64)
    begin = BEGIN_NS - SECOND_NS
    joined = join([replace(moved, rank=0)]).steps[0]
    assert joined.begin_ns.tolist() == [begin]
    assert joined.start_ns.tolist() == [begin + 3_000, begin + long_ns]
    assert joined.end_ns.tolist() == [begin + long_ns, begin + long_ns + 7]
    assert joined.work_ns.tolist() == [long_ns - 3_000, 7]
    assert joined.gap_ns.tolist() == [3_000, 0]
    assert joined.iteration_ns.tolist() == [2 * long_ns]
