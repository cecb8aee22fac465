"""What `statistic` tells of a job: for each rank its durations, or where the time of its steps went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

import dialects
from figures.breakdown import Breakdown, breakdown
from figures.durations import NO_DURATIONS, Durations, category_totals, durations, joined
from figures.step_summary import MiddleSteps, middle_steps, where_time_goes
from formats.columns import Trace
from parallel import at_once
from traces.outlines import TraceFile
from traces.paths import Source
from traces.ranks import MappedJob


class RankFigures(Struct, frozen=True):
    """The figures of one rank; those that were not asked for are empty."""

    source: Source
    name: str
    n_slices: int
    durations: Durations = NO_DURATIONS
    category_ns: Mapping[str, int] = field(default_factory=dict)
    breakdown: Sequence[Breakdown] = ()
    rule: str = ""  # which operations count as what in the breakdown
    middle: MiddleSteps | None = None


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


def rank_figures(
    source: Source, trace: Trace, *, operations: bool = False, steps: bool = False, step_by: str | None = None
) -> RankFigures:
    """Return how long the operations of a rank take, or where the time of its steps went, or both.

    `step_by` is that of `breakdown`.
    """
    of_operations: list[Any] = [NO_DURATIONS, {}, None]
    if operations:
        works = (durations, category_totals, partial(middle_steps, step_by=step_by))
        of_operations = at_once([partial(work, trace) for work in works])
    own_durations, category_ns, middle = of_operations
    return RankFigures(
        source,
        "",
        len(trace),
        own_durations,
        category_ns,
        breakdown("", trace, step_by) if steps else (),
        dialects.of(trace).rule(trace) if steps and len(trace) else "",
        middle,
    )


def job_figures(job: MappedJob[Any], ranks: Sequence[RankFigures]) -> JobFigures:
    """Return the figures of a job from those of its ranks."""
    named = [
        replace(
            own,
            source=rank.source,
            name=name,
            breakdown=[replace(part, rank=name) for part in own.breakdown],
        )
        for name, rank, own in zip(job.names, job.ranks, ranks, strict=True)
    ]
    middle = {own.name: own.middle for own in named if own.middle is not None}
    return JobFigures(job.files, job.repairs, named, where_time_goes(middle) if middle else "")
