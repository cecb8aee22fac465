"""A trace as columns: arrays, and tables of distinct strings."""

from __future__ import annotations

import itertools
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from analyzer.base.arrays import Int32, Int64, Mask, NDArray
from analyzer.base.arrays.numbering import numbered
from analyzer.base.errors import counted
from analyzer.reading.formats.values import FARTHEST_NS

Objects = NDArray[np.object_]

Id = str | int | float | None

#: DASF's names of tasks and of samples; columns of a recorder's dump: a call's number, its bytes in and out.
COMPUTE, RESOURCE_USAGE, MANAGED_MEMORY = "Compute", "Resource Usage", "Managed Memory"
NUMBER, BYTES = "collective_seq_id", ("input", "output")
#: The arg with the address of an allocation; the member of a header with an allocator's devices by number,
#: the stacks and the settings.
ADDRESS, ALLOCATOR = "Addr", "allocator"


class Track(NamedTuple):
    """Process and thread of an event as recorded: integers or texts, None if missing."""

    pid: Id
    tid: Id


class ArgColumn(Struct, frozen=True):
    """One key of the events' `args`: ascending row numbers (k,) of the trace, and decoded JSON values (k).

    The values are an array if all are integers or all floats: there may be millions, in a mapped file.
    """

    rows: Int64
    values: Sequence[Any] | NDArray[Any]

    def as_dict(self) -> dict[int, Any]:
        """Map rows to values."""
        return dict(zip(self.rows.tolist(), self.values, strict=True))

    def select(self, rows: Int64) -> ArgColumn:
        """Select the values for a trace of only these rows, ascending."""
        index = np.full(1 + max(rows.max(initial=-1), self.rows.max(initial=-1)), -1)
        index[rows] = np.arange(len(rows))
        new_rows = index[self.rows]
        kept = new_rows >= 0
        if isinstance(self.values, np.ndarray):
            return ArgColumn(new_rows[kept], self.values[kept])
        if isinstance(self.values, array):
            values = np.array(self.values)[kept]
            return ArgColumn(new_rows[kept], array(self.values.typecode, values.tobytes()))
        return ArgColumn(new_rows[kept], list(itertools.compress(self.values, kept.tolist())))


class Points(Struct, frozen=True):
    """Events that are not slices (flows, async begins and ends, instants, counters), in file order.

    `name_id`, `cat_id` and `track_id` index the tables of the trace. `ids` are the `id` (or `id2`) fields as
    text, None if missing. `args` is empty unless all arguments were requested.
    """

    phase: Objects  # (n) str: "s", "t", "f", "b", "e", "i", "C", ...
    name_id: Int32
    cat_id: Int32
    track_id: Int32
    ts_ns: Int64
    ids: Objects  # (n) str or None
    args: Sequence[Mapping[str, Any]] = ()

    def __len__(self) -> int:
        return len(self.phase)

    def select(self, rows: Int64) -> Points:
        """Select these points."""
        columns = {name: getattr(self, name)[rows] for name in self.__struct_fields__ if name != "args"}
        return Points(**columns, args=[self.args[i] for i in rows.tolist()] if self.args else ())


_NO_IDS = np.empty(0, np.int32)
_NO_OBJECTS = np.empty(0, np.object_)
NO_POINTS = Points(_NO_OBJECTS, _NO_IDS, _NO_IDS, _NO_IDS, np.empty(0, np.int64), _NO_OBJECTS)


class Trace(Struct, frozen=True, weakref=True):
    """The slices of one trace file (X events and paired B/E), one row each, in file order.

    The tables have distinct values by first appearance; `name_id`, `cat_id` and `track_id` (n,) index them.
    """

    path: str
    dialect: str  # the name of the system that wrote it (`dialects.SYSTEMS`)
    names: Sequence[str]
    cats: Sequence[str]  # "" for events without a category
    tracks: Sequence[Track]
    name_id: Int32
    cat_id: Int32
    track_id: Int32
    ts_ns: Int64  # (n,) starts, since the epoch if the dialect knows it
    dur_ns: Int64  # (n,)
    args: Mapping[str, ArgColumn] = field(default_factory=dict)  # the requested keys of `args`
    points: Points = NO_POINTS  # if requested
    metadata: Sequence[Mapping[str, Any]] = ()  # the M events, in file order
    header: Mapping[str, Any] = field(default_factory=dict)  # members of the file beside its events
    phases: Mapping[str, int] = field(default_factory=dict)  # number of events of each phase
    rank: int | None = None  # as recorded in the file
    world_size: int | None = None  # as recorded in the file
    repairs: Sequence[str] = ()  # phrases without the path
    is_shared: Mask | None = None  # (n,) slices of the host that other ranks of the file have, too
    comm: Sequence[str] = ()  # parts of names of further communications (`--comm`)

    def __len__(self) -> int:
        return len(self.ts_ns)

    @property
    def own(self) -> Trace:
        """The trace without the slices shared with other ranks, which count once, for the host."""
        return self if self.is_shared is None else replace(self.select(~self.is_shared), is_shared=None)

    def shifted(self, by_ns: int) -> Trace:
        """Shift the times; events more than 100 years from the epoch are left out."""
        if by_ns == 0:
            return self
        points = replace(self.points, ts_ns=self.points.ts_ns + by_ns)
        is_near = np.abs(points.ts_ns) <= FARTHEST_NS
        trace = replace(
            self,
            ts_ns=self.ts_ns + by_ns,
            points=points if is_near.all() else points.select(np.flatnonzero(is_near)),
        )
        is_far = np.abs(trace.ts_ns) > FARTHEST_NS
        if not is_far.any():
            return trace
        note = f"{counted(int(is_far.sum()), 'slice')} more than 100 years from the epoch left out"
        return replace(trace.select(~is_far), repairs=(*self.repairs, note))

    @property
    def end_ns(self) -> Int64:
        """Ends of the slices (n,)."""
        return self.ts_ns + self.dur_ns

    def select(self, rows: NDArray[Any]) -> Trace:
        """Select slices by `rows` (a mask, or ascending row numbers)."""
        keep = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        columns = ("name_id", "cat_id", "track_id", "ts_ns", "dur_ns")
        return replace(
            self,
            **{name: getattr(self, name)[keep] for name in columns},
            args={key: column.select(keep) for key, column in self.args.items()},
            is_shared=None if self.is_shared is None else self.is_shared[keep],
        )


def no_slices(
    path: str, dialect: str, header: Mapping[str, Any], metadata: Sequence[Mapping[str, Any]]
) -> Trace:
    """Make a trace with only a header and metadata."""
    times = np.empty(0, np.int64)
    return Trace(
        path, dialect, [], [], [], _NO_IDS, _NO_IDS, _NO_IDS, times, times, metadata=metadata, header=header
    )


def concatenate(traces: Sequence[Trace]) -> Trace:
    """Join traces, one after the other; `path`, `header` and rank are the first's."""
    if len(traces) == 1:
        return traces[0]
    offsets = np.cumsum([0, *map(len, traces)]).tolist()
    args: dict[str, ArgColumn] = {}
    for key in dict.fromkeys(key for trace in traces for key in trace.args):
        parts = [(t.args[key], offset) for t, offset in zip(traces, offsets, strict=False) if key in t.args]
        rows = np.concatenate([column.rows + offset for column, offset in parts])
        values = [column.values for column, _ in parts]
        codes = {part.typecode if isinstance(part, array) else "" for part in values}
        if all(isinstance(part, np.ndarray) for part in values):
            args[key] = ArgColumn(rows, np.concatenate(values))
        elif len(codes) == 1 and codes != {""}:
            args[key] = ArgColumn(rows, array(codes.pop(), b"".join(map(bytes, values))))
        else:
            args[key] = ArgColumn(rows, [*itertools.chain.from_iterable(values)])
    columns: dict[str, Any] = {}
    points: dict[str, Any] = {}
    for table, column in (("names", "name_id"), ("cats", "cat_id"), ("tracks", "track_id")):
        tables = [getattr(trace, table) for trace in traces]
        columns[table], index = numbered(itertools.chain(*tables))
        new_ids = np.split(index, np.cumsum([len(each) for each in tables])[:-1])
        pairs = list(zip(new_ids, traces, strict=True))
        columns[column] = np.concatenate([new[getattr(trace, column)] for new, trace in pairs])
        points[column] = np.concatenate([new[getattr(trace.points, column)] for new, trace in pairs])
    if any(trace.is_shared is not None for trace in traces):
        shared = (np.zeros(len(t), np.bool_) if t.is_shared is None else t.is_shared for t in traces)
        columns["is_shared"] = np.concatenate([*shared])
    for name in ("ts_ns", "dur_ns"):
        columns[name] = np.concatenate([getattr(trace, name) for trace in traces])
    for name in ("phase", "ts_ns", "ids"):
        points[name] = np.concatenate([getattr(trace.points, name) for trace in traces])
    return replace(
        traces[0],
        **columns,
        args=args,
        points=Points(**points),
        metadata=[event for trace in traces for event in trace.metadata],
        phases=sum((Counter(trace.phases) for trace in traces), Counter()),
        repairs=[phrase for trace in traces for phrase in trace.repairs],
    )


def used_tables(trace: Trace) -> Trace:
    """Remove the names without slices or points from a trace's table."""
    used = np.zeros(len(trace.names), np.bool_)
    used[trace.name_id] = used[trace.points.name_id] = True
    new = (np.cumsum(used) - 1).astype(np.int32)
    return replace(
        trace,
        names=[name for name, keep in zip(trace.names, used.tolist(), strict=True) if keep],
        name_id=new[trace.name_id],
        points=replace(trace.points, name_id=new[trace.points.name_id]),
    )
