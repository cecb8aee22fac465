"""What a critical path says beside its length: shares, overlap, and how long a step really took."""

from __future__ import annotations

import numpy as np

from dag_utils import COUPLING, MEETING, MISSING, CriticalPath, Dag


def by_category(dag: Dag, path: CriticalPath) -> dict[str, int]:
    """Return the nanoseconds of the path per category, in the order in which the path meets them."""
    shares: dict[str, int] = {}
    for node, part in zip(path.nodes, path.part_ns, strict=True):
        if dag.cats[node] != MEETING:
            shares[dag.cats[node]] = shares.get(dag.cats[node], 0) + part
    return shares


def overlap_ns(dag: Dag, path: CriticalPath) -> tuple[int, int | None]:
    """Return by how much operations of the path ran at the same time, and the one that overlapped most.

    The average over the recorded steps of the time between the start of an operation and the end of
    the one before it on the path, where that is positive: the recording contradicts the graph there.
    An operation that the path enters after its wait does not count.
    """
    total, worst, most = 0, None, 0
    coupled = [kind in COUPLING for kind in path.kinds]
    for i in range(1, len(path.nodes)):
        a, b = path.nodes[i - 1], path.nodes[i]
        known = (dag.step_dur_ns[:, a] >= 0) & (dag.step_dur_ns[:, b] >= 0)
        if coupled[i] or not known.any():
            continue
        end = dag.step_start_ns[known, a] + dag.step_dur_ns[known, a]
        late = np.minimum(np.maximum(end - dag.step_start_ns[known, b], 0), dag.step_dur_ns[known, b])
        mean = int(late.mean())
        total += mean
        if mean > most:
            most, worst = mean, b
    return total, worst


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
