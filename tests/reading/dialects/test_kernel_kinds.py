"""Kinds of kernels: names as the vendors' libraries have them, and the kind that a person gives each."""

from __future__ import annotations

import pytest

from analyzer.reading.dialects.name_rules import kernel_kind

AT = "void at::native::"
KINDS = {
    "GEMM": (
        "ampere_sgemm_128x64_tn",
        "volta_fp16_s884gemm_fp16_64x128_ldg8_f2f_tn",
        "nvjet_hsh_192x192_64x3_1x2_h_coopB_NNT",
        "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int>, X>>(P)",
        "Cijk_Ailk_Bljk_HHS_BH_MT128x128x16_MI32x32x8x1_SN_1LDSB0_APM1_ISA90a.kd",
        "void wvSplitK_hf_sml_<__half, 64, 4, 16, 8, 2, 1>(int, int, __half const*)",
        "fused_moe_kernel",
        "dot.7",
    ),
    "attention": (
        "_fwd_grouped_kernel_stage1",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1",
        "void flashinfer::BatchPrefillWithPagedKVCacheKernel<T>(P)",
        "unified_attention_with_output",
    ),
    "convolution": (
        "sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x32_cudnn",
        "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_s1688wgrad_optimized_tf32_128x128_16x4>(P)",
        "void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel<3, float, int>(X)",
        "void at::native::im2col_kernel<float>(long, float const*)",
        "causal_conv1d_fwd_kernel",
    ),
    "normalisation": (
        "void cudnn::bn_fw_tr_1C11_kernel_NCHW<__half, float, int, 512, true, 1, true>(cudnnTensorStruct)",
        AT + "(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>(int, float)",
        "void (anonymous namespace)::softmax_warp_backward<float, float, float, 10, true>(float*)",
        "void transformer_engine::normalization::rmsnorm_fwd_general_kernel<Kernel_traits<float>>(P)",
    ),
    "elementwise": (
        AT + "vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, Array<char*, 3>>(int)",
        AT + "elementwise_kernel<128, 4, at::native::gpu_kernel_impl<direct_copy_kernel_cuda(X&)>>(int)",
        AT + "(anonymous namespace)::fused_dropout_kernel_vec<float, float, unsigned int, 1, 4, bool>(X)",
        "triton_poi_fused_addmm_gelu_view_24",
        "void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel<c10::BFloat16>>(X*)",
        "loop_add_fusion_3",
    ),
    "reduction": (
        "liger_cross_entropy_kernel",
        AT + "reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float>, 4>>(X)",
        "input_reduce_fusion",
    ),
    "embedding": (
        AT + "(anonymous namespace)::indexSelectLargeIndex<float, long, unsigned int, 2, 2, -2, true>(X)",
        "void split_embedding_codegen_forward_unweighted_kernel<float, float, float, long, 4ul>(X)",
        AT + "vectorized_gather_kernel<16, long>(char*)",
    ),
    "optimizer": (
        AT + "(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<3>, BinaryOp<float>>(X)",
        "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>, float>(int)",
        "triton_for_fused_0",
        "kFusedAdamW",
    ),
    "copy": (
        "Memcpy HtoD (Pageable -> Device)",
        "MEMCPY_DtoD",
        "__amd_rocclr_copyBuffer",
        AT + "(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 2, 64, 64>(float*)",
        "void cudnn::ops::nchwToNhwcKernel<__half, __half, float, true, true>(X)",
        "void vllm::reshape_and_cache_flash_kernel<__half>(X)",
    ),
    "fill": ("Memset (Device)", "__amd_rocclr_fillBufferAligned", "__amd_rocclr_fillBufferAligned.kd"),
    "other": ("triton__0d1d2d3d", "void f<int>(int)", "", "void cub::DeviceRadixSortOnesweepKernel<X>(Y)"),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in KINDS.items() for name in names])
def test_a_kernel_has_the_kind_that_a_person_gives_it(kind: str, name: str) -> None:
    assert kernel_kind(name) == kind
