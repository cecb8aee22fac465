"""Transfers of a job according to the captures and server logs beside it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field

from analyzer.base.errors import AnalyzeError, TraceError
from analyzer.base.units import in_ms, in_percent
from analyzer.reading.traces.gpu_folders import find_gpus

if TYPE_CHECKING:
    from collector.network.server_timeline import ServerKey, ServerOperation

_SERVER = re.compile(r"server_(\d{1,3})")


class NetworkEvidence(Struct):
    """Transfers of a BytePS job according to captures and server logs."""

    bytes_of: dict[int, int] = field(default_factory=dict)  # by partition key
    servers: dict[int, int] = field(default_factory=dict)  # by partition key
    wire_ns: int = 0  # times of all captured transfers, see `ServerKey`
    server_ns: int = 0
    waiting_ns: int = 0
    operations: list[ServerOperation] = field(default_factory=list)
    repairs: list[str] = field(default_factory=list)  # a line for each unusable capture and log

    @property
    def words(self) -> str:
        """Shares of the transfers' time, as clauses that follow another one; "" if unknown."""
        clauses = waited = ""
        if total := self.wire_ns + self.server_ns + self.waiting_ns:
            if self.waiting_ns:
                waited = f", {in_percent(self.waiting_ns / total)} waiting for other workers"
            clauses = (
                f"; of the captured transfers' time {in_percent(self.server_ns / total)} is the servers'"
                f"{waited} and {in_percent(self.wire_ns / total)} the wire's"
            )
        pulls = [operation for operation in self.operations if operation.operation == "PULL"]
        if pulls:
            most = max(pulls, key=lambda operation: operation.total_ns)
            clauses += f"; {most.node} logged {in_ms(most.total_ns / most.count)} for each of its pulls"
        return clauses

    def add(self, keys: Iterable[ServerKey]) -> None:
        """Add the bytes and servers of partitions."""
        for key in keys:
            if key.n_push:
                self.bytes_of.setdefault(key.key, key.push_bytes // key.n_push)
            if named := _SERVER.fullmatch(key.node):
                self.servers.setdefault(key.key, int(named[1]))


def read_evidence(
    paths: Sequence[Path], *, jobs: int | None = None, progress: bool | None = None
) -> NetworkEvidence:
    """Read the evidence beside the BytePS jobs among `paths`."""
    evidence = NetworkEvidence()
    of_byteps = [
        path for path in paths if path.is_dir() and any(gpu.file("comm.json") for gpu in find_gpus(path))
    ]
    if not of_byteps:
        return evidence
    from collector.network.collect_captures import read_captures
    from collector.network.packets import is_capture
    from collector.network.partition_keys import files_below
    from collector.network.server_timeline import read_served

    for path in of_byteps:
        try:
            if any(is_capture(file) for file in files_below(path)):
                captured = read_captures(path, jobs=jobs, progress=progress)
                evidence.add(captured.keys)
                evidence.wire_ns += sum(key.wire_ns for key in captured.keys)
                evidence.server_ns += sum(key.server_ns for key in captured.keys)
                evidence.waiting_ns += sum(key.waiting_ns or 0 for key in captured.keys)
        except AnalyzeError as error:
            evidence.repairs.append(str(error))
        try:
            served = read_served(path, progress=progress)
        except TraceError:
            continue  # most jobs have no server logs
        evidence.add(served.keys)
        evidence.operations += served.operations
    return evidence
