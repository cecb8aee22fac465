"""What one rank's trace tells of its steps: the task that is done where its file is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

import dialects
from arrays import Int64
from arrays.numbering import ids_in
from clocks.job_clocks import machine_of, shifted
from clocks.offsets import Clock
from dag.dependencies import dag_from_gml
from dag.spill import Spill
from dialects.byteps import inputs
from dialects.byteps.gradient_names import read_parameters
from dialects.masks import by_name
from dialects.step_parts import RankSteps, RankTrace
from dialects.steps import Step
from dialects.sync_points import SyncPoints
from dialects.system import NO_SIZES, Frames, MessageSizes
from errors import AnalyzeError, DagError
from formats.columns import Trace
from formats.gml import read_gml
from formats.stream import find_file
from traces.files import read_args
from traces.paths import Source

#: What PyTorch's profiler calls an allocation or a release (with `profile_memory=True`).
_MEMORY = "[memory]"
_DEVICE = 1  # "Device Type" of a GPU


class Partitions(Struct, frozen=True):
    """What logs tell about a job's partitions, by their keys: bytes, and the server that keeps them."""

    bytes_of: Mapping[int, int] = field(default_factory=dict)
    server_of: Mapping[int, int] = field(default_factory=dict)


class Wish(NamedTuple):
    """What is wanted of each rank.

    `step_by` as for `System.find_steps`; `sizes`: whether samples of memory, what calls of collectives move,
    and what Python stacks say of pauses are asked for.
    """

    step_by: str | None = None
    partitions: Partitions = Partitions()
    sizes: bool = False


class MemorySamples(NamedTuple):
    """What devices of a rank had allocated: `at_ns` (k,), `n_bytes` (k,); `capacity` 0 where unknown."""

    at_ns: Int64
    n_bytes: NDArray[np.float64]
    capacity: float


class RankFacts(Struct, frozen=True):
    """What options ask of a rank's trace beside its steps.

    Attributes
    ----------
    path : of the trace, as the user gave it
    rank, world_size : as the trace itself says, else None
    rule : by which its slices count as communication and computation
    loads : as of `System.loads`
    sizes : what its collectives move, of a trace read for `Need.SIZES`
    sizes_end_ns : when each of these ends
    memory : samples of its devices' memory, where wished for and recorded
    machine : on which it ran, "" where the trace does not say
    frames : as of `System.frames`, where wished for
    """

    path: str
    rank: int | None = None
    world_size: int | None = None
    rule: str = ""
    loads: Sequence[Step] = ()
    sizes: MessageSizes = NO_SIZES
    sizes_end_ns: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    memory: MemorySamples | None = None
    machine: str = ""
    frames: Frames | None = None


class RankRecord(Struct, frozen=True):
    """One rank's steps on its own clock, or why there are none, and what joining them needs beside.

    `broken` says why the graph beside the trace cannot be used.
    """

    steps: RankSteps | AnalyzeError
    facts: RankFacts
    points: SyncPoints
    broken: str = ""

    def put_aside(self, spill: Spill) -> RankRecord:
        """Return the record with the columns of its steps put aside."""
        if isinstance(self.steps, AnalyzeError):
            return self
        steps = [spill.put(replace(step, meets=spill.put(step.meets))) for step in self.steps.steps]
        return replace(self, steps=replace(self.steps, steps=steps))

    def later(self, by_ns: int) -> RankRecord:
        """Return the record with all times `by_ns` later."""
        if by_ns == 0 or isinstance(self.steps, AnalyzeError):
            return self
        facts, memory = self.facts, self.facts.memory
        if memory is not None:
            memory = memory._replace(at_ns=memory.at_ns + by_ns)
        frames = None if facts.frames is None else facts.frames.later(by_ns)
        facts = replace(facts, sizes_end_ns=facts.sizes_end_ns + by_ns, memory=memory, frames=frames)
        return replace(self, steps=self.steps.later(by_ns), facts=facts)


def record_rank(source: Source, trace: Trace, wish: Wish, clock: Clock | None = None) -> RankRecord:
    """Return what a rank's trace tells; with `clock`, its times on the clock that this relates it to."""
    if not len(trace):
        return RankRecord(AnalyzeError(f"{trace.path}: no operation"), RankFacts(trace.path), {})
    if clock is not None:
        trace = shifted(trace, clock)
    system = dialects.of(trace)
    pairs, broken = _graph(source, trace)
    edges = pairs
    if edges is None:  # who comes before whom as the events' own inputs say
        edges = sorted({(before, trace.names[trace.name_id[row]]) for row, before in inputs(trace)})
    parameters = read_parameters(source.path.parent)
    of_keys = wish.partitions
    rank = RankTrace(
        *("", trace, source.worker, edges, parameters, of_keys.bytes_of, of_keys.server_of),
        args_of=lambda name: read_args(source.path, {name}, slices=True),
    )
    steps: RankSteps | AnalyzeError
    try:
        steps = system.rank_steps(rank, wish.step_by).compact()
    except AnalyzeError as error:
        steps = error
    return RankRecord(steps, _facts(source, trace, wish), system.sync_points(trace), broken)


def _graph(source: Source, trace: Trace) -> tuple[list[tuple[str, str]] | None, str]:
    """Return the edges of the ``dag.gml`` beside a trace, None without one; and why it cannot be used."""
    path = find_file(source.path.parent, "dag.gml")
    if path is None:
        return None, ""
    given = Path(trace.path).parent / path.name
    try:
        dag = dag_from_gml(read_gml(path), str(given))
    except DagError as error:
        return None, str(error).replace(str(path), str(given))
    pairs = [*dag.edges[:, :2].tolist(), *dag.next_edges.tolist()]
    return [(dag.names[a], dag.names[b]) for a, b in pairs], ""


def _facts(source: Source, trace: Trace, wish: Wish) -> RankFacts:
    system = dialects.of(trace)
    sizes = system.message_sizes(trace)
    if wish.sizes and not len(sizes.row):
        sizes = _sizes_of_calls(source, trace)
    ends = trace.end_ns[sizes.row]
    memory = _memory(source, trace) if wish.sizes else None
    own = (trace.path, trace.rank, trace.world_size)
    machine = machine_of(trace.header)
    frames = system.frames(trace) if wish.sizes else None
    return RankFacts(*own, system.rule(trace), system.loads(trace), sizes, ends, memory, machine, frames)


def _sizes_of_calls(source: Source, trace: Trace) -> MessageSizes:
    """Return what calls of collectives move; their args are read alone, as all operators have such."""
    system = dialects.of(trace)
    rows = np.flatnonzero(by_name(trace, system.is_sized_call))
    if not len(rows):
        return NO_SIZES
    args = read_args(source.path, {trace.names[i] for i in ids_in(trace.name_id[rows])}, slices=True)
    if len(args) != len(rows):  # of several files of a rank only one is looked at
        return NO_SIZES
    return system.sizes_of_calls(trace, rows, args)


def _memory(source: Source, trace: Trace) -> MemorySamples | None:
    if _MEMORY not in trace.names:
        return None
    at_ns = trace.points.ts_ns[trace.points.name_id == trace.names.index(_MEMORY)]
    samples = read_args(source.path, {_MEMORY})
    if len(samples) != len(at_ns):  # of several files of a rank only one is looked at
        return None
    on_device = np.array([one.get("Device Type") == _DEVICE for one in samples], np.bool_)
    total = np.array([_number(one.get("Total Allocated")) for one in samples], np.float64)
    devices = trace.header.get("deviceProperties")
    first = devices[0] if isinstance(devices, list) and devices and isinstance(devices[0], dict) else {}
    return MemorySamples(at_ns[on_device], total[on_device], _number(first.get("totalGlobalMem")))


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
