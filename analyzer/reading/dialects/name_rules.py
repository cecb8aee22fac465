"""Patterns of names that several systems share: kinds of kernels, collectives, waits, launches."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from analyzer.base.names import without_parameters

COMMUNICATION, COPY, FILL, OTHER = "communication", "copy", "fill", "other"
#: Kinds of kernels whose operations follow from the shapes of operators.
PRODUCTS = ("GEMM", "convolution", "attention")

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
    """Classify a kernel that does not communicate.

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


#: XLA writes a hyphen, and calls it a broadcast when one rank repeats a value along an axis.
_COLLECTIVE = (
    r"(?i)all[-_]?reduce|all[-_]?gather|reduce[-_]?scatter|all[-_]?to[-_]?all|collective[-_]?permute|nccl"
    r"|broadcast(?!\.\d|_in_dim|\w*fusion)"
)
_COLLECTIVE_CAT = r"(?i)comm(?:unication)?|collective"
#: PyTorch's annotations around a library's work.
_LIBRARY_CALL = r"(?:gloo|nccl|rccl|oneccl|hccl|mpi|ucc|xccl|mccl|cncl|bkcl):"
#: Transfers of activations and gradients between stages of a pipeline.
_POINT_TO_POINT = r"(?i)send|recv|p2p|pp[-_]?comm"
#: Transfers between workers and parameter servers, of TensorFlow, MXNet's KVStore and network timelines.
_SERVER_TRANSFER = r"_(?:Host)?(?:Send|Recv)|KVStore\w*(?:Push|Pull)\w*|.+\.(?:PUSH|PULL)(?:_RE[QS])?"
#: Operators that update parameters: TensorFlow's, and MXNet's.
_UPDATE = r"(?:Resource)?(?:Sparse)?Apply[A-Z]\w*|\w+_update(?:_phase[12])?"
_WAIT = (
    r"(?i)(?:.*[\s.:])?(?:_?wait\w*|acquire|sleep|select|e?poll|accept|recv\w*|wait_for\w*)(?: \(.*| of .*)?"
    r"|.*\bqueue\b.*\bget\b.*"
)
#: Calls of CUDA's and HIP's runtimes and drivers: cudaLaunchKernelExC, hipExtModuleLaunchKernel, …
_LAUNCH = r"(?:cu|cuda|hip)\w*Launch\w*Kernel\w*"
#: From the first to the second call of a stream, launches are written into a graph and run nothing.
_CAPTURE_BEGIN = r"(?:cu|cuda|hip)StreamBeginCapture\w*"
_CAPTURE_END = r"(?:cu|cuda|hip)StreamEndCapture\w*"
_MAY_WAIT = r"(?i)wait|synchronize|thread.*join|acquire"


def is_collective(name: str, cat: str) -> bool:
    """Recognise data moved between ranks, where the system does not say."""
    return bool(re.search(_COLLECTIVE, name) or re.fullmatch(_COLLECTIVE_CAT, cat))


def is_server_transfer(name: str) -> bool:
    """Recognise a transfer between a worker and a parameter server.

    >>> [is_server_transfer(name) for name in ("_Recv", "KVStoreDistDefaultPush", "w0.PULL_RES", "Push")]
    [True, True, True, False]
    """
    return re.fullmatch(_SERVER_TRANSFER, name) is not None


def is_parameter_update(name: str) -> bool:
    """Recognise an operator that updates parameters.

    >>> is_parameter_update("sgd_mom_update"), is_parameter_update("ResourceApplyAdam")
    (True, True)
    """
    return re.fullmatch(_UPDATE, name) is not None


def is_library_call(name: str) -> bool:
    """Recognise PyTorch's annotation of a library's work (``gloo:all_reduce``)."""
    return bool(re.match(_LIBRARY_CALL, name))


def is_point_to_point(name: str) -> bool:
    """Recognise a message from one rank to another."""
    return bool(re.search(_POINT_TO_POINT, name))


@lru_cache(maxsize=65536)  # ranks have the same names
def is_wait(name: str) -> bool:
    """Recognise a call that only waits: for another thread, or for time to pass."""
    return bool(re.fullmatch(_WAIT, name))


def may_wait(name: str) -> bool:
    """Recognise a call that may have waited for an event that ended while it ran."""
    return bool(re.search(_MAY_WAIT, name))


def is_launch(name: str) -> bool:
    """Recognise the launch of a single kernel, not of a graph."""
    return bool(re.fullmatch(_LAUNCH, name))


def is_capture_begin(name: str) -> bool:
    """Recognise a call that begins to record launches into a graph."""
    return re.fullmatch(_CAPTURE_BEGIN, name) is not None


def is_capture_end(name: str) -> bool:
    """Recognise a call that ends the recording of launches into a graph."""
    return re.fullmatch(_CAPTURE_END, name) is not None
