"""The captures of a job as one: each connection once, all transfers in the order of their start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from collector.network.endpoints import Link, index_in_path, n_announced, partition_keys
from collector.network.latency_split import UNKNOWN, Wire, initial_pushes, waiting
from collector.network.transfers import Traffic, Transfers
from result import Repairs


def merge(
    traffics: Sequence[Traffic], links: Sequence[Sequence[Link]], repairs: Repairs
) -> tuple[Wire, list[str]]:
    """Put the transfers of all captures together; a connection in two captures counts once."""
    nodes = sorted({name for group in links for link in group for name in (link.worker, link.server)})
    number = {name: i for i, name in enumerate(nodes)}
    n_servers = n_announced(traffics, "server")
    pieces: list[dict[str, Any]] = []
    first_link = 0
    for traffic, group, dropped in zip(traffics, links, _doubles(traffics, links), strict=True):
        rows = np.flatnonzero(~np.isin(traffic.transfers.connection, dropped))
        if dropped:
            repairs.add(traffic.capture.path, f"{len(dropped)} connections are in another capture too")
        columns = {f.name: getattr(traffic.transfers, f.name)[rows] for f in fields(Transfers)}
        connection, wire_key = columns.pop("connection"), columns.pop("wire_key")
        worker = np.array([number[link.worker] for link in group] or [0], np.int32)
        server = np.array([number[link.server] for link in group] or [0], np.int32)
        key = np.full(len(rows), UNKNOWN, np.int64)
        for i, link in enumerate(group):
            mine = connection == i
            key[mine] = partition_keys(wire_key[mine], link.connection.server_id, n_servers)
        if (key == UNKNOWN).any():
            repairs.add(
                traffic.capture.path, f"{(key == UNKNOWN).sum():,} transfers lie in no server's key range"
            )
        trips = np.array([link.connection.round_trip_ns for link in group] or [0], np.int64)
        columns |= {
            "trip_ns": trips[connection],
            "worker": worker[connection],
            "server": server[connection],
            "link": connection + first_link,
        }
        pieces.append(columns | {"key": key})
        first_link += len(group)
    merged = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
    order = np.argsort(merged["request_start_ns"], kind="stable")
    merged = {name: column[order] for name, column in merged.items()}
    initial = initial_pushes(merged["worker"], merged["key"], merged["push"], merged["request_start_ns"])
    return Wire(**merged, initial=initial, waiting_ns=np.full(len(order), UNKNOWN, np.int64)), nodes


def _doubles(traffics: Sequence[Traffic], links: Sequence[Sequence[Link]]) -> list[list[int]]:
    """Return for each capture the connections that another one has better: the worker's own, a longer."""
    seen: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    dropped: list[list[int]] = [[] for _ in traffics]
    for which, (traffic, group) in enumerate(zip(traffics, links, strict=True)):
        times, rows_of = traffic.transfers.request_start_ns, traffic.transfers.connection
        for i, link in enumerate(group):
            rows = rows_of == i
            c = link.connection
            ends = (c.worker_host, c.worker_port, c.server_host, c.server_port)
            own = index_in_path(link.capture, "worker") is not None
            mine = (own, int(rows.sum()), int(times[rows].min()), int(times[rows].max()), which, i)
            other = seen.setdefault(ends, mine)
            if other is mine or other[2] > mine[3] or mine[2] > other[3]:
                continue
            worse = min(mine, other)
            seen[ends] = max(mine, other)
            dropped[worse[4]].append(worse[5])
    return dropped


def job_size(traffics: Sequence[Traffic], wire: Wire) -> int | None:
    """Return the number of workers of the job, or None where only one is to be seen."""
    announced, seen = n_announced(traffics, "worker"), len(np.unique(wire.worker))
    if announced:
        return max(announced, seen)
    if any(index_in_path(traffic.capture.path, "server") is not None for traffic in traffics):
        return seen
    return seen if seen > 1 else None


def with_waiting(wire: Wire, n_workers: int | None) -> Wire:
    """Return the transfers with `waiting_ns`; see `waiting`."""
    waits = waiting(
        wire.worker,
        wire.key,
        wire.push,
        wire.initial,
        wire.request_end_ns,
        wire.response_start_ns,
        n_workers,
    )
    return Wire(**{f.name: getattr(wire, f.name) for f in fields(Wire)} | {"waiting_ns": waits})
