"""Runs of operations: the schedule is that of all operations, which is the oracle here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs import MS, job, rank
from msgspec.structs import replace
from test_simulation import recordings

from dag.step_graph import Recording
from dag_utils import load_steps
from replay.occurrences import with_usual_gaps
from replay.runs import Runs
from replay.simulation import replay

pytestmark = pytest.mark.slow


def assert_as_all_operations(runs: Runs, edited: Recording) -> None:
    oracle = replay(edited, runs.rows)
    steps = [edited.steps[row] for row in runs.rows]
    schedule = runs.simulate(steps)
    ends = np.maximum.reduceat(oracle.schedule.end_ns, oracle.begin_op.min(axis=1))
    assert runs.ends_ns(schedule).tolist() == ends.tolist()
    for position, step in enumerate(steps):
        found, expected = runs.step(position, step, schedule), oracle.step(position)
        for column in ("start_ns", "end_ns", "work_ns", "begin_ns", "next_ns", "edges"):
            assert getattr(found, column).tolist() == getattr(expected, column).tolist(), column


@settings(max_examples=100, deadline=None, derandomize=True)
@given(recordings(), st.integers(0, 99))
def test_runs_take_the_time_of_their_operations(recording: Recording, seed: int) -> None:
    draw = np.random.default_rng(seed)
    runs = Runs(recording, range(len(recording.steps)))
    edited = [
        replace(
            step,
            work_ns=step.work_ns * draw.integers(0, 3, len(step)),
            gap_ns=step.gap_ns * draw.integers(0, 3, len(step)),
            tail_ns=step.tail_ns * 2,
        )
        for step in recording.steps
    ]
    assert runs.fits(replace(recording, steps=edited))
    assert_as_all_operations(runs, replace(recording, steps=edited))


def test_other_edges_are_other_runs() -> None:
    one = job(rank("rank0", [({"a": (0, 1), "b": (1, 2)}, (0, 2))], {"b": ["a"]}))
    cut = replace(one, steps=[replace(step, edges=step.edges[:0]) for step in one.steps])
    assert not Runs(one, [0]).fits(cut)
    # without the edge both begin with the step, at its begin: b's gap is none
    assert Runs(cut, [0]).ends_ns(Runs(cut, [0]).simulate(cut.steps)).tolist() == [MS]


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
    runs = Runs(recording, [0])
    assert runs.ends_ns(runs.simulate(recording.steps)).tolist() == [10 * MS]
    slow = recording.which(lambda one: one.name == "FW.x" and one.owner == 3)
    faster = [replace(step, work_ns=np.where(slow[step.operation], 4 * MS, step.work_ns))
              for step in recording.steps]  # fmt: skip
    assert runs.ends_ns(runs.simulate(faster)).tolist() == [5 * MS]


@pytest.mark.parametrize("name", [
    "byteps/fork_lenet_base", "kineto/ddp2-gloo-base/trace", "kineto/gpu-param-dlrm-8ranks",
    "horovod/2ranks-slow-rank1", "composer/ws2-slow-rank1/trace",
])  # fmt: skip
def test_recorded_jobs_run_as_all_their_operations(name: str, shared_data: Path) -> None:
    recording = load_steps([shared_data / name], jobs=1).recording
    runs = Runs(recording, recording.whole_steps)
    assert_as_all_operations(runs, recording)
    assert_as_all_operations(runs, with_usual_gaps(recording))
