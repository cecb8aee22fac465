"""What wrote a trace, told by its content, and what each dialect's times and rows mean."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from formats.columns import Trace, Track
from formats.rows import Columns
from formats.values import FARTHEST_NS
from opname import OpName

_KINETO_HEADER = {"schemaVersion", "deviceProperties", "distributedInfo", "baseTimeNanoseconds"}
_KINETO_CATS = {
    *("cpu_op", "user_annotation", "gpu_user_annotation", "kernel", "gpu_memcpy", "gpu_memset"),
    *("cuda_runtime", "cuda_driver", "cuda_sync", "python_function", "ac2g", "fwdbwd"),
    *("Operator", "Runtime", "Kernel", "Memcpy", "Memset"),  # before PyTorch 1.11
}
_MXNET_PROCESS = re.compile(r"(?:cpu|gpu)/\d+|(?:cpu|gpu) (?:pinned|shared)/")
_HOROVOD_PHASE = re.compile(r"NEGOTIATE_(?:ALLREDUCE|ALLGATHER|BROADCAST|ALLTOALL|REDUCESCATTER)")

Metadata = Sequence[Mapping[str, Any]]


def finish(
    path: str, table: Columns, header: Mapping[str, Any], metadata: Metadata, repairs: Sequence[str]
) -> Trace:
    """Return the trace of one file: dialect, rank, and times on the epoch where the dialect knows it."""
    dialect = recognise(table, header, metadata)
    rank, world_size = _rank(dialect, header, metadata)
    trace = Trace(
        path=path,
        dialect=dialect,
        names=table.names,
        cats=table.cats,
        tracks=table.tracks,
        name_id=table.name_id,
        cat_id=table.cat_id,
        track_id=table.track_id,
        ts_ns=table.ts_ns + _epoch_ns(dialect, header, metadata),
        dur_ns=table.dur_ns,
        args=table.args,
        points=table.points.shifted(_epoch_ns(dialect, header, metadata)),
        metadata=metadata,
        header=header,
        phases=table.phases,
        rank=rank,
        world_size=world_size,
        repairs=(*repairs, *table.repairs),
    )
    return _without_frame(trace) if dialect in ("kineto", "composer") else trace


def recognise(table: Columns, header: Mapping[str, Any], metadata: Metadata) -> str:
    """Return the dialect of a chrome-trace file; ``chrome`` for one that nothing special is known of."""
    if is_composer(metadata):
        return "composer"
    processes = [e["args"] for e in metadata if e["name"] == "process_name"]
    if any("start_time_since_epoch_in_micros" in args for args in processes):
        return "horovod"
    if any(_HOROVOD_PHASE.fullmatch(name) for name in table.names):
        return "horovod"
    if is_mxnet(metadata):
        return "mxnet"
    if _KINETO_HEADER & header.keys() or _KINETO_CATS & set(table.cats):
        return "kineto"
    return "byteps" if _is_byteps(table) else "chrome"


def is_composer(metadata: Metadata) -> bool:
    """Whether Composer's profiler, or its merger, wrote the file."""
    return any(event["name"] == "clock_sync_timestamp_us" for event in metadata)


def is_mxnet(metadata: Metadata) -> bool:
    """Whether MXNet's profiler wrote the file: its processes are called after devices."""
    processes = [event["args"] for event in metadata if event["name"] == "process_name"]
    return any(_MXNET_PROCESS.fullmatch(str(args.get("name"))) for args in processes)


def _is_byteps(table: Columns) -> bool:
    """Whether most slices carry a name of the BytePS grammar."""
    known = np.array([OpName.parse(name).cat is not None for name in table.names], np.bool_)
    return len(table.name_id) > 0 and 2 * int(known[table.name_id].sum()) > len(table.name_id)


def _epoch_ns(dialect: str, header: Mapping[str, Any], metadata: Metadata) -> int:
    """Return what turns the file's times into nanoseconds since the epoch."""
    base = 0
    if dialect == "kineto":
        base = _whole(header.get("baseTimeNanoseconds"))
    if dialect == "horovod":
        starts = (event["args"].get("start_time_since_epoch_in_micros") for event in metadata)
        base = 1000 * next((_whole(start) for start in starts if start is not None), 0)
    return base if 0 <= base <= FARTHEST_NS else 0


def _rank(dialect: str, header: Mapping[str, Any], metadata: Metadata) -> tuple[int | None, int | None]:
    """Return (rank, world size) as the file itself says."""
    if dialect == "kineto":
        info = header.get("distributedInfo")
        info = info if isinstance(info, Mapping) else {}
        return _int(info.get("rank", header.get("global_rank"))), _int(info.get("world_size"))
    if dialect == "composer":
        ranks = {e["args"].get("value") for e in metadata if e["name"] == "global_rank"}
        return (_int(ranks.pop()) if len(ranks) == 1 else None), None
    return None, None


def _whole(value: Any) -> int:
    """Return a whole number, written as such or as text; 0 for anything else."""
    return int(value) if re.fullmatch(r"-?\d{1,30}", str(value)) else 0


def _int(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _without_frame(trace: Trace) -> Trace:
    """Leave out the spans that stand for the recording itself, such as ``PyTorch Profiler (0)``."""
    named = {(e["pid"], e["tid"]) for e in trace.metadata if e["args"].get("name") == "PyTorch Profiler"}
    frames = [i for i, track in enumerate(trace.tracks) if _is_frame(track) or track in named]
    inside = ~np.isin(trace.track_id, frames)
    return trace if inside.all() else trace.select(inside)


def _is_frame(track: Track) -> bool:
    return track.pid in ("Spans", "Traces") or "PyTorch Profiler" in str(track.tid)
