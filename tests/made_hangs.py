"""Made dumps of hangs: ranks run programs of calls until nothing moves any more.

A rank's host makes its calls in order and goes on at once, but for calls that it waits for, and runs at most
some calls ahead. Its device works on them in order, one stream for collectives and messages and one for those
that overlap. A collective completes when all members are at it with the same arguments, a message when both
sides are: the rules of NCCL.
"""

from __future__ import annotations

import json
import pickle
import random
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

_AHEAD = 40  # calls that a host makes before its device has completed the first of them
_START_NS = 1_700_000_000_000_000_000
_KEPT = 2000  # entries of a recorder


class Op(NamedTuple):
    """One call in a program; `peer` of a message; the host waits for its end where `waits`."""

    group: str
    kind: str
    peer: int | None = None
    sizes: tuple[int, ...] = (1024,)
    dtype: str = "Float"
    side: bool = False
    waits: bool = False


class Made(NamedTuple):
    """The groups of a job (name -> description and members) and the program of each rank."""

    groups: dict[str, tuple[str, list[int]]]
    programs: dict[int, list[Op]]


class Run:
    """A run of a job to where nothing moves: what each rank called, and what of that was completed.

    `stops` says before which place of its program a rank's host stops; `frozen` after which completed call a
    rank's record no longer learns of completions.
    """

    def __init__(self, made: Made, rng: random.Random, stops: dict[int, int] | None = None) -> None:
        self.made, self.rng = made, rng
        self.stops = stops or {}
        self.called = dict.fromkeys(made.programs, 0)
        self.done: dict[int, set[int]] = {rank: set() for rank in made.programs}
        self.called_ns: dict[tuple[int, int], int] = {}
        self.done_ns: dict[tuple[int, int], int] = {}
        self.clock_ns = _START_NS
        self.numbers = {rank: _numbers(program) for rank, program in made.programs.items()}
        self.record_of: dict[int, int] = {}
        while self._move():
            pass

    def _move(self) -> bool:
        called = [self._call(rank) for rank in self._shuffled()]
        return self._complete() or any(called)

    def _shuffled(self) -> list[int]:
        ranks = list(self.called)
        self.rng.shuffle(ranks)
        return ranks

    def _call(self, rank: int) -> bool:
        """Let a host make calls until it waits for one, is far ahead, or stops."""
        program, moved = self.made.programs[rank], False
        while self.called[rank] < min(len(program), self.stops.get(rank, len(program))):
            at = self.called[rank]
            blocked = at and program[at - 1].waits and at - 1 not in self.done[rank]
            if blocked or at - len(self.done[rank]) >= _AHEAD:
                break
            self.clock_ns += self.rng.randint(1_000, 20_000)
            self.called_ns[rank, at] = self.clock_ns
            self.called[rank] += 1
            moved = True
        return moved

    def _fronts(self, rank: int) -> list[int]:
        """Return the call that each stream of a device is at."""
        program = self.made.programs[rank]
        found: dict[bool, int] = {}
        for at in range(self.called[rank]):
            if at not in self.done[rank]:
                found.setdefault(program[at].side, at)
        return list(found.values())

    def _complete(self) -> bool:
        """Complete the calls at which all who take part are, with the same arguments."""
        at_front: dict[Any, dict[int, int]] = defaultdict(dict)
        for rank in self.called:
            for at in self._fronts(rank):
                op = self.made.programs[rank][at]
                if op.peer is None:
                    key: Any = (op.group, self.numbers[rank][at])
                else:
                    pair = (rank, op.peer) if op.kind == "send" else (op.peer, rank)
                    key = (op.group, "message", pair)
                at_front[key][rank] = at
        moved = False
        for key, those in at_front.items():
            ops = [self.made.programs[rank][at] for rank, at in those.items()]
            needed = 2 if ops[0].peer is not None else len(self.made.groups[key[0]][1])
            alike = len({(op.kind, op.sizes, op.dtype) for op in ops}) == 1 or ops[0].peer is not None
            if len(those) == needed and alike:
                self.clock_ns += self.rng.randint(10_000, 90_000)
                for rank, at in those.items():
                    self.done[rank].add(at)
                    self.done_ns[rank, at] = self.clock_ns + self.rng.randint(0, 900)
                moved = True
        return moved

    def document(self, rank: int, *, seen: int | None = None) -> dict[str, Any]:
        """Return the dump of a rank; `seen`: so many completions its record has learnt of."""
        program, groups = self.made.programs[rank], self.made.groups
        done = set(sorted(self.done[rank])[:seen])
        own = [name for name, (_, members) in groups.items() if rank in members]
        entries = []
        counters = {name: [0, 0] for name in own}
        for at in range(self.called[rank]):
            op, is_done, number = program[at], at in done, self.numbers[rank][at]
            counters[op.group][0] = number
            if is_done:
                counters[op.group][1] = number
            members = groups[op.group][1]
            peer = f" {members.index(rank)}{'->' if op.kind == 'send' else '<-'}{members.index(op.peer)}" if (
                op.peer is not None) else ""  # fmt: skip
            entries.append({
                "record_id": at, "pg_id": own.index(op.group),
                "process_group": (op.group, groups[op.group][0]),
                "collective_seq_id": 0 if peer else number, "p2p_seq_id": number if peer else 0, "op_id": at,
                "profiling_name": f"nccl:{op.kind}{peer}", "time_created_ns": self.called_ns[rank, at],
                "input_sizes": [list(op.sizes)], "input_dtypes": [op.dtype], "output_sizes": [list(op.sizes)],
                "output_dtypes": [op.dtype], "state": "completed" if is_done else "scheduled",
                "time_discovered_started_ns": None,
                "time_discovered_completed_ns": self.done_ns[rank, at] if is_done else None,
                "retired": is_done, "timeout_ms": 600_000, "is_p2p": bool(peer),
                "frames": [{"name": "train_step", "filename": "/job/train.py", "line": 10 + at}],
            })  # fmt: skip
        return {
            "version": "2.9",
            "pg_config": {
                name: {"name": name, "desc": groups[name][0], "ranks": str(groups[name][1])} for name in own
            },
            "nccl_version": "2.27.3",
            "pg_status": {
                str(place): {
                    "last_enqueued_collective": counters[name][0],
                    "last_started_collective": -1,
                    "last_completed_collective": counters[name][1],
                }
                for place, name in enumerate(own)
            },
            "entries": entries[-_KEPT:],
        }  # fmt: skip

    def write(
        self,
        folder: Path,
        without: tuple[int, ...] = (),
        *,
        form: str = "pickle",
        seen: dict[int, int] | None = None,
        only: int | None = None,
    ) -> None:
        """Write the dumps of all ranks but some, or of `only` one; `seen` as of `document`, by rank."""
        folder.mkdir(parents=True, exist_ok=True)
        for rank in self.called if only is None else (only,):
            if rank not in without:
                document = self.document(rank, seen=(seen or {}).get(rank))
                text = json.dumps(document).encode() if form == "json" else pickle.dumps(document, protocol=2)
                (folder / f"dump_{rank}").write_bytes(text)


def _numbers(program: list[Op]) -> list[int]:
    """Return the number of each call among the collectives, or the messages, of its group."""
    count: dict[tuple[str, bool], int] = defaultdict(int)
    found = []
    for op in program:
        count[op.group, op.peer is None] += 1
        found.append(count[op.group, op.peer is None])
    return found


def small_job(n: int = 4, steps: int = 3) -> Made:
    """Return a job of two tensor groups and all ranks, six calls a step."""
    halves = [list(range(n // 2)), list(range(n // 2, n))]
    groups = {
        "0": ("default_pg", list(range(n))),
        "1": ("TENSOR_GROUP", halves[0]),
        "2": ("TENSOR_GROUP", halves[1]),
    }
    programs = {}
    for rank in range(n):
        own = "1" if rank < n // 2 else "2"
        step = [Op(own, "all_reduce"), Op(own, "_all_gather_base"),
                Op("0", "_reduce_scatter_base", sizes=(64,)),
                Op(own, "all_reduce", sizes=(9,)), Op("0", "all_reduce", sizes=(7,)),
                Op("0", "all_reduce", sizes=(1,), waits=True)]  # fmt: skip
        programs[rank] = step * steps
    return Made(groups, programs)
