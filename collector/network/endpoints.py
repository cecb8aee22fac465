"""Who the two ends of a connection are, and which keys a server owns."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from arrays import NDArray
from collector.network.pslite import key_base, server_rank
from collector.network.transfers import Connection, Traffic

_KEYS_END = 1 << 32  # a partition key has a 16-bit declared key above 16 bits of partition
_MOST_SERVERS = 4096  # tried where nothing tells how many there are

NodeKey = tuple[str, int | str]  # role, and ps-lite id or host


def named_connections(
    traffics: Sequence[Traffic], served: Mapping[str, Collection[int]]
) -> list[list[Connection]]:
    """Return the connections of each capture with the names of their ends.

    A node is called after the file or directory of the capture in which it is the only one of its role
    (``worker_0.pcap``), or after the key log with its keys (`served`: partition keys by name of the server);
    the others by ps-lite's rank, or where files name some by the number that is left, or by id.
    """
    ends = _end_keys(traffics)
    names: dict[NodeKey, str] = {}
    for role, side in (("worker", 0), ("server", 1)):
        of_role = [{pair[side] for pair in pairs} for pairs in ends]
        by_file = _named_by_logs(traffics, ends, served) if role == "server" else {}
        for in_capture, traffic in zip(of_role, traffics, strict=True):
            index = index_in_path(traffic.capture.path, role)
            if index is not None and len(in_capture) == 1:
                by_file.setdefault(next(iter(in_capture)), f"{role}_{index}")
        others = sorted(set().union(*of_role) - by_file.keys(), key=str)
        names |= by_file | _other_names(role, by_file, others)
    return [
        [
            replace(connection, worker=names[worker], server=names[server])
            for (worker, server), connection in zip(pairs, traffic.connections, strict=True)
        ]
        for pairs, traffic in zip(ends, traffics, strict=True)
    ]


def _named_by_logs(
    traffics: Sequence[Traffic],
    ends: Sequence[Sequence[tuple[NodeKey, NodeKey]]],
    served: Mapping[str, Collection[int]],
) -> dict[NodeKey, str]:
    """Return the servers that have most keys of a key log in common with it, more than half of both's."""
    if not served:
        return {}
    n_servers = n_announced(traffics, "server")
    keys: dict[NodeKey, set[int]] = {}
    for traffic, pairs in zip(traffics, ends, strict=True):
        for i, (connection, (_, server)) in enumerate(zip(traffic.connections, pairs, strict=True)):
            wire_keys = np.unique(traffic.transfers.wire_key[traffic.transfers.connection == i])
            of_server = partition_keys(wire_keys, connection.server_id, n_servers)
            keys.setdefault(server, set()).update(of_server.tolist())
    names: dict[NodeKey, str] = {}
    for name, in_log in served.items():
        shared = {node: len(of & set(in_log)) / max(len(of | set(in_log)), 1) for node, of in keys.items()}
        best = max(shared, key=lambda node: shared[node], default=None)
        if best is not None and shared[best] > 0.5:
            names.setdefault(best, name)
    return names


def n_announced(traffics: Sequence[Traffic], role: str) -> int:
    """Return how many nodes of a role the scheduler announced; 0 where that was not captured."""
    return len({node.id for traffic in traffics for node in traffic.nodes if node.role == role})


def _end_keys(traffics: Sequence[Traffic]) -> list[list[tuple[NodeKey, NodeKey]]]:
    """Return worker and server of each connection: by id, else by that of the only node of its role there."""
    ids: dict[tuple[str, str], set[int]] = defaultdict(set)
    for traffic in traffics:
        for node in traffic.nodes:
            ids[node.role, node.host].add(node.id)
        for c in traffic.connections:
            ids["worker", c.worker_host].update(() if c.worker_id is None else [c.worker_id])
            ids["server", c.server_host].update(() if c.server_id is None else [c.server_id])

    def key(role: str, node_id: int | None, host: str) -> NodeKey:
        here = ids[role, host]
        return role, next(iter(here)) if node_id is None and len(here) == 1 else node_id or host

    return [
        [
            (key("worker", c.worker_id, c.worker_host), key("server", c.server_id, c.server_host))
            for c in traffic.connections
        ]
        for traffic in traffics
    ]


def _other_names(role: str, by_file: Mapping[NodeKey, str], others: Sequence[NodeKey]) -> dict[NodeKey, str]:
    """Name the nodes that no file names; a single one gets the only number that is left."""
    left = {f"{role}_{i}" for i in range(len(by_file) + 1)} - set(by_file.values())
    if by_file and len(others) == len(left) == 1:
        return {others[0]: left.pop()}
    names: dict[NodeKey, str] = {}
    for _, which in others:
        if isinstance(which, str):
            name = f"{role} {which}"
        else:
            name = f"{role}_ps{which}" if by_file else f"{role}_{server_rank(which)}"
        names[role, which] = name
    return names


def index_in_path(path: Path, role: str) -> int | None:
    """Return i of the innermost ``<role>_<i>`` in a path's file or directory names."""
    for part in (path.name, *(parent.name for parent in path.parents)):
        if match := re.match(rf"{role}[_-]?(\d+)(?![0-9])", part):
            return int(match[1])
    return None


def partition_keys(wire_keys: NDArray[np.uint64], server_id: int | None, n_servers: int) -> NDArray[np.int64]:
    """Return the partition keys of one server's wire keys (n,); -1 where no key range fits.

    The id is None where it is not known; `n_servers` as the scheduler announced them, 0 where it did not.
    """
    if not len(wire_keys):
        return np.empty(0, np.int64)
    middle = int(np.sort(wire_keys)[len(wire_keys) // 2])  # a damaged key or two shall not decide
    for n in [n_servers] if n_servers else range(1, _MOST_SERVERS):
        near = middle * n // (2**64 - 1)
        for rank in (near, near + 1):
            if server_id is not None and rank != server_rank(server_id):
                continue
            base = key_base(rank, n)
            offsets = wire_keys - np.uint64(base)
            fits = (wire_keys >= np.uint64(base)) & (offsets < np.uint64(_KEYS_END))
            if fits.sum() * 2 > len(fits):
                return np.where(fits, offsets.astype(np.int64), -1)
    return np.full(len(wire_keys), -1, np.int64)
