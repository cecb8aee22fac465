"""BytePS jobs that run in a simulated cluster and write what its profiler would, so that edits can be run.

The cluster knows what the replay must find out from the recording, and shares nothing with it. Every node
sends and receives at the network's rate, its connections (one to each other node, in order) in fair shares of
what each of them passes (max-min, as TCP's settle); acknowledgements and requests for an answer stand in
them, behind the bytes of others. Each message costs its sender, the server and its receiver some time of one
thread. Where cores are shared, a worker computes more slowly while it sends or receives. So the replay is not
asked to give its own model back.
"""

from __future__ import annotations

import itertools
import json
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np

from analyzer.base.arrays import Float64
from oracles.simulated_cluster import Clock, Core, SharedLimits

#: What a message without a tensor carries, and what headers add to the bytes of one that has.
_SMALL_BYTES, _HEADERS = 300, 0.045
#: How often the threads of a worker look for work, and how long a message is under way (ms).
_POLL, _LATENCY = 0.05, 0.05
#: What passes between nodes of one machine (bytes per ms).
_WITHIN = 3e6
#: Within how long workers start (ms).
_APART = 300.0
#: Steps before a job is in its rhythm.
_WARM_UP = 20
_LOG = "[2026-11-21 00:04:58.368272: D byteps/common/operations.cc:245]"


@dataclass(frozen=True, slots=True)
class BytePSJob:
    """A synchronous job; times in milliseconds, rates in bytes per millisecond."""

    forward: tuple[float, ...]  # (layers,) of every worker
    backward: tuple[float, ...]
    tensors: tuple[
        int, ...
    ]  # (layers,) bytes of each layer's weights; each layer also has a bias of 80 bytes
    slow: tuple[float, ...]  # (workers,) factor of each worker's computation
    partition: int  # bytes of a partition, at most
    rate: float  # of a node's link
    message: float  # cost of a message for each thread that handles it
    per_byte: float  # likewise, for each byte
    spread: float  # of computation from step to step, a standard deviation as a share
    servers: int = 1
    shares: int = 1  # of the keys: each server has one, and the last server all remaining ones
    adding: float = 0.0  # additional cost of each byte for a server
    busy: tuple[float, ...] = ()  # (servers,) factor of each server's time for a message
    far: tuple[float, ...] = ()  # (servers,) factor of the time of the bytes in each server's network
    sharing: float = 0.0  # share by which a worker computes longer while its bytes move
    here: bool = False  # server i runs on worker i's machine

    def edited(self, edit: str, _steps: int = 0, _seed: int = 0) -> BytePSJob:
        """Apply an edit.

        ``bandwidth=R``, ``bandwidth=RMbit``, ``partition_bytes=N``, ``straggler=none``, ``FW=R``, ``BW=R``,
        ``wk<i>=R``.
        """
        name, _, value = edit.partition("=")
        if name == "bandwidth":
            bits = {"M": 125.0, "G": 125e3}
            to = float(value[:-4]) * bits[value[-4]] if value.endswith("bit") else self.rate * float(value)
            # so much a second is what all links carry then
            return replace(self, rate=to, far=() if value.endswith("bit") else self.far)
        if name == "partition_bytes":
            return replace(self, partition=int(value))
        if name == "straggler":
            return replace(self, slow=(1.0,) * len(self.slow))
        factor = float(value)
        if name == "FW":
            return replace(self, forward=tuple(one * factor for one in self.forward))
        if name == "BW":
            return replace(self, backward=tuple(one * factor for one in self.backward))
        at = int(name.removeprefix("wk"))
        return replace(self, slow=tuple(one * (factor if i == at else 1) for i, one in enumerate(self.slow)))

    def server(self, key: int) -> int:
        """Server of a key."""
        return min((key ^ key >> 16) % max(self.shares, self.servers), self.servers - 1)

    def run(self, n_steps: int, seed: int, directory: Path | None = None) -> Float64:
        """Run `n_steps` and return their lengths (ms); write them as a job into `directory`.

        Workers that compete for a link may take a dozen steps to find their rhythm; those are left out.
        """
        cluster = _Cluster(self, _WARM_UP + n_steps + 1, np.random.default_rng(seed))
        cluster.run()
        begins = np.array(cluster.begins)[:, _WARM_UP : _WARM_UP + n_steps + 1]
        if directory is not None:
            cluster.write(directory, begins[:, 0], begins[:, -1])
        length: Float64 = np.diff(begins, axis=1).mean(axis=0)
        return length


class _Queue:
    """Serves one after the other; of several peers, each in its turn."""

    def __init__(self, cluster: _Cluster) -> None:
        self._cluster, self._busy = cluster, False
        self._waiting: dict[int, deque[tuple[float, float, Callable[[], None]]]] = {}

    def serve(self, takes: float, then: Callable[[], None], later: float = 0.0, peer: int = 0) -> None:
        """Take a task; `then` comes when it has been served, and `later` has passed."""
        self._waiting.setdefault(peer, deque()).append((takes, later, then))
        if not self._busy:
            self._next()

    def _next(self) -> None:
        for peer in list(self._waiting):
            of_peer = self._waiting.pop(peer)
            if of_peer:
                self._waiting[peer] = of_peer  # the last in turn now
                takes, later, then = of_peer.popleft()
                self._busy = True
                end = self._cluster.now + takes
                self._cluster.at(end, self._done)
                self._cluster.at(end + later, then)
                return

    def _done(self) -> None:
        self._busy = False
        self._next()


_Node: TypeAlias = tuple[str, int]


class _Network:
    """Connections between nodes: each carries one message after the other; all share what nodes can carry."""

    def __init__(self, cluster: _Cluster) -> None:
        self._cluster, self._limits = cluster, SharedLimits(cluster, cluster.carries, cluster.speeds_change)
        self._queues: dict[tuple[_Node, _Node], deque[tuple[float, Callable[[], None]]]] = {}

    def busy(self) -> set[_Node]:
        """Nodes from or to which bytes are moving."""
        return {node for node, _ in cast("set[tuple[_Node, str]]", self._limits.busy())}

    def send(self, source: _Node, target: _Node, n_bytes: float, then: Callable[[], None]) -> None:
        """Send a message; `then` comes when its last byte has arrived."""
        ends = self._cluster.machine(source), self._cluster.machine(target)
        if ends[0] == ends[1]:
            self._cluster.at(self._cluster.now + _LATENCY + n_bytes / _WITHIN, then)
            return
        queue = self._queues.setdefault((source, target), deque())
        queue.append((n_bytes, lambda: self._cluster.at(self._cluster.now + _LATENCY, then)))
        if len(queue) == 1:
            self._next(ends, queue)

    def _next(self, ends: tuple[_Node, _Node], queue: deque[tuple[float, Callable[[], None]]]) -> None:
        n_bytes, then = queue[0]

        def arrived() -> None:
            then()
            queue.popleft()
            if queue:
                self._next(ends, queue)

        self._limits.move(n_bytes, ((ends[0], "out"), (ends[1], "in")), arrived)


class _Cluster(Clock):
    def __init__(self, job: BytePSJob, n_steps: int, draw: np.random.Generator) -> None:
        super().__init__()
        self.job, self.n_steps, self.draw = job, n_steps, draw
        workers = range(len(job.slow))
        self.begins: list[list[float]] = [[] for _ in workers]
        self.spans: list[list[dict[str, Any]]] = [[] for _ in workers]
        self.sending, self.receiving = ([_Queue(self) for _ in workers] for _ in range(2))
        self.taking, self.answering = ([_Queue(self) for _ in range(job.servers)] for _ in range(2))
        self.cores = [Core(self) for _ in workers]
        self.network = _Network(self)
        self._pushed: dict[tuple[int, int], int] = {}
        self._asked: dict[tuple[int, int], list[Callable[[], None]]] = {}
        self._parts = self._cut()

    def machine(self, node: _Node) -> _Node:
        """Node whose network card another one uses."""
        return ("worker", node[1]) if self.job.here and node[1] < len(self.job.slow) else node

    def carries(self, limit: Hashable) -> float:
        """Bytes that a node sends, or receives, in a millisecond."""
        (kind, i), _ = cast("tuple[_Node, str]", limit)
        far = self.job.far[i] if self.job.far and kind == "server" else 1.0
        return self.job.rate / far

    def speeds_change(self) -> None:
        """Let workers compute as fast as what they send and receive leaves them."""
        if self.job.sharing:
            busy = self.network.busy()
            for worker, core in enumerate(self.cores):
                core.change(1 / (1 + self.job.sharing * (("worker", worker) in busy)))

    def run(self) -> None:
        for worker in range(len(self.job.slow)):  # processes never start at once
            self.at(float(self.draw.uniform(0, _APART)), partial(self._begin, worker, 0))
        super().run()

    def _cut(self) -> list[list[tuple[str, list[tuple[int, int]]]]]:
        """Tensors of each layer: name, and (key, bytes) of each partition."""
        layers = []
        for layer, n_bytes in enumerate(self.job.tensors):
            tensors = []
            for which, (kind, size) in enumerate((("weight", n_bytes), ("bias", 80))):
                first = (2 * layer + which) << 16
                full, rest = divmod(size, self.job.partition)
                sizes = [self.job.partition] * full + ([rest] if rest else [])
                tensors.append((f"layer{layer}_{kind}", [(first + i, one) for i, one in enumerate(sizes)]))
            layers.append(tensors)
        return layers

    def _begin(self, worker: int, step: int) -> None:
        self.begins[worker].append(self.now)
        if step == self.n_steps:
            return
        job, layers = self.job, len(self.job.forward)
        noise = np.exp(self.draw.normal(0, job.spread, 2 * layers)) * job.slow[worker]
        todo = [("I/O", 1.0)]
        todo += [(f"FW.layer{i}", job.forward[i] * noise[i]) for i in range(layers)]
        todo += [(f"BW.layer{i}", job.backward[i] * noise[layers + i]) for i in reversed(range(layers))]
        left = {tensor: len(parts) for layer in self._parts for tensor, parts in layer}
        since: dict[str, float] = {}

        def compute(i: int) -> None:
            if i == len(todo):
                return
            name, takes = todo[i]
            self.at(self.now + float(self.draw.exponential(0.1)), lambda: begun(i, name, takes))

        def begun(i: int, name: str, takes: float) -> None:
            self.cores[worker].compute(takes, partial(computed, i, name, self.now))

        def computed(i: int, name: str, start: float) -> None:
            self._span(worker, name, start, self.now, name.partition(".")[0], 7)
            if name.startswith("BW"):
                for tensor, parts in self._parts[int(name[8:])]:
                    since[tensor] = self.now
                    for key, n_bytes in parts:
                        self._push(worker, step, tensor, key, n_bytes, partial(received, tensor))
            compute(i + 1)

        def received(tensor: str) -> None:
            left[tensor] -= 1
            if not left[tensor]:
                self._span(worker, f"Comm.{tensor}", since[tensor], self.now, "Comm", "total")
                del left[tensor]
                if not left:
                    self.at(self.now + 0.5, lambda: self._begin(worker, step + 1))

        compute(0)

    def _span(self, worker: int, name: str, start: float, end: float, cat: str, tid: object) -> None:
        at = {"ts": round(start * 1e3), "dur": round(end * 1e3) - round(start * 1e3)}
        self.spans[worker].append({"ph": "X", "name": name, "cat": cat, "pid": name, "tid": tid, **at})

    def _push(self, w: int, step: int, tensor: str, key: int, n: int, done: Callable[[], None]) -> None:
        job, server = self.job, self.job.server(key)
        cost, on_wire = job.message + n * job.per_byte, n * (1 + _HEADERS) + _SMALL_BYTES
        busy = job.busy[server] if job.busy else 1.0
        here, there = ("worker", w), ("server", server)
        serving = (cost + n * job.adding) * busy
        begun = {"PUSH": 0.0, "PULL": 0.0}

        def stage(name: str, start: float) -> None:
            self._span(w, f"Comm.{tensor}.{name}", start, self.now, "Comm", str(key))

        def send() -> None:  # the thread that sends takes it
            stage("COPYD2H", self.now - 0.005)
            self.sending[w].serve(job.message / 2, sent)

        def sent() -> None:
            begun["PUSH"] = self.now
            self.network.send(here, there, on_wire, partial(self.taking[server].serve, serving, taken))

        def taken() -> None:
            self.network.send(there, here, _SMALL_BYTES, acknowledged)
            pushed = self._pushed[key, step] = self._pushed.get((key, step), 0) + 1
            if pushed == len(job.slow):
                for answer in self._asked.pop((key, step), []):
                    answer()

        def acknowledged() -> None:
            self.receiving[w].serve(job.message / 2, ask)

        def ask() -> None:
            stage("PUSH", begun["PUSH"])
            self.at(self.now + float(self.draw.uniform(0, 2 * _POLL)), pull)

        def pull() -> None:
            begun["PULL"] = self.now
            take = partial(self.taking[server].serve, job.message / 2 * busy, asked)
            self.network.send(here, there, _SMALL_BYTES, take)

        def asked() -> None:
            if self._pushed.get((key, step), 0) == len(job.slow):
                answer()
            else:
                self._asked.setdefault((key, step), []).append(answer)

        def answer() -> None:
            put = partial(self.network.send, there, here, on_wire, arrived)
            self.answering[server].serve(serving, put)

        def arrived() -> None:
            self.receiving[w].serve(cost, pulled)

        def pulled() -> None:
            stage("PULL", begun["PULL"])
            self.at(self.now + 0.1, copied)

        def copied() -> None:
            stage("COPYH2D", self.now - 0.005)
            done()

        self.at(self.now + float(self.draw.uniform(0, 2 * _POLL)), send)

    def write(self, directory: Path, first: Float64, last: Float64) -> None:
        """Write what happened from `first` to `last` (workers,) as BytePS does; the next step only begins."""
        layers = len(self.job.forward)
        workload = dict.fromkeys(range(self.job.servers), 0)
        lines = []
        for tensor, parts in itertools.chain(*self._parts):
            total = sum(size for _, size in parts)
            low, high = parts[0][0], parts[-1][0]
            lines.append(f"{_LOG} byteps.{tensor} partitioned to {len(parts)} part(s), total_len={total}, "
                         f"key_range=[{low}, {high}] rank=0")  # fmt: skip
            for key, size in parts:
                server = self.job.server(key)
                workload[server] += size
                lines.append(f"{_LOG} key {key} assigned to server {server}, accumulated workload for "
                             f"this server is {workload[server]}")  # fmt: skip
        chain = [f"FW.layer{i}" for i in range(layers)] + [f"BW.layer{i}" for i in reversed(range(layers))]
        edges = [("I/O", "FW.layer0"), *itertools.pairwise(chain)]
        edges += [(f"BW.layer{i}", f"Comm.{t}") for i, of in enumerate(self._parts) for t, _ in of]
        for worker, spans in enumerate(self.spans):
            gpu = directory / f"worker_{worker}" / "0"
            gpu.mkdir(parents=True)
            low, high = first[worker] * 1e3 - 1, last[worker] * 1e3 - 1
            kept = [one for one in spans if low <= one["ts"] < high + (one["name"] == "I/O") * 5e3]
            for one in kept:
                one["ts"] += 1_795_219_500_000_000
            (gpu / "bps_trace_local_rank0_step.json").write_text(json.dumps({"traceEvents": kept}))
            (gpu / "dag.gml").write_text(_gml(edges))
            (directory / f"worker_{worker}.byteps_debug_log.txt").write_text("\n".join(lines) + "\n")


def _gml(edges: list[tuple[str, str]]) -> str:
    names = list(dict.fromkeys(itertools.chain(*edges)))
    number = {name: i for i, name in enumerate(names)}
    nodes = [f'  node [\n    id {i}\n    label "{name}"\n  ]\n' for name, i in number.items()]
    arcs = [f"  edge [\n    source {number[a]}\n    target {number[b]}\n  ]\n" for a, b in edges]
    return "graph [\n  directed 1\n" + "".join(nodes + arcs) + "]\n"


def random_job(seed: int) -> BytePSJob:
    """Job of 2 to 4 workers that computes for 30 to 300 ms and sends 1 to 20 MB."""
    draw = np.random.default_rng(seed)
    layers = int(draw.integers(3, 9))
    share = draw.dirichlet(np.ones(layers))
    compute, total = (
        float(np.exp(draw.uniform(np.log(30), np.log(300)))),
        float(np.exp(draw.uniform(0, 2)) * 1e6),
    )
    tensors = np.maximum(draw.dirichlet(np.full(layers, 0.5)) * total, 400).astype(int)
    workers = int(draw.integers(2, 5))
    return BytePSJob(
        forward=tuple((compute / 3 * share).tolist()),
        backward=tuple((compute * 2 / 3 * share).tolist()),
        tensors=tuple(tensors.tolist()),
        slow=(1.0,) * workers,
        partition=int(draw.choice([65536, 262144, 1048576, 4096000])),
        rate=float(draw.choice([100, 200, 500, 1000, 10000])) * 125,
        message=float(draw.uniform(0.02, 0.2)),
        per_byte=float(draw.uniform(0.1, 0.6)) * 1e-6,
        spread=float(draw.uniform(0.01, 0.05)),
        servers=int(draw.integers(1, 3)),
        sharing=float(draw.choice([0, 0, 0.5])),
    )


def other_job(seed: int) -> BytePSJob:
    """Random job with servers on the workers' machines (even seeds), or one slow server."""
    job, draw = random_job(seed), np.random.default_rng(30_000 + seed)
    if seed % 2 == 0:
        return replace(job, servers=len(job.slow), here=True)
    servers = int(draw.integers(2, 4))
    slow = float(draw.choice([2, 4]))
    return replace(job, servers=servers, far=tuple(slow if i == 0 else 1.0 for i in range(servers)))
