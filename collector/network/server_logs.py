"""Logs and profiles of servers and workers, line by line, recognised by what the lines look like.

- BytePS's key log (``PS_KEY_LOG=1``) and ps-lite's verbose log (``PS_VERBOSE=2``): clocks of one second;
- ps-lite's profiles (``ENABLE_PROFILING=1``): key, event, microseconds;
- dPRO's patched server log (``<us>: start|stop, <key>, <operation>[, <thread>]``) and van log
  (``<us> <is start> <is push> <is request> <key> <sender> <receiver>`` under a header of role and id).
"""

from __future__ import annotations

import re
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

_KEY_LOG = re.compile(
    rb"\[(\d\d):(\d\d):(\d\d)\] \S*server\.cc:\d+: "
    rb"(push|pull) key=(\d{1,18})\s+sender=(\d{1,9})(?:\s+size=(\d{1,15}))?"
)
_VERBOSE = re.compile(
    rb"\[(\d\d):(\d\d):(\d\d)\] \S*van\.cc:\d+: \w+ (\d{1,9})\s+(sent|received): (\?|\d{1,9}) => (\d{1,9})\. "
    rb"Meta: request=([01]), timestamp=(\d+), (?!control).{0,1000}?push=([01])"
)
_SIZES = re.compile(rb"data_size=\[\d+,(\d{1,15})")
_PROFILE = re.compile(rb"\s*(-?\d{1,18})\s+((?:worker|server)_(?:van|kvapp|send|process)\w*)\s+(\d{1,16})\s*")
_SERVER = re.compile(
    rb"\s*(\d{1,16})\s*:\s*(start|stop)\s*,\s*(\d{1,18})\s*,\s*(\w+)\s*(?:,\s*(-?\d{1,9})\s*)?"
)
_BOOL = rb"([Tt]rue|[Ff]alse|[01])"
_VAN = re.compile(
    rb"\s*(\d{1,16})\s+" + rb"\s+".join([_BOOL] * 3) + rb"\s+(\d{1,18})" + rb"\s+(\d{1,9})" * 2 + rb"\s*"
)
_HEADER = re.compile(rb"\s*role\s*=\s*(\w+)\s*,.*?\bid\s*=\s*(\d{1,9})")

_LATEST_US = 1 << 52  # a later time is no time


@dataclass(slots=True)
class Spans:
    """Rows of one track: what happened to which key from when to when."""

    names: list[str] = field(default_factory=list)
    start_ns: array[int] = field(default_factory=lambda: array("q"))
    end_ns: array[int] = field(default_factory=lambda: array("q"))  # -1: an instant
    key: array[int] = field(default_factory=lambda: array("q"))

    def add(self, name: str, start_ns: int, end_ns: int, key: int) -> None:
        """Append one row."""
        self.names.append(name)
        self.start_ns.append(start_ns)
        self.end_ns.append(end_ns)
        self.key.append(key)

    def __len__(self) -> int:
        return len(self.names)


@dataclass(slots=True)
class Second:
    """What a log with a clock of one second has for one second of the day."""

    n: int = 0
    n_bytes: int = 0
    peers: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Log:
    """The content of one file.

    `tracks` : rows by track; `profile` rows hold the wire key as a signed 32-bit number (kvapp) or its
        lowest 16 bits (van)
    `transfers` : rows of a van log by (sender id, receiver id)
    `seconds` : (kind, what, second counted from the first midnight) -> what happened in it
    `requests` : (key, "push" or "pull") -> number of requests in a key log; `pushed_bytes` their bytes
    """

    kinds: Counter[str] = field(default_factory=Counter)
    tracks: dict[str, Spans] = field(default_factory=dict)
    profile: dict[str, Spans] = field(default_factory=dict)
    transfers: dict[tuple[int, int], Spans] = field(default_factory=dict)
    seconds: dict[tuple[str, str, int], Second] = field(default_factory=dict)
    requests: Counter[tuple[int, str]] = field(default_factory=Counter)
    pushed_bytes: Counter[int] = field(default_factory=Counter)
    ids: dict[int, str] = field(default_factory=dict)  # ps-lite id -> role, from a van log's header
    n_other: int = 0  # lines of none of the formats
    n_unpaired: int = 0  # starts without stop and stops without start


def read_log(lines: Iterable[bytes]) -> Log:
    """Return what the lines of one file say; lines of other kinds are counted."""
    log = Log()
    reader = _Reader(log)
    for line in lines:
        if not reader.take(line) and line.strip():
            log.n_other += 1
    reader.close()
    return log


class _Reader:
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
        self._open: dict[tuple[object, ...], deque[int]] = {}
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

    def close(self) -> None:
        """Count what was begun and not ended."""
        self._log.n_unpaired += sum(len(starts) for starts in self._open.values())

    def _key_log(self, line: bytes) -> bool:
        found = False
        for match in _KEY_LOG.finditer(line):  # lines of several threads may run into each other
            found = True
            key, what, size = int(match[5]), match[4].decode(), int(match[7] or 0)
            self._log.requests[key, what] += 1
            self._log.pushed_bytes[key] += size
            self._count("key log", what, self._second(match), size, int(match[6]))
        return found or b"Collected all" in line

    def _verbose(self, line: bytes) -> bool:
        found = False
        for match in _VERBOSE.finditer(line):
            found = True
            sizes = _SIZES.search(line, match.end())
            stage = "PUSH" if match[10] == b"1" else "PULL"
            half = "request" if match[8] == b"1" else "response"
            sender = int(match[4] if match[6] == b"?" else match[6])
            peer = int(match[7]) if match[5] == b"sent" else sender
            what = f"{match[5].decode()} {stage} {half}"
            self._count("van verbose log", what, self._second(match), int(sizes[1]) if sizes else 0, peer)
        return found or b"control={" in line

    def _second(self, match: re.Match[bytes]) -> int:
        """Return the second of the line, counted from the midnight before the first line."""
        second = int(match[1]) * 3600 + int(match[2]) * 60 + int(match[3])
        if second < self._last_second - 43_200:
            self._day += 1
        self._last_second = second
        return self._day * 86_400 + second

    def _count(self, kind: str, what: str, second: int, n_bytes: int, peer: int) -> None:
        entry = self._log.seconds.setdefault((kind, what, second), Second())
        entry.n += 1
        entry.n_bytes += n_bytes
        entry.peers.add(peer)

    def _profile(self, line: bytes) -> bool:
        match = _PROFILE.fullmatch(line)
        if match is None or int(match[3]) > _LATEST_US:
            return False
        key, event, at_ns = int(match[1]), match[2].decode(), int(match[3]) * 1000
        if event == "server_process_pull":
            self._begin(("serve", key), at_ns)
            return True
        if event == "server_send_pull_response":
            begun = self._end(("serve", key))
            if begun is not None:
                self._spans(self._log.profile, "pulls served").add("PULL", begun, at_ns, key)
                return True
        self._spans(self._log.profile, event).add(event, at_ns, -1, key)
        return True

    def _server(self, line: bytes) -> bool:
        match = _SERVER.fullmatch(line)
        if match is None or int(match[1]) > _LATEST_US:
            return False
        at_ns, key, operation = int(match[1]) * 1000, int(match[3]), match[4].decode().upper()
        if operation == "INIT":
            return True
        thread = match[5]
        open_key = (key, operation, thread)
        if match[2] == b"start":
            self._begin(open_key, at_ns)
        elif (begun := self._end(open_key)) is not None:
            track = "server" if thread is None else f"thread {int(thread)}"
            self._spans(self._log.tracks, track).add(operation, begun, at_ns, key)
        return True

    def _van(self, line: bytes) -> bool:
        if header := _HEADER.match(line):
            self._log.ids[int(header[2])] = header[1].decode()
            return True
        match = _VAN.fullmatch(line)
        if match is None or int(match[1]) > _LATEST_US:
            return False
        start, push, request = (value in (b"1", b"true", b"True") for value in match.group(2, 3, 4))
        at_ns, key, ends = int(match[1]) * 1000, int(match[5]), (int(match[6]), int(match[7]))
        name = f"{'PUSH' if push else 'PULL'} {'request' if request else 'response'}"
        if start:
            self._begin((name, key, ends), at_ns)
        elif (begun := self._end((name, key, ends))) is not None:
            self._log.transfers.setdefault(ends, Spans()).add(name, begun, at_ns, key)
        return True

    def _begin(self, what: tuple[object, ...], at_ns: int) -> None:
        self._open.setdefault(what, deque()).append(at_ns)

    def _end(self, what: tuple[object, ...]) -> int | None:
        """Return when the oldest open one of its kind began; None, counted, if there is none."""
        starts = self._open.get(what)
        if not starts:
            self._log.n_unpaired += 1
            return None
        begun = starts.popleft()
        if not starts:
            del self._open[what]
        return begun

    @staticmethod
    def _spans(tracks: dict[str, Spans], name: str) -> Spans:
        return tracks.setdefault(name, Spans())


def rows(spans: Spans) -> Iterator[tuple[str, int, int, int]]:
    """Yield (name, start, end, key) in the order of the starts."""
    order = sorted(range(len(spans)), key=spans.start_ns.__getitem__)
    for i in order:
        yield spans.names[i], spans.start_ns[i], spans.end_ns[i], spans.key[i]
