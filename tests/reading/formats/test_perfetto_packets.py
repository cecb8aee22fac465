"""Perfetto's packets: read as the chrome trace that says the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from packets import annotation, messages, two_threads

from analyzer.base.errors import TraceError
from analyzer.reading.formats.columns import Trace
from analyzer.reading.formats.perfetto.track_events import recognises
from analyzer.reading.formats.reader import EventReader
from analyzer.reading.traces.readers import read_trace
from conftest import run_cli


def read(path: Path, data: bytes) -> Trace:
    path.write_bytes(data)
    return read_trace(path, args=("*",), points=True)


def rows(trace: Trace) -> list[tuple[Any, ...]]:
    tracks = [trace.tracks[track] for track in trace.track_id.tolist()]
    names = [trace.names[name] for name in trace.name_id.tolist()]
    return list(zip(names, tracks, trace.ts_ns.tolist(), trace.dur_ns.tolist(), strict=True))


def test_begins_and_ends_are_slices_of_their_threads(tmp_path: Path) -> None:
    data = two_threads().SerializeToString()
    assert recognises(data)
    trace = read(tmp_path / "t.pftrace", data)
    assert sorted(rows(trace), key=lambda row: row[2]) == [
        ("aten::mm", (70, 31), 1_000_001, 4_000),
        ("inner", (70, 31), 1_002_000, 1_000),
        ("aten::mm", (70, 32), 1_005_000, 1_000),
    ]
    assert list(trace.args["External id"].values) == [17]
    assert (list(trace.points.phase), list(trace.points.ids)) == (["s", "f"], ["9", "9"])
    assert trace.metadata == [{"name": "process_name", "pid": 70, "tid": 0, "args": {"name": "python"}}]
    assert trace.repairs == ()


def test_a_track_below_a_thread_is_that_threads(tmp_path: Path) -> None:
    """A writer puts slices that overlap on tracks below their thread, which have its name."""
    trace = two_threads()
    trace.packet[1].track_descriptor.thread.thread_name = b"main"
    for uuid, name in ((4, b"main"), (5, b"stream 7")):
        trace.packet.add().track_descriptor.uuid = uuid
        trace.packet[-1].track_descriptor.parent_uuid = 2
        trace.packet[-1].track_descriptor.name = name
        for ts, kind in ((1_000_500, 1), (1_009_000, 2)):
            event = trace.packet.add(timestamp=ts, trusted_packet_sequence_id=1).track_event
            event.type, event.track_uuid, event.name = kind, uuid, b"below"
    shown = rows(read(tmp_path / "t.pftrace", trace.SerializeToString()))
    assert [row[1] for row in shown if row[0] == "below"] == [(70, 31), (70, "stream 7")]


@pytest.mark.parametrize("value", [b"text", 7, 1.5, True, -3, (1 << 64) - 1])
def test_arguments_have_their_types(tmp_path: Path, value: object) -> None:
    kinds = {bytes: "string_value", float: "double_value", bool: "bool_value"}
    kind = kinds.get(type(value), "uint_value" if value == (1 << 64) - 1 else "int_value")
    trace = two_threads()
    trace.packet[3].track_event.debug_annotations.append(annotation(name=b"k", **{kind: value}))
    expected = value.decode() if isinstance(value, bytes) else value
    assert list(read(tmp_path / "t", trace.SerializeToString()).args["k"].values) == [expected]


@pytest.mark.parametrize(
    ("end", "note"),
    [
        (b"\n\x20\x42\x01", "cut off inside a packet"),
        (b"\n" + b"\xff" * 8 + b"\x7f" + b"x" * 20, "damaged after"),  # a length beyond all bounds
        (b"\x12\x01x", "damaged after"),  # not a packet
        (b"\n\x02\x5a\x7f", "1 damaged packet left out"),  # a field longer than its packet
        (b"\n\x06" + b"\x5a\x04\x22\x02\x5a\x00", ""),  # an annotation with an unknown field
        (b"\n\x04\x58\x05\x40\x01", ""),  # a number where a message should be
        (b"\n\xa0\x9c\x01" + b"\x40\x01" * 10_000, "1 damaged packet left out"),  # ten thousand fields
    ],
)
def test_whole_packets_of_a_damaged_file_are_kept(tmp_path: Path, end: bytes, note: str) -> None:
    trace = read(tmp_path / "t.pftrace", two_threads().SerializeToString() + end)
    assert len(trace) == 3
    assert note in "; ".join(trace.repairs)
    assert bool(note) == bool(trace.repairs)


@pytest.mark.parametrize(("kind", "field"), [("ftrace_events", 1), ("process_tree", 2), ("perf_sample", 66)])
def test_packets_of_other_kinds_are_reported(tmp_path: Path, kind: str, field: int) -> None:
    key = field << 3 | 2  # a message
    packed = bytes([key]) if key < 128 else bytes([key & 0x7F | 0x80, key >> 7])
    other = b"\n" + bytes([len(packed) + 2]) + packed + b"\x01\x00"
    trace = read(tmp_path / "t.pftrace", two_threads().SerializeToString() + 3 * other)
    assert (len(trace), list(trace.repairs)) == (3, [f"3 packets of {kind} not read"])
    (tmp_path / "t.pftrace").write_bytes(3 * other)
    code, out, errors = run_cli("statistic", tmp_path / "t.pftrace")
    assert (code, out, errors.count("\n")) == (1, "", 1)
    assert (
        f"the trace holds no operation (no X event, no B with its E); 3 packets of {kind} not read" in errors
    )


def test_an_interned_text_may_change(tmp_path: Path) -> None:
    trace = two_threads()
    for text in (b"first", b"second"):
        packet = trace.packet.add(timestamp=2_000_000, trusted_packet_sequence_id=1)
        packet.interned_data.debug_annotation_names.add(iid=6, name=text)
        packet.track_event.type, packet.track_event.track_uuid = 1, 2
        packet.track_event.debug_annotations.append(annotation(name_iid=6, int_value=17))
        ended = trace.packet.add(timestamp=2_001_000, trusted_packet_sequence_id=1).track_event
        ended.type, ended.track_uuid = 2, 2
    found = read(tmp_path / "t.pftrace", trace.SerializeToString())
    assert {key: list(column.values) for key, column in found.args.items()} == {
        "External id": [17], "first": [17], "second": [17],
    }  # fmt: skip


def test_repetitions_of_a_long_name_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As columns they take no memory; as JSON, for `combine`, they are refused."""
    trace = two_threads()
    trace.packet.add(trusted_packet_sequence_id=1).interned_data.event_names.add(iid=8, name=b"x" * 1_000_000)
    again = messages()["Trace"]()
    told = again.packet.add(trusted_packet_sequence_id=1).track_event
    told.type, told.name_iid = 3, 8
    monkeypatch.setattr("analyzer.reading.formats.stream._ALWAYS_UNPACKED", 8 << 20)
    monkeypatch.setattr("analyzer.reading.formats.stream._USUAL_TIMES", 0)
    data = trace.SerializeToString() + 10 * again.SerializeToString()
    assert read(tmp_path / "t.pftrace", data).phases["i"] == 10
    with pytest.raises(TraceError, match="unpacks to more than 8 MB"):
        list(EventReader(tmp_path / "t.pftrace"))


def test_defaults_categories_and_nested_arguments_are_kept(tmp_path: Path) -> None:
    trace = two_threads()
    for ts, kind in ((2_000_000, 1), (2_003_000, 2)):
        packet = trace.packet.add(timestamp=ts, trusted_packet_sequence_id=2)
        packet.trace_packet_defaults.track_event_defaults.track_uuid = 3
        packet.track_event.type = kind
        packet.track_event.name = b"named here"
        packet.track_event.categories.extend([b"a", b"b"])
        nested = messages()["Annotation"](name=b"k")
        nested.dict_entries.add(name=b"x", int_value=ts)
        for member in ({"double_value": 1.5}, {"string_value": b"t"}):
            nested.dict_entries.add(name=b"l").array_values.add(**member)
        packet.track_event.debug_annotations.append(nested.SerializeToString())
    known = read(tmp_path / "t.pftrace", trace.SerializeToString())
    assert ("named here", (70, 32), 2_000_000, 3_000) in rows(known)
    assert "a,b" in known.cats
    assert list(known.args["k"].values) == [{"x": 2_003_000, "l": ["t"]}]  # of the end, and its last list


def test_a_cleared_sequence_forgets_its_names(tmp_path: Path) -> None:
    trace = two_threads()
    packet = trace.packet.add(timestamp=2_000_000, trusted_packet_sequence_id=1, sequence_flags=1)
    packet.track_event.type, packet.track_event.track_uuid, packet.track_event.name_iid = 3, 2, 4
    known = read(tmp_path / "t.pftrace", trace.SerializeToString())
    assert known.names[known.points.name_id[-1]] == ""


def test_an_event_with_damaged_arguments_is_left_out(tmp_path: Path) -> None:
    trace = two_threads()
    trace.packet[3].track_event.debug_annotations[0] = b"\x0a\xff"  # a text that is longer than the rest
    found = read(tmp_path / "t.pftrace", trace.SerializeToString())
    assert "1 event with damaged arguments left out" in found.repairs


@pytest.mark.parametrize("text", [b"\n[{}]", b'\n{"traceEvents":[]}', b"\nstep,rank\n1,2\n", b"", b"\n"])
def test_texts_are_not_packets(text: bytes) -> None:
    assert not recognises(text)
