"""The steps of one rank, from its trace: the task that is done where its file is read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from analyzer.base.arrays import Int64
from analyzer.base.errors import AnalyzeError, TraceError
from analyzer.model.graph.dependencies import dag_from_gml
from analyzer.reading import dialects
from analyzer.reading.dialects import Need
from analyzer.reading.dialects.recorded_collectives import NO_COLLECTIVES, Collectives
from analyzer.reading.dialects.step_parts import RankSteps, RankTrace
from analyzer.reading.dialects.sync_points import SyncPoints
from analyzer.reading.dialects.system import Frames, MemorySamples
from analyzer.reading.formats.columns import Trace
from analyzer.reading.formats.gml import read_gml
from analyzer.reading.formats.stream import find_file
from trace_utils import Request, Source, read_args


class Partitions(Struct, frozen=True):
    """A job's partitions by logs, by their keys: bytes, and the server that keeps them."""

    bytes_of: Mapping[int, int] = field(default_factory=dict)
    server_of: Mapping[int, int] = field(default_factory=dict)


class RankFacts(Struct, frozen=True):
    """Optional columns of a rank's trace, beside its steps.

    Attributes
    ----------
    path : of the trace, as the user gave it
    rank, world_size : as the trace itself says, else None
    rule : by which its slices count as communication and computation
    sizes : its collectives and what they move, of a trace read for `Need.SIZES`
    sizes_end_ns : when each of these ends
    memory : samples of its devices' memory, where wished for and recorded
    machine : on which it ran, "" where the trace does not say
    frames : as of `System.frames`
    loads_ahead : as of `System.loads_ahead`
    """

    path: str
    rank: int | None = None
    world_size: int | None = None
    rule: str = ""
    sizes: Collectives = NO_COLLECTIVES
    sizes_end_ns: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    memory: MemorySamples | None = None
    machine: str = ""
    frames: Frames | None = None
    loads_ahead: bool = False


class RankRecord(Struct, frozen=True):
    """One rank's steps on its own clock, or why there are none, and what joining them needs beside.

    `broken` says why the graph beside the trace cannot be used.
    """

    steps: RankSteps | AnalyzeError
    facts: RankFacts
    points: SyncPoints
    broken: str = ""

    def later(self, by_ns: int) -> RankRecord:
        """Return the record with all times `by_ns` later."""
        if by_ns == 0 or isinstance(self.steps, AnalyzeError):
            return self
        facts, memory = self.facts, self.facts.memory
        if memory is not None:
            memory = replace(memory, at_ns=memory.at_ns + by_ns)
        frames = None if facts.frames is None else facts.frames.later(by_ns)
        facts = replace(facts, sizes_end_ns=facts.sizes_end_ns + by_ns, memory=memory, frames=frames)
        return replace(self, steps=self.steps.later(by_ns), facts=facts)


def record_rank(source: Source, trace: Trace, request: Request, partitions: Partitions) -> RankRecord:
    """Return the record of a rank's trace.

    For `Need.SIZES` it also tells the samples of memory, and what calls of collectives move.
    """
    if not len(trace):
        return RankRecord(AnalyzeError(f"{trace.path}: no operation"), RankFacts(trace.path), {})
    system = dialects.of(trace)
    edges, broken = _graph(source, trace)
    parameters = system.parameters(source.path.parent)
    rank = RankTrace(
        *("", trace, source.worker, edges, parameters, partitions.bytes_of, partitions.server_of),
        most_steps=request.most_steps,
        args_of=lambda names: read_args(source.path, names, slices=True),
    )
    steps: RankSteps | AnalyzeError
    try:
        steps = system.rank_steps(rank, request.step_by).compact()
    except AnalyzeError as error:
        steps = error
    facts = _facts(source, rank, sized=Need.SIZES in request.needs)
    return RankRecord(steps, facts, system.sync_points(trace), broken)


def _graph(source: Source, trace: Trace) -> tuple[list[tuple[str, str]] | None, str]:
    """Return the edges of the ``dag.gml`` beside a trace, None without one; and why it cannot be used."""
    path = find_file(source.path.parent, "dag.gml")
    if path is None:
        return None, ""
    given = Path(trace.path).parent / path.name
    try:
        dag = dag_from_gml(read_gml(path), str(given))
    except TraceError as error:
        return None, str(error).replace(str(path), str(given))
    pairs = [*dag.edges[:, :2].tolist(), *dag.next_edges.tolist()]
    return [(dag.names[a], dag.names[b]) for a, b in pairs], ""


def _facts(source: Source, rank: RankTrace, *, sized: bool) -> RankFacts:
    trace, system = rank.trace, dialects.of(rank.trace)
    sizes = system.collectives(rank) if sized else NO_COLLECTIVES
    return RankFacts(
        path=trace.path,
        rank=trace.rank,
        world_size=trace.world_size,
        rule=system.rule(trace),
        sizes=sizes,
        sizes_end_ns=trace.end_ns[sizes.row],
        memory=_memory(source, trace) if sized else None,
        machine=system.machine(trace),
        frames=system.frames(trace),
        loads_ahead=system.loads_ahead(trace),
    )


def _memory(source: Source, trace: Trace) -> MemorySamples | None:
    system = dialects.of(trace)
    if system.memory_event not in trace.names:
        return None
    return system.memory(trace, read_args(source.path, {system.memory_event}))
