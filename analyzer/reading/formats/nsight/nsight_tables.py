"""Databases that Nsight Systems exports (`nsys export --type sqlite`) as columns.

Each table of activities becomes slices in the category of PyTorch's profiler (`kernel`, `gpu_memcpy`,
`cuda_runtime`, …); an NVTX range is a `user_annotation`, or a `cpu_op` if `emit_nvtx` wrote it for an
operator. Work of a device is on the track (device, stream), everything else on (process, thread).
``header["nsight"]`` has the process of each device.

Versions differ in their tables and columns: a missing number is -1. A correlation belongs to one process, so
the process's number is added to it.
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from analyzer.base.arrays import Int64, NDArray
from analyzer.base.arrays.numbering import numbered, unique
from analyzer.base.errors import TraceError, counted
from analyzer.base.inputs import opened
from analyzer.reading.formats.builder import ALL
from analyzer.reading.formats.columns import ArgColumn, Points, Trace, Track, concatenate
from analyzer.reading.formats.file_kinds import TABLE, is_database
from analyzer.reading.formats.values import FARTHEST_NS, clean_text

_PIECE = 1 << 16  # rows at a time
#: Steps of SQLite's virtual machine that a database may take; recorded ones take 0.6 for each byte.
_FEW_STEPS, _STEPS_PER_BYTE, _STEPS_PER_CHECK = 5_000_000, 20, 10_000
#: Functions in the queries of this module.
_FUNCTIONS = frozenset(("count", "ifnull", "max", "min", "sum", "typeof", "upper"))
_ACTIVITY = "CUPTI_ACTIVITY_KIND_"
_KERNELS, _CALLS, _NVTX = f"{_ACTIVITY}KERNEL", f"{_ACTIVITY}RUNTIME", "NVTX_EVENTS"
_EXPORT = "`nsys export --type sqlite REPORT.nsys-rep` writes one that can be read"
_MOST = 0xFFFFFFFF  # the largest number of a stream, a context or a correlation
_LONG_NS = 1 << 57  # four years: longer than any machine has been on, shorter than since the epoch
_OVERLAPPING = 60  # `eventType` of ranges that begin and end on any thread
_STREAM_WAIT, _STREAM_SYNC = 2, 3  # `syncType`
_SYNCS = {1: "Event Sync", _STREAM_WAIT: "Stream Wait Event", _STREAM_SYNC: "Stream Sync", 4: "Context Sync"}
_COPIES = ("", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP")
_MEMORY = ("Pageable", "Pinned", "Device", "Array", "Managed")
#: The end of a call's name: the version of the interface, and a mark for streams per thread.
_VERSION = re.compile(r"(?:_pt(?:sz|ds))?_v\d+(?:_pt(?:sz|ds))?$")
#: Operators as `emit_nvtx` names them: with a namespace, or a function of autograd; and calls of NCCL.
_OPERATOR = re.compile(r"\w+::[\w:]+(?:: \w+)?|\w+Backward\d*|record_param_comms|nccl[A-Z]\w+")
_TIMES = ("start", "end")
_ON_DEVICE = (*_TIMES, "deviceId", "contextId", "streamId", "correlationId", "globalPid")
_BY_HOST = (*_TIMES, "globalTid", "nameId", "correlationId")
_KERNEL_NAMES = ("demangledName", "shortName", "mangledName")

#: A table's name, and the version of its layout, as CUPTI numbers its records.
_VERSIONED = re.compile(r"(.+?)_?V(\d{1,3})")
#: Beginnings of the names of tables that only Nsight Systems writes.
_OF_NSIGHT = ("StringIds", "NVTX_EVENTS", "TARGET_INFO_", "ANALYSIS_", "EXPORT_META_DATA", "META_DATA_")
_OF_NVPROF = ("StringTable", "CUPTI_ACTIVITY_KIND_")

_Rows = dict[str, Int64]  # the columns of a table (n,)
_Names = tuple[Sequence[str], NDArray[np.integer]]  # distinct names, and the index of each row's name (n,)


def read(path: Path, args: Collection[str] = (), points: bool = False) -> Trace:
    """Load one export, with the arguments of slices in `args`; `points`: NVTX marks, too.

    TraceError for any other database, and for a damaged one. SQLite opens the file as immutable, so it writes
    nothing, not even a log beside it.
    """
    with opened(path) as file:
        head = file.read(32)
    if not is_database(head):
        raise TraceError(f"{path}: a packed database; unpack it with gunzip first")
    per_page, n_pages = int.from_bytes(head[16:18], "big"), int.from_bytes(head[28:32], "big")
    n_bytes = (1 << 16 if per_page == 1 else per_page) * n_pages
    if path.stat().st_size < n_bytes:
        raise TraceError(f"{path}: a database that was cut off: it had {n_bytes:,} bytes; {_EXPORT}")
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?immutable=1&mode=ro", uri=True)) as db:
            _limit(db, n_bytes)
            db.text_factory = lambda text: clean_text(text.decode(errors="replace"))
            return _Export(path, db, frozenset(args)).trace(points)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        why = "its views do not end" if str(error) == "interrupted" else error
        raise TraceError(f"{path}: a damaged database ({why}); {_EXPORT}") from error


def _limit(db: sqlite3.Connection, n_bytes: int) -> None:
    """Bound the work of a database of `n_bytes`: its views may be endless, and make texts of any length."""
    checks = iter(range((_FEW_STEPS + _STEPS_PER_BYTE * n_bytes) // _STEPS_PER_CHECK))
    db.set_progress_handler(lambda: next(checks, None) is None, _STEPS_PER_CHECK)

    def allow(action: int, _: str | None, name: str | None, *__: str | None) -> int:
        is_other = action == sqlite3.SQLITE_FUNCTION and name not in _FUNCTIONS
        return sqlite3.SQLITE_DENY if is_other else sqlite3.SQLITE_OK

    db.set_authorizer(allow)


class _Export:
    """An open database; `repairs` lists what was left out."""

    def __init__(self, path: Path, db: sqlite3.Connection, args: Collection[str]) -> None:
        self.path, self.db, self.args = path, db, args
        self.repairs: list[str] = []
        self.pids: Sequence[int] = ()  # of the processes, by their numbers here
        self.devices: dict[str, int] = {}  # the pid of each device's process
        self.tables = [str(name) for (name,) in db.execute("SELECT name FROM sqlite_master ORDER BY name")]
        if other := _other_database(self.tables):
            raise TraceError(f"{path}: not a trace: {other}")
        self.table_of = _newest_versions(self.tables)
        if "StringIds" not in self.table_of or not {_KERNELS, _CALLS, _NVTX}.intersection(self.table_of):
            lacks = f"{_KERNELS}, {_CALLS} or {_NVTX}" if "StringIds" in self.table_of else "StringIds"
            raise TraceError(f"{path}: an export of Nsight Systems without a table {lacks}; {_EXPORT}")
        if _KERNELS not in self.table_of:
            self.repairs.append(
                f"no table {_KERNELS}: no kernel is recorded (nsys profile --trace cuda,nvtx)"
            )
        log = path.with_name(f"{path.name}-wal")
        if log.exists() and log.stat().st_size:
            self.repairs.append(f"rows that are still in {log.name} are not read; export it again")

    # ---- tables

    def columns(self, table: str) -> set[str]:
        """Names of a table's columns; none if the table is missing."""
        return {str(row[1]) for row in self.db.execute(f'PRAGMA table_info("{self.actual(table)}")')}

    def actual(self, table: str) -> str:
        """Name of a table in this export, with its version."""
        return self.table_of.get(table, table)

    def rows(
        self, table: str, names: Sequence[str], text: str = "NULL", where: str = "1"
    ) -> tuple[_Rows, list[Any]]:
        """Columns of a table, begin and end first, and a text of each row.

        Rows without a begin or an end, or that end before they begin, are left out, with a note.
        """
        has = self.columns(table)
        pieces = [np.empty((len(names), 0), np.int64)]
        texts: list[Any] = []
        if has:
            whole = [
                f'CASE typeof("{n}") WHEN \'integer\' THEN "{n}" END' if n in has else "-1" for n in names
            ]
            chosen = ", ".join(f"ifnull({column}, -1)" for column in whole)
            rows = self.db.execute(f'SELECT {chosen}, {text} FROM "{self.actual(table)}" WHERE {where}')
            while piece := rows.fetchmany(_PIECE):
                *columns, of_piece = zip(*piece, strict=True)
                pieces.append(np.array(columns, np.int64))
                texts += of_piece
        numbers = np.concatenate(pieces, axis=1)
        kept = (numbers[0] >= 0) & (numbers[1] >= numbers[0]) & (numbers[1] <= FARTHEST_NS)
        if n := len(kept) - int(kept.sum()):
            self.repairs.append(f"{counted(n, 'row')} of {table} without sound times left out")
            texts = [text for text, is_kept in zip(texts, kept.tolist(), strict=True) if is_kept]
        return dict(zip(names, numbers[:, kept], strict=True)), texts

    def values(self, table: str, *names: str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a table; none if it lacks a column."""
        if set(names) <= self.columns(table):
            yield from self.db.execute(f'SELECT {", ".join(names)} FROM "{self.actual(table)}"')

    def strings(self, ids: Int64) -> _Names:
        """Look up the texts of string ids (n,)."""
        distinct, which = np.unique(ids, return_inverse=True)
        wanted = set(distinct.tolist())
        known = {i: str(value) for i, value in self.values("StringIds", "id", "value") if i in wanted}
        return [known.get(i, "(no name)") for i in distinct.tolist()], which.reshape(-1)

    # ---- slices

    def trace(self, points: bool) -> Trace:
        """Make the trace of all activities."""
        kernels, graphs, copies, fills, syncs = (
            self.rows(f"{_ACTIVITY}{table}", (*_ON_DEVICE, *more))[0]
            for table, more in (
                ("KERNEL", _KERNEL_NAMES),
                ("GRAPH_TRACE", ("graphId",)),
                ("MEMCPY", ("bytes", "copyKind", "srcKind", "dstKind")),
                ("MEMSET", ("bytes", "memKind")),
                ("SYNCHRONIZATION", ("syncType",)),
            )
        )
        calls, overheads = (self.rows(table, _BY_HOST)[0] for table in (_CALLS, "PROFILER_OVERHEAD"))
        ranges, texts = self._nvtx('eventType IN (59, 60) AND "end" IS NOT NULL', "end")
        marks, of_marks = self._nvtx("eventType = 34" if points else "0", "start")
        self._number([kernels, graphs, copies, fills], syncs, [calls, overheads, ranges, marks])
        directions = copies["copyKind"] << 16 | (copies["srcKind"] & 0xFF) << 8 | copies["dstKind"] & 0xFF
        codes = [kernels[key] for key in _KERNEL_NAMES]
        waits_for_stream = np.isin(syncs["syncType"], (_STREAM_WAIT, _STREAM_SYNC))
        parts = [
            self._device(
                kernels, "kernel", self.strings(np.select([code >= 0 for code in codes], codes, -1))
            ),
            self._device(graphs, "kernel", _names(graphs["graphId"], "CUDA Graph {}".format)),
            self._device(copies, "gpu_memcpy", _names(directions, _copy), bytes=copies["bytes"]),
            self._device(fills, "gpu_memset", _names(fills["memKind"], _fill), bytes=fills["bytes"]),
            self._device(
                syncs,
                "cuda_sync",
                _names(syncs["syncType"], lambda kind: _SYNCS.get(kind, "Synchronisation")),
                stream=np.where(waits_for_stream, syncs["streamId"], -1),
            ),
            self._host(calls, self.strings(calls["nameId"]), _call_cat),
            self._host(overheads, self.strings(overheads["nameId"]), "overhead".format),
            self._host(ranges, numbered(texts), _range_cat),
            _as_points(self._host(marks, numbered(of_marks), _range_cat)),
        ]
        whole = concatenate(parts)
        phases = {"X": len(whole), "i": len(whole.points)}
        header = self._header(int(whole.ts_ns.min(initial=FARTHEST_NS)))
        return replace(whole, metadata=self._metadata(), header=header, phases=phases, repairs=self.repairs)

    def _nvtx(self, where: str, end: str) -> tuple[_Rows, list[str]]:
        """Read NVTX ranges or marks and their texts, in the table or among the strings.

        `emit_nvtx` appends a part that differs from call to call; it is cut off.
        """
        names = ("start", end, "globalTid", "textId", "eventType")
        has = self.columns(_NVTX)
        rows, texts = self.rows(_NVTX, names, "text" if "text" in has else "NULL", where)
        rows["end"] = rows[end]
        if end == "end" and has:
            ((n,),) = self.db.execute(
                f'SELECT count(*) FROM "{self.actual(_NVTX)}" WHERE eventType IN (59, 60) AND "end" IS NULL'
            )
            if n:
                self.repairs.append(f"{counted(n, 'NVTX range')} without an end left out")
        names_of, which = self.strings(rows["textId"])
        texts = [
            names_of[i] if text is None else str(text) for text, i in zip(texts, which.tolist(), strict=True)
        ]
        return rows, [text.partition(", seq = ")[0].partition(", op_id = ")[0] for text in texts]

    def _number(self, works: Sequence[_Rows], syncs: _Rows, hosts: Sequence[_Rows]) -> None:
        """Add the columns `process` and `device`, which count processes and devices from 0.

        One device number in two processes may be two devices. The device of a synchronisation is not recorded
        and taken from its context.
        """
        for rows in hosts:
            rows["process"] = rows["globalTid"] >> 24
        by_host = unique(np.concatenate([rows["process"] for rows in hosts])).tolist()
        for rows in (*works, syncs):
            process = rows["globalPid"] >> 24
            rows["process"] = np.where(process < 0, by_host[0], process) if len(by_host) == 1 else process
        tables = [*works, syncs, *hosts]
        processes = unique(np.concatenate([rows["process"] for rows in tables]))
        pids = [process & 0xFFFFFF for process in processes.tolist()]
        self.pids = pids if len(set(pids)) == len(pids) else processes.tolist()
        for rows in tables:
            rows["process"] = np.searchsorted(processes, rows["process"])
        known = unique(np.concatenate([_packed(rows) for rows in works])).tolist()
        device_of = {code >> 16: code & 0xFFFF for code in known}
        contexts, which = np.unique(_packed(syncs), return_inverse=True)
        devices = [device_of.get(code >> 16, code & 0xFFFF) for code in contexts.tolist()]
        syncs["deviceId"] = np.array(devices, np.int64)[which.reshape(-1)]
        for rows in (*works, syncs):
            rows["device"] = (rows["deviceId"] & 0xFFFF) << 32 | rows["process"]
        pairs = unique(np.concatenate([rows["device"] for rows in (*works, syncs)]))
        device_pids = [(pair >> 32, self.pids[pair & _MOST]) for pair in pairs.tolist()]
        n_processes = Counter(device for device, _ in device_pids)
        self.devices = {
            f"GPU {device}" if n_processes[device] == 1 else f"GPU {device} of {pid}": pid
            for device, pid in device_pids
        }
        for rows in (*works, syncs):
            rows["device"] = np.searchsorted(pairs, rows["device"])

    def _device(self, rows: _Rows, cat: str, names: _Names, **args: Int64) -> Trace:
        """Make slices on the streams of devices."""
        codes, track = np.unique(rows["device"] << 40 | rows["streamId"] & _MOST, return_inverse=True)
        labels = list(self.devices)
        tracks = [Track(labels[code >> 40], code & _MOST) for code in codes.tolist()]
        return self._slices(rows, names, lambda _: cat, tracks, track, args)

    def _host(self, rows: _Rows, names: _Names, cat_of: Callable[[str], str]) -> Trace:
        """Make slices on threads; ranges that may overlap have tracks of their own."""
        is_apart = rows["eventType"] == _OVERLAPPING if "eventType" in rows else 0
        codes, track = np.unique(
            rows["process"] << 32 | (rows["globalTid"] & 0xFFFFFF) << 1 | is_apart, return_inverse=True
        )
        tracks = [
            Track(self.pids[code >> 32], f"ranges of {tid}" if code & 1 else tid)
            for code in codes.tolist()
            for tid in [(code & _MOST) >> 1]
        ]
        if "nameId" in rows:
            names = [_VERSION.sub("", name) for name in names[0]], names[1]
        return self._slices(rows, names, cat_of, tracks, track, {})

    def _slices(
        self,
        rows: _Rows,
        names: _Names,
        cat_of: Callable[[str], str],
        tracks: Sequence[Track],
        track: Int64,
        args: Mapping[str, Int64],
    ) -> Trace:
        distinct, which = names
        cats, cat_of_name = numbered(map(cat_of, distinct))
        if "correlationId" in rows:
            number = rows["correlationId"]
            args = {
                **args,
                "correlation": np.where(number >= 0, rows["process"] << 32 | number & _MOST, -1),
            }
        columns = {
            key: ArgColumn(np.arange(len(which)), values.tolist())
            for key, values in args.items()
            if ALL in self.args or key in self.args
        }
        name_id, cat_id, track_id = (
            ids.reshape(-1).astype(np.int32) for ids in (which, cat_of_name[which], track)
        )
        begin, dur_ns = rows["start"], rows["end"] - rows["start"]
        return Trace(
            str(self.path), "", distinct, cats, tracks, name_id, cat_id, track_id, begin, dur_ns, columns
        )

    def _header(self, first_ns: int) -> dict[str, Any]:
        """Make the header: the process of each device, the machine, and the zero of times.

        Times count from the epoch, by the clock of the machine, or from the start of the recording.
        """
        header: dict[str, Any] = {"nsight": self.devices}
        for name, value in self.values("TARGET_INFO_SYSTEM_ENV", "name", "value"):
            if name == "Hostname" and value:
                header["host_name"] = str(value)
        clocks = [clock for (clock,) in self.values("TARGET_INFO_SESSION_START_TIME", "systemClockNs")]
        for (utc_ns,) in self.values("TARGET_INFO_SESSION_START_TIME", "utcEpochNs"):
            if type(utc_ns) is int and first_ns < _LONG_NS:
                clock = clocks[0] if clocks and type(clocks[0]) is int and clocks[0] <= first_ns else 0
                header["baseTimeNanoseconds"] = utc_ns - clock
        return header

    def _metadata(self) -> list[dict[str, Any]]:
        """Name the processes and devices, in events of a chrome trace."""
        names: dict[Any, str] = {label: label for label in self.devices}
        for pid, name in self.values("PROCESSES", "pid", "name"):
            if pid in self.pids:
                names[pid] = str(name)
        return [
            {"name": "process_name", "ph": "M", "pid": pid, "tid": 0, "args": {"name": name}}
            for pid, name in names.items()
        ]


def _packed(rows: _Rows) -> Int64:
    """Pack process, context and device of each row (n,) into one number."""
    return rows["process"] << 48 | (rows["contextId"] & _MOST) << 16 | rows["deviceId"] & 0xFFFF


def _names(kinds: Int64, name_of: Callable[[int], str]) -> _Names:
    """Name numbers (n,) of kinds."""
    distinct, which = np.unique(kinds, return_inverse=True)
    return [name_of(kind) for kind in distinct.tolist()], which.reshape(-1)


def _copy(code: int) -> str:
    """Name a copy as PyTorch's profiler does, by its direction and two kinds of memory.

    >>> _copy(2 << 16 | 2 << 8 | 0)
    'Memcpy DtoH (Device -> Pageable)'
    """
    direction = _COPIES[code >> 16] if 0 < code >> 16 < len(_COPIES) else ""
    return f"Memcpy {direction} ({_memory(code >> 8 & 0xFF)} -> {_memory(code & 0xFF)})".replace("  ", " ")


def _fill(kind: int) -> str:
    return f"Memset ({_memory(kind)})"


def _memory(kind: int) -> str:
    return _MEMORY[kind] if 0 <= kind < len(_MEMORY) else "Unknown"


def _call_cat(name: str) -> str:
    return "cuda_driver" if re.match("cu[A-Z]", name) else "cuda_runtime"


def _range_cat(name: str) -> str:
    return "cpu_op" if _OPERATOR.fullmatch(name) else "user_annotation"


def _as_points(marks: Trace) -> Trace:
    """Make instants of slices."""
    phase, ids = np.full(len(marks), "i", np.object_), np.full(len(marks), None, np.object_)
    points = Points(phase, marks.name_id, marks.cat_id, marks.track_id, marks.ts_ns, ids)
    return replace(marks.select(np.empty(0, np.int64)), points=points)


def _other_database(tables: Collection[str]) -> str:
    """Name the database with these tables, and the remedy; "" for an export of Nsight Systems."""

    def has_any(*beginnings: str) -> bool:
        return any(table.startswith(beginnings) for table in tables)

    if has_any("rocpd_kernel_dispatch", "rocpd_info_"):
        return "a database of rocprofv3; record with rocprofv3 --output-format pftrace"
    if has_any("rocpd_"):
        return "a database of rocmProfileData; write a trace of it: rpd2tracing.py FILE.rpd trace.json"
    if has_any(*_OF_NSIGHT):
        return ""
    if has_any(*_OF_NVPROF):
        return "a profile of nvprof (.nvvp); record with nsys profile, then nsys export --type sqlite"
    if {"experiments", "runs", "metrics"} <= {*tables}:
        return TABLE
    return "a database without a table of Nsight Systems" if tables else "an empty database"


def _newest_versions(tables: Sequence[str]) -> Mapping[str, str]:
    """Map the names of tables without a version to the newest version of each.

    >>> _newest_versions(["NVTX_EVENTS_V2", "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_KERNELV3"])
    {'CUPTI_ACTIVITY_KIND_KERNEL': 'CUPTI_ACTIVITY_KIND_KERNELV3', 'NVTX_EVENTS': 'NVTX_EVENTS_V2'}
    """
    versions: dict[str, tuple[int, str]] = {}
    for table in sorted(tables):
        match = _VERSIONED.fullmatch(table)
        name, version = (match[1], int(match[2])) if match else (table, 1)
        versions[name] = max(versions.get(name, (0, "")), (version, table))
    return {name: table for name, (_, table) in versions.items()}
