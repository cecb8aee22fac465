"""A replay as a trace: the recorded events at the times the simulation gave them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from arrays.numbering import unique
from dag_utils import place_tracks
from formats.chrome_writer import Places, write_events
from formats.columns import Track
from formats.times import microseconds
from replay.runs import Simulation


def write_synthetic(result: Simulation, path: Path) -> int:
    """Write the replayed events to `path` in the Chrome format, in order of time; return how many.

    Names and categories are the recorded ones; with several owners names and processes carry the owner's
    prefix, as in a combined trace. Times count from the start of the first recorded step, which stands in
    the header: viewers read them as float64, which resolves today's epoch to only 0.25 us, so that boxes
    that touch would overlap, and be left out.
    """
    origin = int(result.recording.steps[result.rows[0]].begin_ns.min())
    return write_events(path, _events(result), baseTimeNanoseconds=origin)


def _events(result: Simulation) -> Iterator[dict[str, Any]]:
    recording = result.recording
    several = len(recording.owners) > 1
    is_written = recording.which(lambda one: one.is_traced)
    times = [result.intervals(position) for position in range(len(result.rows))]
    number = np.concatenate([recording.steps[row].operation for row in result.rows])
    start, end = (np.concatenate([pair[side] for pair in times]) for side in (0, 1))
    rows = np.flatnonzero(is_written[number])
    rows = rows[np.lexsort((-end[rows], start[rows]))]
    operations = {at: recording.operations[at] for at in unique(number[rows]).tolist()}
    tracks: list[dict[Track, None]] = [{} for _ in recording.owners]
    for one in operations.values():
        tracks[one.owner][one.track] = None
    places = Places(track.tid for of_owner in tracks for track in of_owner)
    placed = place_tracks(
        places, recording.owners, [list(of_owner) for of_owner in tracks], [{}] * len(tracks)
    )
    thread_of = [placed[one.owner][one.track] for one in operations.values()]
    place = {at: i for i, at in enumerate(operations)}
    columns = [column.tolist() for column in (number[rows], start[rows], end[rows])]
    where = places.nested(thread_of, [place[at] for at in columns[0]], *columns[1:])
    yield from places.names()
    for at, begin, until, thread in zip(*columns, where, strict=True):
        operation = operations[at]
        owner = f"{recording.owners[operation.owner]}." if several else ""
        event = {
            "name": owner + operation.name,
            "ph": "X",
            "ts": microseconds(begin),
            "dur": microseconds(until - begin),
        }
        known = {"cat": operation.cat} if operation.cat else {}
        yield event | known | {"pid": thread.pid, "tid": thread.tid, "args": {"name": operation.name}}
