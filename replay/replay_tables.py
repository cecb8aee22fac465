"""A replay's findings as tables and charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dag.path_summary import PathItem
from replay.answer import Answer, WhatIf, measured_ns
from replay.sensitivity import Effect
from replay.simulation import Replay
from replay.slowdown import Slowdown
from replay.uncertainty import Float
from result import Bars, Cell, Chart, Column, Span, Table, Timeline

#: Stretches of the path below this share of the step are left out of the table (not of the JSON).
SHORTEST = 0.005
#: Boxes that a timeline shows at most: the longest.
MOST_SPANS = 4000
#: Bars that a chart of effects shows at most.
MOST_BARS = 25

_STEPS = (
    Column("step", "step", "int"),
    Column("measured_ms", "recorded (ms)", "float"),
    Column("predicted_ms", "replayed (ms)", "float"),
    Column("usual_ms", "with the other steps' gaps (ms)", "float"),
)
_PATH = (
    Column("owner", "rank"),
    Column("name", "operation"),
    Column("cat", "category"),
    Column("dur_ms", "on the path (ms)", "float"),
    Column("share", "share", "percent", 1),
)
_WHATIF = (
    Column("set", "what if"),
    Column("before_ms", "before (ms)", "float"),
    Column("after_ms", "after (ms)", "float"),
    Column("change", "change", "percent", 1),
    Column("low_ms", "mean step, from (ms)", "float"),
    Column("high_ms", "to (ms)", "float"),
    Column("paired_low", "change of these steps, from", "percent", 1, minor=True),
    Column("paired_high", "to", "percent", 1, minor=True),
)
_SLOWDOWN = (
    Column("by", "by"),
    Column("name", "own work of"),
    Column("slowdown", "slowdown", "float"),
)
_MOVED = (
    Column("cat", "critical path in"),
    Column("before_ms", "before (ms)", "float"),
    Column("after_ms", "after (ms)", "float"),
)
_EFFECTS = (
    Column("kind", "kind"),
    Column("name", "name"),
    Column("cat", "category"),
    Column("added_ms", "work changed by (ms)", "float"),
    Column("effect_ms", "step changed by (ms)", "float"),
    Column("effect", "change of the step", "percent", 2),
)


def step_table(found: Answer, usual: Mapping[int, Float]) -> Table:
    """Return the iteration time of each replayed step: recorded, replayed, and from the others' gaps.

    `usual` has the last, in nanoseconds per owner, by the row of the recorded step.
    """
    rows: list[Sequence[Cell]] = []
    for row, (recorded, replayed) in zip(found.result.rows, _per_step(found), strict=True):
        with_usual = float(usual[row].mean()) / 1e6 if row in usual else None
        rows.append((found.result.recording.steps[row].number, recorded, replayed, with_usual))
    return Table("steps", "Iteration time", _STEPS, rows)


def _per_step(found: Answer) -> list[tuple[float | None, float]]:
    """Return (recorded, replayed) ms of each step, both over the owners of whom it is recorded whole."""
    measured = measured_ns(found.result.recording)
    pairs: list[tuple[float | None, float]] = []
    for row, replayed in zip(found.result.rows, found.result.iteration_ns, strict=True):
        known = measured[row] == measured[row]
        if known.any():
            pairs.append((float(measured[row][known].mean()) / 1e6, float(replayed[known].mean()) / 1e6))
        else:
            pairs.append((None, float(replayed.mean()) / 1e6))
    return pairs


def path_table(step: int, path: Sequence[PathItem]) -> Table:
    """Return the longer stretches of the critical path through one step."""
    total = sum(item.dur_ns for item in path) or 1
    shown = [item for item in path if item.dur_ns >= SHORTEST * total]
    rows = [(item.owner, item.name, item.cat, item.dur_ns / 1e6, item.dur_ns / total) for item in shown]
    left = [item.dur_ns for item in path if item.dur_ns < SHORTEST * total]
    note = (
        f"{len(left)} stretches below {SHORTEST:.1%} are not shown, {sum(left) / 1e6:.3f} ms together"
        if left
        else ""
    )
    return Table("critical_path", f"Critical path through step {step}", _PATH, rows, note=note)


def whatif_table(found: Sequence[WhatIf]) -> Table:
    """Return before, after and change of each edit."""
    rows: list[Sequence[Cell]] = []
    for edit in found:
        intervals = (_ms(edit.interval_ns), edit.paired or (None, None))
        change = edit.ratio - 1
        rows.append(
            (edit.name, edit.before_ns / 1e6, edit.after_ns / 1e6, change, *intervals[0], *intervals[1])
        )
    few = any(edit.interval_ns is None for edit in found)
    return Table("whatif", "What if", _WHATIF, rows, note="too few steps for an interval" if few else "")


def _ms(interval_ns: tuple[float, float] | None) -> tuple[float | None, float | None]:
    return (None, None) if interval_ns is None else (interval_ns[0] / 1e6, interval_ns[1] / 1e6)


def slowdown_table(found: Slowdown) -> Table:
    """Return the slowdown of the job, and what each rank, stage and kind of work has of it."""
    rows: list[Sequence[Cell]] = [("all", "", found.ratio)]
    rows += [(by, name, ratio) for by, group in found.by.items() for name, ratio in group.items()]
    return Table("slowdown", "Slowdown over the ideal job", _SLOWDOWN, rows)


def moved_table(before: Mapping[str, float], after: Mapping[str, float]) -> Table:
    """Return where the critical path lies before and after, by category."""
    rows = [(cat, before.get(cat, 0.0) / 1e6, after.get(cat, 0.0) / 1e6) for cat in {**before, **after}]
    return Table("path_by_category", "Where the critical path went", _MOVED, rows)


def effect_table(name: str, title: str, effects: Sequence[Effect], iteration_ns: float) -> Table:
    """Return what each change costs or brings."""
    rows = [
        (
            one.group.kind,
            one.group.name,
            one.group.cat,
            one.added_ns / 1e6,
            one.effect_ns / 1e6,
            one.effect_ns / iteration_ns,
        )
        for one in effects
    ]
    return Table(name, title, _EFFECTS, rows)


# ---- charts


def charts(found: Answer, position: int) -> list[Chart]:
    """Return the recorded step above the replayed one, to one scale, and the iteration times."""
    pairs = _per_step(found)
    steps = [found.result.recording.steps[row] for row in found.result.rows]
    number = steps[position].number
    return [
        Timeline(f"Recorded: step {number}", _spans(found.result, position, replayed=False)),
        Timeline(f"Replayed: step {number}", _spans(found.result, position, replayed=True)),
        Bars(
            title="Iteration time",
            x_label="step",
            y_label="ms",
            x=[str(step.number) for step in steps],
            series={"recorded": [pair[0] for pair in pairs], "replayed": [pair[1] for pair in pairs]},
        ),
    ]


def moved_chart(shares: Mapping[str, Mapping[str, float]]) -> Bars:
    """Return the critical path by category: one bar for what was recorded and one for each edit."""
    cats = dict.fromkeys(cat for by_cat in shares.values() for cat in by_cat)
    return Bars(
        title="Critical path of a step, by category",
        x_label="",
        y_label="ms",
        x=list(shares),
        series={cat: [by_cat.get(cat, 0.0) / 1e6 for by_cat in shares.values()] for cat in cats},
        stacked=True,
    )


def effect_chart(title: str, effects: Sequence[Effect]) -> Bars:
    """Return the largest effects as bars."""
    shown = effects[:MOST_BARS]
    return Bars(
        title=title,
        x_label="change of the step (ms)",
        y_label="",
        x=[one.group.name for one in shown],
        series={"change of the step": [one.effect_ns / 1e6 for one in shown]},
        horizontal=True,
    )


def _spans(result: Replay, position: int, *, replayed: bool) -> list[Span]:
    recording = result.recording
    step = recording.steps[result.rows[position]]
    start, end = result.intervals(position) if replayed else (step.start_ns, step.end_ns)
    begin = result.schedule.start_ns[result.begin_op[position]] if replayed else step.begin_ns
    origin = int(np.min(begin))
    spans = []
    for operation, at, until in zip(step.operation.tolist(), start.tolist(), end.tolist(), strict=True):
        one = recording.operations[operation]
        if one.is_traced:
            lane = f"{recording.owners[one.owner]} {one.stage or one.phase or one.cat}"
            group = one.stage or one.phase or one.cat
            spans.append(Span(lane, one.label, (at - origin) / 1e6, (until - at) / 1e6, group))
    longest = sorted(spans, key=lambda span: -span.dur_ms)[:MOST_SPANS]
    return sorted(longest, key=lambda span: (span.lane, span.start_ms))
