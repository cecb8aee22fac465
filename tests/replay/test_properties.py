"""Laws of edits, on recorded examples and on made jobs: bandwidths, identities, orders, intervals."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs import MS, apply, foreseen, lockstep, partitions
from test_known_nccl import DATA_PARALLEL

from analyzer.model.graph.step_graph import Recording
from conftest import examples, few
from dag_utils import load_steps, read_partitions
from replay.edit import EditRequest, Job
from replay.forecast import Forecast, Forecasts
from replay.runs import simulated
from trace_utils import Request

_EXAMPLES = Path(__file__).parents[2] / "examples"


def _read(path: Path) -> Recording:
    return load_steps([path], Request(progress=False), partitions=read_partitions([path])).recording


@pytest.fixture(scope="module", params=["lenet", "lenet-100mbit"])
def job(request: pytest.FixtureRequest) -> Forecasts:
    recording = _read(_EXAMPLES / request.param)
    return Forecasts(Job(recording), recording.whole_steps)


_UNEVEN = lockstep([10.0, 12.0, 11.0, 19.0], [14.0, 13.0, 15.0, 16.0], [20.0, 17.0, 21.0, 18.0])
_ASKED = [
    *(f"rank{rank}={value}" for rank in range(3) for value in ("peers", "1.3", "+2ms")),
    *(f"straggler={how}" for how in ("none", "even", "mean", "each_step")),
    *(
        "rank0.gap=peers",
        "gap=even",
        "step2=usual",
        "step4=usual",
        "BW=0.7",
        "bandwidth=2",
        "drop=rank1.BW.a",
    ),
]


def after(job: Forecasts, *edits: str) -> Forecast:
    return job.of([EditRequest.of(edit) for edit in edits])


def test_more_bandwidth_is_never_slower(job: Forecasts) -> None:
    times = [after(job, f"bandwidth={ratio}").ratio for ratio in (0.25, 0.5, 1, 2, 4)]
    assert times == sorted(times, reverse=True)
    assert times[0] > 1 > times[-1] > 0, "the links of these jobs are on their critical paths"


@pytest.mark.parametrize("identity", ["bandwidth=1", "BW=1", "rank0=1"])
def test_an_edit_that_changes_nothing_changes_nothing(identity: str, job: Forecasts) -> None:
    forecast = after(job, identity)
    assert forecast.after_ns == forecast.before_ns
    for other in ("bandwidth=2", "FW=0.5"):
        if other.partition("=")[0] != identity.partition("=")[0]:
            assert after(job, identity, other).after_ns == after(job, other).after_ns


@pytest.mark.parametrize(
    "edits",
    [
        ("bandwidth=0.5", "rank0=1.5", "straggler=none"),
        ("rank0=+5ms", "rank0=2"),
        ("rank0=peers", "rank0=1.5"),
        ("rank0=peers", "rank1=peers", "gap=even"),
        ("rank1.gap=peers", "straggler=each_step"),
    ],
)
def test_edits_commute(edits: tuple[str, ...], job: Forecasts) -> None:
    orders = edits, edits[::-1]
    assert len({after(Forecasts(job.job, job.rows), *order).after_ns for order in orders}) == 1


@given(st.lists(st.sampled_from(_ASKED), unique=True, min_size=2, max_size=4), st.randoms())
@settings(max_examples=examples(10))
def test_any_edits_commute(edits: list[str], chance: Random) -> None:
    other = chance.sample(edits, len(edits))
    assert foreseen(_UNEVEN, *edits).after_ns == foreseen(_UNEVEN, *other).after_ns


def test_each_rank_is_compared_with_its_recorded_peers() -> None:
    # rank1 takes the median of 10 and 20 ms, rank2 that of 10 and 30; then 5 ms together
    job = lockstep([10.0] * 4, [30.0] * 4, [20.0] * 4)
    edits = ("rank1=peers", "rank2=peers")
    assert {foreseen(job, *order).after_ns for order in permutations(edits)} == {(20 + 5) * MS}


@pytest.fixture(scope="module")
def on_gpus(tmp_path_factory: pytest.TempPathFactory) -> Forecasts:
    """Two ranks with recorded streams, whose buckets of 1 MiB and more take as long as the computation."""
    path = tmp_path_factory.mktemp("nccl") / "job"
    DATA_PARALLEL.run(4, 1, path)
    loaded = load_steps([path], Request(progress=False), sizes=True)
    return Forecasts(Job.of(loaded), loaded.recording.whole_steps)


@pytest.mark.parametrize("name", ["bandwidth", "latency", "kernel", "rank1"])
def test_twice_as_fast_is_never_slower_and_half_as_fast_never_faster(name: str, on_gpus: Forecasts) -> None:
    times = [after(on_gpus, f"{name}={ratio}").ratio for ratio in (0.5, 1, 2)]
    assert times == sorted(times, reverse=name == "bandwidth")
    assert times[0] != times[2]


_SIZES = st.lists(st.integers(1, 16).map(lambda n: n * 65_536), min_size=1, max_size=5)


@given(_SIZES, st.floats(0.1, 1))
@settings(max_examples=examples(20))
def test_more_bandwidth_is_never_slower_and_recorded_partitions_change_nothing(
    sizes: list[int], rate: float
) -> None:
    # all partitions but the last are of one size, as the first is
    sizes = [sizes[0]] * len(sizes) + [min(sizes)]
    recording = partitions(sizes, [max(size / 65_536 * rate, 0.001) for size in sizes])
    ratio = {edit: foreseen(recording, edit).ratio for edit in ("bandwidth=0.5", "bandwidth=2")}
    assert ratio["bandwidth=0.5"] >= 1 >= ratio["bandwidth=2"]
    recorded = foreseen(recording, f"partition_bytes={sizes[0]}")
    assert recorded.after_ns == pytest.approx(recorded.before_ns, abs=1)


pytestmark = pytest.mark.slow

_JOBS = (
    "horovod/2ranks-base/trace", "kineto/gpu-hta-nccl-rank0of2/trace", "dasf/two-hosts-4workers/trace",
    "byteps/fork_lenet_base", "byteps/fork_mlp_2w2s_pcap", "byteps/master_torch_cnn_2w1s",
    "composer/ws2/trace", "kineto/ddp2-gloo-base/trace", "generic/viztracer",
)  # fmt: skip


@pytest.fixture(scope="module", params=few(3, _JOBS))
def recording(request: pytest.FixtureRequest, shared_data: Path) -> Recording:
    path = shared_data / request.param
    return load_steps([path], Request(progress=False), partitions=read_partitions([path])).recording


def test_an_identity_edit_changes_nothing_beside_others(recording: Recording) -> None:
    rows = recording.whole_steps
    recorded = simulated(recording, rows).iteration_ns
    names = Counter(
        operation.name for operation in recording.operations if operation.name and "=" not in operation.name
    )
    identities = ["rank0=1", "rank0=+0ms", f"{names.most_common(1)[0][0]}=1"]
    identities += ["bandwidth=1"] * any(operation.is_communication for operation in recording.operations)
    slower = simulated(apply(recording, ["rank0=1.5"]), rows).iteration_ns
    assert slower.sum() > recorded.sum()
    for identity in identities:
        assert np.array_equal(simulated(apply(recording, [identity]), rows).iteration_ns, recorded)
        for edits in ([identity, "rank0=1.5"], ["rank0=1.5", identity]):
            assert np.array_equal(simulated(apply(recording, edits), rows).iteration_ns, slower)
