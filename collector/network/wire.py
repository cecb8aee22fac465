"""The transfers of all captures of a job: each connection once, in order, with their keys and waiting.

And whether the PUSH and PULL events of the workers' traces agree with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from arrays import Int32, Int64, NDArray
from arrays.median import median
from arrays.numbering import places_by_value
from collector.network.endpoints import index_in_path, n_announced, partition_keys
from collector.network.partition_keys import Keys, key_of_id
from collector.network.transfers import Connection, Traffic, Transfers
from formats.columns import Trace
from opname import OpName
from result import Repairs

UNKNOWN = -1


class Wire(Transfers, frozen=True):
    """The transfers (n,) of a job, in the order of their start; `connection` indexes all captures' links."""

    worker: Int32  # index into the names of the nodes, as `server`
    server: Int32
    key: Int64  # of the partition; -1 where the key range of the server is not known
    initial: NDArray[np.bool_]  # a PUSH that only gives the server the tensor's size, before the first step
    trip_ns: Int64  # the network's round trip within the gap between request and response; 0: not known
    waiting_ns: Int64  # how long the server waited for the PUSH of other workers; -1: not known

    @property
    def span_ns(self) -> Int64:
        """From the first byte of the request to the last of the response (n,)."""
        return self.response_end_ns - self.request_start_ns

    @property
    def gap_ns(self) -> Int64:
        """From the last byte of the request to the first of the response (n,)."""
        gap: Int64 = np.maximum(self.response_start_ns - self.request_end_ns, 0)
        return gap


def merge(
    traffics: Sequence[Traffic], links: Sequence[Sequence[Connection]], repairs: Repairs
) -> tuple[Wire, list[str]]:
    """Return the transfers of all captures, a connection in two of them once, and the names of the nodes."""
    all_links = [link for group in links for link in group]
    nodes = sorted({name for link in all_links for name in (link.worker, link.server)})
    n_servers = n_announced(traffics, "server")
    pieces: list[dict[str, NDArray[Any]]] = []
    first_link = 0
    for traffic, group, dropped in zip(traffics, links, _duplicates(traffics, links), strict=True):
        rows = np.flatnonzero(~np.isin(traffic.transfers.connection, dropped))
        piece = {name: getattr(traffic.transfers, name)[rows] for name in Transfers.__struct_fields__}
        key = np.full(len(rows), UNKNOWN, np.int64)
        for i, link in enumerate(group):
            of_link = piece["connection"] == i
            key[of_link] = partition_keys(piece["wire_key"][of_link], link.server_id, n_servers)
        if dropped:
            repairs.add(traffic.capture.path, f"{len(dropped)} connections are in another capture too")
        if n_unknown := int((key == UNKNOWN).sum()):
            repairs.add(traffic.capture.path, f"{n_unknown:,} transfers lie in no server's key range")
        pieces.append(piece | {"key": key, "connection": piece["connection"] + first_link})
        first_link += len(group)
    columns = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
    order = np.argsort(columns["request_start_ns"], kind="stable")
    columns = {name: column[order] for name, column in columns.items()}
    of_connection = [
        (nodes.index(link.worker), nodes.index(link.server), link.round_trip_ns) for link in all_links
    ]
    worker, server, trip_ns = np.array(of_connection, np.int64)[columns["connection"]].T
    wire = Wire(
        **columns,
        worker=worker.astype(np.int32),
        server=server.astype(np.int32),
        trip_ns=trip_ns,
        initial=initial_pushes(worker, columns["key"], columns["push"], columns["request_start_ns"]),
        waiting_ns=np.full(len(order), UNKNOWN, np.int64),
    )
    return wire, nodes


def _duplicates(traffics: Sequence[Traffic], links: Sequence[Sequence[Connection]]) -> list[list[int]]:
    """Return for each capture the connections that another one has better: the worker's own, a longer."""
    best: dict[tuple[str, int, str, int], tuple[Any, ...]] = {}
    dropped: list[list[int]] = [[] for _ in traffics]
    for which, (traffic, group) in enumerate(zip(traffics, links, strict=True)):
        is_workers = index_in_path(traffic.capture.path, "worker") is not None
        for i, link in enumerate(group):
            times = traffic.transfers.request_start_ns[traffic.transfers.connection == i]
            ends = (link.worker_host, link.worker_port, link.server_host, link.server_port)
            this = (is_workers, len(times), int(times.min()), int(times.max()), which, i)
            other = best.setdefault(ends, this)
            if other is this or other[2] > this[3] or this[2] > other[3]:
                continue
            worse, best[ends] = sorted((this, other))
            dropped[worse[4]].append(worse[5])
    return dropped


def initial_pushes(
    worker: NDArray[Any], key: Int64, push: NDArray[np.bool_], start_ns: Int64
) -> NDArray[np.bool_]:
    """Return which transfers are a PUSH that the same worker follows by another PUSH of the key (n,)."""
    order = np.lexsort((start_ns, key, worker))
    same = (worker[order[:-1]] == worker[order[1:]]) & (key[order[:-1]] == key[order[1:]])
    initial = np.zeros(len(key), np.bool_)
    initial[order[:-1]] = same & push[order[:-1]] & push[order[1:]]
    return initial


def job_size(traffics: Sequence[Traffic], wire: Wire) -> int | None:
    """Return the number of workers of the job, or None where the captures may not show all of them."""
    announced, seen = n_announced(traffics, "worker"), len(np.unique(wire.worker))
    if announced:
        return max(announced, seen)
    at_server = any(index_in_path(traffic.capture.path, "server") is not None for traffic in traffics)
    return seen if seen > 1 or at_server else None


def with_waiting(wire: Wire, n_workers: int | None) -> Wire:
    """Return the transfers with how long each waited for other workers, -1 where it cannot be known.

    A server answers a PULL when every worker has pushed the key for that step, and an initial PUSH
    likewise. The last such PUSH is the latest, over the workers, of each one's last PUSH that was complete
    before the response began. Any other PUSH is acknowledged at once. `n_workers` is the size of the
    job, None if unknown.
    """
    waits = np.where(wire.push & ~wire.initial, 0, UNKNOWN).astype(np.int64)
    order = np.argsort(wire.request_end_ns, kind="stable")
    for rows in (order[places] for places in places_by_value(wire.key[order])):
        pushes = rows[wire.push[rows]]
        pushers = [pushes[places] for places in places_by_value(wire.worker[pushes])]
        waiters = rows[waits[rows] == UNKNOWN]
        if n_workers is None or len(pushers) < n_workers or not len(waiters):
            continue
        answered_ns, asked_ns = wire.response_start_ns[waiters], wire.request_end_ns[waiters]
        last_ns = np.full(len(waiters), np.iinfo(np.int64).min)
        known = np.ones(len(waiters), np.bool_)
        for group in pushers:
            pushed_ns = wire.request_end_ns[group]
            at = np.searchsorted(pushed_ns, answered_ns, side="right") - 1
            known &= at >= 0
            last_ns = np.maximum(last_ns, pushed_ns[np.maximum(at, 0)])
        waits[waiters[known]] = np.clip(last_ns - asked_ns, 0, wire.gap_ns[waiters])[known]
    return replace(wire, waiting_ns=waits)


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
            before_ns=int(median(wire.request_start_ns[rows] - events.start_ns[exact])) if len(rows) else 0,
            after_ns=int(median(events.end_ns[exact] - wire.response_end_ns[rows])) if len(rows) else 0,
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
    for at in places_by_value(wanted):
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
