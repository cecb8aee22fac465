"""What captures and server logs tell, as tables, charts and a document: a part of `--option collect`."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from errors import TraceError
from result import Bars, Cell, Chart, Column, Table

if TYPE_CHECKING:
    from collector.network.collect_captures import KeyShare, NetworkResult
    from collector.network.server_timeline import ServerOperation, ServerResult

_KEYS = (
    Column("key", "key", "int"),
    Column("tensor", "tensor"),
    Column("partition", "part", "int"),
    Column("server", "server"),
    Column("pushes", "PUSH", "int"),
    Column("pulls", "PULL", "int"),
    Column("push_bytes", "PUSH bytes", "int"),
    Column("pull_bytes", "PULL bytes", "int", minor=True),
    Column("push_ms", "PUSH (ms)", "float"),
    Column("pull_ms", "PULL (ms)", "float"),
    Column("wire_share", "wire", "percent", digits=1),
    Column("server_share", "server", "percent", digits=1),
    Column("waiting_share", "waiting", "percent", digits=1),
    Column("host_ms", "host (ms)", "float", minor=True),
)
_CAPTURES = (
    Column("capture", "capture"),
    Column("packets", "packets", "int"),
    Column("bytes", "bytes", "int"),
    Column("connections", "connections", "int", minor=True),
    Column("transfers", "transfers", "int"),
    Column("unanswered", "unanswered", "int"),
    Column("retransmitted_bytes", "sent again (bytes)", "int", minor=True),
    Column("lost_bytes", "not captured (bytes)", "int", minor=True),
)
_TENSORS = (
    Column("tensor", "tensor"),
    Column("logged_bytes", "logged (bytes)", "int"),
    Column("sent_bytes", "sent (bytes)", "int"),
    Column("agrees", "agrees", "bool"),
)
_CHECKS = (
    Column("trace", "trace"),
    Column("worker", "worker"),
    Column("events", "PUSH and PULL events", "int"),
    Column("exact", "with one transfer", "int"),
    Column("none", "with none", "int"),
    Column("several", "with several", "int"),
    Column("before_ms", "before request (ms)", "float"),
    Column("after_ms", "after response (ms)", "float"),
)
_OPERATIONS = (
    Column("node", "node"),
    Column("operation", "operation"),
    Column("count", "count", "int"),
    Column("total_ms", "total (ms)", "float"),
    Column("avg_ms", "avg (ms)", "float"),
    Column("min_ms", "min (ms)", "float"),
    Column("max_ms", "max (ms)", "float"),
)
_REQUESTS = (
    Column("node", "node"),
    Column("key", "key", "int"),
    Column("tensor", "tensor"),
    Column("partition", "part", "int"),
    Column("pushes", "PUSH", "int"),
    Column("pulls", "PULL", "int"),
    Column("push_bytes", "PUSH bytes", "int"),
)
_LOGS = (
    Column("log", "log"),
    Column("node", "node"),
    Column("kinds", "kinds"),
    Column("lines", "lines", "int"),
    Column("other_lines", "others", "int"),
    Column("unpaired", "unpaired", "int"),
)


@dataclass(frozen=True, slots=True)
class Shown:
    """What one source of a job's network tells; `document` is its member of the JSON answer."""

    name: str
    document: Mapping[str, Any]
    tables: Sequence[Table]
    charts: Sequence[Chart]
    figures: Sequence[tuple[str, str]]
    read: Sequence[str]
    notes: Sequence[str]
    repairs: Sequence[str]


def pcap(root: Path, *, jobs: int | None, progress: bool | None, output: Path | None = None) -> Shown:
    """Collect the captures under `root`; see `collector.network.collect_captures.collect_pcap`."""
    from collector.network.collect_captures import collect_pcap

    return _shown_network(collect_pcap(root, jobs=jobs, progress=progress, output=output))


def server(root: Path, *, progress: bool | None, output: Path | None = None) -> Shown:
    """Collect the server logs under `root`; see `collector.network.server_timeline.collect_server`."""
    from collector.network.server_timeline import collect_server

    return _shown_server(collect_server(root, progress=progress, output=output))


def all_there_is(root: Path, *, jobs: int | None, progress: bool | None) -> tuple[list[Shown], list[str]]:
    """Collect captures and server logs where `root` has any; return them and why one could not be used."""
    from collector.network.partition_keys import files_below
    from collector.network.pcap import is_capture

    found, failed = [], []
    if root.is_dir() and any(is_capture(path) for path in files_below(root)):
        try:
            found.append(pcap(root, jobs=jobs, progress=progress))
        except TraceError as error:
            failed.append(str(error))
    with contextlib.suppress(TraceError):  # there are no logs: most jobs have none
        found.append(server(root, progress=progress))
    return found, failed


# ---- captures


def _shown_network(found: NetworkResult) -> Shown:
    tables = (
        Table("network_keys", "Transfers by key", _KEYS, [_key_row(key) for key in found.keys], _WHERE),
        Table("network_tensors", "Bytes by tensor", _TENSORS, _tensor_rows(found)),
        Table("network_traces", "Captures and traces", _CHECKS, _check_rows(found)),
        Table("network_captures", "Captures", _CAPTURES, _capture_rows(found), detail=True),
    )
    return Shown(
        name="network",
        document=_document(found.output, found.n_events, tables),
        tables=[table for table in tables if table.rows],
        charts=[_shares(found.keys)],
        figures=[
            ("transfers", f"{len(found.wire):,}"),
            ("bytes", f"{int(found.wire.value_bytes.sum()):,}"),
            ("capture length", f"{found.span_ns / 1e9:.3f} s"),
        ],
        read=[f"{c.path}: {c.n_packets:,} packets, {c.n_transfers:,} transfers" for c in found.captures],
        notes=[f"written: {found.output}", *_unknown_waiting(found)],
        repairs=found.repairs,
    )


_WHERE = (
    "wire: request and response on their way; server: in the server's hands; waiting: for the PUSH of "
    "other workers; host: of the trace's events, what lies outside the transfers"
)


def _key_row(key: KeyShare) -> tuple[Cell, ...]:
    total = key.push_ns + key.pull_ns
    return (
        key.key,
        key.tensor,
        key.partition,
        key.server,
        key.n_push,
        key.n_pull,
        key.push_bytes,
        key.pull_bytes,
        key.push_ns / 1e6,
        key.pull_ns / 1e6,
        key.wire_ns / total if total else None,
        key.server_ns / total if total else None,
        key.waiting_ns / total if total and key.waiting_ns is not None else None,
        (key.event_ns - key.event_span_ns) / 1e6 if key.event_ns else None,
    )


def _tensor_rows(found: NetworkResult) -> list[tuple[Cell, ...]]:
    return [(t.name, t.logged_bytes, t.sent_bytes, t.agrees) for t in found.tensors]


def _check_rows(found: NetworkResult) -> list[tuple[Cell, ...]]:
    return [
        (
            str(c.path),
            c.worker,
            c.n_events,
            c.n_exact,
            c.n_none,
            c.n_several,
            c.before_ns / 1e6,
            c.after_ns / 1e6,
        )
        for c in found.checks
    ]


def _capture_rows(found: NetworkResult) -> list[tuple[Cell, ...]]:
    return [
        (
            str(c.path),
            c.n_packets,
            c.n_bytes,
            c.n_connections,
            c.n_transfers,
            c.n_unanswered,
            c.retransmitted_bytes,
            c.lost_bytes,
        )
        for c in found.captures
    ]


def _unknown_waiting(found: NetworkResult) -> list[str]:
    if all(key.waiting_ns is not None for key in found.keys):
        return []
    return ["The captures do not show every worker: the server's time contains the waiting for the others."]


def _shares(keys: Sequence[KeyShare]) -> Bars:
    """Return where the time of each tensor's transfers went, the partitions together."""
    totals: dict[str, list[int]] = {}
    for key in keys:
        sums = totals.setdefault(key.tensor, [0, 0, 0])
        for i, ns in enumerate((key.wire_ns, key.server_ns, key.waiting_ns or 0)):
            sums[i] += ns
    names = ("wire", "server", "waiting for other workers")
    series = {name: [sums[i] / 1e6 for sums in totals.values()] for i, name in enumerate(names)}
    return Bars(
        "Where transfers spend their time", "tensor", "total (ms)", list(totals), series, stacked=True
    )


# ---- servers


def _shown_server(found: ServerResult) -> Shown:
    operations = [_operation_row(operation) for operation in found.operations]
    requests = [(k.node, k.key, k.tensor, k.partition, k.n_push, k.n_pull, k.push_bytes) for k in found.keys]
    logs = [
        (str(log.path), log.node, ", ".join(log.kinds), log.n_lines, log.n_other, log.n_unpaired)
        for log in found.logs
    ]
    tables = (
        Table("server_operations", "Operations of the servers", _OPERATIONS, operations),
        Table("server_keys", "Requests by key", _REQUESTS, requests),
        Table("server_logs", "Logs", _LOGS, logs, detail=True),
    )
    return Shown(
        name="server",
        document=_document(found.output, found.n_events, tables),
        tables=[table for table in tables if table.rows],
        charts=[],
        figures=[("server events", f"{found.n_events:,}")],
        read=[f"{log.path}: {log.n_lines:,} lines of {', '.join(log.kinds)}" for log in found.logs],
        notes=[f"written: {found.output}"],
        repairs=found.repairs,
    )


def _operation_row(operation: ServerOperation) -> tuple[Cell, ...]:
    return (
        operation.node,
        operation.operation,
        operation.count,
        operation.total_ns / 1e6,
        operation.total_ns / operation.count / 1e6,
        operation.min_ns / 1e6,
        operation.max_ns / 1e6,
    )


def _document(output: Path, n_events: int, tables: Sequence[Table]) -> dict[str, Any]:
    """Return output, number of events and every table, without the prefix of its name."""
    records = {table.name.partition("_")[2]: table.records() for table in tables}
    return {"output": str(output), "events": n_events, **records}
