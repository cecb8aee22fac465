"""What connects the events of one step of a BytePS job: threads, the DAG, stages, GPUs and workers."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from formats.columns import Track
from opname import QUEUES, OpName
from replay.recording import EdgeList, chain

#: Category of the time before an event in which a forward or backward pass runs that was not traced.
UNTRACED = "untraced"

_STAGE_ORDER = {stage: i for i, stage in enumerate(QUEUES)}
#: What a GPU's stage waits for at the other GPUs of its worker: the root pushes and broadcasts when they
#: are ready, and they copy what the root pulled.
_AT_MATES = {"PUSH": "COORDINATE_PUSH", "BROADCAST": "COORDINATE_BROADCAST", "COPYH2D": "PULL"}
#: Stages that all GPUs of a worker do together.
_TOGETHER = ("REDUCE", "BROADCAST")


@dataclass(frozen=True, slots=True)
class Event:
    """One event of one GPU."""

    name: OpName  # without worker, rank and key
    key: int | None  # partition; None for a whole communication or a computation
    track: Track
    start_ns: int
    end_ns: int
    cat: str = ""
    is_traced: bool = True


def connect(
    edges: EdgeList,
    events: Sequence[tuple[int, Event]],
    workers: Sequence[int | None],
    dag_edges: Sequence[Sequence[tuple[OpName, OpName]]],
) -> None:
    """Add the edges between the `events` (owner, event) of one step.

    `workers` and `dag_edges` (owners,) are each owner's worker, and the edges of its DAG that hold.
    """
    threads: dict[tuple[int, Track], list[int]] = defaultdict(list)
    named: dict[tuple[int, OpName], int] = {}
    stages: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number, (owner, event) in enumerate(events):
        if event.key is not None:
            stages[owner, event.key].append(number)
            continue
        named[owner, event.name] = number
        if not event.name.is_comm and event.is_traced:
            threads[owner, event.track].append(number)
    for numbers in threads.values():
        chain(edges.after_end, numbers)
    for owner, pairs in enumerate(dag_edges):
        found = ((named.get((owner, a)), named.get((owner, b))) for a, b in pairs)
        edges.after_end.extend((a, b) for a, b in found if a is not None and b is not None)
    _connect_enqueueing(edges, events)
    _connect_updates(edges, events)
    _connect_untraced(edges, events, named)
    _connect_stages(edges, events, named, stages)
    _connect_gpus(edges, events, stages, workers)


def _connect_enqueueing(edges: EdgeList, events: Sequence[tuple[int, Event]]) -> None:
    """Let a communication for which the DAG names no operation follow the last one that ended before."""
    known = {target for _, target in edges.after_end}
    computed: dict[int, list[tuple[int, int]]] = defaultdict(list)  # owner -> (end, event), by end
    for number, (owner, event) in enumerate(events):
        if event.name.cat in ("FW", "BW"):
            computed[owner].append((event.end_ns, number))
    for ends in computed.values():
        ends.sort()
    for number, (owner, event) in enumerate(events):
        if event.name.is_comm and event.key is None and number not in known:
            at = bisect.bisect_right(computed[owner], (event.start_ns, len(events)))
            if at:
                edges.after_end.append((computed[owner][at - 1][1], number))


def _connect_updates(edges: EdgeList, events: Sequence[tuple[int, Event]]) -> None:
    """Let STEP, which spans from the last backward operation to the next forward one, wait in between."""
    for number, (owner, event) in enumerate(events):
        if event.name.cat == "STEP":
            edges.body_after_end.extend(
                (other, number)
                for other, (whose, comm) in enumerate(events)
                if whose == owner and comm.name.is_comm and comm.key is None and comm.end_ns <= event.end_ns
            )


def _connect_untraced(
    edges: EdgeList, events: Sequence[tuple[int, Event]], named: Mapping[tuple[int, OpName], int]
) -> None:
    """Lead from the load of input through the untraced computation, communication by communication."""
    last: dict[int, int] = {}
    for number, (owner, event) in enumerate(events):
        if event.name.cat == "I/O":
            last[owner] = number
        elif not event.is_traced:
            comm = named[owner, OpName("Comm", event.name.label)]
            before = last.get(owner)
            if before is not None:
                is_load = events[before][1].name.cat == "I/O"
                (edges.after_end if is_load else edges.after_start).append((before, number))
            edges.after_end.append((number, comm))
        elif event.name.is_comm and event.key is None:
            last[owner] = number


def _connect_stages(
    edges: EdgeList,
    events: Sequence[tuple[int, Event]],
    named: Mapping[tuple[int, OpName], int],
    stages: Mapping[tuple[int, int], list[int]],
) -> None:
    """Lead each partition from its enqueueing through its stages to the end of the communication."""
    for (owner, _), numbers in stages.items():
        numbers.sort(key=lambda number: (events[number][1].start_ns, _stage(events[number][1])))
        chain(edges.after_end, numbers)
        whole = named.get((owner, events[numbers[0]][1].name.main))
        if whole is not None:
            edges.after_start.append((whole, numbers[0]))
            edges.body_after_end.append((numbers[-1], whole))


def _stage(event: Event) -> int:
    return _STAGE_ORDER.get(event.name.queue or "", -1)


def _connect_gpus(
    edges: EdgeList,
    events: Sequence[tuple[int, Event]],
    stages: Mapping[tuple[int, int], list[int]],
    workers: Sequence[int | None],
) -> None:
    """Let the GPUs of a worker meet, and a key's PULL wait for every worker's PUSH."""
    at: dict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)  # key, stage -> (owner, event)
    for (owner, key), numbers in stages.items():
        for number in numbers:
            at[key, events[number][1].name.queue or ""].append((owner, number))
    for (key, stage), here in at.items():
        for owner, number in here:
            for other, mate in at.get((key, _AT_MATES.get(stage, "")), ()):
                if other != owner and workers[other] == workers[owner]:
                    edges.after_end.append((mate, number))
            if stage in _TOGETHER:
                mates = [mate for other, mate in here if other != owner and workers[other] == workers[owner]]
                edges.body_after_start.extend((mate, number) for mate in mates)
            if stage == "PULL":
                for other, push in at.get((key, "PUSH"), ()):
                    if workers[other] != workers[owner]:
                        _after_push(edges, events, push, number)


def _after_push(edges: EdgeList, events: Sequence[tuple[int, Event]], push: int, pull: int) -> None:
    """Let `pull` be answered after another worker's `push`.

    A PUSH ends with the server's acknowledgement, which may be late, behind the answers to PULLs;
    then only its start is known to be earlier.
    """
    is_late = events[push][1].end_ns > events[pull][1].end_ns
    (edges.body_after_start if is_late else edges.body_after_end).append((push, pull))
