"""Kinds of kernels on which a busy device spends most of its time, and advice for each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from analyzer.answers.diagnose.finding import DOMINANT, HALF, Finding, FindingScope
from analyzer.answers.diagnose.steps.causes import causes_of
from analyzer.answers.diagnose.steps.detectors.device import busy_share
from analyzer.answers.diagnose.steps.detectors.late_ranks import causes_of_late_ranks
from analyzer.answers.diagnose.steps.job_view import JobView, longest_events
from analyzer.base.arrays import Float64
from analyzer.base.names import named
from analyzer.base.units import in_ms, in_percent
from analyzer.reading import dialects
from analyzer.reading.dialects.step_parts import Operation
from replay.real_step import RealJob, mean_step_ns, step_lengths

if TYPE_CHECKING:
    from analyzer.model.figures.job_figures import RealSteps

#: Matrix products in fp32 without tensor cores, of NVIDIA's libraries and of AMD's (Cijk…_SB).
_FP32 = re.compile(r"(?i).*(?:sgemm|simt_|f32f32_f32f32|_ffma)|Cijk_\w+?_S_?B_")
#: Types of matrix products, the first that a kernel's name shows.
_TYPES = (
    ("tf32", re.compile(r"(?i).*(?:tf32|s1688gemm|_xf32)")),
    ("fp32", _FP32),
    ("bf16", re.compile(r"(?i).*(?:bf16|bfloat16|_BBS_|_B_?B_)")),
    ("fp16", re.compile(r"(?i).*(?:fp16|f16f16|h1688|16816|hgemm|half|_HHS_|_H_?H_)")),
)
_FP32_ADVICE = (
    "let matrix products use tensor cores: torch.set_float32_matmul_precision('high') from Ampere on, else "
    "bf16 or fp16 with autocast"
)
#: Advice by kind; other kernels are named one by one.
_ADVICE = {
    "GEMM": "compare their FLOP/s with the device's peak: sizes in multiples of 64, larger batches, a "
    "smaller type (bf16, FP8)",
    "convolution": "try channels_last memory, torch.backends.cudnn.benchmark=True, bf16 or fp16 "
    "with autocast",
    "attention": "check that attention is one fused kernel (scaled_dot_product_attention, "
    "FlashAttention) in bf16 or fp16; if so, only shorter sequences take less",
    "elementwise": "fuse chains of elementwise kernels: torch.compile, or fused layers",
    "normalisation": "use fused normalisation and softmax kernels: torch.compile, Apex, fused attention",
    "reduction": "fuse reductions with what is before them: torch.compile, fused losses",
    "optimizer": "use a fused or foreach optimizer, which updates many parameters in one kernel",
    "copy": "avoid changes of layout: one memory format throughout (channels_last), no "
    ".contiguous() in the loop",
    "embedding": "look up several tables in one kernel, with sorted or cached rows",
}


class _KernelCause(NamedTuple):
    """A cause that names of kernels show, from a share of the device's time on, and its advice."""

    shows: re.Pattern[str]
    unless: re.Pattern[str]  # no kernel has such a name
    belongs: re.Pattern[str]  # further kernels that may belong to it
    least: float  # share of those that show it
    title: str
    action: str


_LAYOUTS = re.compile(r"(?i).*(?:nchwtonhwc|nhwctonchw)")
_CAUSES = (
    _KernelCause(
        re.compile(r"(?i).*soft_?max"),
        re.compile(r"(?i).*(?:flash|fmha|attention|attn)"),
        re.compile(r"(?i).*(?:soft_?max|elementwise)"),  # scale, mask, dropout
        0.1,
        "attention runs as matrix products and a softmax, which alone takes {share} of the device's time",
        "use scaled_dot_product_attention or FlashAttention: one kernel, without the matrix of scores",
    ),
    _KernelCause(
        _LAYOUTS,
        re.compile("(?!)"),
        _LAYOUTS,
        0.05,
        "{share} of the device's time converts layouts of tensors (NCHW, NHWC)",
        "use one memory format throughout: model and inputs .to(memory_format=torch.channels_last)",
    ),
)


def dominant_kernels(view: JobView) -> Iterator[Finding]:
    """Find the kinds of kernels that take most of the time of a busy device.

    No saving is claimed: the peak performance of the device is not recorded.
    """
    if not view.has_device or busy_share(view) < HALF:
        return
    by_kind = {kind: float(ns.mean()) for kind, ns in by_kind_of_kernel(view).items()}
    device_ns = sum(by_kind.values())
    for kind, kernel_ns in sorted(by_kind.items(), key=lambda item: -item[1]):
        share = kernel_ns / max(device_ns, 1.0)
        if share > DOMINANT and kind in _ADVICE:
            yield _finding(view, kind, share, kernel_ns)
    yield from _named_causes(view, device_ns)


def _named_causes(view: JobView, device_ns: float) -> Iterator[Finding]:
    """Find causes that the names of a device's kernels show."""
    names, kernels = view.kind_of[0], view.which(lambda operation: operation.is_kernel)
    by_name = view.by_name(np.where(view.of_kinds(kernels), view.work_by_kind.mean(axis=0), 0.0))
    by_name /= len(view.recording.owners)
    for cause in _CAUSES:
        chosen, of_cause, excluded = (
            np.array([pattern.match(name) is not None for name in names], np.bool_)
            for pattern in (cause.shows, cause.belongs, cause.unless)
        )
        share, weight = (float(by_name[part].sum()) / max(device_ns, 1.0) for part in (chosen, of_cause))
        if share < cause.least or by_name[excluded].any():
            continue
        longest = view.longest(np.where(chosen, by_name, 0.0))
        yield Finding(
            kind="hot_operation",
            title=cause.title.format(share=in_percent(share)),
            cause=f"{in_ms(by_name[chosen].sum())} of a step in {named(longest)}",
            action=cause.action,
            scope=FindingScope(operations=longest),
            look=("statistic", "--group_by", "kernel_kind"),
            weight=weight * min(busy_share(view), 1.0),
        )


def by_kind_of_kernel(view: JobView, *, types: bool = False) -> dict[str, Float64]:
    """Add up the device's work in each whole step (steps,) by kind of kernel, the mean over ranks.

    With `types`, matrix products come by their type, if the kernels' names tell it.
    """
    by_kind: dict[str, Float64] = {}
    for operation, work_ns in zip(view.recording.operations.kinds, view.work_by_kind.T, strict=True):
        if operation.on_device:
            kind = "communication" if operation.is_communication else "copies"
            if operation.is_kernel:
                kind = kind_of(view, operation)
            if types and kind == "GEMM":
                kind += next((f" {name}" for name, has in _TYPES if has.match(operation.name)), "")
            by_kind[kind] = by_kind.get(kind, 0.0) + work_ns / len(view.recording.owners)
    return by_kind


def _finding(view: JobView, kind: str, share: float, kernel_ns: float) -> Finding:
    chosen = view.which(lambda operation: operation.is_kernel and kind_of(view, operation) == kind)
    by_name = view.by_name(np.where(view.of_kinds(chosen), view.work_by_kind.mean(axis=0), 0.0))
    names = view.longest(by_name)
    fp32 = np.array([bool(_FP32.match(name)) for name in view.kind_of[0]], np.bool_)
    is_fp32 = kind == "GEMM" and by_name[fp32].sum() / max(by_name.sum(), 1.0) > HALF
    kernels = "fp32 matrix products" if is_fp32 else f"{kind} kernels"
    return Finding(
        kind="hot_operation",
        title=f"the device spends {in_percent(share)} of its time on {kernels}",
        cause=f"{in_ms(kernel_ns)} of a step, most of it in {named(names)}",
        action=_FP32_ADVICE if is_fp32 else _ADVICE[kind],
        scope=FindingScope(operations=names),
        evidence=longest_events(view, chosen, 1),
        look=("statistic", "--group_by", "kernel_kind"),
        weight=share * min(busy_share(view), 1.0),
    )


def kind_of(view: JobView, operation: Operation) -> str:
    """Classify a kernel as its system does."""
    return dialects.named(view.loaded.files[0].dialect).category(operation.name, operation.cat)


def real_steps(job: RealJob) -> RealSteps:
    """Collect what a comparison needs of a job without its profiler."""
    from analyzer.model.figures.job_figures import RealSteps

    recording = job.loaded.recording
    view = JobView(job.loaded)
    most, least = map(mean_step_ns, job.extremes or (recording, recording))
    kinds = by_kind_of_kernel(view, types=True)
    device_ns = np.array([*kinds.values()]).reshape(len(kinds), len(view.rows))
    causes = [*causes_of_late_ranks(view), *causes_of(view)]
    return RealSteps(step_lengths(recording), most, least, list(kinds), device_ns, causes)
