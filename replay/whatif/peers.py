"""Ranks that work, or pause with nothing recorded, as long as their peers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from dag.step_graph import Recording, StepGraph
from replay.edit import Edit, EditRequest, Job, Order, measured
from replay.even_work import (
    as_peers,
    done_by_all,
    excess_ns,
    is_own_work,
    ratio_of,
    scaled,
    scaled_column,
    stages,
    work_by_owner,
    work_of,
)  # fmt: skip
from replay.selection import named_ranks

NAME = "rank1=peers, rank1.extra=peers, rank1.gap=peers, gap=even"
HELP = (
    "a rank (rank1,rank2) does its own work in its peers' usual time; extra: what not all ranks do takes so "
    "much less that it works as long as they do; gap: with nothing recorded it is no longer than they are; "
    "even: in each step no longer than the mean rank"
)


def parse(request: EditRequest, job: Job) -> Edit | None:
    """Return the edit that makes ranks work, or pause, like their peers; None for any other request."""
    ranks, _, part = request.name.rpartition(".")
    if part == "gap" and request.value == "even":
        if ranks:
            raise request.refused("gaps are evened out over all ranks: gap=even")
        return Edit(gaps_even_in_each_step, order=Order.EVENED, as_recorded=True)
    if request.value != "peers":
        return None
    if part == "gap":
        late, group = named_ranks(job.recording, request, ranks), stages(job.recording)
        return measured(job, lambda recording: as_peers(recording, late, group, work=False, gaps=True))
    if ranks and part == "extra":
        late = named_ranks(job.recording, request, ranks)
        return measured(job, lambda recording: without_extra(recording, late))
    if part.rpartition(",")[2].startswith(("rank", "wk")):
        late, group = named_ranks(job.recording, request, request.name), stages(job.recording)
        return measured(job, lambda recording: as_peers(recording, late, group))
    raise request.refused(
        "peers is a value of a rank, its gap, its extra work or ready: e.g. rank1.gap=peers"
    )


def without_extra(recording: Recording, late: Sequence[int]) -> Recording:
    """Return the recording in which what only some ranks do keeps the `late` owners no longer than peers.

    What takes the place of something else on another rank (a kernel of another name) is not more work: the
    time is at most that by which all own work of the late owners exceeds their peers'.
    """
    own, group = is_own_work(recording), stages(recording)
    extra = own & ~done_by_all(recording)
    chosen = extra & np.isin(recording.column(lambda one: one.owner), late)

    more = min(excess_ns(work_by_owner(recording, which), late, group) for which in (own, extra))
    taken = float(np.median(work_by_owner(recording, chosen)[:, list(late)].mean(axis=1)))
    return scaled(recording, np.where(chosen, max(1 - more / max(taken, 1.0), 0.0), 1.0))


def gaps_even_in_each_step(recording: Recording) -> Recording:
    """Return the recording in which the gaps of each owner are as long as the mean owner's in that step."""
    work = work_of(recording)

    def evened(step: StepGraph) -> StepGraph:
        gaps = work.table(step, "gap_ns").sum(axis=1, keepdims=True)
        factor = np.broadcast_to(np.minimum(ratio_of(gaps.mean(), gaps), 1.0), (work.n_owners, work.n_kinds))
        factor_of = work.of_operations(factor, np.ones(len(work.kind), np.bool_))
        return replace(step, gap_ns=scaled_column(step, factor_of, "gap_ns"))

    return recording.edited(evened)
