"""A recording cut into steps: what leads from one into the next."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.base.errors import TraceError
from analyzer.reading.dialects.edge_rules import Rule
from analyzer.reading.dialects.step_parts import Joint, Operation
from analyzer.reading.dialects.step_windows import (
    RecordedEvents,
    check_sizes,
    cut_into_steps,
    sampled,
    still_open,
)
from analyzer.reading.formats.columns import Track


def test_work_requested_in_an_earlier_step_has_edges_across() -> None:
    # host: two launches in the first step, one operation in the second; two kernels, one in each step
    spans = np.array([(0, 2), (1, 9), (3, 5), (11, 19), (10, 20)], np.int64)
    events = RecordedEvents(
        kinds=[Operation("host", "", Track(0, 0)), Operation("kernel", "", Track(1, 0), on_device=True)],
        kind=np.array([0, 1, 0, 1, 0]),
        start_ns=spans[:, 0],
        end_ns=spans[:, 1],
        issued_ns=np.array([0, 0, 3, 3, 10]),
        leads=np.array([True, False, True, False, True]),
        edges=np.array(
            [
                (0, 1, Joint.START_TO_HEAD, Rule.LAUNCH),
                (2, 3, Joint.START_TO_HEAD, Rule.LAUNCH),
                (1, 3, Joint.END_TO_HEAD, Rule.THREAD),
            ]
        ),
    )
    operations, (first, second) = cut_into_steps(events, [(1, 0, 10), (2, 10, 20)])
    assert first.edges[:, :2].tolist() == [[0, 1]] and len(first.across) == 0
    assert [operations[i].label for i in second.operation] == ["host", "kernel of an earlier step"]
    assert second.across.tolist() == [[2, 1, Joint.START_TO_HEAD, 1], [1, 1, Joint.END_TO_HEAD, 1]]
    assert len(second.edges) == 0


def test_events_that_run_on_through_thousands_of_steps_are_refused() -> None:
    start = np.arange(2100) * 10
    bounds = [(i, 10 * i, 10 * i + 10) for i in range(2100)]
    check_sizes("t.json", start, start + 5, bounds)
    # event i is in its own step and in those after it: 2,100 + 2,099 + ... + 1 times
    with pytest.raises(TraceError, match=r"t\.json: its 2,100 events run on .* \(2,206,050 times together\)"):
        check_sizes("t.json", start, np.full(2100, 30_000), bounds)


def test_a_long_recording_is_sampled_in_runs_of_steps() -> None:
    steps = np.array([(i, 10 * i, 10 * i + 10) for i in range(100)])
    kept, (note,) = sampled(steps, 40)  # 100 are three times 40: one run of sixteen in four
    assert kept.tolist() == [*range(16), *range(64, 80)]
    few = "32 of 100 steps are looked at, 16 in a row all over the recording; of the others "
    assert note == few + "none took much longer than usual"
    steps[[3, 40, 41], 2] = 90, 425, 430
    assert sampled(steps, 40)[1] == [few + "2 took much longer than usual, step 40 2.5 times as long as most"]
    for most in (100, None):
        kept, notes = sampled(steps, most)
        assert (kept.tolist(), notes) == (list(range(100)), [])


@given(st.integers(1, 4000), st.integers(0, 300), st.integers(100, 500))
def test_ranks_with_fewer_steps_sample_the_same_ones(n: int, fewer: int, most: int) -> None:
    steps = np.array([(i, i, i + 1) for i in range(n)])
    whole, part = ({*own[sampled(own, most)[0], 0].tolist()} for own in (steps, steps[fewer:]))
    assert {label for label in whole if label >= fewer} <= part
    assert len(whole) <= most + 16


def test_what_is_open_at_the_begin_of_a_window_does_not_depend_on_the_order_of_windows() -> None:
    items, end_ns = np.array([0, 1]), np.array([5, 30])  # the second starts within the later window alone
    assert [run.tolist() for run in still_open(items, end_ns, begins=[20, 0], lows=[2, 1])] == [[1], [0]]
    assert [run.tolist() for run in still_open(items, end_ns, begins=[0, 20], lows=[1, 2])] == [[0], [1]]
