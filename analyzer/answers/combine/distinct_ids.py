"""Distinct numbers for the processes, threads, flows, asynchronous spans and stack frames of sources."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from analyzer.base.errors import TraceError, whole_number
from analyzer.reading.dialects.system import SecondAxis
from analyzer.reading.formats.whole import ID_LIMIT, OddEvent, WholeEvent

_FIRST_INVENTED = 2_000_000_000  # above every thread number of an operating system, below 2^31
_RANK = ("rank",)  # key of the process that stands for the rank: no pid of a file
_LARGEST = 1 << 31  # Perfetto reads larger or negative process ids as 0


class SourcePlace(Struct, frozen=True):
    """One source: what its beginning tells, and its numbers and names in the combined file; picklable.

    Its process ids are `first_pid` to `first_pid` + `n_pids` - 1; a Composer source has the only pid
    `only_pid`, its rank. If names have a `prefix` (BytePS), processes of the file are tensors, and become
    threads of one process, the rank.
    """

    path: Path
    dialect: str
    rank: int | None
    has_events: bool  # other than metadata
    axis: SecondAxis | None = None  # of times by a second clock
    number: int = 0
    prefix: str = ""  # of names: "wk0.rank1."
    first_pid: int = 0
    n_pids: int = 0
    only_pid: int | None = None
    names: tuple[str, ...] = ()  # --filter
    comm: tuple[str, ...] = ()  # --comm
    owner: str = ""  # the prefix of names for this source only: "rank1."


class SourceProcess(Struct):
    """One process of a source: its id in the combined file, and its metadata."""

    pid: int
    text: str  # its recorded pid
    name: str | None = None
    sort_index: float | None = None
    taken: set[int] = field(default_factory=set)  # thread ids in use


class SourceThread(Struct):
    """One thread of a process."""

    pid: int
    tid: int
    text: str | None  # its recorded tid, "" if missing; None if it equals `tid`
    name: str | None = None
    sort_index: float | None = None
    of: SourceProcess | None = None  # its recorded process, if it was moved to the rank's


class Tables:
    """Processes and tracks of one source, and their numbers."""

    def __init__(self, place: SourcePlace) -> None:
        self._place = place
        self.processes: dict[Any, SourceProcess] = {}
        self.tracks: dict[Any, SourceThread] = {}
        self._invented = 0
        self._rank = self.process(_RANK) if place.prefix else None

    def process(self, pid: Any) -> SourceProcess:
        """Look up the process `pid` of the file, or number a new one."""
        key = _number(pid)
        if key not in self.processes:
            self.processes[key] = SourceProcess(self._new_pid(), "" if pid in (None, _RANK) else str(pid))
        return self.processes[key]

    def name_of(self, pid: Any) -> str | None:
        """Name of the process `pid` of the file, in the part read so far."""
        process = self.processes.get(_number(pid))
        return None if process is None else process.name

    def track(self, pid: Any, tid: Any) -> SourceThread:
        """Look up the thread `tid` of `pid` in the file, or number a new one."""
        key = (_number(pid), _number(tid))
        if key not in self.tracks:
            of_file = process = self.process(pid)
            if self._rank is not None and key[1] not in self._rank.taken:  # numbers are keys of partitions
                process = self._rank
            number = self._new_tid(process, key[1])
            text = None if number == key[1] else "" if tid is None else str(tid)
            self.tracks[key] = SourceThread(
                process.pid, number, text, of=None if process is of_file else of_file
            )
        return self.tracks[key]

    def _new_pid(self) -> int:
        if self._place.only_pid is not None:
            return self._place.only_pid
        n = len(self.processes)
        if n >= self._place.n_pids:
            raise TraceError(f"{self._place.path}: more than {n:,} processes, too many to combine")
        return self._place.first_pid + n

    def _new_tid(self, process: SourceProcess, tid: Any) -> int:
        taken = process.taken
        number = 0 if tid is None else tid
        if not isinstance(number, int) or not 0 <= number < _LARGEST or number in taken:
            self._invented += 1
            number = _FIRST_INVENTED + self._invented
            while number in taken:
                number += 1
        taken.add(number)
        return int(number)


def _number(value: Any) -> Any:
    """Convert numeric text to a number, so that 7 and "7" are one process or track."""
    if isinstance(value, str) and value.isascii() and (number := whole_number(value)) is not None:
        return number
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


_ID_BITS = ID_LIMIT.bit_length() - 1
_EXACT_SOURCES = 1 << (53 - _ID_BITS)  # ids of so many sources stay exact in JavaScript
_LOCAL_IDS = frozenset("NODC")  # phases whose ids belong to a process


def make_unique(events: Sequence[WholeEvent], source: int) -> None:
    """Make the ids of flows, asynchronous events and stack frames distinct from other sources'."""
    for event in events:
        if event.id is not None and event.ph not in _LOCAL_IDS:
            event.id = unique_id(event.id, source)
        if isinstance(event, OddEvent):
            event.others = _unique_others(event, source)


def unique_id(value: Any, source: int) -> int | str:
    """Make an id distinct from other sources': a number, or hexadecimal text as Perfetto reads it.

    Small numbers stay exact in viewers (below 2^53); a 64-bit digest replaces other texts.
    """
    first = source << _ID_BITS
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < ID_LIMIT:
        if source < _EXACT_SOURCES:
            return value + first
    elif isinstance(value, str):
        try:
            number = -1 if "_" in value else int(value, 16)
        except ValueError:
            number = -1
        if 0 <= number < ID_LIMIT and source < 1 << 23:
            return hex(number + first)
    digest = hashlib.blake2b(f"{source}:{value!r}".encode(errors="replace"), digest_size=8)
    return "0x" + digest.hexdigest()


def _unique_others(event: OddEvent, source: int) -> dict[str, Any]:
    """Make the ids in rarer members distinct: `bind_id`, `id2.global`, stack frames."""
    others = dict(event.others)
    if "bind_id" in others:
        others["bind_id"] = unique_id(msgspec.json.decode(others["bind_id"]), source)
    if "id2" in others:
        ids = msgspec.json.decode(others["id2"])
        if isinstance(ids, dict) and "global" in ids and event.ph not in _LOCAL_IDS:
            others["id2"] = {**ids, "global": unique_id(ids["global"], source)}
    for key in ("sf", "esf"):
        if key in others:
            others[key] = frame_id(msgspec.json.decode(others[key]), source)
    return others


def frame_id(frame: Any, source: int) -> str:
    """Key of a stack frame in the combined file."""
    return f"{source}.{frame}"
