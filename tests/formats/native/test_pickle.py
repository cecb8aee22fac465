"""Rows of pickles are the same in C and by patterns, and each is read as `pickle` reads it."""

from __future__ import annotations

import os
import pickle
import pickletools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from formats import native
from formats.recorder import pickled_rows
from formats.recorder.pickled_rows import PickledRows
from formats.recorder.plain_pickle import unpickled

FIRST = int(os.environ.get("FUZZ_SEED", "1"))
COUNT = int(os.environ.get("FUZZ_COUNT", "300"))
LIBRARY = native.library()
_TEXTS = ["completed", "scheduled", "nccl:all_reduce", "0", "default_pg"]
_NUMBERS = (
    None, True, False, 0, 255, 256, 65_535, 65_536, -1, 2**31 - 1, 2**55, 2**56 + 1, 2**62, -(2**62), 2**70,
    0.25, float("inf"),
)  # fmt: skip
_OPCODES = b"}(]eauhjKMJNG\x88\x89\x8a\x86\x85t.\x07\x08\x00\xff"

pytestmark = pytest.mark.skipif(LIBRARY is None, reason="no C compiler here")


def _value(rng: random.Random, kind: int) -> Any:
    if kind == 0:
        return rng.choice((*_NUMBERS, *_TEXTS))
    if kind == 1:
        return rng.choice(_TEXTS), rng.choice(_TEXTS)
    n = rng.choice((0, 1, 2, 3, 70, 300)) if rng.random() < 0.1 else rng.randrange(4)
    shapes = [rng.choices((1, 300, 70_000), k=rng.choice((0, 1, 2, 5, 64, 65))) for _ in range(n)]
    return shapes if kind == 2 else rng.choices((*_TEXTS, 7, 999), k=n)


def _rows(rng: random.Random) -> list[dict[str, Any]]:
    """Rows of the same keys with values of the same kinds, but for a few that differ."""
    kinds = {f"key_{at}": rng.randrange(4) for at in range(rng.randrange(6, 14))}
    usual = {key: _value(rng, kind) for key, kind in kinds.items()}
    rows = []
    for _ in range(rng.randrange(20, 60)):
        changed = rng.sample(list(kinds), rng.randrange(3))
        row = usual | {key: _value(rng, kinds[key]) for key in changed}
        if rng.random() < 0.05:
            row |= {rng.choice(list(kinds)): _value(rng, rng.randrange(4)), "more": rng.randrange(300)}
        rows.append(row)
    return rows


def _program(rows: list[dict[str, Any]]) -> bytes:
    """As PyTorch writes them: what comes again is remembered, but for containers."""
    known: dict[str, str] = {}
    alike = [
        {known.setdefault(key, key): known.setdefault(value, value) if type(value) is str else value
         for key, value in row.items()}
        for row in rows
    ]  # fmt: skip
    return pickletools.optimize(pickle.dumps([*known.values(), alike], 2))


def _found(data: bytes, at: int, in_c: bool) -> tuple[int, list[Any]] | None:
    rows = pickled_rows.rows_at(data, at, 0, LIBRARY if in_c else None)
    if rows is None:
        return None
    return rows.end, [rows._bounds, *(np.asarray(part).tolist() for part in rows._places)]


@pytest.mark.fuzz
def test_rows_of_damaged_programs_are_the_same_in_c_and_by_patterns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickled_rows, "_FEWEST_BYTES", 0)
    monkeypatch.setattr(pickled_rows, "_MOST_ROWS", 7)
    n_rows = n_cut = 0
    for seed in range(FIRST, FIRST + COUNT):
        rng = random.Random(seed)
        data = bytearray(_program(_rows(rng)))
        for _ in range(rng.randrange(4)):
            at = rng.randrange(len(data))
            if rng.random() < 0.5:
                data[at] = rng.choice(_OPCODES)
            else:
                del data[at : at + rng.randrange(1, 3)]
        del data[len(data) - rng.randrange(2) * rng.randrange(len(data)) :]
        whole, at = bytes(data), 0
        while (at := whole.find(b"}(", at)) >= 0:
            by_pattern, in_c = (_found(whole, at, way) for way in (False, True))
            assert by_pattern == in_c, (seed, at)
            n_rows += by_pattern is not None and len(by_pattern[1][0]) - 1
            n_cut += by_pattern is None
            at = by_pattern[0] if by_pattern else at + 2
    assert n_rows > COUNT
    assert n_cut > 0


@pytest.mark.parametrize("in_c", [False, True])
def test_columns_of_rows_are_those_that_pickle_reads(in_c: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickled_rows, "_FEWEST_BYTES", 0)
    n_rows = 0
    for seed in range(30):
        rows = _rows(random.Random(seed))
        (*_, entries), parts = unpickled(Path("d"), _program(rows), [], LIBRARY if in_c else None)
        at = 0
        for one in entries:
            if not isinstance(one, int):
                at += 1
                continue
            own: PickledRows = parts[one]
            expected = rows[at : at + len(own)]
            at, n_rows = at + len(own), n_rows + len(own)
            assert [own[place] for place in range(-len(own), 0)] == expected
            for key in (*expected[0], "none"):
                assert own.column(key) == [row.get(key) for row in expected]
        assert at == len(rows)
    assert n_rows > 300
