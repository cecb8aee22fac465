"""Server logs and profiles of a job: what the servers did when, per key, and their timeline."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import progress as bars
from collector.network.endpoints import index_in_path
from collector.network.network_timeline import Process, Slice, write_timeline
from collector.network.partition_keys import (
    PART_BITS,
    Keys,
    attempt,
    lines_of,
    partition_key,
    read_keys,
    text_files,
)
from collector.network.pslite import key_base, role_of
from collector.network.server_logs import Log, Second, Spans, read_log, rows
from errors import TraceError
from formats.columns import Trace
from opname import OpName
from result import Repairs
from trace_files import read_trace

TIMELINE = "server_timeline.json"
OLD_PROFILE = "server_profile.json"  # of BytePS's former server: push-<id> and pull-<id> by key
_SECOND_NS = 10**9
_DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class LogRead:
    """What one file held."""

    path: Path
    node: str
    kinds: Sequence[str]
    n_lines: int  # of those kinds
    n_other: int  # of none
    n_unpaired: int


@dataclass(frozen=True, slots=True)
class ServerOperation:
    """How long one operation of a node took, over all keys."""

    node: str
    operation: str
    count: int
    total_ns: int
    min_ns: int
    max_ns: int


@dataclass(frozen=True, slots=True)
class ServerKey:
    """Requests that one node logged for one partition."""

    node: str
    key: int
    tensor: str
    partition: int
    n_push: int
    n_pull: int
    push_bytes: int


@dataclass(frozen=True, slots=True)
class ServerResult:
    """What the logs of a job tell, and where their timeline was written."""

    output: Path
    n_events: int
    logs: Sequence[LogRead]
    operations: Sequence[ServerOperation]
    keys: Sequence[ServerKey]
    repairs: Sequence[str]


@dataclass(frozen=True, slots=True)
class _NodeLog:
    path: Path
    node: str
    log: Log


def collect_server(root: Path, *, progress: bool | None = None, output: Path | None = None) -> ServerResult:
    """Read the server logs and profiles under `root` and write their timeline.

    Parameters
    ----------
    root : a job, worker or GPU directory, or one log; names of keys come from the files beside it
    progress : show a bar on standard error; None means only on a terminal
    output : default `server_timeline.json` in `root`

    Raises
    ------
    TraceError
        Nothing under `root` is a server log or profile.
    OutputError
        The timeline cannot be written.
    """
    if not root.exists():
        raise TraceError(f"{root}: no such file or directory")
    home = root if root.is_dir() else root.parent
    repairs = Repairs()
    logs = _read_logs(root, repairs, progress)
    profiles = _read_profiles(root, repairs)
    if not logs and not profiles:
        said = f" ({'; '.join(repairs.lines)})" if repairs.lines else ""
        raise TraceError(
            f"{root}: no server log or ps-lite profile here; run the servers with PS_KEY_LOG=1 or "
            f"ENABLE_PROFILING=1{said}"
        )
    keys = read_keys(home, repairs)
    processes = _processes(logs, keys)
    processes += [_old_profile(path, trace, keys) for path, trace in profiles]
    target = output or home / TIMELINE
    n_events = write_timeline(target, processes, "Server")
    return ServerResult(
        target,
        n_events,
        [_log_read(item) for item in logs],
        list(_operations(logs)),
        list(_server_keys(logs, keys)),
        repairs.lines,
    )


def served_keys(root: Path) -> dict[str, set[int]]:
    """Return the keys in the key logs under `root`, by server."""
    found: dict[str, set[int]] = {}
    for item in _read_logs(root, Repairs(), progress=False):
        if item.log.requests:
            found.setdefault(item.node, set()).update(key for key, _ in item.log.requests)
    return found


def _read_logs(root: Path, repairs: Repairs, progress: bool | None) -> list[_NodeLog]:
    """Read every text file; those that hold none of the formats are left out without a word."""
    found = []
    paths = [path for path in text_files(root) if path.is_file()]
    with bars.bar(sum(path.stat().st_size for path in paths), "B", what="logs", enabled=progress) as bar:
        for path in paths:
            with attempt(path, repairs):
                log = read_log(lines_of(path))
                if log.kinds:
                    found.append(_NodeLog(path, _node(path, log), log))
                    if log.n_unpaired:
                        repairs.add(path, f"{log.n_unpaired:,} starts or stops without the other left out")
                elif _named_log(path):
                    repairs.add(path, "empty" if not path.stat().st_size else "no line of a known server log")
            bar.update(path.stat().st_size)
    return found


def _named_log(path: Path) -> bool:
    """Whether the name promises a server log."""
    return any(mark in path.name for mark in ("key_log", "pslite_profile", "van_verbose_log", "server_log"))


def _node(path: Path, log: Log) -> str:
    """Return whose log it is: as the path says, else as the content does."""
    for role in ("server", "worker"):
        index = index_in_path(path, role)
        if index is not None:
            return f"{role}_{index}"
    if log.ids:
        node_id, role = next(iter(log.ids.items()))
        return f"{role} ps{node_id}"
    return path.name.partition(".")[0]


def _read_profiles(root: Path, repairs: Repairs) -> list[tuple[Path, Trace]]:
    found = []
    for path in sorted(root.rglob(OLD_PROFILE)) if root.is_dir() else []:
        with attempt(path, repairs):
            found.append((path, read_trace(path)))
    return found


def _old_profile(path: Path, trace: Trace, keys: Keys) -> Process:
    """Return `server_profile.json` with its keys named; pid and tid are the key."""
    tracks: dict[str, list[Slice]] = {}
    for row in trace.ts_ns.argsort(kind="stable").tolist():
        key = partition_key(trace.tracks[trace.track_id[row]].pid)
        name = trace.names[trace.name_id[row]]
        start = int(trace.ts_ns[row])
        tensor = name if key is None else keys.tensor(key)
        tracks.setdefault(f"key {key}", []).append(
            Slice(f"{tensor}.{name}", start, start + int(trace.dur_ns[row]), {"key": key})
        )
    index = index_in_path(path, "server")
    return Process(f"server_{index}" if index is not None else "server", tracks)


def _processes(logs: Sequence[_NodeLog], keys: Keys) -> list[Process]:
    """Return the timeline: a process for each node, and for each pair of ends in the van logs."""
    tracks: dict[str, dict[str, Iterable[Slice]]] = {}
    profile_ns, trace_ns = _profile_ns(logs), _trace_ns(keys)
    for item in logs:
        mine = tracks.setdefault(item.node, {})
        for name, spans in item.log.tracks.items():
            mine[name] = chain(mine.get(name, ()), _slices(spans, keys))
        for name, spans in item.log.profile.items():
            mine[name] = _profile_slices(spans, _decoder(item, keys), keys, "_van_" in name)
        near_ns = int(item.path.stat().st_mtime) * _SECOND_NS if trace_ns is None else trace_ns
        mine |= _by_second(item, profile_ns, near_ns)
    processes = [Process(name, mine) for name, mine in tracks.items() if mine]
    return processes + list(_van_processes(logs, keys))


def _slices(spans: Spans, keys: Keys) -> Iterator[Slice]:
    for operation, start, end, key in rows(spans):
        name = f"{keys.tensor(key)}.{operation}"
        yield Slice(name, start, end, {"key": key, "partition": key & ((1 << PART_BITS) - 1)})


def _van_processes(logs: Sequence[_NodeLog], keys: Keys) -> Iterator[Process]:
    """Return the transfers of van logs, named by the headers of all of them."""
    names = {node_id: item.node for item in logs for node_id in item.log.ids}
    for item in logs:
        for ends, spans in item.log.transfers.items():
            sender, receiver = (names.get(end, f"{role_of(end)} ps{end}") for end in ends)
            yield Process(f"{sender} -> {receiver}", {item.path.name: _transfer_slices(spans, keys)})


def _transfer_slices(spans: Spans, keys: Keys) -> Iterator[Slice]:
    for name, start, end, key in rows(spans):
        stage, half = name.split()
        operation = OpName("Comm", keys.tensor(key), queue=stage, key=key)
        yield Slice(f"{operation} {half}", start, end, {"key": key})


def _decoder(item: _NodeLog, keys: Keys) -> Mapping[int, int]:
    """Return partition keys by the signed 32-bit numbers that a kvapp profile has for wire keys.

    The number is the lower half of the beginning of a server's key range plus the key. A server has one
    range, so all its numbers must decode to keys of the job; a worker talks to several servers, and
    a number that may stand for keys of two of them is left alone.
    """
    seen = {key for name, spans in item.log.profile.items() if "_van_" not in name for key in spans.key}
    n_servers = max(keys.servers.values(), default=0) + 1
    found: dict[int, set[int]] = {}
    for rank in range(n_servers):
        base = key_base(rank, n_servers)
        decoded = {number: (number - base) & 0xFFFFFFFF for number in seen}
        fits = {n: key for n, key in decoded.items() if _is_key(key, rank, keys)}
        if item.node.startswith("server") and len(fits) < len(seen):
            continue
        for number, key in fits.items():
            found.setdefault(number, set()).add(key)
    return {number: next(iter(of)) for number, of in found.items() if len(of) == 1}


def _is_key(key: int, rank: int, keys: Keys) -> bool:
    """Whether the job has this partition key, on the server of this rank."""
    n_parts = keys.n_parts(key)
    known = key >> PART_BITS in keys.tensors and (n_parts is None or key & ((1 << PART_BITS) - 1) < n_parts)
    return known and keys.servers.get(key, rank) == rank


def _profile_slices(spans: Spans, decoder: Mapping[int, int], keys: Keys, low_bits: bool) -> Iterator[Slice]:
    for event, start, end, number in rows(spans):
        key = None if low_bits else decoder.get(number)
        stop = None if end < 0 else end
        if key is None:
            field = "wire_key_low_16_bits" if low_bits else "wire_key_low_32_bits"
            yield Slice(event, start, stop, {field: number})
        else:
            name = f"{keys.tensor(key)}.{event}"
            yield Slice(name, start, stop, {"key": key, "partition": key & ((1 << PART_BITS) - 1)})


def _by_second(item: _NodeLog, profile_ns: int | None, near_ns: int) -> dict[str, list[Slice]]:
    """Return what a log with a clock of one second has, a slice for each second."""
    seconds = item.log.seconds
    if not seconds:
        return {}
    first = min(second for _, _, second in seconds)
    shift_s = _midnight(first, profile_ns, near_ns)
    tracks: dict[str, list[Slice]] = {}
    for (kind, what, second), entry in sorted(seconds.items(), key=lambda pair: pair[0][2]):
        start = (shift_s + second) * _SECOND_NS
        tracks.setdefault(f"{kind}: {what}", []).append(
            Slice(f"{entry.n} x {what}", start, start + _SECOND_NS, _second_args(entry))
        )
    return tracks


def _second_args(entry: Second) -> dict[str, int | str]:
    peers = ", ".join(f"ps{peer}" for peer in sorted(entry.peers))
    return {"count": entry.n, "bytes": entry.n_bytes, "peers": peers}


def _midnight(first_s: int, profile_ns: int | None, near_ns: int) -> int:
    """Return the epoch second of the midnight before a log's first line, which tells neither day nor zone.

    A profile of the same job begins with the same requests: the log is put as near to it as whole quarters
    of an hour allow (time zones are multiples of one). Without a profile the zone is that of this
    machine and the day the one that is nearest to `near_ns`.
    """
    if profile_ns is not None:
        quarter = 900
        return round((profile_ns // _SECOND_NS - first_s) / quarter) * quarter
    near_s = near_ns // _SECOND_NS
    shift_s = -time.localtime(near_s).tm_gmtoff
    return shift_s + round((near_s - first_s - shift_s) / _DAY_S) * _DAY_S


def _profile_ns(logs: Sequence[_NodeLog]) -> int | None:
    """Return the earliest time since the epoch in the profiles and dPRO's logs of the job."""
    spans = [s for item in logs for s in (*item.log.profile.values(), *item.log.tracks.values()) if len(s)]
    return min((min(s.start_ns) for s in spans), default=None)


def _trace_ns(keys: Keys) -> int | None:
    return min((int(trace.ts_ns.min()) for _, trace in keys.comm if len(trace)), default=None)


def _log_read(item: _NodeLog) -> LogRead:
    log = item.log
    return LogRead(item.path, item.node, list(log.kinds), log.kinds.total(), log.n_other, log.n_unpaired)


def _operations(logs: Sequence[_NodeLog]) -> Iterator[ServerOperation]:
    """Yield the durations per node and operation, in the order of the files."""
    durations: dict[tuple[str, str], list[int]] = {}
    for item in logs:
        for spans in (*item.log.tracks.values(), *item.log.profile.values(), *item.log.transfers.values()):
            for name, start, end in zip(spans.names, spans.start_ns, spans.end_ns, strict=True):
                if end >= 0:
                    durations.setdefault((item.node, name), []).append(end - start)
    for (node, name), values in durations.items():
        yield ServerOperation(node, name, len(values), sum(values), min(values), max(values))


def _server_keys(logs: Sequence[_NodeLog], keys: Keys) -> Iterator[ServerKey]:
    """Yield the requests of the key logs, by node and key."""
    for item in logs:
        requests = item.log.requests
        for key in sorted({key for key, _ in requests}):
            yield ServerKey(
                item.node,
                key,
                keys.tensor(key),
                key & ((1 << PART_BITS) - 1),
                requests[key, "push"],
                requests[key, "pull"],
                item.log.pushed_bytes[key],
            )
