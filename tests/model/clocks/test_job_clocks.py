"""Clocks of recorded jobs: copies with known skews, and what the reader is told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aligned import align_job
from analyzer.model.clocks.job_clocks import shifted
from analyzer.model.clocks.offsets import Clock
from analyzer.reading.dialects import Need
from analyzer.reading.formats.columns import Trace
from conftest import few
from trace_utils import Request, read_ranks

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
