"""The transfers of all captures of a job: each connection once, in order, with keys and waiting times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analyzer.base.arrays import Int64, NDArray
from analyzer.base.arrays.numbering import places_by_value
from analyzer.base.errors import Repairs
from collector.network.endpoints import index_in_path, n_announced, partition_keys
from collector.network.packets import Capture
from collector.network.transfers import Connection, Wire

UNKNOWN = -1


def spans_ns(wire: Wire) -> Int64:
    """From the first byte of each request to the last of its response (n,)."""
    return np.asarray(wire.response_end_ns - wire.request_start_ns)


def gaps_ns(wire: Wire) -> Int64:
    """From the last byte of each request to the first of its response (n,)."""
    return np.asarray(np.maximum(wire.response_start_ns - wire.request_end_ns, 0))


def merge(
    captures: Sequence[Capture], links: Sequence[Connection], repairs: Repairs
) -> tuple[Wire, list[str]]:
    """Put the transfers of all captures in order, a connection in two of them once; name the nodes."""
    nodes = sorted({name for link in links for name in (link.worker, link.server)})
    n_servers = n_announced(captures, "server")
    doubled = _doubled(links)
    unknown: Counter[Path] = Counter()
    pieces = []
    for i, link in enumerate(links):
        if i in doubled:
            continue
        piece = link.transfers.copy()
        piece.key = partition_keys(link, n_servers)
        piece.connection, piece.trip_ns = i, link.round_trip_ns
        piece.worker, piece.server = nodes.index(link.worker), nodes.index(link.server)
        pieces.append(piece)
        unknown[link.path] += int((piece.key == UNKNOWN).sum())
    again = Counter(links[i].path for i in doubled)
    for path in (capture.path for capture in captures):
        if again[path]:
            repairs.add(path, f"{again[path]} connections are in another capture too")
        if unknown[path]:
            repairs.add(path, f"{unknown[path]:,} transfers lie in no server's key range")
    joined = np.concatenate(pieces)
    wire: Wire = joined[np.argsort(joined["request_start_ns"], kind="stable")].view(np.recarray)
    wire.initial = initial_pushes(wire.worker, wire.key, wire.push, wire.request_start_ns)
    return wire, nodes


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


def job_size(captures: Sequence[Capture], wire: Wire) -> int | None:
    """Count the workers of the job; None if the captures may not show all of them."""
    announced, seen = n_announced(captures, "worker"), len(np.unique(wire.worker))
    if announced:
        return max(announced, seen)
    at_server = any(index_in_path(capture.path, "server") is not None for capture in captures)
    return seen if seen > 1 or at_server else None


def waiting_ns(wire: Wire, n_workers: int | None) -> Int64:
    """Time (n,) that each transfer waited for other workers; -1 if unknown.

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
        waits[waiters[known]] = np.clip(last_ns - asked_ns, 0, gaps_ns(wire)[waiters])[known]
    return waits
