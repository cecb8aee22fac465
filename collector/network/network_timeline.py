"""The transfers of a job as a timeline."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from collector.network.endpoints import Link
from collector.network.partition_keys import Keys
from collector.network.wire import Wire
from formats.chrome_writer import Process, Slice
from formats.columns import Int64
from opname import OpName, split_key


def processes(wire: Wire, nodes: Sequence[str], links: Sequence[Link], keys: Keys) -> Iterator[Process]:
    """Return the timeline: one process for each pair of ends."""
    pairs = np.unique(np.stack([wire.worker, wire.server]), axis=1).T.tolist()
    for worker, server in pairs:
        rows = np.flatnonzero((wire.worker == worker) & (wire.server == server))
        name = f"{nodes[worker]} -> {nodes[server]}"
        yield Process(name, {"transfers": _slices(wire, rows, links, keys)})


def _slices(wire: Wire, rows: Int64, links: Sequence[Link], keys: Keys) -> Iterable[Slice]:
    for i in rows.tolist():
        stage = "PUSH" if wire.push[i] else "PULL"
        key, link = int(wire.key[i]), links[wire.connection[i]]
        times = (wire.request_start_ns, wire.request_end_ns, wire.response_start_ns, wire.response_end_ns)
        start, sent, answered, end = (int(column[i]) for column in times)
        answered = min(max(answered, sent), end)
        wait = int(wire.waiting_ns[i])
        c = link.connection
        args = {
            "key": key,
            "partition": split_key(key)[1],
            "bytes": int(wire.value_bytes[i]),
            "wire_bytes": int(wire.wire_bytes[i]),
            "worker": f"{link.worker} {c.worker_host}:{c.worker_port}",
            "server": f"{link.server} {c.server_host}:{c.server_port}",
            "timestamp": int(wire.timestamp[i]),
        }
        if wire.initial[i]:
            args["initial"] = True
        inner = [Slice(f"{stage} request", start, sent)]
        if wait > 0:
            inner.append(Slice("waiting for other workers", sent, min(sent + wait, answered)))
        inner.append(Slice(f"{stage} response", answered, end))
        operation = OpName("Comm", keys.tensor(key) if key >= 0 else "key ?", queue=stage, key=max(key, 0))
        yield Slice(str(operation), start, max(end, sent), args, inner)
