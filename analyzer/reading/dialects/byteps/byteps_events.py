"""The events of one BytePS GPU as operations, and the edges between them: threads, the DAG, partitions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from analyzer.base.arrays import Int64, Mask
from analyzer.base.arrays.numbering import numbered, occurrence_number, ranges
from analyzer.base.errors import whole_number
from analyzer.base.names import COMM, FIRST, LAST, QUEUES, OpName
from analyzer.reading.dialects.byteps import inputs, renamed, role_of
from analyzer.reading.dialects.edge_rules import Rule
from analyzer.reading.dialects.roles import Phase, Role
from analyzer.reading.dialects.step_parts import (
    Direction,
    Joint,
    Operation,
    RankTrace,
    Transfer,
    edge_rows,
    narrow,
)
from analyzer.reading.dialects.step_windows import still_open
from analyzer.reading.dialects.tolerances import LATE_CLOCK_NS, MAX_CONTRADICTED, MOST_WHOLES
from analyzer.reading.formats.columns import Track

_PHASES = {"FW": Phase.FORWARD, "BW": Phase.BACKWARD, "I/O": Phase.INPUT}
_PHASES |= {"STEP": Phase.UPDATE, "UPDATE": Phase.UPDATE}
_UNTRACED = "untraced"
#: Categories of computation; a GPU does it itself.
COMPUTE = ("FW", "BW", _UNTRACED)
#: By queue stage.
DIRECTIONS = {"COPYD2H": Direction.TO_HOST, "PUSH": Direction.TO_SERVER, "PULL": Direction.FROM_SERVER}
_STAGE_ORDER = {stage: i for i, stage in enumerate(QUEUES, 1)}  # any other comes first
#: Categories that a computation without sources in the DAG may follow.
_BEFORE_COMPUTE = (*COMPUTE, "I/O", "STEP", "UPDATE")
#: Categories that end a step: from them to `FIRST` a dependency leads into the next step.
_LAST = (COMM, *LAST)

#: In place of a joint: the target did not wait for the source.
_NOT = -1
#: Source and target, as names without worker, rank, stage and partition.
Dependency = tuple[OpName, OpName]


class GpuEvents(Struct, frozen=True):
    """The n events of one GPU, by start, and its k operations."""

    operations: Sequence[Operation]
    names: Sequence[OpName]  # (k,) without worker, rank and key
    mains: Sequence[OpName]  # (k,) also without stage
    operation: Int64  # (n,) index into `operations`
    start_ns: Int64
    end_ns: Int64
    nth: Int64  # (n,) number of earlier events of the same name and partition: its step, from 0

    def __len__(self) -> int:
        return len(self.operation)

    def is_whole(self, operation: int) -> bool:
        """Tell a communication as a whole from a stage of a partition."""
        return self.names[operation].is_comm and self.operations[operation].transfer.key is None


def read_events(gpu: RankTrace) -> GpuEvents:
    """Read the events of BytePS's grammar in the trace of one GPU."""
    trace = gpu.trace
    n_tracks = max(len(trace.tracks), 1)
    pairs = trace.name_id.astype(np.int64) * n_tracks + trace.track_id
    distinct, which = np.unique(pairs, return_inverse=True)
    operations: list[Operation] = []
    names: list[OpName] = []
    number = np.full(len(distinct), -1, np.int64)
    parsed = [renamed(OpName.parse(name), gpu.parameters) for name in trace.names]
    for i, (name_id, track_id) in enumerate(zip(*np.divmod(distinct, n_tracks), strict=True)):
        name, key = _partition(parsed[name_id], trace.tracks[track_id])
        if name.cat is not None:
            number[i] = len(operations)
            transfer = Transfer() if key is None else _transfer(gpu, name, key)
            phase, track = _PHASES.get(name.cat, Phase.NONE), trace.tracks[track_id]
            operations.append(Operation(str(name), name.cat, track, role_of(name), phase, transfer))
            names.append(name)
    operation = number[which.reshape(-1)]
    rows = np.flatnonzero(operation >= 0)
    return _sorted(operations, names, operation[rows], trace.ts_ns[rows], trace.end_ns[rows])


def _partition(name: OpName, track: Track) -> tuple[OpName, int | None]:
    """Separate the name of a partition's stage from the key; None as key for other operations."""
    if name.queue is None:
        return name, None
    if (key := whole_number(str(track.tid))) is not None:
        return name._replace(key=None), key
    if name.key is not None:
        return name._replace(key=None), name.key
    return OpName("Comm", f"{name.label}.{name.queue}"), None  # a tensor called like a stage


def _transfer(gpu: RankTrace, name: OpName, key: int) -> Transfer:
    """Describe a stage; a link leads from a worker to all servers, or from a server to all workers."""
    stage = name.queue or ""
    direction, server, link = DIRECTIONS.get(stage), f"server {gpu.server_of.get(key, 0)}", ""
    if direction is Direction.TO_SERVER:
        link = stage if gpu.worker is None else f"worker {gpu.worker} {stage}"
    elif direction is Direction.FROM_SERVER:
        link = f"{server} {stage}"
    return Transfer(str(name.main), stage, key, link, gpu.bytes_of.get(key, 0), direction, server)


def _sorted(
    operations: Sequence[Operation], names: Sequence[OpName], operation: Int64, start: Int64, end: Int64
) -> GpuEvents:
    order = np.lexsort((end, start))
    operation = operation[order]
    same: dict[tuple[OpName, int | None], int] = {}
    keys = zip(names, (op.transfer.key for op in operations), strict=True)
    partition = np.array([same.setdefault(key, len(same)) for key in keys], np.int64)
    mains = [name.main for name in names]
    nth = occurrence_number(partition[operation])
    return GpuEvents(operations, names, mains, operation, start[order], end[order], nth)


# ---- computation that was not traced


def with_untraced(events: GpuEvents, bounds: Sequence[tuple[int, int]]) -> GpuEvents:
    """Add an event before each communication for the computation that was not traced.

    It begins at the load of input or the previous gradient, else at the step's start. `bounds` are begin and
    end of the steps.
    """
    before = np.array([name.cat in ("I/O", "FW") for name in events.names], np.bool_)
    whole = np.array(list(map(events.is_whole, range(len(events.names)))), np.bool_)
    is_before, is_whole = before[events.operation], whole[events.operation]
    moments = np.where(is_before, events.end_ns, events.start_ns)
    parts = [np.empty((2, 0), np.int64)]
    for (low, high), (begin, _) in zip(np.searchsorted(events.start_ns, bounds), bounds, strict=True):
        event = low + np.flatnonzero(is_before[low:high] | is_whole[low:high])
        since = np.maximum.accumulate(np.append(begin, moments[event]))[:-1]
        parts.append(np.stack([event, since])[:, is_whole[event] & (events.start_ns[event] > since)])
    event, since = np.concatenate(parts, axis=1)
    labels, label = numbered(events.names[op].label or "" for op in events.operation[event].tolist())
    untraced = [OpName(_UNTRACED, label) for label in labels]
    track = Track(_UNTRACED, _UNTRACED)
    added = [Operation(str(name), _UNTRACED, track, Role.UNTRACED, Phase.BACKWARD) for name in untraced]
    return _sorted(
        [*events.operations, *added],
        [*events.names, *untraced],
        np.concatenate([events.operation, len(events.operations) + label]),
        np.concatenate([events.start_ns, since]),
        np.concatenate([events.end_ns, events.start_ns[event]]),
    )


# ---- the events of steps


class Spans:
    """The n events of k steps, step after step, by start in each; an event that goes on is in both steps."""

    def __init__(self, events: GpuEvents, bounds: Sequence[tuple[int, int]]) -> None:
        low, high = np.searchsorted(events.start_ns, bounds).T
        begins = [begin for begin, _ in bounds]
        continued = list(still_open(np.arange(len(events)), events.end_ns, begins, low.tolist()))
        begun = map(np.arange, low, high)
        parts = [np.concatenate(part) for part in zip(continued, begun, strict=True)]
        self.events, self.rows = events, narrow(np.concatenate(parts))
        self.first = np.cumsum([0, *map(len, parts)])  # (k + 1,) the first event of each step, and n
        self.step = np.repeat(narrow(np.arange(len(parts))), list(map(len, parts)))
        self._low, self._begun = low, self.first[:-1] + list(map(len, continued))
        self.is_continued = np.arange(len(self)) < self._begun[self.step]  # (n,) cut at the step's begin
        self.start_ns = np.maximum(events.start_ns[self.rows], np.array(begins)[self.step])
        self.end_ns = events.end_ns[self.rows]
        self.operation = events.operation[self.rows]

    def __len__(self) -> int:
        return len(self.rows)

    def are(self, event: Int64, *cats: str) -> Mask:
        """Mask the events (k,) of these categories."""
        are: Mask = np.array([name.cat in cats for name in self.events.names], np.bool_)
        return are[self.operation[event]]

    def after(self, moment_ns: Int64, step: Int64) -> Int64:
        """Find the first event that began after a moment in a step (k,); past the last for none."""
        begun = np.searchsorted(self.events.start_ns, moment_ns, side="right") - self._low[step]
        after: Int64 = np.minimum(self._begun[step] + np.maximum(begun, 0), self.first[step + 1])
        return after

    def joints(self, source: Int64, target: Int64) -> Int64:
        """Find the joint by which each target (k,) can have waited for its source's end; -1 for none."""
        end = self.end_ns[source] - LATE_CLOCK_NS
        before = (end <= self.start_ns[target]) & ~self.is_continued[target] & (source < target)
        # STEP is recorded from the last backward operation on, so that it contains its sources
        inside = self.are(target, "STEP") & (end <= self.end_ns[target])
        return np.where(before, Joint.END_TO_HEAD, np.where(inside, Joint.END_TO_BODY, _NOT))


class _Named:
    """Events (k,) of `Spans` by the numbers of their names (k,)."""

    def __init__(self, spans: Spans, name: Int64, event: Int64) -> None:
        self._first, self._step, self._n = spans.first, spans.step, max(len(spans), 1)
        order = np.argsort(key := name * self._n + event)
        self._key, self.name, self.event = key[order], name[order], event[order]

    def before(self, name: Int64, event: Int64) -> Int64:
        """Find the index of the first event of each name (m,) that is not before an event (m,)."""
        return np.searchsorted(self._key, name * self._n + event)

    def of_step(self, name: Int64, event: Int64) -> tuple[Int64, Int64]:
        """Find the range of indices of each name (m,) in the step of an event (m,)."""
        step = self._step[event]
        return self.before(name, self._first[step]), self.before(name, self._first[step + 1])


class _Chains(NamedTuple):
    """The stages of each partition of each synchronisation in each step, in order: k chains."""

    event: Int64  # chain after chain
    first: Int64  # (k,) index of each chain's first event
    last: Int64


def _chains(spans: Spans) -> _Chains:
    events = spans.events
    parts = [operation.transfer for operation in events.operations]
    event = np.flatnonzero(np.array([bool(part.stage) for part in parts], np.bool_)[spans.operation])
    partition = numbered((part.whole, part.key) for part in parts)[1].astype(np.int64)
    nth = events.nth[spans.rows[event]]
    chain = partition[spans.operation[event]] * (int(nth.max(initial=0)) + 1) + nth
    order = np.argsort(chain := chain * len(spans.first) + spans.step[event], kind="stable")
    event, chain = event[order], chain[order]
    start = spans.start_ns[event]
    at_once = np.cumsum(_is_new(chain) | _is_new(start))
    stage = np.array([_STAGE_ORDER.get(part.stage, 0) for part in parts])[spans.operation[event]]
    event = event[np.argsort(at_once * (len(QUEUES) + 1) + stage, kind="stable")]
    is_first = _is_new(chain)
    is_last = np.append(is_first[1:], True)[: len(event)]
    return _Chains(event, np.flatnonzero(is_first), np.flatnonzero(is_last))


def _is_new(values: Int64) -> Mask:
    """Mask the values (n,) that differ from the one before."""
    return np.append(True, values[1:] != values[:-1])[: len(values)]


# ---- the DAG


def recorded_dependencies(gpu: RankTrace, events: GpuEvents) -> list[Dependency]:
    """List the dependencies between recorded operations, nodes without events (``OUTPUT0``) bridged.

    A forward operation also depends on the communication of its gradient in the step before.
    """
    recorded = set(events.mains)
    after: dict[OpName, dict[OpName, None]] = defaultdict(dict)
    pairs = gpu.dag_edges
    if pairs is None:  # the events' arguments name their inputs
        named = gpu.trace.names
        pairs = sorted({(before, named[gpu.trace.name_id[row]]) for row, before in inputs(gpu.trace)})
    names = {name for pair in pairs for name in pair}
    main = {name: renamed(OpName.parse(name), gpu.parameters).main for name in names}
    for source, target in pairs:
        after[main[source]][main[target]] = None
    pairs_kept = {
        (a, b): None for a in list(after) if a in recorded for b in _next_recorded(a, after, recorded)
    }
    for a, b in list(pairs_kept):
        forward = a._replace(cat="FW")
        if a.cat == "BW" and b.is_comm and forward in recorded:
            pairs_kept[b, forward] = None
    return [(a, b) for a, b in pairs_kept if a != b]


def _next_recorded(
    node: OpName, after: Mapping[OpName, Mapping[OpName, None]], recorded: set[OpName]
) -> Iterator[OpName]:
    """Yield the nodes recorded after `node`, in its step or as the first of the next one."""
    seen: set[OpName] = set()
    stack = [(node, other) for other in after[node]]
    while stack:
        before, other = stack.pop()
        if other in seen:
            continue
        seen.add(other)
        if other in recorded:
            yield other
        elif not _leads_on(before, other):
            stack.extend((other, further) for further in after.get(other, ()))


def _leads_on(source: OpName, target: OpName) -> bool:
    """Tell if a dependency leads into the next step."""
    return source.cat in _LAST and target.cat in FIRST


def _dag_edges(
    spans: Spans, begins: _Named, ends: _Named, dependencies: Sequence[tuple[int, int]], leads_on: Mask
) -> Int64:
    """Make the edges of dependencies between names, without those that the recording contradicts.

    An event follows the last source before it in its step. Dependencies that `leads_on` lead into the next
    step.
    """
    source, target = np.array(dependencies, np.int64).reshape(-1, 2).T
    places, which = ranges(begins.before(target, np.int64(0)), begins.before(target + 1, np.int64(0)))
    event = begins.event[places]
    name = source[which]
    low, high = ends.of_step(name, event)
    last = ends.before(name, event) - 1
    joint = np.full(len(event), _NOT)
    has_source = np.flatnonzero(last >= low)
    joint[has_source] = spans.joints(ends.event[last[has_source]], event[has_source])
    kept = joint != _NOT
    asked = (low < high) & (~spans.is_continued[event] | kept)
    n_asked, n_kept = (np.bincount(which[chosen], minlength=len(source)) for chosen in (asked, kept))
    contradicted = ~leads_on & (n_asked - n_kept > MAX_CONTRADICTED * n_asked)
    kept &= ~contradicted[which]
    return edge_rows(ends.event[last[kept]], event[kept], joint[kept], Rule.GRAPH)


# ---- all edges of the steps


def connect(spans: Spans, dependencies: Sequence[Dependency]) -> Int64:
    """Make the edges within steps, as `RankStep.edges` (m, 4) between events of `spans`."""
    distinct, number = numbered([*spans.events.names, *spans.events.mains])
    names, mains = np.split(number.astype(np.int64), 2)
    chains = _chains(spans)
    in_no_chain = np.ones(len(spans), np.bool_)
    in_no_chain[chains.event] = False
    event = np.flatnonzero(in_no_chain)
    wholes = _Named(spans, names[spans.operation[event]], event)
    # where a communication is not recorded as a whole, its first and last stages are its start and end
    main = mains[spans.operation[chains.event[chains.first]]]
    low, high = wholes.of_step(main, chains.event[chains.first])
    alone = low == high
    name = np.concatenate([wholes.name, main[alone]])
    begins, ends = (
        _Named(spans, name, np.concatenate([wholes.event, chains.event[moment[alone]]]))
        for moment in (chains.first, chains.last)
    )
    index = {name: i for i, name in enumerate(distinct)}
    pairs = [(index[source], index[target]) for source, target in dependencies]
    leads_on = np.array([_leads_on(*dependency) for dependency in dependencies], np.bool_)
    edges = np.concatenate([_dag_edges(spans, begins, ends, pairs, leads_on), _updates(spans, begins, ends)])
    edges = np.concatenate([edges, *_unconnected(spans, begins, edges), _threads(spans)])
    source, target, joint, rule = np.concatenate([edges, *_stages(spans, chains, wholes, main)]).T
    keys = np.sort(edge_keys(source, target, joint, rule, len(spans)))
    return edges_of(keys[_is_new(keys // len(Rule))], len(spans))  # of equal edges that of the first rule


def edge_keys(source: Int64, target: Int64, joint: Int64, rule: Int64, n: int) -> Int64:
    """Encode each edge (m,) between n events as a number; numbers sort like the columns."""
    return ((source.astype(np.int64) * n + target) * len(Joint) + joint) * len(Rule) + rule


def edges_of(keys: Int64, n: int) -> Int64:
    """Decode numbers of `edge_keys` to `RankStep.edges` (m, 4)."""
    ends, rule = np.divmod(keys, len(Rule))
    ends, joint = np.divmod(ends, len(Joint))
    return edge_rows(*np.divmod(ends, n), joint, rule)


def _updates(spans: Spans, begins: _Named, ends: _Named) -> Int64:
    """Let STEP, from the last backward operation to the next forward one, wait for communications inside."""
    comms = np.sort(ends.event[spans.are(ends.event, "Comm")])
    steps = begins.event[spans.are(begins.event, "STEP")]
    step = spans.step[steps]
    places, which = ranges(*(np.searchsorted(comms, spans.first[bound]) for bound in (step, step + 1)))
    source, target = comms[places], steps[which]
    joint = spans.joints(source, target)
    kept = joint != _NOT
    return edge_rows(source[kept], target[kept], joint[kept], Rule.UPDATE)


def _unconnected(spans: Spans, begins: _Named, edges: Int64) -> Iterator[Int64]:
    """Let operations without a computation as source follow the computation that ended last before them."""
    source, target, joint, _ = edges.T
    is_reached = spans.is_continued.copy()
    is_reached[target[(joint < Joint.END_TO_BODY) & spans.are(source, *_BEFORE_COMPUTE)]] = True
    everything = np.arange(len(spans))
    for cats, of in ((COMPUTE, ("Comm",)), (_BEFORE_COMPUTE, (*COMPUTE, "OUTPUT", "STEP", "UPDATE"))):
        waiting = np.sort(begins.event[spans.are(begins.event, *of) & ~is_reached[begins.event]])
        before = np.flatnonzero(spans.are(everything, *cats))
        # sort each waiting event after the computations that ended by its start
        event = np.concatenate([waiting, before])
        moment = np.concatenate([spans.start_ns[waiting], spans.end_ns[before]])
        order = np.lexsort((event, moment, spans.step[event]))
        ended = np.maximum.accumulate(np.where(order >= len(waiting), np.arange(len(order)), -1))
        source = np.full(len(waiting), -1)
        places = np.flatnonzero(order < len(waiting))
        source[order[places]] = np.where(ended[places] >= 0, event[order[ended[places]]], -1)
        known = (source >= 0) & (spans.step[source] == spans.step[waiting])
        yield edge_rows(source[known], waiting[known], Joint.END_TO_HEAD, Rule.AFTER_COMPUTATION)


def _threads(spans: Spans) -> Int64:
    """Let each operation of a thread follow the earlier one that ended last."""
    track = numbered(operation.track for operation in spans.events.operations)[1].astype(np.int64)
    event = np.flatnonzero(~spans.are(np.arange(len(spans)), "Comm"))
    thread = track[spans.operation[event]] * len(spans.first) + spans.step[event]
    by_thread = np.argsort(thread, kind="stable")
    event, thread = event[by_thread], thread[by_thread]
    by_end = np.lexsort((event, spans.end_ns[event]))
    rank = np.empty(len(event), np.int64)
    rank[by_end] = np.arange(len(event))
    group = np.cumsum(_is_new(thread))
    ended = by_end[np.maximum.accumulate(group * len(event) + rank) % max(len(event), 1)]
    follows = np.flatnonzero(~_is_new(thread))
    source, target = event[ended[follows - 1]], event[follows]
    kept = spans.joints(source, target) == Joint.END_TO_HEAD
    return edge_rows(source[kept], target[kept], Joint.END_TO_HEAD, Rule.THREAD)


def _stages(spans: Spans, chains: _Chains, wholes: _Named, main: Int64) -> Iterator[Int64]:
    """Lead each partition from its enqueueing through its stages to the end of the communication.

    `main` (k,) are the names of the chains' communications.
    """
    follows = np.ones(len(chains.event), np.bool_)
    follows[chains.first] = False
    follows &= ~spans.is_continued[chains.event]
    before, stage = chains.event[np.flatnonzero(follows) - 1], chains.event[follows]
    joint = spans.joints(before, stage)
    yield edge_rows(before, stage, np.where(joint == _NOT, Joint.START_TO_HEAD, joint), Rule.STAGE)
    first, last = chains.event[chains.first], chains.event[chains.last]
    after = spans.after(spans.start_ns[first] + LATE_CLOCK_NS, spans.step[first])
    low, _ = wholes.of_step(main, first)
    high = wholes.before(main, after)
    places, which = ranges(np.maximum(low, high - MOST_WHOLES), high)
    whole = wholes.event[places]
    lasts = spans.end_ns[last[which]] <= spans.end_ns[whole] + LATE_CLOCK_NS
    first, last, whole = first[which[lasts]], last[which[lasts]], whole[lasts]
    begun = ~spans.is_continued[first]
    yield edge_rows(whole[begun], first[begun], Joint.START_TO_HEAD, Rule.PART)
    yield edge_rows(last, whole, Joint.END_TO_BODY, Rule.PART)
