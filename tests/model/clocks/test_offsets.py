"""Clock alignment: windows by hand, and copies of recordings with known offsets and drifts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray

from aligned import align_job
from analyzer.model.clocks.offsets import Clock, _least_squares, align, doubts, shifted
from analyzer.model.clocks.pair_estimates import PairOffset, _go_on
from analyzer.reading.dialects import Need
from analyzer.reading.dialects.recorded_collectives import SyncPoint, SyncPoints
from analyzer.reading.formats.columns import Trace
from conftest import examples, few
from trace_utils import Request, read_ranks


def _points(occurrences: SyncPoint) -> SyncPoints:
    return {"x": occurrences}


def _host(*spans: tuple[int, int]) -> SyncPoints:
    begin, end = zip(*spans, strict=True)
    return _points(SyncPoint(np.array(begin, np.int64), np.array(end, np.int64)))


def _later(host: SyncPoints, by_ns: int) -> SyncPoints:
    """The same on a clock that is ahead."""
    return {
        key: point._replace(begin_ns=point.begin_ns + by_ns, end_ns=point.end_ns + by_ns)
        for key, point in host.items()
    }


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
    # of two occurrences the third-quickest is the slower one, 40 on both hosts: the middle, (-990 - 1005) / 2
    found = align([_host((0, 40), (200, 210)), _host((1010, 1050), (1200, 1205))])
    assert (found.clocks[1].offset_ns, found.clocks[1].bound_ns) == near(-997.5, 8)


def test_a_window_that_holds_0_moves_nothing_and_its_far_end_is_the_bound() -> None:
    # x <= 100 - 30 = 70 and x >= 0 - 50 = -50
    found = align([_host((0, 100)), _host((30, 50))])
    assert (found.clocks[1].offset_ns, found.clocks[1].bound_ns) == near(0, 70)


def test_clocks_of_one_machine_agree_unless_that_is_impossible() -> None:
    # x <= 20 - 15 = 5 ms and x >= 0 - 16 = -16 ms; host 0 takes 20 ms, host 1 only 1: at 20/21 of the window
    ms = 1_000_000
    hosts = [_host((0, 20 * ms)), _host((15 * ms, 16 * ms))]
    assert align(hosts).clocks[1].offset_ns == pytest.approx(4 * ms, abs=1000)
    assert align(hosts, machines=["a", "b"]).clocks[1].offset_ns == pytest.approx(4 * ms, abs=1000)
    assert align(hosts, machines=["a", "a"]).clocks[1].offset_ns == 0
    # the clock of one second later cannot be the same
    hosts[1] = _later(hosts[1], 1000 * ms)
    assert align(hosts, machines=["a", "a"]).clocks[1].offset_ns == pytest.approx(-996 * ms, abs=1000)


def test_a_machine_ties_hosts_that_have_nothing_in_common() -> None:
    hosts: list[SyncPoints] = [
        _host((0, 40)),
        _host((5, 40)),
        {"y": SyncPoint(np.array([2510]), np.array([2530]))},
    ]
    tied = align(hosts, machines=["a", "b", "a"]).clocks
    assert [(one.is_tied, one.bound_ns is None) for one in tied] == [(True, False)] * 3
    alone = [hosts[0], hosts[2]]
    assert [one.is_tied for one in align(alone, machines=["a", "a"]).clocks] == [True, True]
    assert [one.is_tied for one in align(alone, machines=["", ""]).clocks] == [True, False]


def test_a_third_host_is_tied_through_the_second() -> None:
    # 0 and 1 share "x", 1 and 2 share "y": x1 in [-1050, -970], x2 - x1 in [-530, -480]
    middle = {**_host((1010, 1050)), "y": _host((2000, 2030))["x"]}
    found = align([_host((0, 40)), middle, {"y": _host((2510, 2530))["x"]}])
    # x2 - x1 <= 2030 - 2510 = -480 and >= 2000 - 2530 = -530; sums: [-1580, -1450]
    # host 1 takes 40 and 30, the others 40 and 20: -1050 + 80 * 40 / 80 and -530 + 50 * 30 / 50 are likely
    assert (found.clocks[2].offset_ns, found.clocks[2].bound_ns) == near(-1510, 70)


def test_a_contradiction_is_named_and_measured() -> None:
    # first: x <= -970 - 0 (from 40 - 1010); second: x >= 500 - 550 = -50: they differ by 920
    found = align([_host((0, 40), (500, 540)), _host((1010, 1050), (510, 550))])
    assert sorted(found.contradicting) == [0, 1]
    # x of -1000 leaves the second out of order by 950, x of 0 the first by 970, to the nearest us
    assert found.contradiction_ns in (950, 970)
    assert found.clocks[1].bound_ns is None
    assert found.clocks[1].is_tied


def _simulate(seed: int, hosts: int, n: int, seconds: float) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return begins and ends (n,) of each host in true time: everybody waits for the last to begin."""
    rng = np.random.default_rng(seed)
    at = np.sort(rng.integers(0, int(seconds * 1e9), n))
    begin = at + rng.integers(0, 2_000_000, (hosts, n))
    end = begin.max(axis=0) + rng.integers(10_000, 800_000, (hosts, n))
    return list(zip(begin, end, strict=True))


@settings(max_examples=examples(60), deadline=None)
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
    found = align([_points(SyncPoint(*spans)) for spans in recorded])
    assert not found.contradicting
    for clock, spans, times in zip(found.clocks, recorded, true, strict=True):
        error = spans[0] + clock.offset_ns - times[0]
        assert clock.bound_ns is not None
        assert np.abs(error).max() <= clock.bound_ns + 2  # both roundings
        assert any(drifts) or clock.violations_after == 0


def _skewed(spans: tuple[np.ndarray, np.ndarray], offset: int, drift: float) -> tuple[np.ndarray, np.ndarray]:
    begin, end = (t + offset + np.rint(t * drift / 1e6).astype(np.int64) for t in spans)
    return begin, end


def test_a_drift_that_no_constant_explains_is_within_the_bound_and_told() -> None:
    # 300 s at 20 ppm: 6 ms apart at the end, windows below 1 ms
    true = _simulate(1, 2, 3000, 300.0)
    found = align([_points(SyncPoint(*true[0])), _points(SyncPoint(*_skewed(true[1], 5_000_000, 20.0)))])
    assert found.clocks[1].violations_after > 0 and (found.clocks[1].bound_ns or 0) > 3_000_000
    assert doubts(["a", "b"], found) == [
        "the clocks of a and b drift: no constant offset orders all operations"
    ]


@settings(max_examples=examples(40), deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.permutations(range(4)),
    st.lists(st.integers(-(10**10), 10**10), min_size=4, max_size=4),
    st.booleans(),
)
def test_the_estimate_does_not_depend_on_which_host_is_first(
    seed: int, order: list[int], offsets: list[int], end_together: bool
) -> None:
    true = _simulate(seed, 4, 50, 1.0)
    recorded = [_skewed(t, offset, 0.0) for t, offset in zip(true, offsets, strict=True)]
    hosts = [_points(SyncPoint(*spans, end_together=end_together)) for spans in recorded]
    one = np.array([clock.offset_ns for clock in align(hosts).clocks])
    other = np.array([clock.offset_ns for clock in align([hosts[i] for i in order]).clocks])
    assert np.abs((other - other[0]) - (one - one[order[0]])[order]).max() <= 1000  # both are rounded


def test_ends_that_agree_tell_the_offset_to_a_microsecond() -> None:
    # ends differ by 1000 us and -1 … 3; who is late waits up to 50 ms: the windows say little
    late = np.array([0, 50, 20, 7, 30, 1, 45, 12], np.int64) * 1_000_000
    begin = np.arange(8, dtype=np.int64) * 100_000_000
    end = begin + late + 400_000
    jitter = np.array([-1, 0, 1, 0, 3, 1, 0, 0], np.int64) * 1000
    first = _points(SyncPoint(begin, end, end_together=True))
    second = _points(SyncPoint(begin + late + 1_000_000, end + jitter + 1_000_000, end_together=True))
    found = align([first, second])
    assert found.by_ends
    assert abs(found.clocks[1].offset_ns + 1_000_000) <= 1_000
    assert found.clocks[1].bound_ns is not None
    assert found.clocks[1].bound_ns <= 15_000


def test_where_one_host_waits_the_estimate_is_near_the_edge_of_the_one_that_does_not() -> None:
    # host 0 waits 60 to 140 ms for host 1 in every operation; messages take 0.2 ms and more
    rng = np.random.default_rng(1)
    late = rng.integers(60_000_000, 140_000_000, 200)
    begin = np.arange(200, dtype=np.int64) * 300_000_000
    end = begin + late + 200_000 + rng.integers(0, 2_000_000, 200)
    first, second = _points(SyncPoint(begin, end)), _points(SyncPoint(begin + late, end))
    for skew in (0, 40_000_000, -5_000_000_000):
        clock = align([first, _later(second, skew)]).clocks[1]
        assert abs(clock.offset_ns + skew) <= 3_000_000  # the middle of the window errs by 30 ms
        assert clock.bound_ns is not None
        assert clock.bound_ns >= 50_000_000


def test_a_clock_that_jumps_does_not_leave_a_large_offset_in_place() -> None:
    # 2.7 s ahead, and 35 ms more from the middle on
    true = _simulate(3, 2, 300, 1.0)
    jumps = np.where(np.arange(300) < 150, 0, 35_000_000) + 2_700_000_000
    second = _points(SyncPoint(true[1][0] + jumps, true[1][1] + jumps))
    found = align([_points(SyncPoint(*true[0])), second])
    assert -2_740_000_000 < found.clocks[1].offset_ns < -2_695_000_000
    assert found.clocks[1].bound_ns is None
    assert found.contradiction_ns > 1_000_000


def test_a_sync_point_of_long_ago_allows_for_the_drift_since() -> None:
    # both were at 0 resp. 5 s to 100 us each; recorded is an hour later: 50 ppm of 3600 s = 180 ms
    hosts = [_points(SyncPoint(np.array([t]), np.array([t]), error_ns=100_000)) for t in (0, 5_000_000_000)]
    recorded = [(t + 3_590_000_000_000, t + 3_600_000_000_000) for t in (0, 5_000_000_000)]
    clock = align(hosts, recorded).clocks[1]
    assert clock.offset_ns == -5_000_000_000
    assert clock.bound_ns == 180_000_000 + 200_000
    assert align(hosts).clocks[1].bound_ns == 200_000


@pytest.mark.parametrize("far", [1 << 61, -(1 << 61), (1 << 62) - 5, -(1 << 62)])
def test_times_near_the_limits_end_at_once(far: int) -> None:
    found = align([_host((0, 5), (1 << 60, (1 << 60) + 5)), _host((far, far + 4), (far + 10, far + 12))])
    assert abs(found.clocks[1].offset_ns) < 1 << 62


def _scattered(clock_us: int, late_us: int, ends_us: ArrayLike) -> SyncPoints:
    """Reductions, 100 ms apart, that hosts carry out: begun `late_us` after 0, ended at about 10 ms."""
    late: NDArray[np.int64] = np.rint(np.array(ends_us) * 1000).astype(np.int64)
    zero = np.arange(len(late)) * 100_000_000 + clock_us * 1000
    return _points(SyncPoint(zero + late_us * 1000, zero + 10_000_000 + late, end_together=True))


def test_ends_that_scatter_do_not_move_the_clock_of_one_machine() -> None:
    # host 1 is 9.5 ms late and ends about 500 us before host 0: x <= 10,000 - 9,500 = 500 us, 0 is possible
    scatter = 92.0 * np.random.default_rng(1).standard_normal(20)
    hosts = [_scattered(0, 0, np.maximum(scatter, -80) + 80), _scattered(0, 9_500, -400 + 0 * scatter)]
    one, two = (align(hosts, machines=["a", name]).clocks[1] for name in ("a", "b"))
    assert (one.offset_ns, one.bound_ns) == (0, 0)
    assert two.bound_ns is not None
    assert abs(two.offset_ns) <= two.bound_ns  # the truth is within the bound
    assert two.offset_ns > 0


def test_ends_that_agree_within_microseconds_are_believed_of_one_machine_too() -> None:
    # a clock that is 200 us ahead violates no order: host 1 begins at 9,500 + 200, host 0 ends at 10,000
    ends = np.random.default_rng(2).uniform(-0.5, 0.5, (2, 20))
    hosts = [_scattered(0, 0, ends[0]), _scattered(200, 9_500, ends[1])]
    clock = align(hosts, machines=["a", "a"]).clocks[1]
    assert clock.offset_ns == pytest.approx(-200_000, abs=2_000)
    assert clock.bound_ns is not None
    assert clock.bound_ns <= 20_000


def test_occurrences_of_one_number_belong_together_wherever_a_recording_begins() -> None:
    # host 1 lost the first two, host 0 the last; counted from the first, all would be 100 ms apart
    first, second = _scattered(0, 0, np.zeros(9))["x"], _scattered(3_000, 1_000, np.zeros(10))["x"]
    first = first._replace(number=np.arange(9))
    rest = SyncPoint(second.begin_ns[2:], second.end_ns[2:], end_together=True, number=np.arange(2, 10))
    clock = align([_points(first), _points(rest)]).clocks[1]
    assert clock.offset_ns == pytest.approx(-3_000_000, abs=2_000)
    assert clock.anchors == 7


@pytest.mark.parametrize(
    ("numbers", "goes_on"),
    [
        ([[1, 2, 3, 4], [1, 2, 3, 4]], True),
        ([[1, 2, 3, 4], [3, 4, 5]], True),  # one began to record later, and ended later
        ([[1, 2, 3], [1, 2], [2, 3]], True),
        ([[1, 2, 3, 4], [1, 2, 4]], False),  # a file that was cut: others of it may have wrong numbers
        ([[1, 2], [3, 4]], False),
        ([[1, 2], []], False),
    ],
)
def test_numbers_are_trusted_only_where_nothing_is_lost_in_between(
    numbers: list[list[int]], goes_on: bool
) -> None:
    assert _go_on([np.array(own, np.int64) for own in numbers]) == goes_on


def test_estimates_of_absurd_doubt_leave_the_others_as_they_are() -> None:
    pairs = [PairOffset(0, 1, 1000.0, 2.0), PairOffset(1, 2, 5.0, 1e200)]
    offsets = _least_squares(np.array([0, 1, 2]), pairs)
    assert offsets[:2].tolist() == [0.0, pytest.approx(1000.0)]
    assert np.isfinite(offsets).all()


_DLRM = "kineto/gpu-param-dlrm-8ranks"
_WORKERS = (
    "byteps/master_torch_cnn_2w1s", "byteps/fork_lenet_slownet", "byteps/fork_lenet_base",
    "byteps/fork_lenet_straggler", "byteps/fork_lenet_2w2g", "byteps/fork_resnet50_2w1s",
    "byteps/master_mxnet_mlp_2w2s_pcap",
)  # fmt: skip


def _job(path: Path) -> tuple[list[Trace], list[int]]:
    loaded = read_ranks([path], request=Request({Need.SYNC}, jobs=1))
    workers = [source.worker for source in loaded.job.sources]
    hosts = [i if worker is None else worker for i, worker in enumerate(workers)]
    return list(loaded.made), hosts


def _ahead(traces: list[Trace], hosts: list[int], skews: list[int]) -> list[Trace]:
    return [shifted(trace, Clock(skews[host])) for trace, host in zip(traces, hosts, strict=True)]


@pytest.mark.parametrize("seed", few(1, [0, 1, 2]))
def test_matched_ends_of_eight_gpus_are_good_to_two_microseconds(shared_data: Path, seed: int) -> None:
    traces, hosts = _job(shared_data / _DLRM)
    skews = [0, *np.random.default_rng(seed).integers(-(10**9), 10**9, 7).tolist()]
    found = align_job(_ahead(traces, hosts, skews), hosts)
    for clock, skew in zip(found.clocks, skews, strict=True):
        assert clock.bound_ns is not None
        assert abs(clock.offset_ns + skew) <= 2_000
        assert abs(clock.offset_ns + skew) <= clock.bound_ns <= 20_000


@pytest.mark.parametrize("case", few(2, _WORKERS))
@pytest.mark.parametrize("skew_us", [1_100, -1_100, 40_000, -5_000_000])
def test_a_skewed_worker_is_put_back_within_three_milliseconds(
    shared_data: Path, case: str, skew_us: int
) -> None:
    traces, hosts = _job(shared_data / case)
    clock = align_job(_ahead(traces, hosts, [0, 1000 * skew_us]), hosts).clocks[1]
    error = abs(clock.offset_ns + 1000 * skew_us)
    assert clock.bound_ns is not None
    assert error <= clock.bound_ns
    assert error <= 1_500_000
    assert clock.violations_after == 0


@pytest.mark.parametrize("case", few(2, _WORKERS))
def test_a_clock_does_not_depend_on_which_worker_is_first(shared_data: Path, case: str) -> None:
    traces, hosts = _job(shared_data / case)
    skewed = _ahead(traces, hosts, [0, 40_000_000])
    there, back = (align_job(skewed, order).clocks[1] for order in (hosts, [1 - host for host in hosts]))
    assert abs(there.offset_ns + back.offset_ns) <= 1_000  # both are rounded
    assert there.bound_ns is not None and back.bound_ns is not None
    assert there.bound_ns == pytest.approx(back.bound_ns, rel=0.01)  # both allow for some drift
