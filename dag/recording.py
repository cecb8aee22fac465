"""What a BytePS trace recorded of each operation, step by step: the n-th event is the n-th step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dag.model import MISSING
from formats.columns import Trace
from opname import QUEUES, OpName

Int64 = NDArray[np.int64]

_STAGES = frozenset(QUEUES)


@dataclass(frozen=True, slots=True)
class Recording:
    """k operations of one GPU in s traced steps.

    Attributes
    ----------
    names : (k,) without the rank's prefix; a sub-task carries its key: ``Comm.x.PUSH.26148864``
    mean_ns : (k,) the average duration over all events of the operation, as `statistic` says
    start_ns, dur_ns : (s, k), `MISSING` where not recorded
    parts : per whole communication its sub-tasks: (index into `QUEUES`, partition key, operation)
    """

    names: Sequence[str]
    mean_ns: Int64
    start_ns: Int64
    dur_ns: Int64
    parts: Mapping[str, Sequence[tuple[int, int, int]]]

    @property
    def n_steps(self) -> int:
        """Traced steps."""
        return len(self.start_ns)


def no_recording() -> Recording:
    """Return the recording of nothing."""
    empty = np.empty((0, 0), np.int64)
    return Recording((), np.empty(0, np.int64), empty, empty, {})


def record(trace: Trace, rename: Mapping[str, str] | None = None) -> Recording:
    """Return what `trace` (of one GPU) recorded.

    A communication is told from its sub-tasks by the track (``total``, or the partition key); all
    other operations by their name alone, on whatever thread they ran. `rename` gives whole
    communications other names (``Comm.byteps.gradient_0`` their parameter's).

    The number of steps is what most communications (else most operations) were recorded. An operation
    recorded far more often (``I/O``: the profiler logs every step from the first) is placed by time:
    the last one that began before the step's first operation; others are summed within the step.
    """
    names, op = _operations(trace, rename or {})
    if not names:
        return no_recording()
    k = len(names)
    order = np.lexsort((trace.ts_ns, op))
    order = order[op[order] >= 0]
    op, ts, dur = op[order], trace.ts_ns[order], trace.dur_ns[order]
    count = np.bincount(op, minlength=k)
    first = np.concatenate(([0], np.cumsum(count)[:-1]))
    nth = np.arange(len(op)) - first[op]
    steps = _n_steps(names, count)
    start_ns = np.full((steps, k), MISSING, np.int64)
    dur_ns = np.full((steps, k), MISSING, np.int64)
    aligned = count <= steps + 1
    rows = aligned[op] & (nth < steps)
    start_ns[nth[rows], op[rows]] = ts[rows]
    dur_ns[nth[rows], op[rows]] = dur[rows]
    mean_ns = np.rint(np.bincount(op, dur, k) / np.maximum(count, 1)).astype(np.int64)
    begins = _begins(names, start_ns, aligned)
    for i in np.flatnonzero(~aligned).tolist():
        events = slice(int(first[i]), int(first[i] + count[i]))
        start, total = _place(ts[events], dur[events], begins, before=names[i] == "I/O")
        start_ns[:, i], dur_ns[:, i] = start, total
        if names[i] != "I/O" and (total >= 0).any():
            mean_ns[i] = round(float(total[total >= 0].mean()))
    return _with_wholes(names, mean_ns, start_ns, dur_ns, _parts(names))


def without(recording: Recording, name: str) -> Recording:
    """Return `recording` as if the operation `name`, which is no communication, had not been recorded."""
    keep = [i for i, other in enumerate(recording.names) if other != name]
    new = {old: i for i, old in enumerate(keep)}
    parts = {
        main: [(stage, key, new[i]) for stage, key, i in tasks] for main, tasks in recording.parts.items()
    }
    return Recording(
        [recording.names[i] for i in keep],
        recording.mean_ns[keep],
        recording.start_ns[:, keep],
        recording.dur_ns[:, keep],
        parts,
    )


def _operations(trace: Trace, rename: Mapping[str, str]) -> tuple[list[str], NDArray[np.int64]]:
    """Return the distinct operations and (n,) the operation of each row, -1 for none of them."""
    if not len(trace):
        return [], np.empty(0, np.int64)
    n_tracks = max(len(trace.tracks), 1)
    pairs, which = np.unique(trace.name_id.astype(np.int64) * n_tracks + trace.track_id, return_inverse=True)
    index: dict[str, int] = {}
    ops = []
    bare = [_bare(name) for name in trace.names]
    tids = ["" if track.tid is None else str(track.tid) for track in trace.tracks]
    for pair in pairs.tolist():
        name = _keyed(bare[pair // n_tracks], tids[pair % n_tracks], rename)
        ops.append(index.setdefault(name, len(index)) if name else -1)
    return list(index), np.array(ops, np.int64)[which.reshape(-1)]


def _bare(name: str) -> str:
    """Return `name` without worker and rank; "" for what is no operation of BytePS's grammar."""
    op = OpName.parse(name)
    if op.cat is None:
        return ""
    return name if op.prefix == "" else str(op.bare())


def _keyed(name: str, tid: str, rename: Mapping[str, str]) -> str:
    """Return the operation's name: a sub-task's with its partition key, renamed."""
    main, _, stage = name.rpartition(".")
    if stage in _STAGES and name.startswith("Comm.") and tid.isdecimal():
        return f"{rename.get(main, main)}.{stage}.{tid}"
    return rename.get(name, name)


def _n_steps(names: Sequence[str], count: NDArray[np.int64]) -> int:
    comm = [c for name, c in zip(names, count.tolist(), strict=True) if name.startswith("Comm.")]
    others = [c for name, c in zip(names, count.tolist(), strict=True) if name != "I/O"]
    usual: list[tuple[int, int]] = Counter(comm or others or count.tolist()).most_common()
    return max(c for c, often in usual if often == usual[0][1])


def _begins(names: Sequence[str], start_ns: Int64, aligned: NDArray[np.bool_]) -> Int64:
    """Return when each step's first computation (else its first operation) began, (s,)."""
    compute = np.array([not name.startswith(("Comm.", "I/O")) for name in names], np.bool_) & aligned
    columns = start_ns[:, compute if compute.any() else aligned]
    late = np.iinfo(np.int64).max
    begins: Int64 = np.where(columns == MISSING, late, columns).min(axis=1, initial=late)
    return begins


def _place(ts: Int64, dur: Int64, begins: Int64, *, before: bool) -> tuple[Int64, Int64]:
    """Return start and duration per step of an operation whose events are not one a step."""
    start, total = np.full_like(begins, MISSING), np.full_like(begins, MISSING)
    if before:
        last = np.searchsorted(ts, begins, side="right") - 1
        known = last >= 0
        start[known], total[known] = ts[last[known]], dur[last[known]]
        return start, total
    step = np.searchsorted(begins, ts, side="right") - 1
    for k in range(len(begins)):
        inside = step == k
        if inside.any():
            start[k], total[k] = ts[inside][0], dur[inside].sum()
    return start, total


def _parts(names: Sequence[str]) -> dict[str, list[tuple[int, int, int]]]:
    """Return per whole communication its sub-tasks, by stage and key."""
    parts: dict[str, list[tuple[int, int, int]]] = {}
    for i, name in enumerate(names):
        main, _, key = name.rpartition(".")
        main, _, stage = main.rpartition(".")
        if key.isdecimal() and stage in _STAGES and main.startswith("Comm."):
            parts.setdefault(main, []).append((QUEUES.index(stage), int(key), i))
    return {main: sorted(tasks) for main, tasks in parts.items()}


def _with_wholes(
    names: list[str],
    mean_ns: Int64,
    start_ns: Int64,
    dur_ns: Int64,
    parts: Mapping[str, Sequence[tuple[int, int, int]]],
) -> Recording:
    """Add the whole communications that were not recorded as such (a cut file), from their sub-tasks."""
    have = set(names)
    for main in [main for main in parts if main not in have]:
        tasks = [task for _, _, task in parts[main]]
        known = dur_ns[:, tasks] >= 0
        begin = np.where(known, start_ns[:, tasks], np.iinfo(np.int64).max).min(axis=1)
        end = np.where(known, start_ns[:, tasks] + dur_ns[:, tasks], np.iinfo(np.int64).min).max(axis=1)
        whole = known.any(axis=1)
        start_ns = np.column_stack((start_ns, np.where(whole, begin, MISSING)))
        length = np.where(whole, end - begin, MISSING)
        dur_ns = np.column_stack((dur_ns, length))
        mean_ns = np.append(mean_ns, round(float(length[whole].mean())) if whole.any() else 0)
        names = [*names, main]
    return Recording(names, mean_ns, start_ns, dur_ns, parts)
