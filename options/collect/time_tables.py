"""Iteration times as tables, charts and a document: a part of `--option collect`."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from statistics import fmean, median, pstdev

import numpy as np

from arrays.median import n_warm_up
from collector.gpu.iteration_times import Gpu, StepTime, known_mean, together
from errors import counted
from options.step_charts import rank_map
from result import Bars, Chart, Column, Repairs, Result, Table, in_ms, ms_of

_FIRST = (0, 1)  # numbers of a job's first step


def time_result(
    args: Namespace,
    gpus: Sequence[Gpu],
    repairs: Repairs,
    title: str,
    notes: Sequence[str] = (),
    commentary: Sequence[str] = (),
) -> Result:
    """Return the result of `--option collect` for the GPUs; `title` goes before the paths."""
    ranks = [gpu.steps for gpu in gpus if gpu.steps]
    of_job = (together(ranks) if ranks else []) or [step for rank in ranks for step in rank]
    fw_bw = ms_of(known_mean(step.fw_bw_ns for step in of_job))
    job = ms_of(known_mean(step.iteration_ns for step in of_job))
    document = {"option": "collect", "gpus": [_entry(gpu) for gpu in gpus], "iteration_ms": job}
    unmarked = [f"{gpu.trace}: marks no whole step: no iteration time" for gpu in gpus if not gpu.steps]
    figures = [("iteration time", in_ms(job * 1e6))] if job is not None else []
    if fw_bw is not None:
        figures.append(("FW+BW", in_ms(fw_bw * 1e6)))
    return Result(
        "collect",
        f"{title} {', '.join(map(str, args.path))}",
        document,
        headline=_headline(of_job, len(ranks), gpus),
        tables=_tables(args, gpus) if gpus else (),
        charts=_charts(gpus) if gpus else (),
        figures=figures,
        read=[f"{gpu.path}: {sum(gpu.events.values()):,} events" for gpu in gpus],
        commentary=commentary,
        notes=[*unmarked, *notes],
        repairs=repairs.lines,
    )


def _headline(steps: Sequence[StepTime], n_ranks: int, gpus: Sequence[Gpu]) -> str:
    """Return one sentence: how long a step is, and whether the first ones took longer; "" without steps."""
    if not steps:
        return ""
    times = [step.iteration_ns for step in steps]
    of_ranks = f" of {counted(n_ranks, 'rank')}" if n_ranks > 1 else ""
    sentence = f"An iteration takes {in_ms(fmean(times))} (mean of {counted(len(times), 'step')}{of_ranks}"
    sentence += f"; {in_ms(min(times))} to {in_ms(max(times))})" if len(times) > 1 else ")"
    fw_bw_ns = known_mean(step.fw_bw_ns for step in steps)
    if fw_bw_ns is not None:
        sentence += f", {in_ms(fw_bw_ns)} of it forward and backward"
    return f"{sentence}{_warm_up(gpus)}."


def _warm_up(gpus: Sequence[Gpu]) -> str:
    """Return a clause about the job's first steps, if these are known and are its warm-up."""
    found = []
    for gpu in gpus:
        known: list[tuple[int, float]] = [(step.step, step.iteration_ns) for step in gpu.steps]
        if any(load.label in _FIRST for load in gpu.loads):  # also of steps that were not traced
            known = [(load.label, load.dur_ns) for load in gpu.loads]
        times_ns = [ns for _, ns in known]
        if known and known[0][0] in _FIRST and (n_slow := n_warm_up(np.array(times_ns))):
            found.append((max(times_ns[:n_slow]) / median(times_ns), n_slow, gpu.name))
    if not found:
        return ""
    times, n_steps, name = max(found)
    first = "the job's first step" if n_steps == 1 else f"the job's first {n_steps} steps"
    on = f" on {name}" if len(gpus) > 1 else ""
    return f"; {first} took up to {times:.1f} times the median{on} (warm-up)"


def _entry(gpu: Gpu) -> dict[str, object]:
    return {
        "path": str(gpu.path),
        "trace": str(gpu.trace),
        "events": dict(gpu.events),
        "steps": len(gpu.steps),
        "fw_bw_ms": ms_of(gpu.fw_bw_ns),
        "iteration_ms": ms_of(gpu.mean_ns),
        "iteration_ms_per_step": gpu.ms,
    }


_GPUS = (
    Column("gpu", "GPU", value=lambda g: g.name),
    Column("trace", "trace", value=lambda g: g.trace and g.trace.name),
    Column("events", "events", "int", value=lambda g: sum(g.events.values()) if g.trace else None),
    Column("steps", "steps", "int", value=lambda g: len(g.steps)),
    Column("fw_bw_ms", "FW+BW (ms)", "float", value=lambda g: ms_of(g.fw_bw_ns)),
    Column("iteration_ms", "iteration (ms)", "float", value=lambda g: known_mean(g.ms)),
    Column("deviation_ms", "deviation (ms)", "float", value=lambda g: pstdev(g.ms) if g.ms else None),
    Column("min_ms", "min (ms)", "float", value=lambda g: min(g.ms, default=None)),
    Column("max_ms", "max (ms)", "float", value=lambda g: max(g.ms, default=None)),
    Column("told_by", "steps found by", value=lambda g: g.how or None),
)
_STEPS = (
    Column("gpu", "GPU", value=lambda pair: pair[0]),
    Column("step", "step", "int", value=lambda pair: pair[1].step),
    Column("fw_bw_ms", "FW+BW (ms)", "float", value=lambda pair: ms_of(pair[1].fw_bw_ns)),
    Column("iteration_ms", "iteration (ms)", "float", value=lambda pair: pair[1].iteration_ns / 1e6),
)


def _tables(args: Namespace, gpus: Sequence[Gpu]) -> list[Table]:
    rows = list(gpus)
    if len(gpus) > 1 and (of_job := together([gpu.steps for gpu in gpus])):
        rows.append(Gpu("job", None, None, {}, of_job, [], "mean of all, step by step"))
    steps = [(gpu.name, step) for gpu in rows for step in gpu.steps]
    if args.sort:
        steps.sort(key=lambda pair: pair[1].iteration_ns, reverse=True)
    return [Table.of("gpus", "GPUs", _GPUS, rows), Table.of("steps", "Steps", _STEPS, steps[: args.head])]


def _charts(gpus: Sequence[Gpu]) -> list[Chart]:
    title = "Iteration time of the recorded steps"
    times = {
        gpu.name: {step.step: step.iteration_ns / 1e6 for step in gpu.steps} for gpu in gpus if gpu.steps
    }
    numbers = sorted({number for steps in times.values() for number in steps})
    names = list(map(str, numbers))
    if len(times) == 1:
        series = {name: [steps[number] for number in numbers] for name, steps in times.items()}
        return [Bars(title, "step", "iteration time (ms)", names, series)]
    if not times:
        return []
    ms = np.array([[steps.get(number, np.nan) for number in numbers] for steps in times.values()])
    return [rank_map(title, list(times), names, ms)]
