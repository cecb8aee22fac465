"""Horovod's timeline: of every tensor (a process of the file) its negotiations and reductions."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from analyzer.base.arrays import Int64, NDArray
from analyzer.base.arrays.intervals import overlap_groups
from analyzer.reading.dialects.recorded_collectives import Call, Collectives, kind_of, plausible
from analyzer.reading.dialects.roles import Role, by_name
from analyzer.reading.dialects.steps import NO_STEPS, Steps, rounds
from analyzer.reading.dialects.system import Metadata, Need, System, int_or_zero
from analyzer.reading.formats.columns import Points, Trace

if TYPE_CHECKING:
    from analyzer.reading.dialects.step_parts import RankSteps, RankTrace

_START = "start_time_since_epoch_in_micros"
_PHASE = r"NEGOTIATE_(?:ALLREDUCE|ALLGATHER|BROADCAST|ALLTOALL|REDUCESCATTER)"
_OPERATION = r"(?:ALLREDUCE|ALLGATHER|BROADCAST|ALLTOALL|REDUCESCATTER|ADASUM)\b.*"


#: Bytes of an element, by Horovod's name of its type.
_ITEM_BYTES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "int32": 4, "int64": 8, "int16": 2,
               "uint16": 2, "int8": 1, "uint8": 1, "bool": 1}  # fmt: skip


class Horovod(System):
    """One step is one round of reductions over all tensors."""

    name = "horovod"
    never_shows = System.never_shows - {"negotiation", "slow_collective"}
    never_shows |= {"idle", "hot_operation", "uneven_work"}
    counted_by = (
        "A Horovod timeline records communication only: its computation counts as idle. "
        "Communication: collectives without their negotiation."
    )
    args = MappingProxyType({Need.SIZES: ("dtype", "shape")})

    def recognises_metadata(self, metadata: Metadata) -> bool:
        """Whether the file says when, since the epoch, it was begun."""
        return any(e["name"] == "process_name" and _START in e["args"] for e in metadata)

    def recognises(self, trace: Trace) -> bool:
        """Whether a slice is the negotiation of a collective."""
        negotiates = any(re.fullmatch(_PHASE, name) for name in trace.names)
        return negotiates or self.recognises_metadata(trace.metadata)

    def epoch_ns(self, trace: Trace) -> int:
        """Return `start_time_since_epoch_in_micros`."""
        starts = (event["args"].get(_START) for event in trace.metadata)
        return 1000 * next((int_or_zero(start) for start in starts if start is not None), 0)

    def common_clock(self, trace: Trace) -> str:
        """Return the metadata of the start since the epoch: clocks are taken to agree."""
        return _START if self.epoch_ns(trace) else ""

    def finished(self, trace: Trace) -> Trace:
        """Return the trace with the ticks of ranks in negotiations as what they are: instants."""
        ticks = by_name(trace, str.isdecimal) & (trace.dur_ns == 0)
        points, n = trace.points, int(ticks.sum())
        if not n:
            return trace
        points = Points(
            phase=np.append(points.phase, np.full(n, "i", np.object_)),
            name_id=np.append(points.name_id, trace.name_id[ticks]),
            cat_id=np.append(points.cat_id, trace.cat_id[ticks]),
            track_id=np.append(points.track_id, trace.track_id[ticks]),
            ts_ns=np.append(points.ts_ns, trace.ts_ns[ticks]),
            ids=np.append(points.ids, np.full(n, None)),
            args=[*points.args, *[{}] * n] if points.args else (),
        )
        return replace(trace.select(~ticks), points=points)

    def recorded_roles(self, trace: Trace) -> NDArray[np.int8]:
        """Return the `Role` of each slice (n,); roles within an operation frame nothing."""
        found = np.full(len(trace), Role.COMM, np.int8)
        found[by_name(trace, lambda name: name.startswith("NEGOTIATE"))] = Role.WAIT
        return found

    def marked_steps(self, trace: Trace) -> Steps:
        """Return the steps from the end of one round of reductions over all tensors to the next's."""
        kinds = {name.removeprefix("NEGOTIATE_") for name in trace.names if name.startswith("NEGOTIATE_")}
        kinds -= {kind for kind in kinds if "BROADCAST" in kind}
        begins = trace.ts_ns[by_name(trace, {f"NEGOTIATE_{kind}" for kind in kinds}.__contains__)]
        tensors = _reductions(trace, kinds)
        if not min(map(len, tensors), default=0) or not len(begins):
            return NO_STEPS
        ends = _round_ends(tensors)
        return rounds(int(begins.min()), ends, "rounds of reductions")

    def filter_names(self, name: str, cat: str, tid: object, process: str | None) -> Sequence[str]:
        """Return the tensor's name: that of its process."""
        return () if process is None else (process,)

    def rank_steps(self, rank: RankTrace, by: str | None = None) -> RankSteps:
        """Return the rounds of reductions, as rank 0 recorded them for all."""
        from analyzer.reading.dialects.horovod.horovod_graph import record

        return record(rank.name, rank.trace, self.find_steps(rank.trace, by))

    def collectives(self, rank: RankTrace) -> Collectives:
        """Return the reductions, and their bytes by the shapes of the tensors.

        Tensors that are fused are reduced at the same time, as one. Ranks wait for each other before that, in
        the negotiation.
        """
        trace = rank.trace
        types, shapes = (
            trace.args[key].as_dict() if key in trace.args else {} for key in self.args[Need.SIZES]
        )
        rows = np.flatnonzero(by_name(trace, lambda name: re.fullmatch(_OPERATION, name)))
        own = []
        for row in rows.tolist():
            n_elements = math.prod(map(int, re.findall(r"\d{1,18}", str(shapes.get(row, 0)))))  # of [64, 3]
            own.append(plausible(n_elements * _ITEM_BYTES.get(str(types.get(row)), 0)))
        together = overlap_groups(trace.ts_ns[rows], trace.end_ns[rows])
        moved = np.bincount(together, own)
        moved[together[np.array(own, np.int64) == 0]] = 0  # of one of the tensors it is not recorded
        n_ranks = len({trace.names[i] for i in trace.points.name_id.tolist() if trace.names[i].isdecimal()})
        sizes = zip(trace.name_id[rows].tolist(), moved.astype(np.int64)[together].tolist(), strict=True)
        calls = [
            Call(kind_of(trace.names[i]), "", n_ranks, n_bytes, n_bytes, key=self.name, waits=False)
            for i, n_bytes in sizes
        ]
        found = Collectives.of(rows, calls, together, trace.ts_ns[rows])
        return replace(found, number=together)

    def category(self, name: str, cat: str) -> str:
        """Return the name: Horovod's events have no category that groups them."""
        return cat or name


def _round_ends(tensors: Sequence[Int64]) -> Int64:
    """Find the ends of the rounds (k,) from those of each tensor's reductions.

    A recording that was cut at its begin has the end of a round, that is one reduction more of the tensors
    that come last in it; one that was cut at its end has one more of those that come first.

    >>> _round_ends([np.array([30, 50]), np.array([15, 35, 55])]).tolist()
    [15, 35, 55]
    >>> _round_ends([np.array([10, 30, 50]), np.array([15, 35])]).tolist()
    [15, 35]
    """
    complete = min(map(len, tensors))
    middle = np.median([tensor for tensor in tensors if len(tensor) == complete], axis=0)
    before, ends = [], np.zeros(complete, np.int64)
    for tensor in tensors:
        first = min(
            range(len(tensor) - complete + 1),
            key=lambda skipped: float(np.abs(tensor[skipped : skipped + complete] - middle).sum()),
        )
        before += tensor[:first].tolist()
        ends = np.maximum(ends, tensor[first : first + complete])
    return np.append(np.array([max(before)] if before else [], np.int64), ends)


def _reductions(trace: Trace, kinds: set[str]) -> list[Int64]:
    """Return per tensor when its reductions end, of the tensors that are reduced once a step.

    A tensor is a process in a Horovod timeline; its n-th reduction belongs to the n-th step. Once a
    step are those as often as most are (one more or less where the recording was cut).
    """
    by_tensor: dict[object, list[int]] = {}
    for row in np.flatnonzero(by_name(trace, kinds.__contains__)).tolist():
        by_tensor.setdefault(trace.tracks[trace.track_id[row]].pid, []).append(row)
    if not by_tensor:
        return []
    usual = Counter(map(len, by_tensor.values())).most_common(1)[0][0]
    return [np.sort(trace.end_ns[rows]) for rows in by_tensor.values() if abs(len(rows) - usual) <= 1]
