"""Ranks that work, or pause, as long as their peers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analyzer.model.graph.step_graph import Recording
from replay.edit import Edit, EditRequest, Job, Order, measured
from replay.even_work import (
    as_peers,
    as_usual,
    done_by_all,
    excess_ns,
    is_own_work,
    of_mean_owner,
    scaled,
    stages,
    work_by_owner,
)
from replay.selection import named_ranks


def parse(request: EditRequest, job: Job) -> Edit | None:
    """Parse `=peers` of ranks and `gap=even`; None for any other request."""
    ranks, _, part = request.name.rpartition(".")
    if part == "gap" and request.value == "even":
        if ranks:
            raise request.refused("gaps are evened out over all ranks: gap=even")
        return Edit(_gaps_even_in_each_step, order=Order.EVENED, as_recorded=True)
    if request.value != "peers":
        return None
    if part == "gap" or (ranks and part == "extra"):
        late = named_ranks(job.recording, request, ranks)
        if part == "extra":
            return measured(job, lambda recording: _without_extra(recording, late))
        return measured(job, lambda recording: as_peers(recording, late, work=False, gaps=True))
    if part.rpartition(",")[2].startswith(("rank", "wk")):
        late = named_ranks(job.recording, request, request.name)
        return measured(job, lambda recording: as_peers(recording, late))
    raise request.refused(
        "peers is a value of a rank, its gap, its extra work or ready: e.g. rank1.gap=peers"
    )


def _without_extra(recording: Recording, late: Sequence[int]) -> Recording:
    """Shorten work that not all ranks do, until the `late` owners work no longer than their peers.

    A kernel with another name on another rank is no additional work: the time removed is at most the excess
    of all own work of the late owners over their peers.
    """
    work, group = is_own_work(recording), stages(recording)
    extra = work & ~done_by_all(recording)
    chosen = extra & recording.which(lambda op: op.owner in late)
    more = min(excess_ns(work_by_owner(recording, part), late, group) for part in (work, extra))
    taken = float(np.median(work_by_owner(recording, chosen)[:, list(late)].mean(axis=1)))
    return scaled(recording, np.where(chosen, max(1 - more / max(taken, 1.0), 0.0), 1.0))


def _gaps_even_in_each_step(recording: Recording) -> Recording:
    everything = np.ones(len(recording.operations), np.bool_)
    return as_usual(
        recording, "gap_ns", of_mean_owner, everything, kind_of=lambda op: "gap", over_steps=False, most=1.0
    )
