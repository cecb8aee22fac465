"""DASF's tasks as one step: runs of a key are told apart by time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analyzer.model.graph.critical_path import critical_path
from analyzer.model.graph.join_ranks import join
from analyzer.reading.dialects.dasf import Dasf
from analyzer.reading.dialects.edge_rules import RULES, EdgeKind
from analyzer.reading.dialects.step_parts import RankSteps, RankTrace
from analyzer.reading.dialects.system import Need
from analyzer.reading.formats import dasf_records as dasf
from make import dasf_bytes as packed
from make import dasf_compute as compute


def task(key: str, start_s: float, end_s: float, *needs: str, worker: str = "worker-vm-0") -> dict[str, Any]:
    found = compute(end_s, end_s - start_s, key=key, name=key[0], dependencies=list(needs))
    return found | {"thread_id": worker}


def tasks_of(folder: Path, *records: dict[str, Any], name: str = "a") -> RankSteps:
    path = folder / f"{name}.msgpack"
    path.write_bytes(packed(*records))
    return steps_of(path)


def steps_of(path: Path) -> RankSteps:
    return Dasf().rank_steps(RankTrace("rank0", dasf.read(path, Dasf.args[Need.EDGES])))


def edges_of(steps: RankSteps) -> set[tuple[str, int, str, int, str]]:
    """(source, its start in s, target, its start, kind) of each edge."""
    (step,) = steps.steps
    names = [steps.operations[i].name for i in step.operation.tolist()]
    starts = [ns // 10**9 for ns in step.start_ns.tolist()]
    return {
        (names[a], starts[a], names[b], starts[b], RULES[rule].kind.label)
        for a, b, _, rule in step.edges.tolist()
    }


def test_a_task_waits_for_its_dependencies_and_for_its_worker(tmp_path: Path) -> None:
    steps = tasks_of(
        tmp_path,
        task("a", 1, 2), task("b", 1, 3, worker="worker-vm-1"), task("c", 4, 5, "a", "b"), task("d", 6, 7),
    )  # fmt: skip
    assert edges_of(steps) == {
        ("a", 1, "c", 4, "data"),
        ("b", 1, "c", 4, "message"),
        ("c", 4, "d", 6, "device"),
    }
    assert [(one.name, one.cat) for one in steps.operations] == [
        ("a", "a"),
        ("b", "b"),
        ("c", "c"),
        ("d", "d"),
    ]


def test_the_same_keys_computed_again_are_new_runs(tmp_path: Path) -> None:
    # the second run of `a` ends after the first run of `c`: c's first run cannot wait for it
    first = [task("a", 1, 2), task("c", 3, 4, "a")]
    again = [task("a", 11, 12), task("c", 13, 14, "a")]
    steps = tasks_of(tmp_path, *first, *again)
    assert edges_of(steps) == {
        ("a", 1, "c", 3, "data"),
        ("c", 3, "a", 11, "device"),
        ("a", 11, "c", 13, "data"),
    }
    job = join([steps])
    assert critical_path(job.steps[0]).length_ns == 13 * 10**9
    assert "2 tasks ran more than once" in job.notes[1]


def test_a_result_kept_from_the_first_run_serves_the_second(tmp_path: Path) -> None:
    steps = tasks_of(tmp_path, task("a", 1, 2), task("c", 3, 4, "a"), task("c", 13, 14, "a"))
    assert ("a", 1, "c", 13, "data") in edges_of(steps)


def test_tasks_of_two_files_meet(tmp_path: Path) -> None:
    here = tasks_of(tmp_path, task("a", 1, 4))
    there = tasks_of(tmp_path, task("c", 5, 9, "a"), name="b")
    job = join([here, there])
    (edge,) = job.steps[0].edges.tolist()
    assert (edge[0], edge[1], RULES[edge[3]].kind) == (0, 1, EdgeKind.MESSAGE)
    assert "1 result that tasks depend on" in there.notes[1]


@pytest.mark.parametrize(
    ("case", "nodes", "edges"), [("one-host-2workers", 148, 381), ("gpu-metrics", 75, 176)]
)
def test_recorded_profiles(shared_data: Path, case: str, nodes: int, edges: int) -> None:
    path = shared_data / "dasf" / case / "trace" / "demo-TracePlugin-vm.msgpack"
    (step,) = join([steps_of(path)]).steps
    assert (len(step), len(step.edges)) == (nodes, edges)
    assert critical_path(step).length_ns == int(step.end_ns.max() - step.start_ns.min())
