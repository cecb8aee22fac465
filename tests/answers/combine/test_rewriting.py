"""The rewriting of events by combine: members, times, ids, anchors."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.answers.combine.merge import microseconds
from analyzer.answers.combine.rewrite_source import unique_id
from analyzer.reading import dialects
from analyzer.reading.formats.event import NO_ARGS
from analyzer.reading.formats.reader import EventReader
from analyzer.reading.formats.whole import decode, encode
from make import write
from trace_utils import read_trace

# -- whole events ---------------------------------------------------------------------------------


def test_unknown_members_survive_as_they_were_written(tmp_path: Path) -> None:
    text = '[{"ph":"X","ts":1,"dur":2.50,"name":"a","zz":{"b": [1e3, "}],["]},"args":{"x":1e400}}]'
    (tmp_path / "a.json").write_text(text)
    event = next(iter(EventReader(tmp_path / "a.json", decode)))[0]
    event.ts = NO_ARGS
    out = encode(event).decode()
    assert '"zz":{"b": [1e3, "}],["]}' in out
    assert '"args":{"x":1e400}' in out
    assert json.loads(out)["dur"] == 2.5


# -- sorting --------------------------------------------------------------------------------------


@given(st.lists(st.one_of(st.integers(-(10**16), 10**16), st.integers(-(10**18), 10**18)), min_size=1))
def test_microseconds_are_exact_whatever_is_beside_them(ns: list[int]) -> None:
    texts = microseconds(np.array(ns, np.int64))
    assert [Decimal(text.decode()) * 1000 for text in texts] == ns


# -- ids ------------------------------------------------------------------------------------------

_IDS = st.one_of(
    st.integers(-(2**70), 2**70), st.text(max_size=12), st.integers(0, 2**64).map(hex), st.floats()
)


@pytest.mark.slow
@given(_IDS, st.integers(0, 5000), st.integers(0, 5000))
def test_ids_are_numbers_or_hexadecimal_and_differ_between_sources(
    value: Any, first: int, second: int
) -> None:
    number = unique_id(value, first)
    assert 0 <= (number if isinstance(number, int) else int(number, 16)) < 1 << 64
    assert not isinstance(number, int) or number < 1 << 53
    assert (number == unique_id(value, second)) == (first == second)


# -- anchors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "cat", "is_anchor"),
    [
        ("gloo:all_reduce", "user_annotation", True),
        ("gloo:broadcast", "user_annotation", False),  # its root need not wait
        ("gloo:send", "user_annotation", False),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)", "kernel", True),
        ("ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm*)", "kernel", False),
        ("nccl:all_reduce", "user_annotation", False),  # only the launch
        ("aten::add", "cpu_op", False),
    ],
)
def test_which_collectives_everybody_waits_in(tmp_path: Path, name: str, cat: str, is_anchor: bool) -> None:
    event = {"ph": "X", "name": name, "cat": cat, "ts": 5, "dur": 7, "pid": 1, "tid": 1}
    trace = read_trace(write(tmp_path / "rank0.json", [event], schemaVersion=1))
    points = dialects.named("kineto").sync_points(trace).values()
    waited = [(point.begin_ns.tolist(), point.end_ns.tolist()) for point in points if point.all_wait]
    assert waited == [([5_000], [12_000])] * is_anchor
