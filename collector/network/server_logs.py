"""Logs and profiles of servers and workers, line by line, recognised by their form.

- BytePS's key log (``PS_KEY_LOG=1``), whose clock has a resolution of one second;
- ps-lite's profiles (``ENABLE_PROFILING=1``): key, event, microseconds.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct, field

_KEY_LOG = re.compile(
    rb"\[(\d\d):(\d\d):(\d\d)\] \S*server\.cc:\d+: "
    rb"(push|pull) key=(\d{1,18})\s+sender=(\d{1,9})(?:\s+size=(\d{1,15}))?"
)
_PROFILE = re.compile(
    rb"\s*(-?\d{1,18})\s+((?:worker|server)_(?:van|kvapp|send|process)\w*)"
    rb"\s*([0-3]?\d{1,15})\s*"  # microseconds since the epoch, until the year 2096
)
PULLS_SERVED = "pulls served"


class Interval(NamedTuple):
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
    """The content of one file."""

    path: Path = Path()
    node: str = ""  # whose it is
    kinds: Counter[str] = field(default_factory=Counter)
    #: Tracks of a profile, each in the order of its starts. The key of a row is the wire key as a signed
    #: 32-bit number (kvapp) or its lowest 16 bits (van).
    profile: dict[str, list[Interval]] = field(default_factory=lambda: defaultdict(list))
    #: Of a key log: ("push" or "pull", second counted from the first midnight) -> the requests in it.
    seconds: dict[tuple[str, int], _Second] = field(default_factory=lambda: defaultdict(_Second))
    requests: Counter[tuple[int, str]] = field(default_factory=Counter)  # (key, "push" or "pull")
    pushed_bytes: Counter[int] = field(default_factory=Counter)  # by key
    n_other: int = 0  # lines of neither format
    n_unpaired: int = 0  # pulls without response and responses without pull


def read_log(lines: Iterable[bytes]) -> Log:
    """Return the rows of one file; lines of other kinds are counted."""
    log = Log()
    midnight_s, last_s = 0, 0
    pulls: dict[int, deque[int]] = defaultdict(deque)  # by key, when those began that are not answered
    for line in lines:
        if match := _PROFILE.fullmatch(line):
            log.kinds["ps-lite profile"] += 1
            _add_profiled(log, pulls, match[2].decode(), int(match[1]), int(match[3]) * 1000)
        elif b"server.cc" in line and (matches := list(_KEY_LOG.finditer(line))):
            log.kinds["key log"] += 1
            for request in matches:  # lines of several threads may run into each other
                second = int(request[1]) * 3600 + int(request[2]) * 60 + int(request[3])
                midnight_s += 86_400 if second < last_s - 43_200 else 0
                last_s = second
                _add_request(log, request, midnight_s + second)
        elif line.strip() and b"Collected all" not in line:
            log.n_other += 1
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


def _add_profiled(log: Log, pulls: dict[int, deque[int]], event: str, key: int, at_ns: int) -> None:
    if event == "server_process_pull":
        pulls[key].append(at_ns)
    elif event != "server_send_pull_response":
        log.profile[event].append(Interval(event, at_ns, None, key))
    elif pulls[key]:
        log.profile[PULLS_SERVED].append(Interval("PULL", pulls[key].popleft(), at_ns, key))
    else:
        log.n_unpaired += 1
