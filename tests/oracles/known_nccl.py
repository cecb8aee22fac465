"""PyTorch jobs that run in a simulated cluster of GPUs and write what its profiler would; edits can be run.

The cluster shares nothing with the replay. A host's threads pass launches to streams, which run them in
order; streams wait for each other's events. A collective begins when its last member's kernel has, takes the
latency of its ring or tree and then moves its bytes through links that other collectives of the node use as
well (fair shares), while it takes a part of the device from the kernels beside it. Gradients are put into
buckets as DDP does: in the order of the backward pass, each bucket closed by the gradient that fills it.
Clocks of hosts differ.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np

from analyzer.base.arrays import Float64
from oracles.simulated_cluster import Clock, Core, SharedLimits

_MIB = 1 << 20
#: DDP closes its first bucket early, where nobody has set a cap.
_FIRST_BUCKET, _CAP = _MIB, 25 * _MIB
#: Launches that are given to a stream and have not begun, at most.
_QUEUE = 1024
#: Times in microseconds: of a call to the runtime, from it to an idle stream's begin, between kernels of one.
_CALL, _TO_DEVICE, _BETWEEN = 4.5, 5.0, 1.3
_WARM_UP = 2
_STORAGE = "(ncclDevKernelArgsStorage<4096ul>)"
_COMPUTE, _DATA, _TENSOR, _PIPE = 7, 20, 24, 28  # streams
_Event = dict[str, Any]
_T = TypeVar("_T")
_Script: TypeAlias = "Generator[float | _Mark, None, _T]"


@dataclass(frozen=True, slots=True)
class NCCLJob:
    """A synchronous job; times in microseconds, rates in bytes per microsecond.

    Ranks are numbered by tensor parallel group first, then by data parallel one, then by stage.
    """

    forward: tuple[tuple[float, ...], ...]  # (layers, k) work of each layer's kernels
    backward: tuple[tuple[float, ...], ...]
    weights: tuple[
        tuple[int, ...], ...
    ]  # (layers, k) bytes of parameters, each ready after a backward kernel
    activations: int  # bytes reduced by a tensor parallel group in each layer, and sent between stages
    slow: tuple[float, ...]  # (ranks,) factor of each rank's computation
    tensor: int  # ranks of a tensor parallel group; likewise:
    data: int
    stages: int
    micro_batches: int
    node: int  # ranks of a host, which share its clock
    rate: float  # of a network card
    near: float  # of the links between the devices of a host
    latency: float  # of one hop of a ring or tree
    cap: int | None  # of a bucket; None: DDP's default, with its small first bucket
    spread: tuple[float, float]  # standard deviations of computation over kernels and over steps, as shares
    crowding: float  # share by which kernels are longer while a collective moves bytes
    host: float  # of an operator, beside its calls
    load: float  # of the input of a step
    waits: bool  # the host waits for the loss of each step
    says_waits: bool  # the profiler records the waits of streams
    shared: bool = False  # the ranks of a host share one card
    overlap: bool = True  # buckets are reduced as soon as they are full
    dropped: frozenset[str] = frozenset()  # names of kernels that are not launched
    kernel: float = 1.0  # factor of kernels and collectives
    fixed: Mapping[str, float] | None = None  # time of kernels and collectives by name; nothing varies then

    @property
    def n_ranks(self) -> int:
        """Number of ranks."""
        return self.tensor * self.data * self.stages

    def edited(self, edit: str, steps: int = 8, seed: int = 0) -> NCCLJob:
        """Apply an edit.

        ``bandwidth=R``, ``bandwidth=RGbit``, ``latency=R``, ``bucket_cap=RMB``,
        ``overlap=off``, ``rank<i>=R``, ``stage<i>=R``, ``kernel=R``, ``drop=NAME``, ``straggler=none``,
        ``straggler=mean`` (of the `steps` that are recorded with the `seed`).
        """
        name, _, value = edit.partition("=")
        if edit == "straggler=none":
            return replace(self, slow=(1.0,) * self.n_ranks)
        if edit == "straggler=mean":
            run = _Run(self, steps, seed)
            run.go()
            return replace(self, fixed=run.usual(), crowding=0.0)
        if name == "overlap":
            return replace(self, overlap=False)
        if name == "drop":
            return replace(self, dropped=frozenset([value]))
        if name == "bucket_cap":
            return replace(self, cap=round(float(value.removesuffix("MB")) * _MIB))
        if value.endswith("Gbit"):
            return replace(self, rate=float(value[:-4]) * 125, near=float(value[:-4]) * 125)
        factor = float(value)
        if name == "bandwidth":
            return replace(self, rate=self.rate * factor, near=self.near * factor)
        if name in ("latency", "kernel"):
            return replace(self, **{name: getattr(self, name) * factor})
        per = self.tensor * self.data
        number = int(name.removeprefix("rank").removeprefix("stage"))
        chosen = (
            range(number, number + 1) if name.startswith("rank") else range(number * per, (number + 1) * per)
        )
        slow = tuple(share * (factor if rank in chosen else 1) for rank, share in enumerate(self.slow))
        return replace(self, slow=slow)

    def run(self, n_steps: int, seed: int, directory: Path | None = None) -> float:
        """Run the job and return its mean step (ms) without the first; write it into `directory`."""
        run = _Run(self, n_steps, seed)
        run.go()
        if directory is not None:
            run.write(directory)
        done = np.array(run.done)
        return float((done[:, -1] - done[:, 0]).mean() / (n_steps - 1) / 1e3)


class _Mark:
    """An event of a stream: other streams wait until the stream has reached it."""

    def __init__(self) -> None:
        self.is_over, self.then = False, list[Callable[[], None]]()
        self.told: _Event = {}

    def when_over(self, then: Callable[[], None]) -> None:
        if self.is_over:
            then()
        else:
            self.then.append(then)

    def pass_(self) -> None:
        self.is_over = True
        for one in self.then:
            one()


class _Stream:
    """Runs what it is given one after the other."""

    def __init__(self, run: _Run, rank: int, number: int) -> None:
        self.run, self.rank, self.number = run, rank, number
        self._given: deque[Callable[[Callable[[], None]], None]] = deque()
        self._busy, self.free_at, self.unbegun = False, 0.0, 0

    def give(self, task: Callable[[Callable[[], None]], None]) -> None:
        self._given.append(task)
        if not self._busy:
            self._next()

    def _next(self) -> None:
        self._busy = bool(self._given)
        if self._busy:
            self._given.popleft()(self._next)

    def mark(self) -> _Mark:
        """Record an event."""
        mark = _Mark()

        def task(done: Callable[[], None]) -> None:
            mark.pass_()
            done()

        self.give(task)
        return mark

    def wait(self, mark: _Mark) -> None:
        """Wait for an event of another stream."""
        self.give(mark.when_over)


class _Device(Core):
    """Computes, more slowly while collectives move bytes."""

    def __init__(self, run: _Run) -> None:
        super().__init__(run)
        self._crowding, self._moving = run.job.crowding, 0

    def move(self, more: int) -> None:
        """Have so many more collectives that move bytes."""
        self._moving += more
        self.change(1 / (1 + self._crowding * (self._moving > 0)))


class _Group:
    """Ranks that do collectives together, each of which begins when the last of them has come."""

    def __init__(self, run: _Run, name: str, about: str, ranks: Sequence[int]) -> None:
        self.run, self.name, self.about, self.ranks = run, name, about, tuple(ranks)
        nodes = sorted({rank // run.job.node for rank in ranks})
        self.links = [("near" if len(nodes) == 1 else "card", rank) for rank in ranks]
        if len(nodes) > 1 and run.job.shared:
            self.links = [("card", -1 - node) for node in nodes]
        self._calls: dict[int, list[tuple[int, float, Callable[[], None]]]] = {}

    def cost(self, n_bytes: int, reduces: bool) -> tuple[float, float]:
        """Compute the latency, and the bytes through each link, of the quicker of ring and tree."""
        job, n = self.run.job, len(self.ranks)
        if not reduces:
            return job.latency, float(n_bytes)
        rate = job.rate if self.links[0][0] == "card" else job.near
        ring = 2 * (n - 1) * job.latency, 2 * (n - 1) / n * n_bytes
        tree = 2 * math.ceil(math.log2(n)) * job.latency * 1.4, 2.2 * n_bytes
        return min(ring, tree, key=lambda one: one[0] + one[1] / rate)

    def come(self, turn: int, rank: int, kind: str, n_bytes: int, done: Callable[[], None]) -> None:
        """Begin a rank's kernel of the group's collective of that turn."""
        run = self.run
        here = self._calls.setdefault(turn, [])
        here.append((rank, run.now, done))
        if len(here) < len(self.ranks):
            return
        fixed = None if run.job.fixed is None else run.job.fixed[kind]
        latency, through = self.cost(n_bytes, "reduce" in kind.lower())
        noise = float(np.exp(run.draw.normal(0, 0.02))) if fixed is None else 1.0
        began = run.now

        def over() -> None:
            run.took.setdefault(kind, []).append((run.now, run.now - began))
            for one, _, done in here:
                run.devices[one].move(-1)
                run.at(run.now + float(run.draw.uniform(0, 1)) * (fixed is None), done)

        for one, _, _ in here:
            run.devices[one].move(1)
        if fixed is not None:
            run.at(began + fixed, over)
        else:
            bytes_ = through * noise * run.job.kernel
            run.at(
                began + 4 + latency * noise * run.job.kernel, lambda: run.links.move(bytes_, self.links, over)
            )


class _Run(Clock):
    """One run of a job."""

    def __init__(self, job: NCCLJob, n_steps: int, seed: int) -> None:
        super().__init__()
        self.job, self.n_steps = job, n_steps
        self.draw = np.random.default_rng(seed)
        ranks = range(job.n_ranks)
        self.devices = [_Device(self) for _ in ranks]
        self.links = SharedLimits(self, self._carries)
        self.spans: list[list[_Event]] = [[] for _ in ranks]
        self.done: list[list[float]] = [[] for _ in ranks]
        self.took: dict[str, list[tuple[float, float]]] = {}  # of each kind: when, and how long
        per = job.tensor * job.data
        self.groups: dict[tuple[str, int], _Group] = {}
        for rank in ranks:
            stage, place = divmod(rank, per)
            first = stage * per
            if job.tensor > 1:
                low = first + place // job.tensor * job.tensor
                self._join("tensor", rank, range(low, low + job.tensor))
            if job.data > 1:
                self._join("data", rank, range(first + place % job.tensor, first + per, job.tensor))
            for ahead in (-1, 1):
                if 0 <= stage + ahead < job.stages:
                    pair = sorted((rank, rank + ahead * per))
                    self._join("forward" if ahead < 0 else "forward to", rank, pair)
                    self._join("backward to" if ahead < 0 else "backward", rank, pair)
        self._profiled = 0
        self.hosts = [_Host(self, rank) for rank in ranks]

    def _join(self, what: str, rank: int, ranks: Sequence[int]) -> None:
        base = what.removesuffix(" to")
        name = f"{base} {ranks[0]}"
        known = next((one for one in self.groups.values() if one.name == name), None)
        self.groups[what, rank] = known or _Group(self, name, f"{base}_parallel_group", ranks)

    def _carries(self, link: Hashable) -> float:
        return self.job.rate if cast("tuple[str, int]", link)[0] == "card" else self.job.near

    def go(self) -> None:
        """Run until all hosts and devices are done."""
        for host in self.hosts:
            self.at(float(self.draw.uniform(0, 300)), partial(self.go_on, host.script()))
        self.run()

    def go_on(self, script: _Script[None]) -> None:
        """Let a host go on until it has to wait: for some time, or for a device."""
        for wants in script:
            if isinstance(wants, float):
                self.at(self.now + wants, lambda: self.go_on(script))
                return
            if not wants.is_over:
                wants.then.append(lambda: self.at(self.now + 3.0, lambda: self.go_on(script)))
                return

    def usual(self) -> dict[str, float]:
        """Usual time of each kind of kernel (mean) and collective (median) after the first step."""
        first = float(np.mean([done[0] for done in self.done]))
        took = {kind: [one for at, one in each if at > first] for kind, each in self.took.items()}
        return {kind: float((np.median if "nccl" in kind else np.mean)(each)) for kind, each in took.items()}

    def write(self, directory: Path) -> None:
        """Write a file for each rank, as PyTorch's profiler does."""
        directory.mkdir(parents=True)
        for rank, spans in enumerate(self.spans):
            mine = {group for (_, one), group in self.groups.items() if one == rank}
            config = [{"pg_name": "0", "pg_desc": "default_pg", "ranks": list(range(self.job.n_ranks))}]
            config += [{"pg_name": one.name, "pg_desc": one.about, "ranks": list(one.ranks)} for one in mine]
            info = {"backend": "nccl", "rank": rank, "world_size": self.job.n_ranks, "pg_config": config}
            node = rank // self.job.node
            offset = 1e6 + 1700.0 * node
            began = self.hosts[rank].recorded_from
            kept = [
                {**one, "ts": round(one["ts"] + offset, 3), "dur": round(one["dur"], 3)}
                for one in spans
                if one["ts"] >= began
            ]
            text = json.dumps({"schemaVersion": 1, "distributedInfo": info, "traceEvents": kept})
            (directory / f"node{node}_rank{rank}.pt.trace.json").write_text(text)


@dataclass(slots=True)
class _Host:
    """The threads of a rank: what they launch, and when."""

    run: _Run
    rank: int
    recorded_from: float = 0.0
    streams: dict[int, _Stream] = field(default_factory=dict)
    thread: int = 1
    turns: dict[str, int] = field(default_factory=dict)
    pace: float = 1.0

    def script(self) -> _Script[None]:
        """Train: yield how long the host is busy, or what it waits for."""
        run, job = self.run, self.run.job
        for number in (_COMPUTE, _DATA, _TENSOR, *range(_PIPE, _PIPE + 4)):
            self.streams[number] = _Stream(run, self.rank, number)
        for step in range(-_WARM_UP, run.n_steps):
            if step == 0:
                yield from self._device_is_done()
                self.recorded_from = run.now
            self.pace = 1.0 if job.fixed else float(np.exp(run.draw.normal(0, job.spread[1])))
            begin = run.now
            yield from self._step()
            last = self._compute.mark()
            if step >= 0:
                last.when_over(lambda: run.done[self.rank].append(run.now))
                self._span("user_annotation", f"ProfilerStep#{step}", begin, run.now)
        yield from self._device_is_done()

    @property
    def _compute(self) -> _Stream:
        return self.streams[_COMPUTE]

    def _device_is_done(self) -> _Script[None]:
        start, mark = self.run.now, self._compute.mark()
        yield mark
        self._span(
            "cuda_runtime", "cudaDeviceSynchronize", start, self.run.now, correlation=self.run.number()
        )

    def _step(self) -> _Script[None]:
        run, job = self.run, self.run.job
        per = job.tensor * job.data
        stage, layers = self.rank // per, len(job.forward)
        mine = range(stage * layers // job.stages, (stage + 1) * layers // job.stages)
        start = run.now
        yield self._noisy(job.load)
        self._span(
            "user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", start, run.now
        )
        ahead = min(job.stages - 1 - stage, job.micro_batches)
        order = [("F", i) for i in range(ahead)]
        for i in range(job.micro_batches):
            order += [("F", i + ahead)] * (i + ahead < job.micro_batches) + [("B", i)]
        for kind, i in order:
            if kind == "F":
                yield from self._forward(mine, stage)
            else:
                self.thread = 2
                yield from self._backward(mine, stage, is_last=i == job.micro_batches - 1)
                self.thread = 1
        begin = run.now
        for layer in mine:
            work = sum(job.weights[layer]) / 1.2e6 + 2
            yield from self._operator("aten::_foreach_add_", [("multi_tensor_apply_kernel", work)])
        self._span("user_annotation", "Optimizer.step#SGD.step", begin, run.now)
        if job.waits:
            yield from self._loss()

    def _loss(self) -> _Script[None]:
        """Wait for the loss: copy it, and wait for the stream."""
        start = self.run.now
        yield from self._launch(self._compute, "Memcpy DtoH (Device -> Pageable)", 1.5, cat="gpu_memcpy",
                                call="cudaMemcpyAsync")  # fmt: skip
        call, mark = self.run.now, self._compute.mark()
        yield mark
        yield 1.0
        self._span("cuda_runtime", "cudaStreamSynchronize", call, self.run.now, correlation=self.run.number())
        self._span("cpu_op", "aten::_local_scalar_dense", start, self.run.now)

    def _forward(self, mine: Sequence[int], stage: int) -> _Script[None]:
        job = self.run.job
        if stage > 0:
            yield from self._transfer("forward", sends=False, waits=True)
        for layer in mine:
            for i, work in enumerate(job.forward[layer]):
                name = ("ampere_sgemm_128x64_tn", "layer_norm_forward", "fused_dropout_kernel")[i % 3]
                yield from self._operator(
                    ("aten::linear", "aten::layer_norm", "aten::dropout")[i % 3], [(name, work)]
                )
            if job.tensor > 1:
                yield from self._reduce("tensor", _TENSOR, job.activations, "bf16", waits=True)
        if stage < job.stages - 1:
            yield from self._transfer("forward to", sends=True, waits=False)

    def _backward(self, mine: Sequence[int], stage: int, *, is_last: bool) -> _Script[None]:
        job = self.run.job
        if stage < job.stages - 1:
            yield from self._transfer("backward", sends=False, waits=True)
        reduces = is_last and job.data > 1
        full, buckets = 0, list[int]()
        limit = _FIRST_BUCKET if job.cap is None else job.cap
        cap, marks = job.cap or _CAP, list[_Mark]()
        left = sum(len(job.weights[layer]) for layer in mine)
        for layer in reversed(mine):
            if job.tensor > 1:
                start = self.run.now
                yield from self._reduce("tensor", _TENSOR, job.activations, "bf16", waits=True)
                kind = "_ReduceFromModelParallelRegionBackward"
                self._span("cpu_op", f"autograd::engine::evaluate_function: {kind}", start, self.run.now)
            kernels, weights = job.backward[layer], job.weights[layer]
            for i, work in enumerate(kernels):
                kind = ("MmBackward0", "NativeLayerNormBackward0", "NativeDropoutBackward0")[i % 3]
                name = ("ampere_sgemm_64x32_nt", "layer_norm_grad", "dropout_backward")[i % 3]
                start = self.run.now
                yield self._noisy(1.0)
                yield from self._operator(kind, [(name, work)])
                for n_bytes in weights[
                    i * len(weights) // len(kernels) : (i + 1) * len(weights) // len(kernels)
                ]:
                    yield from self._gradient(n_bytes)
                    full, left = full + n_bytes, left - 1
                    if reduces and (full >= limit or left == 0):
                        if job.overlap:
                            marks.append((yield from self._reduce("data", _DATA, full, "f32", waits=False)))
                        else:
                            buckets.append(full)
                        full, limit = 0, cap
                yield self._noisy(1.0)
                self._span("cpu_op", f"autograd::engine::evaluate_function: {kind}", start, self.run.now)
        if stage > 0:
            yield from self._transfer("backward to", sends=True, waits=False)
        for n_bytes in buckets:
            marks.append((yield from self._reduce("data", _DATA, n_bytes, "f32", waits=False)))
        for mark in marks:
            yield from self._wait(self._compute, mark)

    def _gradient(self, n_bytes: int) -> _Script[None]:
        """Accumulate a gradient, which is where DDP is called."""
        start = self.run.now
        yield self._noisy(2.0)
        shape = {"Input Dims": [[n_bytes // 4]], "Input type": ["float"]}
        self._span("cpu_op", "torch::autograd::AccumulateGrad", start, self.run.now, **shape)

    def _operator(self, name: str, kernels: Sequence[tuple[str, float]]) -> _Script[None]:
        """Run an operator of the host that launches kernels."""
        job, start = self.run.job, self.run.now
        yield self._noisy(job.host / 2)
        for kernel, work in kernels:
            if kernel in job.dropped:
                continue
            noise = float(np.exp(self.run.draw.normal(0, job.spread[0])))
            takes = work * noise * self.pace * job.slow[self.rank] * job.kernel
            if job.fixed is not None:
                takes = job.fixed[kernel]
            yield from self._launch(self._compute, kernel, takes)
        yield self._noisy(job.host / 2)
        self._span("cpu_op", name, start, self.run.now)

    def _launch(
        self, stream: _Stream, name: str, takes: float, cat: str = "kernel", call: str = "cudaLaunchKernel"
    ) -> _Script[None]:
        correlation = yield from self._call(stream, call)
        run = self.run

        def begin(done: Callable[[], None]) -> None:
            began = run.now

            def over() -> None:
                run.took.setdefault(name, []).append((run.now, run.now - began))
                self._work(cat, name, stream, began, correlation)
                done()

            run.devices[self.rank].compute(takes, over)

        self._give(stream, begin)

    def _give(self, stream: _Stream, begin: Callable[[Callable[[], None]], None]) -> None:
        """Give a stream what was launched now: it begins when that has arrived and the stream is free."""
        run, arrives = self.run, self.run.now + _TO_DEVICE

        def task(done: Callable[[], None]) -> None:
            run.at(max(run.now + _BETWEEN, arrives), lambda: begun(done))

        def begun(done: Callable[[], None]) -> None:
            stream.unbegun -= 1
            begin(done)

        stream.give(task)

    def _call(self, stream: _Stream, name: str) -> _Script[int]:
        """Call the runtime for a launch; where the stream's queue is full, wait for room."""
        start = self.run.now
        while stream.unbegun >= _QUEUE:
            yield 2.0
        stream.unbegun += 1
        yield self._noisy(_CALL)
        correlation = self.run.number()
        self._span("cuda_runtime", name, start, self.run.now, correlation=correlation)
        return correlation

    def _reduce(self, what: str, number: int, n_bytes: int, dtype: str, *, waits: bool) -> _Script[_Mark]:
        """All-reduce in a group, on its stream, which waits for what was launched before; return its end."""
        kernel = f"ncclDevKernel_AllReduce_Sum_{dtype}_RING_LL{_STORAGE}"
        size = 2 if dtype == "bf16" else 4
        args = {"Collective name": "allreduce", "In msg nelems": n_bytes // size,
                "Out msg nelems": n_bytes // size, "dtype": "BFloat16" if size == 2 else "Float"}  # fmt: skip
        return (
            yield from self._together(what, number, kernel, "nccl:all_reduce", n_bytes, args, waits=waits)
        )

    def _transfer(self, what: str, *, sends: bool, waits: bool) -> _Script[None]:
        """Send to, or receive from, a neighbour of the pipeline."""
        ranks = self.run.groups[what, self.rank].ranks
        peer = ranks[0] if ranks[1] == self.rank else ranks[1]
        n_bytes, verb = self.run.job.activations, "send" if sends else "recv"
        args = {"Collective name": verb, "In msg nelems": n_bytes // 2, "Out msg nelems": n_bytes // 2,
                "dtype": "BFloat16", "Dst Rank" if sends else "Src Rank": peer}  # fmt: skip
        number = _PIPE + 2 * what.startswith("backward") + sends
        name = f"ncclDevKernel_SendRecv{_STORAGE}"
        yield from self._together(what, number, name, f"nccl:{verb}", n_bytes, args, waits=waits)

    def _together(
        self, what: str, number: int, kernel: str, annotation: str, n_bytes: int, args: _Event, *, waits: bool
    ) -> _Script[_Mark]:
        run, stream, group = self.run, self.streams[number], self.run.groups[what, self.rank]
        start = run.now
        yield self._noisy(8.0)
        yield from self._wait(stream, (yield from self._mark(self._compute)))
        correlation = yield from self._call(stream, "cudaLaunchKernelExC")
        turn = self.turns[what] = self.turns.get(what, -1) + 1
        args = {**args, "Group size": len(group.ranks), "Process Group Name": group.name,
                "Process Group Description": group.about,
                "Process Group Ranks": str(list(group.ranks))}  # fmt: skip
        kind = f"{kernel} {len(group.ranks)}"

        def begin(done: Callable[[], None]) -> None:
            began = run.now

            def over() -> None:
                self._work("kernel", kernel, stream, began, correlation, **args)
                done()

            group.come(turn, self.rank, kind, n_bytes, over)

        self._give(stream, begin)
        mark = yield from self._mark(stream)
        self._span("user_annotation", annotation, start, run.now)
        if waits:
            yield from self._wait(self._compute, mark)
        return mark

    def _mark(self, stream: _Stream) -> _Script[_Mark]:
        """Record an event of a stream."""
        correlation = yield from self._short_call("cudaEventRecord")
        mark = stream.mark()
        mark.told = {"wait_on_stream": stream.number, "wait_on_cuda_event_record_corr_id": correlation}
        return mark

    def _wait(self, stream: _Stream, mark: _Mark) -> _Script[None]:
        """Let a stream wait for an event of another one."""
        correlation = yield from self._short_call("cudaStreamWaitEvent")
        stream.wait(mark)
        if self.run.job.says_waits:
            told = {"stream": stream.number, "correlation": correlation, "device": self.rank, **mark.told}
            self._span("cuda_sync", "Stream Wait Event", self.run.now, self.run.now, **told)

    def _short_call(self, name: str) -> _Script[int]:
        start = self.run.now
        yield self._noisy(1.2)
        correlation = self.run.number()
        self._span("cuda_runtime", name, start, self.run.now, correlation=correlation)
        return correlation

    def _noisy(self, us: float) -> float:
        if self.run.job.fixed is not None:
            return us
        return float(us * np.exp(self.run.draw.normal(0, 0.15)))

    def _span(self, cat: str, name: str, start: float, end: float, **args: object) -> None:
        thread = (self.rank, "stream sync") if cat == "cuda_sync" else (1000 + self.rank, self.thread)
        self._add(cat, name, thread, start, end, args)

    def _work(
        self, cat: str, name: str, stream: _Stream, start: float, correlation: int, **args: object
    ) -> None:
        args = {"device": self.rank, "stream": stream.number, "correlation": correlation, **args}
        self._add(cat, name, (self.rank, stream.number), start, self.run.now, args)

    def _add(
        self, cat: str, name: str, thread: tuple[int, int | str], start: float, end: float, args: _Event
    ) -> None:
        event = {"ph": "X", "cat": cat, "name": name, "pid": thread[0], "tid": thread[1], "args": args}
        times = {"ts": round(start, 3), "dur": round(end, 3) - round(start, 3)}
        self.run.spans[self.rank].append(event | times)


def random_job(seed: int) -> NCCLJob:
    """Draw a job of 2 to 8 ranks that computes for 10 to 100 ms in a step and reduces 10 to 400 MB."""
    draw = np.random.default_rng(seed)
    sizes = (1, 2, 1), (1, 4, 1), (1, 8, 1), (2, 2, 1), (2, 4, 1), (4, 2, 1), (1, 2, 2), (2, 2, 2)
    tensor, data, stages = sizes[int(draw.integers(8))]
    layers = int(draw.integers(4, 13))
    share = draw.dirichlet(np.full(layers, 5.0))
    compute = float(np.exp(draw.uniform(np.log(10e3), np.log(100e3))))
    total = float(np.exp(draw.uniform(np.log(10e6), np.log(400e6))))
    weights = draw.dirichlet(np.full(2 * layers, 0.7)) * total
    micro_batches = 4 if stages > 1 else 1

    def cut(of: Float64, k: int) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple((one * draw.dirichlet(np.full(k, 2.0))).tolist()) for one in of / micro_batches)

    ratio = float(np.exp(draw.uniform(np.log(0.15), np.log(1.5))))  # of reducing to computing
    slow = np.ones(tensor * data * stages)
    if draw.random() < 0.5:
        slow[draw.integers(len(slow))] = draw.uniform(1.15, 1.5)
    return NCCLJob(
        forward=cut(compute / 3 * share, 3),
        backward=cut(compute * 2 / 3 * share, 6),
        weights=tuple(
            tuple(int(max(w, 4096)) // 16 * 16 for half in weights[2 * i : 2 * i + 2] for w in (half, 4096))
            for i in range(layers)
        ),
        activations=int(draw.uniform(0.5, 8) * 1e6),
        slow=tuple(slow.tolist()),
        tensor=tensor,
        data=data,
        stages=stages,
        micro_batches=micro_batches,
        node=int(draw.choice([2, 4, 8])),
        rate=2 * total / (ratio * compute),
        near=float(draw.uniform(50e3, 300e3)),
        latency=float(draw.uniform(3, 20)),
        cap=[None, None, 2 * _MIB, 10 * _MIB][int(draw.integers(4))],
        spread=(float(draw.uniform(0.002, 0.02)), float(draw.uniform(0.0, 0.02))),
        crowding=float(draw.choice([0, 0, 0.1, 0.3])),
        host=float(np.exp(draw.uniform(np.log(5), np.log(60)))),
        load=float(draw.uniform(100, 3000)),
        waits=bool(draw.random() < 0.5),
        says_waits=bool(draw.random() < 0.3),
        shared=bool(draw.random() < 0.25),
    )
