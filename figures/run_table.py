"""A run as `compare` and `3dcompare` see it: its ranks, their steps, and every operation step by step."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from arrays import Float64, Int64
from figures.rank_operations import OpKey, Rank, RankOperations, check_cells
from traces.filter import check_known
from traces.paths import Source


class MeasuredRun(Struct, frozen=True):
    """One input: a file, or a directory whose ranks belong together; what was repaired or is missing."""

    path: Path
    ranks: Sequence[Rank]
    repairs: Sequence[str] = ()

    @property
    def dialects(self) -> list[str]:
        """What wrote its traces, each once."""
        return list(dict.fromkeys(rank.dialect for rank in self.ranks if rank.n_slices))

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
    total_ns: Float64  # (m, k) what they last together
    place: Float64  # (m,) where in a step it starts on average, from 0 to 1
    ranks: Sequence[RankOperations] = ()  # those of each rank alone
    places: Sequence[Int64] = ()  # and the number here (0 … m - 1) of each of them

    @property
    def mean_ns(self) -> Float64:
        """Average duration of each operation's events (m,)."""
        return np.asarray(self.total_ns.sum(1) / np.maximum(self.count.sum(1), 1))


def filtered(runs: Sequence[MeasuredRun], wanted: Collection[str]) -> list[MeasuredRun]:
    """Return the runs without communications that `wanted` does not name, for which they were measured.

    AnalyzeError where no run has a communication of a name.
    """
    if not wanted:
        return list(runs)
    found = [[(rank, rank.selected) for rank in run.ranks if rank.selected is not None] for run in runs]
    check_known(wanted, dict.fromkeys(name for own in found for _, left in own for name in left.known))
    return [
        replace(
            run, ranks=[replace(r, n_slices=left.n_slices, operations=left.operations) for r, left in own]
        )
        for run, own in zip(runs, found, strict=True)
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
    """Return the operations of a run, step by step, over all ranks."""
    keys: dict[OpKey, int] = {}
    ranks = [rank.operations for rank in run.ranks]
    places = [
        _numbered(own.keys, keys, rank.source if tell_workers else None)
        for rank, own in zip(run.ranks, ranks, strict=True)
    ]
    m, k = len(keys), max(own.count.shape[1] for own in ranks)
    check_cells(run.path, m, k, run.n_slices)
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


def iteration_ns(run: MeasuredRun) -> Float64:
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
