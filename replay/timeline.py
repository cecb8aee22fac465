"""A replay as a trace: the recorded events at their simulated times."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from analyzer.base.arrays.numbering import unique
from analyzer.reading.formats.chrome_writer import Slice, ThreadRow, recorded_row, write_timeline
from analyzer.reading.formats.columns import Track
from replay.runs import Simulation


def write_synthetic(result: Simulation, path: Path) -> int:
    """Write the replayed events to `path` as a Chrome trace, in order of time; return their number.

    Names and categories are the recorded ones; with several owners names and processes carry the owner's
    prefix, as in a combined trace. Times count from the start of the first recorded step, which stands in
    the header: viewers read them as float64, which resolves today's epoch to only 0.25 us, so that boxes
    that touch would overlap, and be left out.
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
    for i, begin, until in zip(*(column[rows].tolist() for column in (number, start, end)), strict=True):
        operation = operations[i]
        name = prefixes[operation.owner] + operation.name
        box = Slice(name, begin, until, {"name": operation.name}, cat=operation.cat or None)
        slices[operation.owner, operation.track].append(box)
    return [
        recorded_row(recording.owners, owner, track, slices[owner, track])
        for owner, track in sorted(slices, key=lambda thread: thread[0])
    ]
