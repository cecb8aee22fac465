"""The recorded steps simulated, as they are and with each operation changed in turn; tables of replays."""

from __future__ import annotations

import itertools
from argparse import Namespace
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analyzer.base.arrays.numbering import unique
from analyzer.base.names import brief
from analyzer.base.outputs.atomic import NO_FILE
from analyzer.base.units import LazySequence, in_ms, in_percent, ms_of
from analyzer.cli import WHAT_IF, command, damage_notes
from analyzer.cli.critical import BY_NAME, PATH, records
from analyzer.cli.step_timeline import step_timeline
from analyzer.model.graph.step_graph import Recording, StepGraph
from analyzer.reading.formats.chrome_writer import Slice, ThreadRow, recorded_row, write_timeline
from analyzer.reading.formats.columns import Track
from analyzer.report.result import MOST_BARS, Bars, Chart, Column, Result, Table, key_of, ms_column
from dag_utils import LoadedSteps, NamedPath, critical_path
from replay.answer import Answer, answer, replayed_rows
from replay.real_step import mean_step_ns
from replay.runs import Simulation, simulated
from replay.sensitivity import Effect, changed_in_turn


def write_synthetic(result: Simulation, path: Path) -> int:
    """Write the replayed events to `path` as a Chrome trace, in order of time; return their number.

    With several owners, names and processes carry the owner's prefix, as in a combined trace. Times count
    from the start of the first recorded step, which is in the header: viewers read float64, which resolves
    today's epoch to only 0.25 us, so that adjacent boxes would overlap.
    """
    origin = int(result.recording.steps[result.rows[0]].begin_ns.min())
    return write_timeline(path, _rows(result), baseTimeNanoseconds=origin)


def _rows(result: Simulation) -> list[ThreadRow]:
    recording = result.recording
    prefixes = [f"{owner}." if len(recording.owners) > 1 else "" for owner in recording.owners]
    is_written = recording.which(lambda op: op.is_traced)
    times = [result.intervals(position) for position in range(len(result.rows))]
    number = np.concatenate([recording.steps[row].operation for row in result.rows])
    start, end = (np.concatenate([pair[side] for pair in times]) for side in (0, 1))
    rows = np.flatnonzero(is_written[number])
    rows = rows[np.lexsort((-end[rows], start[rows]))]
    operations = {i: recording.operations[i] for i in unique(number[rows]).tolist()}
    slices: dict[tuple[int, Track], list[Slice]] = {(op.owner, op.track): [] for op in operations.values()}
    shared = {  # by all slices of an operation: there may be millions
        i: (slices[op.owner, op.track], prefixes[op.owner] + op.name, {"name": op.name}, op.cat or None)
        for i, op in operations.items()
    }
    for i, begin, until in zip(*(column[rows].tolist() for column in (number, start, end)), strict=True):
        of_track, name, args, cat = shared[i]
        of_track.append(Slice(name, begin, until, args, cat=cat))
    return [
        recorded_row(recording.owners, owner, track, slices[owner, track])
        for owner, track in sorted(slices, key=lambda thread: thread[0])
    ]


_TRIED = "tried: the 20 operations with the most time on the critical path, of each kind"
#: The factor by which `bottleneck` shortens each candidate.
_FASTER = 0.9
_STEPS = (
    Column("step", "step", "int"),
    Column("measured_ms", "recorded (ms)", "float"),
    Column("predicted_ms", "replayed (ms)", "float"),
)
_EFFECTS = (
    Column("kind", "kind"),
    Column("name", "name"),
    Column("cat", "category"),
    ms_column("added_ms", "work changed by", "added_ns"),
    ms_column("effect_ms", "step changed by", "effect_ns"),
)


def replay(args: Namespace, loaded: LoadedSteps) -> Result:
    """Simulate the recorded steps, and write them as a timeline."""
    recording = loaded.recording
    simulation = simulated(recording, replayed_rows(recording, args.step_num))
    replayed = answer(recording, simulation.rows, simulation.iteration_ns)
    row = recording.choose_step()
    path = path_of(args, recording, recording.steps[row])
    written = write(simulation, args.output)
    numbers = [recording.steps[i].number for i in replayed.rows]
    times_ms = ((ns / 1e6).tolist() for ns in replayed.by_step_ns)  # NaN: not recorded
    steps = Table("steps", "Iteration time", _STEPS, list(zip(numbers, *times_ms, strict=True)))
    return Result(
        **common(args, loaded),
        headline=f"{recording.one_step} takes {in_ms(replayed.iteration_ns)}.",
        document=document(args, replayed, row, path),
        tables=[*path_tables(recording.steps[row].number, path), steps],
        charts=timelines(recording, simulation, row) if args.html else (),
        notes=[*recording.notes, *damage_notes(loaded.files), *written, command(args, WHAT_IF)],
    )


def change_in_turn(args: Namespace, loaded: LoadedSteps) -> Result:
    """Delay operations in turn, or make them faster, and sort them by how much the step changes."""
    recording = loaded.recording
    replayed = answer(recording, recording.whole_steps)
    is_delay = args.sub_option == "map_delay"
    ratio = args.delay_ratio if is_delay else _FASTER
    effects = changed_in_turn(
        recording, ratio, parts=args.del_queue, groups=not is_delay, progress=args.progress
    )
    row = recording.choose_step()
    path = path_of(args, recording, recording.steps[row])
    key = "delays" if is_delay else "bottlenecks"
    title = f"Each operation x {ratio:g}" if is_delay else "What gives most when 10 % faster"
    step_ns = replayed.iteration_ns
    share = Column("effect", "change of the step", "percent", 2, value=lambda e: e.effect_ns / step_ns)
    table = Table.of(key, title, (*_EFFECTS, share), effects)
    rows = ((f"{effect.kind} {brief(effect.name)}", effect.effect_ns, None) for effect in effects)
    return Result(
        **common(args, loaded),
        headline=_largest_effect(effects, replayed, ratio),
        document={**document(args, replayed, row, path), key: table},
        tables=[table],
        charts=bars(title, "change of the step", rows) if args.html and effects else (),
        figures=[("iteration time", in_ms(replayed.recorded_ns or step_ns))],
        notes=[*recording.notes, _TRIED, command(args, WHAT_IF)],
    )


def _largest_effect(effects: Sequence[Effect], replayed: Answer, ratio: float) -> str:
    if not effects:
        return "The recording has no operation to change."
    largest = effects[0]
    name, change_ns = f"{largest.kind} {brief(largest.name)}", abs(largest.effect_ns)
    moved = f"{in_ms(change_ns)} ({in_percent(change_ns / replayed.iteration_ns, 1)}) per step"
    if largest.effect_ns > 0:
        return f"Delaying {name} ({ratio:g} times) costs most: {moved}."
    return f"Speeding up {name} by {in_percent(1 - ratio)} helps most: {moved}."


# ---- shared by all variants


def common(args: Namespace, loaded: LoadedSteps) -> dict[str, Any]:
    """Name the fields that the results of all variants share."""
    return {"option": "replay", "title": ", ".join(map(str, args.path)), "repairs": loaded.repairs}


def in_milliseconds(interval_ns: tuple[float, float] | None) -> list[float] | None:
    """Convert an interval for JSON."""
    return None if interval_ns is None else [ns / 1e6 for ns in interval_ns]


def path_of(args: Namespace, recording: Recording, step: StepGraph) -> NamedPath:
    """Find the critical path of a step, recorded or simulated, as `critical` shows it."""
    return NamedPath.of(recording, critical_path(step), parts=args.del_queue)


def write(simulation: Simulation, output: Path | None) -> list[str]:
    """Write the simulated timeline unless `output` is None or ``-``; say so in a note."""
    if output is None or output == NO_FILE:
        return []
    n_events = write_synthetic(simulation, output)
    return [f"replayed timeline: {output} ({n_events:,} events)"]


def document(
    args: Namespace, replayed: Answer, row: int, path: NamedPath, ratio: float = 1
) -> dict[str, Any]:
    """Collect the keys that every variant has; `ratio` is how much longer an edited job takes."""
    recording, recorded = replayed.recording, replayed.recorded_ns
    if recording.recorded is not None:
        recorded = mean_step_ns(recording.recorded)
    owners, iteration_ns = recording.owners, replayed.iteration_ns * ratio
    return {
        "steps": len(replayed.rows),
        "operations": _n_operations(recording, args.del_queue),
        "predicted_ms": dict(zip(owners, (replayed.predicted_ns * ratio / 1e6).tolist(), strict=True)),
        "iteration_ms": iteration_ns / 1e6,
        "measured_ms": ms_of(recorded),
        "error": (iteration_ns - recorded) / recorded if recorded and recording.recorded is None else None,
        "critical_step": recording.steps[row].number,
        "critical_path": records(path, owned=len(owners) > 1),
        "interval_ms": in_milliseconds(replayed.interval_ns),
        "output": None if args.output in (None, NO_FILE) else str(args.output),
    }


def _n_operations(recording: Recording, parts: bool) -> int:
    """Count the operations of a step; a communication with its parts is one unless `parts`."""
    operations = [operation for operation in recording.operations if operation.is_traced]
    if parts:
        return len(operations)
    transfers = [op for op in operations if op.transfer.whole or op.is_communication]
    return len(operations) - len(transfers) + len({(op.owner, op.main) for op in transfers})


# ---- tables and charts


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


def bars(
    title: str, label: str, rows: Iterable[tuple[str, float, tuple[float | None, float | None] | None]]
) -> list[Chart]:
    """Draw a bar for each (name, duration, its 95 % interval or None), in nanoseconds."""
    names, ns, intervals = zip(*itertools.islice(rows, MOST_BARS), strict=True)
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
