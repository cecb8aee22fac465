"""Clock alignment: hand-made windows, and copies of one recording with known offsets and drifts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clocks.offsets import Anchors, align
from clocks.slope_bounds import hull, slopes


def _host(*spans: tuple[int, int]) -> Anchors:
    begin, end = zip(*spans, strict=True)
    return {"x": (np.array(begin, np.int64), np.array(end, np.int64))}


def near(offset_ns: float, bound_ns: float) -> object:
    """Equal to a nanosecond: both are rounded, the bound upwards, after allowing for drift."""
    return pytest.approx((offset_ns, bound_ns), abs=2)


def test_the_middle_of_the_window_is_the_offset() -> None:
    # worker 1 reads 1000 more. x <= 40 - 1010 = -970 and x >= 0 - 1050 = -1050: -1010 +- 40
    found = align([_host((0, 40)), _host((1010, 1050))])
    clock = found.clocks[1]
    assert (clock.offset_ns, clock.bound_ns) == near(-1010, 40)


def test_the_narrowest_of_several_windows_counts() -> None:
    # second occurrence: x <= 210 - 1200 = -990 and x >= 200 - 1205 = -1005; first: x <= -970, x >= -1050
    found = align([_host((0, 40), (200, 210)), _host((1010, 1050), (1200, 1205))])
    assert (found.clocks[1].offset_ns, found.clocks[1].bound_ns) == near(-997.5, 7.5)


def test_a_window_that_holds_0_moves_nothing_and_its_far_end_is_the_bound() -> None:
    # x <= 100 - 30 = 70 and x >= 0 - 50 = -50
    found = align([_host((0, 100)), _host((30, 50))])
    assert (found.clocks[1].offset_ns, found.clocks[1].bound_ns) == near(0, 70)


def test_violations_are_counted_before_and_after() -> None:
    # worker 1's begin 1010 is after worker 0's end 40: one pair out of order, for both workers
    found = align([_host((0, 40)), _host((1010, 1050))])
    assert [clock.violations_before for clock in found.clocks] == [1, 1]
    assert [clock.violations_after for clock in found.clocks] == [0, 0]


def test_without_a_common_operation_there_is_no_bound() -> None:
    found = align([_host((0, 40)), {"y": _host((5, 6))["x"]}])
    assert not found.clocks[1].is_tied
    assert (found.clocks[1].offset_ns, found.clocks[1].anchors) == (0, 0)


def test_one_host_needs_nothing() -> None:
    assert align([_host((0, 40))]).clocks[0].bound_ns == 0


def test_a_third_host_is_tied_through_the_second() -> None:
    # 0 and 1 share "x", 1 and 2 share "y": x1 in [-1050, -970], x2 - x1 in [-530, -480]
    middle = {**_host((1010, 1050)), "y": _host((2000, 2030))["x"]}
    found = align([_host((0, 40)), middle, {"y": _host((2510, 2530))["x"]}])
    # x2 - x1 <= 2030 - 2510 = -480 and >= 2000 - 2530 = -530; sums: [-1580, -1450]
    assert (found.clocks[2].offset_ns, found.clocks[2].bound_ns) == near(-1515, 65)


def test_a_contradiction_is_named_and_measured() -> None:
    # first: x <= -970 - 0 (from 40 - 1010); second: x >= 500 - 550 = -50: they differ by 920
    found = align([_host((0, 40), (500, 540)), _host((1010, 1050), (510, 550))])
    assert sorted(found.contradicting) == [0, 1]
    assert found.contradiction_ns == pytest.approx(920 / 2, abs=1)


def test_a_missing_occurrence_at_the_end_is_no_anchor() -> None:
    found = align([_host((0, 40), (100, 140)), _host((1010, 1050))])
    assert [clock.anchors for clock in found.clocks] == [1, 1]


def _simulate(seed: int, hosts: int, n: int, seconds: float) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return begins and ends (n,) of each host in true time: everybody waits for the last to begin."""
    rng = np.random.default_rng(seed)
    at = np.sort(rng.integers(0, int(seconds * 1e9), n))
    begin = at + rng.integers(0, 2_000_000, (hosts, n))
    end = begin.max(axis=0) + rng.integers(10_000, 800_000, (hosts, n))
    return list(zip(begin, end, strict=True))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(2, 5),
    st.lists(st.integers(-(10**10), 10**10), min_size=4, max_size=4),
    st.lists(st.floats(-25, 25), min_size=4, max_size=4),
    st.sampled_from([0.5, 10.0, 300.0]),
)
def test_the_true_offset_is_inside_the_bound(
    seed: int, hosts: int, offsets: list[int], drifts: list[float], seconds: float
) -> None:
    true = _simulate(seed, hosts, 200, seconds)
    skews = [(0, 0.0), *zip(offsets, drifts, strict=True)][:hosts]
    recorded = [_skewed(t, offset, drift) for t, (offset, drift) in zip(true, skews, strict=True)]
    found = align([{"x": spans} for spans in recorded])
    assert not found.contradicting
    for clock, spans, times in zip(found.clocks, recorded, true, strict=True):
        error = spans[0] + clock.shift(spans[0]) - times[0]
        assert clock.bound_ns is not None
        assert np.abs(error).max() <= clock.bound_ns + 2  # both roundings
        assert any(drifts) or clock.violations_after == 0


def _skewed(spans: tuple[np.ndarray, np.ndarray], offset: int, drift: float) -> tuple[np.ndarray, np.ndarray]:
    begin, end = (t + offset + np.rint(t * drift / 1e6).astype(np.int64) for t in spans)
    return begin, end


def test_a_drift_that_no_constant_explains_is_found() -> None:
    # 300 s at 20 ppm: 6 ms apart at the end, windows below 1 ms
    true = _simulate(1, 2, 3000, 300.0)
    found = align([{"x": true[0]}, {"x": _skewed(true[1], 5_000_000, 20.0)}])
    assert found.clocks[1].drift_ppm == pytest.approx(-20.0, abs=2.0)


def test_a_short_trace_shows_no_drift() -> None:
    true = _simulate(1, 2, 300, 1.0)
    found = align([{"x": true[0]}, {"x": _skewed(true[1], 5_000_000, 20.0)}])
    assert found.clocks[1].drift_ppm == 0.0


def _stages(path: Path) -> dict[str, tuple[list[int], list[int]]]:
    anchors: dict[str, tuple[list[int], list[int]]] = {}
    for event in json.loads(path.read_bytes())["traceEvents"]:
        begin, end = anchors.setdefault(event["tid"], ([], []))
        if event["name"].endswith(".PUSH"):
            begin.append(event["ts"] * 1000)
        if event["name"].endswith(".PULL"):
            end.append((event["ts"] + event["dur"]) * 1000)
    return {key: spans for key, spans in anchors.items() if spans[0]}


@pytest.mark.parametrize(
    "case", ["fork_lenet_base", "fork_lenet_slownet", "fork_resnet50_2w1s", "master_torch_cnn_2w1s"]
)
@pytest.mark.parametrize("skew_us", [0, 700, -3_000, 40_000, -5_000_000])
def test_a_skewed_copy_of_a_recording(shared_data: Path, case: str, skew_us: int) -> None:
    stages = [_stages(shared_data / "byteps" / case / f"worker_{w}" / "0" / "comm.json") for w in (0, 1)]
    hosts: list[Anchors] = [
        {k: (np.array(a), np.array(b)) for k, (a, b) in worker.items()} for worker in stages
    ]
    hosts[1] = {k: (a + 1000 * skew_us, b + 1000 * skew_us) for k, (a, b) in hosts[1].items()}
    clock = align(hosts).clocks[1]
    assert clock.bound_ns is not None
    assert abs(clock.offset_ns + 1000 * skew_us) <= clock.bound_ns
    assert clock.violations_after == 0
    if clock.offset_ns:  # the recording's own clocks agree: begin to end is there and back
        there = min((np.array(b) - stages[0][k][0]).min() for k, (_, b) in stages[1].items())
        back = min((np.array(b) - stages[1][k][0]).min() for k, (_, b) in stages[0].items())
        assert clock.bound_ns <= 1.001 * (there + back) / 2 + 50e-6 * 5e9
    else:
        assert abs(skew_us) <= 3_000


def test_the_hull_of_five_points() -> None:
    #  (1, 5) and (3, 5) stand out above; (2, 4) and the doubled (3, 1) lie below the line between them
    x, y = np.array([0, 1, 2, 3, 3, 4]), np.array([0, 5, 4, 1, 5, 0])
    assert hull(x, y, 1).tolist() == [0, 1, 4, 5]


def test_the_slopes_between_two_bounds() -> None:
    # above (0, 0) and (10, 0), below (0, 1) and (10, 2): from -1/10 (through (0, 1), (10, 0)) to 2/10
    at = np.array([0.0, 10.0])
    low, high = slopes(at, np.array([0.0, 0.0]), at, np.array([1.0, 2.0]), 50.0)
    assert (low, high) == pytest.approx((-0.1, 0.2))
