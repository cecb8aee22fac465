"""Packet captures of a job: PUSH and PULL transfers per key, and the network's own timeline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct

from analyzer.base.arrays.numbering import places_by_value
from analyzer.base.errors import Repairs, TraceError, missing
from analyzer.base.names import OpName, split_key
from analyzer.base.parallel import FilePart, OnRead, map_files, progress_bar, size_of
from analyzer.reading.formats.chrome_writer import Slice, ThreadRow, write_timeline
from collector.network.packets import Capture, is_capture
from collector.network.partition_keys import Keys, files_below, read_keys
from collector.network.server_timeline import ServerKey, served_keys
from collector.network.transfers import (
    UNKNOWN,
    Connection,
    Wire,
    gaps_ns,
    job_size,
    merge,
    named_connections,
    read_traffic,
    spans_ns,
    waiting_ns,
)

TIMELINE = "comm_timeline.json"
_PART = "part"  # category of slices within a transfer, which are not counted with it


class _Captured(Struct, frozen=True):
    """The contents of a job's captures."""

    captures: Sequence[Capture]
    links: Sequence[Connection]
    nodes: Sequence[str]  # `Wire.worker` and `Wire.server` index it
    wire: Wire
    names: Keys
    keys: Sequence[ServerKey]
    repairs: Sequence[str]


def write_captured(captured: _Captured, output: Path) -> int:
    """Write the timeline of captures, and count its events. Raises OutputError."""
    return write_timeline(output, _rows(captured))


def read_captures(root: Path, *, progress: bool | None = None, jobs: int | None = None) -> _Captured:
    """Read the captures under `root`.

    `root` is a job, worker or GPU directory, or one capture; names of keys come from the files beside it.
    Raises TraceError where no capture holds a transfer.
    """
    if not root.exists():
        raise missing(root)
    paths = [path for path in files_below(root) if is_capture(path)] if root.is_dir() else [root]
    if not paths:
        raise TraceError(f"{root}: no packet captures (*.pcap, *.pcapng) here; record them with tcpdump")
    repairs = Repairs()
    captures = _read_all(paths, repairs, progress, jobs)
    if not any(capture.n_transfers for capture in captures):
        reasons = "; ".join(repairs.lines)
        several = f"{root}: no capture holds a PUSH or PULL ({reasons})"
        raise TraceError(several if len(repairs.lines) > 1 else reasons)
    home = root if root.is_dir() else root.parent
    keys = read_keys(home, repairs)
    links = named_connections(captures, served_keys(home))
    wire, nodes = merge(captures, links, repairs)
    wire.waiting_ns = waiting_ns(wire, job_size(captures, wire))
    return _Captured(captures, links, nodes, wire, keys, list(_key_shares(wire, nodes, keys)), repairs.lines)


def _read_all(
    paths: Sequence[Path], repairs: Repairs, progress: bool | None, jobs: int | None
) -> list[Capture]:
    """Read captures, large ones in processes; an unusable capture becomes a line of `repairs`."""
    parts = [FilePart(path, size=size_of(path)) for path in paths]
    n_bytes = sum(part.size for part in parts)
    with progress_bar(n_bytes, "B", what="reading captures", enabled=progress) as advance:
        read = list(map_files(_read, parts, jobs=jobs, on_read=advance))
    for capture in read:
        if isinstance(capture, str):
            repairs.add(capture)
        elif lacks := list(_lacks(capture)):
            repairs.add(capture.path, *lacks)
    return [capture for capture in read if not isinstance(capture, str)]


def _read(part: FilePart, on_read: OnRead) -> Capture | str:
    try:
        return read_traffic(part.path)
    except TraceError as error:
        return str(error)
    finally:
        on_read(part.size)


def _lacks(capture: Capture) -> Iterator[str]:
    """Yield a phrase for each kind of missing data in a capture."""
    if capture.damage:
        yield capture.damage
    if not capture.n_transfers:
        yield (
            f"no PUSH or PULL of ps-lite in {capture.n_packets:,} packets "
            f"({capture.n_connections:,} TCP connections); transfers over RDMA or shared memory cannot be "
            "seen in a capture"
        )
    if capture.n_cut:
        yield f"{capture.n_cut:,} packets are cut short; capture with a snapshot length of 0"
    if capture.other_links:
        yield f"link type {', '.join(map(str, sorted(capture.other_links)))} cannot be decoded"
    if capture.lost_bytes:
        yield f"{capture.lost_bytes:,} bytes of TCP streams were not captured"
    if capture.n_unanswered or capture.n_unasked:
        yield (
            f"{capture.n_unanswered:,} requests without response and {capture.n_unasked:,} responses "
            "without request ignored"
        )


def _rows(captured: _Captured) -> Iterator[ThreadRow]:
    """Yield the timeline: one row for each pair of ends."""
    wire, nodes = captured.wire, captured.nodes
    pairs = np.unique(np.stack([wire.worker, wire.server]), axis=1).T.tolist()
    for worker, server in pairs:
        rows = np.flatnonzero((wire.worker == worker) & (wire.server == server)).tolist()
        slices = (_slice(wire, i, captured.links[wire.connection[i]], captured.names) for i in rows)
        name = f"{nodes[worker]} -> {nodes[server]}"
        yield ThreadRow(name, name, "transfers", "transfers", slices)


def _slice(wire: Wire, i: int, link: Connection, keys: Keys) -> Slice:
    stage = "PUSH" if wire.push[i] else "PULL"
    key, wait = int(wire.key[i]), int(wire.waiting_ns[i])
    times = (wire.request_start_ns, wire.request_end_ns, wire.response_start_ns, wire.response_end_ns)
    start, sent, answered, end = (int(column[i]) for column in times)
    answered = min(max(answered, sent), end)
    args = {
        "key": key,
        "partition": split_key(key)[1],
        "bytes": int(wire.value_bytes[i]),
        "wire_bytes": int(wire.wire_bytes[i]),
        "worker": f"{link.worker} {link.worker_host}:{link.worker_port}",
        "server": f"{link.server} {link.server_host}:{link.server_port}",
        "timestamp": int(wire.timestamp[i]),
    }
    if wire.initial[i]:
        args["initial"] = True
    inner = [Slice(f"{stage} request", start, sent, cat=_PART)]
    if wait > 0:
        inner.append(Slice("waiting for other workers", sent, min(sent + wait, answered), cat=_PART))
    inner.append(Slice(f"{stage} response", answered, end, cat=_PART))
    operation = OpName("Comm", keys.tensor(key) if key >= 0 else "key ?", queue=stage, key=max(key, 0))
    return Slice(str(operation), start, max(end, sent), args, inner, "Comm")


def _key_shares(wire: Wire, nodes: Sequence[str], keys: Keys) -> Iterator[ServerKey]:
    for rows in places_by_value(wire.key):
        key = int(wire.key[rows[0]])
        if key == UNKNOWN:
            continue
        push, n_bytes = wire.push[rows], wire.value_bytes[rows]
        steady = rows[~wire.initial[rows]]
        if (wire.waiting_ns[steady[~wire.push[steady]]] != UNKNOWN).any():
            steady = steady[wire.waiting_ns[steady] != UNKNOWN]
        gap_ns, span_ns, pushed = gaps_ns(wire)[steady], spans_ns(wire)[steady], wire.push[steady]
        known = not (wire.waiting_ns[steady] == UNKNOWN).any()
        waited_ns = wire.waiting_ns[steady] if known else np.zeros_like(gap_ns)
        trip_ns = np.minimum(wire.trip_ns[steady], gap_ns - waited_ns)
        yield ServerKey(
            key=key,
            tensor=keys.tensor(key),
            partition=split_key(key)[1],
            node=", ".join(nodes[i] for i in np.unique(wire.server[rows]).tolist()),
            n_push=int(push.sum()),
            n_pull=int((~push).sum()),
            push_bytes=int(n_bytes[push].sum()),
            pull_bytes=int(n_bytes[~push].sum()),
            push_ns=int(span_ns[pushed].sum()),
            pull_ns=int(span_ns[~pushed].sum()),
            wire_ns=int((span_ns - gap_ns + trip_ns).sum()),
            server_ns=int((gap_ns - trip_ns - waited_ns).sum()),
            waiting_ns=int(waited_ns.sum()) if known else None,
        )
