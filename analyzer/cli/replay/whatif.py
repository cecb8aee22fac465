"""`replay --sub_option whatif`: the list of edits, the most helpful edits, and forecasts."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import Any, NamedTuple

from analyzer.answers.diagnose.helpful_edits import helpful_edits
from analyzer.base.errors import as_sentence
from analyzer.base.names import brief
from analyzer.base.units import in_ms, in_percent, in_range
from analyzer.cli import WHAT_IF, command, damage_notes
from analyzer.cli.replay import replayed
from analyzer.report.result import Column, Result, Table, ms_column
from dag_utils import LoadedSteps
from replay import edit as registry
from replay.answer import replayed_rows
from replay.edit import Edit, EditRequest, Job
from replay.forecast import Forecast, Forecasts
from replay.selection import communication, computation
from replay.slowdown import Slowdown, slowdown
from replay.whatif.scaling import changed

#: Most edits that a what-if without edits suggests.
_MOST_HELPFUL = 10
#: Below this share of the recorded step, the step before the edit lacks outliers, and the answer says so.
_ALIKE = 0.995
#: The edit whose answer has the slowdown over the ideal job, too.
_IDEAL = EditRequest("straggler", "mean")
_WHATIF = (
    Column("set", "what if", value=lambda edit: edit.name),
    ms_column("before_ms", "before", "before_ns"),
    ms_column("after_ms", "after", "after_ns"),
    Column("change", "change", "percent", 1, value=lambda edit: edit.ratio - 1),
    Column("low_ms", "mean step, from (ms)", "float", value=lambda edit: _bounds_ms(edit)[0]),
    Column("high_ms", "to (ms)", "float", value=lambda edit: _bounds_ms(edit)[1]),
)
_HELPFUL = (
    ms_column("saved_ms", "saves per step", "forecast.saved_ns"),
    ms_column("low_ms", "95 %: from", "forecast.gain_ns.low_ns"),
    ms_column("high_ms", "to", "forecast.gain_ns.high_ns"),
    Column("share", "of the step", "percent", 0, value=lambda edit: _saved_share(edit.forecast)),
    Column("set", "what if", value=lambda edit: edit.forecast.name),
    Column("finding", "removes", "sentence"),
)
_SLOWDOWN = (Column("by", "by"), Column("name", "own work of"), Column("slowdown", "slowdown", "float"))


def _bounds_ms(forecast: Forecast) -> Sequence[float | None]:
    return replayed.in_milliseconds(forecast.interval_ns) or (None, None)


def _saved_share(forecast: Forecast) -> float:
    """Share of the mean step that an edit saves, as in a diagnosis."""
    return forecast.saved_ns / (forecast.recorded.recorded_ns or forecast.before_ns)


def list_edits(args: Namespace, loaded: LoadedSteps) -> Result:
    """List the edits that there are, and the names of this job that they take."""
    recording = loaded.recording
    operations = recording.operations.kinds
    names = {
        "rank": recording.owners,
        "category": [operation.purpose or operation.cat for operation in operations],
        "stage": [operation.transfer.stage for operation in operations],
        "operation": [operation.main for operation in operations],
    }
    rows = [(kind, name) for kind, of_kind in names.items() for name in dict.fromkeys(of_kind) if name]
    edits = [(forms, words) for _, forms, words in registry.EDITS]
    return Result(
        **replayed.common(args, loaded),
        headline=f"{len(edits)} edits; names of this job: {', '.join(recording.owners[:4])}, …",
        document={"edits": [{"set": name, "help": words} for name, words in edits]},
        figures=edits,
        tables=[Table("names", "Names of this job", (Column("kind", "kind"), Column("name", "name")), rows)],
    )


def most_helpful(args: Namespace, loaded: LoadedSteps) -> Result:
    """Find the edits that save most, each with its command."""
    edits = helpful_edits(loaded, args.progress)[: max(args.head or 0, _MOST_HELPFUL)]
    commands = [command(args, WHAT_IF, *map(str, edit.requests)) for edit in edits]
    title = "What each edit would save"
    gains = [
        (edit.forecast.name, gain.mid_ns, (gain.low_ns, gain.high_ns))
        for edit in edits
        for gain in [edit.forecast.gain_ns]
    ]
    headline = "No edit that was tried saves 1 % of a step for certain."
    if edits:
        best = edits[0].forecast
        saved = f"{in_ms(best.saved_ns)} or {in_percent(_saved_share(best))} of a step"
        headline = f"{brief(best.name)} would save most, {saved}."
    records = [
        {**_record(edit.forecast), "finding": edit.finding or None, "command": command}
        for edit, command in zip(edits, commands, strict=True)
    ]
    return Result(
        **replayed.common(args, loaded),
        headline=headline,
        document={"whatif": records[: args.head]},
        tables=[Table.of("helpful", title, _HELPFUL, edits)] if edits else (),
        charts=replayed.bars(title, "saved in a step", gains) if args.html and edits else (),
        notes=commands[:1],
    )


class _Question(NamedTuple):
    """Edits to make together, and their name."""

    name: str
    edits: Sequence[Edit]
    is_ideal: bool = False  # `_IDEAL` is among the edits


def forecast(args: Namespace, loaded: LoadedSteps) -> Result:
    """Forecast each edit alone and, after several, all of them together."""
    recording, job = loaded.recording, Job.of(loaded)
    forecasts = Forecasts(job, replayed_rows(recording, args.step_num))
    questions = _questions(args, job, forecasts)
    answers = [forecasts.of_edits(question.name, question.edits) for question in questions]
    edits, last = questions[-1].edits, answers[-1]
    row = recording.choose_step()
    simulation = forecasts.simulation(edits, own_gaps=last.as_recorded)
    path = replayed.path_of(args, simulation.recording, simulation.step(simulation.position(row)))
    slower = slowdown(recording) if any(question.is_ideal for question in questions) else None
    written = replayed.write(simulation, args.output)
    few = any(answer.interval_ns is None for answer in answers)
    note = "too few steps for an interval" if few else ""
    tables = [
        Table.of("whatif", "What if", _WHATIF, answers, note=note),
        *replayed.path_tables(recording.steps[row].number, path),
    ]
    if slower:
        parts = [(by, name, ratio) for by, group in slower.by.items() for name, ratio in group.items()]
        rows = [("all", "", slower.ratio), *parts]
        tables.append(Table("slowdown", "Slowdown over the ideal job", _SLOWDOWN, rows))
    charts = []
    if args.html:
        times = [(brief(answer.name), answer.after_ns, answer.interval_ns) for answer in answers]
        times.insert(0, ("without a change", last.before_ns, None))
        charts = replayed.bars("The step before and after", "mean step", times)
        charts += replayed.timelines(recording, simulation, row)
    return Result(
        **replayed.common(args, loaded),
        headline=_headline(last),
        further=" ".join(as_sentence(edit.caution) for edit in edits if edit.caution),
        document={
            **replayed.document(args, last.recorded, row, path, last.after_ns / last.recorded.iteration_ns),
            **{key: value for key, value in _record(last).items() if key != "set"},
            "whatif": [
                _record(answer, slower if question.is_ideal else None)
                for question, answer in zip(questions, answers, strict=True)
            ],
        },
        tables=tables,
        charts=charts,
        notes=[*recording.notes, *damage_notes(loaded.files), *written, command(args, WHAT_IF)],
    )


def _questions(args: Namespace, job: Job, forecasts: Forecasts) -> list[_Question]:
    if args.sub_option != WHAT_IF:
        is_work = args.sub_option == "smlt_delay_cmp"
        chosen = (computation if is_work else communication)(job.apart)
        delay = Edit(lambda recording: changed(recording, chosen, args.delay_ratio))
        return [_Question(f"{'computation' if is_work else 'communication'} x {args.delay_ratio:g}", [delay])]
    requests = [EditRequest.of(text) for text in args.set]
    sets = [[request] for request in requests] + ([requests] if len(requests) > 1 else [])
    return [
        _Question(" ".join(map(str, requests)), forecasts.edits(requests), _IDEAL in requests)
        for requests in sets
    ]


def _headline(forecast: Forecast) -> str:
    ahead = "" if forecast.interval_ns is None else f" ({in_range(*forecast.interval_ns)}, 95 %)"
    recorded_ns = forecast.recorded.recorded_ns or 0.0
    before, recorded = in_ms(forecast.before_ns), in_ms(recorded_ns)
    with_outliers = forecast.before_ns < _ALIKE * recorded_ns and before != recorded
    mean = f" ({recorded} with outliers)" if with_outliers else ""
    times = f"{in_ms(forecast.after_ns)}{ahead} instead of {before}{mean}"
    change = in_percent(forecast.ratio - 1, 1, sign="+")
    edit = "Without the straggler" if forecast.name == "straggler=none" else f"With {brief(forecast.name)}"
    return f"{edit} a step takes {times}: {change}."


def _record(forecast: Forecast, slower: Slowdown | None = None) -> dict[str, Any]:
    record = {
        "set": forecast.name,
        "before_ms": forecast.before_ns / 1e6,
        "after_ms": forecast.after_ns / 1e6,
        "change": forecast.ratio - 1,
        "interval_ms": replayed.in_milliseconds(forecast.interval_ns),
    }
    return record if slower is None else record | {"slowdown": slower.ratio, "slowdown_by": slower.by}
