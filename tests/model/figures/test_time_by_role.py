"""Every instant of a step counts once, for the operations of the first role; figures by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import make
from analyzer.model.figures.time_by_role import Breakdown, breakdown, time_by_operation
from analyzer.reading import dialects
from analyzer.reading.dialects import Role
from analyzer.reading.dialects.steps import Step
from analyzer.reading.formats.columns import Trace, Track
from make import span, write
from trace_utils import read_trace

Slice = tuple[int, int, int]  # track, start, end


def trace_of(slices: Sequence[Slice], names: Sequence[str] = ()) -> Trace:
    """A trace whose slices have these names, or all the same."""
    named = zip(names or ["x"] * len(slices), slices, strict=True)
    rows = [(name, Track(0, track), start, end - start) for name, (track, start, end) in named]
    return make.trace_of(rows, "chrome")


def shares(slices: Sequence[Slice], roles: Sequence[Role], *steps: tuple[int, int]) -> list[list[float]]:
    found = time_by_operation(
        trace_of(slices),
        np.array(roles, np.int8),
        [Step(i, *bounds) for i, bounds in enumerate(steps)],
        np.arange(len(slices)),
        len(slices),
    )
    rows: list[list[float]] = found.tolist()
    return rows


def test_the_innermost_slice_of_a_track_counts() -> None:
    # 0 .. 100, within it 20 .. 50, within that 30 .. 35
    found = shares([(0, 0, 100), (0, 20, 50), (0, 30, 35)], [Role.COMPUTE] * 3, (0, 100))
    assert found == [[70, 25, 5, 0]]


def test_communication_counts_only_where_nothing_computes() -> None:
    assert shares([(0, 0, 60), (1, 40, 90)], [Role.COMPUTE, Role.COMM], (0, 100)) == [[60, 30, 10]]


def test_operations_of_one_role_share_an_instant() -> None:
    assert shares([(0, 0, 60), (1, 40, 100)], [Role.COMM] * 2, (0, 100)) == [[50, 50, 0]]


def test_the_parts_of_a_communication_come_before_the_whole_and_the_update_after_it() -> None:
    # computes 0-20; a whole communication 10-80 whose parts are 30-40 and 60-80; the update 15-100
    slices = [(0, 0, 20), (1, 10, 80), (2, 30, 40), (2, 60, 80), (3, 15, 100)]
    roles = [Role.COMPUTE, Role.WHOLE_COMM, Role.COMM, Role.COMM, Role.UPDATE]
    assert shares(slices, roles, (0, 100)) == [[20, 30, 10, 20, 20, 0]]


def test_copies_hide_no_communication_and_come_before_the_hosts_preparing() -> None:
    slices = [(0, 0, 50), (1, 20, 70), (2, 0, 90)]
    assert shares(slices, [Role.COMM, Role.COPY, Role.HOST], (0, 100)) == [[50, 20, 20, 10]]


def test_a_communication_inside_a_computation_interrupts_it_and_a_frame_is_part_of_it() -> None:
    # of the communication beside it 40-50 is exposed, which it shares, and 60-70 is not
    slices = [(0, 0, 100), (0, 20, 50), (0, 60, 70), (1, 40, 80)]
    assert shares(slices, [Role.COMPUTE, Role.COMM, Role.FRAME, Role.COMM], (0, 100)) == [[60, 25, 10, 5, 0]]


def test_a_communication_longer_than_its_call_does_not_interrupt_it() -> None:
    assert shares([(0, 0, 10), (0, 8, 40)], [Role.COMPUTE, Role.COMM], (0, 50)) == [[10, 30, 10]]


def test_steps_that_overlap_have_each_an_account_of_their_own() -> None:
    assert shares([(0, 0, 100), (1, 0, 100)], [Role.COMM] * 2, (0, 60), (40, 100)) == [[30, 30, 0]] * 2


def test_frames_come_last_and_ignored_spans_never() -> None:
    slices = [(0, 0, 50), (1, 0, 70), (2, 0, 80), (3, 0, 100)]
    assert shares(slices, [Role.COMM, Role.HOST, Role.FRAME, Role.IGNORED], (0, 100)) == [[50, 20, 10, 0, 20]]


def test_a_slice_over_a_boundary_belongs_to_both_steps() -> None:
    assert shares([(0, 80, 130)], [Role.COMPUTE], (0, 100), (100, 200)) == [[20, 80], [30, 70]]


def test_time_between_steps_belongs_to_no_step() -> None:
    assert shares([(0, 0, 300)], [Role.COMPUTE], (0, 100), (200, 250)) == [[100, 0], [50, 0]]


slices = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 200), st.integers(0, 90)).map(
        lambda s: (s[0], s[1], s[1] + s[2])
    ),
    max_size=25,
)


@given(slices, st.data())
def test_the_parts_add_up_to_each_step(drawn: list[Slice], data: st.DataObject) -> None:
    roles = [data.draw(st.sampled_from(list(Role))) for _ in drawn]
    found = shares(drawn, roles, (10, 90), (90, 150), (170, 200))
    np.testing.assert_allclose(np.sum(found, axis=1), [80, 60, 30], atol=1e-9)
    assert np.min(found) >= 0


@given(slices, st.data())
def test_a_breakdown_is_what_its_definition_says_instant_by_instant(
    drawn: list[Slice], data: st.DataObject
) -> None:
    # one slice on a track each, so that nothing interrupts
    alone = [(i, start, end) for i, (_, start, end) in enumerate(drawn)]
    roles = [data.draw(st.sampled_from(list(Role))) for _ in drawn]
    if not alone:
        return
    parts = breakdown(trace_of(alone), np.array(roles, np.int8), [Step(1, 10, 90), Step(2, 90, 150)])
    for i, (first, last) in enumerate(((10, 90), (90, 150))):
        computes = comm = both = idle = 0
        for at in range(first, last):
            running = {role for (_, start, end), role in zip(alone, roles, strict=True) if start <= at < end}
            is_comm = bool(running & {Role.COMM, Role.WHOLE_COMM})
            is_compute = Role.COMPUTE in running or (Role.UPDATE in running and not is_comm)
            computes, comm, both = computes + is_compute, comm + is_comm, both + (is_comm and is_compute)
            idle += not (is_comm or is_compute or Role.COPY in running)
        columns = parts.compute_ns, parts.comm_ns, parts.overlap_ns, parts.idle_ns, parts.exposed_comm_ns
        assert [column[i] for column in columns] == [computes, comm, both, idle, comm - both]


@given(slices, st.data())
def test_the_time_of_communications_is_their_exposed_time(drawn: list[Slice], data: st.DataObject) -> None:
    roles = np.array([data.draw(st.sampled_from(list(Role))) for _ in drawn], np.int8)
    steps = [(10, 90), (90, 150), (140, 200)]
    if not drawn:
        return
    taken = np.array(shares(drawn, roles.tolist(), *steps))[:, :-1]
    parts = breakdown(trace_of(drawn), roles, [Step(i, *bounds) for i, bounds in enumerate(steps)])
    exposed = taken[:, dialects.is_communication(roles)].sum(axis=1)
    np.testing.assert_allclose(exposed, parts.exposed_comm_ns, atol=1e-9)


def test_a_waiting_background_thread_has_no_time() -> None:
    # track 0 is the main thread: it calls most, and its own wait counts; track 1 waits within its loop
    slices = [(0, 0, 40), (0, 40, 50), (0, 50, 60), (0, 60, 90), (1, 0, 100), (1, 5, 95)]
    names = ["forward", "backward", "step", "queue.get", "threading.py(9): run", "threading.py(2): wait"]
    trace = trace_of(slices, names)
    roles = dialects.of(trace).roles(trace)
    found = time_by_operation(trace, roles, [Step(1, 0, 100)], np.arange(6), 6)
    # 0 .. 5 and 95 .. 100 the loop itself runs, beside "forward" and alone
    assert found.tolist() == [[37.5, 10, 10, 30, 7.5, 0, 5]]
    assert breakdown(trace, roles, [Step(1, 0, 100)]).idle_ns.tolist() == [5]


def steps_of(trace: Trace) -> Breakdown:
    system = dialects.of(trace)
    return breakdown(trace, system.roles(trace), system.find_steps(trace).whole)


def test_an_operator_that_only_waits_for_a_collective_does_not_hide_it(tmp_path: Path) -> None:
    # forward computes 0-10 and 40-50 and waits in between for a reduction of 5-38, 5-10 of which it hides
    events = [
        span("forward", 0, 50, "cpu_op"),
        span("_c10d_functional::wait_tensor", 10, 30, "cpu_op"),
        span("gloo:all_reduce", 5, 33, "user_annotation", tid=1),
    ]
    step = steps_of(read_trace(write(tmp_path / "t.json", events)))
    times = (step.compute_ns, step.comm_ns, step.overlap_ns, step.idle_ns)
    assert [int(ns[0]) for ns in times] == [20_000, 33_000, 5_000, 2_000]


def test_recorded_synchronous_allreduces_are_not_hidden(shared_data: Path) -> None:
    trace = read_trace(shared_data / "generic" / "viztracer" / "viz.json.gz")
    steps = steps_of(trace)
    calls = [i for i, name in enumerate(trace.names) if name.startswith("allreduce ")]
    alone = trace.dur_ns[trace.name_id == calls[0]].sum()  # one after the other
    assert steps.exposed_comm_ns.sum() == alone == pytest.approx(16.358e6, abs=1e3)
    assert not steps.overlap_ns.any()
