"""Timelines of pipeline jobs (Megatron): all ranks in one file, with their places in names of threads.

Written by StragglerAnalysis (a process for each rank of data parallelism, threads for stages and kinds of
work, ``args.step``) and by MegaScan (a process for each rank, ``args.iteration``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from analyzer.base.arrays import Mask, NDArray
from analyzer.reading.dialects.name_rules import is_collective, is_point_to_point
from analyzer.reading.dialects.owners import Owned, names_in, split_by_tracks
from analyzer.reading.dialects.roles import Phase, Role, by_name, is_communication
from analyzer.reading.dialects.steps import NO_STEPS, STEP_ARGS, Steps, says_step, steps_by_argument
from analyzer.reading.dialects.system import Metadata, Need, System
from analyzer.reading.formats.columns import Trace

if TYPE_CHECKING:
    from analyzer.reading.dialects.step_parts import RankSteps, RankTrace

_PHASES = (
    (r"(?i)forward", Phase.FORWARD),
    (r"(?i)backward", Phase.BACKWARD),
    (r"(?i)optimizer", Phase.UPDATE),
    (r"(?i)data[-_]?(?:load|sync)", Phase.INPUT),
)


class Pipeline(System):
    """Ranks by their places, steps by arguments, meetings as in Megatron."""

    name = "pipeline"
    counted_by = (
        "Communication: the work of threads named after it (pp-comm, dp-comm), and operations named after a "
        "collective, a send or a receive; all else computes."
    )
    args = MappingProxyType({Need.ALWAYS: STEP_ARGS})

    def recognises_metadata(self, metadata: Metadata) -> bool:
        names = (str(event["args"].get("name")) for event in metadata)
        if not any("pp" in name.lower() for name in names):
            return False
        from analyzer.reading.dialects.pipeline.pipeline_meetings import states_stage

        return states_stage(metadata)

    def split(self, trace: Trace) -> Sequence[Owned]:
        """Split by places, in the order of `Place`."""
        from analyzer.reading.dialects.pipeline.pipeline_meetings import place_of, places_of, with_waits

        known = places_of(trace.metadata)
        places = [place_of(known, track) for track in trace.tracks]
        distinct = sorted({place for place in places if place is not None})
        index = {place: i for i, place in enumerate(distinct)}
        owner_of = np.array([-1 if place is None else index[place] for place in places], np.int64)
        owned = split_by_tracks(trace, range(len(distinct)), owner_of)
        if not owned:
            return super().split(trace)
        comms = [is_communication(self.recorded_roles(part.trace)) for part in owned]
        parts = with_waits([part.trace for part in owned], comms, says_step(trace))
        return [replace(owner, trace=part) for owner, part in zip(owned, parts, strict=True)]

    def marked_steps(self, trace: Trace) -> Steps:
        key = says_step(trace)
        return steps_by_argument(trace, key) if key else NO_STEPS

    def loop_spans(self, trace: Trace) -> Mask:
        return np.ones(len(trace), np.bool_)

    def recorded_roles(self, trace: Trace) -> NDArray[np.int8]:
        from analyzer.reading.dialects.pipeline.pipeline_meetings import COMM_THREAD

        names = names_in(trace.metadata, "thread_name")
        on_comm = [COMM_THREAD.search(names.get(track, "")) is not None for track in trace.tracks]
        comm = by_name(trace, lambda name: is_collective(name, "") or is_point_to_point(name))
        comm |= np.array(on_comm, np.bool_)[trace.track_id]
        return np.where(comm, Role.COMM, Role.COMPUTE).astype(np.int8)

    def rank_steps(self, rank: RankTrace, by: str | None = None) -> RankSteps:
        """Make the graphs of one rank's spans; ranks meet as `parts_of` says."""
        from analyzer.reading.dialects.pipeline.pipeline_meetings import (
            MESSAGE,
            parts_of,
            untransferred,
        )
        from analyzer.reading.dialects.span_graph import Meaning, arrows, record_spans

        roles = self.roles(rank.trace)
        comm = is_communication(roles)
        parts, trace = parts_of(rank.trace, comm), untransferred(rank.trace)
        meets = np.zeros(len(trace), np.bool_)
        meets[list(parts)] = True
        phases = {
            name: phase for name in trace.names for rule, phase in _PHASES[::-1] if re.search(rule, name)
        }
        messages = by_name(trace, lambda name: bool(MESSAGE.match(name)))
        meaning = Meaning(roles, meets, phases, self.category, parts, messages=messages, jitters=True)
        return record_spans(rank, trace, self.find_steps(rank.trace, by).whole, meaning, arrows(trace))
