"""Ranks that pause, with nothing recorded, no longer than others do."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from dag.step_graph import Recording, StepGraph
from replay.edit import Edit, EditRequest, Job
from replay.even_work import as_peers, ratio_of, scaled_column, stages, work_of
from replay.selection import named_ranks

NAME = "rank1.gap=peers, gap=even"
HELP = (
    "stretches of a rank (rank1,rank2) with nothing recorded are no longer than its peers'; even: in each "
    "step no longer than the mean rank's"
)


def parse(request: EditRequest, job: Job) -> Edit | None:
    """Return the edit that shortens pauses; None for any other request."""
    ranks, _, part = request.name.rpartition(".")
    if part != "gap" or request.value not in ("peers", "even"):
        return None
    if request.value == "even" and not ranks:
        return Edit(lambda recording, _: gaps_even_in_each_step(recording), as_recorded=True)
    if request.value == "even":
        raise request.refused("gaps are evened out over all ranks: gap=even")
    late, group = named_ranks(job.recording, request, ranks), stages(job.recording)
    return Edit(lambda recording, _: as_peers(recording, late, group, work=False, gaps=True))


def gaps_even_in_each_step(recording: Recording) -> Recording:
    """Return the recording in which the gaps of each owner are as long as the mean owner's in that step."""
    work = work_of(recording)

    def evened(step: StepGraph) -> StepGraph:
        gaps = work.table(step, "gap_ns").sum(axis=1, keepdims=True)
        factor = np.broadcast_to(np.minimum(ratio_of(gaps.mean(), gaps), 1.0), (work.n_owners, work.n_kinds))
        factor_of = work.of_operations(factor, np.ones(len(work.kind), np.bool_))
        return replace(step, gap_ns=scaled_column(step, factor_of, "gap_ns"))

    return recording.edited(evened)
