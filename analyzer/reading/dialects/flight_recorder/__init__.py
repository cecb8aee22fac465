"""PyTorch's flight recorder: the collective calls of each rank when a job hung."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from analyzer.base.arrays import NDArray
from analyzer.base.errors import TraceError
from analyzer.reading.dialects import recorded_collectives
from analyzer.reading.dialects.recorded_collectives import Collectives, SyncPoint, SyncPoints
from analyzer.reading.dialects.recorded_collectives import kind_of as kind_of_collective
from analyzer.reading.dialects.roles import Role, by_name
from analyzer.reading.dialects.system import Need, System
from analyzer.reading.formats.columns import BYTES, NUMBER, Trace

if TYPE_CHECKING:
    from analyzer.reading.dialects.step_parts import RankSteps, RankTrace
    from analyzer.reading.formats.recorder.standing import Standing


class FlightRecorder(System):
    """Completed calls with known times are the slices of a dump."""

    name = "flight_recorder"
    counted_by = (
        "A flight recorder holds collectives and messages only: all of them communicate, from the moment at "
        "which they were found to have started, or else were called, until they were found to be complete, "
        "up to a second later (TORCH_NCCL_ENABLE_TIMING=1 measures them)."
    )

    without_slices = "no call in the dumps is completed, with its times; diagnose says who waits for whom"

    args = MappingProxyType({Need.SIZES: (NUMBER, *BYTES), Need.SYNC: (NUMBER,)})

    def recognises(self, trace: Trace) -> bool:
        """Accept the traces of its reader: they are no chrome files."""
        return "recorder" in trace.header

    def rank(self, trace: Trace) -> tuple[int | None, int | None]:
        """Read rank and world size from the file's name and its groups."""
        from analyzer.reading.dialects.flight_recorder.dumped_calls import groups_of, rank_of

        members = {group.members for group in groups_of(trace.header["recorder"]).values()}
        world = 1 + max(map(partial(max, default=-1), members), default=-1)
        return rank_of(trace)[0], world or None

    def recorded_roles(self, trace: Trace) -> NDArray[np.int8]:
        return np.full(len(trace), Role.COMM, np.int8)

    def sync_points(self, trace: Trace) -> SyncPoints:
        """Collect the collectives of each group that no rank leaves before all have come; see `Need.SYNC`."""
        from analyzer.reading.dialects.flight_recorder.dumped_calls import groups_of, is_rooted

        number = np.array(trace.args[NUMBER].values, np.int64)
        is_together = by_name(trace, lambda name: not is_rooted(name)) & (number >= 0)
        groups = groups_of(trace.header["recorder"])
        points: dict[Hashable, SyncPoint] = {}
        for i, track in enumerate(trace.tracks):
            rows = np.flatnonzero(is_together & (trace.track_id == i))
            rows = rows[np.argsort(number[rows], kind="stable")]
            begin, end = trace.ts_ns[rows], trace.end_ns[rows]
            group = groups.get(str(track.tid))
            if group and len(rows) and all((np.diff(each) > 0).all() for each in (number[rows], begin, end)):
                points[group.key] = SyncPoint(begin, end, number=number[rows])
        return points

    def collectives(self, rank: RankTrace) -> Collectives:
        from analyzer.reading.dialects.flight_recorder.dumped_calls import groups_of
        from analyzer.reading.formats.recorder.standing import Group

        trace = rank.trace
        groups = groups_of(trace.header["recorder"])
        number, sent, received = (np.array(trace.args[key].values, np.int64) for key in (NUMBER, *BYTES))
        columns = (trace.name_id, trace.cat_id, trace.track_id, number, sent, received)
        calls = []
        for name, cat, track, turn, given, got in zip(*(column.tolist() for column in columns), strict=True):
            group = groups.get(str(trace.tracks[track].tid)) or Group(
                str(trace.tracks[track].tid), trace.cats[cat], ()
            )
            key = group.key if turn >= 0 else None
            kind, n_ranks = kind_of_collective(trace.names[name]), len(group.members)
            calls.append(recorded_collectives.Call(kind, str(group), n_ranks, given, got, key))
        return Collectives.of(np.arange(len(trace)), calls, np.maximum(number, 0), trace.ts_ns)

    def rank_steps(self, rank: RankTrace, by: str | None = None) -> RankSteps:
        raise TraceError(
            f"{rank.trace.path}: a dump of a flight recorder, which has no steps; diagnose says why the job "
            "hangs, statistic how long completed calls took"
        )

    def filter_names(self, name: str, cat: str, tid: object, process: str | None) -> Sequence[str]:
        return (name,)

    def standing(self, trace: Trace) -> Standing | None:
        from analyzer.reading.dialects.flight_recorder.dumped_calls import standing_of

        return standing_of(trace)
