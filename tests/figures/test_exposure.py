"""`compare.exposure`: every instant of a step is given away once; figures by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dialects.steps import Step
from figures.exposure import COMMUNICATION, COMPUTE, FRAME, HOST, IGNORED, exposed_ns, layers
from formats.columns import Trace, Track

Slice = tuple[int, int, int]  # track, start, end


def trace_of(
    slices: Sequence[Slice],
    names: Sequence[str] = ("x",),
    cats: Sequence[str] = ("",),
    dialect: str = "chrome",
) -> Trace:
    """A trace with one name and category per slice, or the same for all."""
    n = len(slices)
    ids = np.arange(n) if len(names) > 1 else np.zeros(n, np.int64)
    cat_ids = np.arange(n) if len(cats) > 1 else np.zeros(n, np.int64)
    track, start, end = np.array(slices, np.int64).reshape(-1, 3).T
    tracks = [Track(0, i) for i in range(int(track.max(initial=0)) + 1)]
    return Trace("t", dialect, names, cats, tracks, ids.astype(np.int32), cat_ids.astype(np.int32),
                 track.astype(np.int32), start, end - start)  # fmt: skip


def shares(slices: Sequence[Slice], layer: Sequence[int], *steps: tuple[int, int]) -> list[list[float]]:
    found = exposed_ns(
        trace_of(slices),
        np.array(layer),
        np.arange(len(slices)),
        len(slices),
        [Step(i, *bounds) for i, bounds in enumerate(steps)],
    )
    rows: list[list[float]] = found.tolist()
    return rows


def test_the_innermost_slice_of_a_track_counts() -> None:
    # 0 .. 100, within it 20 .. 50, within that 30 .. 35
    found = shares([(0, 0, 100), (0, 20, 50), (0, 30, 35)], [COMPUTE] * 3, (0, 100))
    assert found == [[70, 25, 5, 0]]


def test_communication_counts_only_where_nothing_computes() -> None:
    assert shares([(0, 0, 60), (1, 40, 90)], [COMPUTE, COMMUNICATION], (0, 100)) == [[60, 30, 10]]


def test_equals_share_an_instant() -> None:
    assert shares([(0, 0, 60), (1, 40, 100)], [COMMUNICATION] * 2, (0, 100)) == [[50, 50, 0]]


def test_frames_come_last_and_ignored_spans_never() -> None:
    slices = [(0, 0, 50), (1, 0, 70), (2, 0, 80), (3, 0, 100)]
    assert shares(slices, [COMMUNICATION, HOST, FRAME, IGNORED], (0, 100)) == [[50, 20, 10, 0, 20]]


def test_a_slice_over_a_boundary_belongs_to_both_steps() -> None:
    assert shares([(0, 80, 130)], [COMPUTE], (0, 100), (100, 200)) == [[20, 80], [30, 70]]


def test_what_lies_between_steps_belongs_to_none() -> None:
    assert shares([(0, 0, 300)], [COMPUTE], (0, 100), (200, 250)) == [[100, 0], [50, 0]]


slices = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 200), st.integers(0, 90)).map(
        lambda s: (s[0], s[1], s[1] + s[2])
    ),
    max_size=25,
)


@given(slices, st.data())
def test_the_parts_add_up_to_each_step(drawn: list[Slice], data: st.DataObject) -> None:
    layer = [data.draw(st.integers(COMPUTE, IGNORED)) for _ in drawn]
    found = shares(drawn, layer, (10, 90), (90, 150), (170, 200))
    np.testing.assert_allclose(np.sum(found, axis=1), [80, 60, 30], atol=1e-9)
    assert np.min(found) >= 0


@pytest.mark.parametrize(
    ("name", "cat", "dialect", "layer"),
    [
        ("FW.conv0", "operator", "byteps", COMPUTE),
        ("Comm.w.PUSH", "Comm", "byteps", COMMUNICATION),
        ("Comm.w", "Comm", "byteps", FRAME),
        ("STEP", "operator", "byteps", FRAME),
        ("I/O", "I/O", "byteps", HOST),
        ("aten::add", "cpu_op", "kineto", COMPUTE),
        ("gloo:all_reduce", "user_annotation", "kineto", COMMUNICATION),
        ("DistributedDataParallel.forward", "user_annotation", "kineto", FRAME),
        ("ProfilerStep#3", "user_annotation", "kineto", IGNORED),
        ("NEGOTIATE_ALLREDUCE", "", "horovod", HOST),
        ("ALLREDUCE", "", "horovod", COMMUNICATION),
        ("event/forward", "", "composer", COMPUTE),
        ("event/batch", "", "composer", IGNORED),
    ],
)
def test_layers_follow_from_name_and_category(name: str, cat: str, dialect: str, layer: int) -> None:
    assert layers(trace_of([(0, 0, 1)], [name], [cat], dialect)).tolist() == [layer]


def test_with_a_device_the_cpu_only_prepares() -> None:
    names, cats = ["aten::add", "add_kernel", "ncclKernel_AllReduce"], ["cpu_op", "kernel", "kernel"]
    trace = trace_of([(0, 0, 1), (1, 0, 1), (1, 1, 2)], names, cats, "kineto")
    assert layers(trace).tolist() == [HOST, COMPUTE, COMMUNICATION]


def test_a_background_thread_that_waits_holds_nobody_up() -> None:
    # track 0 is the main thread: it calls most, and its own wait counts; track 1 waits within its loop
    slices = [(0, 0, 40), (0, 40, 50), (0, 50, 60), (0, 60, 90), (1, 0, 100), (1, 5, 95)]
    names = ["forward", "backward", "step", "queue.get", "threading.py(9): run", "threading.py(2): wait"]
    trace = trace_of(slices, names)
    found = exposed_ns(trace, layers(trace), np.arange(6), 6, [Step(1, 0, 100)])
    # 0 .. 5 and 95 .. 100 the loop itself runs, beside "forward" and alone
    assert found.tolist() == [[37.5, 10, 10, 30, 7.5, 0, 5]]
