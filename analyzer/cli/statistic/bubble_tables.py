"""`--sub_option bubbles`: idle time of a pipeline's ranks, and what would save some of it."""

from __future__ import annotations

from argparse import Namespace

from analyzer.answers.statistic.pipeline_bubbles import pipeline_bubbles
from analyzer.base.units import in_ms, in_percent, ms_of
from analyzer.cli import WHAT_IF, command, damage_notes, name_files
from analyzer.cli.statistic.statistic_tables import check_events, real_steps
from analyzer.report.result import Bars, Column, Result, Table, ms_column
from replay.answer import replayed_rows
from replay.edit import EditRequest, Job
from replay.forecast import Forecasts

_RANKS = (
    Column("stage", "stage", "id"),
    Column("rank", "rank"),
    ms_column("step_ms", "step", "step_ns"),
    ms_column("compute_ms", "compute", "compute_ns"),
    ms_column("comm_ms", "other comm", "comm_ns"),
    ms_column("warm_up_ms", "warm-up", "warm_up_ns"),
    ms_column("steady_ms", "steady", "steady_ns"),
    ms_column("drain_ms", "drain", "drain_ns"),
    Column("idle_share", "idle", "percent", 0, value=lambda row: row.idle_ns / max(row.step_ns, 1.0)),
)
_HOW = (
    "Idle: no computation, and no transfer but messages between stages. Warm-up: before the first backward "
    "computation; drain: after the last forward computation; steady: between."
)


def bubbles(args: Namespace) -> Result:
    """Measure the bubbles of the pipeline at `--path`."""
    check_events(args, "events")
    loaded, notes = real_steps(args)
    ranks, work_ns, m = pipeline_bubbles(loaded.recording)
    name_files(args, loaded.files[0].path)
    step_ns, idle_ns = (
        sum(getattr(rank, of) for rank in ranks) / len(ranks) for of in ("step_ns", "idle_ns")
    )
    idle_share = idle_ns / max(step_ns, 1.0)
    more = len(work_ns) - 1
    ideal = more / (m + more)
    factors = [f"stage{i}={work_ns.mean() / max(work, 1.0):.4f}" for i, work in enumerate(work_ns.tolist())]
    forecasts = Forecasts(Job.of(loaded), replayed_rows(loaded.recording))
    gain = forecasts.of([EditRequest.of(factor) for factor in factors]).gain_ns
    schedule_ns = min(float(more * work_ns.mean()) / m, idle_ns)
    uneven_ns = min(max(gain.mid_ns, 0.0), idle_ns - schedule_ns)
    rest_ns = idle_ns - schedule_ns - uneven_ns
    reasons = {"schedule": schedule_ns, "uneven": uneven_ns, "other": rest_ns}
    of_step = [in_percent(ns / max(step_ns, 1.0)) for ns in reasons.values()]
    between, claim = "", f"save {in_ms(gain.mid_ns)}"
    if gain.low_ns is not None and gain.high_ns is not None:
        between = f" ({in_ms(gain.low_ns, unit='')} to {in_ms(gain.high_ns)}, 95 %)"
        claim = claim if gain.low_ns > 0 else "save nothing for certain"
    gain_ms = {"low": ms_of(gain.low_ns), "mid": ms_of(gain.mid_ns), "high": ms_of(gain.high_ns)}
    shorter_ns = float(work_ns.sum() - work_ns.max()) / m / 2
    table = Table.of("bubbles", "Mean step of each rank", _RANKS, ranks, lambda rank: -rank.idle_ns)
    parts = {"computation": "compute", "other communication": "comm", "warm-up": "warm_up"}
    parts |= {"steady": "steady", "drain": "drain"}
    series = {part: [getattr(rank, f"{of}_ns") / 1e6 for rank in ranks] for part, of in parts.items()}
    names = [f"stage {rank.stage}, {rank.rank}" for rank in ranks]
    return Result(
        "statistic",
        f"Bubbles of {', '.join(map(str, args.path))}",
        {
            "stages": len(work_ns),
            "micro_batches": m,
            "ideal_share": ideal,
            "idle_share": idle_share,
            **{f"{why}_ms": ns / 1e6 for why, ns in reasons.items()},
            "even_stages": {"change": " ".join(factors), "gain_ms": gain_ms},
            "half_batches_gain_ms": shorter_ns / 1e6,
            table.name: table,
        },
        tables=[table],
        charts=[Bars("Where the time of a step goes", "ms of a step", names, series)],
        headline=f"The {more + 1} stages are idle {in_percent(idle_share)} of a step: {of_step[0]} by the "
        f"schedule, {of_step[1]} as stages are uneven, {of_step[2]} by other waits.",
        notes=[
            _HOW,
            f"{m} micro-batches (stretches of forward computation between messages): with even stages, and "
            f"nothing else to wait for, (p − 1)/(m + p − 1) = {in_percent(ideal)} is idle.",
            f"Even stages {claim}{between} of a step of {in_ms(step_ns)}; twice as many micro-batches, half "
            f"as long, at most {in_ms(shorter_ns)}.",
            *notes,
            *loaded.recording.notes,
            *damage_notes(loaded.files),
            command(args, WHAT_IF, *factors),
        ],
        repairs=loaded.repairs,
    )
