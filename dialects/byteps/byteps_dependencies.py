"""Why an event of a BytePS step waits for another of the same GPU: threads, the DAG, partitions' stages."""

from __future__ import annotations

import bisect
import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dialects.byteps.byteps_events import COMPUTE, Events
from dialects.byteps.gradient_names import renamed
from dialects.step_parts import Edge, Joint, Kind, RankTrace
from formats.columns import Track
from opname import QUEUES, OpName

#: A dependency that the recording contradicts more often than this is not used.
MAX_CONTRADICTED = 0.1
#: Threads read the clock a little late; a start that is earlier by less contradicts nothing.
TOLERANCE_NS = 50_000

_STAGE_ORDER = {stage: i for i, stage in enumerate(QUEUES)}
#: What a computation may follow for which the DAG names nothing.
_BEFORE_COMPUTE = (*COMPUTE, "I/O", "STEP", "UPDATE")
#: Categories that end a step, and that begin one: between them a dependency leads into the next step.
_LAST, _FIRST = ("Comm", "STEP", "UPDATE"), ("FW", "I/O")

#: Of a tensor's communications a partition can lie in the last that began before it: they do not overlap.
_MOST_WHOLES = 8
#: Source and target, as names without worker, rank, stage and partition.
Dependency = tuple[OpName, OpName]


@dataclass(frozen=True, slots=True)
class Span:
    """The m events of one step, by start; the first `n_continued` were cut to begin with the step.

    Attributes
    ----------
    rows, operations, names : (m,) as in `Events`
    start_ns, end_ns : (m,)
    chains : the stages of each partition of each synchronisation, in order
    begins, ends : per name (a stage counts as its communication) the events with which it begins and ends:
        its own, or the first and last stages of a communication that is not recorded as a whole
    """

    rows: Sequence[int]
    operations: Sequence[int]
    names: Sequence[OpName]
    start_ns: Sequence[int]
    end_ns: Sequence[int]
    n_continued: int
    chains: Sequence[Sequence[int]]
    begins: Mapping[OpName, Sequence[int]]
    ends: Mapping[OpName, Sequence[int]]

    def joint(self, source: int, target: int) -> Joint | None:
        """Return how `target` can have waited for the end of `source`; None if it cannot have."""
        end = self.end_ns[source] - TOLERANCE_NS
        if end <= self.start_ns[target] and target >= self.n_continued and source < target:
            return Joint.END_TO_HEAD
        # STEP is recorded from the last backward operation on: what it waits for runs inside it
        is_inside = self.names[target].cat == "STEP" and end <= self.end_ns[target]
        return Joint.END_TO_BODY if is_inside else None


def span_of(events: Events, rows: Sequence[int], begin_ns: int, n_continued: int) -> Span:
    """Return the events `rows` as the events of a step that begins at `begin_ns`."""
    operations = events.operation[rows].tolist()
    names = [events.names[operation] for operation in operations]
    start = np.maximum(events.start_ns[rows], begin_ns).tolist()
    chains = _chains(events, rows, operations, start)
    begins: dict[OpName, list[int]] = defaultdict(list)
    for event, operation in enumerate(operations):
        if not events.operations[operation].stage:
            begins[names[event]].append(event)
    ends = {name: list(own) for name, own in begins.items()}
    as_wholes = frozenset(begins)
    for chain in chains:
        main = events.mains[operations[chain[0]]]
        if main not in as_wholes:
            begins[main].append(chain[0])
            bisect.insort(ends.setdefault(main, []), chain[-1])
    end = events.end_ns[rows].tolist()
    return Span(rows, operations, names, start, end, n_continued, chains, begins, ends)


def _chains(
    events: Events, rows: Sequence[int], operations: Sequence[int], start_ns: Sequence[int]
) -> list[list[int]]:
    """Return the stages of each partition of each synchronisation, in order."""
    chains: dict[tuple[str, int | None, int], list[int]] = defaultdict(list)
    for event, (operation, nth) in enumerate(zip(operations, events.nth[rows].tolist(), strict=True)):
        stage = events.operations[operation]
        if stage.stage:
            chains[stage.whole, stage.key, nth].append(event)
    order = [_STAGE_ORDER.get(events.operations[operation].stage, -1) for operation in operations]
    for chain in chains.values():
        chain.sort(key=lambda event: (start_ns[event], order[event]))
    return list(chains.values())


# ---- what the DAG says


def recorded_dependencies(gpu: RankTrace, events: Events) -> list[Dependency]:
    """Return the dependencies between recorded operations, nodes without events (``OUTPUT0``) bridged.

    A forward operation also depends on the communication of its gradient in the step before.
    """
    recorded = set(events.mains)
    after: dict[OpName, dict[OpName, None]] = defaultdict(dict)
    names = {name for pair in gpu.dag_edges for name in pair}
    main = {name: renamed(OpName.parse(name), gpu.parameters).main for name in names}
    for source, target in gpu.dag_edges:
        after[main[source]][main[target]] = None
    found = {(a, b): None for a in list(after) if a in recorded for b in _next_recorded(a, after, recorded)}
    for a, b in list(found):
        forward = a._replace(cat="FW")
        if a.cat == "BW" and b.is_comm and forward in recorded:
            found[b, forward] = None
    return [(a, b) for a, b in found if a != b]


def _next_recorded(
    node: OpName, after: Mapping[OpName, Mapping[OpName, None]], recorded: set[OpName]
) -> Iterator[OpName]:
    """Yield what is recorded after `node`, in its step or as the first of the next one."""
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
    """Whether a dependency leads into the next step."""
    return source.cat in _LAST and target.cat in _FIRST


def _dag_edges(spans: Sequence[Span], dependency: Dependency) -> list[list[Edge]]:
    """Return the edges of one dependency, by step; none at all where the recording contradicts it."""
    source, target = dependency
    found = [list(_matches(span, source, target)) for span in spans]
    edges = [[edge for edge in matches if edge is not None] for matches in found]
    n_asked, n_kept = sum(map(len, found)), sum(map(len, edges))
    contradicted = not _leads_on(source, target) and n_asked - n_kept > MAX_CONTRADICTED * n_asked
    return [[] for _ in spans] if contradicted else edges


def _matches(span: Span, source: OpName, target: OpName) -> Iterator[Edge | None]:
    """Yield, for each event of `target` in a step with `source`, its edge; None where it did not wait."""
    sources = span.ends.get(source, ())
    for event in span.begins.get(target, ()) if sources else ():
        at = bisect.bisect_left(sources, event) - 1
        joint = span.joint(sources[at], event) if at >= 0 else None
        if event >= span.n_continued or joint is not None:
            yield None if joint is None else Edge(sources[at], event, joint)


# ---- all edges of the steps


def connect(events: Events, spans: Sequence[Span], dependencies: Sequence[Dependency]) -> list[list[Edge]]:
    """Return what each event of a step waits for in that step, by step."""
    edges: list[list[Edge]] = [[] for _ in spans]
    for dependency in dependencies:
        for own, more in zip(edges, _dag_edges(spans, dependency), strict=True):
            own.extend(more)
    for own, span in zip(edges, spans, strict=True):
        own.extend(_updates(span))
        own.extend(_unconnected(span, own))
        own.extend(_threads(events, span))
        own.extend(_next_of_continued(span, own))
        own.extend(_stages(events, span))
    return [_distinct(own) for own in edges]


def _distinct(edges: Sequence[Edge]) -> list[Edge]:
    """Return the edges without those that join the same ends as an earlier one."""
    return list({(edge.source, edge.target, edge.joint): edge for edge in reversed(edges)}.values())[::-1]


def _updates(span: Span) -> Iterator[Edge]:
    """Let STEP, which spans from the last backward operation to the next forward one, wait in between."""
    comms = [event for name, ends in span.ends.items() if name.is_comm for event in ends]
    for name, steps in span.begins.items():
        for step in steps if name.cat == "STEP" else ():
            joints = ((comm, span.joint(comm, step)) for comm in comms)
            yield from (Edge(comm, step, joint) for comm, joint in joints if joint is not None)


def _unconnected(span: Span, edges: Sequence[Edge]) -> Iterator[Edge]:
    """Let what the DAG names no computation for follow the one of this GPU that ended last before it."""
    names = span.names
    reached = {e.target for e in edges if not e.joint.to_body and names[e.source].cat in _BEFORE_COMPUTE}
    for cats, of in ((COMPUTE, ("Comm",)), (_BEFORE_COMPUTE, (*COMPUTE, "OUTPUT", "STEP", "UPDATE"))):
        before = sorted((span.end_ns[i], i) for i, name in enumerate(names) if name.cat in cats)
        waiting = [i for name, begins in span.begins.items() if name.cat in of for i in begins]
        for event in waiting:
            if event < span.n_continued or event in reached:
                continue
            at = bisect.bisect_right(before, (span.start_ns[event], event)) - 1
            while at >= 0 and before[at][1] >= event:
                at -= 1
            if at >= 0:
                yield Edge(before[at][1], event)


def _threads(events: Events, span: Span) -> Iterator[Edge]:
    """Let the operations of a thread follow each other."""
    last: dict[Track, int] = {}
    for event, (operation, name) in enumerate(zip(span.operations, span.names, strict=True)):
        if name.is_comm:
            continue
        track = events.operations[operation].track
        before = last.get(track, event)
        if before != event and span.joint(before, event) is Joint.END_TO_HEAD:
            yield Edge(before, event, kind=Kind.DEVICE)
        if span.end_ns[event] >= span.end_ns[before]:
            last[track] = event


def _next_of_continued(span: Span, edges: Sequence[Edge]) -> Iterator[Edge]:
    """Let a tensor's next communication follow the one of the step before, if nothing else does."""
    followed = {edge.source for edge in edges}
    for name, ends in span.ends.items():
        for event in ends if name.is_comm else ():
            if event >= span.n_continued or event in followed:
                continue
            begins = span.begins[name]
            later = begins[bisect.bisect_right(begins, event) :]
            if later and span.joint(event, later[0]) is not None:
                yield Edge(event, later[0])


def _stages(events: Events, span: Span) -> Iterator[Edge]:
    """Lead each partition from its enqueueing through its stages to the end of the communication."""
    for chain in span.chains:
        for before, stage in itertools.pairwise(chain):
            if stage >= span.n_continued:
                joint = span.joint(before, stage)
                yield Edge(before, stage, Joint.START_TO_HEAD if joint is None else joint)
        first, last = chain[0], chain[-1]
        wholes = span.ends[events.mains[span.operations[first]]]
        begun = bisect.bisect_right(
            wholes, span.start_ns[first] + TOLERANCE_NS, key=span.start_ns.__getitem__
        )
        for whole in wholes[max(0, begun - _MOST_WHOLES) : begun]:
            lasts = span.end_ns[last] <= span.end_ns[whole] + TOLERANCE_NS
            if lasts and events.is_whole(span.operations[whole]):
                if first >= span.n_continued:
                    yield Edge(whole, first, Joint.START_TO_HEAD, Kind.PART)
                yield Edge(last, whole, Joint.END_TO_BODY, Kind.PART)
