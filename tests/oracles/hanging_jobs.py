"""Simulated jobs of many ranks that hang, or live, and the dumps that PyTorch's flight recorder would write.

A rank has a program of instructions. Its host makes the calls in order, goes on at once, and waits only where
the program reads a result, or where its device has too many tasks left. Its device has a stream for the
model, one for each group, and one for each pair of ranks that exchange messages outside a batch; a call
begins after all that its stream and the model's stream were given before, and the model's stream goes on
after a call that was waited for. A collective moves when all members are at it with the same arguments, a
batch of messages when each of them has its other side. Ends are the only solution of these equations, so a
job needs no global clock: what has no end when nothing more follows hangs.
"""

from __future__ import annotations

import json
import os
import pickle
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

START_NS = 1_700_000_000_000_000_000
_MS = 1_000_000
_NEVER = float("inf")
#: Members of these do not wait for the ones that only receive, if little is sent.
_EARLY = ("broadcast",)


class Do(NamedTuple):
    """An instruction: ``work`` of the device for `ns`, ``pause`` of the host for `ns`, ``read`` a result.

    ``wait`` lets the model's stream wait for the call of this `label`; ``call`` is a collective of `group`,
    and ``batch`` holds `messages`: a way, a peer and a number of elements. A call without a label is waited
    for at once. An `alone` message has a stream of its own pair of ranks.
    """

    what: str
    ns: int = 0
    label: str = ""
    group: str = ""
    kind: str = ""
    given: tuple[int, ...] = ()
    taken: tuple[int, ...] = ()
    dtype: str = "BFloat16"
    messages: tuple[tuple[str, int, tuple[int, ...]], ...] = ()
    alone: bool = False


class Job(NamedTuple):
    """Groups by name (description and members), and a program for each rank."""

    groups: dict[str, tuple[str, tuple[int, ...]]]
    programs: dict[int, list[Do]]


@dataclass(eq=False)
class _Task:
    """Something on a device: `after` are those that have to end before it begins."""

    rank: int
    do: Do
    after: list[_Task]
    created_ns: int = 0
    missing: int = 0
    ready_ns: float = _NEVER
    end_ns: float = _NEVER
    followers: list[_Task] = field(default_factory=list)
    is_host_waiting: bool = False
    number: int = 0
    unmatched: int = 0  # messages of a batch without their other sides
    known_ns: float = 0  # when those that have them end


class Simulation:
    """A job that has run until nothing moves.

    `stops` are the places of programs before which a host stops for good, and `reached` the ranks whose host
    did stop there. A device never ends work with the label ``stuck``.
    """

    def __init__(
        self, job: Job, rng: random.Random, stops: Mapping[int, int] | None = None, ahead: int = 300
    ) -> None:
        self.job, self._rng, self._stops, self._ahead = job, rng, stops or {}, ahead
        self.reached: set[int] = set()
        self.calls: dict[int, list[_Task]] = {rank: [] for rank in job.programs}
        self.finished: set[int] = set()
        self._place = dict.fromkeys(job.programs, 0)
        self._host_ns: dict[int, int] = {rank: START_NS + rng.randrange(2 * _MS) for rank in job.programs}
        self._streams: dict[int, dict[Any, list[_Task]]] = {rank: defaultdict(list) for rank in job.programs}
        self._labels: dict[tuple[int, str], _Task] = {}
        self._tasks: dict[int, list[_Task]] = {rank: [] for rank in job.programs}
        self._counts: dict[Any, int] = defaultdict(int)
        self._meetings: dict[Any, list[_Task]] = defaultdict(list)
        self._awake = list(job.programs)
        while self._awake:
            self._host(self._awake.pop())

    @property
    def hangs(self) -> bool:
        """True if some work never ends."""
        return len(self.finished) < len(self.job.programs) or any(
            task.end_ns == _NEVER for tasks in self._tasks.values() for task in tasks
        )

    @property
    def last_ns(self) -> int:
        """When the last thing happened."""
        ends = [task.end_ns for tasks in self._tasks.values() for task in tasks if task.end_ns < _NEVER]
        return int(max([*ends, *self._host_ns.values()]))

    def _host(self, rank: int) -> None:
        program, tasks, streams = self.job.programs[rank], self._tasks[rank], self._streams[rank]
        while True:
            at = self._place[rank]
            if at == self._stops.get(rank):
                self.reached.add(rank)
                return
            if len(tasks) >= self._ahead and not self._waited(rank, [tasks[-self._ahead]]):
                return
            if at == len(program):
                if self._waited(rank, streams["model"]):
                    self.finished.add(rank)
                return
            do = program[at]
            if do.what == "read" and not self._waited(rank, streams["model"]):
                return
            self._host_ns[rank] += do.ns if do.what == "pause" else self._rng.randint(3_000, 25_000)
            if do.what == "work":
                self._add(rank, do, "model", streams["model"])
            elif do.what == "wait":
                streams["model"] = [*streams["model"], self._labels.pop((rank, do.label))]
            elif do.what in ("call", "batch"):
                stream = (do.group, *sorted((rank, do.messages[0][1]))) if do.alone else do.group
                task = self._add(rank, do, stream, [*streams["model"], *streams[stream]])
                self.calls[rank].append(task)
                if do.label:
                    self._labels[rank, do.label] = task
                else:
                    streams["model"] = [task]
            self._place[rank] += 1

    def _waited(self, rank: int, tasks: Sequence[_Task]) -> bool:
        """True if tasks have ended, so that the host goes on; else the first that ends wakes it."""
        for task in tasks:
            if task.end_ns == _NEVER:
                task.is_host_waiting = True
                return False
            self._host_ns[rank] = max(self._host_ns[rank], int(task.end_ns))
        return True

    def _add(self, rank: int, do: Do, stream: Any, after: list[_Task]) -> _Task:
        task = _Task(rank, do, after, self._host_ns[rank])
        self._streams[rank][stream] = [task]
        self._tasks[rank].append(task)
        if do.what == "call":
            self._counts[rank, do.group] += 1
            task.number = self._counts[rank, do.group]
        elif do.what == "batch":
            self._counts[rank, do.group, "p2p"] += 1
            task.number = self._counts[rank, do.group, "p2p"]
        for before in after:
            if before.end_ns == _NEVER:
                before.followers.append(task)
                task.missing += 1
        if not task.missing:
            self._ready(task)
        return task

    def _ready(self, task: _Task) -> None:
        todo = [task]
        while todo:
            task = todo.pop()
            task.ready_ns = max([task.created_ns, *(before.end_ns for before in task.after)])
            for ended in self._meet(task):
                if ended.is_host_waiting:
                    self._awake.append(ended.rank)
                for follower in ended.followers:
                    follower.missing -= 1
                    if not follower.missing:
                        todo.append(follower)

    def _meet(self, task: _Task) -> list[_Task]:
        """Tasks that end because this one begins."""
        do = task.do
        if do.what == "work":
            if do.label == "stuck":
                return []
            task.end_ns = task.ready_ns + do.ns
            return [task]
        took_ns = self._rng.randint(50_000, 900_000)
        if do.what == "batch":
            return self._meet_messages(task, took_ns)
        met = self._meetings[do.group, task.number]
        met.append(task)
        members = self.job.groups[do.group][1]
        if len({signature(one.do) for one in met}) > 1:
            return []
        if do.kind in _EARLY and sum(do.given) < 10_000:
            root = next((one for one in met if one.rank == members[0]), None)
            fresh = [one for one in met if one.end_ns == _NEVER] if root else []
            for one in fresh:
                assert root is not None
                one.end_ns = max(one.ready_ns, root.ready_ns) + 30_000
            return fresh
        if len(met) < len(members) or not _adds_up(met):
            return []
        end_ns = max(one.ready_ns for one in met) + took_ns
        for one in met:
            one.end_ns = end_ns + self._rng.randint(0, 3_000)
        return met

    def _meet_messages(self, task: _Task, took_ns: int) -> list[_Task]:
        rank, group = task.rank, task.do.group
        task.unmatched, task.known_ns, ended = len(task.do.messages), task.ready_ns + took_ns, []
        for way, peer, _ in task.do.messages:
            pair = (rank, peer) if way == "send" else (peer, rank)
            mine, theirs = (way, "recv") if way == "send" else (way, "send")
            waiting = self._meetings[group, "p2p", pair, theirs, task.do.alone]
            if waiting:
                other = waiting.pop(0)
                both_ns = max(task.ready_ns, other.ready_ns) + took_ns
                for one in (task, other):
                    one.unmatched -= 1
                    one.known_ns = max(one.known_ns, both_ns)
                if not other.unmatched and other is not task:
                    other.end_ns = other.known_ns
                    ended.append(other)
            else:
                self._meetings[group, "p2p", pair, mine, task.do.alone].append(task)
        if not task.unmatched:
            task.end_ns = task.known_ns
            ended.append(task)
        return ended

    # ---- dumps

    def document(
        self, rank: int, at_ns: float, *, kept: int = 2000, poll_ns: int = 100 * _MS, timing: bool = False
    ) -> dict[str, Any]:
        """Dump of a rank at a moment; `poll_ns`: how often its watchdog looks."""
        groups = {name: group for name, group in self.job.groups.items() if rank in group[1]}
        ids = {name: place for place, name in enumerate(groups)}
        counters = {name: [-1, -1, -1] for name in groups}
        collective: dict[str, int] = defaultdict(int)
        p2p: dict[str, int] = defaultdict(int)
        op_ids: dict[str, int] = defaultdict(int)
        entries: list[dict[str, Any]] = []
        for task in self.calls[rank]:
            if task.created_ns > at_ns:
                break
            do, members = task.do, groups[task.do.group][1]
            is_done = task.end_ns <= at_ns
            started = timing and task.ready_ns <= at_ns
            if do.what == "call":
                collective[do.group] = task.number
            else:
                p2p[do.group] = task.number
            counters[do.group][0] = task.number
            if is_done:
                counters[do.group][2] = task.number
            if do.what == "call":
                parts = [(do.kind, do.given, do.taken)]
            else:
                parts = [
                    (
                        f"{way} {members.index(rank)}{'->' if way == 'send' else '<-'}{members.index(peer)}",
                        n,
                        n,
                    )
                    for way, peer, n in do.messages
                ]
            launch = [] if do.what == "call" or do.alone else [("coalesced", (), ())]
            for kind, given, taken in [*parts, *launch]:
                op_ids[do.group] += 1
                own = do.what == "call" or do.alone or kind == "coalesced"
                seen = int(min(-(-task.end_ns // poll_ns) * poll_ns, at_ns)) if is_done and own else None
                begun = int(min(-(-task.ready_ns // poll_ns) * poll_ns, at_ns)) if started and own else None
                entries.append({
                    "frames": [{"name": f"call_{self.job.programs[rank].index(do) % 50}", "filename":
                                "/job/train.py", "line": 7}],
                    "record_id": len(entries), "pg_id": ids[do.group],
                    "process_group": (do.group, groups[do.group][0]),
                    "collective_seq_id": collective[do.group], "p2p_seq_id": p2p[do.group],
                    "op_id": op_ids[do.group], "profiling_name": f"nccl:{kind}",
                    "time_created_ns": task.created_ns, "input_sizes": [list(given)] if given else [],
                    "input_dtypes": [do.dtype] if given else [],
                    "output_sizes": [list(taken)] if taken else [],
                    "output_dtypes": [do.dtype] if taken else [],
                    "state": "completed" if seen is not None else "started" if begun else "scheduled",
                    "time_discovered_started_ns": begun, "time_discovered_completed_ns": seen,
                    "retired": seen is not None and seen < at_ns, "timeout_ms": 600_000,
                    "is_p2p": do.what == "batch",
                })  # fmt: skip
        return {
            "version": "2.9",
            "pg_config": {
                name: {"name": name, "desc": description, "ranks": str(list(members))}
                for name, (description, members) in groups.items()
            },
            "nccl_version": "2.27.3",
            "pg_status": {
                str(ids[name]): {
                    "last_enqueued_collective": enqueued, "last_started_collective": started,
                    "last_completed_collective": completed,
                }
                for name, (enqueued, started, completed) in counters.items()
            },
            "entries": entries[-kept:],
        }  # fmt: skip

    def write(
        self,
        folder: Path,
        at_ns: Callable[[int], float],
        *,
        as_json: bool = False,
        keeps_times: bool = True,
        **recorder: Any,
    ) -> None:
        """Write the dumps of all ranks, each `at_ns(rank)`."""
        folder.mkdir(parents=True, exist_ok=True)
        for rank in self.job.programs:
            document = self.document(rank, at_ns(rank), **recorder)
            path = folder / f"nccl_trace_rank_{rank}"
            path.write_bytes(json.dumps(document).encode() if as_json else pickle.dumps(document, 2))
            if keeps_times:
                written_ns = int(at_ns(rank)) + self._rng.randrange(20, 900) * _MS
                os.utime(path, ns=(written_ns, written_ns))


def signature(do: Do) -> tuple[Any, ...]:
    """Facts that all members of a collective must agree on (not the sizes of an all-to-all)."""
    is_uneven = do.kind.startswith("all_to_all")
    return (do.kind, do.dtype, *(() if is_uneven else (_elements(do.given), _elements(do.taken))))


def _elements(sizes: Sequence[int]) -> int:
    product = 1
    for size in sizes:
        product *= size
    return product if sizes else 0


def _adds_up(met: Sequence[_Task]) -> bool:
    """True if the members of an all-to-all take as much as they give."""
    if not met[0].do.kind.startswith("all_to_all"):
        return True
    return sum(_elements(one.do.given) - _elements(one.do.taken) for one in met) == 0


# ---- jobs


def _work(rng: random.Random, ms: float) -> Do:
    return Do("work", int(ms * _MS * rng.uniform(0.8, 1.2)))


def data_parallel(rng: random.Random, n: int = 16, steps: int = 6, *, reads: bool = True) -> Job:
    """Gradients in buckets while the backward pass goes on; the loss is reduced, and read by the host."""
    groups = {"0": ("default_pg", tuple(range(n)))}
    buckets = [rng.randrange(1000, 90_000) for _ in range(rng.randint(3, 8))]
    programs = {}
    for rank in range(n):
        program = [Do("call", group="0", kind="broadcast", given=(900,), taken=(900,))]
        for _ in range(steps):
            program += [Do("pause", rng.randrange(_MS)), _work(rng, 4)]
            for i, size in enumerate(buckets):
                program += [_work(rng, 1), Do("call", 0, f"b{i}", "0", "all_reduce", (size,), (size,))]
            program += [Do("wait", label=f"b{i}") for i in range(len(buckets))]
            program += [_work(rng, 1), Do("call", 0, "", "0", "all_reduce", (1,), (1,), "Float")]
            program += [Do("read")] if reads else []
        programs[rank] = program
    return Job(groups, programs)


def sharded(rng: random.Random, n: int = 16, steps: int = 4, shard: int = 8) -> Job:
    """Weights sharded over `shard` ranks, gathered a layer ahead; gradients also reduced over replicas."""
    groups = {"0": ("default_pg", tuple(range(n)))}
    of: dict[int, list[str]] = defaultdict(list)
    for name, parts in (
        ("mesh_shard", [range(at, at + shard) for at in range(0, n, shard)]),
        ("mesh_replicate", [range(at, n, shard) for at in range(shard)]),
    ):
        for members in parts:
            groups[str(len(groups))] = (name, tuple(members))
            for rank in members:
                of[rank].append(str(len(groups) - 1))
    layers = [rng.randrange(2000, 50_000) * shard for _ in range(rng.randint(3, 5))]
    programs = {}
    for rank in range(n):
        own, copies = of[rank]

        def gather(layer: int, own: str = own) -> Do:
            size = layers[layer]
            return Do("call", 0, f"g{layer}", own, "_allgather_base", (size // shard,), (size,))

        program: list[Do] = []
        for _ in range(steps):
            program += [Do("pause", rng.randrange(_MS)), gather(0)]
            for at in range(len(layers)):
                program += [gather(at + 1)] if at + 1 < len(layers) else []
                program += [Do("wait", label=f"g{at}"), _work(rng, 1)]
            for at in reversed(range(len(layers))):
                size = layers[at]
                program += [gather(at), Do("wait", label=f"g{at}"), _work(rng, 2)]
                part = (size // shard,)
                program += [Do("call", 0, f"r{at}", own, "_reduce_scatter_base", (size,), part, "Float"),
                            Do("wait", label=f"r{at}")]  # fmt: skip
                program += [Do("call", 0, f"c{at}", copies, "all_reduce", part, part, "Float")]
            program += [Do("wait", label=f"c{at}") for at in range(len(layers))]
            program += [Do("call", 0, "", "0", "all_reduce", (1,), (1,), "Float"), Do("read"), _work(rng, 1)]
        programs[rank] = program
    return Job(groups, programs)


def ring(rng: random.Random, n: int = 8, steps: int = 4) -> Job:
    """Attention over a ring: batches of a send and a receive, then gradients of all ranks."""
    groups = {"0": ("default_pg", tuple(range(n))), "1": ("context", tuple(range(n)))}
    layers = rng.randint(1, 3)
    programs = {}
    for rank in range(n):
        both = (("send", (rank + 1) % n, (64, 128)), ("recv", (rank - 1) % n, (64, 128)))
        program = []
        for _ in range(steps):
            program += [Do("pause", rng.randrange(_MS))]
            for _ in range(2 * layers):
                for _ in range(n - 1):
                    program += [
                        Do("batch", 0, "kv", "1", messages=both),
                        _work(rng, 0.4),
                        Do("wait", label="kv"),
                    ]
            program += [Do("call", 0, f"b{i}", "0", "all_reduce", (9000 + i,), (9000 + i,)) for i in range(3)]
            program += [Do("wait", label=f"b{i}") for i in range(3)]
            program += [Do("call", 0, "", "0", "all_reduce", (1,), (1,), "Float"), Do("read")]
        programs[rank] = program
    return Job(groups, programs)


def parallel(
    rng: random.Random,
    tensor: int = 4,
    data: int = 4,
    stages: int = 4,
    steps: int = 2,
    *,
    alone: bool = False,
) -> Job:
    """Tensor x data x pipeline groups, one forward and one backward in turn, and experts over data ranks."""
    n = tensor * data * stages
    groups: dict[str, tuple[str, tuple[int, ...]]] = {"0": ("default_pg", tuple(range(n)))}
    of: dict[int, dict[str, str]] = {rank: {} for rank in range(n)}
    where = {rank: (rank % tensor, rank // tensor % data, rank // tensor // data) for rank in range(n)}
    for kind, key in (
        ("TENSOR", lambda t, d, p: (d, p)), ("DATA", lambda t, d, p: (t, p)),
        ("PIPELINE", lambda t, d, p: (t, d)), ("EXPERT", lambda t, d, p: (t, d // 2, p)),
        ("MODEL", lambda t, d, p: (d,)),
    ):  # fmt: skip
        by: dict[Any, list[int]] = defaultdict(list)
        for rank in range(n):
            by[key(*where[rank])].append(rank)
        for members in by.values():
            for rank in members:
                of[rank][kind] = str(len(groups))
            groups[str(len(groups))] = (f"{kind}_PARALLEL_GROUP", tuple(members))
    for t in range(tensor):
        for d in range(data):
            ends = (t + tensor * d, t + tensor * d + tensor * data * (stages - 1))
            for rank in ends:
                of[rank]["EMBEDDING"] = str(len(groups))
            groups[str(len(groups))] = ("EMBEDDING_GROUP", ends)
    layers, batches = rng.randint(1, 2), rng.randint(stages, stages + 3)
    moe = rng.random() < 0.7
    # tokens by expert group, step, batch and layer: what all give is what all take
    tokens: dict[Any, tuple[int, ...]] = {}

    def routed(rank: int, key: Any) -> tuple[int, int]:
        members = groups[of[rank]["EXPERT"]][1]
        own = (of[rank]["EXPERT"], *key)
        if own not in tokens:
            cuts = sorted(rng.randrange(1, 400 * len(members)) for _ in members[1:])
            tokens[own] = tuple(b - a for a, b in zip([0, *cuts], [*cuts, 400 * len(members)], strict=True))
        return 400, tokens[own][members.index(rank)]

    programs: dict[int, list[Do]] = {}
    for rank in range(n):
        own, stage = of[rank], where[rank][2]
        line = groups[own["PIPELINE"]][1]
        program: list[Do] = []

        def swap(
            *messages: tuple[str, int], own: Mapping[str, str] = own, where_stage: int = stage
        ) -> list[Do]:
            sized = tuple((way, peer, (32, 64)) for way, peer in messages)
            if alone:  # of two neighbours one begins with what the other one sends
                turned = sized[:: -1 if where_stage % 2 else 1]
                return [Do("batch", 0, "", own["PIPELINE"], messages=(one,), alone=True) for one in turned]
            return [Do("batch", 0, "", own["PIPELINE"], messages=sized)] if sized else []

        def block(
            step: int, batch: int, way: str, own: Mapping[str, str] = own, rank: int = rank
        ) -> list[Do]:
            found = []
            for layer in range(layers):
                found += [_work(rng, 0.7), Do("call", 0, "", own["TENSOR"], "all_reduce", (32, 64), (32, 64))]
                if moe:
                    given, taken = routed(rank, (step, batch, way, layer))
                    found += [
                        Do("call", 0, "", own["EXPERT"], "_allgather_base", (8,), (16,), "Long"), Do("read"),
                        Do("call", 0, "", own["EXPERT"], "all_to_all", (given, 64), (taken, 64)),
                        _work(rng, 0.5),
                        Do("call", 0, "", own["EXPERT"], "all_to_all", (taken, 64), (given, 64)),
                    ]  # fmt: skip
                found += [Do("call", 0, "", own["TENSOR"], "_reduce_scatter_base", (32, 64), (8, 64))]
            return found

        before = [line[stage - 1]] if stage else []
        after = [line[stage + 1]] if stage + 1 < stages else []
        warm = min(stages - stage - 1, batches)
        for step in range(steps):
            program += [Do("pause", rng.randrange(_MS)),
                        Do("call", 0, "", own["TENSOR"], "broadcast", (128,), (128,), "Long")]  # fmt: skip
            for batch in range(warm):
                program += swap(*(("recv", peer) for peer in before))
                program += block(step, batch, "f")
                program += swap(*(("send", peer) for peer in after))
            if batches > warm:
                program += swap(*(("recv", peer) for peer in before))
            for batch in range(warm, batches):
                program += block(step, batch, "f")
                program += swap(*(pair for peer in after for pair in (("send", peer), ("recv", peer))))
                program += block(step, batch - warm, "b")
                if batch + 1 < batches:
                    program += swap(*(pair for peer in before for pair in (("send", peer), ("recv", peer))))
                else:
                    program += swap(*(("send", peer) for peer in before))
            for batch in range(batches - warm, batches):
                program += swap(*(("recv", peer) for peer in after))
                program += block(step, batch, "b")
                program += swap(*(("send", peer) for peer in before))
            for i in range(2):
                size = 5000 * (i + 1) + stage
                program += [
                    Do("call", 0, f"d{i}", own["DATA"], "_reduce_scatter_base", (4 * size,), (size,), "Float")
                ]
            program += [Do("wait", label=f"d{i}") for i in range(2)]
            if "EMBEDDING" in own:
                program += [Do("call", 0, "", own["EMBEDDING"], "all_reduce", (777,), (777,))]
            program += [Do("call", 0, "", own["MODEL"], "all_reduce", (1,), (1,), "Float"), Do("read"),
                        _work(rng, 1),
                        Do("call", 0, "", own["DATA"], "_allgather_base", (50,), (200,)),
                        Do("call", 0, "", "0", "all_reduce", (2,), (2,), "Float"), Do("read")]  # fmt: skip
        programs[rank] = program
    return Job(groups, programs)
