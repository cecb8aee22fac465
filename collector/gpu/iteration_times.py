"""Iteration times as tables, charts and a document: a part of `--option collect`."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev
from typing import NamedTuple

import numpy as np

import dialects
from dialects.steps import Step
from formats.columns import Trace
from result import Chart, Column, Lines, Repairs, Result, Table


class StepTime(NamedTuple):
    """How long one step took; FW+BW from its first forward to the end of its last backward operation."""

    step: int
    fw_bw_ns: float | None  # None where the step has not both
    iteration_ns: float


@dataclass(frozen=True, slots=True)
class Iterations:
    """The steps of one rank.

    Attributes
    ----------
    steps : the whole steps of the recording
    loads : all periods from one load of input data to the next, numbered from the job's first step;
        of BytePS's profiler they also cover the steps before the traced ones
    how : what marks a step, a phrase; "" where nothing does
    """

    steps: Sequence[StepTime]
    loads: Sequence[Step]
    how: str

    @property
    def mean_ns(self) -> float | None:
        """Average iteration time; None without a whole step."""
        return _mean(step.iteration_ns for step in self.steps)


@dataclass(frozen=True, slots=True)
class Gpu:
    """What is shown of one GPU (or of one rank's trace)."""

    name: str
    path: Path
    trace: Path
    events: Mapping[str, int]
    times: Iterations


def iterations(trace: Trace, step_by: str | None = None) -> Iterations:
    """Return the iteration times that `trace` tells; see `System.find_steps` for how."""
    recorded = dialects.of(trace).find_steps(trace, step_by)
    passes = fw_bw_ns(trace, recorded.whole)
    steps = [StepTime(s.label, fw_bw, s.dur_ns) for s, fw_bw in zip(recorded.whole, passes, strict=True)]
    return Iterations(steps, dialects.of(trace).loads(trace), recorded.how)


def fw_bw_ns(trace: Trace, steps: Sequence[Step]) -> list[int | None]:
    """Return per step the time from the start of its first forward to the end of its last backward.

    None for a step without them; see `System.passes`.
    """
    forward, backward = dialects.of(trace).passes(trace)
    starts = np.sort(trace.ts_ns[forward])
    order = np.argsort(trace.ts_ns[backward], kind="stable")
    bw_starts, bw_ends = trace.ts_ns[backward][order], trace.end_ns[backward][order]
    durations: list[int | None] = []
    for step in steps:
        bounds = (step.start_ns, step.end_ns)
        fw = starts[slice(*np.searchsorted(starts, bounds))]
        ends = bw_ends[slice(*np.searchsorted(bw_starts, bounds))]
        durations.append(int(ends.max() - fw[0]) if len(fw) and len(ends) else None)
    return durations


def time_result(
    args: Namespace,
    gpus: Sequence[Gpu],
    repairs: Repairs,
    title: str,
    notes: Sequence[str] = (),
    commentary: Sequence[str] = (),
) -> Result:
    """Return what `--option collect` says of the GPUs; `title` goes before the paths."""
    fw_bw, job = map(_ms, _of_job(gpus))
    document = {"option": "collect", "gpus": [_entry(gpu) for gpu in gpus], "iteration_ms": job}
    unmarked = [f"{gpu.trace}: marks no whole step: no iteration time" for gpu in gpus if not gpu.times.steps]
    figures = [("iteration time", f"{job:.3f} ms")] if job is not None else []
    if fw_bw is not None:
        figures.append(("FW+BW", f"{fw_bw:.3f} ms"))
    return Result(
        "collect",
        f"{title} {', '.join(map(str, args.path))}",
        document,
        tables=_tables(args, gpus) if gpus else (),
        charts=_charts(gpus) if gpus else (),
        figures=figures,
        read=[f"{gpu.path}: {sum(gpu.events.values()):,} events" for gpu in gpus],
        commentary=commentary,
        notes=[*unmarked, *notes],
        repairs=repairs.lines,
        beside=args.path[0],
    )


def _entry(gpu: Gpu) -> dict[str, object]:
    steps = gpu.times.steps
    return {
        "path": str(gpu.path),
        "trace": str(gpu.trace),
        "events": dict(gpu.events),
        "steps": len(steps),
        "fw_bw_ms": _ms(_mean(step.fw_bw_ns for step in steps)),
        "iteration_ms": _ms(gpu.times.mean_ns),
        "iteration_ms_per_step": [step.iteration_ns / 1e6 for step in steps],
    }


# ---- tables


class _Row(NamedTuple):
    """A row of the table of GPUs; the last one may be the job's."""

    gpu: str
    trace: str | None
    events: int | None
    times: Sequence[StepTime]
    told_by: str | None

    @property
    def iteration_ms(self) -> list[float]:
        return [step.iteration_ns / 1e6 for step in self.times]


_GPUS = (
    Column("gpu", "GPU"),
    Column("trace", "trace"),
    Column("events", "events", "int"),
    Column("steps", "steps", "int", value=lambda r: len(r.times)),
    Column("fw_bw_ms", "FW+BW (ms)", "float", value=lambda r: _ms(_mean(s.fw_bw_ns for s in r.times))),
    Column("iteration_ms", "iteration (ms)", "float", value=lambda r: _mean(r.iteration_ms)),
    Column(
        "deviation_ms", "deviation (ms)", "float", value=lambda r: pstdev(r.iteration_ms) if r.times else None
    ),
    Column("min_ms", "min (ms)", "float", minor=True, value=lambda r: min(r.iteration_ms, default=None)),
    Column("max_ms", "max (ms)", "float", minor=True, value=lambda r: max(r.iteration_ms, default=None)),
    Column("told_by", "steps found by"),
)
_STEPS = (
    Column("gpu", "GPU", value=lambda pair: pair[0]),
    Column("step", "step", "int", value=lambda pair: pair[1].step),
    Column("fw_bw_ms", "FW+BW (ms)", "float", value=lambda pair: _ms(pair[1].fw_bw_ns)),
    Column("iteration_ms", "iteration (ms)", "float", value=lambda pair: pair[1].iteration_ns / 1e6),
)


def _tables(args: Namespace, gpus: Sequence[Gpu]) -> list[Table]:
    rows = [
        _Row(gpu.name, gpu.trace.name, sum(gpu.events.values()), gpu.times.steps, gpu.times.how or None)
        for gpu in gpus
    ]
    if len(gpus) > 1 and (together := _together([gpu.times.steps for gpu in gpus])):
        rows.append(_Row("job", None, None, together, "mean of all, step by step"))
    steps = [(row.gpu, step) for row in rows for step in row.times]
    if args.sort:
        steps.sort(key=lambda pair: pair[1].iteration_ns, reverse=True)
    return [Table.of("gpus", "GPUs", _GPUS, rows), Table.of("steps", "Steps", _STEPS, steps[: args.head])]


def _together(ranks: Sequence[Sequence[StepTime]]) -> list[StepTime]:
    """Return the mean over the ranks of every step that all of them have."""
    by_step = [{time.step: time for time in rank} for rank in ranks]
    common = [step for step in by_step[0] if all(step in rank for rank in by_step)]
    return [
        StepTime(
            step,
            _mean(rank[step].fw_bw_ns for rank in by_step),
            fmean(rank[step].iteration_ns for rank in by_step),
        )
        for step in common
    ]


def _of_job(gpus: Sequence[Gpu]) -> tuple[float | None, float | None]:
    """Return FW+BW and iteration time (ns) of the steps that all GPUs have, else of each GPU's own."""
    ranks = [gpu.times.steps for gpu in gpus if gpu.times.steps]
    steps = (_together(ranks) if ranks else []) or [step for rank in ranks for step in rank]
    return _mean(step.fw_bw_ns for step in steps), _mean(step.iteration_ns for step in steps)


def _mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are known; None without any."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _ms(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e6


# ---- charts


def _charts(gpus: Sequence[Gpu]) -> list[Chart]:
    traced = {gpu.name: {t.step: t.iteration_ns / 1e6 for t in gpu.times.steps} for gpu in gpus}
    charts: list[Chart] = [_lines("Iteration time of the recorded steps", traced)]
    before, during = {}, {}
    for gpu in gpus:
        own = traced[gpu.name]
        if len(gpu.times.loads) > len(own) and min(own, default=0) > 1:
            earlier = {step.label: step.dur_ns / 1e6 for step in gpu.times.loads if step.label not in own}
            before[f"{gpu.name}, not traced"] = earlier
            during[f"{gpu.name}, traced"] = own
    if before:
        charts.append(_lines("From load to load of input data, from the job's first step", before | during))
    return charts


def _lines(title: str, series: Mapping[str, Mapping[int, float]]) -> Lines:
    x = sorted({number for values in series.values() for number in values})
    lines = {name: [values.get(number) for number in x] for name, values in series.items()}
    return Lines(title, "step", "iteration time (ms)", [float(number) for number in x], lines)
