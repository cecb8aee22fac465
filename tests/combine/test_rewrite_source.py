"""A source rewritten by the functions in C is the same, byte by byte, as in Python."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from combine import external_sort as runs
from combine import sources
from combine.distinct_ids import SourcePlace
from combine.event_text import text_of
from combine.external_sort import cut, merge
from combine.rewrite_source import rewrite
from conftest import THOROUGH, examples
from dialects.system import SecondAxis
from errors import TraceError
from formats import native, stream
from formats.native import rewriter, scanner
from formats.native.rewriter import gathered, time_order, written

pytestmark = pytest.mark.slow


PLACES = {
    "chrome": SourcePlace(Path(), 0, "chrome", "", 1, 1000),
    "fourth of kineto": SourcePlace(Path(), 3, "kineto", "", 3001, 1000),
    "a source whose ids are no numbers": SourcePlace(Path(), 9000, "chrome", "", 1, 1000),
    "byteps": SourcePlace(Path(), 1, "byteps", "wk0.rank1.", 1001, 1000),
    "composer": SourcePlace(
        Path(), 2, "composer", "", 1, 1000, only_pid=2, axis=SecondAxis(3000, 10**9, "moved")
    ),
    "horovod, filtered": SourcePlace(Path(), 0, "horovod", "", 1, 1000, names=("a",)),
    "byteps, filtered": SourcePlace(Path(), 0, "byteps", "rank0.", 1, 1000, names=("Comm.x",)),
    "few heads": SourcePlace(Path(), 1, "kineto", "", 1, 1000, table_bytes=300),
}


def seen(path: Path, place: SourcePlace, spill: Path, *, scan: bool) -> dict[str, Any]:
    """What becomes of a file: all that is told of it, and the text of its events in order of time."""
    try:
        found = rewrite(replace(place, path=path, scan=scan), spill)
    except TraceError as error:
        return {"error": str(error)}
    told = {name: getattr(found, name) for name in found.__struct_fields__}
    parts = [(run, lambda ts: np.full(len(ts), 7, np.int64), 0) for run in found.runs]
    library = native.library() if scan else None
    told["text"] = b"".join(
        bytes(text)
        for block in merge(parts, cut(parts, 1), library)
        for text in text_of(block, found.heads, library)
    )
    told["about"] = found.about.header, found.about.metadata
    told["sync_points"] = {
        key: (point.begin_ns.tolist(), point.end_ns.tolist()) for key, point in found.sync_points.items()
    }
    for internal in ("runs", "heads", "repairs"):  # what is repaired is told by pieces
        del told[internal]
    return told


# -- events of all kinds --------------------------------------------------------------------------

_NAMES = [
    "a",
    "Comm.x.PUSH",
    "Comm.x",
    "gloo:all_reduce",
    "MulBackward0",
    "longer than thirty-two bytes, it is",
]
_USUAL = {
    "name": st.sampled_from([json.dumps(name) for name in _NAMES]),
    "cat": st.sampled_from(['"c"', '"kernel"', '"user_annotation"']),
    "pid": st.sampled_from(["5", '"Comm.x"', "7"]),
    "tid": st.sampled_from(["1", '"total"', '"65536"', '"PyTorch Profiler (0)"']),
    "ts": st.sampled_from(
        ["1", "2.5", "17", "1234.567", "1709254321000123.457", "1795219501232034", "-3.25"]
    ),
    "dur": st.sampled_from(["1", "0", "2.500", "12.345", "100"]),
    "args": st.sampled_from(
        [
            '{"name": "a"}',
            '{\n  "k": [1, 2.5]\n}',
            "{}",
            '{"e":"\\n\u00e4"}',
            '{"In msg nelems": 4, "x": 1e3}',
        ]
    ),
    "id": st.sampled_from(["7", "0", "1099511627775"]),
    "s": st.just('"t"'),
    "bp": st.just('"e"'),
}
_ODD = st.sampled_from(
    [
        *("null", "true", "nul", "-1", "1.5", "1.0005", "1e3", "1e-7", "-0.0", "1e400", "9" * 20, "9" * 700),
        *("1099511627776", "8796093022208.5", "1709254321000123.45678", "1000000000000001"),
        *(
            '"0x1f"',
            '"12"',
            '""',
            '"a',
            '"\\u00e9"',
            '"\u00e9"',
            '"\\ud800"',
            "{}",
            '{"a":[{}]}',
            "[1]",
            "[1,]",
        ),
    ]
)
_RARE = st.sampled_from(["id2", "bind_id", "sf", "zz", "ts", "args"])
_METADATA = st.sampled_from(
    ["process_name", "thread_name", "process_sort_index", "thread_sort_index", "other"]
)


@st.composite
def _event(draw: st.DrawFn) -> str:
    phase = draw(st.sampled_from(["X"] * 8 + list("BEisfbCMM")))
    members = [("ph", json.dumps(phase))]
    wanted = {
        "X": "name cat pid tid ts dur args",
        "s": "name cat pid tid ts id bp",
        "C": "name pid tid ts id",
    }
    for key in wanted.get(phase, "name cat pid tid ts s").split():
        kind = draw(st.integers(0, 29))
        if kind:
            members.append((key, draw(_ODD if kind == 1 else _USUAL[key])))
    if phase == "M":
        value = draw(st.sampled_from(['{"name":"a"}', '{"name":"b"}', '{"sort_index":3}', "{}"]))
        members = [*((k, v) for k, v in members if k != "name"), ("args", value)]
        members.append(("name", json.dumps(draw(_METADATA))))
    if draw(st.integers(0, 9)) == 0:
        members.append((draw(_RARE), draw(_ODD)))
    space = draw(st.sampled_from(["", " ", "\n    "]))
    return "{" + space + f",{space}".join(f'"{key}":{space}{value}' for key, value in members) + space + "}"


@st.composite
def _file(draw: st.DrawFn) -> bytes:
    some = draw(st.lists(_event(), min_size=1, max_size=6))
    items = draw(st.lists(st.sampled_from(some), min_size=1, max_size=30))
    tail = draw(st.sampled_from(['],"distributedInfo":{"rank":3}}', "]}", "]}", ""]))
    content = bytearray(('{"traceEvents":[' + ",\n".join(items) + tail).encode("utf-8", "surrogatepass"))
    for _ in range(draw(st.sampled_from([0, 0, 0, 0, 1, 3]))):
        content[draw(st.integers(0, len(content) - 1))] = draw(st.integers(0, 255))
    return bytes(content)


@st.composite
def _rounds(draw: st.DrawFn) -> bytes:
    """A file in which the same slices come again and again at other times, damaged or cut somewhere."""
    slices = [
        f'{{"ph":"X","name":"{name}",{space}"pid":"Comm.x","tid":"{tid}",{time[0]}:%s,{space}{time[1]}:%s,"args":{args}}}'
        for name, tid, space, time, args in draw(
            st.lists(
                st.tuples(
                    st.sampled_from(_NAMES),
                    st.sampled_from(["total", "65536", "9"]),
                    st.sampled_from(["", "\n    "]),
                    st.sampled_from([('"ts"', '"dur"'), ('"dur"', '"ts"')]),
                    st.sampled_from(['{"name":"a"}', '{"name": "b"}', "null"]),
                ),
                min_size=1,
                max_size=5,
            )
        )
    ]
    time = st.one_of(st.integers(0, 10**6).map(str), _USUAL["ts"], _USUAL["dur"], _ODD)
    n = draw(st.integers(len(slices), 6 * len(slices)))
    events = [slices[i % len(slices)] % (draw(time), draw(time)) for i in range(n)]
    content = bytearray(f"[{','.join(events)}]".encode("utf-8", "surrogatepass"))
    for _ in range(draw(st.sampled_from([0, 0, 1, 3]))):
        content[draw(st.integers(0, len(content) - 1))] = draw(st.integers(0, 255))
    return bytes(content[: draw(st.one_of(st.just(len(content)), st.integers(1, len(content))))])


@pytest.fixture(params=["wide", "plain"])
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With AVX2 where the processor has it, and without."""
    monkeypatch.setattr(scanner, "WITHOUT_AVX2", request.param == "plain")
    return str(request.param)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
    max_examples=examples(100),
)
@given(
    st.one_of(_file(), _rounds()),
    st.sampled_from(sorted(PLACES)),
    st.sampled_from([100, 700, 1 << 20]),
    st.sampled_from([100, 700, 1 << 20]),
    st.sampled_from([500, 24 << 20]),
)
def test_the_same_bytes_both_ways(
    library: ctypes.CDLL,
    width: str,
    tmp_path: Path,
    content: bytes,
    kind: str,
    n: int,
    m: int,
    run_bytes: int,
) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "RUN_BYTES", run_bytes)
        for piece, scan in ((n, False), (m, True)):
            patch.setattr(stream, "PIECE", piece)
            found.append(seen(path, PLACES[kind], tmp_path / "spill", scan=scan))
    assert found[1] == found[0]


@pytest.mark.thorough
@pytest.mark.parametrize("end", ["]}", "", ',{"ph":"X","na'])
def test_a_small_file_cut_or_damaged_at_any_byte(library: ctypes.CDLL, tmp_path: Path, end: str) -> None:
    slices = "".join(
        f'{{"ph":"X","name":"{name}","pid":"p","ts":{17 * i},"dur":{i},"args":{{"name":"p"}}}},'
        for i in range(3)
        for name in ("Comm.x.PUSH", "Comm.x")
    )
    whole = ("[" + slices[:-1] + end).encode()
    path = tmp_path / "a.json"
    for at in range(1, len(whole), 1 if THOROUGH else 11):
        for content in (whole[:at], whole[:at] + b"\x22" + whole[at + 1 :], whole[:at] + whole[at + 1 :]):
            path.write_bytes(content)
            inside, beside = (
                seen(path, PLACES["byteps"], tmp_path / "runs", scan=scan) for scan in (True, False)
            )
            assert inside == beside, content


@pytest.mark.parametrize("piece", [300, 1 << 20])
def test_what_has_no_phase_is_counted_both_ways(
    library: ctypes.CDLL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    event = '{"ph":"X","name":"a","pid":"p","ts":1,"dur":0,"args":{"name":"p"}}'
    events = [event] * 60
    events[50] = event.replace('"ph":"X",', "")
    (tmp_path / "a.json").write_text(f"[{','.join(events)}]")
    monkeypatch.setattr(stream, "PIECE", piece)
    for scan in (True, False):
        place = replace(PLACES["byteps"], path=tmp_path / "a.json", scan=scan)
        assert rewrite(place, tmp_path / "runs").repairs == ["1 list item ignored: not an event"]


@given(
    st.lists(
        st.one_of(st.integers(-5, 5), st.integers(0, 10**6), st.integers(-(2**63), 2**63 - 1)), max_size=80
    ),
    st.sampled_from([1, 1000]),
)
def test_times_are_ordered_as_numpy_orders_them(times: list[int], step: int) -> None:
    library = native.library()
    ts = np.array(times, np.int64) // step
    order, may_tie = time_order(ts, library)
    assert order.tolist() == np.argsort(ts, kind="stable").tolist()
    assert may_tie or len(set(ts.tolist())) == len(ts)


@pytest.mark.parametrize("far", [0, 10**18])
def test_times_that_lie_together_at_one_end_are_ordered_too(library: ctypes.CDLL, far: int) -> None:
    ts = np.append(np.arange(5000)[::-1], far)  # all but one in one stretch, if `far` is
    assert time_order(ts, library)[0].tolist() == np.argsort(ts, kind="stable").tolist()


def test_texts_are_the_same_in_parts_of_any_size(
    library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    tails = (b"abcdef" * 100, np.array([0, 3, 5]), np.array([3, 500, 0], np.int32))
    heads = (b",xyz", np.array([0, 1]), np.array([1, 3], np.int32))
    times, head = (np.array([1500, -2, 10**18 + 1]), np.array([-1, 7, 5])), np.array([0, 1, 1], np.int32)
    texts = []
    for size in (1, 600, 1 << 20):
        monkeypatch.setattr(rewriter, "_WRITTEN", size)
        parts = map(bytes, written(library, times, head, tails, heads, np.array([False, True])))
        texts.append(b"".join(parts))
    assert texts[0] == texts[1] == texts[2]
    assert texts[0].startswith(b'},\n{"ts":1.5,abc},\n{"ts":-0.002,"dur":0.007xyzdef')


def test_parts_that_lie_outside_of_their_text_are_refused(library: ctypes.CDLL) -> None:
    at, lengths = np.array([0, 3]), np.array([3, 3], np.int32)
    assert bytes(gathered(library, b"abcdef", at[::-1], lengths)) == b"defabc"
    with pytest.raises(ValueError, match="outside"):
        gathered(library, b"abcde", at, lengths)
    tails = (b"abcdef", at, lengths)
    heads = (b",", np.array([0]), np.array([1], np.int32))
    ts, dur, is_slice = np.array([1500, -2]), np.array([-1, -1]), np.array([False])
    head = np.zeros(2, np.int32)
    assert b"".join(written(library, (ts, dur), head, tails, heads, is_slice)) == (
        b'},\n{"ts":1.5,abc},\n{"ts":-0.002,def'
    )
    with pytest.raises(ValueError, match="head"):
        list(written(library, (ts, dur), head + np.int32(1), tails, heads, is_slice))


@pytest.mark.parametrize("piece", [1, 2, 7, 12, 13, 1 << 20])
def test_a_text_is_found_wherever_a_file_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    monkeypatch.setattr(stream, "PIECE", piece)
    path = tmp_path / "a.json"
    for content, holds in (
        ('[{"name":"ProfilerStep#1"}]', True),
        ('[{"name":"\\u0050rofilerStep#1"}]', True),
        ('[{"name":"ProfilerStep"},{"name":"Step#1"}]', False),
    ):
        path.write_text(content)
        assert sources._may_hold(path, b"ProfilerStep#") == holds
