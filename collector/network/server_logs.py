"""Logs and profiles of servers and workers, line by line, recognised by what the lines look like.

- BytePS's key log (``PS_KEY_LOG=1``) and ps-lite's verbose log (``PS_VERBOSE=2``): clocks of one second;
- ps-lite's profiles (``ENABLE_PROFILING=1``): key, event, microseconds;
- dPRO's patched server log (``<us>: start|stop, <key>, <operation>[, <thread>]``) and van log
  (``<us> <is start> <is push> <is request> <key> <sender> <receiver>`` under a header of role and id).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct, field

_KEY_LOG = re.compile(
    rb"\[(\d\d):(\d\d):(\d\d)\] \S*server\.cc:\d+: "
    rb"(push|pull) key=(\d{1,18})\s+sender=(\d{1,9})(?:\s+size=(\d{1,15}))?"
)
_VERBOSE = re.compile(
    rb"\[(\d\d):(\d\d):(\d\d)\] \S*van\.cc:\d+: \w+ (\d{1,9})\s+(sent|received): (\?|\d{1,9}) => (\d{1,9})\. "
    rb"Meta: request=([01]), timestamp=(\d+), (?!control).{0,1000}?push=([01])"
)
_SIZES = re.compile(rb"data_size=\[\d+,(\d{1,15})")
_US = rb"\s*([0-3]?\d{1,15})"  # since the epoch, until the year 2096
_PROFILE = re.compile(rb"\s*(-?\d{1,18})\s+((?:worker|server)_(?:van|kvapp|send|process)\w*)" + _US + rb"\s*")
_SERVER = re.compile(_US + rb"\s*:\s*(start|stop)\s*,\s*(\d{1,18})\s*,\s*(\w+)\s*(?:,\s*(-?\d{1,9})\s*)?")
_BOOL = rb"\s+([Tt]rue|[Ff]alse|[01])"
_VAN = re.compile(_US + _BOOL * 3 + rb"\s+(\d{1,18})" + rb"\s+(\d{1,9})" * 2 + rb"\s*")
_HEADER = re.compile(rb"\s*role\s*=\s*(\w+)\s*,.*?\bid\s*=\s*(\d{1,9})")


class Interval(NamedTuple):
    """One interval of work on a key; an instant has no end."""

    name: str
    start_ns: int
    end_ns: int | None
    key: int


class _Second(Struct):
    """The events of one second of the day, in a log whose clock has a resolution of one second."""

    n: int = 0
    n_bytes: int = 0
    peers: set[int] = field(default_factory=set)


class Log(Struct):
    """The content of one file; rows are in the order of their start."""

    path: Path = Path()
    node: str = ""  # whose it is
    kinds: Counter[str] = field(default_factory=Counter)
    tracks: dict[str, list[Interval]] = field(default_factory=lambda: defaultdict(list))
    #: The key of a row is the wire key as a signed 32-bit number (kvapp) or its lowest 16 bits (van).
    profile: dict[str, list[Interval]] = field(default_factory=lambda: defaultdict(list))
    #: Of a van log, by ids of sender and receiver.
    transfers: dict[tuple[int, int], list[Interval]] = field(default_factory=lambda: defaultdict(list))
    #: (kind, what, second counted from the first midnight) -> what happened in it.
    seconds: dict[tuple[str, str, int], _Second] = field(default_factory=lambda: defaultdict(_Second))
    requests: Counter[tuple[int, str]] = field(
        default_factory=Counter
    )  # of a key log: (key, "push" or "pull")
    pushed_bytes: Counter[int] = field(default_factory=Counter)  # of a key log, by key
    ids: dict[int, str] = field(default_factory=dict)  # ps-lite id -> role, from a van log's header
    n_other: int = 0  # lines of none of the formats
    n_unpaired: int = 0  # starts without stop and stops without start

    def rows(self) -> Iterator[list[Interval]]:
        """Yield the rows of each track."""
        return chain(self.tracks.values(), self.profile.values(), self.transfers.values())


def read_log(lines: Iterable[bytes]) -> Log:
    """Return the rows of one file; lines of other kinds are counted."""
    log = Log()
    reader = _LineReader(log)
    for line in lines:
        if not reader.take(line) and line.strip():
            log.n_other += 1
    log.n_unpaired += sum(map(len, reader.open.values()))
    for rows in log.rows():
        rows.sort(key=lambda row: row.start_ns)
    return log


class _LineReader:
    """Tries the format of the line before first: most files have one."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._formats: list[tuple[str, bytes, Callable[[bytes], bool]]] = [
            ("key log", b"server.cc", self._key_log),
            ("van verbose log", b"van.cc", self._verbose),
            ("ps-lite profile", b"er_", self._profile),
            ("server log", b":", self._server),
            ("van log", b"", self._van),
        ]
        self.open: dict[tuple[object, ...], deque[int]] = defaultdict(deque)  # when what was started began
        self._day, self._last_second = 0, 0

    def take(self, line: bytes) -> bool:
        """Decode one line; False if it has none of the formats."""
        for i, (kind, mark, decode) in enumerate(self._formats):
            if mark in line and decode(line):
                if i:
                    self._formats.insert(0, self._formats.pop(i))
                self._log.kinds[kind] += 1
                return True
        return False

    def _key_log(self, line: bytes) -> bool:
        matches = list(_KEY_LOG.finditer(line))  # lines of several threads may run into each other
        for match in matches:
            key, what, size = int(match[5]), match[4].decode(), int(match[7] or 0)
            self._log.requests[key, what] += 1
            self._log.pushed_bytes[key] += size
            self._count("key log", what, match, size, int(match[6]))
        return bool(matches) or b"Collected all" in line

    def _verbose(self, line: bytes) -> bool:
        matches = list(_VERBOSE.finditer(line))
        for match in matches:
            sizes = _SIZES.search(line, match.end())
            stage = "PUSH" if match[10] == b"1" else "PULL"
            half = "request" if match[8] == b"1" else "response"
            sender = int(match[4] if match[6] == b"?" else match[6])
            peer = int(match[7]) if match[5] == b"sent" else sender
            what = f"{match[5].decode()} {stage} {half}"
            self._count("van verbose log", what, match, int(sizes[1]) if sizes else 0, peer)
        return bool(matches) or b"control={" in line

    def _count(self, kind: str, what: str, clock: re.Match[bytes], n_bytes: int, peer: int) -> None:
        """Add to the second of a line, counted from the midnight before the first line."""
        second = int(clock[1]) * 3600 + int(clock[2]) * 60 + int(clock[3])
        if second < self._last_second - 43_200:
            self._day += 1
        self._last_second = second
        entry = self._log.seconds[kind, what, self._day * 86_400 + second]
        entry.n += 1
        entry.n_bytes += n_bytes
        entry.peers.add(peer)

    def _profile(self, line: bytes) -> bool:
        match = _PROFILE.fullmatch(line)
        if match is None:
            return False
        key, event, at_ns = int(match[1]), match[2].decode(), int(match[3]) * 1000
        if event == "server_process_pull":
            self._pair(True, ("serve", key), at_ns)
            return True
        if event == "server_send_pull_response":
            start_ns = self._pair(False, ("serve", key), at_ns)
            if start_ns is not None:
                self._log.profile["pulls served"].append(Interval("PULL", start_ns, at_ns, key))
                return True
        self._log.profile[event].append(Interval(event, at_ns, None, key))
        return True

    def _server(self, line: bytes) -> bool:
        match = _SERVER.fullmatch(line)
        if match is None:
            return False
        at_ns, key = int(match[1]) * 1000, int(match[3])
        operation, thread = match[4].decode().upper(), match[5]
        if operation != "INIT":
            start_ns = self._pair(match[2] == b"start", (key, operation, thread), at_ns)
            if start_ns is not None:
                track = "server" if thread is None else f"thread {int(thread)}"
                self._log.tracks[track].append(Interval(operation, start_ns, at_ns, key))
        return True

    def _van(self, line: bytes) -> bool:
        if header := _HEADER.match(line):
            self._log.ids[int(header[2])] = header[1].decode()
            return True
        match = _VAN.fullmatch(line)
        if match is None:
            return False
        starts, push, request = (value in (b"1", b"true", b"True") for value in match.group(2, 3, 4))
        at_ns, key, ends = int(match[1]) * 1000, int(match[5]), (int(match[6]), int(match[7]))
        name = f"{'PUSH' if push else 'PULL'} {'request' if request else 'response'}"
        start_ns = self._pair(starts, (name, key, ends), at_ns)
        if start_ns is not None:
            self._log.transfers[ends].append(Interval(name, start_ns, at_ns, key))
        return True

    def _pair(self, starts: bool, what: tuple[object, ...], at_ns: int) -> int | None:
        """Note a start; of a stop return when the oldest open one of its kind began, None without one."""
        if starts:
            self.open[what].append(at_ns)
        elif self.open[what]:
            return self.open[what].popleft()
        else:
            self._log.n_unpaired += 1
        return None
