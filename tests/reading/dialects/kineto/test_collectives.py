"""PyTorch's collectives: names of kernels and calls, sizes, groups."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from analyzer.reading import dialects
from analyzer.reading.dialects.kineto.collectives import collective, grouped, host_group, is_collective
from analyzer.reading.dialects.recorded_collectives import SyncPoint
from analyzer.reading.dialects.step_parts import RankTrace
from analyzer.reading.traces.readers import read_args, read_trace
from make import span, write

_MOVE_DATA = (
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "void multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, unsigned long)",
    "void vllm::cross_device_reduce_1stage<__half, 2>(vllm::RankData*)",
    "void two_shot_all_reduce_kernel<float, 8, 4>(float**)",
    "hccl:broadcast_",
    "rcclGenericKernel",
    "void deep_ep::internode::dispatch<false, 8>(int4*, float*)",
    "void deep_ep::intranode::combine<__nv_bfloat16, 8>(int4*)",
    "void tensorrt_llm::kernels::oneShotAllReduceKernel<__half>(AllReduceParams)",
    "void aiter::reduce_scatter_cross_device_store<__hip_bfloat16>(RankData*)",
    "void tensorrt_llm::kernels::moe_comm::moeA2ADispatchKernel<4>(Params)",
    "rocshmem_put_signal_wave",
    "void cnclDevKernel_AllReduce<float>(int)",
    "Memcpy PtoP (Device -> Device)",
)
_COMPUTE = (
    "gemm",
    "Memcpy DtoD (Device -> Device)",
    "fused_all_gather_matmul_kernel",
    "void softmax_warp<WarpAllReduce, float>(float*)",
    "void step_dispatch_kernel(int)",
    "void at::native::reduce_kernel<512, 1>()",
    "triton_poi_fused_nccl_all_reduce_0",
)


@pytest.mark.parametrize("name", [*_MOVE_DATA, *_COMPUTE])
def test_kernels_move_data_between_ranks_or_compute(name: str) -> None:
    assert is_collective(name, "kernel") == (name in _MOVE_DATA)


@pytest.mark.parametrize("library", ["gloo", "nccl", "mpi", "ucc", "xccl", "c10d", "hccl"])
def test_calls_on_the_host(library: str) -> None:
    assert is_collective(f"{library}:all_reduce", "user_annotation")
    assert not is_collective(f"aten::{library}", "cpu_op")


@pytest.mark.parametrize(
    ("shapes", "types", "n_bytes"),
    [
        ([[1000]], ["float"], 4000), ([[10, 3], [2]], ["c10::Half", "long int"], 60 + 16),
        ([[7]], ["unsigned char"], 7), ([[4, 2]], ["c10::BFloat16"], 16),
        ([[], [3]], ["Scalar", "double"], 24),
    ],
)  # fmt: skip
def test_a_call_of_the_host_moves_the_tensors_that_it_is_given(
    tmp_path: Path, shapes: list[list[int]], types: list[str], n_bytes: int
) -> None:
    args = {"Input Dims": shapes, "Input type": types}
    calls = [
        span("gloo:all_reduce", 5, 9, "user_annotation", **args),
        span("gloo:barrier", 15, 9, "user_annotation"),
        span("gloo:recv", 25, 9, "user_annotation", **args),
        span("aten::add", 1, 2, "cpu_op", **args),
    ]
    about = {"rank": 0, "world_size": 4, "backend": "gloo"}
    path = write(tmp_path / "rank0.pt.trace.json", calls, schemaVersion=1, distributedInfo=about)
    trace = read_trace(path)
    rank = RankTrace("rank0", trace, args_of=lambda names: read_args(path, names, slices=True))
    collectives = dialects.of(trace).collectives(rank)
    assert collectives.n_bytes.tolist() == [n_bytes, 0, n_bytes]
    assert [collectives.calls[i].kind for i in collectives.call] == ["all-reduce", "barrier", "send/recv"]


@pytest.mark.parametrize("name", ["gloo:send", "gloo:recv", "gloo:isend", "mpi:irecv"])
def test_half_of_a_transfer_is_communication_but_meets_nobody_known(name: str) -> None:
    assert is_collective(name, "user_annotation")
    assert collective(name, "user_annotation", {}) is None
    assert collective("gloo:all_reduce", "user_annotation", {}) is not None


_ALL = ("default_pg", [0, 1, 2, 3])


@pytest.mark.parametrize(
    ("groups", "wanted"),
    [
        ([], ()), ([_ALL], ()), ([_ALL, ("", [0, 1])], None),  # nobody knows what that is for
        ([_ALL, ("", [0, 1, 2, 3])], ()), ([_ALL, ("pp", [0, 1])], ()),
        ([_ALL, ("mesh_dp", [0, 1])], (0, 1)),
        ([_ALL, ("mesh_pp", [0, 2]), ("mesh_dp", [0, 1])], (0, 1)),
        ([_ALL, ("mesh_dp", [0]), ("mesh_tp", [0, 1])], (0, 1)),
        ([_ALL, ("mesh_dp", [0, 2]), ("mesh_tp", [0, 1])], None),
        ([_ALL, ("mesh_dp", [0, 1]), ("mesh_tp", [0, 1])], (0, 1)),
        ([_ALL, ("mesh_dp", [2, 3])], ()), ([("mesh_dp", "all")], ()),
    ],
)  # fmt: skip
def test_collectives_of_the_host_are_done_along_a_dimension_of_the_mesh(
    groups: list[tuple[str, object]], wanted: tuple[int, ...] | None
) -> None:
    config = [{"pg_desc": about, "ranks": ranks} for about, ranks in groups]
    header = {"distributedInfo": {"rank": 0, "pg_config": config}}
    assert host_group(header, 0) == wanted
    point = SyncPoint(np.array([0]), np.array([1]))
    nccl, gloo = ("allreduce", "1", "[0, 1]", "7"), ("gloo:all_reduce",)
    kept = [nccl] if wanted is None else [nccl, (gloo, wanted) if wanted else gloo]
    assert list(grouped({nccl: point, gloo: point}, header)) == kept
