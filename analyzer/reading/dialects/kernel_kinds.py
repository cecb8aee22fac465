"""The kinds of kernels, by their names: what the kernels of two vendors have in common.

The first rule that finds its pattern in a name tells the kind, so the order matters: an attention kernel has
matrix products in it, and a convolution may be computed by one. Which kernels communicate is a rule of each
system. Softmax counts as normalisation, a sum over a prefix or over the window of a pooling as reduction, a
transposition as copy; gathering rows by index, as embeddings do, as embedding.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from analyzer.base.function_names import without_parameters

COMMUNICATION, COPY, FILL, OTHER = "communication", "copy", "fill", "other"

_NORM = r"(?:layer|batch|group|instance|rms|spatial)_?norm(?!al[^i])|softmax"
#: (kind, pattern) in order; upper and lower case are alike, and ~ stands where no letter may come before.
_RULES: Sequence[tuple[str, str]] = (
    # copies and fills are events of their own, but ROCm and some libraries have kernels for them
    (COPY, r"^memcpy|rocclr_copy|^dma_"),
    (COPY, r"reshape_and_cache|store_?kv|kv_?cache_?(?:store|write|copy)|concat_and_cache"),
    (FILL, r"^memset|rocclr_fill|^fill_kernel"),
    # code that a compiler made is named after its template, then after the operators fused in it
    ("attention", r"^triton_\w+_fused\w*_(?:flex_|scaled_dot_product_)\w*attention"),
    ("convolution", r"^triton_tem_fused\w*conv"),
    ("GEMM", r"^triton_tem_|^triton_(?:mm|bmm)"),
    ("normalisation", rf"^triton_(?:red|per|spl)_fused\w*(?:{_NORM})"),
    ("reduction", r"^triton_(?:red|per|spl|mix)_"),
    ("optimizer", r"^triton_for_"),
    ("elementwise", r"^triton_poi_"),
    ("reduction", r"^(?:%?input_)?(?:\w+_)?reduce\w*fusion"),
    ("GEMM", r"^%?(?:gemm|dot)_?\w*fusion|^%?dot(?:\.\d+)?$"),
    ("elementwise", r"^%?(?:add|subtract|multiply|divide|m(?:ax|in)imum|negate|power|select|compare"
                    r"|exponential|log|tanh|logistic|r?sqrt|convert|and|or|not|iota)(?:[._]\d+)*$"),
    # from the special to the general
    ("elementwise", r"rotary|~rope(?![a-z])|apply_rot"),
    ("attention", r"fmha|attention|attn|flash(?!infer)|flashinfer\w*::\w*(?:prefill|decode)|~sdpa"
                  r"|(?:batch|single)(?:prefill|decode)with|~sage_|~mla_|~mha_|merge_?states?|unified_attn"
                  r"|~fwd_(?:grouped_)?kernel_stage"),
    ("embedding", r"embedding|embs_kernel|~tbe_|bucketize|bounds_check_indices"
                  r"|permute_\w*(?:lengths|data|weights)|recat_|(?:offsets|lengths)_range|linearize_index"
                  r"|linear_cache_indices|lxu_cache|index_?select|indexing_backward|vectorized_gather"
                  r"|indexfunc|gather_?rows|gather_kernel"),
    ("reduction", r"~reduce_kernel<|~dot_kernel|reduce_1block|nll_?loss|classnll|loss_forward|pool(?!ed)"
                  r"|devicereduce|devicesegmentedreduce|devicescan|scan_?(?:kernel|config|by_key)|cumsum"
                  r"|tensor_kernel_scan|argm(?:ax|in)|moe_sum|cross_?entropy"),
    ("normalisation", rf"{_NORM}|~ln_(?:fwd|bwd|parallel)|~bn_?(?:fw|bw)|rowwisemoments|gammabeta"
                      r"|computefusedparams|~norm_?(?:fwd|bwd|forward|backward)|rms_?n(?![a-z])"
                      r"|lrn(?![a-z])"),
    ("optimizer", r"multi_tensor_apply|multi_tensor_\w*(?:adam|sgd|lamb|lion|norm|scale|axpby)"
                  r"|~(?:fused_?)?(?:adamw?|adagrad|rmsprop|adafactor|sgd|lamb|lion|muon)(?![a-km-z])"
                  r"|fused_?(?:adam|sgd|lamb)(?!da)|adam_?(?:functor|kernel|math)|optimi[sz]er"),
    ("elementwise", r"elementwise|~pointwise"),
    ("convolution", r"conv(?!ert)|scudnn|hcudnn|winograd|im2?\d?d?2?col|col2im|[fdw]grad(?!_?gemm)"
                    r"|fprop(?!_?gemm)|igemm_(?:fwd|bwd|wrw)|bwd_weight|bwd_data"
                    r"|cudnn\w*::(?:cnn|detail|winograd|gemm|fft|cask)|cask_cudnn|compute\w*offsets|fft2d_"
                    r"|flip_filter|pointwise_mult_and_sum_complex|miopen_?(?:sp3|asm)|naive_conv|sp3asm"),
    ("GEMM", r"(?<!fb)gemm|gemv|cijk_|nvjet|matmul|~b?mm(?![a-z])|mm_kernel|cublas|rocblas|hipblas|tensile"
             r"|split_?k_?reduce|reducesplitk|wvsplitk|cutlass\w*_(?:tensorop|simt|wmma)|marlin|machete"
             r"|~awq|gptq|(?:fused_?|ck_?|f)moe(?!_?(?:align|sort|sum|topk))|grouped_mm|streamk|hgmma"
             r"|tinygemm|^epilogue::"),
    (COPY, r"batchedcopy|copy_?(?:kernel|async|buffer|device)|_copy(?![a-z])|transpose|nchwto|nhwcto|permut"
           r"|kv_?cache|concat"),
    (FILL, r"fill|~set_?(?:zero|tensor)|subtensoropwithscalar|zero_?(?:kernel|init)"),
    ("reduction", r"reduc(?:e|tion)(?!_?scatter)"),
    ("elementwise", r"_and_mul|activation|[gs][ei]lu|swiglu|relu|dropout|bias_?add|add_?bias|scal_kernel"
                    r"|axpy|quanti[sz]|quant_|cast|scale|subtensorop|op_?tensor|op\dd_?tensor|clamp|arange"
                    r"|to_float|^%?(?:loop_|wrapped_)|fusion|vectorized_|unrolled_"),
)  # fmt: skip
_COMPILED: list[tuple[str, re.Pattern[str]]] = []


@lru_cache(maxsize=65536)  # ranks have the same kernels, with long names
def kernel_kind(name: str) -> str:
    """Return the kind of a kernel that does not communicate.

    >>> kernel_kind("ampere_sgemm_128x64_tn"), kernel_kind("triton_poi_fused_addmm_gelu_view_3")
    ('GEMM', 'elementwise')
    >>> kernel_kind("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int)")
    'normalisation'
    """
    if not _COMPILED:
        _COMPILED.extend(
            (kind, re.compile(pattern.replace("~", "(?<![a-z])"), re.IGNORECASE)) for kind, pattern in _RULES
        )
    function = without_parameters(name, namespaces=True)
    return next((kind for kind, pattern in _COMPILED if pattern.search(function)), OTHER)
