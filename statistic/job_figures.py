"""What `statistic` tells of a job: for each rank its durations, or where the time of its steps went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

import dialects
from statistic.breakdown import Breakdown, breakdown
from statistic.durations import NO_DURATIONS, Durations, category_totals, durations, joined
from statistic.step_summary import where_time_goes
from trace_utils import LoadedJob, Source, TraceFile


class RankFigures(Struct, frozen=True):
    """The figures of one rank; those that were not asked for are empty."""

    source: Source
    name: str
    n_slices: int
    durations: Durations = NO_DURATIONS
    category_ns: Mapping[str, int] = field(default_factory=dict)
    breakdown: Sequence[Breakdown] = ()
    rule: str = ""  # which operations count as what in the breakdown


class JobFigures(Struct, frozen=True):
    """The figures of a job, rank by rank, and what was read for them."""

    files: Sequence[TraceFile]
    repairs: Sequence[str]
    ranks: Sequence[RankFigures]
    sentence: str = ""  # where the time of a step goes

    @property
    def n_slices(self) -> int:
        """Slices of all ranks."""
        return sum(rank.n_slices for rank in self.ranks)

    @property
    def by_prefix(self) -> dict[str, tuple[str, Durations]]:
        """For each prefix of operations' names, the rank and the durations of all files that share it."""
        several = len(self.ranks) > 1
        groups: dict[str, list[RankFigures]] = {}
        for rank in self.ranks:
            groups.setdefault(rank.source.prefix if several else "", []).append(rank)
        return {
            prefix: (own[0].name, joined([rank.durations for rank in own])) for prefix, own in groups.items()
        }


def job_figures(
    job: LoadedJob, *, operations: bool = False, steps: bool = False, step_by: str | None = None
) -> JobFigures:
    """Return how long the operations of each rank take, or where the time of its steps went, or both.

    `step_by` is that of `breakdown`.
    """
    return JobFigures(
        job.files,
        job.repairs,
        [
            RankFigures(
                source,
                name,
                len(trace),
                durations(trace) if operations else NO_DURATIONS,
                category_totals(trace) if operations else {},
                breakdown(name, trace, step_by) if steps else (),
                dialects.of(trace).rule(trace) if steps and len(trace) else "",
            )
            for source, name, trace in zip(job.job.sources, job.names, job.traces, strict=True)
        ],
        where_time_goes(dict(zip(job.names, job.traces, strict=True)), step_by) if operations else "",
    )
