"""The operations of one rank, step by step: what a comparison asks of it, without its events."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

import dialects
from arrays import Float64, Int64
from arrays.numbering import occurrence_number
from dialects import Need
from dialects.steps import Step, Steps
from errors import TraceError, counted
from formats.columns import Trace
from opname import OpName
from traces.paths import Source

#: What of an operation's name differs from call to call, and what stands for it.
_FOLDS = (
    (re.compile(r"ProfilerStep#\d+"), "ProfilerStep*"),
    (re.compile(r"\b0x[0-9a-fA-F]{4,}\b"), "0x…"),  # <function f at 0x7f63ad2b1510>
    (re.compile(r"#\d+\b"), "#*"),
    (re.compile(r"\b((?:\w*_)?(?:step|iteration|iter|batch|epoch)[ _#:=-]+)\d+\b", re.IGNORECASE), r"\1*"),
)
#: Cells of an operation and a step that a run may have: some, or this many for each of its events.
_MOST_CELLS, _MOST_CELLS_AN_EVENT = 10_000_000, 10
_BATCHES = 10  # samples into which the occurrences of an operation are pooled where no step is marked


class OpKey(NamedTuple):
    """An operation of a run: ranks merged, workers told apart by ``wk<i>.`` where there are several."""

    name: str
    cat: str


class RankOperations(Struct, frozen=True):
    """Every operation of one rank, by first appearance; no name has its worker."""

    keys: Sequence[OpKey]
    count: Int64  # (m, k) its events in each of k steps
    total_ns: Float64  # (m, k) what they last together
    place: Float64  # (m,) where in a step its events start, from 0 to 1, summed over them


class RankExposure(NamedTuple):
    """What one rank spent its k whole steps on; see `compare.exposure`."""

    layer: Int64  # (m,) the first layer that events of each operation belong to
    is_comm: NDArray[np.bool_]  # (m,) whether it communicates, at least at times
    spent_ns: Float64  # (k, m + 1) what each operation, and last nothing, took of each step


class Selected(NamedTuple):
    """What of a rank is left where only some communications are wanted, and the names of all."""

    n_slices: int
    operations: RankOperations
    known: Sequence[str]


class Rank(Struct, frozen=True):
    """One GPU or process. What was not asked for is None."""

    source: Source
    dialect: str
    n_slices: int
    steps: Steps
    operations: RankOperations
    exposure: RankExposure | None = None
    late_ns: Mapping[str, Sequence[int]] = field(default_factory=dict)  # how late each rank was, as it tells
    shapes: Sequence[frozenset[str]] | None = None  # (m,)
    selected: Selected | None = None

    @property
    def name(self) -> str:
        """``wk<i>.rank<r>``, or what of it is known."""
        return self.source.prefix.rstrip(".")


def rank_operations(trace: Trace, steps: Steps) -> tuple[RankOperations, Int64]:
    """Return the operations of one rank, step by step, and which each slice is of (n,).

    The step of an event is the one in which it begins (before the first: the first). BytePS's
    communications overlap the next step, so there the n-th event of a name on a track is the n-th
    step's. Where a trace marks no steps, the occurrences of each operation are cut into at most ten
    stretches of equal length, in order of time, which stand for steps ("batch means": Law and
    Kelton, Simulation Modeling and Analysis).
    """
    bounds = sorted((*steps.whole, *steps.partial), key=lambda step: step.start_ns)
    keys, ids = op_ids(trace)
    step = _step_ids(trace, bounds, ids)
    m, k = len(keys), 1 + int(step.max(initial=0))
    check_cells(trace.path, m, k, len(ids))
    cell = ids * k + step
    count = np.bincount(cell, minlength=m * k).reshape(m, k)
    total_ns = np.bincount(cell, trace.dur_ns, m * k).reshape(m, k).astype(np.float64)
    place = np.bincount(ids, _places(trace, bounds), m).astype(np.float64)
    return RankOperations(keys, count, total_ns, place), ids


def check_cells(path: object, m: int, k: int, n_slices: int) -> None:
    """Refuse tables of m operations in k steps that n slices leave nearly empty, and no memory may hold."""
    if m * k > max(_MOST_CELLS, _MOST_CELLS_AN_EVENT * n_slices):
        raise TraceError(
            f"{path}: {counted(m, 'operation')} in {counted(k, 'step')}, most of them in a few steps only: "
            "too many to be compared step by step; --step_by NAME says what else marks a step"
        )


def op_ids(trace: Trace) -> tuple[list[OpKey], Int64]:
    """Return the operations of a rank, by first appearance, and each slice's among them (n,)."""
    keys: dict[OpKey, int] = {}
    n_cats, n_tracks = max(1, len(trace.cats)), max(1, len(trace.tracks))
    system = dialects.of(trace)
    track_id = trace.track_id if system.names_by_track else np.zeros_like(trace.track_id)
    code = (trace.name_id.astype(np.int64) * n_cats + trace.cat_id) * n_tracks + track_id
    distinct, first, inverse = np.unique(code, return_index=True, return_inverse=True)
    ids = np.empty(len(distinct), np.int64)
    for at in np.argsort(first).tolist():
        name_and_cat, track = divmod(int(distinct[at]), n_tracks)
        name_id, cat_id = divmod(name_and_cat, n_cats)
        name, cat = trace.names[name_id], trace.cats[cat_id]
        if system.names_by_track:
            name = str(OpName.parse(system.operation(name, trace.tracks[track].tid)).bare())
            cat = cat or OpName.parse(name).cat or ""
        else:
            name = folded(name)
        ids[at] = keys.setdefault(OpKey(name, cat), len(keys))
    return list(keys), ids[inverse]


@lru_cache(maxsize=65536)
def folded(name: str) -> str:
    """Return the name without what changes from call to call: addresses and the numbers of steps."""
    for pattern, instead in _FOLDS:
        name = pattern.sub(instead, name)
    return name


def _step_ids(trace: Trace, bounds: Sequence[Step], ids: Int64) -> Int64:
    """Return the step of each slice (n,), from 0; see `rank_operations`."""
    if bounds:
        starts = np.array([step.start_ns for step in bounds], np.int64)
        step = np.maximum(np.searchsorted(starts, trace.ts_ns, side="right") - 1, 0)
    else:
        n_turns = np.bincount(ids)[ids]
        step = _turns(ids, trace.ts_ns) * np.minimum(n_turns, _BATCHES) // n_turns
    by_turn = dialects.of(trace).runs_into_next_step(trace)
    if by_turn.any():
        series = trace.name_id.astype(np.int64) * len(trace.tracks) + trace.track_id
        step = np.where(by_turn, _turns(series, trace.ts_ns), step)
    return step


def _turns(series: Int64, ts_ns: Int64) -> Int64:
    """Return, per event, the how-manieth of its series it is by time (from 0)."""
    order = np.argsort(ts_ns, kind="stable")
    turn = np.empty(len(series), np.int64)
    turn[order] = occurrence_number(series[order])
    return turn


def _places(trace: Trace, bounds: Sequence[Step]) -> Float64:
    """Return where in its step each slice begins (n,), from 0 to 1; in the whole trace without steps."""
    if not len(trace):
        return np.empty(0)
    spans = [(step.start_ns, step.end_ns) for step in bounds]
    starts, ends = np.array(spans or [(trace.ts_ns.min(), trace.end_ns.max())], np.float64).T
    step = np.maximum(np.searchsorted(starts, trace.ts_ns, side="right") - 1, 0)
    share = (trace.ts_ns - starts[step]) / np.maximum(1.0, ends - starts)[step]
    return np.asarray(np.clip(share, 0.0, 1.0), np.float64)


def rank_shapes(trace: Trace, ids: Int64, n_ids: int) -> Sequence[frozenset[str]]:
    """Return what the events of each operation of a rank say of its shape, as short digests of the texts.

    `ids` (n,) says which of `n_ids` operations each slice is of; the trace was read for `Need.SHAPES`.
    """
    seen: list[set[str]] = [set() for _ in range(n_ids)]
    for name in dialects.of(trace).args.get(Need.SHAPES, ()):
        for row, value in trace.args[name].as_dict().items() if name in trace.args else ():
            seen[ids[row]].add(f"{name} {value}")
    from hashlib import blake2b

    return [frozenset(blake2b(text.encode(), digest_size=6).hexdigest() for text in texts) for texts in seen]
