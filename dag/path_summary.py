"""What a critical path says beside its length: shares, overlap, and how long a step really took."""

from __future__ import annotations

import numpy as np

from dag_utils import COUPLING, MEETING, MISSING, Dag, LongestPath

_NAMED = 3  # one-sided operations that a note names


def one_sided(dag: Dag) -> tuple[list[str], list[str]]:
    """Return the names that are only in the graph, and those that are only in the trace."""
    return [dag.names[i] for i in dag.unrecorded], list(dag.ungraphed)


def one_sided_notes(dag: Dag) -> list[str]:
    """Return a sentence for each side that knows operations which the other lacks, naming the first."""
    notes = []
    wheres = ("in the graph but not in the trace", "in the trace but not in the graph")
    for names, where in zip(one_sided(dag), wheres, strict=True):
        if names:
            count = "1 operation" if len(names) == 1 else f"{len(names):,} operations"
            more = ", …" if len(names) > _NAMED else ""
            notes.append(f"{count} {where}: {', '.join(names[:_NAMED])}{more}")
    return notes


def by_category(dag: Dag, path: LongestPath) -> dict[str, int]:
    """Return the nanoseconds of the path per category, in the order in which the path meets them."""
    shares: dict[str, int] = {}
    for node, part in zip(path.nodes, path.part_ns, strict=True):
        if dag.cats[node] != MEETING:
            shares[dag.cats[node]] = shares.get(dag.cats[node], 0) + part
    return shares


def overlap_ns(dag: Dag, path: LongestPath) -> tuple[int, int | None]:
    """Return by how much operations of the path ran at the same time, and the one that overlapped most.

    The average over the recorded steps of the time between the start of an operation and the end of
    the one before it on the path, where that is positive: the recording contradicts the graph there.
    An operation that the path enters after its wait does not count.
    """
    before, after = np.array(path.nodes[:-1], np.int64), np.array(path.nodes[1:], np.int64)
    plain = ~np.isin(np.array(path.kinds[1:], np.int64), COUPLING)
    before, after = before[plain], after[plain]
    start, dur = dag.step_start_ns, dag.step_dur_ns
    if not len(after) or not len(start):
        return 0, None
    known = (dur[:, before] >= 0) & (dur[:, after] >= 0)
    late = start[:, before] + dur[:, before] - start[:, after]
    late = np.where(known, np.clip(late, 0, np.maximum(dur[:, after], 0)), 0)
    mean = late.sum(axis=0) // np.maximum(known.sum(axis=0), 1)
    worst = int(mean.argmax())
    return int(mean.sum()), int(after[worst]) if mean[worst] > 0 else None


def iteration_ns(dag: Dag) -> int | None:
    """Return the average time from the first computation of a step to that of the next, as recorded.

    None where fewer than two steps were recorded.
    """
    compute = np.array([cat not in ("Comm", "I/O", MEETING) for cat in dag.cats], np.bool_)
    starts = dag.step_start_ns[:, compute & (dag.step_dur_ns >= 0).any(axis=0)]
    if not starts.size:
        starts = dag.step_start_ns[:, (dag.step_dur_ns >= 0).any(axis=0)]
    if len(starts) < 2 or not starts.size:
        return None
    late = np.iinfo(np.int64).max
    first = np.where(starts == MISSING, late, starts).min(axis=1)
    first = first[first < late]
    return int(np.diff(first).mean()) if len(first) > 1 else None
