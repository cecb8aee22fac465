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
    rows = []
    for stat in statistics(joined([durations for _, durations in ranks])):
        of_rank = means[stat.name, stat.cat]
        slowest = max(of_rank, key=of_rank.__getitem__)
        row = RanksStat(**asdict(stat), ranks=len(of_rank), slowest_rank=slowest,
                        slowest_mean_ns=of_rank[slowest], fastest_mean_ns=min(of_rank.values()))  # fmt: skip
        rows.append(row)
    return rows
