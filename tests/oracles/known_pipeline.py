"""Jobs with pipelines side by side whose slowdown S follows from arithmetic, as PyTorch records them on GPUs.

Only kernels are recorded. Every rank computes micro-batches forward and backward, one of each in turn (1F1B:
Narayanan et al., SC 2021), exchanges activations and gradients with its neighbours, reduces gradients with
the same stage of the other pipelines, agrees with all ranks on the norm of the gradients, and updates.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

_GAP_US = 20.0  # from an operation's last input to its begin, about
_COMMUNICATION = frozenset(("send F", "send B", "gather", "scatter", "norm"))
#: Usual work of each kind (us), and how much it varies (standard deviation, as a share).
_USUAL = {"F": (20e3, 0.01), "B": (40e3, 0.01), "send F": (1500.0, 0.05), "send B": (1500.0, 0.05),
          "gather": (6e3, 0.03), "scatter": (12e3, 0.03), "norm": (1e3, 0.03),
          "update": (8e3, 0.02)}  # fmt: skip
_STREAM = {"F": 7, "B": 7, "update": 7, "send F": 20, "recv F": 21, "send B": 22, "recv B": 23,
           "gather": 24, "scatter": 24, "norm": 25}  # fmt: skip
_KERNEL = {"F": "forward", "B": "backward", "update": "multi_tensor_adam", "gather": "AllGather_RING_LL",
           "scatter": "ReduceScatter_Sum_bf16_RING_LL", "norm": "AllReduce_Sum_f32_RING_LL"}  # fmt: skip
_CALLED = {"gather": "_allgather_base", "scatter": "_reduce_scatter_base", "norm": "allreduce"}


class Op(NamedTuple):
    """One operation of a rank in a step: `kind` as in `_USUAL`, or the receiving of a send."""

    replica: int
    stage: int
    kind: str
    micro_batch: int = 0


Times = Mapping[Op, float]


@dataclass(frozen=True, slots=True)
class _Step:
    """When the operations of a step begin and end (us), as far as they are known."""

    work: Times
    gap: Callable[[], float]
    begin: dict[Op, float] = field(default_factory=dict)
    end: dict[Op, float] = field(default_factory=dict)

    def together(self, ops: Sequence[Op], ready: Sequence[float]) -> None:
        """Do what ends only when the last rank has begun."""
        self.begin.update((op, at + self.gap()) for op, at in zip(ops, ready, strict=True))
        last = max(self.begin[op] for op in ops)
        self.end.update((op, last + self.work[op]) for op in ops)

    def receive(self, op: Op, sent: Op, ready: float) -> float:
        """Receive what `op` needs of the operation `sent`, and return when that has come."""
        send, receive = sent._replace(kind=f"send {op.kind}"), op._replace(kind=f"recv {op.kind}")
        self.begin[send], self.begin[receive] = self.end[sent] + self.gap(), ready + self.gap()
        come = max(self.begin[send], self.begin[receive]) + self.work[send]
        self.end[send] = self.end[receive] = come
        return come

    def compute(self, op: Op, ready: float) -> float:
        """Compute, and return when that is done."""
        self.begin[op] = ready + self.gap()
        self.end[op] = self.begin[op] + self.work[op]
        return self.end[op]


@dataclass(frozen=True, slots=True)
class Pipelines:
    """A job of `replicas` pipelines; `slow` says how much longer (replica, stage) computes than usual.

    `uneven` is how much micro-batches differ in length (standard deviation of the logarithm).
    """

    slow: Mapping[tuple[int, int], float]
    uneven: float = 0.0
    stages: int = 4
    replicas: int = 2
    micro_batches: int = 8
    steps: int = 8
    seed: int = 3

    def works(self) -> list[dict[Op, float]]:
        """Work of every operation in each step (us)."""
        draw = np.random.default_rng(self.seed)
        return [self._work(draw) for _ in range(self.steps)]

    def _work(self, draw: np.random.Generator) -> dict[Op, float]:
        def usual(kind: str) -> float:
            middle, spread = _USUAL[kind]
            return float(middle * np.exp(draw.normal(0, spread)))

        work: dict[Op, float] = {}
        of_all = usual("norm")
        lengths = np.exp(draw.normal(0, self.uneven, (self.replicas, self.micro_batches)))
        for stage in range(self.stages):
            of_stage = {kind: usual(kind) for kind in ("gather", "scatter")}
            for replica in range(self.replicas):
                slow = self.slow.get((replica, stage), 1.0)
                for i, length in enumerate(lengths[replica]):
                    work |= {Op(replica, stage, kind, i): slow * length * usual(kind) for kind in "FB"}
                    work |= {Op(replica, stage, f"send {kind}", i): usual(f"send {kind}") for kind in "FB"}
                work |= {Op(replica, stage, kind): each for kind, each in of_stage.items()}
                work |= {Op(replica, stage, "norm"): of_all, Op(replica, stage, "update"): usual("update")}
        return work

    def run(self, work: Times, gap: Callable[[], float]) -> _Step:
        """Step in which each operation begins a `gap` (us) after its last input."""
        step = _Step(work, gap)
        ranks = [(replica, stage) for replica in range(self.replicas) for stage in range(self.stages)]
        of_stage = [[rank for rank in ranks if rank[1] == stage] for stage in range(self.stages)]
        for alike in of_stage:
            step.together([Op(*rank, "gather") for rank in alike], [0.0] * len(alike))
        done = {rank: step.end[Op(*rank, "gather")] for rank in ranks}
        left = {rank: self._order(rank[1]) for rank in ranks}
        while any(left.values()):
            for rank in ranks:
                while left[rank]:
                    op = Op(*rank, *left[rank][0])
                    sent = op._replace(stage=op.stage + (-1 if op.kind == "F" else 1))
                    if not 0 <= sent.stage < self.stages:
                        ready = done[rank]
                    elif sent in step.end:
                        ready = step.receive(op, sent, done[rank])
                    else:
                        break
                    done[rank] = step.compute(op, ready)
                    left[rank].pop(0)
        for alike in of_stage:
            step.together([Op(*rank, "scatter") for rank in alike], [done[rank] for rank in alike])
        scattered = [step.end[Op(*rank, "scatter")] for rank in ranks]
        step.together([Op(*rank, "norm") for rank in ranks], scattered)
        for rank in ranks:
            step.compute(Op(*rank, "update"), step.end[Op(*rank, "norm")])
        return step

    def _order(self, stage: int) -> list[tuple[str, int]]:
        """Computations of a stage in their order, as (kind, micro-batch)."""
        ahead = min(self.stages - 1 - stage, self.micro_batches)
        order = [("F", i) for i in range(ahead)]
        for i in range(self.micro_batches):
            order += [("F", i + ahead)] * (i + ahead < self.micro_batches) + [("B", i)]
        return order

    def slowdown(self, chosen: Callable[[Op], bool] = lambda op: True) -> float:
        """S: the mean over the steps of T(work) / T(ideal work), without gaps.

        Ideal is the mean of each kind of computation over ranks and steps, and the median of each kind of
        transfer. Only the `chosen` operations have their own work, all others the ideal one.
        """
        works = self.works()
        every: dict[str, list[float]] = {}
        for work in works:
            for op, each in work.items():
                every.setdefault(op.kind, []).append(each)
        ideal = {
            kind: float(np.median(each) if kind in _COMMUNICATION else np.mean(each))
            for kind, each in every.items()
        }

        def takes(work: Times) -> float:
            return max(self.run(work, lambda: 0.0).end.values())

        times = [
            takes({op: each if chosen(op) else ideal[op.kind] for op, each in work.items()}) for work in works
        ]
        return float(np.mean(times) / takes({op: ideal[op.kind] for op in works[0]}))

    def write(self, directory: Path, *, names_peers: bool) -> None:
        """Record the job: a file for each rank, as of PyTorch's profiler.

        The kernel of a send names the rank that receives, that of a receive the one that sends; nobody where
        they were batched, that is not `names_peers`.
        """
        draw = np.random.default_rng(self.seed + 1)
        events: list[list[dict[str, Any]]] = [[] for _ in range(self.stages * self.replicas)]
        base = 1e6
        for number, work in enumerate(self.works()):
            of_step = self.run(work, lambda: abs(draw.normal(_GAP_US, _GAP_US / 2)))
            for op, at in of_step.begin.items():
                name, args = self._kernel(op, names_peers)
                stream = _STREAM[op.kind]
                at_us, dur_us = round(base + at, 3), round(of_step.end[op] - at, 3)
                events[self._rank(op)].append(
                    {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": at_us,
                     "dur": dur_us, "args": {"device": 0, "stream": stream, **args}}
                )  # fmt: skip
            last = max(of_step.end.values())
            step = {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "pid": 9, "tid": 9,
                    "ts": round(base, 3), "dur": round(last, 3)}  # fmt: skip
            for own in events:
                own.append(step)
            base += last + 300
        directory.mkdir(parents=True)
        for rank, own in enumerate(events):
            info = {"backend": "nccl", "rank": rank, "world_size": len(events)}
            text = json.dumps({"distributedInfo": info, "traceEvents": own})
            (directory / f"rank{rank}.pt.trace.json").write_text(text)

    def _rank(self, op: Op) -> int:
        return op.replica * self.stages + op.stage

    def _kernel(self, op: Op, names_peers: bool) -> tuple[str, dict[str, Any]]:
        """Name of an operation's kernel, and what its args say of a collective."""
        if op.kind in ("F", "B", "update"):
            return _KERNEL[op.kind], {}
        storage = "(ncclDevKernelArgsStorage<4096ul>)"
        if op.kind in _KERNEL:
            everyone = list(range(self.stages * self.replicas))
            group = everyone if op.kind == "norm" else everyone[op.stage :: self.stages]
            told = {"Collective name": _CALLED[op.kind], "Process Group Name": f"{op.kind} {group[0]}",
                    "Process Group Ranks": str(group)}  # fmt: skip
            return f"ncclDevKernel_{_KERNEL[op.kind]}{storage}", told
        verb, direction = op.kind.split()
        ahead = (direction == "F") == (verb == "send")
        peer = self._rank(op) + (1 if ahead else -1)
        side = "Dst Rank" if verb == "send" else "Src Rank"
        half = {"Collective name": verb, "Process Group Name": "pipeline", side: peer}
        return f"ncclDevKernel_SendRecv{storage}", half if names_peers else {}
