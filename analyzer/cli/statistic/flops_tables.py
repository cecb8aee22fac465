"""`--sub_option flops`: FLOP/s and MFU of each step on each rank, and of each kind of kernel."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

from analyzer.answers.statistic.model_flops import job_flops
from analyzer.base.units import in_digits, in_ms, in_percent
from analyzer.cli import asked, command, damage_notes, name_files, real, real_notes
from analyzer.cli.statistic.statistic_tables import check_events
from analyzer.reading.dialects.name_rules import PRODUCTS
from analyzer.report.result import Column, Result, Roofline, Table, ms_column
from dag_utils import load_steps

_MISSING = 0.005  # a share of the device's time that a note tells

_HOW = (
    "Products of matrices, convolutions and attention count, from the shapes of operators; in attention all "
    "pairs of positions, also masked ones. GB/s: each tensor is read or written once, which is the least."
)
_STEPS = (
    Column("rank", "rank"),
    Column("step", "step", "id"),
    ms_column("step_ms", "length", "length_ns"),
    Column("model_tflop", "TFLOP of the model", "float", value=lambda row: row.flops / 1e12),
    Column("repeated_tflop", "repeated TFLOP", "float", value=lambda row: row.again / 1e12),
    Column("tflop_per_s", "TFLOP/s", "float", value=lambda row: row.rate / 1e12),
    Column("mfu", "MFU", "percent", 1),
    Column("not_modelled_share", "not modelled", "percent", 0, value=lambda row: row.unmodelled),
)
_KINDS = (
    Column("kind", "kind"),
    Column("type", "type"),
    ms_column("time_ms", "of a step", "took_ns"),
    Column("share", "share", "percent", 0),
    Column("tflop_per_s", "TFLOP/s", "float", value=lambda row: row.rate and row.rate / 1e12),
    Column("peak_share", "of peak FLOP/s", "percent", 0, value=lambda row: row.of_peak),
    Column("gb_per_s", "GB/s", "float", value=lambda row: row.bandwidth and row.bandwidth / 1e9),
    Column("memory_share", "of peak GB/s", "percent", 0, value=lambda row: row.of_memory),
    Column("flop_per_byte", "FLOP/byte", "float", value=lambda row: row.intensity),
)


def flops(args: Namespace) -> Result:
    """Count the floating-point operations of the job at `--path`."""
    check_events(args, "operators")
    notes: list[str] = []

    def real_lengths() -> dict[tuple[str, int], float]:
        loaded = load_steps(args.path, asked(args))
        job = real(args, loaded)
        if job is None:
            return {}
        notes.extend(real_notes(job.step))
        recording = job.loaded.recording
        return {
            (owner, step.number if recording.has_steps else 0): float(length_ns)
            for step in recording.bounds
            for owner, length_ns in zip(recording.owners, step.iteration_ns.tolist(), strict=True)
            if length_ns > 0
        }

    peak = None if args.peak_tflops is None else args.peak_tflops * 1e12
    job = job_flops(args.path, asked(args), real_lengths, peak)
    name_files(args, job.files[0].path)
    steps = Table.of("flops", "Operations of each step", _STEPS, job.steps, lambda row: -row.flops)
    kinds = Table.of("kernels", "Kinds of work", _KINDS, job.kinds, lambda row: -row.took_ns)
    n = max(len(job.steps), 1)
    step_ns, rate = (sum(getattr(step, of) for step in job.steps) / n for of in ("length_ns", "rate"))
    model, again = (sum(getattr(step, of) for step in job.steps) / n for of in ("flops", "again"))
    mfus = [step.mfu for step in job.steps if step.mfu is not None]
    mfu = f", {in_percent(sum(mfus) / len(mfus), 1)} of the peak (MFU)" if mfus else ""
    unmodelled = sum(kind.unmodelled for kind in job.kinds)
    missing = sum(kind.unmodelled for kind in job.kinds if kind.kind in PRODUCTS)
    whose = "the device's" if job.device else "the operators'"
    does = f"a step of {in_ms(step_ns)} does {in_digits(model / 1e12)} TFLOP on each rank"
    reaches = f"{in_digits(rate / 1e12)} TFLOP/s{mfu}"
    used = {kind.type for kind in job.kinds}
    peaks = [f"{of} {in_digits(rate / 1e12)} TFLOP/s" for of, rate in job.peaks.items() if of in used]
    memory = [f"memory {in_digits(job.peaks['memory'] / 1e9)} GB/s"] if "memory" in job.peaks else []
    known = f"Peaks of {job.device or 'the device'}: {', '.join([*peaks, *memory])} ({job.source}, dense)."
    why = f"the peak of {job.device or 'this device'} is not known; --peak_tflops N tells it"
    if again:
        notes.append(
            f"{in_digits(again / 1e12)} TFLOP of a step are repeated in the backward pass (recomputed "
            "activations, scores of attention); they are no part of MFU."
        )
    if missing > _MISSING:
        notes.append(
            f"{in_percent(missing)} of {whose} time is in products without shapes (compiled or "
            "custom kernels, CUDA graphs): MFU is at least the one shown."
        )
    return Result(
        "statistic",
        f"Operations of {', '.join(map(str, args.path))}",
        {
            "device": job.device or None,
            "peaks": job.peaks,
            "peak_source": job.source,
            steps.name: steps,
            kinds.name: kinds,
        },
        tables=[kinds, steps],
        charts=_roofline(job.device, job.peaks, kinds.records()),
        headline=f"{in_percent(unmodelled)} of {whose} time is not modelled; {does}: {reaches}.",
        notes=[_HOW, known if job.peaks else why, *notes, *damage_notes(job.files), command(args, "kernels")],
        repairs=job.repairs,
    )


def _roofline(device: str, peaks: Mapping[str, float], kinds: Sequence[Mapping[str, Any]]) -> list[Roofline]:
    """Draw the kinds of work whose operations and bytes are known under the peaks of the device."""
    points = [
        (f"{kind['kind']} {kind['type']}", kind["flop_per_byte"], kind["tflop_per_s"])
        for kind in kinds
        if kind["flop_per_byte"]
    ]
    used = {kind["type"] for kind in kinds if kind["flop_per_byte"]}
    roofs = [(of, rate / 1e12) for of, rate in peaks.items() if of in used]
    slope = peaks.get("memory", 0.0) / 1e12
    return [Roofline(f"Roofline of {device}", points, roofs, slope)] if points and roofs and slope else []
