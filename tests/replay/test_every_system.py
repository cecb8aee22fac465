"""Edits that change nothing, on recorded jobs of every system."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from jobs import apply

from analyzer.model.graph.step_graph import Recording
from conftest import few
from dag_utils import load_steps, read_partitions
from replay.runs import simulated
from trace_utils import Request

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
