"""`--option replay`: simulate the recorded steps, and those of a job that was not run."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from errors import UsageError, as_sentence
from function_names import brief
from options import (
    READING,
    WHAT_IF,
    add_flags,
    add_variants,
    asked,
    command,
    refuse,
    variant_of,
    whole_above_zero,
)
from result import Column, Result, Table
from units import in_ms, in_percent, ms_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dag_utils import LoadedSteps, NamedPath, Recording, StepGraph
    from replay.answer import Answer
    from replay.edit import Edit, EditRequest, Job
    from replay.forecast import Forecast, Forecasts
    from replay.runs import Simulation
    from replay.sensitivity import Effect
    from replay.slowdown import Slowdown


HELP = "simulate the recorded steps, and those of a job that was not run"
EXAMPLE = "analyze.py whatif JOB bandwidth=2"
_TRIED = "tried: the 20 operations with the most time on the critical path, of each kind"
VARIANTS = ("smlt_delay_cmp", "smlt_delay_comm", "map_delay", "bottleneck", WHAT_IF)
_DELAYED = ("smlt_delay_cmp", "smlt_delay_comm", "map_delay")
_IN_TURN = ("map_delay", "bottleneck")
#: How much longer what is delayed takes, unless `--delay_ratio` says otherwise.
_DELAY = 1.1
#: How much faster `bottleneck` makes each candidate.
_FASTER = 0.9
#: Edits that a what-if without any names.
_MOST_HELPFUL = 10
#: A time before the edit that is less than this share of the recorded one needs a word.
_ALIKE = 0.995


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the flags of this option."""
    add_flags(parser, *READING, "del_queue", "head", "output")
    add_variants(parser, VARIANTS)
    add = parser.add_argument
    add(
        "--step_num",
        metavar="N",
        type=whole_above_zero,
        help="replay N steps in sequence (default: those recorded)",
    )
    add("--delay_ratio", metavar="R", type=float,
        help=f"factor of smlt_delay_cmp, smlt_delay_comm and map_delay (default {_DELAY:g})")  # fmt: skip
    add("--set", metavar="EDIT", action="append", default=[],
        help="an edit for --sub_option whatif, repeatable: BW=0.8, rank1.FW=1.5, bandwidth=2, drop=NAME, "
        "straggler=none, rank1.gap=peers, …; --set help lists all, with the names of this job")  # fmt: skip


def run(args: Namespace) -> Result:
    """Replay the job, or answer the variant that `--sub_option` names."""
    _check(args)
    from dag_utils import load_steps, read_partitions
    from outputs.atomic import check_output
    from outputs.rules import default_file

    if args.sub_option == WHAT_IF or "help" in args.set:
        loaded = load_steps(args.path, asked(args), partitions=read_partitions(args.path), sizes=True)
        if not args.set:
            return _helpful(args, loaded)
        return _edits(args, loaded) if "help" in args.set else _edited(args, loaded)
    output = args.output
    if args.sub_option is None and output is None:
        output = default_file(args.path[0], "synthetic", "json")
        check_output(output, is_named=False)
    loaded = load_steps(args.path, asked(args))
    if args.sub_option is None:
        return _replayed(args, loaded, output)
    return (_explored if args.sub_option in _IN_TURN else _edited)(args, loaded)


def _check(args: Namespace) -> None:
    from replay.edit import EditRequest
    from replay.selection import checked_ratio

    checked_ratio(f"--delay_ratio {_delay(args):g}", _delay(args))
    if args.sub_option not in _DELAYED:
        refuse(args, variant_of(args), "delay_ratio")
    if args.sub_option in _IN_TURN:
        refuse(args, variant_of(args), "step_num")
    # refused before anything is read, and without spaces from here on
    args.set = [text if text == "help" else str(EditRequest.of(text)) for text in args.set]
    if args.set and "help" not in args.set and args.sub_option != WHAT_IF:
        raise UsageError(f"--set belongs to whatif: analyze.py whatif JOB {args.set[0]}")
    for flag in ("step_num", "output") if args.sub_option == WHAT_IF and not args.set else ():
        if getattr(args, flag) is not None:
            raise UsageError(f"--{flag} needs an edit: analyze.py whatif JOB bandwidth=2 --{flag} …")


def _delay(args: Namespace) -> float:
    ratio: float = _DELAY if args.delay_ratio is None else args.delay_ratio
    return ratio


# ---- the replay itself


def _common(args: Namespace, loaded: LoadedSteps) -> dict[str, Any]:
    """Return the fields that the results of all variants share."""
    return {"option": "replay", "title": ", ".join(map(str, args.path)), "repairs": loaded.repairs}


def _replayed(args: Namespace, loaded: LoadedSteps, wanted: Path) -> Result:
    from dag_utils import choose_step
    from options.replay.replay_tables import path_tables, step_table, timelines
    from replay.answer import answer, replayed_rows
    from replay.runs import simulated

    recording = loaded.recording
    result = simulated(recording, replayed_rows(recording, args.step_num))
    found = answer(recording, result.rows, result.iteration_ns)
    row = choose_step(recording)
    path = _path(args, recording, recording.steps[row])
    output, written = _write(result, wanted)
    tables = [*path_tables(recording.steps[row].number, path, full=args.full), step_table(found)]
    return Result(
        **_common(args, loaded),
        headline=f"{recording.one_step} takes {in_ms(found.iteration_ns)}.",
        further=_ahead(found),
        document=_document(args, found, row, path, output),
        tables=tables,
        charts=timelines("Recorded", recording, result, _position(found.rows, row)) if args.html else (),
        notes=[*recording.notes, *written],
        ask=command(args, WHAT_IF),
    )


def _ahead(found: Answer) -> str:
    """Return in which interval the mean of further steps will lie, as a sentence."""
    from arrays.median import FEWEST

    if found.interval_ns is None:
        return f"Too few steps for an interval: {FEWEST} are needed."
    return f"The next {len(set(found.rows)):,} steps will take {_range(found.interval_ns)} on average (95 %)."


def _range(interval_ns: tuple[float, float]) -> str:
    low, high = interval_ns
    return f"{in_ms(low, unit='')} to {in_ms(high)}"


def _path(args: Namespace, recording: Recording, step: StepGraph) -> NamedPath:
    """Return the critical path of a step, recorded or simulated, as `critical` gives it."""
    from dag_utils import critical_path, named_path

    return named_path(recording, critical_path(step), parts=args.del_queue)


def _position(rows: Sequence[int], row: int) -> int:
    """Return where a recorded step stands in a replay; the first place where it is not replayed."""
    return list(rows).index(row) if row in rows else 0


def _document(
    args: Namespace, found: Answer, row: int, path: NamedPath, output: Path | None, ratio: float = 1
) -> dict[str, Any]:
    """Return the keys that every variant has; `ratio` is how much longer an edited job takes."""
    from options.critical import records

    recording, recorded = found.recording, found.recorded_ns
    owners = recording.owners
    return {
        "steps": len(found.rows),
        "operations": _n_operations(recording, args.del_queue),
        "predicted_ms": {
            owner: ns * ratio / 1e6 for owner, ns in zip(owners, found.predicted_ns.tolist(), strict=True)
        },
        "iteration_ms": found.iteration_ns * ratio / 1e6,
        "measured_ms": ms_of(recorded),
        "error": None if recorded is None else (found.iteration_ns * ratio - recorded) / recorded,
        "critical_step": recording.steps[row].number,
        "critical_path": records(path, owned=len(owners) > 1),
        "interval_ms": _milliseconds(found.interval_ns),
        "output": None if output is None else str(output),
    }


def _milliseconds(interval_ns: tuple[float, float] | None) -> list[float] | None:
    return None if interval_ns is None else [ns / 1e6 for ns in interval_ns]


def _n_operations(recording: Recording, parts: bool) -> int:
    """Return how many operations a step has; a communication with its parts is one unless `parts`."""
    traced = recording.which(lambda one: one.is_traced)
    if parts:
        return int(traced.sum())
    is_part = recording.which(lambda one: one.is_traced and (one.transfer.whole or one.is_communication))
    wholes = {(one.owner, one.main) for one in recording.chosen_kinds(is_part)}
    return int((traced & ~is_part).sum()) + len(wholes)


def _write(result: Simulation, output: Path | None) -> tuple[Path | None, list[str]]:
    """Write the replayed timeline unless there is no `output`, or it is ``-``; return where, and a note."""
    from outputs.rules import NO_FILE
    from replay.timeline import write_synthetic

    if output is None or output == NO_FILE:
        return None, []
    n_events = write_synthetic(result, output)
    return output, [f"replayed timeline: {output} ({n_events:,} events)"]


# ---- what if


def _edits(args: Namespace, loaded: LoadedSteps) -> Result:
    """Return the edits that there are, and the names of this job that they take."""
    from replay.edits import EDITS

    recording = loaded.recording
    names: dict[str, list[str]] = {"rank": list(recording.owners)}
    for one in recording.table.kinds:
        for what, name in (
            ("category", one.purpose or one.cat),
            ("stage", one.transfer.stage),
            ("operation", one.main),
        ):
            if name:
                names.setdefault(what, []).append(name)
    rows = [(what, name) for what, found in names.items() for name in dict.fromkeys(found)]
    edits = [(module.NAME, module.HELP) for module in EDITS]
    return Result(
        **_common(args, loaded),
        headline=f"{len(edits)} edits; names of this job: {', '.join(recording.owners[:4])}, …",
        document={"edits": [{"set": name, "help": words} for name, words in edits]},
        figures=edits,
        tables=[Table("names", "Names of this job", (Column("kind", "kind"), Column("name", "name")), rows)],
    )


def _helpful(args: Namespace, loaded: LoadedSteps) -> Result:
    """Return the edits that make the steps shortest, each with the command that answers it."""
    from diagnose.helpful_edits import helpful_edits
    from options.replay import replay_tables as shown

    found = helpful_edits(loaded, args.progress)[: args.head or _MOST_HELPFUL]
    forecasts = [one.forecast for one in found]
    commands = [command(args, WHAT_IF, *map(str, one.requests)) for one in found]
    headline = "No edit that was tried saves 1 % of a step for certain."
    for best in forecasts[:1]:
        saved = f"{in_ms(best.saved_ns)} or {in_percent(1 - best.ratio)} of a step"
        headline = f"{brief(best.name)} would save most, {saved}."
    rows = [
        {**_row(one.forecast, None), "finding": one.finding or None, "command": str(typed)}
        for one, typed in zip(found, commands, strict=True)
    ]
    return Result(
        **_common(args, loaded),
        headline=headline,
        document={"whatif": rows},
        tables=[shown.helpful_table(found, commands)],
    )


def _edited(args: Namespace, loaded: LoadedSteps) -> Result:
    from dag_utils import choose_step
    from options.replay import replay_tables as shown
    from replay.answer import replayed_rows
    from replay.edit import Job
    from replay.forecast import Forecasts
    from replay.slowdown import slowdown

    recording, job = loaded.recording, Job.of(loaded)
    forecasts = Forecasts(job, replayed_rows(recording, args.step_num))
    asked = _asked(args, job, forecasts)
    found = [forecasts.of_edits(name, edits) for name, edits in asked.items()]
    last = found[-1]
    row = choose_step(recording)
    position = _position(forecasts.rows, row)
    own_gaps = any(edit.as_recorded for edits in asked.values() for edit in edits)
    edits = list(asked.values())[-1]
    result = forecasts.simulation(edits, own_gaps=own_gaps)
    after = _path(args, result.recording, result.step(position))
    slower = slowdown(recording) if "straggler=mean" in args.set else None
    output, written = _write(result, args.output)
    tables = [
        shown.whatif_table(found),
        *shown.path_tables(recording.steps[row].number, after, full=args.full),
        *(() if slower is None else (shown.slowdown_table(slower),)),
    ]
    ahead = "" if last.interval_ns is None else f" ({_range(last.interval_ns)}, 95 %)"
    recorded_ns = last.recorded.recorded_ns or 0.0
    mean = f" ({in_ms(recorded_ns, unit='')} with outliers)" if last.before_ns < _ALIKE * recorded_ns else ""
    times = f"{in_ms(last.after_ns)}{ahead} instead of {in_ms(last.before_ns, unit='')}{mean}"
    change = in_percent(last.ratio - 1, 1, sign="+")
    return Result(
        **_common(args, loaded),
        headline=f"With {brief(last.name)} a step takes {times}: {change}.",
        further=" ".join(as_sentence(edit.caution) for edit in edits if edit.caution),
        document={
            **_document(args, last.recorded, row, after, output, last.after_ns / last.recorded.iteration_ns),
            "interval_ms": _milliseconds(last.interval_ns),
            "before_ms": last.before_ns / 1e6,
            "after_ms": last.after_ns / 1e6,
            "change": last.ratio - 1,
            "whatif": [_row(edit, slower) for edit in found],
        },
        tables=tables,
        charts=shown.timelines("Recorded", recording, result, position) if args.html else (),
        notes=[*recording.notes, *written],
        ask=command(args, WHAT_IF),
    )


def _requests(args: Namespace) -> list[EditRequest]:
    from replay.edit import EditRequest

    return [EditRequest.of(text) for text in args.set]


def _asked(args: Namespace, job: Job, forecasts: Forecasts) -> dict[str, Sequence[Edit]]:
    """Return the edits to simulate by name: each alone, and after several, all of them together."""
    from replay.edit import Edit
    from replay.selection import communication, computation
    from replay.whatif.scaling import changed, forward_share

    if args.sub_option != WHAT_IF:
        is_work = args.sub_option == "smlt_delay_cmp"
        chosen = (computation if is_work else communication)(job.apart)
        forward = forward_share(job.recording) if chosen.tails.any() else 1.0
        delay = Edit(lambda recording: changed(recording, chosen, _delay(args), forward=forward))
        return {f"{'computation' if is_work else 'communication'} x {_delay(args):g}": [delay]}
    requests = _requests(args)
    sets = [[one] for one in requests] + ([requests] if len(requests) > 1 else [])
    return {" ".join(map(str, one)): forecasts.edits(one) for one in sets}


def _row(edit: Forecast, slower: Slowdown | None) -> dict[str, Any]:
    row = {
        "set": edit.name,
        "before_ms": edit.before_ns / 1e6,
        "after_ms": edit.after_ns / 1e6,
        "change": edit.ratio - 1,
        "interval_ms": _milliseconds(edit.interval_ns),
    }
    if slower is not None and "straggler=mean" in edit.name.split():
        row |= {"slowdown": slower.ratio, "slowdown_by": slower.by}
    return row


# ---- each in turn


def _explored(args: Namespace, loaded: LoadedSteps) -> Result:
    from dag_utils import choose_step
    from options.replay.replay_tables import effect_table
    from replay.answer import answer
    from replay.sensitivity import changed_in_turn

    recording = loaded.recording
    found = answer(recording, recording.whole_steps)
    is_delay = args.sub_option == "map_delay"
    ratio = _delay(args) if is_delay else _FASTER
    effects = changed_in_turn(
        recording, ratio, parts=args.del_queue, groups=not is_delay, progress=args.progress
    )
    key = "delays" if is_delay else "bottlenecks"
    title = f"Each operation x {ratio:g}" if is_delay else "What gives most when 10 % faster"
    row = choose_step(recording)
    path = _path(args, recording, recording.steps[row])
    table = effect_table(key, title, effects[: args.head], found.iteration_ns)
    return Result(
        **_common(args, loaded),
        headline=_effect_headline(effects, found, ratio),
        document={**_document(args, found, row, path, None), key: table.records()},
        tables=[table],
        figures=[("iteration time, recorded", in_ms(found.recorded_ns or found.iteration_ns))],
        notes=[*recording.notes, _TRIED],
        ask=command(args, WHAT_IF),
    )


def _effect_headline(effects: Sequence[Effect], found: Answer, ratio: float) -> str:
    if not effects:
        return "The recording has no operation to change."
    most = effects[0]
    name, change = f"{most.kind} {brief(most.name)}", abs(most.effect_ns / found.iteration_ns)
    moved = f"{in_ms(abs(most.effect_ns))} ({in_percent(change, 1)}) per step"
    if most.effect_ns > 0:
        return f"Delaying {name} ({ratio:g} times) costs most: {moved}."
    return f"Speeding up {name} by {in_percent(1 - ratio)} helps most: {moved}."
