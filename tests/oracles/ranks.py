"""Jobs of any number of PyTorch ranks as their profilers would have written them; the same for the same seed.

Every rank has its own noise and its host's own clock, and one rank's computation is slower by a known
share. Two kinds:

- ``host``: data parallel over gloo, on CPUs. What collectives a group has no such recording tells.
- ``device``: pipelines of four stages side by side, over NCCL. Stages exchange activations and gradients
  of two micro-batches, and each stage's ranks reduce their gradients in a group of their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.float64]  # microseconds
Ranks = NDArray[np.bool_]

STAGES = 4
MICRO_BATCHES = 2
RANKS_OF_A_HOST = 8
_LAYERS = 100
_BASE_NS = 1_790_857_026_000_000_000
_BEGIN_US = 4_362_813_353_724.537
_MAIN, _GLOO = 26297, 26337  # threads; without a device, the main one does the backward pass too
_COMPUTE, _NCCL = 7, 20  # streams
_NAMES = ("conv2d", "batch_norm", "relu_", "add_", "linear")
_KERNELS = ("sm80_xmma_fprop_implicit_gemm_f32", "bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true>",
            "void at::native::vectorized_elementwise_kernel<4, at::native::relu<float>, float*>(int, float*)",
            "void at::native::vectorized_elementwise_kernel<4, at::native::add<float>, float*>(int, float*)",
            "ampere_sgemm_128x64_tn")  # fmt: skip
_SHAPES = (
    '"Input type": ["float", "float", "", "Scalar"], "Input Dims": [[64, 256, 56, 56], [256, 256], [], []]'
)


@dataclass(frozen=True, slots=True)
class Job:
    """A job to generate: how many ranks, and which of them computes longer by which share."""

    n_ranks: int
    kind: str
    slow_rank: int
    slow: float
    seed: int = 0

    def factors(self) -> Times:
        """Computation of each rank relative to the others (ranks,)."""
        draw = np.random.default_rng([self.seed, 1])
        factors = draw.uniform(0.99, 1.01, self.n_ranks)
        factors[self.slow_rank] = 1 + self.slow
        return factors

    def skews_us(self) -> Times:
        """Offset of each rank's clock (ranks,)."""
        hosts = np.arange(self.n_ranks) // RANKS_OF_A_HOST
        draw = np.random.default_rng([self.seed, 2])
        skews: Times = np.round(draw.uniform(-1000, 1000, hosts[-1] + 1), 3)[hosts]
        return skews


@dataclass(frozen=True, slots=True)
class _Part:
    """The same events on every rank: their texts, with places for a begin and a length, and their times."""

    template: str
    begin_us: Times  # (ranks,)
    length_us: Times | None  # (ranks,), None for an event that has none
    on: Ranks | None = None  # the ranks that have the event; None: all
    own: Sequence[str] = ()  # what takes the place of "@own" on each rank

    def text(self, rank: int, begin_us: float, length_us: float) -> str:
        """Event of one rank, with its times on that rank's clock."""
        text = self.template % (begin_us if self.length_us is None else (begin_us, length_us))
        return text.replace("@own", self.own[rank] if self.own else "")


def write(directory: Path, job: Job, n_bytes: int) -> Path:
    """Write a file of about `n_bytes` for every rank of `job` to `directory`, unless it is there."""
    if directory.exists():
        return directory
    directory.mkdir(parents=True)
    paths = [directory / f"rank{rank}.pt.trace.json" for rank in range(job.n_ranks)]
    skews = job.skews_us()
    for path, rank in zip(paths, range(job.n_ranks), strict=True):
        path.write_text(_head(job, rank))
    steps = _host_steps(job) if job.kind == "host" else _device_steps(job)
    size = 0
    while size < n_bytes:
        parts = next(steps)
        begins = np.stack([part.begin_us for part in parts]) + skews
        lengths = np.stack([np.zeros(job.n_ranks) if p.length_us is None else p.length_us for p in parts])
        for rank, path in enumerate(paths):
            values = zip(parts, begins[:, rank].tolist(), lengths[:, rank].tolist(), strict=True)
            has = (one for one in values if one[0].on is None or one[0].on[rank])
            text = ",\n".join(part.text(rank, begin, length) for part, begin, length in has)
            with path.open("a") as file:
                file.write((",\n" if size else "") + text)
        size += len(text)
    for path in paths:
        with path.open("a") as file:
            file.write(f'\n  ],\n  "traceName": "{path.name}"\n}}\n')
    return directory


def _head(job: Job, rank: int) -> str:
    backend = "gloo" if job.kind == "host" else "nccl"
    header = {
        "schemaVersion": 1,
        "distributedInfo": {"backend": backend, "rank": rank, "world_size": job.n_ranks},
        "host_name": f"node{rank // RANKS_OF_A_HOST}",
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": _BASE_NS,
    }
    return json.dumps(header, indent=2)[:-2] + ',\n  "traceEvents": [\n'


def _slice(cat: str, name: str, pid: int, tid: int, begin: Times, length: Times, args: str = "") -> _Part:
    text = f'  {{\n    "ph": "X", "cat": "{cat}", "name": "{name}", "pid": {pid}, "tid": {tid},\n'
    inner = f',\n    "args": {{\n      {args}\n    }}' if args else ""
    return _Part(f'{text}    "ts": %.3f, "dur": %.3f{inner}\n  }}', begin, length)


def _flow(phase: str, cat: str, number: int, pid: int, tid: int, at: Times) -> _Part:
    binds = ', "bp": "e"' if phase == "f" else ""
    text = f'"ph": "{phase}", "id": {number}, "pid": {pid}, "tid": {tid}, "ts": %.3f, "cat": "{cat}"'
    return _Part(f'  {{\n    {text}, "name": "{cat}"{binds}\n  }}', at, None)


def _op(name: str, tid: int, begin: Times, length: Times, number: int) -> _Part:
    args = f'"External id": {number}, "Record function id": 0, {_SHAPES}, "Ev Idx": {number}'
    return _slice("cpu_op", name, _MAIN, tid, begin, length, args)


# ---- on CPUs


def _host_steps(job: Job) -> Iterator[list[_Part]]:
    """Yield the events of one step after another: forward, backward with overlapped reductions, update."""
    draw = np.random.default_rng([job.seed, 3])
    factors, numbers = job.factors(), count(1)
    base = draw.uniform(40, 400, _LAYERS)
    now = np.full(job.n_ranks, _BEGIN_US)
    for step in count(1):
        begin, parts = now, []
        work = base[:, None] * factors * draw.normal(1, 0.02, (_LAYERS, job.n_ranks)).clip(0.8)
        loaded = draw.uniform(200, 260, job.n_ranks)
        parts.append(_slice("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
                            _MAIN, _MAIN, now, loaded))  # fmt: skip
        now = now + loaded + 5
        flows = []
        for layer in range(_LAYERS):
            name = _NAMES[layer % len(_NAMES)]
            parts += [
                _op(f"aten::{inner}{name}", _MAIN, now + 2 * depth, work[layer] - 4 * depth, next(numbers))
                for depth, inner in enumerate(("", "_", "mkldnn_"))
            ]
            flow = next(numbers)
            parts.append(_flow("s", "fwdbwd", flow, _MAIN, _MAIN, now))
            flows.append(flow)
            now = now + work[layer] + 3
        back, link_free = now + 30, now
        for layer in reversed(range(_LAYERS)):
            length = 2 * work[layer]
            node = f"{_NAMES[layer % len(_NAMES)].title().replace('_', '')}Backward0"
            parts.append(_flow("f", "fwdbwd", flows[layer], _MAIN, _MAIN, back))
            names = (f"autograd::engine::evaluate_function: {node}", node, "aten::convolution_backward")
            parts += [
                _op(inner, _MAIN, back + 2 * depth, length - 4 * depth, next(numbers))
                for depth, inner in enumerate(names)
            ]
            back = back + length + 3
            if layer % 20 == 0:  # a bucket is full: the operation's hook asks for its reduction
                asked = np.maximum(back - 8, link_free)
                link_free = np.full(job.n_ranks, asked.max() + 900) + draw.uniform(0, 4, job.n_ranks)
                parts.append(
                    _slice("user_annotation", "gloo:all_reduce", _MAIN, _GLOO, asked, link_free - asked,
                           '"Input type": ["float"], "Input Dims": [[2359296]]')
                )  # fmt: skip
        now = np.maximum(back, link_free) + 20
        updated = 12 * _LAYERS * factors
        parts.append(_slice("user_annotation", "Optimizer.step#SGD.step", _MAIN, _MAIN, now, updated))
        parts += [
            _op(
                "aten::_foreach_add_",
                _MAIN,
                now + 1 + 12 * i * factors,
                np.full(job.n_ranks, 10.0),
                next(numbers),
            )
            for i in range(_LAYERS)
        ]
        now = now + updated + 10
        yield [_slice("user_annotation", f"ProfilerStep#{step}", _MAIN, _MAIN, begin, now - begin), *parts]


# ---- on devices


class _Devices:
    """The work of hosts and devices in a step; a host runs ahead of its device and waits at the end."""

    def __init__(self, job: Job, begin: Times, numbers: Iterator[int]) -> None:
        self.n, self.numbers, self.parts = job.n_ranks, numbers, list[_Part]()
        self.host, self.device = begin + 20, begin + 40

    def ready(self) -> Times:
        """Earliest begin of a kernel launched now on each rank's device (ranks,)."""
        return np.maximum(self.device + 1.5, self.host + 8)

    def launch(
        self, op: str, kernel: str, stream: int, end: Times, on: Ranks, own: Sequence[str] = ()
    ) -> None:
        """Append an operation of the hosts `on` (ranks,), its launch and its kernel, which ends at `end`."""
        number, at, begin = next(self.numbers), self.host, self.ready()
        tied = f'"External id": {number}, "correlation": {number}'
        calls = [
            _op(op, _MAIN, at, np.full(self.n, 7.0), number),
            _slice("cuda_runtime", "cudaLaunchKernel", _MAIN, _MAIN, at + 2, np.full(self.n, 4.0),
                   f'{tied}, "cbid": 211'),
            _flow("s", "ac2g", number, _MAIN, _MAIN, at + 2),
            _flow("f", "ac2g", number, 0, stream, begin),
        ]  # fmt: skip
        args = f'{tied}, "device": 0, "context": 1, "stream": {stream}@own'
        work = _slice("kernel", kernel, 0, stream, begin, end - begin, args)
        self.parts += [replace(part, on=on) for part in calls] + [replace(work, on=on, own=own)]
        self.host = np.where(on, at + 8, at)
        self.device = np.where(on, end, self.device)

    def compute(self, layers: Iterable[int], works: Times, on: Ranks) -> None:
        for layer in layers:
            place = layer % len(_NAMES)
            self.launch(f"aten::{_NAMES[place]}", _KERNELS[place], _COMPUTE, self.ready() + works[layer], on)

    def send(self, stage_of: NDArray[np.int64], source: int, target: int) -> None:
        """Append the transfers between two neighbouring stages of every pipeline."""
        begin, ranks = self.ready(), np.arange(self.n)
        peer = ranks - stage_of + np.where(stage_of == source, target, source)
        end = np.maximum(begin, begin[peer]) + 150
        first = ranks - stage_of
        sides = ((source, "send", "Dst Rank", target), (target, "recv", "Src Rank", source))
        for stage, kind, end_of, other in sides:  # PyTorch names the other rank alone
            own = [
                f', "Collective name": "{kind}", "Process Group Name": "pipeline{rank // STAGES}", '
                f'"{end_of}": {first[rank] + other}, '
                '"In msg nelems": 1048576, "Out msg nelems": 1048576, "Group size": 2, "dtype": "Float"'
                for rank in range(self.n)
            ]
            name = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
            self.launch(f"nccl:{kind}", name, _NCCL, end, stage_of == stage, own)

    def reduce(self, stage_of: NDArray[np.int64], sequence: int) -> None:
        """Append a reduction of gradients in the group of each stage; it ends when the last has come."""
        begin, end, own = self.ready(), np.zeros(self.n), []
        for stage in range(STAGES):
            end[stage_of == stage] = begin[stage_of == stage].max() + 900
        for rank in range(self.n):
            group = list(range(rank % STAGES, self.n, STAGES))
            shown = str(group) if len(group) <= 8 else f"[{group[0]}, {group[1]}, ..., {group[-1]}]"
            own.append(
                f', "Collective name": "allreduce", "Process Group Name": "stage{rank % STAGES}", '
                f'"Process Group Ranks": "{shown}", "Seq": {sequence}, "In msg nelems": 2359296, '
                f'"Out msg nelems": 2359296, "Group size": {len(group)}, "dtype": "Float"'
            )
        name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        self.launch("nccl:all_reduce", name, _NCCL, end, np.ones(self.n, np.bool_), own)


def _device_steps(job: Job) -> Iterator[list[_Part]]:
    """Yield the events of one step after another: micro-batches through the stages and back, reductions."""
    draw = np.random.default_rng([job.seed, 4])
    factors, numbers, sequence = job.factors(), count(1), count(1)
    layers = _LAYERS // STAGES
    base = draw.uniform(40, 400, layers)
    stage_of = np.arange(job.n_ranks) % STAGES
    now = np.full(job.n_ranks, _BEGIN_US)
    everybody = np.ones(job.n_ranks, np.bool_)
    for step in count(1):
        devices = _Devices(job, now, numbers)
        works = base[:, None] * factors * draw.normal(1, 0.02, (layers, job.n_ranks)).clip(0.8)
        for _ in range(MICRO_BATCHES):
            for stage in range(STAGES):
                devices.compute(range(layers), works, stage_of == stage)
                if stage + 1 < STAGES:
                    devices.send(stage_of, stage, stage + 1)
        for _ in range(MICRO_BATCHES):
            for stage in reversed(range(STAGES)):
                devices.compute(reversed(range(layers)), 2 * works, stage_of == stage)
                if stage > 0:
                    devices.send(stage_of, stage, stage - 1)
        devices.reduce(stage_of, next(sequence))
        updated = devices.ready() + 300 * factors
        devices.launch("Optimizer.step#SGD.step", _KERNELS[2], _COMPUTE, updated, everybody)
        begin, end = devices.host, np.maximum(devices.device, devices.host) + 5
        sync = _slice(
            "cuda_runtime", "cudaDeviceSynchronize", _MAIN, _MAIN, begin, end - begin, '"cbid": 165'
        )
        name = f"ProfilerStep#{step}"
        yield [_slice("user_annotation", name, _MAIN, _MAIN, now, end - now), *devices.parts, sync]
        now = end + 10
