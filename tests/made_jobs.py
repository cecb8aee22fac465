"""Jobs of which everything is known, written as their systems write traces: times in milliseconds.

In a step each rank loads, computes forward and backward, all reduce together, and each updates. So a step
takes the longest (load + forward + backward) of any rank, and the transfer and the update. Whatever is
computed is made of four operations, none of which is more than a small part of a step.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from analyzer.base.arrays import Float64

Event = dict[str, Any]

LAYERS = ("a", "b", "c", "d")
#: Microseconds since the epoch at which the recordings begin.
_EPOCH_US = 1_700_000_000_000_000
_LAUNCH = 0.01
#: From the begin of an operator to that of the call in it that waits for the device, in milliseconds.
CALL = 0.005
_NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


@dataclass(frozen=True, slots=True)
class Job:
    """What each of some ranks does in each step, the same on all of them unless `rank` changes it."""

    ranks: int = 4
    steps: int = 10
    load: float = 1.0
    forward: float = 40.0
    backward: float = 50.0
    transfer: float = 4.0
    update: float = 5.0
    jitter: float = 0.002  # of every time, a standard deviation as a share
    hiccups: float = 0.0  # how often a rank's forward pass takes half as long again
    seed: int = 1  # of both
    more_load: Sequence[float] = ()  # by rank
    more_forward: Sequence[float] = ()  # by rank
    more_in_step: tuple[int, float] | None = None  # forward, on the last rank: of a step (from 0)
    more_in_turn: float = 0.0  # forward, on another rank in each step
    pause: float = 0.0  # before a step's load, not recorded, on all ranks
    more_pause: float = 0.0  # the same on the last rank
    pause_in_turn: float = 0.0  # the same on another rank in each step
    pause_after: tuple[int, float] | None = None  # the same at the end of a step (from 0), on the last rank
    hot: float = 0.25  # of the forward pass, the share of its first operation
    hidden: float = 0.0  # a transfer from the backward pass's begin on, which the pass may hide (PyTorch)
    before: Sequence[float] = ()  # BytePS: how long the steps before the traced ones took

    def times(self) -> tuple[Float64, Float64, Float64, Float64]:
        """Return load, forward, backward (steps, ranks) and transfer (steps,)."""
        draw = np.random.default_rng(self.seed)
        shape = self.steps, self.ranks

        def of(mean: float, more: Sequence[float] = ()) -> Float64:
            usual = np.full(self.ranks, mean) + (np.array(more) if len(more) else 0.0)
            return usual * np.exp(draw.normal(0, self.jitter, shape))

        load, forward = of(self.load, self.more_load), of(self.forward, self.more_forward)
        forward *= np.where(draw.random(shape) < self.hiccups, 1.5, 1.0)
        if self.more_in_step is not None:
            forward[self.more_in_step[0], -1] += self.more_in_step[1]
        forward[np.arange(self.steps), np.arange(self.steps) % self.ranks] += self.more_in_turn
        times = (load, forward, of(self.backward), of(self.transfer)[:, 0])
        load, forward, backward, transfer = (one.round(3) for one in times)
        return load, forward, backward, transfer  # whole microseconds


@dataclass(frozen=True, slots=True)
class Moments:
    """When a rank did what in one step: the begin, that of the load, and the ends of each part in turn."""

    begin: float
    started: float
    loaded: float
    forward: float
    backward: float
    reduced: float
    updated: float
    over: float


def moments(job: Job) -> list[list[Moments]]:
    """Return the steps of each rank."""
    load, forward, backward, transfer = job.times()
    ranks: list[list[Moments]] = [[] for _ in range(job.ranks)]
    at = np.zeros(job.ranks)
    for i in range(job.steps):
        started = at + job.pause
        started[-1] += job.more_pause
        started[i % job.ranks] += job.pause_in_turn
        loaded = started + load[i]
        ended = loaded + forward[i]
        ready = ended + backward[i]
        reduced = max(float(ready.max()), float(ended.max()) + job.hidden) + float(transfer[i])
        over = np.full(job.ranks, reduced + job.update)
        if job.pause_after is not None and job.pause_after[0] == i:
            over[-1] += job.pause_after[1]
        for rank, own in enumerate(ranks):
            begin, begun, filled, passed, done, end = (
                float(one[rank]) for one in (at, started, loaded, ended, ready, over)
            )
            own.append(Moments(begin, begun, filled, passed, done, reduced, reduced + job.update, end))
        at = over
    return ranks


def iteration_ms(job: Job) -> float:
    """Mean length of a step."""
    own = moments(job)[0]
    return (own[-1].over - own[0].begin) / job.steps


def quarters(begin: float, end: float, first: float = 0.25) -> list[tuple[float, float]]:
    """Return four parts of an interval, the `first` a share of it and the others equal."""
    cuts = np.linspace(begin + first * (end - begin), end, len(LAYERS)).round(3).tolist()
    return list(pairwise([begin, *cuts]))


class Events(list[Event]):
    """The events of a file."""

    def add(self, name: str, begin: float, end: float, base_us: int = 0, **more: Any) -> None:
        """Add a complete event that lasts from `begin` to `end` (ms after `base_us`)."""
        times = {"ts": base_us + round(begin * 1000), "dur": round((end - begin) * 1000)}
        self.append({"ph": "X", "name": name, **times, **more})


# ---- PyTorch on the host, gloo


def kineto(directory: Path, job: Job) -> Path:
    """Write a rank file each, of operators on the host."""
    directory.mkdir(parents=True)
    main: Event = {"cat": "cpu_op", "pid": 10, "tid": 1, "args": {}}
    mark: Event = {**main, "cat": "user_annotation"}
    ranks = moments(job)
    for rank, own in enumerate(ranks):
        events = Events()
        for i, step in enumerate(own):
            events.add(f"ProfilerStep#{i + 3}", step.begin, step.over, **mark)
            events.add("enumerate(DataLoader)#It.__next__", step.started, step.loaded, **mark)
            for layer, span in zip(LAYERS, quarters(step.loaded, step.forward, job.hot), strict=True):
                events.add(f"aten::forward_{layer}", *span, **main)
            for layer, span in zip(LAYERS, quarters(step.forward, step.backward), strict=True):
                events.add(f"autograd::engine::evaluate_function: {layer}Backward", *span, **main)
            if job.hidden:
                end = max(one[i].forward for one in ranks) + job.hidden
                events.add("gloo:all_reduce", step.forward, end, **{**mark, "tid": 2})
            events.add("gloo:all_reduce", step.backward, step.reduced, **{**mark, "tid": 2})
            events.add("aten::add_", step.reduced, step.updated, **main)
        _write_kineto(directory, rank, job.ranks, "gloo", events)
    return directory


def _write_kineto(directory: Path, rank: int, ranks: int, backend: str, events: Events) -> None:
    document = {
        "schemaVersion": 1,
        "distributedInfo": {"rank": rank, "world_size": ranks, "backend": backend},
        "baseTimeNanoseconds": _EPOCH_US * 1000,
        "traceEvents": events,
    }
    (directory / f"rank{rank}.pt.trace.json").write_text(json.dumps(document))


# ---- PyTorch with a device


@dataclass(frozen=True, slots=True)
class DeviceStep:
    """What one rank with a device does in a step: the host launches kernels one by one, then waits for all.

    A launch takes `launch`, its kernel `kernel`. Before the launches `copy` ms are copied to the device;
    after every `sync_every`-th launch the host waits for the device, and computes for `think`; or where that
    `allocates`, it frees memory, which waits, and gets some for `think`. With `twins` each kernel has another
    one beside it, on a second stream.
    """

    kernels: int = 40
    launch: float = 0.1
    kernel: float = 1.0
    copy: float = 0.0
    sync_every: int = 0
    think: float = 0.0
    allocates: bool = False
    gap: float = 0.0  # before the first launch, not recorded
    load: float = 0.0  # of input, before the first launch
    first_call: float = 0.0  # of the runtime, in the first step: it creates the context
    names: int = 8  # of kernels
    twins: bool = False
    peak_gb: Sequence[float] = ()  # of memory, in each step; of 40 GB
    pace: Sequence[float] = ()  # how many times as long kernels take, in each step; 1
    pause: float = 0.0  # of the device between two kernels


def device(directory: Path, job: DeviceStep, steps: int = 8) -> tuple[Path, float]:
    """Write the trace of one rank; return where, and how long a step takes."""
    directory.mkdir(parents=True)
    events = Events()
    at, correlation = 0.0, 0
    for i in range(steps):
        begin, free = at, at  # the host's clock, and when the device is through with what it has
        at += job.gap
        if job.first_call and i == 0:
            context: Event = {"cat": "cuda_runtime", "pid": 1, "tid": 1, "args": {}}
            events.add("cudaDeviceGetStreamPriorityRange", at, at + job.first_call, **context)
            at += job.first_call
        if job.load:
            loads: Event = {"cat": "user_annotation", "pid": 1, "tid": 1, "args": {}}
            events.add("enumerate(DataLoader)#It.__next__", at, at + job.load, **loads)
            at += job.load
        works = [("Memcpy HtoD (Pinned -> Device)", "gpu_memcpy", job.copy)] if job.copy else []
        lasts = job.kernel * (job.pace[i] if job.pace else 1)
        works += [(f"kernel_{k % job.names}", "kernel", lasts) for k in range(job.kernels)]
        for k, (name, cat, lasts) in enumerate(works):
            correlation += 1
            events.add(f"aten::op_{k % 8}", at, at + job.launch, cat="cpu_op", pid=1, tid=1, args={})
            call: Event = {"cat": "cuda_runtime", "pid": 1, "tid": 1, "args": {"correlation": correlation}}
            events.add("cudaLaunchKernel", at + job.launch / 4, at + job.launch / 2, **call)
            free = max(free + job.pause, at + job.launch / 2) + lasts
            args = {"correlation": correlation, "stream": 7}
            events.add(name, free - lasts, free, cat=cat, pid=0, tid=7, args=args)
            if job.twins:
                correlation += 1
                call = {**call, "args": {"correlation": correlation}}
                events.add("cudaLaunchKernel", at + job.launch / 2, at + 3 * job.launch / 4, **call)
                twin = {"correlation": correlation, "stream": 8}
                events.add(f"twin_of_{name}", free - lasts, free, cat=cat, pid=0, tid=8, args=twin)
            at += job.launch
            if job.sync_every and k % job.sync_every == job.sync_every - 1:
                call_name = "cudaFree" if job.allocates else "cudaStreamSynchronize"
                over = _synchronise(events, at + CALL, free, call_name) + job.think
                if job.allocates:
                    runtime: Event = {"cat": "cuda_runtime", "pid": 1, "tid": 1, "args": {}}
                    events.add("cudaMalloc", over - job.think, over, **runtime)
                else:
                    events.add("aten::item", at, over, cat="cpu_op", pid=1, tid=1, args={})
                at = over
        at = _synchronise(events, at, free)
        events.add(f"ProfilerStep#{i}", begin, at, cat="user_annotation", pid=1, tid=1, args={})
        events += [_allocated(gb, begin + 1) for gb in job.peak_gb[i : i + 1]]
    properties = [{"id": 0, "totalGlobalMem": 40_000_000_000}]
    document = {"schemaVersion": 1, "deviceProperties": properties, "traceEvents": events}
    (directory / "rank0.pt.trace.json").write_text(json.dumps(document))
    return directory, at / steps


def _allocated(gb: float, at: float) -> Event:
    args = {"Device Type": 1, "Device Id": 0, "Bytes": 512, "Total Allocated": round(gb * 1e9)}
    return {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 1, "tid": 1,
            "ts": round(at * 1000), "args": args}  # fmt: skip


def _synchronise(events: Events, at: float, free: float, call: str = "cudaStreamSynchronize") -> float:
    end = max(at, free) + 0.01
    where: Event = {"cat": "cuda_runtime", "pid": 1, "tid": 1, "args": {"correlation": -1}}
    events.add(call, at, end, **where)
    return end


def data_parallel(directory: Path, job: Job) -> Path:
    """Write a rank file each: kernels launched ahead, and NCCL's, which lasts until all ranks are in it."""
    directory.mkdir(parents=True)
    for rank, own in enumerate(moments(job)):
        events, number = Events(), 0
        for i, step in enumerate(own):
            where: Event = {"cat": "user_annotation", "pid": 1, "tid": 1, "args": {}}
            events.add(f"ProfilerStep#{i + 3}", step.begin, step.updated, **where)
            events.add("enumerate(DataLoader)#It.__next__", step.started, step.loaded, **where)
            first = step.loaded + _LAUNCH
            works = [
                *zip(
                    [f"forward_{one}" for one in LAYERS], quarters(first, step.forward, job.hot), strict=True
                ),
                *zip(
                    [f"backward_{one}" for one in LAYERS], quarters(step.forward, step.backward), strict=True
                ),
                (_NCCL, (step.backward, step.reduced)),
                ("update", (step.reduced, step.updated - _LAUNCH)),
            ]
            at = step.loaded
            for name, span in works:
                number += 1
                call: Event = {"cat": "cuda_runtime", "pid": 1, "tid": 1, "args": {"correlation": number}}
                events.add("cudaLaunchKernel", at, at + _LAUNCH, **call)
                at += _LAUNCH
                args: Event = {"correlation": number, "stream": 7}
                if name == _NCCL:
                    args |= {"Collective name": "allreduce", "Seq": i}
                events.add(name, *span, cat="kernel", pid=0, tid=7, args=args)
            waits: Event = {"cat": "cuda_runtime", "pid": 1, "tid": 1, "args": {"correlation": -1}}
            events.add("cudaDeviceSynchronize", at, step.updated, **waits)
        _write_kineto(directory, rank, job.ranks, "nccl", events)
    return directory


# ---- BytePS


def byteps(directory: Path, job: Job) -> Path:
    """Write a worker of one GPU for each rank; a gradient is pushed after the backward pass."""
    for rank, own in enumerate(moments(job)):
        events = Events()
        loads = np.cumsum([0.0, *reversed(job.before)])[:0:-1].tolist()
        for at in loads:
            events.add("I/O", -at, 0.5 - at, _EPOCH_US, pid="0", tid="io", cat="operator")
        for step in own:
            _compute(events, step, job.hot)
            # all workers agree on something small as they begin: that ties their clocks
            _communicate(events, "flag", 1 << 17, step.begin, step.begin + 0.01, step.begin + 0.02)
            pushed = step.backward + job.transfer / 2
            _communicate(events, "w", 1 << 16, step.backward, pushed, step.reduced)
        home = directory / f"worker_{rank}" / "0"
        home.mkdir(parents=True)
        (home / "dag.gml").write_text(_gml())
        (home / "bps_trace_local_rank0_9step.json").write_text(json.dumps({"traceEvents": events}))
    return directory


def _compute(events: Events, step: Moments, hot: float) -> None:
    where: Event = {"base_us": _EPOCH_US, "pid": "0", "tid": "main", "cat": "operator"}
    events.add("I/O", step.started, step.loaded, **{**where, "tid": "io"})
    for layer, span in zip(LAYERS, quarters(step.loaded, step.forward, hot), strict=True):
        events.add(f"FW.{layer}", *span, **where)
    for layer, span in zip(reversed(LAYERS), quarters(step.forward, step.backward), strict=True):
        events.add(f"BW.{layer}", *span, **where)
    events.add("STEP", step.reduced, step.updated, **where)


def _communicate(events: Events, tensor: str, key: int, begin: float, pushed: float, end: float) -> None:
    where: Event = {"base_us": _EPOCH_US, "pid": f"Comm.{tensor}", "cat": "Comm"}
    events.add(f"Comm.{tensor}", begin, end, tid="total", **where)
    events.add(f"Comm.{tensor}.PUSH", begin, pushed, tid=str(key), **where)
    events.add(f"Comm.{tensor}.PULL", pushed, end, tid=str(key), **where)


def _gml() -> str:
    forward = [f"FW.{layer}" for layer in LAYERS]
    backward = [f"BW.{layer}" for layer in reversed(LAYERS)]
    chain = ["I/O", *forward, *backward, "Comm.w", "STEP"]
    nodes = "".join(f'  node [\n    id {i}\n    label "{name}"\n  ]\n' for i, name in enumerate(chain))
    pairs = [*zip(range(len(chain) - 1), range(1, len(chain)), strict=True), (len(chain) - 1, 1)]
    edges = "".join(f"  edge [\n    source {a}\n    target {b}\n  ]\n" for a, b in pairs)
    return f"graph [\n  directed 1\n{nodes}{edges}]\n"


# ---- Horovod


def horovod(directory: Path, job: Job) -> Path:
    """Write rank 0's timeline: one tensor, negotiated from the first ready rank to the last, with ticks."""
    directory.mkdir(parents=True)
    ranks = moments(job)
    events: list[Event] = [{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "allreduce.w"}}]
    for i in range(job.steps):
        own = [rank[i] for rank in ranks]
        ready = [step.backward for step in own]
        ticks = [("X", str(rank), ready[rank]) for rank in np.argsort(ready).tolist()]
        marks = [
            ("B", "NEGOTIATE_ALLREDUCE", min(ready)), *ticks, ("E", "", max(ready)),
            ("B", "ALLREDUCE", max(ready)), ("E", "", own[0].reduced),
        ]  # fmt: skip
        events += [{"name": name, "ph": ph, "ts": round(at * 1000), "pid": 1} for ph, name, at in marks]
    for event in events:
        if event["ph"] == "X":
            event["dur"] = 0
    (directory / "timeline.json").write_text(json.dumps(events))
    return directory


# ---- Composer


def composer(directory: Path, job: Job, *, torch: bool = False, callback: str = "") -> Path:
    """Write a rank file each, of Composer's events; its ranks meet in the backward pass.

    With `torch` the operators and the all-reduce of PyTorch's profiler are in it; a `callback` takes the
    pause before each step.
    """
    directory.mkdir(parents=True)
    for rank, own in enumerate(moments(job)):
        about: Event = {
            "process_name": {"name": f"Rank {rank} training loop process"},
            "global_rank": {"value": rank},
            "clock_sync_timestamp_us": {"value": _EPOCH_US},
        }
        where: Event = {"pid": rank, "tid": 1}
        events: list[Event] = [
            {"name": name, "ph": "M", **where, "args": args} for name, args in about.items()
        ]
        for i, step in enumerate(own):
            spans = (
                ("dataloader", step.started, step.loaded), ("batch", step.loaded, step.updated),
                ("forward", step.loaded, step.forward), ("backward", step.forward, step.reduced),
                ("optimizer", step.reduced, step.updated),
            )  # fmt: skip
            called = (f"callback/{callback}/event/batch_end", step.started - job.pause, step.started)
            named = [(f"event/{name}", begin, end) for name, begin, end in spans] + [called] * bool(callback)
            events += [
                {"name": name, "cat": "", "ph": ph, "ts": _EPOCH_US + round(at * 1000), **where,
                 "args": {"epoch": 0, "batch": i}}
                for name, begin, end in named
                for ph, at in (("B", begin), ("E", end))
            ]  # fmt: skip
            if torch:
                events += _operators(rank, step, job.hot)
        events.sort(key=lambda event: event.get("ts", -1))
        (directory / f"ep0-ba{job.steps}-rank{rank}.json").write_text(json.dumps(events))
    return directory


def composer_with_torch(directory: Path, job: Job) -> Path:
    """Write a rank file each, with the events of PyTorch's profiler."""
    return composer(directory, job, torch=True)


def _operators(rank: int, step: Moments, hot: float) -> list[Event]:
    events = Events()
    where: Event = {"base_us": _EPOCH_US, "pid": rank, "tid": 1, "cat": "cpu_op"}
    for layer, span in zip(LAYERS, quarters(step.loaded, step.forward, hot), strict=True):
        events.add(f"aten::forward_{layer}", *span, **where)
    for layer, span in zip(LAYERS, quarters(step.forward, step.backward), strict=True):
        events.add(f"autograd::engine::evaluate_function: {layer}Backward", *span, **where)
    own: Event = {**where, "tid": 2, "cat": "user_annotation"}
    events.add("gloo:all_reduce", step.backward, step.reduced, **own)
    return events


# ---- any other program


def chrome(directory: Path, job: Job) -> Path:
    """Write a rank file each, of slices in which nothing is marked as this or that."""
    directory.mkdir(parents=True)
    for rank, own in enumerate(moments(job)):
        events = Events()
        where: Event = {"pid": rank, "tid": 1}
        for step in own:
            events.add("step", step.started, step.updated, **where)
            events.add("load", step.started, step.loaded, **where)
            for layer, span in zip(LAYERS, quarters(step.loaded, step.forward, job.hot), strict=True):
                events.add(f"forward_{layer}", *span, **where)
            for layer, span in zip(LAYERS, quarters(step.forward, step.backward), strict=True):
                events.add(f"backward_{layer}", *span, **where)
            events.add("all_reduce", step.backward, step.reduced, **where)
            events.add("update", step.reduced, step.updated, **where)
        (directory / f"rank{rank}.json").write_text(json.dumps({"traceEvents": events}))
    return directory


WRITERS: dict[str, Callable[[Path, Job], Path]] = {
    "byteps": byteps,
    "device": data_parallel,
    "kineto": kineto,
    "horovod": horovod,
    "composer": composer,
    "composer_with_torch": composer_with_torch,
    "chrome": chrome,
}
