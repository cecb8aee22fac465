"""From a job to its digest."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import dialects
from dialects import Need
from errors import TraceError
from figures.digest_file import (
    DurationsEntry,
    FileEntry,
    JobDigest,
    Number,
    OperationsEntry,
    RankEntry,
    SketchEntry,
    write_digest,
)
from figures.durations import Durations
from figures.job_figures import JobFigures, RankFigures, job_figures, rank_figures
from figures.measuring import measured_rank, run_of
from figures.quantile_sketch import sketched
from figures.rank_operations import Rank
from figures.run_table import MeasuredRun
from formats.columns import Trace
from traces.paths import Source
from traces.ranks import MappedJob, map_ranks


class Both(NamedTuple):
    """What `statistic` and a comparison tell of a rank."""

    figures: RankFigures
    rank: Rank | None  # None where it has too many operations to be looked at step by step


def load_both(
    paths: Sequence[Path],
    *,
    for_digest: bool = True,
    step_by: str | None = None,
    only: Collection[str] = (),
    select: Collection[str] = (),
    jobs: int | None = None,
    progress: bool | None = None,
) -> tuple[MappedJob[Both], JobFigures, MeasuredRun]:
    """Measure a job for `statistic` and as a run; `for_digest` with all that a digest holds.

    `step_by` names what marks its steps, `only` the communications to keep at all, `select` is as for
    `measured_rank`. Raises TraceError where no rank holds a slice, or for a digest as `rank_operations`;
    else such a run has no ranks.
    """
    work = partial(_both, for_digest=for_digest, step_by=step_by, select=select)
    needs = {Need.STEPS, Need.SHAPES} if for_digest else {Need.STEPS}
    job = map_ranks(paths, work, args=dialects.keys_for(needs), only=only, jobs=jobs, progress=progress)
    job.check_any()
    figures = job_figures(job, [rank.made.figures for rank in job.ranks])
    ranks = [rank.made.rank for rank in job.ranks if rank.made.rank is not None]
    is_whole = len(ranks) == len(job.ranks)
    run = run_of(paths[0], job, ranks) if is_whole else MeasuredRun(paths[0], (), job.repairs)
    return job, figures, run


def _both(
    source: Source, trace: Trace, *, for_digest: bool, step_by: str | None, select: Collection[str]
) -> Both:
    figures = rank_figures(source, trace, operations=True, steps=for_digest, step_by=step_by)
    try:
        rank = measured_rank(source, trace, step_by=step_by, select=select, shapes=for_digest)
    except TraceError:
        if for_digest:
            raise
        rank = None
    return Both(figures, rank)


def save(
    path: Path, job: MappedJob[Both], figures: JobFigures, run: MeasuredRun, step_by: str | None = None
) -> None:
    """Write the digest of a job that `load_both` loaded."""
    write_digest(
        JobDigest(
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
        ),
        path,
    )


def _rank(own: RankFigures, rank: Rank) -> RankEntry:
    steps = rank.steps
    return RankEntry(
        path=_text(own.source.path),
        worker=own.source.worker,
        rank=own.source.rank,
        name=_text(own.name),
        dialect=rank.dialect,
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
        late_ns={name: list(late) for name, late in rank.late_ns.items() if late},
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
    own, exposure = rank.operations, rank.exposure
    if exposure is None or rank.shapes is None:
        raise ValueError(f"{rank.name}: not measured for a digest")
    return OperationsEntry(
        names=[key.name for key in own.keys],
        cats=[key.cat for key in own.keys],
        count=own.count.tolist(),
        total_ns=[_short(row) for row in own.total_ns],
        place=_short(own.place),
        layer=exposure.layer.tolist(),
        is_comm=exposure.is_comm.tolist(),
        spent_ns=[_short(row) for row in exposure.spent_ns],
        shapes=[sorted(known) for known in rank.shapes],
    )


def _text(what: object) -> str:
    """Return a text that can be encoded, also where a path cannot."""
    return str(what).encode(errors="backslashreplace").decode()


def _short(values: NDArray[np.float64]) -> list[Number]:
    """Return numbers, whole ones without a fraction: most of them are, and files get shorter."""
    return [int(value) if value.is_integer() else value for value in values.tolist()]
