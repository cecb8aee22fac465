"""Recorded steps simulated: with their own work and gaps they get back the times they were recorded with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs import MS, apply, job, rank
from msgspec.structs import replace

from analyzer.model.graph.critical_path import critical_path
from analyzer.model.graph.join_ranks import join
from analyzer.model.graph.step_graph import Recording
from analyzer.reading.dialects.edge_rules import Rule
from analyzer.reading.dialects.step_parts import (
    Edge,
    Joint,
    Meeting,
    Operation,
    RankStep,
    RankSteps,
    Transfer,
)
from analyzer.reading.formats.columns import Track
from conftest import examples, few
from dag_utils import load_steps
from make import stretches_of
from replay.runs import Runs, simulated
from trace_utils import Request

pytestmark = pytest.mark.slow


def assert_alone_as_recorded(recording: Recording) -> None:
    for row, step in enumerate(recording.steps):
        alone, zero = simulated(recording, [row]).step(0), step.begin_ns.min()
        assert (alone.start_ns == step.start_ns - zero).all()
        assert (alone.end_ns == step.end_ns - zero).all()
        known = step.next_ns >= 0
        assert (alone.bounds.iteration_ns == step.bounds.iteration_ns)[known].all()


def assert_in_a_row_as_recorded(recording: Recording) -> None:
    rows = range(len(recording.steps))
    result, zero = simulated(recording, rows), recording.steps[0].begin_ns.min()
    for position in rows:
        step = recording.steps[position]
        assert (result.step(position).begin_ns == step.begin_ns - zero).all()
        assert (result.step(position).end_ns == step.end_ns - zero).all()


@st.composite
def recordings(draw: st.DrawFn, shared_links: bool = True) -> Recording:
    """Up to three ranks and steps of arbitrary events, edges, links and collectives, in units of 30 us."""
    unit = 30_000
    n_ranks, n_steps, n_events = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 5))
    lengths = draw(st.lists(st.integers(1, 30), min_size=n_steps, max_size=n_steps))
    ranks = []
    for number in range(n_ranks):
        links = draw(st.lists(st.sampled_from(["", "", "x", "y"]), min_size=n_events, max_size=n_events))
        own = "" if shared_links else str(number)
        operations = [
            Operation(str(i), "", Track(0, i), transfer=Transfer(link=link and link + own))
            for i, link in enumerate(links)
        ]
        begin = draw(st.integers(0, 3))
        steps = []
        for i, length in enumerate(lengths):
            moments = st.integers(begin, begin + length)
            spans = sorted(sorted(draw(st.tuples(moments, moments))) for _ in range(n_events))
            event = st.integers(0, n_events - 1)
            edges = [
                Edge(source, target, draw(st.sampled_from(Joint)), Rule.RESULT)
                for source, target in draw(st.lists(st.tuples(event, event), max_size=6))
                if source < target
            ]
            meetings = [
                Meeting((i, key), key, True, True) for key in draw(st.lists(event, max_size=2, unique=True))
            ]
            times = unit * np.array(spans, np.int64).reshape(-1, 2)
            bounds = unit * begin, unit * (begin + length)
            steps.append(RankStep.of(i + 1, bounds, np.arange(n_events), times, edges, meetings))
            begin += length
        ranks.append(RankSteps(f"rank{number}", operations, steps))
    return join(ranks)


@settings(max_examples=examples(60), deadline=None, derandomize=True)
@given(recordings())
def test_any_step_gets_back_its_times(recording: Recording) -> None:
    assert_alone_as_recorded(recording)


@settings(max_examples=examples(60), deadline=None, derandomize=True)
@given(recordings(shared_links=False))
def test_steps_in_a_row_get_back_their_times(recording: Recording) -> None:
    assert_in_a_row_as_recorded(recording)


@settings(max_examples=examples(30), deadline=None, derandomize=True)
@given(recordings())
def test_doubled_times_double_the_step(recording: Recording) -> None:
    for row, step in enumerate(recording.steps):
        columns = {name: getattr(step, name) * 2 for name in ("work_ns", "gap_ns", "tail_ns", "begin_ns")}
        twice = replace(recording, steps=[replace(step, **columns)])
        single = simulated(recording, [row]).iteration_ns
        assert (simulated(twice, [0]).iteration_ns == 2 * single).all()


@settings(max_examples=examples(30), deadline=None, derandomize=True)
@given(recordings())
def test_the_path_of_a_replayed_step_adds_up_to_it(recording: Recording) -> None:
    for row, step in enumerate(recording.steps):
        recorded, alone = critical_path(step), critical_path(simulated(recording, [row]).step(0))
        assert sum(stretch.dur_ns for stretch in stretches_of(alone)) == alone.length_ns
        assert alone.length_ns == recorded.length_ns
        assert [one.event for one in stretches_of(alone)] == [one.event for one in stretches_of(recorded)]


def test_work_cut_at_a_step_end_continues_in_the_next() -> None:
    # the device works from 4 to 13 in steps of 10; in the second step the rest is 3, then 2 more
    steps = [
        ({"launch": (0, 4), "kernel": (4, 10)}, (0, 10)),
        ({"kernel": (10, 13), "next": (13, 15)}, (10, 20)),
    ]
    made = rank("rank0", steps, {"kernel": ["launch"], "next": ["kernel"]})
    second = replace(made.steps[1], continued=np.array([[1, 0]]))
    recording = job(replace(made, steps=[made.steps[0], second]))
    assert_in_a_row_as_recorded(recording)
    halved = apply(recording, ["kernel=0.5"])
    ends = [(simulated(halved, [0, 1]).step(i).end_ns / MS).tolist() for i in range(2)]
    assert ends == [[4, 7], [8.5, 10.5]]  # the first step ends at 7 + 0, as the last event held it up


def test_device_work_launched_a_step_before_ignores_a_slower_host() -> None:
    # the second kernel was launched in the first step; it ran 2 after the first one had ended
    steps = [
        ({"host": (0, 10), "kernel": (0, 9)}, (0, 10)),
        ({"host": (10, 20), "kernel": (11, 19)}, (10, 20)),
    ]
    made = rank("rank0", steps)
    across = np.array([[0, 1, Joint.START_TO_HEAD, 1], [1, 1, Joint.END_TO_HEAD, 1]])
    recording = job(replace(made, steps=[made.steps[0], replace(made.steps[1], across=across)]))
    assert_in_a_row_as_recorded(recording)
    slower = simulated(apply(recording, ["host=1.5"]), [0, 1])
    assert (slower.iteration_ns / MS).tolist() == [[15], [15]]
    assert [(ends[1] / MS).tolist() for ends in slower.intervals(1)] == [11, 19]
    # seen from the step that begins at 15, it is work from there on
    assert (slower.step(1).start_ns / MS).tolist() == [15, 15]
    assert (slower.step(1).work_ns / MS).tolist() == [15, 4]
    assert critical_path(slower.step(1)).length_ns == 15 * MS


_JOBS = (
    "byteps/master_torch_cnn_2w1s", "horovod/2ranks-base/trace", "composer/ws2/trace",
    "kineto/gpu-hta-ns-resolution",
    "byteps/fork_lenet_base", "byteps/fork_lenet_2w2g", "byteps/fork_lenet_straggler",
    "byteps/fork_mlp_2w2s_pcap", "byteps/fork_resnet50_2w1s", "kineto/ddp2-gloo-base/trace",
    "kineto/gpu-hta-nccl-rank0of2/trace", "kineto/gpu-param-dlrm-8ranks",
)  # fmt: skip


@pytest.mark.parametrize("name", few(4, _JOBS))
def test_recorded_jobs_get_back_their_times(name: str, shared_data: Path) -> None:
    recording = load_steps([shared_data / name]).recording
    assert_alone_as_recorded(recording)
    numbers = [step.number for step in recording.steps]
    if numbers == list(range(numbers[0], numbers[0] + len(numbers))):
        assert_in_a_row_as_recorded(recording)


def test_after_a_pause_the_ranks_begin_a_step_as_recorded(shared_data: Path) -> None:
    # two cycles of a profiler: rank 1 begins step 7 later than rank 0 by 34 ms, which step 4 cannot explain
    recording = load_steps(
        [shared_data / "kineto" / "ddp2-gloo-two-cycles" / "trace"], Request(progress=False)
    ).recording
    result = simulated(recording, range(len(recording.steps)))
    for position, step in enumerate(recording.steps):
        assert (result.step(position).bounds.iteration_ns == step.bounds.iteration_ns).all()
        assert (result.iteration_ns[position] == step.bounds.iteration_ns).all()


def test_other_edges_are_other_runs() -> None:
    one = job(rank("rank0", [({"a": (0, 1), "b": (1, 2)}, (0, 2))], {"b": ["a"]}))
    cut = replace(one, steps=[replace(step, edges=step.edges[:0]) for step in one.steps])
    assert not Runs(one, [0]).fits(cut)
    # without the edge both begin with the step, at its begin: b's gap is none
    assert simulated(cut, [0]).step(0).end_ns.max() == MS
