"""The transfers of all captures of a job: each connection once, in order, with keys and waiting times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from analyzer.base.arrays import Int64, NDArray
from analyzer.base.arrays.numbering import places_by_value
from analyzer.base.errors import Repairs
from collector.network.endpoints import index_in_path, n_announced, partition_keys
from collector.network.transfers import Connection, Traffic, Transfers

UNKNOWN = -1


class Wire(Transfers, frozen=True):
    """The transfers (n,) of a job, in the order of their start."""

    connection: Int64  # index into the connections of all captures
    worker: Int64  # index into the names of the nodes, as `server`
    server: Int64
    key: Int64  # of the partition; -1 where the key range of the server is not known
    initial: NDArray[np.bool_]  # a PUSH that only gives the server the tensor's size, before the first step
    trip_ns: Int64  # the network's round trip within the gap between request and response; 0: not known
    waiting_ns: Int64  # the server's wait for the PUSH of other workers; -1: not known

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
    traffics: Sequence[Traffic], links: Sequence[Connection], repairs: Repairs
) -> tuple[Wire, list[str]]:
    """Put the transfers of all captures in order, a connection in two of them once; name the nodes."""
    nodes = sorted({name for link in links for name in (link.worker, link.server)})
    n_servers = n_announced(traffics, "server")
    doubled = _doubled(links)
    unknown: Counter[Path] = Counter()
    pieces: list[dict[str, Any]] = []
    for i, link in enumerate(links):
        if i in doubled:
            continue
        key = partition_keys(link, n_servers)
        unknown[link.path] += int((key == UNKNOWN).sum())
        facts = {
            "connection": i,
            "worker": nodes.index(link.worker),
            "server": nodes.index(link.server),
            "trip_ns": link.round_trip_ns,
            "waiting_ns": UNKNOWN,
        }
        columns = {name: getattr(link.transfers, name) for name in Transfers.__struct_fields__}
        pieces.append(columns | {"key": key} | {name: np.full(len(key), n) for name, n in facts.items()})
    again = Counter(links[i].path for i in doubled)
    for path in (traffic.capture.path for traffic in traffics):
        if again[path]:
            repairs.add(path, f"{again[path]} connections are in another capture too")
        if unknown[path]:
            repairs.add(path, f"{unknown[path]:,} transfers lie in no server's key range")
    joined = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
    order = np.argsort(joined["request_start_ns"], kind="stable")
    joined = {name: column[order] for name, column in joined.items()}
    initial = initial_pushes(joined["worker"], joined["key"], joined["push"], joined["request_start_ns"])
    return Wire(**joined, initial=initial), nodes


def _doubled(links: Sequence[Connection]) -> set[int]:
    """Find the connections that another capture, the worker's if possible, shows at the same time."""
    known: dict[tuple[str, int, str, int], list[tuple[int, int]]] = {}
    doubled = set()
    for i in sorted(range(len(links)), key=lambda i: index_in_path(links[i].path, "worker") is None):
        link = links[i]
        starts_ns = link.transfers.request_start_ns
        first, last = int(starts_ns.min()), int(starts_ns.max())
        spans = known.setdefault((link.worker_host, link.worker_port, link.server_host, link.server_port), [])
        if any(first <= end and begin <= last for begin, end in spans):
            doubled.add(i)
        else:
            spans.append((first, last))
    return doubled


def initial_pushes(
    worker: NDArray[Any], key: Int64, push: NDArray[np.bool_], start_ns: Int64
) -> NDArray[np.bool_]:
    """Mark each PUSH that is followed by another PUSH of the same worker and key (n,)."""
    order = np.lexsort((start_ns, key, worker))
    same = (worker[order[:-1]] == worker[order[1:]]) & (key[order[:-1]] == key[order[1:]])
    initial = np.zeros(len(key), np.bool_)
    initial[order[:-1]] = same & push[order[:-1]] & push[order[1:]]
    return initial


def job_size(traffics: Sequence[Traffic], wire: Wire) -> int | None:
    """Count the workers of the job; None if the captures may not show all of them."""
    announced, seen = n_announced(traffics, "worker"), len(np.unique(wire.worker))
    if announced:
        return max(announced, seen)
    at_server = any(index_in_path(traffic.capture.path, "server") is not None for traffic in traffics)
    return seen if seen > 1 or at_server else None


def with_waiting(wire: Wire, n_workers: int | None) -> Wire:
    """Add the time that each transfer waited for other workers; -1 if unknown.

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
            row = np.searchsorted(pushed_ns, answered_ns, side="right") - 1
            known &= row >= 0
            last_ns = np.maximum(last_ns, pushed_ns[np.maximum(row, 0)])
        waits[waiters[known]] = np.clip(last_ns - asked_ns, 0, wire.gap_ns[waiters])[known]
    return replace(wire, waiting_ns=waits)
