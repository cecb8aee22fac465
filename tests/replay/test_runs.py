"""Runs of operations: what cuts them, and who waits for whom (their laws are in test_simulation.py)."""

from __future__ import annotations

import numpy as np
from jobs import MS, job, rank
from msgspec.structs import replace

from replay.runs import Runs, simulated


def test_other_edges_are_other_runs() -> None:
    one = job(rank("rank0", [({"a": (0, 1), "b": (1, 2)}, (0, 2))], {"b": ["a"]}))
    cut = replace(one, steps=[replace(step, edges=step.edges[:0]) for step in one.steps])
    assert not Runs(one, [0]).fits(cut)
    # without the edge both begin with the step, at its begin: b's gap is none
    assert simulated(cut, [0]).step(0).end_ns.max() == MS


def test_a_group_waits_for_its_last_member() -> None:
    # four ranks compute 1, 2, 3 and 9 ms, then all reduce for 1 ms from when the last one comes
    computed = [1, 2, 3, 9]
    ranks = [
        rank(
            f"rank{i}",
            [({"FW.x": (0, ms), "Comm.all": (ms, 10)}, (0, 10))],
            {"Comm.all": ["FW.x"]},
            together=["Comm.all"],
        )
        for i, ms in enumerate(computed)
    ]
    recording = job(*ranks)
    assert simulated(recording, [0]).step(0).end_ns.max() == 10 * MS
    slow = recording.which(lambda one: one.name == "FW.x" and one.owner == 3)
    faster = [replace(step, work_ns=np.where(slow[step.operation], 4 * MS, step.work_ns))
              for step in recording.steps]  # fmt: skip
    assert simulated(replace(recording, steps=faster), [0]).step(0).end_ns.max() == 5 * MS
