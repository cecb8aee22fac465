"""`--sub_option flops`: FLOP/s and MFU of each step on each rank, and of each kind of work.

MFU, the share of the peak that a model uses, is the time that its operations would take at the peaks of their
types, over the length of the step. Operations that the backward pass repeats do not count as the model's.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from analyzer.answers.statistic.model_flops import TYPES, modelled_ranks, peaks_of
from analyzer.base.units import in_digits, in_ms, in_percent
from analyzer.cli import asked, command, damage_notes, name_files
from analyzer.cli.statistic.statistic_tables import check_events, real_steps
from analyzer.reading.dialects.name_rules import PRODUCTS
from analyzer.report.result import Column, Result, Roofline, Table

_FEW = 0.005  # a share that a note tells
_HOW = (
    "Products of matrices, convolutions and attention count, from the shapes of operators; in attention all "
    "pairs of positions, also masked ones. GB/s: each tensor is read or written once, which is the least."
)
_STEPS = (
    Column("rank", "rank"),
    Column("step", "step", "id"),
    Column("step_ms", "length (ms)", "float"),
    Column("model_tflop", "TFLOP of the model", "float", 6),
    Column("repeated_tflop", "repeated TFLOP", "float", 6),
    Column("tflop_per_s", "TFLOP/s", "float"),
    Column("mfu", "MFU", "percent", 1),
    Column("not_modelled_share", "not modelled", "percent", 0),
)
_KINDS = (
    Column("kind", "kind"),
    Column("type", "type"),
    Column("time_ms", "of a step (ms)", "float"),
    Column("share", "share", "percent", 0),
    Column("tflop_per_s", "TFLOP/s", "float"),
    Column("peak_share", "of peak FLOP/s", "percent", 0),
    Column("gb_per_s", "GB/s", "float"),
    Column("memory_share", "of peak GB/s", "percent", 0),
    Column("flop_per_byte", "FLOP/byte", "float"),
)


def flops(args: Namespace) -> Result:
    """Count the floating-point operations of the job at `--path`."""
    check_events(args, "operators")
    ranks, files, repairs = modelled_ranks(args.path, asked(args))
    name_files(args, files[0].path)
    loaded, notes = real_steps(args)
    recording = loaded.recording
    lengths_ns = {
        (owner, step.number if recording.has_steps else 0): float(length_ns)
        for step in recording.bounds
        for owner, length_ns in zip(recording.owners, step.iteration_ns.tolist(), strict=True)
        if length_ns > 0
    }
    steps = [row for name, rank in ranks.items() for row in _steps(name, rank, lengths_ns, args.peak_tflops)]
    first = next(iter(ranks.values()))
    device, named = first.device, first.device or "the device"
    peaks, source = _peaks(device, args.peak_tflops)
    kinds = _kinds([*ranks.values()], peaks)
    settled = {recording.bounds[row].number for row in recording.whole_steps}  # without the warm-up
    usual = [row for row in steps if row[1] in settled] or steps
    columns = np.array([row[2:] for row in usual], np.float64).T
    step_ms, model, again, _, _, unmodelled = columns.mean(axis=1).tolist()
    rate, mfu = np.average(columns[3:5], axis=1, weights=columns[0]).tolist()
    whose = "the device's" if first.on_device else "the operators'"
    missing = sum(row[3] for row in kinds if row[0] in PRODUCTS and not row[1])
    of_peak = "" if np.isnan(mfu) else f", {in_percent(mfu, 1)} of the peak (MFU)"
    does = f"a step of {in_ms(step_ms * 1e6)} does {in_digits(model)} TFLOP on each rank"
    if again > _FEW * model:
        notes.append(
            f"{in_digits(again)} TFLOP of a step are repeated in the backward pass (recomputed activations, "
            "scores of attention); they are no part of MFU."
        )
    if missing > _FEW:
        notes.append(
            f"{in_percent(missing)} of {whose} time is in products without shapes (compiled or custom "
            "kernels, CUDA graphs): the rate is at least the one shown."
        )
    used = [f"{of} {in_digits(peaks[of] / 1e12)} TFLOP/s" for _, of, *_ in kinds if of in peaks]
    used += [f"memory {in_digits(peaks['memory'] / 1e9)} GB/s"] if "memory" in peaks else []
    known = f"Peaks of {named}, dense: {', '.join(dict.fromkeys(used))} ({source})."
    tables = (
        Table("kernels", "Kinds of work", _KINDS, kinds),
        Table("flops", "Operations of each step", _STEPS, steps, order=[-row[3] for row in steps]),
    )
    return Result(
        "statistic",
        f"Operations of {', '.join(map(str, args.path))}",
        {"device": device or None, "peaks": peaks, **{table.name: table for table in tables}},
        tables=tables,
        charts=_roofline(named, kinds, peaks),
        headline=f"{in_percent(unmodelled)} of {whose} time is not modelled; {does}: "
        f"{in_digits(rate)} TFLOP/s{of_peak}.",
        notes=[
            _HOW,
            known if used else f"The peak of {named} is not known; --peak_tflops N tells it.",
            *notes,
            *damage_notes(files),
            command(args, "kernels"),
        ],
        repairs=repairs,
    )


def _peaks(device: str, peak: float | None) -> tuple[Mapping[str, float], str]:
    peaks, source = peaks_of(device)
    if peak is None:
        return peaks, source
    return {**peaks, **dict.fromkeys(TYPES, peak * 1e12)}, "--peak_tflops"


def _steps(
    name: str, rank: Any, lengths_ns: Mapping[tuple[str, int], float], peak: float | None
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of `_STEPS` of a rank."""
    peaks, _ = _peaks(rank.device, peak)
    peak_rates = np.array([peaks.get(of_type, np.nan) for _, of_type in rank.kinds])
    for (number, begin, end), sums in zip(rank.steps.tolist(), rank.sums, strict=True):
        length_ns = lengths_ns.get((name, number), max(end - begin, 1))
        took, does, again, _, known, _ = sums.T
        model = does - again
        known_ns, flops = np.nan_to_num(model / peak_rates) * 1e9, float(model.sum())
        is_known = flops > 0 and float(model[np.isnan(peak_rates)].sum()) <= _FEW * flops
        mfu = float(known_ns.sum()) / length_ns if is_known else None
        unmodelled = 1 - float(known.sum()) / max(float(took.sum()), 1.0)
        of_step = flops / 1e12, float(again.sum()) / 1e12, flops / length_ns / 1e3, mfu, unmodelled
        yield name, number if rank.is_marked else None, length_ns / 1e6, *of_step


def _kinds(ranks: Sequence[Any], peaks: Mapping[str, float]) -> list[tuple[Any, ...]]:
    """List the rows of `_KINDS`, the longest first: means over steps and ranks."""
    totals: dict[tuple[str, str], Any] = {}
    for rank in ranks:
        for kind, sums in zip(rank.kinds, rank.sums.sum(axis=0), strict=True):
            totals[kind] = totals.get(kind, 0.0) + sums
    n_steps, whole = sum(len(rank.steps) for rank in ranks), sum(sums[0] for sums in totals.values())
    rows = []
    for (kind, of_type), sums in sorted(totals.items(), key=lambda item: -item[1][0]):
        took, does, _, n_bytes, known, sized = sums.tolist()
        rate, bandwidth = _ratio(does * 1e9, known), _ratio(n_bytes * 1e9, sized)
        of_peak, of_memory = _ratio(rate, peaks.get(of_type)), _ratio(bandwidth, peaks.get("memory"))
        speeds = _ratio(rate, 1e12), of_peak, _ratio(bandwidth, 1e9), of_memory, _ratio(does, n_bytes)
        rows.append((kind, of_type, took / n_steps / 1e6, took / max(whole, 1.0), *speeds))
    return rows


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part and whole else None


def _roofline(device: str, kinds: Sequence[tuple[Any, ...]], peaks: Mapping[str, float]) -> list[Roofline]:
    """Draw the kinds of work whose operations and bytes are known under the peaks of the device."""
    points = [(f"{row[0]} {row[1]}", row[8], row[4]) for row in kinds if row[8] and row[4]]
    roofs = [(of, peaks[of] / 1e12) for of in dict.fromkeys(row[1] for row in kinds if row[8]) if of in peaks]
    slope = peaks.get("memory", 0.0) / 1e12
    return [Roofline(f"Roofline of {device}", points, roofs, slope)] if points and roofs and slope else []
