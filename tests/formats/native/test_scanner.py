"""The scanner in C reads what the decoder in Python reads, whatever the bytes."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import examples
from errors import TraceError
from formats import stream
from formats.chrome import assemble, read_part
from formats.columns import Trace
from formats.native import scanner
from formats.reader import CLOSED, MORE, ODD

WANTED = ("correlation", "stream", "input*")
X = '{"ph":"X","name":"a","pid":1,"tid":2,"ts":10,"dur":5}'


@pytest.fixture(params=["wide", "plain"])
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With AVX2 where the processor has it, and without."""
    monkeypatch.setattr(scanner, "WITHOUT_AVX2", request.param == "plain")
    return str(request.param)


def seen(path: Path, *, scan: bool, args: tuple[str, ...] = (), points: bool = False) -> Any:
    """All that a file's trace says, but for the order of its tables; or why there is none."""
    try:
        trace = assemble(path, read_part(path, args, points, scan=scan))
    except TraceError as error:
        return str(error)
    return contents(trace)


def contents(trace: Trace) -> dict[str, Any]:
    points = trace.points
    return {
        "names": [trace.names[i] for i in trace.name_id.tolist()],
        "cats": [trace.cats[i] for i in trace.cat_id.tolist()],
        "tracks": [trace.tracks[i] for i in trace.track_id.tolist()],
        "ts_ns": trace.ts_ns.tolist(),
        "dur_ns": trace.dur_ns.tolist(),
        "args": {key: column.as_dict() for key, column in trace.args.items()},
        "points": list(
            zip(
                points.phase,
                [trace.names[i] for i in points.name_id.tolist()],
                [trace.tracks[i] for i in points.track_id.tolist()],
                points.ts_ns.tolist(),
                points.ids,
                strict=True,
            )
        ),
        "metadata": list(trace.metadata),
        "phases": dict(trace.phases),
        "header": dict(trace.header),
        "repairs": sorted(trace.repairs),
    }


def scanned_alone(library: ctypes.CDLL, text: bytes, args: tuple[str, ...] = ()) -> tuple[int, int, Any]:
    """One call of the scanner: why and where it stopped, and what it found."""
    return scanner.Scanner(library, args, points=True).scan(bytearray(text), 0)


# ---- what it takes and what it leaves to Python


def test_an_events_members_become_columns(library: ctypes.CDLL, width: str) -> None:
    text = X + ', {"ts": -1.5, "args": {"x": [1, {"y": "}"}], "stream": 7, "input0": "i"}, "ph": "B"} ]'
    why, at, found = scanned_alone(library, text.encode(), WANTED)
    assert text[at:] == "]"
    assert why == CLOSED
    assert found.key.tolist() == [0, 1]
    assert found.ts_ns.tolist() == [10_000, -1_500]
    assert found.dur_ns.tolist() == [5_000, -(1 << 63)]
    assert found.new_keys == b'["X","a",null,1,2],["B",null,null,null,null],'
    assert (found.args_row.tolist(), found.args) == ([1], b'{"stream":7,"input0":"i"},')


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["7", "-3", "7"], [7, -3, 7]),
        (["7", "9223372036854775808"], [7, 2**63]),
        (["7", "null", "2"], [7, None, 2]),
        (["7", "true", "2.0", "1e2"], [7, True, 2.0, 100.0]),
        (["7", '"8},9:"', "[3,4]", "{}", '{"a":5}'], [7, "8},9:", [3, 4], {}, {"a": 5}]),
        (["7", '8,"stream":9'], [7, 8]),
    ],
)
def test_args_of_one_key(tmp_path: Path, values: list[str], expected: list[Any]) -> None:
    events = [f'{X[:-1]},"args":{{"kind": "a", "correlation": {value}}}}}' for value in values]
    path = tmp_path / "trace.json"
    path.write_text(f'{{"traceEvents":[{X},{",".join(events)}]}}')
    trace = assemble(path, read_part(path, WANTED, scan=True))
    found = [trace.args["correlation"].as_dict().get(row) for row in range(len(trace))]
    assert list(map(repr, found)) == list(map(repr, [None, *expected]))
    kept = trace.select(np.array([0, *range(2, len(trace))])).args["correlation"].as_dict()
    assert kept == {row: value for row, value in enumerate(expected) if row and value is not None}


@pytest.mark.parametrize("number", ["9223372036854775808", "17744863269121484553", "17999999999999999999"])
def test_an_id_may_have_64_bits(library: ctypes.CDLL, number: str, width: str) -> None:
    text = f'{{"ph":"X","tid":{number},"ts":1}}]'
    why, _, found = scanned_alone(library, text.encode())
    assert why == CLOSED
    assert found.new_keys == f'["X",null,null,null,{number}],'.encode()


@pytest.mark.parametrize(
    "odd",
    [
        '{"ph":"X","name":"\\n","ts":1}',  # not its own bytes
        '{"ph":"X","name":"é","ts":1}',
        '{"ph":"X","pid":1.0,"ts":1}',
        '{"ph":"X","pid":18000000000000000000,"ts":1}',  # perhaps beyond 64 bits
        '{"ph":"X","ts":17744863269121484553}',
        '{"ph":"X","pid":01,"ts":1}',
        '{"ph":"X","ts":"1"}',
        '{"ph":"X","ts":1e3}',
        '{"ph":"X","ts":1.0001}',
        '{"ph":"X","ts":3155760000000001}',  # more than 100 years
        '{"ph":"X","ts":NaN}',
        '{"ph":"X","ts":1,"ts":2}',
        '{"ph":"X","\\u0070id":1}',
        '{"ph":"X","ts":1,}',
        '{"ph":"X","ts":1 "pid":1}',
        '{"ph":"X",ts:1}',
        '{"ph":"M","name":"process_name"}',
        '{"name":"no phase"}',
        "{}",
        '{"ph":"i","id2":{"local":"0x1"}}',
        '{"ph":"X","args":{"stream":1e999}}',
        '{"ph":"X","args":[1]}',
        '{"ph":"X","x":{"a":1,}}',
        '{"ph":"X","x":[1 2]}',
        '{"ph":"X","x":{1:2}}',
        '{"ph":"X","x":ftrue}',
        '{"ph":"X","x":1.5e}',
        '{"ph":"X","x":"\\x"}',
        '{"ph":"X","x":' + "[" * 100 + "]" * 100 + "}",
    ],
)
def test_what_is_not_sure_is_left_to_python(library: ctypes.CDLL, width: str, odd: str) -> None:
    text = f"{X}, {odd}, {X} ]".encode()
    why, at, found = scanned_alone(library, text, WANTED)
    assert (why, len(found.key)) == (ODD, 1)
    assert text[at:].lstrip(b", ").startswith(odd.encode())


def test_an_event_that_is_cut_needs_more(library: ctypes.CDLL, width: str) -> None:
    text = f'{X},{{"ph":"X","name":"b","args":{{"stream":[1.5,true,"x"]}},"ts":12.5}}'.encode()
    for cut in range(len(X) + 1, len(text)):
        why, at, found = scanned_alone(library, text[:cut], WANTED)
        assert (why, at, len(found.key)) == (MORE, len(X) + 1, 1), text[:cut]
    assert scanned_alone(library, text)[::2][0] == MORE
    assert len(scanned_alone(library, text)[2].key) == 2


def test_more_events_than_one_call_takes(library: ctypes.CDLL, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text("[" + ",".join(f'{{"ph":"X","name":"{i % 7}","ts":{i}}}' for i in range(50_000)) + "]")
    found = seen(path, scan=True)
    assert found["ts_ns"] == [1000 * i for i in range(50_000)]
    assert found["names"] == [str(i % 7) for i in range(50_000)]


# ---- the same columns from both decoders

numbers = st.sampled_from(
    ["0", "7", "-3", "12", "1.5", "-0.25", "0.001", "4362813353724.537", "1795219501232034", "-0", "-0.0",
     "01", "1.", "1795219501232034.125", "99999999999999999999", "1e3", "1E-2", ".5", "+", "-", "1e400",
     "0.12345", "NaN", "18446744073709551615", "9223372036854775808", "3155760000000001", "1234567.0001"
     "8796093022208.0", "8796093022208.5", "12345678901234567.125"]
)  # fmt: skip
strings = st.sampled_from(
    ['"a"', '"b c"', '"Comm.x.PUSH"', '""', '"é"', '"\\n"', '"\\u0041"', '"\\ud800"', '"\\x"', '"a\x01"',
     '"},{"', '"]"', '"a', '"\\"', '"' + "long " * 20 + '"', '"1.5"', '"12"', '"null"']
)  # fmt: skip
words = st.sampled_from(
    ["null", "true", "false", "nul", "ftrue", "[]", "{}", "[1,{}]", "[1,]", '{"a":[{}]}', "{", "]"]
)
values = st.one_of(numbers, strings, words)
names = st.sampled_from(
    [
        '"ph"',
        '"name"',
        '"cat"',
        '"pid"',
        '"tid"',
        '"ts"',
        '"dur"',
        '"id"',
        '"id2"',
        '"args"',
        '"x"',
        '"p\\u0068"',
    ]
)
spaces = st.sampled_from(["", "", " ", "\n  ", "\r\n", "\t", "\f"])
args = st.lists(
    st.tuples(
        st.sampled_from(['"correlation"', '"stream"', '"input0"', '"input\\n"', '"inputé"', '"y"']), values
    ),
    max_size=4,
).map(lambda members: "{" + ",".join(f"{key}: {value}" for key, value in members) + "}")


@st.composite
def events(draw: st.DrawFn) -> str:
    """The text of an event, in most cases whole and plain."""
    phase = draw(st.sampled_from(['"X"'] * 6 + ['"B"', '"E"', '"i"', '"s"', '"M"', '"C"', '"é"', "1"]))
    plain = st.sampled_from(
        ['"a"', '"b"', "1", "2", '"long enough for more than one look at thirty-two bytes"']
    )
    time = st.sampled_from(["1", "2.5", "1234.567", "1795219501232034", "4362813353724.537", "0"])
    members = [("ph", phase)]
    for name, usual in (
        ("name", plain),
        ("cat", plain),
        ("pid", plain),
        ("tid", plain),
        ("ts", time),
        ("dur", time),
    ):
        kind = draw(st.integers(0, 19))
        if kind:
            members.append((name, draw(values if kind == 1 else usual)))
    if draw(st.booleans()):
        members.append(("args", draw(args)))
    if draw(st.integers(0, 4)) == 0:
        members.append(("id", draw(values)))
    text = [f'"{name}"{draw(spaces)}:{draw(spaces)}{value}' for name, value in members]
    if draw(st.integers(0, 9)) == 0:
        text.append(f"{draw(names)}:{draw(values)}")
    return "{" + draw(spaces) + ("," + draw(spaces)).join(text) + draw(spaces) + "}"


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """The bytes of a trace file, in many cases damaged or cut."""
    items = draw(st.lists(st.one_of(events(), events(), events(), events(), values), max_size=12))
    between = draw(
        st.sampled_from([",", ", ", ",\n  ", "\n", ""] if draw(st.integers(0, 9)) == 0 else [",", ",\n  "])
    )
    head, tail = draw(st.sampled_from([("[", "]"), ('{"traceEvents": [', '],"z":1}'), ('{"a":[{"b":1}],"traceEvents":[', "]}"), ("", "\n")]))  # fmt: skip  # noqa: E501
    content = bytearray((head + between.join(items) + tail).encode("utf-8", "surrogatepass"))
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 3]))):
        if content:
            content[draw(st.integers(0, len(content) - 1))] = draw(st.integers(0, 255))
    return bytes(content[: draw(st.integers(0, len(content)))] if draw(st.booleans()) else content)


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    def use(n_bytes: int) -> None:
        monkeypatch.setattr(stream, "PIECE", n_bytes)

    yield use


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
    max_examples=examples(100),
)
@given(
    files(),
    st.sampled_from([8, 50, 100, 300, 1 << 20]),
    st.sampled_from([8, 50, 100, 300, 1 << 20]),
    st.booleans(),
)
def test_the_same_columns_from_both_decoders(
    library: ctypes.CDLL, width: str, tmp_path: Path, pieces: Any, content: bytes, n: int, m: int, full: bool
) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(content)
    pieces(n)
    in_python = seen(path, scan=False, args=WANTED if full else (), points=full)
    pieces(m)
    in_c = seen(path, scan=True, args=WANTED if full else (), points=full)
    assert in_c == in_python
