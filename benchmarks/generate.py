"""Traces of any size that look like what BytePS and PyTorch's profiler write; the same for the same seed."""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import pickle
import pickletools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_GROUP = 8  # ranks of a tensor group in a dump; the other group is all ranks
_START_NS = 1_700_000_000_000_000_000
STAGES = ("REDUCE", "COPYD2H", "PUSH", "PULL", "COPYH2D", "BROADCAST")


def byteps_events(seed: int = 0) -> Iterator[str]:
    """Yield `comm.json`-like events, pretty-printed as BytePS prints them, without end."""
    rng = random.Random(seed)
    ts = 1_795_219_501_232_034
    while True:
        for tensor in range(160):
            name = f"Comm.byteps.gradient_{tensor}"
            begin, ts = ts, ts + rng.randrange(50, 400)
            for part in range(1 + tensor % 4):
                at = begin
                for stage in STAGES:
                    dur = rng.randrange(1, 30_000)
                    yield _byteps_event(name, f"{name}.{stage}", at, dur, str((tensor << 16) + part))
                    at += dur
            yield _byteps_event(name, name, begin, 90_000, "total")


def _byteps_event(pid: str, name: str, ts: int, dur: int, tid: str) -> str:
    event = {
        "ph": "X",
        "args": {"name": pid},
        "pid": pid,
        "name": name,
        "ts": ts,
        "dur": dur,
        "tid": tid,
        "cat": "Comm",
    }
    return json.dumps(event, indent=4)


def kineto_events(seed: int = 0, ts: float = 4_362_813_353_724.537) -> Iterator[str]:
    """Yield events like those of a GPU training's profile, laid out as Kineto lays them out, without end."""
    rng = random.Random(seed)
    names = [f"aten::op_{i}" for i in range(120)]
    kernels = [
        f"void at::native::vectorized_elementwise_kernel<{i}, Functor<float>>(int, float*)" for i in range(90)
    ]
    correlation = 0
    while True:
        correlation += 1
        op, kernel = rng.choice(names), rng.choice(kernels)
        ts += rng.random() * 40
        yield _kineto_event("cpu_op", op, 26297, 26297, ts, rng.random() * 30,
            f'"External id": {correlation},"Sequence number": {correlation % 997}, "Fwd thread id": 0, "Record function id": 0, "Concrete Inputs": ["", "", "[]"], "Input type": ["float", "float", "ScalarList"], "Input Dims": [[64, 3, 224, 224], [64, 3, 7, 7], []]')  # fmt: skip  # noqa: E501
        yield _kineto_event("cuda_runtime", "cudaLaunchKernel", 26297, 26297, ts + 4, rng.random() * 5,
            f'"External id": {correlation}, "cbid": 211, "correlation": {correlation}')  # fmt: skip
        yield _kineto_event("kernel", kernel, 0, 7, ts + 20, rng.random() * 50,
            f'"External id": {correlation}, "queued": 0, "device": 0, "context": 1, "stream": 7, "correlation": {correlation}, "registers per thread": 32, "shared memory": 0, "blocks per SM": 12.5, "warps per SM": 50, "grid": [1350, 1, 1], "block": [128, 1, 1], "est. achieved occupancy %": 75')  # fmt: skip  # noqa: E501
        flow = f'"cat": "ac2g", "name": "ac2g", "ts": {ts + 4:.3f}, "id": {correlation}'
        yield f'  {{\n    "ph": "s", "pid": 26297, "tid": 26297, {flow}\n  }}'
        yield f'  {{\n    "ph": "f", "pid": 0, "tid": 7, {flow}, "bp": "e"\n  }}'


def _kineto_event(cat: str, name: str, pid: int, tid: int, ts: float, dur: float, args: str) -> str:
    return (
        f'  {{\n    "ph": "X", "cat": "{cat}", "name": "{name}", "pid": {pid}, "tid": {tid},\n'
        f'    "ts": {ts:.3f}, "dur": {dur:.3f},\n    "args": {{\n      {args}\n    }}\n  }}'
    )


def absolute_events(seed: int = 0) -> Iterator[str]:
    """Yield events as `kineto_events` does, with times since the epoch, as Kineto wrote them before 2024."""
    return kineto_events(seed, 1_709_254_321_000_123.457)


def composer_events(seed: int = 0) -> Iterator[str]:
    """Yield events of rank `seed` as MosaicML Composer writes them, without end."""
    rng = random.Random(seed)
    ts = 1_795_218_112_256_543
    sync = {"name": "clock_sync_timestamp_us", "ph": "M", "pid": seed, "tid": 1, "args": {"value": ts}}
    yield json.dumps(sync)
    for batch in itertools.count():
        for name in ("dataloader", "forward", "loss", "backward", "optimizer", "batch_end"):
            for callback in (f"event/{name}", *(f"callback/C{i}/event/{name}" for i in range(8))):
                for phase in "BE":
                    ts += rng.randrange(1, 400)
                    event = {"name": callback, "cat": name, "ph": phase, "ts": ts, "pid": seed, "tid": 14181}
                    yield json.dumps(event | {"args": {"epoch": 0, "batch": batch}})


HEADS = {
    "byteps": '{"traceEvents": [\n',
    "kineto": '{\n  "schemaVersion": 1,\n  "baseTimeNanoseconds": 1790857026000000000,\n'
    '  "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1},\n  "traceEvents": [\n',
}
TAILS = {
    "byteps": '\n], "displayTimeUnit": "ms"}\n',
    "kineto": '\n  ],\n  "traceName": "generated.json"\n}\n',
}
HEADS |= {"absolute": HEADS["kineto"].replace("1790857026000000000", "0"), "composer": "[\n"}
TAILS |= {"absolute": TAILS["kineto"], "composer": "\n]\n"}
EVENTS = {"byteps": byteps_events, "kineto": kineto_events}
MORE_EVENTS = {"absolute": absolute_events, "composer": composer_events}


def write(path: Path, dialect: str, n_bytes: int, seed: int = 0) -> Path:
    """Write a trace of about `n_bytes` (unpacked) to `path` unless it is there; packed if it ends in .gz."""
    if path.exists():
        return path
    packed = path.suffix == ".gz"
    with gzip.open(path, "wt", compresslevel=4) if packed else path.open("w", encoding="utf-8") as file:
        size = file.write(HEADS[dialect])
        for i, event in enumerate((EVENTS | MORE_EVENTS)[dialect](seed)):
            size += file.write((",\n" if i else "") + event)
            if size >= n_bytes:
                break
        file.write(TAILS[dialect])
    return path


def write_dump(folder: Path, rank: int, n_ranks: int, n_entries: int) -> None:
    """Write a rank's dump of PyTorch's flight recorder; equal texts are pickled once, as PyTorch does."""
    first = rank // _GROUP * _GROUP
    groups = {"0": ("default_pg", range(n_ranks)), "1": ("TENSOR_GROUP", range(first, first + _GROUP))}
    called = n_entries - 40 if rank == n_ranks - 2 else n_entries
    is_done = n_entries - 40
    names = [*groups]  # one text each: what is equal but not the same is written again
    frames = [{"name": f"call_{i}", "filename": "/job/train.py", "line": i} for i in range(8)]
    entries = [
        {
            "frames": frames[i % 4 : i % 4 + 4], "record_id": i, "pg_id": i % 2,
            "process_group": (names[i % 2], groups[names[i % 2]][0]), "thread_name": "python3",
            "thread_id": "23456244340032", "collective_seq_id": i // 2 + 1, "p2p_seq_id": 0,
            "op_id": i // 2 + 1, "profiling_name": "nccl:all_reduce",
            "time_created_ns": _START_NS + i * 1_000_003 + rank,
            "input_sizes": [[4096, 1, 5120]], "input_dtypes": ["BFloat16"], "output_sizes": [[4096, 1, 5120]],
            "output_dtypes": ["BFloat16"], "state": "completed" if i < is_done else "scheduled",
            "time_discovered_started_ns": None, "retired": i < is_done, "timeout_ms": 600_000,
            "is_p2p": False,
            "time_discovered_completed_ns": _START_NS + i * 1_000_003 + 900_000 if i < is_done else None,
        }
        for i in range(called)
    ]  # fmt: skip
    counters = {"last_enqueued_collective": (called + 1) // 2, "last_started_collective": -1,
                "last_completed_collective": is_done // 2}  # fmt: skip
    document: dict[str, Any] = {
        "version": "2.9",
        "pg_config": {
            key: {"name": key, "desc": desc, "ranks": str(list(ranks))}
            for key, (desc, ranks) in groups.items()
        },
        "nccl_version": "2.27.3",
        "pg_status": dict.fromkeys(groups, counters),
        "entries": entries,
    }  # fmt: skip
    (folder / f"_dump_{rank}").write_bytes(pickletools.optimize(pickle.dumps(document, protocol=2)))


def main() -> None:
    """Write one trace."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--dialect", choices=EVENTS | MORE_EVENTS, default="byteps")
    parser.add_argument("--mb", type=float, default=10)
    args = parser.parse_args()
    write(args.path, args.dialect, int(args.mb * 1e6))


if __name__ == "__main__":
    main()
