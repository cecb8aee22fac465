"""The collectives of one rank: what each is, when it ran, and how much of it no computation hides."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct, field

import dialects
from arrays import Float64, Int64, NDArray
from dag_utils import Partitions
from dialects import Role, is_communication
from dialects.recorded_collectives import Call
from dialects.step_parts import RankTrace
from dialects.sync_points import SyncPoints
from figures.time_by_role import Slices, time_of_ids
from formats.columns import Trace
from trace_utils import Source, read_args

#: What hides communication, or takes a part of its time.
_BESIDE = (Role.COMPUTE, Role.COMM, Role.WHOLE_COMM, Role.WAIT, Role.IDLE)


class RankCollectives(Struct, frozen=True):
    """The k collectives of one rank, as of `Collectives`; times on its own clock.

    `taken_ns` (k,) is the time of each, of those at once each has its part, and `exposed_ns` (k,) what of it
    no computation hid. `span` is from when to when the rank was recorded.
    """

    calls: Sequence[Call]
    call: Int64
    number: Int64
    start_ns: Int64
    end_ns: Int64
    exposed_ns: Float64
    taken_ns: Float64
    span: tuple[int, int] = (0, 0)
    points: SyncPoints = field(default_factory=dict)
    machine: str = ""
    world_size: int = 0


def rank_collectives(source: Source, trace: Trace, partitions: Partitions) -> RankCollectives:
    """Return the collectives of a rank's trace that was read for `Need.SIZES`, `SYNC` and `STEPS`."""
    if not len(trace):
        none = np.empty(0, np.int64)
        return RankCollectives((), none, none, none, none, none.astype(float), none.astype(float))
    system = dialects.of(trace)
    rank = RankTrace(
        "",
        trace,
        bytes_of=partitions.bytes_of,
        args_of=lambda names: read_args(source.path, names, slices=True),
    )
    found = system.collectives(rank)
    exposed, taken = _times(trace, system.roles(trace), found.row)
    return RankCollectives(
        found.calls,
        found.call,
        found.number,
        trace.ts_ns[found.row],
        trace.end_ns[found.row],
        exposed,
        taken,
        (int(trace.ts_ns.min()), int(trace.end_ns.max())),
        system.sync_points(trace),
        system.machine(trace),
        trace.world_size or 0,
    )


def _times(trace: Trace, roles: NDArray[np.int8], rows: Int64) -> tuple[Float64, Float64]:
    """Return how much of the time of some communication (k,) no computation hides, and all of its time.

    As in `figures.time_by_role.breakdown`: each instant counts once.
    """
    ids = np.full(len(trace), len(rows))
    ids[rows] = np.arange(len(rows))
    slices = Slices.of(trace.ts_ns, trace.end_ns, trace.track_id, roles)
    bounds = trace.ts_ns.min(keepdims=True), trace.end_ns.max(keepdims=True)
    exposed, taken = (
        time_of_ids(slices.at(own), ids[own], len(rows) + 1, *bounds)[0, :-1]
        for own in (np.flatnonzero(np.isin(roles, _BESIDE)), np.flatnonzero(is_communication(roles)))
    )
    return exposed, taken
