"""Horovod's timeline: the negotiations and reductions of every tensor (a process of the file)."""

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
        return any(e["name"] == "process_name" and _START in e["args"] for e in metadata)

    def recognises(self, trace: Trace) -> bool:
        negotiates = any(re.fullmatch(_PHASE, name) for name in trace.names)
        return negotiates or self.recognises_metadata(trace.metadata)

    def epoch_ns(self, trace: Trace) -> int:
        starts = (event["args"].get(_START) for event in trace.metadata)
        return 1000 * next((int_or_zero(start) for start in starts if start is not None), 0)

    def common_clock(self, trace: Trace) -> str:
        """Name the metadata of the start since the epoch: clocks are taken to agree."""
        return _START if self.epoch_ns(trace) else ""

    def finished(self, trace: Trace) -> Trace:
        """Turn the ticks of ranks in negotiations into instants."""
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
        """Assign a `Role` to each slice (n,): negotiations wait, all else communicates."""
        negotiates = by_name(trace, lambda name: name.startswith("NEGOTIATE"))
        return np.where(negotiates, Role.WAIT, Role.COMM).astype(np.int8)

    def marked_steps(self, trace: Trace) -> Steps:
        """Take the steps from the end of one round of reductions over all tensors to the next."""
        kinds = {name.removeprefix("NEGOTIATE_") for name in trace.names if name.startswith("NEGOTIATE_")}
        kinds -= {kind for kind in kinds if "BROADCAST" in kind}
        begins = trace.ts_ns[by_name(trace, {f"NEGOTIATE_{kind}" for kind in kinds}.__contains__)]
        tensors = _reductions(trace, kinds)
        if not min(map(len, tensors), default=0) or not len(begins):
            return NO_STEPS
        ends = _round_ends(tensors)
        return rounds(int(begins.min()), ends, "rounds of reductions")

    def filter_names(self, name: str, cat: str, tid: object, process: str | None) -> Sequence[str]:
        """Name the tensor, which is the process."""
        return () if process is None else (process,)

    def rank_steps(self, rank: RankTrace, by: str | None = None) -> RankSteps:
        """Make the graphs of the rounds of reductions, which rank 0 recorded for all."""
        from analyzer.reading.dialects.horovod.horovod_graph import record

        return record(rank.name, rank.trace, self.find_steps(rank.trace, by))

    def collectives(self, rank: RankTrace) -> Collectives:
        """List the reductions, their bytes by the shapes of the tensors; fused tensors are one reduction."""
        trace = rank.trace
        types, shapes = (
            trace.args[key].as_dict() if key in trace.args else {} for key in self.args[Need.SIZES]
        )
        rows = np.flatnonzero(by_name(trace, lambda name: re.fullmatch(_OPERATION, name)))
        tensor_bytes = []
        for row in rows.tolist():
            n_elements = math.prod(map(int, re.findall(r"\d{1,18}", str(shapes.get(row, 0)))))  # of [64, 3]
            tensor_bytes.append(plausible(n_elements * _ITEM_BYTES.get(str(types.get(row)), 0)))
        together = overlap_groups(trace.ts_ns[rows], trace.end_ns[rows])
        moved = np.bincount(together, tensor_bytes)
        moved[together[np.array(tensor_bytes, np.int64) == 0]] = 0  # a tensor's size is not recorded
        n_ranks = len({trace.names[i] for i in trace.points.name_id.tolist() if trace.names[i].isdecimal()})
        sizes = zip(trace.name_id[rows].tolist(), moved.astype(np.int64)[together].tolist(), strict=True)
        calls = [
            Call(kind_of(trace.names[i]), "", n_ranks, n_bytes, n_bytes, key=self.name, waits=False)
            for i, n_bytes in sizes
        ]
        return replace(Collectives.of(rows, calls, together, trace.ts_ns[rows]), number=together)

    def category(self, name: str, cat: str) -> str:
        """Take the name: Horovod's events have no category that groups them."""
        return cat or name


def _round_ends(tensors: Sequence[Int64]) -> Int64:
    """Find the ends of the rounds (k,) from the ends of each tensor's reductions.

    A recording cut at its begin has one more reduction of the tensors that come last in a round; one cut at
    its end has one more of the tensors that come first.

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
    """List the ends of the reductions of each tensor that is reduced once a step.

    Those are reduced as often as most tensors are, or once more or less where the recording was cut.
    """
    by_tensor: dict[object, list[int]] = {}
    for row in np.flatnonzero(by_name(trace, kinds.__contains__)).tolist():
        by_tensor.setdefault(trace.tracks[trace.track_id[row]].pid, []).append(row)
    if not by_tensor:
        return []
    usual = Counter(map(len, by_tensor.values())).most_common(1)[0][0]
    return [np.sort(trace.end_ns[rows]) for rows in by_tensor.values() if abs(len(rows) - usual) <= 1]
