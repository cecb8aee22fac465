"""From a loaded job to its digest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import dialects
from compare.exposure import rank_exposure
from compare.match_operations import rank_shapes
from compare.rank_changes import late_ns
from compare.run_table import STEP_ARGS, Rank, as_run, rank_operations
from digest.digest_file import (
    DurationsEntry,
    FileEntry,
    JobDigest,
    Number,
    OperationsEntry,
    RankEntry,
    SketchEntry,
    write_digest,
)
from digest.quantile_sketch import sketched
from statistic.durations import Durations
from statistic.job_figures import JobFigures, RankFigures, job_figures
from trace_utils import LoadedJob

#: Keys of the events' args with which a job has to be loaded for its digest.
ARGS = (*STEP_ARGS, *dict.fromkeys(key for system in dialects.SYSTEMS for key in system.shape_args))


def save(path: Path, job: LoadedJob, step_by: str | None = None) -> JobFigures:
    """Write the digest of a job that was loaded with `ARGS`; return the figures in it.

    `step_by` names what marks its steps.
    """
    figures = job_figures(job, operations=True, steps=True, step_by=step_by)
    write_digest(_digest_of(job, figures, step_by), path)
    return figures


def _digest_of(job: LoadedJob, figures: JobFigures, step_by: str | None) -> JobDigest:
    run = as_run(job.job.root, job, step_by)
    return JobDigest(
        root=_text(job.job.root),
        kind=job.job.kind,
        step_by=step_by,
        notes=[*map(_text, job.job.notes)],
        sentence=_text(figures.sentence),
        files=[
            FileEntry(
                _text(file.path),
                file.dialect,
                dict(file.phases),
                list(file.ranks),
                [*map(_text, file.repairs)],
            )
            for file in job.files
        ],
        ranks=[_rank(own, rank) for own, rank in zip(figures.ranks, run.ranks, strict=True)],
    )


def _rank(own: RankFigures, rank: Rank) -> RankEntry:
    steps = rank.steps
    return RankEntry(
        path=_text(own.source.path),
        worker=own.source.worker,
        rank=own.source.rank,
        name=_text(own.name),
        dialect=rank.trace.dialect,
        slices=own.n_slices,
        steps=([*steps.whole], [*steps.partial], steps.how),
        durations=_durations(sketched(own.durations)),
        category_ns=dict(own.category_ns),
        breakdown=[
            (
                part.step,
                part.start_ns,
                part.wall_ns,
                part.compute_ns,
                part.comm_ns,
                part.overlap_ns,
                part.idle_ns,
            )
            for part in own.breakdown
        ],
        rule=own.rule,
        operations=_operations(rank),
        late_ns={name: list(late) for name, late in late_ns(rank).items() if late},
    )


def _durations(durations: Durations) -> DurationsEntry:
    bounds = durations.start.tolist()
    parts = [slice(*bounds[i : i + 2]) for i in range(len(bounds) - 1)]
    return DurationsEntry(
        names=[name for name, _ in durations.operations],
        cats=[cat for _, cat in durations.operations],
        values_ns=[np.diff(durations.value_ns[part], prepend=0).tolist() for part in parts],
        sketches={
            i: SketchEntry(
                weights=durations.weights[parts[i]].tolist(),
                total_ns=str(known.total_ns),
                squares_ns2=str(known.squares_ns2),
                min_ns=known.min_ns,
                max_ns=known.max_ns,
            )
            for i, known in durations.moments.items()
        },
    )


def _operations(rank: Rank) -> OperationsEntry:
    own = rank_operations(rank)
    exposure = rank_exposure(rank, own)
    return OperationsEntry(
        names=[key.name for key in own.keys],
        cats=[key.cat for key in own.keys],
        count=own.count.tolist(),
        total_ns=[_short(row) for row in own.total_ns],
        place=_short(own.place),
        layer=exposure.layer.tolist(),
        is_comm=exposure.is_comm.tolist(),
        spent_ns=[_short(row) for row in exposure.spent_ns],
        shapes=[sorted(known) for known in rank_shapes(rank, own)],
    )


def _text(what: object) -> str:
    """Return a text that can be encoded, also where a path cannot."""
    return str(what).encode(errors="backslashreplace").decode()


def _short(values: NDArray[np.float64]) -> list[Number]:
    """Return numbers, whole ones without a fraction: most of them are, and files get shorter."""
    return [int(value) if value.is_integer() else value for value in values.tolist()]
