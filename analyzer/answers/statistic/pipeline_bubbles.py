"""Bubbles of pipelines: the idle time of each rank while its pipeline fills, is full, and drains.

With p even stages, and m micro-batches that take a time t each on a stage, a step takes (m + p - 1) t, of
which each rank is idle for (p - 1) t: that is the schedule's own.
"""

from __future__ import annotations

import re

import numpy as np

from analyzer.base.arrays import Float64, Int64, Mask
from analyzer.base.arrays.intervals import clipped_lengths, union
from analyzer.base.errors import UsageError
from analyzer.model.graph.step_graph import Recording, StepGraph
from analyzer.reading.dialects.edge_rules import EdgeKind, kinds_of
from analyzer.reading.dialects.name_rules import is_point_to_point
from analyzer.reading.dialects.roles import Phase, Role
from replay.selection import pipeline_stages

#: Names of all computation of a micro-batch, in recordings without phases (the published pipelines).
_NAMED = re.compile(r"(?i)(?:(forward)|backward)(?:[-_ ]?(?:compute|pass|step))?")


def pipeline_bubbles(recording: Recording) -> tuple[Int64, Float64]:
    """Measure the mean step of each owner of a pipeline: stages (m,), and parts as of `step_parts` (m, 8).

    UsageError for any other job.
    """
    stages = pipeline_stages(recording)
    if stages is None:
        raise UsageError("--sub_option bubbles: no rank sends to another one, so there is no pipeline")
    kinds = _kinds(recording)
    steps = [step_parts(recording.steps[row], kinds) for row in recording.whole_steps]
    parts = np.mean(steps, axis=0)
    parts[:, 7] = np.median(steps, axis=0)[:, 7]
    return np.array(stages), parts


def _kinds(recording: Recording) -> tuple[Mask, ...]:
    """Mask the operations (n,) that compute, forward and backward, that transfer, and may be messages."""
    on_device = recording.which(lambda op: op.is_kernel)
    works = recording.which(lambda op: op.role in (Role.COMPUTE, Role.UPDATE))
    computes = on_device if on_device.any() else works
    moves = recording.which(lambda op: op.is_communication or (op.on_device and not op.is_kernel))
    messages = moves & recording.which(lambda op: is_point_to_point(op.name))
    forward, backward = (
        computes & recording.which(lambda op, phase=phase: op.phase is phase)  # type: ignore[misc]
        for phase in (Phase.FORWARD, Phase.BACKWARD)
    )
    if not backward.any():
        named = {op.name: _NAMED.fullmatch(op.name) for op in recording.operations.kinds}
        forward = computes & recording.which(lambda op: (match := named[op.name]) and match[1])
        backward = computes & recording.which(lambda op: (match := named[op.name]) and not match[1])
    return computes, forward, backward, moves, messages


def step_parts(step: StepGraph, kinds: tuple[Mask, ...]) -> Int64:
    """Split a step of each owner (m, 8): length, computation, transfers, idle times (3), work, micro-batches.

    The work is that of micro-batches, which are stretches of forward computation between messages. Where
    phases are not known, all computation is, half of the stretches are forward, the warm-up lasts until the
    first one, and the drain from the last one.
    """
    computes, forward, backward, moves, messages = (mask[step.operation] for mask in kinds)
    in_group = np.zeros(len(step), np.bool_)
    in_group[step.edges[kinds_of(step.edges) == EdgeKind.GROUP, :2]] = True
    messages = messages & ~in_group
    busy_ns = np.where(moves, step.end_ns - step.work_ns, step.start_ns)
    ends_ns = step.end_of_owners_ns
    rows = []
    for owner, (begin, end) in enumerate(zip(step.begin_ns.tolist(), ends_ns.tolist(), strict=True)):
        of_owner = step.owner == owner
        works = of_owner & (forward | backward) if backward.any() else of_owner & computes
        first, last = (of_owner & phase if backward.any() else works for phase in (backward, forward))
        full = int(np.clip(step.start_ns[first].min(initial=end), begin, end))
        drains = int(np.clip(step.end_ns[last].max(initial=begin), full, end))
        bounds = np.array([begin, full, drains, end])
        busy, computed, worked = (
            clipped_lengths(union(busy_ns[kind], step.end_ns[kind]), bounds[:-1], bounds[1:])
            for kind in (of_owner & (computes | (moves & ~messages)), of_owner & computes, works)
        )
        idle, computing = np.diff(bounds) - busy, int(computed.sum())
        transfers = end - begin - computing - int(idle.sum())
        moments = np.sort(busy_ns[of_owner & messages])
        n = len(np.unique(np.searchsorted(moments, step.start_ns[last], side="right")))
        n = n if backward.any() else n // 2
        rows.append((end - begin, computing, transfers, *idle.tolist(), int(worked.sum()), n))
    return np.array(rows, np.int64)
