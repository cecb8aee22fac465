"""The scanner in C reads what the decoder in Python reads, whatever the bytes."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analyzer.base.errors import TraceError
from analyzer.reading.formats.chrome import assemble, read_rows
from analyzer.reading.formats.columns import Trace
from analyzer.reading.formats.native import scanner
from analyzer.reading.formats.reader import CLOSED, MORE, ODD

WANTED = ("correlation", "stream", "input*")
X = '{"ph":"X","name":"a","pid":1,"tid":2,"ts":10,"dur":5}'


def seen(path: Path, *, scan: bool, args: tuple[str, ...] = (), points: bool = False) -> Any:
    """All that a file's trace says, but for the order of its tables; or why there is none."""
    try:
        trace = assemble(path, read_rows(path, args, points, scan=scan))
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
    return scanner(library, args, points=True)(text, 0)


# ---- what it takes and what it leaves to Python


def test_an_events_members_become_columns(library: ctypes.CDLL) -> None:
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
    trace = assemble(path, read_rows(path, WANTED, scan=True))
    found = [trace.args["correlation"].as_dict().get(row) for row in range(len(trace))]
    assert list(map(repr, found)) == list(map(repr, [None, *expected]))
    kept = trace.select(np.array([0, *range(2, len(trace))])).args["correlation"].as_dict()
    assert kept == {row: value for row, value in enumerate(expected) if row and value is not None}


@pytest.mark.parametrize("number", ["9223372036854775808", "17744863269121484553", "17999999999999999999"])
def test_an_id_may_have_64_bits(library: ctypes.CDLL, number: str) -> None:
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
def test_unusual_events_are_left_to_python(library: ctypes.CDLL, odd: str) -> None:
    text = f"{X}, {odd}, {X} ]".encode()
    why, at, found = scanned_alone(library, text, WANTED)
    assert (why, len(found.key)) == (ODD, 1)
    assert text[at:].lstrip(b", ").startswith(odd.encode())


def test_an_event_that_is_cut_needs_more(library: ctypes.CDLL) -> None:
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
