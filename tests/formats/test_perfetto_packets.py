"""Perfetto's packets: read as the chrome trace that says the same, written so that they give it back."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path
from typing import Any

import pytest

from conftest import SHARED, THOROUGH, few, run_cli
from errors import TraceError
from formats.columns import Trace
from formats.perfetto.json_to_packets import write_packets
from formats.perfetto.packets_to_json import recognises
from formats.perfetto.trace_packets import messages
from formats.stream import max_unpacked
from make import span, step, write
from traces.files import read_trace

#: Recordings of PyTorch of at most 5 MB, one or two of each kind: CUDA, ROCm, host only, old and new.
_RECORDED = (
    "gpu-hta-critical-simple_add/trace/trace", "gpu-hta-simple-add-nosteps/benchmark_simple_add_trace",
    "edge-cpu-only-rank0/rank_non_gpu", "gpu-hta-amd-mi250/mi250_minitoy_train_ROCm6_2_kineto",
    "gpu-hta-triton/triton_example", "gpu-tracelens-sglang-decode-mi300/sglang_decode",
    "gpu-tracelens-bert-h100-vs-mi300/h100/gaunernst_bert-small-uncased__1016001",
)  # fmt: skip


def annotation(**members: Any) -> bytes:
    packed: bytes = messages()["Annotation"](**members).SerializeToString()
    return packed


def by_hand() -> Any:
    """Return a trace of two threads as PyTorch writes one: interned names, arguments, an arrow."""
    trace = messages()["Trace"]()
    add = trace.packet.add

    def event(ts: int, kind: int, track: int, **members: Any) -> Any:
        packet = add(timestamp=ts, trusted_packet_sequence_id=1)
        packet.track_event.type, packet.track_event.track_uuid = kind, track
        for key, value in members.items():
            setattr(packet.track_event, key, value)
        return packet

    add().track_descriptor.uuid = 1
    trace.packet[-1].track_descriptor.process.pid = 70
    trace.packet[-1].track_descriptor.process.process_name = b"python"
    for uuid, tid in ((2, 31), (3, 32)):
        add().track_descriptor.uuid = uuid
        thread = trace.packet[-1].track_descriptor.thread
        thread.pid, thread.tid = 70, tid
    first = event(1_000_001, 1, 2, name_iid=4)
    first.sequence_flags = 1
    first.interned_data.event_names.add(iid=4, name=b"aten::mm")
    first.interned_data.event_categories.add(iid=5, name=b"cpu_op")
    first.interned_data.debug_annotation_names.add(iid=6, name=b"External id")
    first.track_event.category_iids.append(5)
    first.track_event.flow_ids.append(9)
    first.track_event.debug_annotations.append(annotation(name_iid=6, int_value=17))
    event(1_002_000, 1, 2, name=b"inner")
    event(1_003_000, 2, 2)
    event(1_004_001, 2, 2)
    last = event(1_005_000, 1, 3, name_iid=4)
    last.track_event.category_iids.append(5)
    last.track_event.terminating_flow_ids.append(9)
    event(1_006_000, 2, 3)
    return trace


def read(path: Path, data: bytes) -> Trace:
    path.write_bytes(data)
    return read_trace(path, args=("*",), points=True)


def rows(trace: Trace) -> list[tuple[Any, ...]]:
    tracks = [trace.tracks[track] for track in trace.track_id.tolist()]
    names = [trace.names[name] for name in trace.name_id.tolist()]
    return list(zip(names, tracks, trace.ts_ns.tolist(), trace.dur_ns.tolist(), strict=True))


def test_begins_and_ends_are_slices_of_their_threads(tmp_path: Path) -> None:
    data = by_hand().SerializeToString()
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


def test_slices_that_overlap_lie_on_tracks_below_their_thread(tmp_path: Path) -> None:
    events = [span("a", 0, 10), span("b", 5, 10), span("c", 6, 2)]
    write(tmp_path / "t.json", [{**event, "pid": 1, "tid": "x"} for event in events])
    packets = io.BytesIO()
    write_packets(tmp_path / "t.json", packets)
    told = messages()["Trace"].FromString(packets.getvalue()).packet
    begun = [one.track_event.track_uuid for one in told if one.track_event.type == 1]
    assert len(set(begun)) == 2
    assert begun[0] != begun[1]
    trace = read(tmp_path / "t.pftrace", packets.getvalue())
    assert rows(trace) == [
        ("a", (1, "x"), 0, 10_000),
        ("b", (1, "x"), 5_000, 10_000),
        ("c", (1, "x"), 6_000, 2_000),
    ]


@pytest.mark.parametrize("value", ["text", 7, 1.5, True, None, [1, {"a": None}], -3, (1 << 64) - 1, "\ud800"])
def test_arguments_come_back_as_they_were(tmp_path: Path, value: object) -> None:
    text = json.dumps({"traceEvents": [{**span("a", 0, 1), "pid": 0, "tid": 1, "args": {"k": value}}]})
    (tmp_path / "t.json").write_text(text)
    packets = io.BytesIO()
    write_packets(tmp_path / "t.json", packets)
    first, second = read_trace(tmp_path / "t.json", args=("k",)), read(tmp_path / "p", packets.getvalue())
    assert [list(one.args["k"].values) if one.args else [] for one in (first, second)] == [
        [value if value != "\ud800" else "\ufffd"] if value is not None else []
    ] * 2


@pytest.mark.parametrize(
    ("end", "note"),
    [
        (b"\n\x20\x42\x01", "cut off inside a packet"),
        (b"\n" + b"\xff" * 8 + b"\x7f" + b"x" * 20, "damaged after"),  # a length beyond all bounds
        (b"\x12\x01x", "damaged after"),  # not a packet
        (b"\n\x02\x5a\x7f", "1 damaged packet left out"),  # a field longer than its packet
        (b"\n\x06" + b"\x5a\x04\x22\x02\x5a\x00", ""),  # an annotation with an unknown field
        (b"\n\x04\x58\x05\x40\x01", ""),  # a number where a message should be
    ],
)
def test_whole_packets_of_a_damaged_file_are_kept(tmp_path: Path, end: bytes, note: str) -> None:
    trace = read(tmp_path / "t.pftrace", by_hand().SerializeToString() + end)
    assert len(trace) == 3
    assert note in "; ".join(trace.repairs)
    assert bool(note) == bool(trace.repairs)


@pytest.mark.parametrize(("kind", "field"), [("ftrace_events", 1), ("process_tree", 2), ("perf_sample", 66)])
def test_packets_of_other_kinds_are_reported(tmp_path: Path, kind: str, field: int) -> None:
    key = field << 3 | 2  # a message
    packed = bytes([key]) if key < 128 else bytes([key & 0x7F | 0x80, key >> 7])
    other = b"\n" + bytes([len(packed) + 2]) + packed + b"\x01\x00"
    trace = read(tmp_path / "t.pftrace", by_hand().SerializeToString() + 3 * other)
    assert (len(trace), list(trace.repairs)) == (3, [f"3 packets of {kind} not read"])
    (tmp_path / "t.pftrace").write_bytes(3 * other)
    code, out, errors = run_cli("statistic", tmp_path / "t.pftrace")
    assert (code, out, errors.count("\n")) == (1, "", 1)
    assert (
        f"the trace holds no operation (no X event, no B with its E); 3 packets of {kind} not read" in errors
    )


def test_a_number_that_stands_for_another_text_from_now_on(tmp_path: Path) -> None:
    trace = by_hand()
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


def test_a_long_name_named_again_and_again_is_bounded(tmp_path: Path) -> None:
    trace = by_hand()
    trace.packet.add(trusted_packet_sequence_id=1).interned_data.event_names.add(iid=8, name=b"x" * 1_000_000)
    again = messages()["Trace"]()
    told = again.packet.add(trusted_packet_sequence_id=1).track_event
    told.type, told.name_iid = 3, 8
    limit = max_unpacked.set(8 << 20)
    with pytest.raises(TraceError, match="unpacks to more than 8 MB"):
        read(tmp_path / "t.pftrace", trace.SerializeToString() + 10 * again.SerializeToString())
    max_unpacked.reset(limit)


def test_an_event_with_damaged_arguments_is_left_out(tmp_path: Path) -> None:
    trace = by_hand()
    trace.packet[3].track_event.debug_annotations[0] = b"\x0a\xff"  # a text that is longer than the rest
    found = read(tmp_path / "t.pftrace", trace.SerializeToString())
    assert "1 event with damaged arguments left out" in found.repairs


def test_damage_is_a_note_or_a_line(tmp_path: Path) -> None:
    data, source = by_hand().SerializeToString(), random.Random(5)
    for _ in range(2_000 if THOROUGH else 20):
        damaged = bytearray(data)
        for _ in range(source.choice((1, 2, 10))):
            damaged[source.randrange(len(damaged))] = source.randrange(256)
        try:
            read(tmp_path / "t.pftrace", bytes(damaged[: source.choice((None, len(data) // 2))]))
        except TraceError as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize("text", [b"\n[{}]", b'\n{"traceEvents":[]}', b"\nstep,rank\n1,2\n", b"", b"\n"])
def test_texts_are_not_packets(text: bytes) -> None:
    assert not recognises(text)


def test_options_write_packets_and_replace_their_own(tmp_path: Path) -> None:
    job = tmp_path / "job"
    for rank in (0, 1):
        events = [step(1, 0, 100), span("aten::mm", 10, 50, "cpu_op")]
        write(job / f"rank{rank}.json", [{**event, "pid": 7, "tid": 8} for event in events],
              schemaVersion=1, distributedInfo={"rank": rank, "world_size": 2})  # fmt: skip
    for option in ("combine", "combine", "critical"):
        output = tmp_path / f"{option}.pftrace"
        code, _, err = run_cli("--option", option, "--path", job, "--output", output)
        assert code == 0, err
        trace = read_trace(output)
        assert [trace.names[name] for name in trace.name_id.tolist()].count("aten::mm") >= 2
        assert trace.header["writtenBy"] == "analyze.py"


@pytest.mark.slow
@pytest.mark.parametrize("name", few(2, _RECORDED))
def test_a_recording_as_packets_gives_the_same_answers(tmp_path: Path, name: str) -> None:
    source = SHARED / "kineto" / f"{name}.json.gz"
    if not source.exists():
        pytest.skip("the recording is not here")
    copy = tmp_path / "as_json" / "rank0.json.gz"
    packets = tmp_path / "as_packets" / "rank0.pftrace"
    for path in (copy, packets):
        path.parent.mkdir()
    copy.write_bytes(source.read_bytes())
    with packets.open("wb") as file:
        write_packets(source, file)
    for options in (["statistic"], ["statistic", "--sub_option", "breakdown"], ["critical"], ["diagnose"]):
        told = [run_cli("--option", *options, "--path", path, "--format", "json") for path in (copy, packets)]
        of_json, of_packets = (
            (code, *(text.replace(str(path), "PATH").replace(path.name, "NAME") for text in texts))
            for path, (code, *texts) in zip((copy, packets), told, strict=True)
        )
        assert of_packets == of_json
