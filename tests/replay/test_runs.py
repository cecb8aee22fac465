"""Runs of operations: what cuts them, and who waits for whom (their laws are in test_simulation.py)."""

from __future__ import annotations

from jobs import MS, job, rank
from msgspec.structs import replace

from replay.runs import Runs, simulated


def test_other_edges_are_other_runs() -> None:
    one = job(rank("rank0", [({"a": (0, 1), "b": (1, 2)}, (0, 2))], {"b": ["a"]}))
    cut = replace(one, steps=[replace(step, edges=step.edges[:0]) for step in one.steps])
    assert not Runs(one, [0]).fits(cut)
    # without the edge both begin with the step, at its begin: b's gap is none
    assert simulated(cut, [0]).step(0).end_ns.max() == MS
