"""A run as `compare` and `3dcompare` see it: its ranks, their steps, and every operation step by step."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

import dialects
from dialects.step_windows import turns
from dialects.steps import Step, Steps
from errors import TraceError, counted
from formats.columns import Int64, Trace
from opname import OpName
from trace_utils import LoadedJob, Source, load_job, select_communication

Float = NDArray[np.float64]

#: Keys of the events' args that tell where steps begin.
STEP_ARGS = ("batch", "input*", "arg*")
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
    total_ns: Float  # (m, k) what they last together
    place: Float  # (m,) where in a step its events start, from 0 to 1, summed over them
    ids: Int64  # (n,) the operation of each slice; empty where there are none any more


class KeptRank(Struct, frozen=True):
    """All that a comparison asks of a rank, for one whose events are not there any more."""

    n_slices: int
    operations: RankOperations
    exposure: RankExposure
    late_ns: Mapping[str, Sequence[int]]
    shapes: Sequence[frozenset[str]]  # (m,)


class RankExposure(NamedTuple):
    """What one rank spent its k whole steps on; see `compare.exposure`."""

    layer: Int64  # (m,) the first layer that events of each operation belong to
    is_comm: NDArray[np.bool_]  # (m,) whether it communicates, at least at times
    spent_ns: Float  # (k, m + 1) what each operation, and last nothing, took of each step


class Rank(Struct, frozen=True):
    """The trace of one GPU or process, and its steps; an empty trace where only its figures are `kept`."""

    source: Source
    trace: Trace
    steps: Steps
    kept: KeptRank | None = None

    @property
    def n_slices(self) -> int:
        """Slices of its trace."""
        return len(self.trace) if self.kept is None else self.kept.n_slices

    @property
    def name(self) -> str:
        """``wk<i>.rank<r>``, or what of it is known."""
        return self.source.prefix.rstrip(".")

    @property
    def bounds(self) -> list[Step]:
        """All steps, those recorded in part as well, in order."""
        return sorted((*self.steps.whole, *self.steps.partial), key=lambda step: step.start_ns)


class MeasuredRun(Struct, frozen=True):
    """One input: a file, or a directory whose ranks belong together."""

    path: Path
    ranks: Sequence[Rank]
    job: LoadedJob

    @property
    def dialects(self) -> list[str]:
        """What wrote its traces, each once."""
        return list(dict.fromkeys(rank.trace.dialect for rank in self.ranks if rank.n_slices))

    @property
    def n_slices(self) -> int:
        """Slices of all ranks."""
        return sum(rank.n_slices for rank in self.ranks)

    @property
    def workers(self) -> set[int]:
        """The indices of its workers; empty where they are not told apart."""
        return {rank.source.worker for rank in self.ranks if rank.source.worker is not None}


class Operations(Struct, frozen=True):
    """Every operation of a run, by first appearance."""

    keys: Sequence[OpKey]
    count: Int64  # (m, k) its events in each of k steps, over all ranks
    total_ns: Float  # (m, k) what they last together
    place: Float  # (m,) where in a step it starts on average, from 0 to 1
    ranks: Sequence[RankOperations] = ()  # those of each rank alone
    places: Sequence[Int64] = ()  # and the number here (0 … m - 1) of each of them

    @property
    def mean_ns(self) -> Float:
        """Average duration of each operation's events (m,)."""
        return np.asarray(self.total_ns.sum(1) / np.maximum(self.count.sum(1), 1))


def load_run(
    path: Path,
    *,
    args: Sequence[str] = (),
    step_by: str | None = None,
    jobs: int | None = None,
    progress: bool | None = None,
) -> MeasuredRun:
    """Load what `path` holds as one run; `args` are further keys of the events' args to keep.

    `step_by` names the annotation that marks a step, instead of what the traces themselves mark.

    Raises
    ------
    TraceError
        There is no such path, nothing under it is a trace, or the traces hold no operation.
    """
    job = load_job(path, args=(*STEP_ARGS, *args), jobs=jobs, progress=progress)
    if not any(map(len, job.traces)):
        raise TraceError(f"{path}: the trace holds no operation")
    return as_run(path, job, step_by)


def as_run(path: Path, job: LoadedJob, step_by: str | None = None) -> MeasuredRun:
    """Return the job of `path`, loaded with `STEP_ARGS`, as one run; `step_by` as for `load_run`."""
    ranks = [
        Rank(source, trace, dialects.of(trace).find_steps(trace, step_by))
        for source, trace in zip(job.job.sources, job.traces, strict=True)
    ]
    return MeasuredRun(path, ranks, job)


def filtered(runs: Sequence[MeasuredRun], wanted: Collection[str]) -> list[MeasuredRun]:
    """Return the runs without communications that `wanted` does not name; see `select_communication`."""
    if not wanted:
        return list(runs)
    jobs = select_communication([run.job for run in runs], wanted)
    return [
        MeasuredRun(run.path, [replace(r, trace=t) for r, t in zip(run.ranks, job.traces, strict=True)], job)
        for run, job in zip(runs, jobs, strict=True)
    ]


def labels(paths: Sequence[Path]) -> list[str]:
    """Return a short name for each run: the last part of its path, more parts where that is ambiguous.

    A run that is given again gets `` (2)``, `` (3)``, … after the name.
    """
    parts = [path.resolve().parts for path in paths]
    depth, deepest = 1, max(map(len, parts))
    while depth < deepest and len({each[-depth:] for each in parts}) < len(set(parts)):
        depth += 1
    names = ["/".join(each[-depth:]) for each in parts]
    turns = [names[: i + 1].count(name) for i, name in enumerate(names)]
    return [name if turn == 1 else f"{name} ({turn})" for name, turn in zip(names, turns, strict=True)]


def operations(run: MeasuredRun, *, tell_workers: bool) -> Operations:
    """Return the operations of a run, step by step.

    The step of an event is the one in which it begins (before the first: the first). BytePS's
    communications overlap the next step, so there the n-th event of a name on a track is the n-th
    step's. Where a trace marks no steps, the occurrences of each operation are cut into at most ten
    stretches of equal length, in order of time, which stand for steps ("batch means": Law and
    Kelton, Simulation Modeling and Analysis).
    """
    keys: dict[OpKey, int] = {}
    ranks = [rank_operations(rank) for rank in run.ranks]
    places = [
        _numbered(own.keys, keys, rank.source if tell_workers else None)
        for rank, own in zip(run.ranks, ranks, strict=True)
    ]
    m, k = len(keys), max(own.count.shape[1] for own in ranks)
    _check_cells(run.path, m, k, run.n_slices)
    own = ranks[0]
    if len(ranks) == 1 and m == len(own.keys):  # its tables are the run's
        mean_place = own.place / np.maximum(own.count.sum(1), 1)
        return Operations(list(keys), own.count, own.total_ns, mean_place, ranks, places)
    count, total_ns, place = np.zeros((m, k), np.int64), np.zeros((m, k)), np.zeros(m)
    for own, at in zip(ranks, places, strict=True):
        count[at, : own.count.shape[1]] += own.count
        total_ns[at, : own.count.shape[1]] += own.total_ns
        place[at] += own.place
    return Operations(list(keys), count, total_ns, place / np.maximum(count.sum(1), 1), ranks, places)


def rank_operations(rank: Rank) -> RankOperations:
    """Return the operations of one rank, step by step; see `operations`."""
    if rank.kept is not None:
        return rank.kept.operations
    keys, ids = _op_ids(rank)
    step = _step_ids(rank, ids)
    m, k = len(keys), 1 + int(step.max(initial=0))
    _check_cells(rank.trace.path, m, k, len(ids))
    cell = ids * k + step
    count = np.bincount(cell, minlength=m * k).reshape(m, k)
    total_ns = np.bincount(cell, rank.trace.dur_ns, m * k).reshape(m, k).astype(np.float64)
    place = np.bincount(ids, _places(rank), m).astype(np.float64)
    return RankOperations(keys, count, total_ns, place, ids)


def _check_cells(path: object, m: int, k: int, n_slices: int) -> None:
    """Refuse tables of m operations in k steps that n slices leave nearly empty, and no memory may hold."""
    if m * k > max(_MOST_CELLS, _MOST_CELLS_AN_EVENT * n_slices):
        raise TraceError(
            f"{path}: {counted(m, 'operation')} in {counted(k, 'step')}, most of them in a few steps only: "
            "too many to be compared step by step; --step_by NAME says what else marks a step"
        )


def iteration_ns(run: MeasuredRun) -> Float:
    """Return how long each whole step took, averaged over the ranks (k,); empty without steps."""
    by_label: dict[int, list[int]] = {}
    for rank in run.ranks:
        for step in rank.steps.whole:
            by_label.setdefault(step.label, []).append(step.dur_ns)
    return np.array([np.mean(by_label[label]) for label in sorted(by_label)], np.float64)


def _numbered(own: Sequence[OpKey], keys: dict[OpKey, int], owner: Source | None) -> Int64:
    """Return the places (m,) in `keys`, which grows, of a rank's operations, its worker told where given."""
    worker = None if owner is None else owner.worker
    prefix = "" if worker is None else f"wk{worker}."
    return np.array([keys.setdefault(OpKey(prefix + key.name, key.cat), len(keys)) for key in own], np.int64)


def _op_ids(rank: Rank) -> tuple[list[OpKey], Int64]:
    """Return the operations of a rank, by first appearance, and each slice's among them (n,)."""
    trace = rank.trace
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


def _step_ids(rank: Rank, ids: Int64) -> Int64:
    """Return the step of each slice (n,), from 0; see `operations`."""
    trace, bounds = rank.trace, rank.bounds
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
    turn[order] = turns(series[order])
    return turn


def _places(rank: Rank) -> Float:
    """Return where in its step each slice begins (n,), from 0 to 1; in the whole trace without steps."""
    trace, bounds = rank.trace, rank.bounds
    if not len(trace):
        return np.empty(0)
    spans = [(step.start_ns, step.end_ns) for step in bounds]
    starts, ends = np.array(spans or [(trace.ts_ns.min(), trace.end_ns.max())], np.float64).T
    step = np.maximum(np.searchsorted(starts, trace.ts_ns, side="right") - 1, 0)
    share = (trace.ts_ns - starts[step]) / np.maximum(1.0, ends - starts)[step]
    return np.asarray(np.clip(share, 0.0, 1.0), np.float64)
