"""A replay as a trace: the recorded events at the times the simulation gave them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

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
            name, pid = operation.name, operation.track.pid
            if several:
                owner = recording.owners[operation.owner]
                name, process = f"{owner}.{name}", f"{owner}.{'' if pid is None else pid}".rstrip(".")
                pid = pids.get(process)
                if pid is None:
                    pid = pids[process] = len(pids)
                    yield metadata("process_name", pid, 0, process)
            places = {"cat": operation.cat, "pid": pid, "tid": operation.track.tid}
            known = {key: value for key, value in places.items() if value not in (None, "")}
            times = {"ts": (origin + int(start[event])) / 1e3, "dur": int(end[event] - start[event]) / 1e3}
            yield {"name": name, "ph": "X", **times, **known, "args": {"name": operation.name}}
