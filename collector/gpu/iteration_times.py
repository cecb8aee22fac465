"""Iteration times as tables, charts and a document: a part of `--option collect`."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev

import numpy as np

import dialects
from dialects.steps import Step
from formats.columns import Trace
from result import Cell, Chart, Column, Lines, Repairs, Result, Table

_GPUS = (
    Column("gpu", "GPU"),
    Column("trace", "trace"),
    Column("events", "events", "int"),
    Column("steps", "steps", "int"),
    Column("fw_bw_ms", "FW+BW (ms)", "float"),
    Column("iteration_ms", "iteration (ms)", "float"),
    Column("deviation_ms", "deviation (ms)", "float"),
    Column("min_ms", "min (ms)", "float", minor=True),
    Column("max_ms", "max (ms)", "float", minor=True),
    Column("told_by", "steps found by"),
)
_STEPS = (
    Column("gpu", "GPU"),
    Column("step", "step", "int"),
    Column("fw_bw_ms", "FW+BW (ms)", "float"),
    Column("iteration_ms", "iteration (ms)", "float"),
)


_StepValues = dict[int, tuple[float | None, float]]  # step -> FW+BW, iteration


@dataclass(frozen=True, slots=True)
class Iterations:
    """The steps of one rank.

    Attributes
    ----------
    steps : the whole steps of the recording
    fw_bw_ns : per step, from its first forward to the end of its last backward operation; or None
    loads : all periods from one load of input data to the next, numbered from the job's first step;
        of BytePS's profiler they also cover the steps before the traced ones
    how : what marks a step, a phrase; "" where nothing does
    """

    steps: tuple[Step, ...]
    fw_bw_ns: tuple[int | None, ...]
    loads: tuple[Step, ...]
    how: str

    @property
    def mean_ns(self) -> float | None:
        """Average iteration time; None without a whole step."""
        return float(np.mean([step.dur_ns for step in self.steps])) if self.steps else None

    @property
    def fw_bw_mean_ns(self) -> float | None:
        """Average time of forward and backward pass; None where no step has both."""
        known = [value for value in self.fw_bw_ns if value is not None]
        return float(np.mean(known)) if known else None


@dataclass(frozen=True, slots=True)
class Gpu:
    """What is shown of one GPU (or of one rank's trace)."""

    name: str
    path: Path
    trace: Path
    events: Mapping[str, int]
    times: Iterations


def iterations(trace: Trace, step_by: str | None = None) -> Iterations:
    """Return the iteration times that `trace` tells; see `dialects.find_steps` for how."""
    found = dialects.find_steps(trace, step_by)
    steps = list(found.whole)
    loads = dialects.of(trace).loads(trace)
    return Iterations(
        steps=found.whole,
        fw_bw_ns=tuple(fw_bw_ns(trace, steps)),
        loads=tuple(loads),
        how=found.how,
    )


def fw_bw_ns(trace: Trace, steps: Sequence[Step]) -> list[int | None]:
    """Return per step the time from the start of its first forward to the end of its last backward.

    None for a step without them; see `System.passes`.
    """
    forward, backward = dialects.of(trace).passes(trace)
    starts = np.sort(trace.ts_ns[forward])
    order = np.argsort(trace.ts_ns[backward], kind="stable")
    bw_starts = trace.ts_ns[backward][order]
    bw_ends = (trace.ts_ns + trace.dur_ns)[backward][order]
    found: list[int | None] = []
    for step in steps:
        fw = starts[np.searchsorted(starts, step.start_ns) : np.searchsorted(starts, step.end_ns)]
        ends = bw_ends[np.searchsorted(bw_starts, step.start_ns) : np.searchsorted(bw_starts, step.end_ns)]
        found.append(int(ends.max() - fw[0]) if len(fw) and len(ends) else None)
    return found


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
    untold = [f"{gpu.trace}: marks no whole step: no iteration time" for gpu in gpus if not gpu.times.steps]
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
        notes=[*untold, *notes],
        repairs=repairs.lines,
        beside=args.path[0],
    )


def _entry(gpu: Gpu) -> dict[str, object]:
    return {
        "path": str(gpu.path),
        "trace": str(gpu.trace),
        "events": dict(gpu.events),
        "steps": len(gpu.times.steps),
        "fw_bw_ms": _ms(gpu.times.fw_bw_mean_ns),
        "iteration_ms": _ms(gpu.times.mean_ns),
        "iteration_ms_per_step": [step.dur_ns / 1e6 for step in gpu.times.steps],
    }


def _tables(args: Namespace, gpus: Sequence[Gpu]) -> list[Table]:
    steps = {gpu.name: _step_values(gpu) for gpu in gpus}
    rows = [
        _summary(gpu.name, gpu.trace.name, sum(gpu.events.values()), steps[gpu.name], gpu.times.how)
        for gpu in gpus
    ]
    if len(gpus) > 1 and (together := _together(list(steps.values()))):
        steps["job"] = together
        rows.append(_summary("job", None, None, together, "mean of all, step by step"))
    each = [(name, step, *values) for name, found in steps.items() for step, values in found.items()]
    if args.sort:
        each.sort(key=lambda row: row[3], reverse=True)
    return [Table("gpus", "GPUs", _GPUS, rows), Table("steps", "Steps", _STEPS, each[: args.head])]


def _step_values(gpu: Gpu) -> _StepValues:
    times = gpu.times
    pairs = zip(times.steps, times.fw_bw_ns, strict=True)
    return {step.label: (_ms(fw_bw), step.dur_ns / 1e6) for step, fw_bw in pairs}


def _together(ranks: Sequence[_StepValues]) -> _StepValues:
    """Return the mean over the ranks of every step that all of them have."""
    common = [step for step in ranks[0] if all(step in rank for rank in ranks)]
    found: _StepValues = {}
    for step in common:
        known = [value for rank in ranks if (value := rank[step][0]) is not None]
        found[step] = (fmean(known) if known else None, fmean(rank[step][1] for rank in ranks))
    return found


def _of_job(gpus: Sequence[Gpu]) -> tuple[float | None, float | None]:
    """Return FW+BW and iteration time (ns) of the steps that all GPUs have, else of each GPU's own."""
    each = [(gpu.times, zip(gpu.times.steps, gpu.times.fw_bw_ns, strict=True)) for gpu in gpus]
    ranks: list[_StepValues] = [{s.label: (fw, float(s.dur_ns)) for s, fw in pairs} for t, pairs in each]
    ranks = [rank for rank in ranks if rank]
    if not ranks:
        return None, None
    steps = list(_together(ranks).values()) or [step for rank in ranks for step in rank.values()]
    known = [fw_bw for fw_bw, _ in steps if fw_bw is not None]
    return (fmean(known) if known else None), fmean(dur for _, dur in steps)


def _summary(
    name: str, trace: str | None, events: int | None, steps: _StepValues, how: str
) -> tuple[Cell, ...]:
    fw_bw = [value for value, _ in steps.values() if value is not None]
    iteration = [value for _, value in steps.values()]
    return (
        name,
        trace,
        events,
        len(iteration),
        fmean(fw_bw) if fw_bw else None,
        fmean(iteration) if iteration else None,
        pstdev(iteration) if iteration else None,
        min(iteration, default=None),
        max(iteration, default=None),
        how or None,
    )


def _charts(gpus: Sequence[Gpu]) -> list[Chart]:
    traced = {gpu.name: {s.label: s.dur_ns / 1e6 for s in gpu.times.steps} for gpu in gpus}
    charts: list[Chart] = [_lines("Iteration time of the recorded steps", traced)]
    loads = {gpu.name: {s.label: s.dur_ns / 1e6 for s in gpu.times.loads} for gpu in gpus}
    more = {
        name: all_steps
        for name, all_steps in loads.items()
        if len(all_steps) > len(traced[name]) and min(traced[name], default=0) > 1
    }
    if more:
        before = {
            f"{name}, not traced": {k: ms for k, ms in steps.items() if k not in traced[name]}
            for name, steps in more.items()
        }
        during = {f"{name}, traced": traced[name] for name in more}
        charts.append(_lines("From load to load of input data, from the job's first step", before | during))
    return charts


def _lines(title: str, series: Mapping[str, Mapping[int, float]]) -> Lines:
    x = sorted({number for values in series.values() for number in values})
    lines = {name: [values.get(number) for number in x] for name, values in series.items()}
    return Lines(title, "step", "iteration time (ms)", [float(number) for number in x], lines)


def _ms(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e6
