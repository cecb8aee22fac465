"""Databases as Nsight Systems (times in microseconds) and rocprofv3 write them, made row by row."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from pathlib import Path
from typing import Any

_ACTIVITY = "CUPTI_ACTIVITY_KIND_"
_ON_DEVICE = ("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid")
TABLES = {
    "StringIds": ("id", "value"),
    f"{_ACTIVITY}KERNEL": (*_ON_DEVICE, "demangledName", "shortName"),
    f"{_ACTIVITY}MEMCPY": (*_ON_DEVICE, "bytes", "copyKind", "srcKind", "dstKind"),
    f"{_ACTIVITY}MEMSET": (*_ON_DEVICE, "bytes", "memKind"),
    f"{_ACTIVITY}RUNTIME": ("start", "end", "globalTid", "correlationId", "nameId"),
    f"{_ACTIVITY}SYNCHRONIZATION": (*_ON_DEVICE, "syncType"),
    f"{_ACTIVITY}GRAPH_TRACE": (*_ON_DEVICE, "graphId"),
    "NVTX_EVENTS": ("start", "end", "eventType", "text", "textId", "globalTid"),
    "PROCESSES": ("globalPid", "pid", "name"),
    "TARGET_INFO_SESSION_START_TIME": ("utcEpochNs", "systemClockNs"),
    "TARGET_INFO_SYSTEM_ENV": ("name", "value"),
}


class Export:
    """A database with the tables above, but for some, and for some columns."""

    def __init__(self, path: Path, lacks: Collection[str] = ()) -> None:
        self.path = path
        self.db = sqlite3.connect(path)
        self.lacks = lacks
        self.texts: dict[str, int] = {}
        for table, columns in TABLES.items():
            if table not in lacks:
                own = ", ".join(f'"{column}"' for column in columns if column not in lacks)
                self.db.execute(f"CREATE TABLE {table} ({own})")

    def add(self, table: str, **values: Any) -> None:
        """Add a row to a table, whose name may lack its first part."""
        table = table if table in TABLES else f"{_ACTIVITY}{table}"
        kept = {column: value for column, value in values.items() if column not in self.lacks}
        columns = ", ".join(f'"{column}"' for column in kept)
        self.db.execute(
            f"INSERT INTO {table} ({columns}) VALUES ({', '.join('?' * len(kept))})", [*kept.values()]
        )

    def text(self, value: str) -> int:
        """Return the number of a text, which is added if it is new."""
        if value not in self.texts:
            self.texts[value] = 100 + len(self.texts)
            self.add("StringIds", id=self.texts[value], value=value)
        return self.texts[value]

    def call(self, name: str, begin: float, end: float, correlation: int = 0, pid: int = 10) -> None:
        """Add a call of the runtime by the process's main thread."""
        tid = pid << 24 | pid
        self.add("RUNTIME", start=ns(begin), end=ns(end), globalTid=tid, correlationId=correlation,
                 nameId=self.text(name))  # fmt: skip

    def work(self, table: str, begin: float, end: float, correlation: int, pid: int = 10, device: int = 0,
             stream: int = 7, **more: Any) -> None:  # fmt: skip
        """Add work of a device."""
        where = {"deviceId": device, "contextId": 1 + device, "streamId": stream, "globalPid": pid << 24}
        self.add(table, start=ns(begin), end=ns(end), correlationId=correlation, **{**where, **more})

    def kernel(self, name: str, begin: float, end: float, correlation: int, **where: int) -> None:
        """Add a kernel."""
        self.work("KERNEL", begin, end, correlation, demangledName=self.text(name), shortName=0, **where)

    def range(self, name: str, begin: float, end: float | None, pid: int = 10, kind: int = 59) -> None:
        """Add a range of NVTX, or with another `kind` another event."""
        self.add("NVTX_EVENTS", start=ns(begin), end=None if end is None else ns(end), eventType=kind,
                 text=name, globalTid=pid << 24 | pid)  # fmt: skip

    def close(self) -> Path:
        """Write the file."""
        self.db.commit()
        self.db.close()
        return self.path


def ns(microseconds: float) -> int:
    """Return a time of the file: it counts from the machine's start, 20 s before."""
    return 20_000_000_000 + round(microseconds * 1000)


def two_ranks(path: Path, steps: int = 5, mark: str = "train_step {}", lacks: Collection[str] = ()) -> Path:
    """Write a job of two processes with a device each, whose steps take 1,000 µs.

    In each a kernel of 400 µs, on the second rank 500, comes before an all-reduce that ends 620 µs after the
    step's begin; then a host waits until 625 µs, and does nothing until the step ends.
    """
    made = Export(path, lacks)
    made.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=1_700_000_000_000_000_000, systemClockNs=ns(-1000))
    made.add("TARGET_INFO_SYSTEM_ENV", name="Hostname", value="node7")
    for rank in (0, 1):
        pid = 10 + rank
        made.add("PROCESSES", globalPid=pid << 24, pid=pid, name="python3")
        for i in range(steps):
            at, first = 1000 * i, 4 * i + 1
            made.range(mark.format(i + 3), at, at + 1000, pid)
            made.range("aten::mm, seq = 5, op_id = 77", at + 5, at + 22, pid)
            made.call("cudaLaunchKernel_v7000", at + 10, at + 20, first, pid)
            middle = at + 420 + 100 * rank
            made.kernel("sm90_gemm_f16", at + 20, middle, first, pid=pid, device=rank)
            made.call("cudaLaunchKernel_v7000", at + 24, at + 30, first + 1, pid)
            made.kernel("ncclDevKernel_AllReduce_Sum_f32", middle, at + 620, first + 1, pid=pid, device=rank)
            made.call("cudaStreamSynchronize_v3020", at + 30, at + 625, first + 2, pid)
            made.work("SYNCHRONIZATION", at + 31, at + 624, first + 2, pid, syncType=3, contextId=1 + rank)
    return made.close()
