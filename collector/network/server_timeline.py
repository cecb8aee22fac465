"""Server logs and profiles of a job: what the servers did when, per key, and their timeline."""

from __future__ import annotations

import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct, field

from analyzer.base.errors import Repairs, TraceError, missing
from analyzer.base.names import split_key
from analyzer.base.parallel import progress_bar
from analyzer.reading.formats.chrome_writer import Slice, ThreadRow, write_timeline
from collector.network.partition_keys import Keys, attempt, lines_of, read_keys, text_files
from collector.network.pslite import key_base
from collector.network.transfers import index_in_path

_KEY_LOG = re.compile(
    rb"\[(\d\d):(\d\d):(\d\d)\] \S*server\.cc:\d+: "
    rb"(push|pull) key=(\d{1,18})\s+sender=(\d{1,9})(?:\s+size=(\d{1,15}))?"
)
_PROFILE = re.compile(
    rb"\s*(-?\d{1,18})\s+((?:worker|server)_(?:van|kvapp|send|process)\w*)"
    rb"\s*([0-3]?\d{1,15})\s*"  # microseconds since the epoch, until the year 2096
)


class _Interval(NamedTuple):
    """One interval of work on a key; an instant has no end."""

    name: str
    start_ns: int
    end_ns: int | None
    key: int


class _Second(Struct):
    """The requests of one second of the day."""

    n: int = 0
    n_bytes: int = 0
    peers: set[int] = field(default_factory=set)


class Log(Struct):
    """The content of one file: a key log, a profile, or neither."""

    path: Path = Path()
    node: str = ""
    #: Tracks of a profile, each in the order of its starts. The key of a row is the wire key as a signed
    #: 32-bit number (kvapp) or its lowest 16 bits (van).
    profile: dict[str, list[_Interval]] = field(default_factory=lambda: defaultdict(list))
    #: Requests of a key log by ("push" or "pull", second counted from the first midnight).
    seconds: dict[tuple[str, int], _Second] = field(default_factory=lambda: defaultdict(_Second))
    requests: Counter[tuple[int, str]] = field(default_factory=Counter)  # (key, "push" or "pull")
    pushed_bytes: Counter[int] = field(default_factory=Counter)  # by key
    n_unpaired: int = 0  # pulls without response and responses without pull


def read_log(lines: Iterable[bytes]) -> Log:
    """Read the rows of one file; lines of other kinds are ignored."""
    log = Log()
    midnight_s, last_s = 0, 0
    pulls: dict[int, deque[int]] = defaultdict(deque)  # by key, the starts of those without an answer
    for line in lines:
        if match := _PROFILE.fullmatch(line):
            _add_profiled(log, pulls, match[2].decode(), int(match[1]), int(match[3]) * 1000)
        elif b"server.cc" in line:
            for request in _KEY_LOG.finditer(line):  # lines of several threads may run into each other
                second = int(request[1]) * 3600 + int(request[2]) * 60 + int(request[3])
                midnight_s += 86_400 if second < last_s - 43_200 else 0
                last_s = second
                _add_request(log, request, midnight_s + second)
    log.n_unpaired += sum(map(len, pulls.values()))
    for rows in log.profile.values():
        rows.sort(key=lambda row: row.start_ns)
    return log


def _add_request(log: Log, request: re.Match[bytes], second: int) -> None:
    kind, key, sender, size = request[4].decode(), int(request[5]), int(request[6]), int(request[7] or 0)
    log.requests[key, kind] += 1
    log.pushed_bytes[key] += size
    entry = log.seconds[kind, second]
    entry.n += 1
    entry.n_bytes += size
    entry.peers.add(sender)


def _add_profiled(log: Log, pulls: dict[int, deque[int]], event: str, key: int, time_ns: int) -> None:
    if event == "server_process_pull":
        pulls[key].append(time_ns)
    elif event != "server_send_pull_response":
        log.profile[event].append(_Interval(event, time_ns, None, key))
    elif pulls[key]:
        log.profile["pulls served"].append(_Interval("PULL", pulls[key].popleft(), time_ns, key))
    else:
        log.n_unpaired += 1


TIMELINE = "server_timeline.json"
_CATEGORY = "Server"
_LOG_NAMES = ("key_log", "pslite_profile")
_SECOND_NS = 10**9
_QUARTER_S = 900  # time zones are multiples of a quarter of an hour


class ServerOperation(Struct, frozen=True):
    """Times of one operation of a node, over all keys."""

    node: str
    operation: str
    count: int
    total_ns: int
    min_ns: int
    max_ns: int


class ServerKey(Struct, frozen=True):
    """Requests for one partition in the log of a node, or in captures.

    Captures have times, too: totals over all transfers but the initial pushes; if waiting is known for some
    pulls only (a capture begins later than another), over those. Wire, server and waiting time make up the
    times of the transfers: wire from the first to the last byte of each message and the round trip of the
    network between them; waiting until the last worker has pushed; server the remainder.
    """

    node: str
    key: int
    tensor: str
    partition: int
    n_push: int
    n_pull: int
    push_bytes: int
    pull_bytes: int = 0
    push_ns: int = 0
    pull_ns: int = 0
    wire_ns: int = 0
    server_ns: int = 0
    waiting_ns: int | None = None  # None if captures show some workers only: `server_ns` then contains it


class _Served(Struct, frozen=True):
    """The logs of a job's servers."""

    logs: Sequence[Log]
    names: Keys
    operations: Sequence[ServerOperation]
    keys: Sequence[ServerKey]
    repairs: Sequence[str]


def read_served(root: Path, *, progress: bool | None = None) -> _Served:
    """Read the server logs and profiles under `root`.

    `root` is a job, worker or GPU directory, or one log; names of keys come from the files beside it.
    Raises TraceError where nothing is a server log or profile.
    """
    if not root.exists():
        raise missing(root)
    repairs = Repairs()
    logs = _read_logs(root, repairs, progress)
    if not logs:
        why = f" ({'; '.join(repairs.lines)})" if repairs.lines else ""
        raise TraceError(
            f"{root}: no server log or ps-lite profile here; run the servers with PS_KEY_LOG=1 or "
            f"ENABLE_PROFILING=1{why}"
        )
    keys = read_keys(root if root.is_dir() else root.parent, repairs)
    return _Served(logs, keys, list(_operations(logs)), list(_server_keys(logs, keys)), repairs.lines)


def write_served(served: _Served, output: Path) -> int:
    """Write the timeline of the servers, and count its events. Raises OutputError."""
    return write_timeline(output, _rows(served.logs, served.names))


def served_keys(root: Path) -> dict[str, set[int]]:
    """List the keys in the key logs under `root`, by server."""
    served: dict[str, set[int]] = {}
    for log in _read_logs(root, Repairs(), progress=False):
        if log.requests:
            served.setdefault(log.node, set()).update(key for key, _ in log.requests)
    return served


def _read_logs(root: Path, repairs: Repairs, progress: bool | None) -> list[Log]:
    """Read the text files with lines of either format."""
    logs = []
    sizes = {path: path.stat().st_size for path in text_files(root)}
    with progress_bar(sum(sizes.values()), "B", what="reading logs", enabled=progress) as advance:
        for path, size in sizes.items():
            with attempt(path, repairs):
                log = read_log(lines_of(path))
                if log.profile or log.requests or log.n_unpaired:
                    log.path, log.node = path, _node(path)
                    logs.append(log)
                    if log.n_unpaired:
                        repairs.add(
                            path, f"{log.n_unpaired:,} pulls or responses without a counterpart ignored"
                        )
                elif any(name in path.name for name in _LOG_NAMES):
                    repairs.add(path, "no line of a known server log" if size else "empty")
            advance(size)
    return logs


def _node(path: Path) -> str:
    for role in ("server", "worker"):
        index = index_in_path(path, role)
        if index is not None:
            return f"{role}_{index}"
    return path.name.partition(".")[0]


def _rows(logs: Sequence[Log], keys: Keys) -> list[ThreadRow]:
    """Make the timeline: a process for each node."""
    tracks: dict[str, dict[str, list[Slice]]] = {}
    starts_ns = [rows[0].start_ns for log in logs for rows in log.profile.values()]
    traced_ns = [int(trace.ts_ns.min()) for _, trace in keys.comm if len(trace)]
    begin_ns = min(starts_ns or traced_ns, default=None)
    for log in logs:
        of_node = tracks.setdefault(log.node, {})
        decoder = _decoder(log, keys)
        for name, rows in log.profile.items():
            of_node[name] = [_profiled(row, decoder, keys, "_van_" in name) for row in rows]
        near_ns = int(log.path.stat().st_mtime) * _SECOND_NS if begin_ns is None else begin_ns
        of_node |= _by_second(log, near_ns)
    return [
        ThreadRow(node, node, name, name, slices)
        for node, of_node in tracks.items()
        for name, slices in of_node.items()
    ]


def _profiled(row: _Interval, decoder: Mapping[int, int], keys: Keys, low_bits: bool) -> Slice:
    key = None if low_bits else decoder.get(row.key)
    if key is not None:
        args = {"key": key, "partition": split_key(key)[1]}
        return Slice(f"{keys.tensor(key)}.{row.name}", row.start_ns, row.end_ns, args, cat=_CATEGORY)
    field = "wire_key_low_16_bits" if low_bits else "wire_key_low_32_bits"
    return Slice(row.name, row.start_ns, row.end_ns, {field: row.key}, cat=_CATEGORY)


def _decoder(log: Log, keys: Keys) -> Mapping[int, int]:
    """Map the signed 32-bit numbers of wire keys in a kvapp profile to partition keys.

    The number is the lower half of the beginning of a server's key range plus the key. A server has one
    range, so all its numbers must decode to keys of the job; a worker talks to several servers, and
    a number that may stand for keys of two of them is omitted.
    """
    seen = {row.key for name, rows in log.profile.items() if "_van_" not in name for row in rows}
    n_servers = max(keys.servers.values(), default=0) + 1
    keys_of: dict[int, set[int]] = {}
    for rank in range(n_servers):
        base = key_base(rank, n_servers)
        decoded = {number: (number - base) & 0xFFFFFFFF for number in seen}
        fits = {n: key for n, key in decoded.items() if _is_key(key, rank, keys)}
        if log.node.startswith("server") and len(fits) < len(seen):
            continue
        for number, key in fits.items():
            keys_of.setdefault(number, set()).add(key)
    return {number: next(iter(of)) for number, of in keys_of.items() if len(of) == 1}


def _is_key(key: int, rank: int, keys: Keys) -> bool:
    declared, partition = split_key(key)
    tensor = keys.tensors.get(declared)
    known = tensor is not None and (tensor.n_parts is None or partition < tensor.n_parts)
    return known and keys.servers.get(key, rank) == rank


def _by_second(log: Log, near_ns: int) -> dict[str, list[Slice]]:
    """Make a slice for each second of a log whose clock has a resolution of one second."""
    first_s = min((second for _, second in log.seconds), default=0)  # of an unknown day and time zone
    shift_s = round((near_ns // _SECOND_NS - first_s) / _QUARTER_S) * _QUARTER_S
    tracks: dict[str, list[Slice]] = {}
    for (kind, second), entry in sorted(log.seconds.items(), key=lambda pair: pair[0][1]):
        start = (shift_s + second) * _SECOND_NS
        peers = ", ".join(f"ps{peer}" for peer in sorted(entry.peers))
        args = {"count": entry.n, "bytes": entry.n_bytes, "peers": peers}
        box = Slice(f"{entry.n} x {kind}", start, start + _SECOND_NS, args, cat=_CATEGORY)
        tracks.setdefault(f"key log: {kind}", []).append(box)
    return tracks


def _operations(logs: Sequence[Log]) -> Iterator[ServerOperation]:
    """Yield the durations per node and operation, in the order of the files."""
    durations: dict[tuple[str, str], list[int]] = {}
    for log in logs:
        for row in chain.from_iterable(log.profile.values()):
            if row.end_ns is not None:
                durations.setdefault((log.node, row.name), []).append(row.end_ns - row.start_ns)
    for (node, name), values in durations.items():
        yield ServerOperation(node, name, len(values), sum(values), min(values), max(values))


def _server_keys(logs: Sequence[Log], keys: Keys) -> Iterator[ServerKey]:
    for log in logs:
        for key in sorted({key for key, _ in log.requests}):
            pushes, pulls = log.requests[key, "push"], log.requests[key, "pull"]
            partition, n_bytes = split_key(key)[1], log.pushed_bytes[key]
            yield ServerKey(log.node, key, keys.tensor(key), partition, pushes, pulls, n_bytes)
