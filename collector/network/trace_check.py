"""Whether the PUSH and PULL events of the workers' traces agree with the captures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from arrays import Int64
from arrays.median import median
from collector.network.endpoints import index_in_path
from collector.network.partition_keys import Keys, key_of_id
from collector.network.wire import UNKNOWN, Wire, groups
from formats.columns import Trace
from opname import OpName
from result import Repairs

_TOLERANCE_NS = 2_000  # start and duration of an event are each cut to a microsecond


class TraceCheck(Struct, frozen=True):
    """How the PUSH and PULL events of one `comm.json` and the captures agree."""

    path: Path
    worker: str
    n_events: int
    n_exact: int  # events that contain exactly one transfer
    n_none: int
    n_several: int
    n_outside: int  # of those that contain none: before or after all that was captured of the worker
    before_ns: int  # median of the time in the event before the request's first byte
    after_ns: int  # and after the response's last


def check_traces(
    keys: Keys, wire: Wire, nodes: Sequence[str], sure: set[str], repairs: Repairs
) -> tuple[list[TraceCheck], Int64, dict[str, str]]:
    """Compare every `comm.json` with the transfers of its worker.

    A trace goes with the worker after which its directory is called, where captures are called after
    workers too; otherwise with the worker whose transfers fit best, and at least half of its events: this
    tells the worker's right name. `sure` are the names of nodes that a capture's file name tells. Returned
    are the agreements; (n,) durations of the events that contain each transfer, -1 where none does; and the
    right names of workers.
    """
    checks = []
    event_ns = np.full(len(wire), UNKNOWN, np.int64)
    renamed: dict[str, str] = {}
    workers = np.unique(wire.worker).tolist()
    for gpu, trace in keys.comm:
        index = index_in_path(gpu.path, "worker")
        expected = None if index is None else f"worker_{index}"
        known = expected in sure
        candidates = [w for w in workers if (nodes[w] == expected if known else nodes[w] not in sure)]
        events = _push_and_pull(trace)
        fits = {worker: _fit(events, wire, worker) for worker in candidates}
        if not len(events.key) or not fits:
            continue
        worker = max(fits, key=lambda worker: int((fits[worker][0] == 1).sum()))
        count, row = fits[worker]
        exact = count == 1
        if not known and exact.sum() * 2 <= len(exact):
            continue
        rows = row[exact]
        event_ns[rows] = np.maximum(event_ns[rows], (events.end_ns - events.start_ns)[exact])
        if expected is not None and not known:
            renamed[nodes[worker]] = expected
        own, none = wire.worker == worker, count == 0
        before = events.end_ns < wire.request_start_ns[own].min()
        after = events.start_ns > wire.response_end_ns[own].max()
        check = TraceCheck(
            gpu.path / "comm.json",
            expected or nodes[worker],
            n_events=len(count),
            n_exact=int(exact.sum()),
            n_none=int(none.sum()),
            n_several=int((count > 1).sum()),
            n_outside=int(((before | after) & none).sum()),
            before_ns=_median(wire.request_start_ns[rows] - events.start_ns[exact]),
            after_ns=_median(events.end_ns[exact] - wire.response_end_ns[rows]),
        )
        checks.append(check)
        if unseen := _unseen(check):
            repairs.add(check.path, unseen)
    return checks, event_ns, renamed


class _Events(NamedTuple):
    """The PUSH and PULL events of a trace, columns (n,)."""

    key: Int64
    push: NDArray[np.bool_]
    start_ns: Int64
    end_ns: Int64


def _push_and_pull(trace: Trace) -> _Events:
    stages = {"PUSH": 1, "PULL": 0}
    by_name = [stages.get(OpName.parse(name).queue or "", -1) for name in trace.names]
    keys = [key_of_id(track.tid) for track in trace.tracks]
    push = np.array(by_name or [0], np.int64)[trace.name_id]
    key = np.array([-1 if key is None else key for key in keys] or [0], np.int64)[trace.track_id]
    rows = np.flatnonzero((push >= 0) & (key >= 0))
    return _Events(key[rows], push[rows] == 1, trace.ts_ns[rows], trace.end_ns[rows])


def _fit(events: _Events, wire: Wire, worker: int) -> tuple[Int64, Int64]:
    """Return for each event how many transfers of the worker lie within it, and the row of one."""
    count = np.zeros(len(events.key), np.int64)
    row = np.full(len(events.key), UNKNOWN, np.int64)
    own = np.flatnonzero(wire.worker == worker)
    own = own[np.lexsort((wire.request_start_ns[own], wire.push[own], wire.key[own]))]
    code = wire.key[own] * 2 + wire.push[own]
    wanted = events.key * 2 + events.push
    order = np.argsort(wanted, kind="stable")
    for at in groups(wanted[order], order):
        first, last = np.searchsorted(code, (wanted[at[0]], wanted[at[0]] + 1)).tolist()
        group = own[first:last]
        starts = wire.request_start_ns[group]
        low = np.searchsorted(starts, events.start_ns[at] - _TOLERANCE_NS)
        high = np.searchsorted(starts, events.end_ns[at] + _TOLERANCE_NS)
        for event, start, end in zip(at.tolist(), low.tolist(), high.tolist(), strict=True):
            rows = group[start:end]
            rows = rows[wire.response_end_ns[rows] <= events.end_ns[event] + _TOLERANCE_NS]
            count[event] = len(rows)
            row[event] = rows[0] if len(rows) else UNKNOWN
    return count, row


def _median(values: Int64) -> int:
    return int(median(values)) if len(values) else 0


def _unseen(check: TraceCheck) -> str:
    """Return which events of a trace are not in the captures, as a phrase; "" for none."""
    phrases = []
    if check.n_outside:
        phrases.append(
            f"{check.n_outside} of {check.n_events} PUSH and PULL events lie outside the captured time"
        )
    if n := check.n_none - check.n_outside:
        phrases.append(
            f"{n} of {check.n_events} PUSH and PULL events are in no capture; what went over RDMA or "
            "shared memory cannot be seen in one"
        )
    return "; ".join(phrases)
