"""Tables and charts of `--option replay`: of a replay and of forecasts."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from analyzer.base.units import LazySequence, ms_of
from analyzer.cli.critical import BY_NAME, PATH
from analyzer.cli.step_timeline import step_timeline
from analyzer.model.graph.step_graph import Recording
from analyzer.report.result import Bars, Chart, Column, Table, key_of, ms_column
from dag_utils import NamedPath, critical_path
from replay.answer import Answer
from replay.forecast import Forecast
from replay.runs import Simulation
from replay.sensitivity import Effect
from replay.slowdown import Slowdown

if TYPE_CHECKING:
    from analyzer.answers.diagnose.helpful_edits import HelpfulEdit

_MOST_BARS = 20

_WHATIF = (
    Column("set", "what if", value=lambda edit: edit.name),
    ms_column("before_ms", "before", "before_ns"),
    ms_column("after_ms", "after", "after_ns"),
    Column("change", "change", "percent", 1, value=lambda edit: edit.ratio - 1),
    Column("low_ms", "mean step, from (ms)", "float", value=lambda edit: _bounds(edit)[0]),
    Column("high_ms", "to (ms)", "float", value=lambda edit: _bounds(edit)[1]),
)

_HELPFUL = (
    ms_column("saved_ms", "saves per step", "forecast.saved_ns"),
    ms_column("low_ms", "95 %: from", "forecast.gain_ns.low_ns"),
    ms_column("high_ms", "to", "forecast.gain_ns.high_ns"),
    Column("share", "of the step", "percent", 0, value=lambda edit: saved_share(edit.forecast)),
    Column("set", "what if", value=lambda edit: edit.forecast.name),
    Column("finding", "removes", "sentence"),
)


def _bounds(edit: Forecast) -> list[float | None]:
    return [ms_of(ns) for ns in edit.interval_ns or (None, None)]


def saved_share(forecast: Forecast) -> float:
    """Share of the mean step that an edit saves, as in a diagnosis."""
    return forecast.saved_ns / (forecast.recorded.recorded_ns or forecast.before_ns)


def step_table(answer: Answer) -> Table:
    """List the iteration time of each step, recorded and replayed."""
    columns = (
        Column("step", "step", "int"),
        Column("measured_ms", "recorded (ms)", "float"),
        Column("predicted_ms", "replayed (ms)", "float"),
    )
    numbers = [answer.recording.steps[row].number for row in answer.rows]
    recorded, replayed = ((ns / 1e6).tolist() for ns in answer.by_step_ns)  # NaN: not recorded
    return Table("steps", "Iteration time", columns, list(zip(numbers, recorded, replayed, strict=True)))


def path_tables(step: int, path: NamedPath) -> list[Table]:
    """List the critical path through one step, summed by operation, and whole."""
    title = f"Critical path through step {step}"
    shares, rows = path.by_name(), path.rows()
    of_names = [(key_of(share.owner, share.name),) for share in shares]
    of_rows = LazySequence(rows, lambda row: (key_of(str(row[2]), str(row[0])),))
    return [
        Table.of("path_by_name", f"{title}, by operation", BY_NAME, shares, full=True, about=of_names),
        Table("critical_path", title, PATH, rows, full=True, about=of_rows),
    ]


def whatif_table(forecasts: Sequence[Forecast]) -> Table:
    """List the step before and after each edit."""
    few = any(edit.interval_ns is None for edit in forecasts)
    return Table.of(
        "whatif", "What if", _WHATIF, forecasts, note="too few steps for an interval" if few else ""
    )


def helpful_table(edits: Sequence[HelpfulEdit]) -> Table:
    """List the savings: a row for each edit."""
    return Table.of("helpful", "What each edit would save", _HELPFUL, edits)


def slowdown_table(slowdown: Slowdown) -> Table:
    """List the slowdown of the job, and the part of each rank, stage and kind of work."""
    columns = (Column("by", "by"), Column("name", "own work of"), Column("slowdown", "slowdown", "float"))
    parts = [(by, name, ratio) for by, group in slowdown.by.items() for name, ratio in group.items()]
    return Table("slowdown", "Slowdown over the ideal job", columns, [("all", "", slowdown.ratio), *parts])


def effect_table(name: str, title: str, effects: Sequence[Effect], iteration_ns: float) -> Table:
    """List the effect of each change."""
    columns = (
        Column("kind", "kind"),
        Column("name", "name"),
        Column("cat", "category"),
        ms_column("added_ms", "work changed by", "added_ns"),
        ms_column("effect_ms", "step changed by", "effect_ns"),
        Column("effect", "change of the step", "percent", 2, value=lambda e: e.effect_ns / iteration_ns),
    )
    return Table.of(name, title, columns, effects)


def bars(
    title: str, label: str, rows: Iterable[tuple[str, float, tuple[float | None, float | None] | None]]
) -> list[Chart]:
    """Draw a bar for each (name, duration, its 95 % interval or None), in nanoseconds."""
    names, ns, intervals = zip(*itertools.islice(rows, _MOST_BARS), strict=True)
    between = [
        None if bounds is None or None in bounds else (bounds[0] / 1e6, bounds[1] / 1e6)
        for bounds in intervals
    ]
    label = f"{label} (ms){' and its 95 % interval' if any(between) else ''}"
    return [Bars(title, label, names, {"iteration time": list(map(ms_of, ns))}, between=between)]


def timelines(recording: Recording, simulation: Simulation, row: int) -> list[Chart]:
    """Draw a recorded step, and the same step simulated, each with its critical path."""
    step, replayed = recording.steps[row], simulation.step(simulation.position(row))
    pairs = {"Recorded": (recording, step), "Replayed": (simulation.recording, replayed)}
    return [
        step_timeline(f"{title}: step {step.number}", job, drawn, critical_path(drawn))
        for title, (job, drawn) in pairs.items()
    ]
