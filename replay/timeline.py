"""A replay as a trace: the recorded events at the times the simulation gave them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dialects.step_parts import Operation
from formats.chrome_writer import metadata, write_events
from replay.simulation import Replay


def write_synthetic(result: Replay, path: Path, *, parts: bool = True) -> int:
    """Write the replayed events to `path` in the Chrome format; return how many.

    Names, tracks and categories are the recorded ones; with several owners names and processes carry
    the owner's prefix, as in a combined trace. Time goes on from the start of the first recorded step.
    """
    return write_events(path, _events(result, parts))


def _events(result: Replay, parts: bool) -> Iterator[dict[str, Any]]:
    recording = result.recording
    several = len(recording.owners) > 1
    origin = int(recording.steps[result.rows[0]].begin_ns.min())
    pids: dict[str, int] = {}
    for position, row in enumerate(result.rows):
        start, end = result.intervals(position)
        for event in np.argsort(start, kind="stable").tolist():
            operation = recording.operations[int(recording.steps[row].operation[event])]
            if not operation.is_traced or (operation.whole and not parts):
                continue
            made = _event(operation, origin + int(start[event]), int(end[event] - start[event]))
            if several:
                yield from _owned(made, recording.owners[operation.owner], pids)
            yield made


def _event(operation: Operation, start_ns: int, dur_ns: int) -> dict[str, Any]:
    places = {"cat": operation.cat, "pid": operation.track.pid, "tid": operation.track.tid}
    known = {key: value for key, value in places.items() if value not in (None, "")}
    return {"name": operation.name, "ph": "X", "ts": start_ns / 1e3, "dur": dur_ns / 1e3, **known,
            "args": {"name": operation.name}}  # fmt: skip


def _owned(event: dict[str, Any], owner: str, pids: dict[str, int]) -> Iterator[dict[str, Any]]:
    """Put the owner before the event's name and process; yield the process's name the first time."""
    process = f"{owner}.{event.get('pid', '')}".rstrip(".")
    event["name"] = f"{owner}.{event['name']}"
    if process not in pids:
        pids[process] = len(pids)
        yield metadata("process_name", pids[process], 0, process)
    event["pid"] = pids[process]
