"""Reading files in every state: what is whole is kept, what is lost is counted."""

from __future__ import annotations

import gzip
import json
import lzma
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analyzer.base.errors import TraceError
from analyzer.reading.formats.reader import EventReader
from analyzer.reading.traces.readers import read_document, read_trace

#: Read by either decoder; `read_document` has but one.
by_both = pytest.mark.usefixtures("decoder")

EVENT = {"ph": "X", "name": "a", "pid": 1, "tid": 2, "ts": 10, "dur": 5}


def events_of(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    document = read_document(path)
    return document["traceEvents"], document["repairs"]


def written(tmp_path: Path, content: str | bytes, name: str = "t.json") -> Path:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def text(*events: object, head: str = '{"traceEvents": [', tail: str = "]}") -> str:
    return (
        head + ",\n".join(event if isinstance(event, str) else json.dumps(event) for event in events) + tail
    )


@pytest.mark.parametrize(
    ("content", "n", "phrase"),
    [
        (text(EVENT, EVENT), 2, None),
        (text(EVENT, EVENT, head="[", tail="]"), 2, None),
        (text(EVENT, EVENT, head="\ufeff[", tail="]"), 2, None),
        (text(EVENT, EVENT, head=' \n {"a": {"traceEvents": [1]}, "traceEvents" : [', tail="]}"), 2, None),
        ("\n".join(json.dumps(EVENT) for _ in range(3)) + "\n", 3, None),
        (text(EVENT, EVENT, head="[", tail=",\n]"), 2, None),
        (text(EVENT, EVENT, tail=",{}\n]}"), 2, None),
        (text(EVENT, {}, EVENT), 2, "1 list item ignored"),
        (text(EVENT, EVENT, head="[", tail=",{}"), 2, "not closed"),
        (text(EVENT, EVENT, head="[", tail=",\n"), 2, "not closed"),
        (text(EVENT, EVENT, head="[", tail=""), 2, "not closed"),
        (text(EVENT, '{"ph": "X", "na', tail=""), 1, "ends early (cut in an event)"),
        (text(EVENT, EVENT, tail="]"), 2, None),
        (text(EVENT, EVENT, tail='], "distributedInfo": {"rank": 3'), 2, "after the events are unreadable"),
        (text(EVENT, '{"ph":"X","name":"n","ts":1,"dur":NaN,"args":{"v":Infinity}}', EVENT), 3, "repaired"),
        (text(EVENT, '{"ph":"X","name":"a\x01b","ts":1,"dur":1}', EVENT), 3, "repaired"),
        (text(EVENT, '{"ph":"X","name":"f<"x", "y">","ts":1,"dur":1}', EVENT), 3, "repaired"),
        (text(EVENT, '{"ph":"X","name":"\\ud800","ts":1,"dur":1}', EVENT), 3, "repaired"),
        (text(EVENT, '{"ph":"X","name":"C:\\path","ts":1,"dur":1}', EVENT), 3, "repaired"),
        (text(EVENT, "null", "17", '"text"', "[1, 2]", EVENT), 2, "4 list items ignored"),
        (text(EVENT, '{"name": "no phase"}', EVENT), 2, "1 list item ignored"),
        (text(EVENT, '{"ph":"X", "ts": }', EVENT), 2, "1 damaged event lost"),
        (text(EVENT, '{"ph":"X","args":{"l":[{"a":1},{"b":2}]},"ts":1}', EVENT), 3, None),
        (text(EVENT, '{"ph":"X","name":"},{","ts":1,"dur":1}', EVENT), 3, None),
        ('{"traceEvents": [' + json.dumps(EVENT) + json.dumps(EVENT) + "]}", 2, None),
        (text(EVENT, tail='], "x": [{"a":1},{"b":2}], "y": "},{"}'), 1, None),
        ('{"traceEvents": []}', 0, None),
        (text(EVENT) + text(EVENT, EVENT), 3, "several lists of events follow one another"),
        (text(EVENT, head="[", tail="]") + text(EVENT, head="[", tail="]"), 2, "several lists of events"),
        (text(EVENT, tail='], "traceEvents": []}'), 1, "several lists of events"),
        ("[]", 0, None),
    ],
)
def test_whole_events_are_kept(tmp_path: Path, content: str, n: int, phrase: str | None) -> None:
    events, phrases = events_of(written(tmp_path, content))
    assert len(events) == n
    assert events[0]["name"] == "a" if n else True
    assert (phrases == []) if phrase is None else any(phrase in line for line in phrases), phrases


def test_invalid_utf8_costs_no_event(tmp_path: Path) -> None:
    bad = json.dumps(EVENT).encode().replace(b'"a"', b'"\xff\xfe"')
    events, phrases = events_of(written(tmp_path, b"[" + bad + b"," + json.dumps(EVENT).encode() + b"]"))
    assert [event["name"] for event in events] == ["\ufffd\ufffd", "a"]
    assert phrases == ["1 event repaired (NaN, bad characters or quotes)"]


@by_both
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"   \n ", "is empty"),
        (b"hello", "neither JSON nor a DASF profile"),
        (
            b" [2026-11-27 10:00:01] iteration 1/ 9 | lm loss: 7.1 |\n" * 9,
            "a log of text; write a row for each",
        ),
        (b"[rank0]: [W1127 10:00:01 init.cpp] a warning\n" * 9, "a log of text; write a row for each"),
        (
            b'{"global_step": 9, "log_history": [{"loss": 2.5, "step": 9}]}',
            "no durations of steps; write a row",
        ),
        (b"step,loss\n1,2\n", "a table without rows of a step log"),
        ("step,step_ms\n1,2\n".encode("utf-16"), "text in UTF-16; write it in UTF-8"),
        (b"\x7fELF\x00\x01\x02\x03" * 50, "neither JSON nor a DASF profile"),
        (b"PK\x03\x04" + bytes(60), "an archive; unpack it"),
        (b"graph [\n  directed 1\n]\n", "a GML graph; name it .gml"),
        (b"\xd4\xc3\xb2\xa1" + bytes(60), "a capture of network packets; name it .pcap"),
        (b"\n\r\r\n" + bytes(60), "a capture of network packets; name it .pcap"),
        (b"\n\x20\x08\x01\x12\x09/host:CPU" + bytes(60), "a profile in protobuf"),
        (b"job/rank0.json".ljust(257, b"\0") + b"ustar" + bytes(250), "an archive; unpack it"),
        (gzip.compress(gzip.compress(b"[]", mtime=0), mtime=0), "packed, twice or not by gzip"),
        (lzma.compress(b"[]"), "packed, twice or not by gzip"),
        (b"SQLite format 3\0" + bytes(60), "a damaged database"),
        (b'{"a": 1}', 'no list "traceEvents"'),
        (b'{"traceEvents": 3}', 'no list "traceEvents"'),
        (b'{"a": ', "cut or broken before any event"),
        (
            b'{"step": 1, "step_ms": 2, "a": "' + b"x" * (9 << 17) + b'"}\n{"step": 2}',
            "first row is longer than",
        ),
        (b"step,step_ms,a\n1,2," + b"x" * (1 << 20), "first row is longer than 1 MiB"),
    ],
)
def test_other_files_are_refused_in_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(TraceError, match=f"t.json: .*{message}"):
        read_trace(path)


def test_times_as_text_large_ids_and_members_after_the_events(tmp_path: Path) -> None:
    event = '{"ph":"X","name":"a","pid":18446744073709551615,"tid":"x","ts":"1.5","dur":"2"}'
    path = written(tmp_path, f'{{"traceEvents":[{event}], "baseTimeNanoseconds": 1000, "schemaVersion": 1}}')
    trace = read_trace(path)
    assert (trace.ts_ns.tolist(), trace.dur_ns.tolist()) == ([2500], [2000])
    assert trace.tracks[0] == (18446744073709551615, "x")


@by_both
def test_an_absolute_time_with_a_fraction_stays_exact(tmp_path: Path) -> None:
    # a float64 near 1.8e15 holds quarters of a microsecond only
    lines = [f'{{"ph":"X","name":"a","ts":1795219501232034.{n:03d},"dur":0.001}}' for n in (1, 127, 999)]
    trace = read_trace(written(tmp_path, "[" + ",".join(lines) + "]"))
    assert trace.ts_ns.tolist() == [1795219501232034001, 1795219501232034127, 1795219501232034999]
    assert trace.dur_ns.tolist() == [1, 1, 1]


@by_both
def test_an_event_without_a_time_is_counted(tmp_path: Path) -> None:
    trace = read_trace(
        written(tmp_path, text(EVENT, {"ph": "X", "name": "b", "ts": None}, EVENT | {"dur": -3}))
    )
    assert len(trace) == 2
    assert trace.dur_ns.tolist() == [5000, 0]
    assert any("without a time ignored" in line for line in trace.repairs)
    assert any("1 X event without a sound duration taken as 0 long" in line for line in trace.repairs)


def test_a_cut_gzip_stream_keeps_what_was_unpacked(tmp_path: Path) -> None:
    rng = random.Random(1)
    many = [EVENT | {"name": f"{rng.random()}"} for _ in range(5000)]
    packed = gzip.compress(text(*many).encode())
    events, phrases = events_of(written(tmp_path, packed[: len(packed) // 2], "t.json.gz"))
    assert many[: len(events)] == events
    assert len(events) > 1000
    assert "the gzip stream is cut short" in phrases


def test_gzip_is_recognised_by_content_and_may_have_members(tmp_path: Path) -> None:
    packed = gzip.compress(b"[" + json.dumps(EVENT).encode()) + gzip.compress(
        b"," + json.dumps(EVENT).encode() + b"]"
    )
    assert events_of(written(tmp_path, packed, "t.json")) == ([EVENT, EVENT], [])


scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=8)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
)
random_events = st.fixed_dictionaries(
    {"ph": st.sampled_from("XBEiM"), "name": st.text(max_size=12), "ts": st.integers(0, 2**50)},
    optional={"args": st.dictionaries(st.text(max_size=6), values, max_size=3), "cat": st.text(max_size=5)},
)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(
    st.lists(random_events, min_size=1, max_size=12),
    st.sampled_from(
        [("[", "]"), ('{"traceEvents":[', "]}"), ('{"a":[{"b":1},{"c":2}],"traceEvents": [', '],"z":1}')]
    ),
    st.sampled_from([(",", ":"), (", ", ": "), (",\n  ", " : ")]),
    st.booleans(),
    st.data(),
)
def test_a_cut_loses_at_most_the_event_that_was_cut(
    tmp_path: Path,
    events: list[Any],
    ends: tuple[str, str],
    gaps: tuple[str, str],
    ascii: bool,
    data: st.DataObject,
) -> None:
    body, bounds = ends[0].encode(), []
    for i, event in enumerate(events):
        body += (gaps[0] if i else "").encode() + json.dumps(
            event, separators=gaps, ensure_ascii=ascii
        ).encode("utf-8", "surrogatepass")
        bounds.append(len(body))
    cut = data.draw(st.integers(len(ends[0]) + 1, len(body)) | st.sampled_from(bounds))
    whole = sum(bound <= cut for bound in bounds)
    try:
        got, _ = events_of(written(tmp_path, body[:cut]))
    except TraceError:
        assert whole == 0
        return
    assert (
        got == json.loads(b"[" + body[len(ends[0].encode()) : bounds[whole - 1]] + b"]")
        if whole
        else got == []
    )


def test_whole_events_between_a_missing_and_a_surplus_bracket_are_kept(tmp_path: Path) -> None:
    parts = [json.dumps(EVENT | {"name": f"op{i}", "args": {"nested": [{"name": 1}]}}) for i in range(100)]
    parts[10] = parts[10].removesuffix("}")
    parts[90] += "}"
    events, phrases = events_of(written(tmp_path, text(*parts)))
    assert [event["name"] for event in events] == [f"op{i}" for i in range(100) if i != 10]
    assert phrases == ["2 damaged events lost"]  # the surplus bracket counts as one


@by_both
@pytest.mark.parametrize(
    "spoil", [lambda t: t[:-1], lambda t: t[:30], lambda t: t.replace('"op50"', '"op50')]
)
def test_a_damaged_line_costs_one_event(tmp_path: Path, spoil: Callable[[str], str]) -> None:
    lines = [json.dumps(EVENT | {"name": f"op{i}", "args": {"list": [{"x": i}]}}) for i in range(100)]
    lines[50] = spoil(lines[50])
    trace = read_trace(written(tmp_path, "\n".join(lines) + "\n"))
    assert (len(trace), [line for line in trace.repairs if "lost" in line]) == (99, ["1 damaged event lost"])


@pytest.mark.slow
@by_both
@pytest.mark.parametrize(
    "item", ["{}", '{"ph":"X","name":"a"b"}', '"x"', '{"ph":"X","ts":NaN}', '{"ph":"X",']
)
def test_a_file_of_damage_only_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, item: str) -> None:
    monkeypatch.setattr("analyzer.reading.formats.reader._MOST_DAMAGED", 250)
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(f"[{json.dumps(EVENT)},{f'{item},' * 300}]".encode()))
    with pytest.raises(TraceError, match="things in it are damaged or are not events"):
        read_trace(path)


def test_a_reader_of_a_damaged_header_still_gives_the_events(tmp_path: Path) -> None:
    reader = EventReader(written(tmp_path, '{"x": tru, "traceEvents": [' + json.dumps(EVENT) + "]}"))
    assert sum(len(piece) for piece in reader) == 1
    assert reader.damage.phrases() == ["the members before the events are unreadable"]


@by_both
@pytest.mark.parametrize("base", [10**23, "soon", None, [1]])
def test_an_absurd_base_of_time_is_ignored(tmp_path: Path, base: object) -> None:
    path = written(tmp_path, json.dumps({"baseTimeNanoseconds": base, "traceEvents": [EVENT]}))
    assert read_trace(path).ts_ns.tolist() == [10_000]


@by_both
def test_absurd_durations_are_counted_and_no_length(tmp_path: Path) -> None:
    begin, end = EVENT | {"ph": "B", "ts": 3 * 10**15}, EVENT | {"ph": "E", "ts": -3 * 10**15}
    mxnet = {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "cpu/0"}}
    trace = read_trace(written(tmp_path, text(mxnet, begin, end, EVENT | {"dur": 10**17})))
    assert trace.dur_ns.tolist() == [0, 0]
    assert len(trace.repairs) == 2


def test_an_event_nested_too_deeply_is_lost_alone(tmp_path: Path) -> None:
    deep = '{"ph": "X", "args": {"a": ' + "[" * 100_000 + "]" * 100_000 + "}}"
    events, repaired = events_of(written(tmp_path, text(EVENT, deep, EVENT)))
    assert (events, repaired) == ([EVENT, EVENT], ["1 damaged event lost"])


@pytest.mark.parametrize("scan", ["0", "1"])
def test_a_slice_takes_missing_args_from_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scan: str
) -> None:
    monkeypatch.setenv("ANALYZE_NATIVE", scan)
    events = [
        {"ph": "B", "name": "a", "pid": 1, "tid": 1, "ts": 0, "args": {"k": 1}},
        {"ph": "B", "name": "b", "pid": 1, "tid": 1, "ts": 1},
        {"ph": "X", "name": "x", "pid": 1, "tid": 2, "ts": 1, "dur": 1, "args": {"k": 5}},
        {"ph": "E", "pid": 1, "tid": 1, "ts": 2, "args": {"k": 2}},
        {"ph": "E", "pid": 1, "tid": 1, "ts": 3, "args": {"k": 3, "l": 4}},  # the begin says k is 1
        {"ph": "E", "pid": 1, "tid": 3, "ts": 4, "args": {"k": 9}},  # of no begin
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(events))
    trace = read_trace(path, args=("k", "l"))
    assert [trace.names[i] for i in trace.name_id.tolist()] == ["a", "b", "x"]
    assert trace.args["k"].as_dict() == {0: 1, 1: 2, 2: 5}
    assert trace.args["l"].as_dict() == {0: 4}


def test_events_of_unknown_phases_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text('[{"ph":"X","ts":1,"dur":1},{"ph":"]X","ts":2,"dur":1},{"ph":"","ts":3}]')
    trace = read_trace(path)
    assert (len(trace), *trace.repairs) == (1, "2 events of phases that the format does not have ignored")
