"""Small traces and steps written by hand, for any test that needs one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dag.join_ranks import join
from dag.step_graph import Recording
from dialects.step_parts import Edge, Meet, Operation, RankStep, RankSteps, edge_table
from formats.columns import Track


def rank_steps(
    name: str,
    events: Mapping[str, tuple[int, int]],
    edges: Sequence[Edge] = (),
    *,
    bounds: tuple[int, int],
    meets: Sequence[Meet] = (),
    links: Mapping[str, str] | None = None,
    number: int = 1,
) -> RankSteps:
    """Return one step of one rank: its events by name with start and end (ns), numbered in that order."""
    operations = [Operation(event, "", Track(name, 0), link=(links or {}).get(event, "")) for event in events]
    times = np.array(list(events.values()), np.int64).reshape(-1, 2)
    step = RankStep(
        number=number,
        begin_ns=bounds[0],
        next_ns=bounds[1],
        operation=np.arange(len(events)),
        start_ns=times[:, 0],
        end_ns=times[:, 1],
        edges=edge_table(edges),
        meets=meets,
    )
    return RankSteps(name, operations, [step])


def recording(*ranks: RankSteps) -> Recording:
    """Return the ranks joined."""
    return join(ranks)
