"""Floating-point operations of a job's model: by step and rank, and by kind of kernel, against the peaks.

MFU, the share of the peak that a model uses, is the time that its operations would take at the peaks of their
types, over the length of the step. Operations that the backward pass repeats do not count as the model's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from analyzer.answers.statistic.device_peaks import peaks_of
from analyzer.base.arrays import Float64, Int64
from analyzer.base.arrays.numbering import numbered
from analyzer.base.errors import UsageError
from analyzer.reading import dialects
from analyzer.reading.dialects import Need
from analyzer.reading.dialects.name_rules import COMMUNICATION
from analyzer.reading.dialects.steps import step_table
from analyzer.reading.formats.columns import Trace
from trace_utils import Request, Source, TraceFile, read_ranks


class _RankWork(Struct, frozen=True):
    """The work of a rank in its k steps, by g kinds and types of work."""

    device: str
    steps: Int64  # (k, 3) number, begin, end
    is_marked: bool  # else the recording stands for a step
    kinds: Sequence[tuple[str, str]]  # (g)
    #: (k, g, 6) time, operations, those that repeat others, bytes, time of products, time with known bytes
    sums: Float64


class _StepFlops(NamedTuple):
    """The operations of one step of a rank."""

    rank: str
    step: int | None
    length_ns: float
    flops: float  # of the model
    again: float
    rate: float  # FLOP/s of the model
    mfu: float | None  # None without a peak
    unmodelled: float  # share of the device's time


class _KindFlops(NamedTuple):
    """A kind of work in the mean step of a rank, with rates and shares of the peaks; None if unknown."""

    kind: str
    type: str
    took_ns: float
    share: float  # of the device's time
    unmodelled: float  # of the device's time
    rate: float | None  # FLOP/s
    of_peak: float | None
    bandwidth: float | None  # bytes a second
    of_memory: float | None
    intensity: float | None  # FLOP/byte


class _JobFlops(NamedTuple):
    """The operations of a job, with its first device and the peaks of that, as of `peaks_of`."""

    steps: Sequence[_StepFlops]
    kinds: Sequence[_KindFlops]
    device: str
    peaks: Mapping[str, float]
    source: str
    files: Sequence[TraceFile]
    repairs: Sequence[str]


_Lengths = Mapping[tuple[str, int], float]


def job_flops(
    paths: Sequence[Path], asked: Request, lengths: Callable[[], _Lengths] = dict, peak: float | None = None
) -> _JobFlops:
    """Count the operations of the job at `paths`.

    `lengths` tells the lengths of steps (ns), by rank and number, that are not the recorded ones; a `peak`
    (FLOP/s) replaces those of the devices. UsageError without recorded shapes.
    """
    needs = {Need.SHAPES, Need.STEPS}
    job = read_ranks(paths, partial(_rank_work, step_by=asked.step_by), asked._replace(needs=needs))
    job.check_any()
    ranks = {name: made for name, made in zip(job.names, job.made, strict=True) if made is not None}
    if not ranks:
        raise UsageError(
            f"--sub_option flops: {paths[0]} has no shapes of operators; record it with PyTorch's profiler "
            "and record_shapes=True"
        )
    peaks = {name: _peaks(rank, peak) for name, rank in ranks.items()}
    known = lengths()
    steps = [step for name, rank in ranks.items() for step in _steps(name, rank, known, peaks[name][0])]
    first = next(iter(ranks))
    kinds = [*_kinds([*ranks.values()], peaks[first][0])]
    return _JobFlops(steps, kinds, ranks[first].device, *peaks[first], job.files, job.repairs)


def _peaks(rank: _RankWork, peak: float | None) -> tuple[Mapping[str, float], str]:
    peaks, source = peaks_of(rank.device)
    if peak is None:
        return peaks, source
    return {**peaks, **{of_type: peak for _, of_type in rank.kinds if of_type}}, "--peak_tflops"


def _rank_work(source: Source, trace: Trace, step_by: str | None) -> _RankWork | None:
    """Add up the work of a rank, except communication; None without shapes."""
    system = dialects.of(trace)
    work = system.modelled_work(trace) if len(trace) else None
    if work is None:
        return None
    steps = step_table(system.find_steps(trace, step_by).whole)
    is_marked = len(steps) > 0
    if not is_marked:
        steps = np.array([[0, trace.ts_ns.min(), trace.end_ns.max()]], np.int64)
    place = np.searchsorted(steps[:, 1], work["begin_ns"], side="right") - 1
    inside = (place >= 0) & (work["begin_ns"] < steps[place, 2]) & (work["kind"] != COMMUNICATION)
    work, place = work[inside], place[inside]
    kinds, kind = numbered(zip(work["kind"].tolist(), work["type"].tolist(), strict=True))
    took = work["dur_ns"].astype(np.float64)
    values = took, *(work[of] for of in ("flops", "again", "bytes")), took * work["is_modelled"]
    shape = len(steps), len(kinds)
    sums = [
        np.bincount(place * len(kinds) + kind, value, np.prod(shape)).reshape(shape)
        for value in (*values, took * (work["bytes"] > 0))
    ]
    devices = trace.header.get("deviceProperties")
    first = devices[0] if isinstance(devices, list) and devices and isinstance(devices[0], dict) else {}
    return _RankWork(str(first.get("name") or ""), steps, is_marked, kinds, np.stack(sums, axis=-1))


def _steps(name: str, rank: _RankWork, lengths: _Lengths, peaks: Mapping[str, float]) -> Iterator[_StepFlops]:
    """Yield the steps of a rank."""
    at_peak = np.array([peaks.get(of_type, np.nan) for _, of_type in rank.kinds])
    for (number, begin, end), sums in zip(rank.steps.tolist(), rank.sums, strict=True):
        took, flops, again, _, known, _ = sums.T
        length_ns = lengths.get((name, number), max(float(end - begin), 1.0))
        model, step = flops - again, number if rank.is_marked else None
        at_best_ns = float((model[model > 0] / at_peak[model > 0]).sum()) * 1e9
        mfu = at_best_ns / length_ns if at_best_ns > 0 else None
        rate = float(model.sum()) / length_ns * 1e9
        unmodelled = 1 - float(known.sum() / took.sum()) if took.any() else 1.0
        yield _StepFlops(name, step, length_ns, float(model.sum()), float(again.sum()), rate, mfu, unmodelled)


def _kinds(ranks: Sequence[_RankWork], peaks: Mapping[str, float]) -> Iterator[_KindFlops]:
    """Yield the kinds of work over all steps and ranks, the longest first."""
    by_kind: dict[tuple[str, str], Float64] = {}
    for rank in ranks:
        for key, sums in zip(rank.kinds, rank.sums.sum(axis=0), strict=True):
            by_kind[key] = by_kind.get(key, 0.0) + sums
    whole_ns = max(sum(float(sums[0]) for sums in by_kind.values()), 1.0)
    n_steps = sum(len(rank.steps) for rank in ranks)
    for (kind, of_type), sums in sorted(by_kind.items(), key=lambda item: -item[1][0]):
        took_ns, flops, _, n_bytes, known_ns, sized_ns = sums.tolist()
        rate, bandwidth = _ratio(flops * 1e9, known_ns), _ratio(n_bytes * 1e9, sized_ns)
        yield _KindFlops(
            *(kind, of_type, took_ns / n_steps, took_ns / whole_ns, (took_ns - known_ns) / whole_ns),
            *(rate, _ratio(rate, peaks.get(of_type)), bandwidth, _ratio(bandwidth, peaks.get("memory"))),
            _ratio(flops, n_bytes),
        )


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part and whole else None
