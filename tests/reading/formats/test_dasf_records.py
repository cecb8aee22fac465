"""`formats.dasf_records`: DASF's databases become columns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analyzer.base.errors import TraceError
from analyzer.reading.formats import dasf_records as dasf
from analyzer.reading.formats.file_kinds import is_dasf
from conftest import examples
from make import DASF_KEY as KEY
from make import dasf_bytes as packed
from make import dasf_compute as compute
from make import dasf_event as event


def written(folder: Path, *records: dict[str, Any]) -> Path:
    path = folder / "demo-TracePlugin-vm.msgpack"
    path.write_bytes(packed(*records))
    return path


def test_a_compute_record_is_stamped_at_its_end(tmp_path: Path) -> None:
    trace = dasf.read(written(tmp_path, compute(10.5, 0.25)))
    assert (trace.ts_ns.tolist(), trace.dur_ns.tolist()) == ([10_250_000_000], [250_000_000])


def test_a_task_is_named_after_its_function_and_runs_on_its_worker(tmp_path: Path) -> None:
    trace = dasf.read(written(tmp_path, compute(1.0, 0.5)))
    assert (trace.names, trace.cats, trace.tracks) == (["sum"], ["Compute"], [("vm", "worker-vm-0")])


def test_requested_args_are_kept_and_tuple_keys_become_text(tmp_path: Path) -> None:
    record = compute(1.0, 0.5, key=["sum-0a", 1, [2, 3]], dependencies=[["x-1", 0]], size=8)
    trace = dasf.read(written(tmp_path, record), args=("key", "dependencies"))
    assert {name: column.values for name, column in trace.args.items()} == {
        "key": ["('sum-0a', 1, (2, 3))"],
        "dependencies": [["('x-1', 0)"]],
    }


@pytest.mark.parametrize(
    ("key", "function"),
    [
        (KEY, "sum"),
        ("('sum-aggregate-0a1b', 0)", "sum-aggregate"),
        (["block-id-_slow-0a1b", 3, 3], "block-id-_slow"),
        ("finalize-0a1b", "finalize"),
        ("alone", "alone"),
    ],
)
def test_a_key_names_its_function(key: object, function: str) -> None:
    assert dasf.function_of(key) == function


def test_samples_are_points_with_their_values_beside_them(tmp_path: Path) -> None:
    usage = {"cpu": 38.6, "gpu_utilization": 33}
    path = written(tmp_path, event("Resource Usage", "I", 2.0, usage), compute(1.0, 0.5))
    trace = dasf.read(path, points=True)
    assert (len(trace), trace.points.ts_ns.tolist()) == (1, [2_000_000_000])
    assert trace.header["point_args"] == [usage]


def test_an_end_that_was_written_as_a_begin_ends_the_open_one(tmp_path: Path) -> None:
    marks = [event("fit", "B", 1.0), event("load", "B", 2.0), event("load", "B", 2.5), event("fit", "B", 4.0)]
    trace = dasf.read(written(tmp_path, *marks))
    slices = dict(zip([trace.names[i] for i in trace.name_id], trace.dur_ns.tolist(), strict=True))
    assert slices == {"load": 500_000_000, "fit": 3_000_000_000}


def test_damage_between_records_costs_only_what_it_covers(tmp_path: Path) -> None:
    path = tmp_path / "a.msgpack"
    path.write_bytes(packed(compute(1.0, 0.5)) + b"\xff" * 21 + packed(compute(2.0, 0.5)))
    trace = dasf.read(path)
    assert len(trace) == 2
    assert trace.repairs == ["21 bytes between whole records are damaged and were left out"]


def test_records_without_a_usable_time_are_left_out_and_counted(tmp_path: Path) -> None:
    records = [compute(float("nan"), 0.5), compute(1e300, 0.5), {"name": "x"}, compute(1.0, 0.5)]
    trace = dasf.read(written(tmp_path, *records))
    assert (len(trace), trace.repairs) == (1, ["3 records are not events and were left out"])


@pytest.mark.parametrize("content", [b"\0" * 40, b'{"traceEvents": []}', packed({"a": 1})])
def test_a_file_of_something_else_is_refused_in_a_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.msgpack"
    path.write_bytes(content)
    with pytest.raises(TraceError, match="not a DASF profile"):
        dasf.read(path)


@pytest.mark.parametrize(
    ("content", "answer"),
    [
        (packed(compute(1.0, 0.5)), True),
        (b"", False),
        (b'{"traceEvents": []}', False),
        (b"[\n{}\n]      ", False),
        ("[{}]".encode("utf-16"), False),
        (b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03", False),
    ],
)
def test_the_dialect_is_known_by_its_first_bytes(content: bytes, answer: bool) -> None:
    assert is_dasf(content[:64]) is answer


times = st.floats(0, 1e6, allow_nan=False)
records = st.builds(compute, times, st.floats(0, 1e3), size=st.integers(0, 2**40)) | st.builds(
    event, st.sampled_from(["Managed Memory", "Resource Usage"]), st.just("I"), times
)


@given(st.lists(records, min_size=1), st.data())
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=examples(60),
    deadline=None,
)
def test_a_cut_anywhere_keeps_every_whole_record(
    tmp_path: Path, events: Sequence[dict[str, Any]], data: st.DataObject
) -> None:
    whole = packed(*events)
    cut = data.draw(st.integers(0, len(whole)))
    ends = [len(packed(*events[: n + 1])) for n in range(len(events))]
    expected = sum(end <= cut for end in ends)
    path = tmp_path / "cut.msgpack"
    path.write_bytes(whole[:cut])
    if expected or not cut:
        assert sum(dasf.read(path).phases.values()) == expected
    else:
        with pytest.raises(TraceError):
            dasf.read(path)


def test_real_databases_hold_what_their_description_says(shared_data: Path) -> None:
    trace = dasf.read(shared_data / "dasf/one-host-2workers/trace/demo-TracePlugin-vm.msgpack", points=True)
    assert (len(trace), len(trace.points), trace.repairs) == (148, 193, [])


@pytest.mark.parametrize("args", [{"key": float("nan")}, {"key": [float("nan"), 0]}, {"name": float("nan")}])
def test_a_key_of_nan_names_no_function(tmp_path: Path, args: dict[str, Any]) -> None:
    record = compute(1.0, 0.5) | {"args": args}
    assert dasf.read(written(tmp_path, record)).names == ["Compute"]
