"""Jobs whose fault is known, and the dumps that they leave.

Each job runs in the simulation of `hanging_jobs`, which shares nothing with the diagnosis, until nothing
moves or, without a fault, until some moment.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from oracles.hanging_jobs import (
    START_NS,
    Do,
    Job,
    Simulation,
    data_parallel,
    parallel,
    ring,
    sharded,
    signature,
)  # fmt: skip

_S, _MS = 10**9, 10**6


class Case(NamedTuple):
    """A job with its fault: the `guilty`, those who may be named, and what is done at which places."""

    job: Job
    guilty: set[int]
    allowed: set[int]
    stops: Mapping[int, int] = {}


def write_case(fault: str, rng: random.Random, folder: Path) -> Case:
    """Write the dumps of a random job with a fault, or of one that lives."""
    is_alive = fault == "lives, at one moment"
    case, ahead = _living(rng) if is_alive else _faulty(fault, rng)
    run = Simulation(case.job, rng, case.stops, ahead=ahead)
    ranks = list(case.job.programs)
    if is_alive:
        at_ns = START_NS + (run.last_ns - START_NS) * rng.uniform(0.2, 0.9)
        moments: dict[int, float] = {rank: at_ns + rng.uniform(0.0, 0.0) for rank in ranks}
    else:
        moments = {rank: run.last_ns + 600 * _S + rng.randrange(3 * _S) for rank in ranks}
        if case.stops:
            reached = case.guilty & run.reached
            guilty = {rank for rank in reached if _is_missed(run, rank)}
            case = case._replace(guilty=guilty, allowed=reached)
        if not run.hangs:
            case = case._replace(guilty=set(), allowed=set())
    timing = rng.random() < 0.2
    run.write(
        folder, moments.__getitem__, as_json=rng.random() < 0.3, keeps_times=rng.random() < 0.5,
        kept=rng.choice([2000, 2000, 200, 60]), poll_ns=(100 if timing else rng.choice([100, 1000])) * _MS,
        timing=timing,
    )  # fmt: skip
    return case


def _job(rng: random.Random) -> tuple[Job, int]:
    """Draw a job, and the most tasks by which its hosts are ahead of their devices."""
    made = rng.choices(
        ("data", "no reads", "sharded", "ring", "alone", "small", "64"), (4, 2, 4, 2, 2, 3, 3)
    )[0]
    ahead = rng.choice([40, 300])
    if made in ("data", "no reads"):
        return data_parallel(rng, rng.choice([4, 8, 16, 32]), reads=made == "data"), ahead
    if made == "sharded":
        n = rng.choice([8, 16, 32])
        return sharded(rng, n, shard=rng.choice([4, 8] if n > 8 else [4])), ahead
    if made == "ring":
        return ring(rng, rng.choice([4, 8])), ahead
    if made == "alone":
        return parallel(rng, *(rng.choice([2, 4]) for _ in range(3)), alone=True), max(ahead, 100)
    sizes = (4, 4, 4) if made == "64" else (2, rng.choice([2, 4]), rng.choice([2, 4]))
    return parallel(rng, *sizes), max(ahead, 100)


def _places(job: Job, rank: int) -> list[int]:
    """Places of a rank's calls with others in its program, without the first steps."""
    program = job.programs[rank]
    return [
        i
        for i, do in enumerate(program)
        if do.what == "call" and len(job.groups[do.group][1]) > 1 and i > 0.15 * len(program)
    ]


def _with(job: Job, rank: int, program: Sequence[Do]) -> Job:
    return job._replace(programs={**job.programs, rank: [*program]})


def _changed(job: Job, rank: int, place: int, **change: Any) -> Job:
    program = [*job.programs[rank]]
    program[place] = program[place]._replace(**change)
    return _with(job, rank, program)


def _faulty(fault: str, rng: random.Random) -> tuple[Case, int]:
    while True:
        job, ahead = _job(rng)
        rank = rng.choice(list(job.programs))
        if fault == "a rank is a step behind":
            ahead = 1000
        if (case := _put(fault, rng, job, rank)) is not None:
            return case, ahead


def _put(fault: str, rng: random.Random, job: Job, rank: int) -> Case | None:
    """Add a fault to a job; None if the job cannot have it."""
    program, guilty = [*job.programs[rank]], {rank}
    place = rng.randrange(len(program) // 10, len(program) * 19 // 20)
    places = _places(job, rank)
    if fault == "a rank is a step behind":
        if any(do.what == "batch" for do in program):
            return None
        free = {one: [do for do in own if do.what != "read"] for one, own in job.programs.items()}
        begins = [i for i, do in enumerate(free[rank]) if do.what == "pause"]
        return Case(job._replace(programs=free), guilty, guilty, {rank: rng.choice(begins[1:])})
    if fault == "a rank stops":
        return Case(job, guilty, guilty, {rank: place})
    if fault == "two groups in two orders":
        return _in_two_orders(rng, job)
    if fault == "two calls exchanged":
        pairs = [
            (a, b)
            for a, b in pairwise(places)
            if program[a].group == program[b].group and signature(program[a]) != signature(program[b])
        ]
        if not pairs:
            return None
        a, b = rng.choice(pairs)
        program[a], program[b] = (
            program[b]._replace(label=program[a].label),
            program[a]._replace(label=program[b].label),
        )
        return Case(_with(job, rank, program), guilty, guilty)
    if fault == "another size":
        places = [i for i in places if program[i].kind != "all_to_all"]
    if not places:
        return None
    place = rng.choice(places)
    do = program[place]
    if fault == "a call left out":
        program[place] = Do("pause", 1000)
        wait = next(
            (i for i in range(place, len(program)) if program[i] == Do("wait", label=do.label)), place
        )
        program[wait] = Do("pause", 1000)
        return Case(_with(job, rank, program), guilty, guilty)
    more = (do.given[0] + 1, *do.given[1:])
    changes: dict[str, dict[str, Any]] = {
        "another size": {"given": more, "taken": (do.taken[0] + 1, *do.taken[1:])},
        "another kind": {"kind": "all_reduce" if do.kind != "all_reduce" else "_allgather_base"},
    }
    return Case(_changed(job, rank, place, **changes[fault]), guilty, guilty)


def _in_two_orders(rng: random.Random, job: Job) -> Case | None:
    """Let some of the ranks of two groups call these in another order than the rest."""
    members = {name: {*own} for name, (_, own) in job.groups.items()}
    pairs = [(a, b) for a in members for b in members if a < b and len(members[a] & members[b]) > 1]
    if not pairs:
        return None
    one, two = rng.choice(pairs)
    both = sorted(members[one] & members[two])
    turned = {*rng.sample(both, rng.randint(1, len(both) // 2))}
    programs = {}
    for rank, program in job.programs.items():
        at = max(i for i, do in enumerate(program) if do.what == "pause")
        new = [
            Do("call", 0, "", name, "all_reduce", (31,), (31,))
            for name in (one, two)
            if rank in members[name]
        ]
        programs[rank] = program[:at] + new[:: -1 if rank in turned else 1] + program[at:]
    return Case(job._replace(programs=programs), turned, {*both})


def _living(rng: random.Random) -> tuple[Case, int]:
    """Draw a job in which one rank is often slow."""
    job, ahead = _job(rng)
    rank = rng.choice(list(job.programs))
    program = job.programs[rank]
    if rng.random() < 0.6:
        times = rng.choice([1.3, 2, 5])
        program = [do._replace(ns=int(do.ns * times)) if do.what == "work" else do for do in program]
    return Case(_with(job, rank, program), set(), set()), ahead


def _is_missed(run: Simulation, rank: int) -> bool:
    """True if another rank made a call, or has a message, that this rank lacks (else no dump shows it)."""
    calls: Counter[tuple[str, int]] = Counter()  # by group and rank
    messages: Counter[tuple[str, int, int, str]] = Counter()  # by group, sender, receiver, and who counts
    for own in run.calls.values():
        for call in own:
            calls[call.do.group, call.rank] += call.do.what == "call"
            for way, peer, _ in call.do.messages:
                pair = (call.rank, peer) if way == "send" else (peer, call.rank)
                key = (call.do.group, *pair, way)
                messages[key] += 1
    for (group, other), n in calls.items():
        if {rank, other} <= {*run.job.groups[group][1]} and n > calls[group, rank]:
            return True
    return any(
        n > messages[group, sender, receiver, "send" if way == "recv" else "recv"]
        for (group, sender, receiver, way), n in [*messages.items()]
        if rank == (sender if way == "recv" else receiver)
    )
