"""A replay as a trace: the recorded events at the times the simulation gave them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from formats.chrome_writer import Places, write_events
from formats.columns import unique
from replay.simulation import Replay


def write_synthetic(result: Replay, path: Path, *, parts: bool = True) -> int:
    """Write the replayed events to `path` in the Chrome format, in order of time; return how many.

    Names, tracks and categories are the recorded ones; with several owners names and processes carry
    the owner's prefix, as in a combined trace. Time goes on from the start of the first recorded step.
    """
    return write_events(path, _events(result, parts))


def _events(result: Replay, parts: bool) -> Iterator[dict[str, Any]]:
    recording = result.recording
    several = len(recording.owners) > 1
    origin = int(recording.steps[result.rows[0]].begin_ns.min())
    is_written = recording.which(lambda one: one.is_traced and (parts or not one.whole))
    times = [result.intervals(position) for position in range(len(result.rows))]
    number = np.concatenate([recording.steps[row].operation for row in result.rows])
    start, end = (np.concatenate([pair[side] for pair in times]) for side in (0, 1))
    rows = np.flatnonzero(is_written[number])
    rows = rows[np.argsort(start[rows], kind="stable")]
    places, place_of = Places(), {}
    for at in unique(number[rows]).tolist():  # a rank's are numbered together
        operation = recording.operations[at]
        owner = f"{recording.owners[operation.owner]}." if several else ""
        process, thread = operation.track
        pid = places.process((operation.owner, process), f"{owner}{_text(process)}".rstrip("."))
        place_of[at] = pid, places.thread(pid, thread, _text(thread)), owner
    yield from places.names()
    columns = (number[rows], start[rows], end[rows] - start[rows])
    for at, begin, duration in zip(*(column.tolist() for column in columns), strict=True):
        operation = recording.operations[at]
        pid, tid, owner = place_of[at]
        event = {
            "name": owner + operation.name,
            "ph": "X",
            "ts": (origin + begin) / 1e3,
            "dur": duration / 1e3,
        }
        known = {"cat": operation.cat} if operation.cat else {}
        yield event | known | {"pid": pid, "tid": tid, "args": {"name": operation.name}}


def _text(number: Any) -> str:
    return "" if number is None else str(number)
