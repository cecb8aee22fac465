"""Each operation over all ranks: its durations together, and on which rank it is slowest."""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import asdict

from figures.durations import Durations, Stat, joined, statistics


class RanksStat(Stat, frozen=True):
    """The durations of one operation on all ranks together, and its averages on the extreme ones."""

    ranks: int
    slowest_rank: str
    slowest_mean_ns: float
    fastest_mean_ns: float


def over_ranks(ranks: Collection[tuple[str, Durations]]) -> list[RanksStat]:
    """Return the statistics of each operation over `ranks`, each with its name, by first appearance.

    Of ranks that are equally slow, the first one is named.
    """
    means: dict[tuple[str, str], dict[str, float]] = {}
    for rank, durations in ranks:
        for stat in statistics(durations):
            means.setdefault((stat.name, stat.cat), {})[rank] = stat.mean_ns
    found = []
    for stat in statistics(joined([durations for _, durations in ranks])):
        own = means[stat.name, stat.cat]
        slowest = max(own, key=own.__getitem__)
        found.append(RanksStat(**asdict(stat), ranks=len(own), slowest_rank=slowest,
                               slowest_mean_ns=own[slowest], fastest_mean_ns=min(own.values())))  # fmt: skip
    return found
