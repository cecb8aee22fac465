"""Jobs whose transfers are known: BytePS's partitions with their log, Horovod's cycles, NCCL's kernels."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from made_jobs import LAYERS, Event, Events, quarters

from make import write, write_gpu

_EPOCH_US = 1_700_000_000_000_000


class Part(NamedTuple):
    """One partition: tensor, key, bytes, what it takes to push (by worker) and to pull (ms), its server."""

    tensor: str
    key: int
    n_bytes: int
    push: Sequence[float]
    pull: float
    server: int = 0


@dataclass(frozen=True, slots=True)
class Partitions:
    """Two workers that compute for 90 ms, push one tensor in 512 KiB partitions and pull it; times in ms.

    A worker's pushes follow each other on its link; a key is answered once both have pushed it, to one
    worker after the other, on the server's link. A second tensor has `small` partitions of `small_kib`.
    """

    push: Sequence[float] = (0.2, 0.2)  # by worker
    pull: float = 0.2
    takes: Sequence[float] = (0.0, 0.0)  # by worker: for how long its link receives what the server sent
    waits: Sequence[float] = (0.0, 0.0)  # by worker: from the end of the computation to the first push
    large: int = 10
    small: int = 0
    small_kib: int = 4
    small_ms: float = 0.6  # what a small one takes to push
    small_pull: float = 0.3
    small_first: bool = False  # they are sent before the others, though their tensor's number is higher
    servers: int = 1  # the second has the second tensor
    steps: int = 8

    def parts(self) -> list[Part]:
        """Return the partitions in the order in which they are sent."""
        large = [Part("w", (1 << 16) + i, 512 << 10, self.push, self.pull) for i in range(self.large)]
        ms = self.small_ms
        second = self.servers - 1
        small = [
            Part("v", (2 << 16) + i, self.small_kib << 10, (ms, ms), self.small_pull, second)
            for i in range(self.small)
        ]
        return small + large if self.small_first else large + small

    def write(self, directory: Path) -> tuple[Path, float]:
        """Write the job and the log of worker 0; return where, and how long a step takes."""
        workers = [Events(), Events()]
        at = 0.0
        for _ in range(self.steps):
            at = self._step(workers, at)
        for worker, events in enumerate(workers):
            write_gpu(directory / f"worker_{worker}" / "0", _GML, events)
        (directory / "worker_0.byteps_debug_log.txt").write_text(self._log())
        return directory, at / self.steps

    def step_ms(self) -> float:
        """Return how long a step takes."""
        return self._step([Events(), Events()], 0.0)

    def _step(self, workers: Sequence[Events], begin: float) -> float:
        ready = begin + 91.0
        for events in workers:
            where: Event = {"base_us": _EPOCH_US, "pid": "0", "tid": "main", "cat": "operator"}
            events.add("I/O", begin, begin + 1, **{**where, "tid": "io"})
            for layer, span in zip(LAYERS, quarters(begin + 1, begin + 41), strict=True):
                events.add(f"FW.{layer}", *span, **where)
            for layer, span in zip(reversed(LAYERS), quarters(begin + 41, ready), strict=True):
                events.add(f"BW.{layer}", *span, **where)
        end = self._communicate(workers, ready)
        for events in workers:
            events.add("STEP", end, end + 5, base_us=_EPOCH_US, pid="0", tid="main", cat="operator")
        return end + 5

    def _communicate(self, workers: Sequence[Events], ready: float) -> float:
        begun = [ready + wait for wait in self.waits]
        pushed, free_at, got = list(begun), [ready] * self.servers, list(begun)
        over: dict[str, float] = {}
        for part in self.parts():
            before = list(pushed)
            pushed = [at + push for at, push in zip(pushed, part.push, strict=True)]
            free = max(free_at[part.server], *pushed)
            whole = f"Comm.{part.tensor}"
            key: Event = {"base_us": _EPOCH_US, "pid": whole, "cat": "Comm", "tid": str(part.key)}
            for worker, events in enumerate(workers):
                free += part.pull
                events.add(f"{whole}.PUSH", before[worker], pushed[worker], **key)
                got[worker] = max(free, got[worker]) + self.takes[worker]
                events.add(f"{whole}.PULL", pushed[worker], got[worker], **key)
            free_at[part.server], over[whole] = free, max(free, *got)
        for events, at in zip(workers, begun, strict=True):
            for whole, end in over.items():
                events.add(whole, at, end, _EPOCH_US, pid=whole, cat="Comm", tid="total")
        return max(*free_at, *got)

    def _log(self) -> str:
        load = [0] * self.servers
        lines: list[str] = []
        for number, tensor in enumerate(("w", "v"), 1):
            parts = [part for part in self.parts() if part.tensor == tensor]
            if not parts:
                continue
            total = sum(part.n_bytes for part in parts)
            lines += [
                f"[1] Declared tensor {tensor}, declared key (not PS key): {number} rank=0",
                f"[1] {tensor} partitioned to {len(parts)} part(s), total_len={total}, "
                f"key_range=[{parts[0].key}, {parts[-1].key}]",
            ]
            for part in parts:
                load[part.server] += part.n_bytes
                lines.append(
                    f"[1] key {part.key} assigned to server {part.server}, "
                    f"accumulated workload for this server is {load[part.server]}"
                )
        return "\n".join(lines) + "\n"


_PASSES = [*(f"FW.{one}" for one in LAYERS), *(f"BW.{one}" for one in reversed(LAYERS))]
_CHAIN = ["I/O", *_PASSES, "Comm.w", "Comm.v", "STEP"]
_EDGES = [*((i, i + 1) for i in range(len(_CHAIN) - 1)), (len(_CHAIN) - 1, 1)]
_GML = "\n".join(
    [
        "graph [ directed 1",
        *(f'node [ id {i} label "{name}" ]' for i, name in enumerate(_CHAIN)),
        *(f"edge [ source {a} target {b} ]" for a, b in _EDGES),
        "]",
    ]
)


def _reduction(pid: int, asked: int, begin: int, end: int) -> list[Event]:
    """Return the marks of a tensor: of two ranks that are ready for it at once, and of its reduction (us)."""
    marks = [
        ("NEGOTIATE_ALLREDUCE", "B", asked), ("0", "X", asked + 1), ("1", "X", asked + 1),
        ("", "E", asked + 2), ("ALLREDUCE", "B", begin), ("", "E", end),
    ]  # fmt: skip
    return [{"name": name, "ph": ph, "dur": 0, "ts": ts, "pid": pid} for name, ph, ts in marks]


def cycles(directory: Path, wait: float, *, steps: int = 8) -> tuple[Path, float]:
    """Write a Horovod timeline: 4 tensors, reduced one after the other, each `wait` ms after it is ready."""
    directory.mkdir(parents=True)
    events: list[Event] = []
    for i, layer in enumerate(LAYERS):
        events.append({"name": "process_name", "ph": "M", "pid": i, "args": {"name": f"allreduce.{layer}"}})
    at = 0.0
    for _ in range(steps):
        for pid in range(len(LAYERS)):
            begin = round((at + 20.0) * 1000)
            end = begin + round((wait + 1.0) * 1000)
            events += _reduction(pid, begin, end - 1000, end)
            at = end / 1000
    (directory / "timeline.json").write_text(json.dumps(events))
    return directory, at / steps


def _write_rank(directory: Path, rank: int, backend: str, events: Events) -> None:
    """Write what PyTorch's profiler recorded of a rank of two."""
    info = {"rank": rank, "world_size": 2, "backend": backend}
    header = {"schemaVersion": 1, "distributedInfo": info, "baseTimeNanoseconds": _EPOCH_US * 1000}
    write(directory / f"rank{rank}.pt.trace.json", events, **header)


_SIZES: Event = {
    "Collective name": "allreduce", "In msg nelems": 4 << 20, "Out msg nelems": 4 << 20, "dtype": "Float",
    "Group size": 2, "Process Group Name": "0", "Process Group Ranks": "[0, 1]",
}  # fmt: skip


def nccl(
    directory: Path,
    transfers: Sequence[float],
    *,
    compute: float = 200.0,
    n_bytes: Sequence[int] = (),
    steps: int = 8,
) -> Path:
    """Write two ranks that compute and then reduce 16 MiB each time, in the given times (ms)."""
    sizes = n_bytes or [16 << 20] * len(transfers)
    names = [(f"kernel_{layer}", compute / 8, 0) for layer in range(8)]
    names += [("ncclDevKernel_AllReduce_Sum_f32_RING_LL", *one) for one in zip(transfers, sizes, strict=True)]
    for rank in range(2):
        events = Events()
        begin, number = 0.0, 0
        for i in range(steps):
            at = free = begin
            for place, (name, lasts, size) in enumerate(names):
                number += 1
                call: Event = {"cat": "cuda_runtime", "pid": 1, "tid": 1, "args": {"correlation": number}}
                events.add("cudaLaunchKernel", at, at + 0.01, **call)
                at += 0.01
                args = {"correlation": number, "stream": 7}
                if size:
                    args |= {**_SIZES, "Seq": i * 100 + place}
                    args |= {"In msg nelems": size // 4, "Out msg nelems": size // 4}
                events.add(name, max(at, free), max(at, free) + lasts, cat="kernel", pid=0, tid=7, args=args)
                free = max(at, free) + lasts
            where: Event = {"cat": "cuda_runtime", "pid": 1, "tid": 1, "args": {"correlation": -1}}
            events.add("cudaDeviceSynchronize", at, free + 0.01, **where)
            at = free + 0.01
            events.add(f"ProfilerStep#{i}", begin, at, cat="user_annotation", pid=1, tid=1, args={})
            begin = at
        _write_rank(directory, rank, "nccl", events)
    return directory


def _shape(n_bytes: int) -> Event:
    """Return what PyTorch's profiler says of a tensor of floats with `record_shapes`."""
    return {"Input type": ["float"], "Input Dims": [[n_bytes // 4]]}


def gloo(
    directory: Path,
    transfers: Sequence[float],
    *,
    compute: float = 200.0,
    n_bytes: Sequence[int] = (),
    held_up: float = 0.0,
) -> Path:
    """Write two ranks that compute on the host and then reduce 16 MiB each time, in the given times (ms).

    In each second step each reduction takes `held_up` longer.
    """
    sizes = n_bytes or [16 << 20] * len(transfers)
    for rank in range(2):
        events, at = Events(), 0.0
        where: Event = {"cat": "cpu_op", "pid": 10, "tid": 1, "args": {}}
        for i in range(8):
            begin = at
            for layer in range(8):
                events.add(f"aten::op_{layer}", at, at + compute / 8, **where)
                at += compute / 8
            for usual, size in zip(transfers, sizes, strict=True):
                lasts = usual + held_up * (i % 2)
                about = {"cat": "user_annotation", "tid": 2, "args": _shape(size)}
                events.add("gloo:all_reduce", at, at + lasts, **{**where, **about})
                at += lasts
            events.add("aten::add_", at, at + 1, **where)
            at += 1
            events.add(f"ProfilerStep#{i}", begin, at, **{**where, "cat": "user_annotation"})
        _write_rank(directory, rank, "gloo", events)
    return directory


def reductions(
    directory: Path,
    transfers: Sequence[float],
    *,
    compute: float = 200.0,
    n_bytes: Sequence[int] = (),
    fused: int = 1,
) -> Path:
    """Write a Horovod timeline of two ranks that reduce so many tensors at once, in the given times (ms)."""
    directory.mkdir(parents=True)
    sizes = n_bytes or [16 << 20] * len(transfers)
    names = [f"allreduce.{i}.{part}" for i in range(len(transfers)) for part in range(fused)]
    events: list[Event] = [
        {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}}
        for pid, name in enumerate(names)
    ]
    at = 0.0
    for _ in range(8):
        ready = round((at + compute) * 1000)
        begin = float(ready)
        for number, (lasts, size) in enumerate(zip(transfers, sizes, strict=True)):
            end = begin + 1000 * lasts
            about = {"dtype": "float32", "shape": f"[{size // fused // 4}]"}
            for pid in range(number * fused, (number + 1) * fused):
                events += _reduction(pid, ready - 4, round(begin), round(end))
                events[-1]["args"] = about
            begin = end
        at = begin / 1000
    (directory / "timeline.json").write_text(json.dumps(events))
    return directory


def slices(directory: Path, transfers: Sequence[float], *, compute: float = 200.0) -> Path:
    """Write two ranks of a program that marks nothing, with the given reductions (ms) in a step."""
    for rank in range(2):
        events, at = Events(), 0.0
        where: Event = {"pid": rank, "tid": 1}
        for _ in range(8):
            begin = at
            for layer in range(8):
                events.add(f"compute_{layer}", at, at + compute / 8, **where)
                at += compute / 8
            for lasts in transfers:
                events.add("all_reduce", at, at + lasts, **where)
                at += lasts
            events.add("step", begin, at, **where)
        write(directory / f"rank{rank}.json", events)
    return directory


def batches(directory: Path, transfers: Sequence[float], *, compute: float = 200.0) -> Path:
    """Write two ranks of Composer with PyTorch's profiler, with the given reductions (ms) in a step."""
    directory.mkdir(parents=True)
    for rank in range(2):
        about: Event = {"global_rank": {"value": rank}, "clock_sync_timestamp_us": {"value": _EPOCH_US}}
        where: Event = {"pid": rank, "tid": 1}
        events, at = Events(), 0.0
        for name, args in about.items():
            events.append({"name": name, "ph": "M", **where, "args": args})
        where["base_us"] = _EPOCH_US
        for i in range(8):
            begin = at
            for layer in range(8):
                events.add(f"aten::op_{layer}", at, at + compute / 8, cat="cpu_op", **where)
                at += compute / 8
            for lasts in transfers:
                events.add("gloo:all_reduce", at, at + lasts, cat="user_annotation", **{**where, "tid": 2})
                at += lasts
            events.add("event/backward", begin, at, **where, args={"batch": i})
            events.add("event/batch", begin, at, **where, args={"batch": i})
        (directory / f"ep0-ba8-rank{rank}.json").write_text(json.dumps(events))
    return directory
