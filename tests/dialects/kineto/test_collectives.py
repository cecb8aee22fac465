"""Which names of kernels and calls are communication."""

from __future__ import annotations

import pytest

from dialects.kineto.collectives import is_collective


@pytest.mark.parametrize(
    "name",
    [
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "void multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, unsigned long)",
        "void vllm::cross_device_reduce_1stage<__half, 2>(vllm::RankData*)",
        "one_shot_all_reduce_kernel",
        "void two_shot_all_reduce_kernel<float, 8, 4>(float**)",
        "hccl:broadcast_",
        "rcclGenericKernel",
        "void deep_ep::internode::dispatch<false, 8>(int4*, float*)",
        "void deep_ep::intranode::combine<__nv_bfloat16, 8>(int4*)",
    ],
)
def test_kernels_that_move_data_between_ranks(name: str) -> None:
    assert is_collective(name, "kernel")


@pytest.mark.parametrize(
    "name",
    [
        "gemm",
        "void at::native::reduce_kernel<512, 1>()",
        "triton_poi_fused_nccl_all_reduce_0",
        "sweep_epilogue",
    ],
)
def test_kernels_that_compute(name: str) -> None:
    assert not is_collective(name, "kernel")


@pytest.mark.parametrize("library", ["gloo", "nccl", "mpi", "ucc", "xccl", "c10d", "hccl"])
def test_calls_on_the_host(library: str) -> None:
    assert is_collective(f"{library}:all_reduce", "user_annotation")
    assert not is_collective(f"aten::{library}", "cpu_op")
