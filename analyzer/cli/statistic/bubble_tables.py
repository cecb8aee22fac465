"""`--sub_option bubbles`: idle time of a pipeline's ranks, and what would save some of it."""

from __future__ import annotations

from argparse import Namespace

import numpy as np

from analyzer.answers.statistic.pipeline_bubbles import pipeline_bubbles
from analyzer.base.units import bounds_ms, in_ms, in_percent, in_range
from analyzer.cli import WHAT_IF, command, damage_notes, name_files
from analyzer.cli.statistic.statistic_tables import check_events, real_steps
from analyzer.report.result import Bars, Column, Result, Table
from replay.answer import replayed_rows
from replay.edit import EditRequest, Job
from replay.forecast import Forecasts

_PARTS = ("computation", "other communication", "warm-up", "steady", "drain")
_RANKS = (
    Column("stage", "stage", "id"),
    Column("rank", "rank"),
    Column("step_ms", "step (ms)", "float"),
    Column("compute_ms", "compute (ms)", "float"),
    Column("comm_ms", "other comm (ms)", "float"),
    Column("warm_up_ms", "warm-up (ms)", "float"),
    Column("steady_ms", "steady (ms)", "float"),
    Column("drain_ms", "drain (ms)", "float"),
    Column("idle_share", "idle", "percent", 0),
)
_HOW = (
    "Idle: no computation, and no transfer but messages between stages. Warm-up: before the first backward "
    "computation; drain: after the last forward computation; steady: between."
)


def bubbles(args: Namespace) -> Result:
    """Measure the bubbles of the pipeline at `--path`."""
    check_events(args, "events")
    loaded, notes = real_steps(args)
    stage, parts_ns = pipeline_bubbles(loaded.recording)
    name_files(args, loaded.files[0].path)
    p, m = int(stage.max()) + 1, max(int(np.median(parts_ns[stage < stage.max(), 7])), 1)
    work_ns = np.array([parts_ns[stage == number, 6].mean() for number in range(p)])
    mean_ns, slowest_ns = float(work_ns.mean()), float(work_ns.max())
    ideal = (p - 1) / (m + p - 1)
    change = [f"stage{i}={mean_ns / max(work, 1.0):.4f}" for i, work in enumerate(work_ns.tolist())]
    forecasts = Forecasts(Job.of(loaded), replayed_rows(loaded.recording))
    gain = forecasts.of([EditRequest.of(edit) for edit in change]).gain_ns
    between, claim = "", f"save {in_ms(gain.mid_ns)}"
    if gain.low_ns is not None and gain.high_ns is not None:
        between = f" ({in_range(gain.low_ns, gain.high_ns)}, 95 %)"
        claim = claim if gain.low_ns > 0 else "save nothing for certain"
    step_ns, idle_ns = parts_ns[:, 0].mean(), parts_ns[:, 3:6].sum(axis=1)
    schedule_ns = min((p - 1) * mean_ns / m, idle_ns.mean())
    uneven_ns = min(max(gain.mid_ns, 0.0), idle_ns.mean() - schedule_ns)
    reasons = np.array([idle_ns.mean(), schedule_ns, uneven_ns, idle_ns.mean() - schedule_ns - uneven_ns])
    shares = [in_percent(share) for share in reasons / max(step_ns, 1.0)]
    half_ns = (p * mean_ns - slowest_ns) / m / 2
    order = np.argsort(stage, kind="stable").tolist()
    owners, ms, share = loaded.recording.owners, parts_ns / 1e6, idle_ns / np.maximum(parts_ns[:, 0], 1.0)
    rows = [(int(stage[i]), owners[i], *ms[i, :6].tolist(), float(share[i])) for i in order]
    table = Table("bubbles", "Mean step of each rank", _RANKS, rows, order=[-row[-1] for row in rows])
    series = {part: [row[i] for row in rows] for i, part in enumerate(_PARTS, start=3)}
    names = [f"stage {row[0]}, {row[1]}" for row in rows]
    reasons_ms = zip(
        ("idle_ms", "schedule_ms", "uneven_ms", "other_ms"), (reasons / 1e6).tolist(), strict=True
    )
    return Result(
        "statistic",
        f"Bubbles of {', '.join(map(str, args.path))}",
        {
            "stages": p,
            "micro_batches": m,
            "ideal_share": ideal,
            **dict(reasons_ms),
            "even_stages": {"change": " ".join(change), "gain_ms": bounds_ms(gain)},
            "half_batches_gain_ms": half_ns / 1e6,
            table.name: table,
        },
        tables=[table],
        charts=[Bars("Where the time of a step goes", "ms of a step", names, series)],
        headline=f"The {p} stages are idle {shares[0]} of a step: {shares[1]} by the schedule, {shares[2]} "
        f"as stages are uneven, {shares[3]} by other waits.",
        notes=[
            _HOW,
            f"{m} micro-batches (stretches of forward computation between messages): with even stages, and "
            f"nothing else to wait for, (p − 1)/(m + p − 1) = {in_percent(ideal)} is idle.",
            f"Even stages {claim}{between} of a step of {in_ms(step_ns)}; twice as many micro-batches, half "
            f"as long, at most {in_ms(half_ns)}.",
            *notes,
            *loaded.recording.notes,
            *damage_notes(loaded.files),
            command(args, WHAT_IF, *change),
        ],
        repairs=loaded.repairs,
    )
