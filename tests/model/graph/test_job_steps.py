"""Laws of the step graph, on recorded jobs."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

import recorded
from analyzer.base.errors import AnalyzeError
from analyzer.model.graph.step_graph import Recording, StepBounds, job_lengths
from analyzer.reading.dialects.edge_rules import RULES, EdgeKind, Rule
from dag_utils import critical_path, load_steps
from make import stretches_of, x
from trace_utils import Request


@pytest.fixture(scope="module", params=recorded.jobs(), ids=lambda path: "/".join(path.parts[-3:]))
def recording(request: pytest.FixtureRequest) -> Recording:
    """Each of the jobs, read once for the tests of it."""
    try:
        return load_steps([request.param], Request(jobs=1, progress=False)).recording
    except AnalyzeError as error:
        pytest.skip(str(error))


@pytest.mark.thorough
def test_the_path_adds_up_to_the_step_and_runs_through_no_wait(recording: Recording) -> None:
    for row in recording.whole_steps:
        step = recording.steps[row]
        found = critical_path(step)
        assert sum(stretch.dur_ns for stretch in stretches_of(found)) == found.length_ns
        if step.next_ns[found.owner] >= 0:
            assert found.length_ns == step.next_ns[found.owner] - step.begin_ns[found.owner]
        times = [(stretch.start_ns, stretch.end_ns) for stretch in stretches_of(found)]
        assert all(a[1] == b[0] for a, b in itertools.pairwise(times))
        assert not [stretch for stretch in stretches_of(found) if stretch.cat == "wait"]


@pytest.mark.thorough
def test_every_edge_has_a_rule(recording: Recording) -> None:
    rules = np.concatenate([recording.steps[row].edges[:, 3] for row in recording.whole_steps])
    assert set(rules.tolist()) <= {rule.value for rule in RULES if rule.kind is not EdgeKind.EXCHANGE}


@pytest.mark.thorough
def test_only_device_work_beside_a_host_has_slack_on_the_path(recording: Recording) -> None:
    step = recording.steps[recording.choose_step()]
    found = critical_path(step)
    slack = step.slack_ns()
    assert (slack >= 0).all()
    if int(step.begin_ns[found.owner]) == int(step.begin_ns.min()):
        events = found.event[found.is_work & (found.event >= 0) & (found.rule != Rule.BUSY)]
        ends = np.where(step.next_ns < 0, step.end_ns.max(initial=0), step.next_ns)
        if int(ends[found.owner]) == int(ends.max()):
            assert slack[events].max(initial=0) == 0


def test_a_damaged_graph_beside_a_trace_is_a_note(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text(json.dumps([x("work", "1", 1000, 1000)]))
    (tmp_path / "dag.gml").write_text("graph [ directed 1 node [ id 0 ]")
    loaded = load_steps([tmp_path / "trace.json"], Request(progress=False))
    assert len(loaded.recording.steps) == 1
    (line,) = loaded.repairs
    assert line.startswith(f"{tmp_path / 'dag.gml'}: ") and line.endswith("; left out")


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        # the owner that is through last took 18, the mean one 15, from the last beginning 13
        ([(7, [0, 5], [18, 17])], [18]),
        # step 8 is counted from 18 to 40, step 10, before which one is missing, for its last owner
        ([(7, [0, 5], [18, 17]), (8, [18, 17], [39, 40]), (10, [60, 62], [80, 81])], [18, 22, 19]),
        ([(7, [0, 5], [18, -1])], [0]),
    ],
)
def test_a_step_of_a_job_lasts_until_its_last_owner_is_through(
    steps: list[tuple[int, list[int], list[int]]], expected: list[float]
) -> None:
    bounds = [StepBounds(number, np.array(begin), np.array(end)) for number, begin, end in steps]
    assert job_lengths(bounds).tolist() == expected
