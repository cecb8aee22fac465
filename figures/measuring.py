"""Runs measured rank by rank, where their files are read: no process holds the events of all."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

import dialects
from dialects import Need
from figures.exposure import rank_exposure
from figures.rank_operations import Rank, Selected, op_ids, rank_operations, rank_shapes
from figures.run_table import MeasuredRun
from formats.columns import Trace
from traces.filter import selected_of
from traces.paths import Source
from traces.ranks import MappedJob, map_ranks


def load_run(
    path: Path,
    *,
    step_by: str | None = None,
    select: Collection[str] = (),
    exposure: bool = True,
    jobs: int | None = None,
    progress: bool | None = None,
) -> MeasuredRun:
    """Measure what `path` holds as one run; the other parameters are those of `measured_rank`.

    Raises
    ------
    TraceError
        There is no such path, nothing under it is a trace, or the traces hold no operation.
    """
    work = partial(measured_rank, step_by=step_by, select=select, exposure=exposure)
    job = map_ranks([path], work, args=dialects.keys_for({Need.STEPS}), jobs=jobs, progress=progress)
    job.check_any()
    return run_of(path, job, [rank.made for rank in job.ranks])


def run_of(path: Path, job: MappedJob[Any], ranks: Sequence[Rank]) -> MeasuredRun:
    """Return the run of `path` from what was measured of its ranks."""
    named = [replace(rank, source=own.source) for rank, own in zip(ranks, job.ranks, strict=True)]
    return MeasuredRun(path, named, job.repairs)


def measured_rank(
    source: Source,
    trace: Trace,
    *,
    step_by: str | None = None,
    select: Collection[str] = (),
    exposure: bool = True,
    shapes: bool = False,
) -> Rank:
    """Return what a comparison asks of one rank, whose trace was read for `Need.STEPS`.

    Parameters
    ----------
    step_by : the annotation that marks a step, instead of what the trace itself marks
    select : communications for which `Rank.selected` is wanted
    exposure : whether what the steps were spent on is wanted
    shapes : whether the shapes of operations are; the trace was read for `Need.SHAPES` as well
    """
    system = dialects.of(trace)
    steps = system.find_steps(trace, step_by)
    operations, ids = rank_operations(trace, steps)
    selected = None
    if select:
        known: dict[str, None] = {}
        left = selected_of(trace, source.prefix, select, known)
        selected = Selected(len(left), rank_operations(left, steps)[0], list(known))
    m = len(operations.keys)
    return Rank(
        source,
        trace.dialect,
        len(trace),
        steps,
        operations,
        rank_exposure(trace, steps.whole, ids, m) if exposure else None,
        system.late_ns(trace),
        rank_shapes(trace, ids, m) if shapes else None,
        selected,
    )


def shapes_of_ranks(run: MeasuredRun, *, jobs: int | None = None) -> list[Sequence[frozenset[str]]]:
    """Return what each rank of a run tells of its operations' shapes; its files are read again for that."""
    known = [rank.shapes for rank in run.ranks if rank.shapes is not None]
    if len(known) == len(run.ranks):
        return known
    if not any(dialects.named(name).args.get(Need.SHAPES) for name in run.dialects):
        return [[frozenset()] * len(rank.operations.keys) for rank in run.ranks]
    job = map_ranks([run.path], _shapes, args=dialects.keys_for({Need.SHAPES}), jobs=jobs, progress=False)
    return [rank.made for rank in job.ranks]


def _shapes(_: Source, trace: Trace) -> Sequence[frozenset[str]]:
    keys, ids = op_ids(trace)
    return rank_shapes(trace, ids, len(keys))
