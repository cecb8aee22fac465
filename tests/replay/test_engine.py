"""The engine against schedules worked out by hand, and its properties on random plans."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzer.base.errors import TraceError
from conftest import examples
from replay.engine import UNLIMITED, Plan, make_plan, simulate


def makespan_ns(plan: Plan) -> int:
    return int(simulate(plan).end_ns.max(initial=0))


@pytest.mark.parametrize(
    ("plan", "starts"),
    [
        pytest.param(make_plan([10, 5, 1], [(0, 1), (1, 2)]), [0, 10, 15], id="a chain"),
        # all on one device; 1 is ready while 2 waits for 0
        pytest.param(make_plan([10, 5, 1], [(0, 2)], device=0), [0, 10, 15], id="a shared device"),
        # 0 and 1 end at 4 and 3; 2 (after 0) and 3 (after 1) want the same link
        pytest.param(
            make_plan([4, 3, 10, 10], [(0, 2), (1, 3)], device=[-1, -1, 0, 0]), [0, 0, 13, 3], id="first come"
        ),
        # 0 holds the link until 5; 1 was ready first, but 2 has the smaller priority number
        pytest.param(
            make_plan([5, 3, 3, 1], [(3, 2)], device=[0, 0, 0, -1], priority=[0, 2, 1, 0]),
            [0, 8, 5, 0],
            id="priority before readiness",
        ),
        pytest.param(
            make_plan([9, 1, 2], [(1, 2)], device=[0, -1, 0], priority=[5, 0, 1]),
            [0, 0, 9],
            id="no interruption",
        ),
        # 1 starts 3 after 0 ended; meanwhile 2 has the device
        pytest.param(
            make_plan([10, 1, 2], [(0, 1), (0, 2)], device=0, gap_ns=[0, 3, 0]), [0, 13, 10], id="a gap"
        ),
    ],
)
def test_operations_start_as_worked_out_by_hand(plan: Plan, starts: list[int]) -> None:
    assert simulate(plan).start_ns.tolist() == starts


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("device", [UNLIMITED, 0])
def test_a_cycle_is_refused_in_one_line(device: int, compiled: bool) -> None:
    with pytest.raises(TraceError, match="2 operations wait for each other"):
        simulate(make_plan([1, 1, 1], [(0, 1), (1, 2), (2, 1)], device=device), compiled=compiled)


@st.composite
def plans(draw: st.DrawFn, contention: bool = True) -> Plan:
    n = draw(st.integers(1, 25))
    numbers = st.integers(0, 50)
    column = st.lists(numbers, min_size=n, max_size=n)
    node = st.integers(0, n - 1)
    pairs = draw(st.lists(st.tuples(node, node), max_size=40))
    edges = [(min(pair), max(pair)) for pair in pairs if pair[0] != pair[1]]
    device = draw(st.lists(st.integers(-1, 3), min_size=n, max_size=n)) if contention else UNLIMITED
    priority = draw(column) if contention else 0
    return make_plan(draw(column), edges, device=device, priority=priority, gap_ns=draw(column))


@pytest.mark.slow
@given(plans())
def test_a_device_runs_one_operation_at_a_time(plan: Plan) -> None:
    schedule = simulate(plan)
    for device in np.unique(plan.device[plan.device >= 0]):
        operations = np.flatnonzero(plan.device == device)
        order = np.lexsort((schedule.end_ns[operations], schedule.start_ns[operations]))
        operations = operations[order]
        assert (schedule.start_ns[operations][1:] >= schedule.end_ns[operations][:-1]).all()


@given(plans())
def test_no_operation_starts_before_its_inputs_and_its_gap(plan: Plan) -> None:
    schedule = simulate(plan)
    source, target = np.repeat(np.arange(len(plan)), np.diff(plan.after_ptr)), plan.after
    assert (schedule.start_ns[target] >= schedule.end_ns[source] + plan.gap_ns[target]).all()


@given(plans(contention=False), st.data())
def test_a_longer_operation_never_shortens_the_step(plan: Plan, data: st.DataObject) -> None:
    before = makespan_ns(plan)
    plan.dur_ns[data.draw(st.integers(0, len(plan) - 1))] += data.draw(st.integers(0, 100))
    assert makespan_ns(plan) >= before


@settings(max_examples=examples(30), deadline=None)
@given(plans() | plans(contention=False))
def test_plain_and_compiled_agree(plan: Plan) -> None:
    plain, compiled = simulate(plan, compiled=False), simulate(plan, compiled=True)
    assert plain.start_ns.tolist() == compiled.start_ns.tolist()


@pytest.mark.parametrize("compiled", [False, True])
def test_connections_share_a_side_fairly(compiled: bool) -> None:
    # a and b leave by side 0; b and c arrive at side 1; d is alone. Till 20 all three have a half of a side;
    # then a is over, b is still held back by c at side 1; at 40 both are over
    sides = np.array([[0, -1], [0, 1], [2, 1], [3, -1]])
    plan = make_plan([10, 20, 20, 7], device=[0, 1, 2, 3], sides=sides)
    assert simulate(plan, compiled=compiled).end_ns.tolist() == [20, 40, 40, 7]
    # two in turn on one connection: the other has 5 left at 20, and is over at 30, when the second has 5
    queued = make_plan([10, 10, 15], device=[0, 0, 1], sides=np.array([[0, -1], [0, -1]]))
    assert simulate(queued, compiled=compiled).end_ns.tolist() == [20, 35, 30]


@pytest.mark.parametrize("compiled", [False, True])
def test_a_slow_side_delays_only_its_own_transfers(compiled: bool) -> None:
    # two connections leave one side of rate 1; one of them enters a side of rate 1/4, and the other has 3/4
    sides = np.array([[0, 1], [0, -1]])
    plan = make_plan([10, 30], device=[0, 1], sides=sides, carries=[1.0, 0.25])
    assert simulate(plan, compiled=compiled).end_ns.tolist() == [40, 40]
    # through a side that carries a thousand times as much ten take nothing
    fast = make_plan([10], device=[0], sides=np.array([[0, -1]]), carries=[1000.0])
    assert simulate(fast, compiled=compiled).end_ns.tolist() == [1]
