"""The border for values: what is read is within it, whatever the file says; nothing takes for ever.

Times are nanoseconds, exactly.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import time
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.base.errors import TraceError
from analyzer.reading.formats.stream import ByteStream
from analyzer.reading.formats.values import (
    FARTHEST_NS,
    MOST_DEPTH,
    NO_TIME,
    InexactError,
    cleaned,
    exact_ns,
    text_to_ns,
    to_ns,
)
from analyzer.reading.traces.readers import read_document, read_trace
from conftest import run_cli

GOOD = '{"ph":"X","name":"a","pid":1,"tid":2,"ts":10,"dur":5}'


def written(tmp_path: Path, *events: str, header: str = "") -> Path:
    path = tmp_path / "t.json"
    path.write_text("{" + header + '"traceEvents":[' + ",".join((GOOD, *events, GOOD)) + "]}")
    return path


@pytest.mark.parametrize(
    ("value", "clean"),
    [
        ("a\ud800b", "a\ufffdb"),
        (float("nan"), None),
        (float("-inf"), None),
        (2**64 - 1, 2**64 - 1),
        (2**64, None),
        (-(2**63) - 1, None),
        ({"a\udfff": [1e999, True]}, {"a\ufffd": [None, True]}),
    ],
)
def test_damaged_values_become_none(value: object, clean: object) -> None:
    assert cleaned(value) == clean


def test_lists_end_at_a_depth() -> None:
    value: object = 1
    for _ in range(500):
        value = [value]
    clean = cleaned(value)
    for _ in range(MOST_DEPTH):
        (clean,) = clean
    assert clean is None


@pytest.mark.parametrize(
    "ts", ["1e300", "-4e15", "99999999999999999999999", "1e999", "NaN", '"soon"', "[1]", "9" * 5000]
)
def test_a_time_beyond_100_years_is_ignored(tmp_path: Path, ts: str) -> None:
    trace = read_trace(written(tmp_path, f'{{"ph":"X","name":"b","ts":{ts},"dur":1}}'))
    assert trace.ts_ns.tolist() == [10_000, 10_000]
    assert any("without a time ignored" in line for line in trace.repairs)


def test_slices_that_the_epoch_moves_beyond_100_years_are_left_out(tmp_path: Path) -> None:
    base = FARTHEST_NS - 20_000
    header = f'"schemaVersion":1,"baseTimeNanoseconds":{base},'
    trace = read_trace(
        written(tmp_path, '{"ph":"X","name":"b","ts":3000000000000000,"dur":1}', header=header)
    )
    assert trace.ts_ns.tolist() == [base + 10_000] * 2
    assert any("1 slice more than 100 years" in line for line in trace.repairs)


@pytest.mark.parametrize("pid", ["[1,2]", '{"a":1}', "1" + "0" * 30, "9" * 5000, '"\\ud800"', "1e999"])
def test_ids_are_scalars_of_64_bits_and_text_that_can_be_encoded(tmp_path: Path, pid: str) -> None:
    event = f'{{"ph":"X","name":"b","pid":{pid},"tid":1,"ts":20,"dur":1}}'
    trace = read_trace(written(tmp_path, event))
    assert len(trace) == 3
    assert trace.repairs
    for track in trace.tracks:
        assert track.pid is None or isinstance(track.pid, str | int | float)
        assert isinstance(track.pid, str) or track.pid is None or abs(track.pid) < 2**64
        str(track.pid).encode()
    assert len(read_document(tmp_path / "t.json")["traceEvents"]) == 3


@pytest.mark.parametrize(
    "event",
    [
        '{"ph":"X","name":"b","pid":1,"tid":1,"ts":1,"dur":1,"args":{"n":%s}}' % ("9" * 5000),
        '{"ph":"X","name":"b","pid":1,"tid":1,"ts":1,"dur":NaN,"x":%s}' % ("9" * 5000),
        '{"ph":"X","name":"b","pid":%s,"tid":1,"ts":1,"dur":NaN}' % ("9" * 5000),
        '{"ph":"X","name":"\\ud800","pid":1,"tid":1,"ts":1,"dur":1,"x":"\\udfff"}',
        '{"ph":"X","name":"b","pid":1,"tid":[1],"ts":%s,"dur":1}' % ("9" * 400),
    ],
)
def test_a_combined_file_is_json_to_everybody(tmp_path: Path, event: str) -> None:
    out = tmp_path / "all.json"
    code, _, stderr = run_cli("--option", "combine", "--path", written(tmp_path, event), "--output", out)
    assert code == 0, stderr
    document = json.loads(out.read_bytes())  # Python takes integers of 4,300 digits
    assert sum(event["ph"] == "X" for event in document["traceEvents"]) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "content",
    [
        "[" + '{"ph":1,' * 25_000,
        "[" + '{"ph":"X","name":"' * 12_000,
        "[" + GOOD + " " * 120_000 + "x" + "}" + " " * 120_000,
        "[[{}," * 25_000,
        '{"a":[{"traceEvents":[' * 10_000,
        '[{"ph":"X","name":"' + '\\"' * 100_000,
        "[" + '{"ph":"X","ts":},' * 15_000,
    ],
    ids=range(7),
)
def test_damage_everywhere_takes_a_moment(tmp_path: Path, content: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(content)
    begin = time.process_time()
    with contextlib.suppress(TraceError):
        read_document(path)
    assert time.process_time() - begin < 5


@pytest.mark.fuzz
def test_gzip_that_unpacks_to_more_than_anything_recorded_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(b"[" + b" " * 300_000_000, compresslevel=1))
    with pytest.raises(TraceError, match=r"t.json.gz: unpacks to more than 268 MB; if it is no"):
        for _ in ByteStream(path):
            pass


def test_integers_floats_and_text() -> None:
    assert to_ns([1795219501232034]).tolist() == [1795219501232034000]
    assert to_ns([1.5, 2]).tolist() == [1500, 2000]
    assert to_ns(["12.25", 3, None, "x", True]).tolist() == [12250, 3000, NO_TIME, NO_TIME, NO_TIME]


def test_a_value_that_is_not_a_number_is_not_a_time() -> None:
    assert to_ns([float("nan"), float("inf"), 1.0]).tolist() == [NO_TIME, NO_TIME, 1000]
    assert to_ns([10**30, 1]).tolist() == [NO_TIME, 1000]
    assert to_ns([2**62, 1]).tolist() == [NO_TIME, 1000]  # 146 000 years


def test_a_large_float_is_refused_as_inexact() -> None:
    for us in (1790857026000000.25, 1790857026000000.0):  # the latter is also what …000.003 is decoded as
        with pytest.raises(InexactError):
            to_ns([us])
    with pytest.raises(InexactError):
        to_ns([1795219501000003.125, 10**400])  # beyond all floats
    assert to_ns([1790857026000000, 0.5]).tolist() == [1790857026000000000, 500]


@given(st.integers(-(2**43 - 1) * 1000, (2**43 - 1) * 1000))
def test_floats_below_the_limit_are_exact_to_the_nanosecond(ns: int) -> None:
    written = float(Decimal(ns) / 1000)  # what a decoder makes of the decimal text
    assert to_ns([written, 0.5]).tolist()[0] == ns


@given(st.integers(-FARTHEST_NS, FARTHEST_NS))
def test_text_is_exact_for_every_nanosecond(ns: int) -> None:
    text = str(Decimal(ns) / 1000)
    assert exact_ns(text) == ns
    assert text_to_ns([text.encode()]).tolist() == [ns]


def test_a_number_beyond_all_bounds_is_not_a_time() -> None:
    assert exact_ns("1e999999999") == NO_TIME
