"""The transfers of all captures of a job: each connection once, in order, with their keys and waiting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from arrays import Int32, Int64, NDArray
from arrays.numbering import places_by_value
from collector.network.endpoints import index_in_path, n_announced, partition_keys
from collector.network.transfers import Connection, Traffic, Transfers
from errors import Repairs

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
    """Return for each capture the connections that another one shows at the same time: the worker's stays."""
    known: dict[tuple[str, int, str, int], list[tuple[int, int]]] = {}
    dropped: list[list[int]] = [[] for _ in traffics]
    is_workers = [index_in_path(traffic.capture.path, "worker") is not None for traffic in traffics]
    for which in sorted(range(len(traffics)), key=lambda which: not is_workers[which]):
        transfers = traffics[which].transfers
        for i, link in enumerate(links[which]):
            times = transfers.request_start_ns[transfers.connection == i]
            first, last = int(times.min()), int(times.max())
            ends = (link.worker_host, link.worker_port, link.server_host, link.server_port)
            spans = known.setdefault(ends, [])
            if any(first <= end and begin <= last for begin, end in spans):
                dropped[which].append(i)
            else:
                spans.append((first, last))
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
