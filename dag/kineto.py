"""Kineto traces: a step of one or more ranks becomes a `Dag` of what ran, moment by moment.

A host thread is a chain of segments (``dag/threads.py``); device work follows the work before it on its
stream and the call that launched it; a blocking call ends after the work it waits for; collectives are
joined across ranks. Durations are the time an operation itself needed: what it spent waiting for
another one is left out, since the path then runs through that other one. Hence no path is longer than
the recording, and time that nothing explains shows as a gap that is named by what it precedes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from dag.innermost import IDLE, Segment, segments, split
from dag.kineto_rank import Rank, read_rank
from dag.model import MEETING, MISSING, Dag, Kind, new_dag
from formats.columns import Trace

#: Category of time in which nothing ran that the recording knows of.
GAP = "gap"
#: Category of collectives, whether they run on the device or beside the host's threads.
COMMUNICATION = "communication"
#: Clocks of host and device, and whole microseconds, agree to about this.
_TOLERANCE_NS = 2_000
#: A thread that was idle resumes soon after what it waited for: within this share of the idle time.
_SOON = 0.5


@dataclass(slots=True)
class _Builder:
    """The graph while it is put together; of node i's `start[i]` to `end[i]`, `work[i]` counts."""

    names: list[str] = field(default_factory=list)
    cats: list[str] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)
    start: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    work: list[int] = field(default_factory=list)
    rows: dict[int, tuple[int, int]] = field(default_factory=dict)  # node -> (rank's number, row)
    edges: dict[tuple[int, int], int] = field(default_factory=dict)
    before: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))

    def node(self, name: str, cat: str, device: str, start: int, end: int) -> int:
        self.names.append(name)
        self.cats.append(cat)
        self.devices.append(device)
        self.start.append(start)
        self.end.append(end)
        self.work.append(end - start)
        return len(self.names) - 1

    def link(self, source: int, target: int, kind: Kind) -> None:
        if source != target and (source, target) not in self.edges:
            self.edges[source, target] = kind
            self.before[target].append(source)

    def ready(self, node: int) -> int:
        """Return when the last of what `node` waits for had ended, in the recording."""
        return max((self.end[source] for source in self.before[node]), default=self.start[node])


@dataclass(slots=True)
class _Threads:
    """The host threads of a rank as nodes: per thread its segments and their nodes, side by side."""

    chains: list[list[int]] = field(default_factory=list)
    starts: list[list[int]] = field(default_factory=list)
    thread_of: dict[int, int] = field(default_factory=dict)  # row -> thread
    idle: set[int] = field(default_factory=set)  # nodes without work of their own
    sync: dict[int, int] = field(default_factory=dict)  # node -> row of the blocking call
    first: dict[int, int] = field(default_factory=dict)  # row -> the node of its first segment
    last: dict[int, int] = field(default_factory=dict)  # row -> the node of its last segment

    def at(self, thread: int, moment: int) -> int | None:
        """Return the last node of `thread` that had ended at `moment`."""
        i = bisect_right(self.starts[thread], moment) - 1
        chain = self.chains[thread]
        return chain[i - 1] if i > 0 else None


def kineto_dag(
    traces: Sequence[Trace], windows: Sequence[tuple[int, int] | None], prefixes: Sequence[str] = ("",)
) -> Dag:
    """Return the graph of one step of one or more ranks.

    Parameters
    ----------
    traces : one per rank, read with `LINK_ARGS`, timestamps on one clock
    windows : per rank the step's first and last nanosecond; None for the whole trace
    prefixes : per rank what its names begin with

    Returns
    -------
    Dag
        Names are those of the events and may repeat (a call in two pieces, the same kernel again);
        `step_start_ns` and `step_dur_ns` (1, n) are the part of the recorded interval that counts.
        ``attrs["row"]`` gives the trace's number and the row of each node that is an event.
    """
    builder = _Builder()
    collectives: dict[tuple[object, ...], list[int]] = defaultdict(list)
    ranks = list(map(read_rank, traces, prefixes, windows))
    begin = min((rank.first_ns for rank in ranks), default=0)
    for number, rank in enumerate(ranks):
        rank.first_ns = begin  # a rank that came later is still in the step before
        _add_rank(builder, number, rank, collectives)
    return _finish(builder, _join_ranks(builder, collectives, len(traces)))


def _add_rank(
    builder: _Builder, number: int, rank: Rank, collectives: dict[tuple[object, ...], list[int]]
) -> None:
    threads = _add_threads(builder, number, rank)
    device = _add_device(builder, number, rank, threads)
    gloo = _add_gloo(builder, number, rank, threads)
    _wait_for_device(builder, rank, threads, device)
    _hand_over(builder, threads, list(gloo.values()))
    for forward, backward in rank.backward:
        source, target = threads.last.get(forward), threads.first.get(backward)
        if source is not None and target is not None and builder.end[source] <= builder.start[target]:
            builder.link(source, target, Kind.DATA)
    occurrence: dict[tuple[object, ...], int] = defaultdict(int)
    names = {**{row: device[row] for row in sorted(device, key=rank.start_ns.__getitem__)}, **gloo}
    args = {key: column.as_dict() for key, column in rank.trace.args.items()}
    for row, node in names.items():
        kind = _collective(rank, row, args, row in gloo)
        if kind is None:
            continue
        sequence = args.get("Seq", {}).get(row)
        key = (*kind, "nth", occurrence[kind]) if sequence is None else (*kind, "seq", sequence)
        occurrence[kind] += 1
        collectives[key].append(node)
        builder.cats[node] = COMMUNICATION


def _collective(
    rank: Rank, row: int, args: dict[str, dict[int, object]], is_gloo: bool
) -> tuple[object, ...] | None:
    """Return what a collective is matched by across ranks beside its number; None for any other row."""
    if is_gloo:
        return (rank.name(row),)
    named = args.get("Collective name", {}).get(row)
    if named is not None:
        group = args.get("Process Group Ranks", {}).get(row), args.get("Process Group Name", {}).get(row)
        return (named, *map(str, group))
    name = rank.name(row)
    return (name.split("(")[0],) if name.startswith(("ncclKernel", "ncclDevKernel", "rcclKernel")) else None


def _add_threads(builder: _Builder, number: int, rank: Rank) -> _Threads:
    """Add every thread's segments, cut where a call hands work over, each after the one before."""
    threads = _Threads()
    for i, (_, rows) in enumerate(rank.threads):
        threads.thread_of.update(dict.fromkeys(rows, i))
    cuts: dict[int, list[int]] = defaultdict(list)
    for row, call in rank.launch_of.items():
        if call in threads.thread_of:
            cuts[threads.thread_of[call]].append(rank.start_ns[row])
    for row in rank.gloo:
        for i in range(len(rank.threads)):
            cuts[i].append(rank.start_ns[row])
    for i, (name, rows) in enumerate(rank.threads):
        start, end = [rank.start_ns[row] for row in rows], [rank.end_ns[row] for row in rows]
        pieces = split(segments(rows, start, end, rank.first_ns), cuts[i])
        threads.chains.append(_add_chain(builder, number, rank, f"{rank.prefix}{name}", pieces, threads))
        threads.starts.append([piece.start_ns for piece in pieces])
    return threads


def _add_chain(
    builder: _Builder, number: int, rank: Rank, device: str, pieces: Sequence[Segment], threads: _Threads
) -> list[int]:
    chain: list[int] = []
    following = _following(rank, pieces)
    for (row, start, end), after in zip(pieces, following, strict=True):
        if row == IDLE or row in rank.frames:
            what = f"idle before {after}" if row == IDLE and threads.chains else f"host code before {after}"
            inside = "" if row == IDLE else f" in {rank.name(row)}"
            node = builder.node(rank.prefix + what + inside, GAP, device, start, end)
            threads.idle.add(node)
        else:
            node = builder.node(rank.prefix + rank.name(row), rank.cat(row), device, start, end)
            builder.rows[node] = (number, row)
            threads.first.setdefault(row, node)
            threads.last[row] = node
            if row in rank.syncs:
                threads.sync[node] = row
        if chain:
            builder.link(chain[-1], node, Kind.DEVICE)
        chain.append(node)
    return chain


def _following(rank: Rank, pieces: Sequence[Segment]) -> list[str]:
    """Return for each segment the name of the next one that is an operation."""
    names: list[str] = []
    name = "the end"
    for row, _, _ in reversed(pieces):
        names.append(name)
        if row != IDLE and row not in rank.frames:
            name = rank.name(row)
    return names[::-1]


def _add_device(builder: _Builder, number: int, rank: Rank, threads: _Threads) -> dict[int, int]:
    """Add the device's work; return row -> node."""
    nodes: dict[int, int] = {}
    for (pid, stream), rows in rank.streams.items():
        device = f"{rank.prefix}device {pid} stream {stream}"
        previous = None
        for row in rows:
            node = builder.node(
                rank.prefix + rank.name(row), rank.cat(row), device, rank.start_ns[row], rank.end_ns[row]
            )
            builder.rows[node] = (number, row)
            nodes[row] = node
            if previous is not None:
                builder.link(previous, node, Kind.DEVICE)
            call = rank.launch_of.get(row)
            if call in threads.thread_of:
                launch = _launch_node(builder, threads, rank, call, row)
                if launch is not None:
                    builder.link(launch, node, Kind.LAUNCH)
            previous = node
    for source, target in rank.stream_waits:
        builder.link(nodes[source], nodes[target], Kind.SYNCHRONISE)
    for row, node in nodes.items():
        _delay(builder, rank, row, node)
    return nodes


def _launch_node(builder: _Builder, threads: _Threads, rank: Rank, call: int, row: int) -> int | None:
    """Return the piece of the launching call that had ended when the work began (cut there)."""
    moment = max(min(rank.start_ns[row], rank.end_ns[call]), rank.start_ns[call])
    thread = threads.thread_of[call]
    i = bisect_right(threads.starts[thread], moment) - 1
    chain = threads.chains[thread]
    if i >= 0 and builder.end[chain[i]] <= moment + (builder.start[chain[i]] == moment):
        return chain[i]
    return chain[i - 1] if i > 0 else None


def _delay(builder: _Builder, rank: Rank, row: int, node: int) -> None:
    """Put the time between the last input of device work and its start into a gap of its own."""
    sources = builder.before[node]
    start, ready = builder.start[node], builder.ready(node) if sources else rank.first_ns
    builder.work[node] = builder.end[node] - min(max(start, ready), builder.end[node])
    if ready >= start:
        return
    kind = builder.edges[max(sources, key=builder.end.__getitem__), node] if sources else None
    if kind is None:
        what = f"what launched {rank.name(row)} was not recorded"
    elif row in rank.before and kind == Kind.LAUNCH:
        what = f"stream busy with {rank.before[row]} of the step before"
    elif kind == Kind.LAUNCH:
        what = f"launch of {rank.name(row)}"
    else:
        what = f"next on the stream: {rank.name(row)}"
    gap = builder.node(rank.prefix + what, GAP, builder.devices[node], ready, start)
    for source in list(sources):
        builder.link(source, gap, Kind(builder.edges.pop((source, node))))
    builder.before[node] = []
    builder.link(gap, node, Kind.DEVICE)


def _add_gloo(builder: _Builder, number: int, rank: Rank, threads: _Threads) -> dict[int, int]:
    """Add the communications that run on threads of their own, begun by whoever ran at their start."""
    nodes: dict[int, int] = {}
    last_on: dict[int, int] = {}
    for row in sorted(rank.gloo, key=rank.end_ns.__getitem__):
        track = int(rank.trace.track_id[row])
        name = rank.trace.tracks[track].tid
        node = builder.node(
            rank.prefix + rank.name(row), COMMUNICATION, f"{rank.prefix}thread {name}",
            rank.start_ns[row], rank.end_ns[row],
        )  # fmt: skip
        builder.rows[node] = (number, row)
        nodes[row] = node
        if threads.chains:
            enqueue = threads.at(0, builder.start[node])
            if enqueue is not None:
                builder.link(enqueue, node, Kind.LAUNCH)
        if track in last_on:
            builder.link(last_on[track], node, Kind.DEVICE)
        last_on[track] = node
        ready = builder.ready(node)
        builder.work[node] = builder.end[node] - min(max(builder.start[node], ready), builder.end[node])
    return nodes


def _wait_for_device(builder: _Builder, rank: Rank, threads: _Threads, device: dict[int, int]) -> None:
    """Let a blocking call end after the last work, on the streams it waits for, that ended before it."""
    ends = {where: [rank.end_ns[row] for row in rows] for where, rows in rank.streams.items()}
    for node, row in threads.sync.items():
        found = []
        for where in rank.syncs[row] or rank.streams:
            i = bisect_right(ends[where], builder.end[node] + _TOLERANCE_NS) - 1
            if i < 0 or ends[where][i] <= builder.start[node]:
                continue
            work = rank.streams[where][i]
            if rank.start_ns[rank.launch_of.get(work, work)] < builder.start[node]:
                found.append((ends[where][i], device[work]))
        if found:
            end, source = max(found)
            builder.link(source, node, Kind.SYNCHRONISE)
            builder.work[node] = builder.end[node] - min(end, builder.end[node])


def _hand_over(builder: _Builder, threads: _Threads, others: Sequence[int]) -> None:
    """Let an idle thread wait for the work of another one that ended shortly before it resumed.

    The main thread may be busy with what the recording does not know; so it waits only for what ended
    in the later half of its idle time. Any other thread waits for the latest work before it resumes.
    """
    working = [[node for node in chain if node not in threads.idle] for chain in threads.chains]
    for thread, chain in enumerate(threads.chains):
        candidates = [n for i, nodes in enumerate(working) if i != thread for n in nodes] + list(others)
        candidates.sort(key=builder.end.__getitem__)
        ends = [builder.end[node] for node in candidates]
        for node in chain:
            start, end = builder.start[node], builder.end[node]
            if node not in threads.idle:
                continue
            i = bisect_right(ends, end) - 1
            while i >= 0 and builder.start[candidates[i]] >= end:  # of length 0, at the very moment
                i -= 1
            if i < 0 or ends[i] <= start:
                continue
            if thread == 0 and end - ends[i] > _SOON * (end - start):
                continue
            builder.link(candidates[i], node, Kind.SYNCHRONISE)
            builder.work[node] = end - ends[i]
            builder.names[node] += f", after {builder.names[candidates[i]]}"


def _join_ranks(
    builder: _Builder, collectives: dict[tuple[object, ...], list[int]], n_ranks: int
) -> list[str]:
    """Let a collective's work begin when the last rank has come to it; return those that do not match."""
    apart: list[str] = []
    for key, nodes in collectives.items():
        if len(nodes) < 2 or n_ranks < 2:
            continue
        latest = max(builder.start[node] for node in nodes)
        if latest >= min(builder.end[node] for node in nodes):
            apart.append(str(key[0]))  # one ended before another began: other clocks, or another operation
            continue
        meeting = builder.node(str(key[0]), MEETING, "", latest, latest)
        for node in nodes:
            for source in builder.before[node]:
                builder.link(source, meeting, Kind.GROUP)
        for node in nodes:
            builder.link(meeting, node, Kind.GROUP)
            begin = min(max(latest, builder.end[node] - builder.work[node]), builder.end[node])
            builder.work[node] = builder.end[node] - begin
    return apart


def _finish(builder: _Builder, apart: Sequence[str]) -> Dag:
    edges = [(a, b, kind) for (a, b), kind in builder.edges.items()]
    dag = new_dag(builder.names, builder.cats, builder.work, edges, device=builder.devices)
    work, end = np.array([builder.work], np.int64), np.array([builder.end], np.int64)
    meeting = np.array([cat == MEETING for cat in builder.cats], np.bool_)
    return replace(
        dag,
        step_start_ns=np.where(meeting, MISSING, end - work),
        step_dur_ns=np.where(meeting, MISSING, work),
        attrs={"row": dict(builder.rows)},
        notes=[_apart_note(apart)] if apart else [],
    )


def _apart_note(apart: Sequence[str]) -> str:
    few = ", ".join(dict.fromkeys(apart[:3]))
    return (
        f"{len(apart)} collectives ended on one rank before they began on another ({few}): "
        "nobody waited there, or the ranks' clocks differ; they are not joined"
    )
