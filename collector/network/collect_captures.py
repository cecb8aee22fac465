"""Packet captures of a job: PUSH and PULL transfers per key, and the network's own timeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import progress as bars
from collector.network.endpoints import Link, index_in_path, match_servers, name_links
from collector.network.latency_split import UNKNOWN, TraceCheck, Wire, check_trace
from collector.network.merge_captures import job_size, merge, with_waiting
from collector.network.network_timeline import write_timeline
from collector.network.partition_keys import PART_BITS, Keys, files_below, read_keys
from collector.network.pcap import is_capture
from collector.network.server_timeline import served_keys
from collector.network.transfer_timeline import processes
from collector.network.transfers import Traffic, read_traffic
from errors import TraceError
from formats.columns import Int64
from parallel import cores, process_pool
from result import Repairs

TIMELINE = "comm_timeline.json"
_PARALLEL_FROM = 64 << 20  # bytes of captures below which a second process costs more than it saves


@dataclass(frozen=True, slots=True)
class CaptureRead:
    """What one capture held."""

    path: Path
    n_packets: int
    n_bytes: int  # as captured
    n_connections: int  # TCP connections of any kind
    n_transfers: int
    n_unanswered: int  # requests whose response is not in the capture
    retransmitted_bytes: int
    lost_bytes: int  # sent, but not in the capture


@dataclass(frozen=True, slots=True)
class KeyShare:
    """The transfers of one partition; times are totals over all but the initial pushes.

    Where waiting is known of some pulls only (a capture begins later than another), over those.

    Wire, server and waiting time make up the times of the transfers: wire from the first to the last byte
    of each message and the round trip of the network between them; waiting until the last worker has
    pushed; server the rest.
    `waiting_ns` is None where the captures do not show every worker: `server_ns` then contains it.
    `event_ns` and `event_span_ns`: of the transfers that an event of a `comm.json` contains, the durations
    of those events and of the transfers themselves; the rest was spent in the worker's host.
    """

    key: int
    tensor: str
    partition: int
    server: str
    n_push: int
    n_initial: int  # of the pushes: before the first step, to give the server the size
    n_pull: int
    push_bytes: int
    pull_bytes: int
    push_ns: int
    pull_ns: int
    wire_ns: int
    server_ns: int
    waiting_ns: int | None
    event_ns: int
    event_span_ns: int


@dataclass(frozen=True, slots=True)
class TensorBytes:
    """Bytes of one tensor, as logged and as sent in one PUSH of each of its partitions."""

    name: str
    logged_bytes: int
    sent_bytes: int

    @property
    def agrees(self) -> bool:
        """Whether the captures show the whole tensor, uncompressed."""
        return self.logged_bytes == self.sent_bytes


@dataclass(frozen=True, slots=True)
class NetworkResult:
    """What the captures of a job tell, and where their timeline was written."""

    output: Path
    n_events: int  # written
    captures: Sequence[CaptureRead]
    links: Sequence[Link]
    nodes: Sequence[str]  # `Wire.worker` and `Wire.server` index it
    wire: Wire
    keys: Sequence[KeyShare]
    tensors: Sequence[TensorBytes]
    checks: Sequence[TraceCheck]
    n_workers: int | None  # of the job
    repairs: Sequence[str]

    @property
    def span_ns(self) -> int:
        """From the first byte of a request to the last of a response."""
        return int(self.wire.response_end_ns.max() - self.wire.request_start_ns.min())


def collect_pcap(
    root: Path, *, progress: bool | None = None, jobs: int | None = None, output: Path | None = None
) -> NetworkResult:
    """Read the captures under `root` and write their timeline.

    Parameters
    ----------
    root : a job, worker or GPU directory, or one capture; names of keys come from the files beside it
    progress : show a bar on standard error; None means only on a terminal
    jobs : processes; None means as many as there are cores
    output : default `comm_timeline.json` in `root`

    Raises
    ------
    TraceError
        There is no capture, or none holds a transfer.
    OutputError
        The timeline cannot be written.
    """
    if not root.exists():
        raise TraceError(f"{root}: no such file or directory")
    paths = [path for path in files_below(root) if is_capture(path)] if root.is_dir() else [root]
    if not paths:
        raise TraceError(f"{root}: no packet captures (*.pcap, *.pcapng) here; record them with tcpdump")
    repairs = Repairs()
    traffics = _read_all(paths, repairs, progress, jobs)
    if not any(len(traffic.transfers) for traffic in traffics):
        raise TraceError(_nothing(root, repairs))
    home = root if root.is_dir() else root.parent
    keys = read_keys(home, repairs)
    groups = name_links(traffics, match_servers(traffics, served_keys(home)))
    wire, nodes = merge(traffics, groups, repairs)
    n_workers = job_size(traffics, wire)
    wire = with_waiting(wire, n_workers)
    links = [link for group in groups for link in group]
    sure = {link.worker for link in links if link.sure}
    checks, event_ns, renamed = _check(keys, wire, nodes, sure, repairs)
    nodes, links = _with_names(nodes, links, renamed)
    target = output or home / TIMELINE
    n_events = write_timeline(target, processes(wire, nodes, links, keys), "Comm")
    return NetworkResult(
        target,
        n_events,
        [_capture_read(traffic) for traffic in traffics],
        links,
        nodes,
        wire,
        list(_key_shares(wire, nodes, keys, event_ns)),
        list(_tensors(wire, keys)),
        checks,
        n_workers,
        repairs.lines,
    )


def _read_all(
    paths: Sequence[Path], repairs: Repairs, progress: bool | None, jobs: int | None
) -> list[Traffic]:
    """Read captures, large ones in processes; a capture that cannot be used becomes a line."""
    sizes = [path.stat().st_size if path.exists() else 0 for path in paths]
    with bars.bar(sum(sizes), "B", what="captures", enabled=progress) as bar:
        if len(paths) < 2 or sum(sizes) < _PARALLEL_FROM or jobs == 1:
            found = [_read(path, bar.update) for path in paths]
        else:
            with process_pool(min(jobs or cores(), len(paths))) as pool:
                futures: dict[Future[Traffic | str], int] = {
                    pool.submit(_read, path): size for path, size in zip(paths, sizes, strict=True)
                }
                for future in as_completed(futures):
                    bar.update(futures[future])
                found = [future.result() for future in futures]
    for item in found:
        for line in [item] if isinstance(item, str) else _lines(item):
            repairs.lines.append(line)
    return [item for item in found if not isinstance(item, str)]


def _read(path: Path, on_bytes: Callable[[int], object] = lambda n: None) -> Traffic | str:
    try:
        return read_traffic(path, on_bytes)
    except TraceError as error:
        return str(error)


def _lines(traffic: Traffic) -> Iterator[str]:
    """Say in a line what a capture lacks."""
    capture, counts = traffic.capture, traffic.counts
    said = [capture.damage] if capture.damage else []
    if not len(traffic.transfers):
        said.append(
            f"no PUSH or PULL of ps-lite in {capture.n_packets:,} packets "
            f"({traffic.n_connections:,} TCP connections); transfers over RDMA or shared memory cannot be "
            "seen in a capture"
        )
    if capture.n_cut:
        said.append(f"{capture.n_cut:,} packets are cut short; capture with a snapshot length of 0")
    if capture.n_roce:
        said.append(
            f"{capture.n_roce:,} packets are RDMA (RoCE): what they carry cannot be seen in a capture"
        )
    if capture.other_links:
        said.append(f"link type {', '.join(map(str, sorted(capture.other_links)))} cannot be decoded")
    if capture.n_fragments:
        said.append(f"{capture.n_fragments:,} IP fragments left out")
    if counts.lost_bytes:
        said.append(f"{counts.lost_bytes:,} bytes of TCP streams were not captured")
    if traffic.n_unanswered or traffic.n_unasked:
        said.append(
            f"{traffic.n_unanswered:,} requests without response and {traffic.n_unasked:,} responses "
            "without request left out"
        )
    if said:
        yield f"{capture.path}: {'; '.join(said)}"


def _nothing(root: Path, repairs: Repairs) -> str:
    if len(repairs.lines) == 1:
        return repairs.lines[0]
    return f"{root}: no capture holds a PUSH or PULL ({'; '.join(repairs.lines)})"


def _check(
    keys: Keys, wire: Wire, nodes: Sequence[str], sure: set[str], repairs: Repairs
) -> tuple[list[TraceCheck], Int64, dict[str, str]]:
    """Compare every `comm.json` with the captures; see `check_trace`.

    A trace goes with the worker after which its directory is called, where captures are called after
    workers too; otherwise with the worker whose transfers fit, whose right name this tells: the third
    value.
    """
    checks = []
    event_ns = np.full(len(wire), UNKNOWN, np.int64)
    renamed: dict[str, str] = {}
    workers = np.unique(wire.worker).tolist()
    for gpu, trace in keys.comm:
        index = index_in_path(gpu.path, "worker")
        expected = None if index is None else f"worker_{index}"
        known = expected in sure
        may_be = [w for w in workers if (nodes[w] == expected if known else nodes[w] not in sure)]
        check, contained_ns = check_trace(gpu.path / "comm.json", trace, wire, nodes, may_be, known)
        event_ns = np.maximum(event_ns, contained_ns)
        if check is None:
            continue
        if expected is not None and not known:
            renamed[check.worker] = expected
            check = replace(check, worker=expected)
        checks.append(check)
        if said := _unseen(check):
            repairs.add(check.path, said)
    return checks, event_ns, renamed


def _unseen(check: TraceCheck) -> str:
    """Say which events of a trace are not in the captures."""
    said = []
    if check.n_outside:
        said.append(
            f"{check.n_outside} of {check.n_events} PUSH and PULL events lie outside the captured time"
        )
    if n := check.n_none - check.n_outside:
        said.append(
            f"{n} of {check.n_events} PUSH and PULL events are in no capture; what went over RDMA or "
            "shared memory cannot be seen in one"
        )
    return "; ".join(said)


def _with_names(
    nodes: Sequence[str], links: Sequence[Link], renamed: Mapping[str, str]
) -> tuple[list[str], list[Link]]:
    """Give workers the names that their traces told; who had such a name before is called by its id."""
    taken = set(renamed.values()) - renamed.keys()
    ids = {link.worker: link.connection.worker_id for link in links}
    names = {
        name: renamed.get(name, f"worker_ps{ids.get(name)}" if name in taken else name) for name in nodes
    }
    return [names[name] for name in nodes], [replace(link, worker=names[link.worker]) for link in links]


def _key_shares(wire: Wire, nodes: Sequence[str], keys: Keys, event_ns: Int64) -> Iterator[KeyShare]:
    order = np.argsort(wire.key, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(wire.key[order])) + 1):
        key = int(wire.key[rows[0]])
        if key == UNKNOWN:
            continue
        push, steady = wire.push[rows], rows[~wire.initial[rows]]
        if (wire.waiting_ns[steady[~wire.push[steady]]] != UNKNOWN).any():
            steady = steady[wire.waiting_ns[steady] != UNKNOWN]
        gap_ns, span = wire.gap_ns[steady], wire.span_ns[steady]
        waits = wire.waiting_ns[steady]
        known = not (waits == UNKNOWN).any()
        waited_ns = waits if known else np.zeros_like(waits)
        trip_ns = np.minimum(wire.trip_ns[steady], gap_ns - waited_ns)
        matched = steady[event_ns[steady] >= 0]
        yield KeyShare(
            key,
            keys.tensor(key),
            key & ((1 << PART_BITS) - 1),
            ", ".join(nodes[i] for i in np.unique(wire.server[rows]).tolist()),
            int(push.sum()),
            int(wire.initial[rows].sum()),
            int((~push).sum()),
            int(wire.value_bytes[rows][push].sum()),
            int(wire.value_bytes[rows][~push].sum()),
            int(span[wire.push[steady]].sum()),
            int(span[~wire.push[steady]].sum()),
            int((span - gap_ns + trip_ns).sum()),
            int((gap_ns - trip_ns - waited_ns).sum()),
            int(waited_ns.sum()) if known else None,
            int(event_ns[matched].sum()),
            int(wire.span_ns[matched].sum()),
        )


def _tensors(wire: Wire, keys: Keys) -> Iterator[TensorBytes]:
    """Compare each logged tensor with the largest PUSH of each of its partitions."""
    sent: dict[int, dict[int, int]] = {}
    pushes = np.flatnonzero(wire.push & (wire.key >= 0))
    for key, n_bytes in zip(wire.key[pushes].tolist(), wire.value_bytes[pushes].tolist(), strict=True):
        parts = sent.setdefault(key >> PART_BITS, {})
        parts[key] = max(parts.get(key, 0), n_bytes)
    for declared, parts in sorted(sent.items()):
        tensor = keys.tensors.get(declared)
        if tensor is not None and tensor.total_bytes is not None:
            yield TensorBytes(keys.tensor(declared << PART_BITS), tensor.total_bytes, sum(parts.values()))


def _capture_read(traffic: Traffic) -> CaptureRead:
    capture, counts = traffic.capture, traffic.counts
    return CaptureRead(
        capture.path,
        capture.n_packets,
        capture.n_bytes,
        traffic.n_connections,
        len(traffic.transfers),
        traffic.n_unanswered,
        counts.retransmitted_bytes,
        counts.lost_bytes,
    )
