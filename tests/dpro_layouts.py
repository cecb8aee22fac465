"""Write a BytePS job in the layouts of byteprofile and dPRO, in which one file has all ranks.

The inputs are folders ``worker_<i>/<local rank>/`` with a final trace each.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

Event = dict[str, Any]


class RankTrace(NamedTuple):
    """The events of one rank's own file."""

    worker: int
    rank: int
    events: list[Event]


def rank_traces(job: Path) -> Iterator[RankTrace]:
    """Yield the final traces of a job, workers and ranks in order."""
    for worker in sorted(job.glob("worker_*")):
        for folder in sorted(path for path in worker.glob("*") if path.is_dir()):
            (path,) = folder.glob("bps_trace*.json*")
            data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            yield RankTrace(int(worker.name[7:]), int(folder.name), json.loads(data)["traceEvents"])


def byteprofile(trace: RankTrace, event: Event, several: bool) -> Event:
    """Rename an event as byteprofile's ``--option combine`` does."""
    worker = f"wk{trace.worker}." if several else ""
    pid = f"{worker}rank{trace.rank}.{event['pid']}"
    return {**event, "name": f"rank{trace.rank}.{event['name']}", "pid": pid}


def dpro(trace: RankTrace, event: Event, several: bool) -> Event:
    """Put the rank into the pid as dPRO's final trace of a BytePS trial does."""
    return {**event, "pid": f"traces_{trace.worker}.rank{trace.rank}" if several else f"rank{trace.rank}"}


def dpro_horovod(trace: RankTrace, event: Event, several: bool) -> Event:
    """Put host and rank into the pid as dPRO does for Horovod."""
    return {**event, "pid": f"host{trace.worker}.rank{trace.rank}"}


def dpro_long(trace: RankTrace, event: Event, several: bool) -> Event:
    """Put host and rank before the name as well, as dPRO's graphs do."""
    pid = f"host{trace.worker}.rank{trace.rank}"
    return {**event, "pid": pid, "name": f"{pid}->{event['name']}"}


#: How each layout writes one event.
WRITERS: dict[str, Callable[[RankTrace, Event, bool], Event]] = {
    "byteprofile": byteprofile, "dpro": dpro, "dpro_horovod": dpro_horovod, "dpro_long": dpro_long,
}  # fmt: skip


def write_combined(job: Path, layout: str, path: Path) -> Path:
    """Write the events of all ranks of `job` into one file, in order of time."""
    traces = list(rank_traces(job))
    several = len({trace.worker for trace in traces}) > 1
    events = [WRITERS[layout](trace, event, several) for trace in traces for event in trace.events]
    path.write_text(json.dumps({"traceEvents": sorted(events, key=lambda event: float(event["ts"]))}))
    return path
