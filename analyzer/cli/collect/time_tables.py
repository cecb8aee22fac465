"""Iteration times as tables, charts and a document: a part of `--option collect`."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from statistics import fmean, pstdev

from analyzer.base.errors import Repairs, counted
from analyzer.base.units import in_ms, ms_of
from analyzer.report.result import Column, Result, Table
from collector.gpu.iteration_times import Gpu, StepTime, known_mean, together


def time_result(
    args: Namespace,
    gpus: Sequence[Gpu],
    repairs: Repairs,
    title: str,
    notes: Sequence[str] = (),
) -> Result:
    """Make the result of `--option collect` for the GPUs; `title` goes before the paths."""
    ranks = [gpu.steps for gpu in gpus if gpu.steps]
    of_job = (together(ranks) if ranks else []) or [step for rank in ranks for step in rank]
    fw_bw = ms_of(known_mean(step.fw_bw_ns for step in of_job))
    job = ms_of(known_mean(step.iteration_ns for step in of_job))
    document = {"gpus": [_entry(gpu) for gpu in gpus], "iteration_ms": job}
    unmarked = [f"{gpu.trace}: marks no whole step: no iteration time" for gpu in gpus if not gpu.steps]
    figures = [("iteration time", in_ms(job * 1e6))] if job is not None else []
    if fw_bw is not None:
        figures.append(("FW+BW", in_ms(fw_bw * 1e6)))
    return Result(
        "collect",
        f"{title} {', '.join(map(str, args.path))}",
        document,
        headline=_headline(of_job, len(ranks)),
        tables=_tables(gpus) if gpus else (),
        figures=figures,
        notes=[*unmarked, *notes],
        repairs=repairs.lines,
    )


def _headline(steps: Sequence[StepTime], n_ranks: int) -> str:
    """State the mean length of a step; "" without steps."""
    if not steps:
        return ""
    times = [step.iteration_ns for step in steps]
    of_ranks = f" of {counted(n_ranks, 'rank')}" if n_ranks > 1 else ""
    sentence = f"An iteration takes {in_ms(fmean(times))} (mean of {counted(len(times), 'step')}{of_ranks}"
    sentence += f"; {in_ms(min(times))} to {in_ms(max(times))})" if len(times) > 1 else ")"
    return f"{sentence}."


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


def _tables(gpus: Sequence[Gpu]) -> list[Table]:
    rows = list(gpus)
    if len(gpus) > 1 and (of_job := together([gpu.steps for gpu in gpus])):
        rows.append(Gpu("job", None, None, {}, of_job, [], "mean of all, step by step"))
    steps = [(gpu.name, step) for gpu in rows for step in gpu.steps]
    return [
        Table.of("gpus", "GPUs", _GPUS, rows),
        Table.of("steps", "Steps", _STEPS, steps, sort_by=lambda pair: -pair[1].iteration_ns),
    ]
