"""Where the time of a transfer goes: on the wire, in the server, waiting for other workers, in the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collector.network.partition_keys import partition_key
from formats.columns import Int32, Int64, Trace
from opname import OpName

UNKNOWN = -1
_TOLERANCE_NS = 2_000  # start and duration of an event are each cut to a microsecond


@dataclass(frozen=True, slots=True)
class Wire:
    """The transfers of all captures of a job, in the order of their start.

    worker, server : (n,) index into the names of the nodes
    link : (n,) index into the links
    key : (n,) int64 partition key; -1 where the key range of the server is not known
    push : (n,)
    timestamp : (n,) ps-lite's number of the request
    request_start_ns … response_end_ns, value_bytes, wire_bytes : (n,) as in `Transfers`
    initial : (n,) a PUSH that only gives the server the tensor's size, before the first step
    trip_ns : (n,) the network's round trip within the gap between request and response; 0: not known
    waiting_ns : (n,) how long the server waited for the PUSH of other workers; -1: not known
    """

    worker: Int32
    server: Int32
    link: Int32
    key: Int64
    push: NDArray[np.bool_]
    timestamp: Int64
    request_start_ns: Int64
    request_end_ns: Int64
    response_start_ns: Int64
    response_end_ns: Int64
    value_bytes: Int64
    wire_bytes: Int64
    initial: NDArray[np.bool_]
    trip_ns: Int64
    waiting_ns: Int64

    def __len__(self) -> int:
        return len(self.key)

    @property
    def span_ns(self) -> Int64:
        """From the first byte of the request to the last of the response (n,)."""
        span: Int64 = self.response_end_ns - self.request_start_ns
        return span

    @property
    def gap_ns(self) -> Int64:
        """From the last byte of the request to the first of the response (n,)."""
        gap: Int64 = np.maximum(self.response_start_ns - self.request_end_ns, 0)
        return gap


@dataclass(frozen=True, slots=True)
class TraceCheck:
    """How the PUSH and PULL events of one `comm.json` and the capture agree.

    `before_ns`, `after_ns`: medians of the time in the event before the request's first byte and after the
    response's last.
    """

    path: Path
    worker: str
    n_events: int
    n_exact: int  # events that contain exactly one transfer
    n_none: int
    n_several: int
    n_outside: int  # of those that contain none: before or after all that was captured of the worker
    before_ns: int
    after_ns: int


def initial_pushes(worker: Int32, key: Int64, push: NDArray[np.bool_], start_ns: Int64) -> NDArray[np.bool_]:
    """Return which transfers are a PUSH that the same worker follows by another PUSH of the key (n,)."""
    order = np.lexsort((start_ns, key, worker))
    same = (worker[order[:-1]] == worker[order[1:]]) & (key[order[:-1]] == key[order[1:]])
    initial = np.zeros(len(key), np.bool_)
    initial[order[:-1]] = same & push[order[:-1]] & push[order[1:]]
    return initial


def waiting(
    worker: Int32,
    key: Int64,
    push: NDArray[np.bool_],
    initial: NDArray[np.bool_],
    request_end_ns: Int64,
    response_start_ns: Int64,
    n_workers: int | None,
) -> Int64:
    """Return how long each transfer waited for other workers, -1 where it cannot be known.

    A server answers a PULL when every worker has pushed the key for that step, and an initial PUSH
    likewise. The last such PUSH is the latest, over the workers, of each one's last PUSH that was complete
    before the response began. Any other PUSH is acknowledged at once. `n_workers` is the size of the
    job, None if unknown.
    """
    waits = np.where(push & ~initial, 0, UNKNOWN).astype(np.int64)
    order = np.lexsort((request_end_ns, worker, key))
    for rows in _runs(key[order], order):
        pushers = [group[push[group]] for group in _runs(worker[rows], rows)]
        pushers = [group for group in pushers if len(group)]
        waiters = rows[waits[rows] == UNKNOWN]
        if n_workers is None or len(pushers) < n_workers or not len(waiters):
            continue
        last_ns = np.full(len(waiters), np.iinfo(np.int64).min)
        known = np.ones(len(waiters), np.bool_)
        for group in pushers:
            at = np.searchsorted(request_end_ns[group], response_start_ns[waiters], side="right") - 1
            known &= at >= 0
            last_ns = np.maximum(last_ns, request_end_ns[group][np.maximum(at, 0)])
        gap_ns = np.maximum(response_start_ns[waiters] - request_end_ns[waiters], 0)
        waits[waiters[known]] = np.clip(last_ns - request_end_ns[waiters], 0, gap_ns)[known]
    return waits


def _runs(values: NDArray[Any], rows: Int64) -> list[Int64]:
    """Split `rows` where the sorted `values` change."""
    return np.split(rows, np.flatnonzero(values[1:] != values[:-1]) + 1) if len(rows) else []


def check_trace(
    path: Path, trace: Trace, wire: Wire, names: Sequence[str], candidates: Sequence[int], sure: bool
) -> tuple[TraceCheck | None, Int64]:
    """Compare the PUSH and PULL events of a `comm.json` with the transfers of its worker.

    Parameters
    ----------
    names : of the nodes
    candidates : nodes that may be the worker; the one whose transfers fit best is taken
    sure : the worker is the candidate even if little fits; otherwise half of the events must

    Returns
    -------
    The agreement (None: no such events, or no worker fits) and (n,) durations of the events that contain
    each transfer, -1 where none does.
    """
    events = _events(trace)
    event_ns = np.full(len(wire), UNKNOWN, np.int64)
    fits = [(worker, *_contained(events, wire, worker)) for worker in candidates]
    if not len(events[0]) or not fits:
        return None, event_ns
    worker, count, row = max(fits, key=lambda fit: int((fit[1] == 1).sum()))
    exact = count == 1
    if not sure and exact.sum() * 2 <= len(exact):
        return None, event_ns
    rows, starts, durations = row[exact], events[2][exact], events[3][exact]
    event_ns[rows] = durations
    mine = wire.worker == worker
    outside = (events[2] + events[3] < wire.request_start_ns[mine].min()) | (
        events[2] > wire.response_end_ns[mine].max()
    )
    check = TraceCheck(
        path,
        names[worker],
        len(count),
        int(exact.sum()),
        int((count == 0).sum()),
        int((count > 1).sum()),
        int((outside & (count == 0)).sum()),
        _median(wire.request_start_ns[rows] - starts),
        _median(starts + durations - wire.response_end_ns[rows]),
    )
    return check, event_ns


def _median(values: Int64) -> int:
    return int(np.median(values)) if len(values) else 0


_Events = tuple[Int64, NDArray[np.bool_], Int64, Int64]  # key, is a PUSH, start, duration


def _events(trace: Trace) -> _Events:
    """Return the PUSH and PULL events of a trace."""
    queues = [OpName.parse(name).queue for name in trace.names]
    keys = [partition_key(track.tid) for track in trace.tracks]
    by_name = np.array([{"PUSH": 1, "PULL": 0}.get(queue or "", -1) for queue in queues] or [0], np.int64)
    by_track = np.array([-1 if key is None else key for key in keys] or [0], np.int64)
    kind, key = by_name[trace.name_id], by_track[trace.track_id]
    rows = np.flatnonzero((kind >= 0) & (key >= 0))
    return key[rows], kind[rows] == 1, trace.ts_ns[rows], trace.dur_ns[rows]


def _contained(events: _Events, wire: Wire, worker: int) -> tuple[Int64, Int64]:
    """Return for each event how many transfers of the worker lie within it, and the row of one."""
    keys, push, start_ns, dur_ns = events
    count = np.zeros(len(keys), np.int64)
    found = np.full(len(keys), UNKNOWN, np.int64)
    mine = np.flatnonzero(wire.worker == worker)
    mine = mine[np.lexsort((wire.request_start_ns[mine], wire.push[mine], wire.key[mine]))]
    code = wire.key[mine] * 2 + wire.push[mine]
    wanted = keys * 2 + push
    order = np.argsort(wanted, kind="stable")
    for at in _runs(wanted[order], order):
        first, last = np.searchsorted(code, (wanted[at[0]], wanted[at[0]] + 1)).tolist()
        group = mine[first:last]
        begins = wire.request_start_ns[group]
        low = np.searchsorted(begins, start_ns[at] - _TOLERANCE_NS)
        high = np.searchsorted(begins, start_ns[at] + dur_ns[at] + _TOLERANCE_NS)
        for event, begin, end in zip(at.tolist(), low.tolist(), high.tolist(), strict=True):
            rows = group[begin:end]
            rows = rows[wire.response_end_ns[rows] <= start_ns[event] + dur_ns[event] + _TOLERANCE_NS]
            count[event] = len(rows)
            found[event] = rows[0] if len(rows) else UNKNOWN
    return count, found
