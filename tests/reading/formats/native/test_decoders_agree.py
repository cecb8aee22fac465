"""Both decoders give the same columns, notes and counts, whatever types and bytes events have.

So they do however a file is cut into the pieces that it is read in.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
from pathlib import Path
from unittest import mock

import mutations
import pytest
from test_scanner import seen

import recorded
from analyzer.reading.formats import native, stream

FIRST = int(os.environ.get("FUZZ_SEED", "1"))
COUNT = int(os.environ.get("FUZZ_COUNT", "60"))
WANTED = ("correlation", "stream", "input*", "External id", "name", "step")
_VALUES = (
    "true", "false", "null", "[]", "{}", '{"a":1}', '["a"]', '{"local":"0x1"}', '"x"', '""', '"1"', '"1.5"',
    '"1e3"', "0", "-0", "-0.0", "1", "-1", "1.0", "1.5", "1e3", "1e400", "NaN", "-Infinity", "3e15", "01",
    "1.", ".5", "+1", "0x10", "'a'", '"\\ud800"', '"\\u0000"', '"é"', '"a\\nb"', '"\x01"', '"-3"',
    "9223372036854775808", "18446744073709551616", "1795219501232034.1234", '"99999999999999999999"',
)  # fmt: skip
_MEMBERS = ("ph", "name", "cat", "pid", "tid", "ts", "dur", "id", "args", "bp", "id2")
_ARGS = (
    '{"correlation":1,"stream":7}',
    '{"External id":2,"input0":"a","input1":1.5}',
    '{"input1":1.5}',
    "{}",
)


def odd_file(rng: random.Random) -> bytes:
    """Return a trace of which some events have members of odd types."""
    share = rng.choice((0.02, 0.1, 0.5))
    events = [_event(rng, i, share) for i in range(rng.choice((5, 30, 120)))]
    head, tail = rng.choice((("[", "]"), ('{"traceEvents": [', '],"displayTimeUnit":"ms"}'), ("[", ",")))
    return (head + rng.choice((",", ",\n", "\n,")).join(events) + tail).encode()


def _event(rng: random.Random, i: int, share: float) -> str:
    members = [
        ("ph", json.dumps(rng.choice("XXXXXXBEisftMC"))),
        ("cat", rng.choice(('"cpu_op"', '"kernel"'))),
        ("name", rng.choice(('"a"', '"b"', '"Comm.x.PUSH"'))),
        ("pid", rng.choice(("1", "2", '"p"'))),
        ("tid", rng.choice(("1", "7", '"t"'))),
        ("ts", rng.choice((str(i * 10), f"{i * 10}.5", f"{i * 10}.0006", f"1795219501{i:06d}.125"))),
        ("dur", rng.choice(("5", "2.25", "0", "1.9996"))),  # picoseconds are rounded
        ("args", rng.choice(_ARGS)),
    ]
    for _ in range(rng.choice((1, 1, 3)) if rng.random() < share else 0):
        members[rng.randrange(len(members))] = rng.choice(_MEMBERS), rng.choice(_VALUES)
    return "{" + ", ".join(f'"{key}": {value}' for key, value in members) + "}"


@pytest.mark.parametrize("kind", ["types", "bytes"])
def test_the_decoders_agree(library: ctypes.CDLL, tmp_path: Path, kind: str) -> None:
    assert [seed for seed in range(FIRST, FIRST + COUNT) if differing(seed, kind, tmp_path / "t.json")] == []


def differing(seed: int, kind: str, path: Path) -> str:
    """Return what differs between the decoders in a file made as `seed` says, or ""."""
    rng = random.Random(seed)
    content = odd_file(rng)
    damaged = mutations.damaged(rng, path.name, content) if kind == "bytes" else content
    path.write_bytes(damaged[: 1 << 18])  # in pieces of 50 bytes an event without an end takes the square
    wanted = WANTED if seed % 2 else ()
    found = []
    for scan in (False, True):
        with mock.patch.object(stream, "PIECE", rng.choice((50, 300, 3000, 1 << 20))):
            found.append(seen(path, scan=scan, args=wanted, points=seed % 2 > 0))
    in_python, in_c = found
    if in_python == in_c:
        return ""
    if isinstance(in_python, str) or isinstance(in_c, str):
        return f"{in_python!s:.300} | {in_c!s:.300}"
    return "; ".join(
        f"{key}: {in_python[key]!r:.300} | {in_c[key]!r:.300}" for key in in_c if in_python[key] != in_c[key]
    )


@pytest.mark.thorough
@pytest.mark.skipif(native.library() is None, reason="no C compiler here")
@pytest.mark.parametrize("path", recorded.files(), ids=lambda path: f"{path.parent.name}/{path.name}"[-60:])
def test_recorded_traces_have_the_same_columns(path: Path) -> None:
    assert seen(path, scan=True, args=WANTED, points=True) == seen(path, scan=False, args=WANTED, points=True)
