"""The parts of combine: whole events, times, ids, anchors."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analyzer.answers.combine import merge
from analyzer.answers.combine.distinct_ids import unique_id
from analyzer.answers.combine.merge import microseconds
from analyzer.reading import dialects
from analyzer.reading.formats import stream
from analyzer.reading.formats.event import NO_ARGS
from analyzer.reading.formats.reader import EventReader
from analyzer.reading.formats.whole import decode, encode
from conftest import examples, run_cli
from make import write
from trace_utils import read_trace

# -- whole events ---------------------------------------------------------------------------------


def test_unknown_members_survive_as_they_were_written(tmp_path: Path) -> None:
    text = '[{"ph":"X","ts":1,"dur":2.50,"name":"a","zz":{"b": [1e3, "}],["]},"args":{"x":1e400}}]'
    (tmp_path / "a.json").write_text(text)
    event = next(iter(EventReader(tmp_path / "a.json", decode))).events[0]
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
@given(_IDS, st.integers(0, 5000))
def test_an_id_is_a_number_or_hexadecimal(value: Any, source: int) -> None:
    found = unique_id(value, source)
    assert 0 <= (found if isinstance(found, int) else int(found, 16)) < 1 << 64
    assert not isinstance(found, int) or found < 1 << 53


@pytest.mark.slow
@given(_IDS, st.integers(0, 5000), st.integers(0, 5000))
def test_ids_of_two_sources_differ(value: Any, one: int, other: int) -> None:
    assert (unique_id(value, one) == unique_id(value, other)) == (one == other)


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


# -- many alike -----------------------------------------------------------------------------------

_ALIKE = st.fixed_dictionaries(
    {
        "ph": st.sampled_from("XXXXisbeBEC"),
        "name": st.sampled_from(["a", "b", "gloo:all_reduce", '\u00e4 "x"']),
        "ts": st.one_of(st.integers(0, 10**6), st.integers(0, 10**9).map(lambda ns: ns / 1000)),
    },
    optional={
        "cat": st.sampled_from(["c", "kernel"]),
        "dur": st.one_of(st.integers(0, 50), st.sampled_from([0.5, 12.345, 1e-7, 2.0**40])),
        "id": st.one_of(st.integers(0, 9), st.integers(0, 2**39)),
        "s": st.just("t"),
        "args": st.sampled_from([{}, {"k": [1, 2.5]}, {"k": "v"}, [3]]),
    },
)


@pytest.mark.slow
@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(_ALIKE, min_size=1, max_size=40), st.sampled_from([200, 700, 1 << 20]), st.integers(2, 60))
def test_events_that_are_alike_keep_all_their_members(
    tmp_path_factory: pytest.TempPathFactory, events: list[dict[str, Any]], piece: int, block: int
) -> None:
    directory = tmp_path_factory.mktemp("alike")
    given = [{**event, "pid": 5, "tid": 1, "tail": i} for i, event in enumerate(events)]
    for event in given:  # numbered in their arguments, where they may differ
        if isinstance(event.get("args"), dict):
            event["args"] = {**event["args"], "n": event.pop("tail") // 3}
        event.pop("tail", None)
    (directory / "a.json").write_text(json.dumps(given))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "PIECE", piece)
        patch.setattr(merge, "_BLOCK", block)
        code, _, err = run_cli(
            *("--option", "combine", "--path", directory / "a.json", "--output", directory / "out.json")
        )
    assert code == 0, err
    combined = json.loads((directory / "out.json").read_text())["traceEvents"]
    found = [{**event, "pid": 5} for event in combined if event["ph"] != "M"]
    assert sorted(map(_text, found)) == sorted(map(_text, given))
    assert [event["ts"] for event in found] == sorted(event["ts"] for event in given)


def _text(event: dict[str, Any]) -> str:
    numbers = {key: float(event[key]) for key in ("ts", "dur") if key in event}
    return json.dumps({**event, **numbers}, sort_keys=True)
