"""The reader of rows in C gives the table that Python makes of the same lines, bit for bit, or none."""

from __future__ import annotations

import ctypes
import json
import os
import random
import struct
import sys
from collections.abc import Callable

import numpy as np
import pytest

from formats import native
from formats.native.row_reader import RowReader
from formats.step_log.lines import Csv, Form, JsonLines
from formats.step_log.named_columns import Kinds

FIRST = int(os.environ.get("FUZZ_SEED", "1"))
COUNT = int(os.environ.get("FUZZ_COUNT", "2000"))
_NAMES = ("step", "step_ms", "data_ms", "loss", "rank", "ts")
_TEXTS = ("time", "host")
_HEADER = ("rank", "note", *_NAMES[:4], *_TEXTS, "ts", "more")
_ODD_CELLS = (
    "", " ", "nan", "NaN", "-nan", "inf", "-Infinity", "1e5", "1E-5", "+1", "-0", "-0.0", "007", "1.", ".5",
    ".", "-", "+-1", "1e", "1e+", "0x10", "1_000", "1e400", "1e-400", "1d5", " 1", "1 ", "- 1", "1\x0b",
    "1\xa0", "\u0661", '"1"', '"', '"a,b"', "null", "true", "9007199254740993", "18446744073709551616",
    "0.1000000000000000055511151231257827", "8.5e-30", "1e22", "1e23", "12345678901234567890123", "0e999",
    "0e5", "9007199254740993e-27", "4503599627370496.5", "4503599627370497.5", "1700000000123456789", "1,2",
    "\t", "1\r", "\0", "a" * 301,
)  # fmt: skip
_ODD_VALUES = (
    *_ODD_CELLS, '""', '"1"', '"a\\nb"', '"\\u0041"', '"\\x"', '"é"', '"a\x01"', "[]", "[1]", "[1,]", "{}",
    "[1, [2.5, null]]", '{"a": 1}', "tru", "01", '"\x7f"', "[" * 12 + "1" + "]" * 12,
)  # fmt: skip
_ODD_MEMBERS = ("note", "step", "host", "loss", "\\u0073tep", "é", "", "a" * 40, "st", "step\x01", '"')
_BYTES = b'{}[]",:\\ \n\r\t0123456789.-+eEnulNa\xc3\xff\x00\x01'


def block(rng: random.Random) -> tuple[Form, bytes]:
    """Return lines of a step log, most of them plain, and how they are read."""
    texts = rng.choice(((), (), ("host",), _TEXTS))
    kinds = Kinds(
        "step", "rank", "ts", {name: (name, 1) for name in _NAMES[1:3]}, ["loss"], texts=texts,
        labels=[name for name in texts if name == "host"],
    )  # fmt: skip
    share = rng.choice((0, 0, 0.01, 0.1))
    rows = [_cells(rng) for _ in range(rng.choice((1, 2, 5, 30)))]
    newline = rng.choice(("\n", "\n", "\n", "\r\n"))
    if rng.random() < 0.5:
        delimiter = rng.choice(",,\t;")
        lines = [_csv_line(rng, row, delimiter, share) for row in rows]
        form: Form = Csv(kinds, _HEADER, delimiter)
    else:
        space = rng.choice(("", " ", " ", "  "))
        lines = [_object(rng, row, space, share) for row in rows]
        form = JsonLines(kinds, [], "")
    written = newline.join(lines).encode("utf-8", "surrogateescape")
    return form, _damaged(rng, written) if rng.random() < 0.2 else written


def _cells(rng: random.Random) -> dict[str, str]:
    cells = {name: _number(rng) for name in _NAMES}
    moment = f"2026-01-{rng.randrange(10, 32)}T{rng.randrange(10, 24)}:00:{rng.randrange(10, 60)}"
    return cells | {"time": moment, "host": f"node-{rng.randrange(3)}", "note": "some text", "more": "1"}


def _number(rng: random.Random) -> str:
    """Return a number, as programs write them or with any number of digits."""
    kind = rng.randrange(8)
    if kind == 0:
        return str(rng.randrange(10 ** rng.randrange(1, 20)))
    if kind == 1:
        return repr(rng.random() * 10 ** rng.randrange(-25, 25))
    if kind == 2:
        return repr(struct.unpack("d", rng.randbytes(8))[0]).replace("inf", "1").replace("nan", "2")
    if kind == 3:
        whole, decimals = rng.randrange(1, 12), rng.randrange(1, 16)
        return f"{rng.randrange(10**whole)}.{rng.randrange(10**decimals):0{decimals}}"
    if kind == 4:  # next to the middle of two doubles
        middle = rng.randrange(1 << 52, 1 << 53) * 2 + 1
        return f"{middle * 5 ** rng.randrange(5)}e-{rng.randrange(30)}"
    return f"{rng.uniform(-1, 1000):.{rng.randrange(7)}f}"


def _csv_line(rng: random.Random, row: dict[str, str], delimiter: str, share: float) -> str:
    cells = [rng.choice(_ODD_CELLS) if rng.random() < share else row[name] for name in _HEADER]
    return delimiter.join(cells[: rng.randrange(len(cells))] if rng.random() < share else cells)


def _object(rng: random.Random, row: dict[str, str], space: str, share: float) -> str:
    members = [
        (name, json.dumps(row[name]) if name in (*_TEXTS, "note") else row[name])
        for name in _HEADER
        if rng.random() >= share
    ]
    if rng.random() < share:
        rng.shuffle(members)
    for _ in range(len(members)):
        if rng.random() < share:
            name = rng.choice(_ODD_MEMBERS) if rng.random() < 0.5 else rng.choice(_HEADER)
            members.insert(rng.randrange(len(members) + 1), (name, rng.choice(_ODD_VALUES)))
    gap = rng.choice(("\t", "\n", "  ", ",")) if rng.random() < share else ""
    return "{" + f",{space}".join(f'"{name}":{space}{value}' for name, value in members) + gap + "}"


def _damaged(rng: random.Random, written: bytes) -> bytes:
    content = bytearray(written)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(content) + 1)
        content[at : at + rng.randrange(3)] = bytes(rng.choices(_BYTES, k=rng.randrange(3)))
    return bytes(content)


def differing(library: ctypes.CDLL, seed: int) -> tuple[str, bool]:
    """Return what differs in the block of a seed, "" for nothing, and whether C read it."""
    form, lines = block(random.Random(seed))
    reader = RowReader(library, form.names, len(form.kinds.texts), form.header, form.delimiter)
    if reader.read(lines) is None:
        return "", False
    in_python, codes = form.table(lines), form.codes
    form.codes = {name: {} for name in codes}
    form.read_in_c(library)
    lost_or_odd = form.lost, form.odd
    in_c = form.table(lines)
    if in_c.tobytes() == in_python.tobytes() and form.codes == codes and lost_or_odd == (0, 0):
        return "", True
    return f"{seed}: {lines!r} {in_python} {in_c} {codes} {form.codes} {lost_or_odd}", True


def test_tables_are_those_of_python_or_none(library: ctypes.CDLL) -> None:
    found = [differing(library, seed) for seed in range(FIRST, FIRST + COUNT)]
    assert [wrong for wrong, _ in found if wrong] == []
    assert np.mean([is_read for _, is_read in found]) > 0.4


def csv_of(*lines: str, texts: tuple[str, ...] = ()) -> tuple[Form, bytes]:
    kinds = Kinds("step", None, None, {"step_ms": ("step", 1)}, [], texts=texts, labels=texts)
    return Csv(kinds, ["step", "step_ms", *texts, "note"], ","), "\n".join(lines).encode()


def objects_of(*lines: str, texts: tuple[str, ...] = ()) -> tuple[Form, bytes]:
    kinds = Kinds("step", None, None, {"step_ms": ("step", 1)}, [], texts=texts, labels=texts)
    return JsonLines(kinds, [], ""), "\n".join(lines).encode()


@pytest.mark.parametrize(
    ("of", "line", "row"),
    [
        (csv_of, "1,2.5,text", [1, 2.5]),
        (csv_of, "1,2.5,é\r", [1, 2.5]),
        (csv_of, ",+2.,", [np.nan, 2]),
        (csv_of, " -0 , nan ,", [-0.0, np.nan]),
        (csv_of, "007,.5e-3,", [7, 0.0005]),
        (csv_of, "1700000000.1234567,0.1000000000000000055511151231257827,", [1700000000.1234567, 0.1]),
        (objects_of, '{"step": 1, "step_ms": 2.5}', [1, 2.5]),
        (objects_of, ' {"note": [1, ["é\\n", null]], "step_ms" : null , "step":-0} \r', [0, np.nan]),
        (objects_of, '{"step_ms": 1, "step": 5, "step_ms": NaN}', [5, np.nan]),
        (objects_of, '{"step_ms": 1e22, "other": false}', [np.nan, 1e22]),
    ],
)
def test_plain_rows_are_read(
    library: ctypes.CDLL, of: Callable[[str], tuple[Form, bytes]], line: str, row: list[float]
) -> None:
    form, lines = of(line)
    form.read_in_c(library)
    assert form.table(lines).tobytes() == np.array(row, np.float64).tobytes()
    assert RowReader(library, form.names, 0, form.header, form.delimiter).read(lines) is not None


@pytest.mark.parametrize(
    "form_and_lines",
    [
        *map(csv_of, ("", "1,2", "1,2,3,4", '1,2,"a', "1,2,3\n", "1,2,3\r4,5", "1,2,3\n\n4,5,6")),
        *map(
            csv_of,
            (
                " ,2,",
                "0x1,2,",
                "1_0,2,",
                "inf,2,",
                "1e,2,",
                "--1,2,",
                "1e999,2,",
                "1\t,2,",
                "1e9999999999,2,",
            ),
        ),
        csv_of("1,2,,", texts=("host",)),
        csv_of("1,,a,", texts=("host",)),
        csv_of("1,2,é,", texts=("host",)),
        csv_of(f"1,2,{'a' * 301},", texts=("host",)),
        *map(
            objects_of,
            ("", "{}", "[]", '{"step":1', '{"step":1,}', '{"step":1}{"step":2}', '{"\\u0073tep":1}'),
        ),
        *map(
            objects_of, (f'{{"step":{one}}}' for one in ("01", "1.", ".5", "+1", "-", '"1"', "true", "1e999"))
        ),
        *map(objects_of, (f'{{"note":{one}}}' for one in ("{}", '"\\u0041"', '"\x01"', '"', "[1", "[" * 99))),
        objects_of('{"step":1}', "", '{"step":1}'),
        objects_of('{"step":1,"host":NaN}', texts=("host",)),
        objects_of('{"step":NaN,"host":"a"}', texts=("host",)),
    ],
)
def test_others_are_left_to_python(library: ctypes.CDLL, form_and_lines: tuple[Form, bytes]) -> None:
    form, lines = form_and_lines
    reader = RowReader(library, form.names, len(form.kinds.texts), form.header, form.delimiter)
    assert reader.read(lines) is None


def test_missing_texts_have_no_code(library: ctypes.CDLL) -> None:
    form, lines = objects_of(
        '{"host":"b","step":1}', '{"step":2}', '{"host":"a"}', '{"host":null}', texts=("host",)
    )
    form.read_in_c(library)
    assert form.table(lines)[:, -1].tolist()[:3:2] == [0, 1]
    assert np.isnan(form.table(lines)[1::2, -1]).all()


if __name__ == "__main__":  # FIRST COUNT
    loaded = native.library()
    assert loaded is not None
    n_read = 0
    for seed in range(int(sys.argv[1]), int(sys.argv[1]) + int(sys.argv[2])):
        wrong, is_read = differing(loaded, seed)
        n_read += is_read
        if wrong:
            print(wrong, flush=True)  # noqa: T201
    print(n_read, "read")  # noqa: T201
