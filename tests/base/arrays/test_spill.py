"""What is put aside in a file: the same numbers, out of memory, and the same answers of every option."""

from __future__ import annotations

import io
import tempfile
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from msgspec import Struct

from analyzer.base.arrays import spill
from analyzer.base.arrays.spill import Spill
from conftest import REPO, few, run_cli

pytestmark = pytest.mark.slow

REPLAY = ("--option", "replay", "--output", "-")
WHATIF = (*REPLAY, "--sub_option", "whatif", "--set")
ALL: tuple[tuple[str, ...], ...] = (
    ("--option", "diagnose"),
    (*WHATIF, "straggler=mean", "--set", "BW=0.5"),
    REPLAY,
    (*WHATIF, "bandwidth=2"),
    (*REPLAY, "--sub_option", "bottleneck"),
)


class Record(Struct, frozen=True):
    """Columns as a step has them."""

    number: int
    events: Any
    edges: Any
    is_held: Any
    alike: Any


@pytest.fixture
def all_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing stay in memory."""
    monkeypatch.setattr(spill, "_IN_MEMORY", -1)
    monkeypatch.setattr(spill, "_LEAST", 0)


def record(n: int) -> Record:
    alike = np.broadcast_to(np.int32(7), n)
    return Record(
        3, np.arange(n, dtype=np.int16), np.arange(4 * n).reshape(n, 4), np.arange(n) % 2 == 0, alike
    )


@pytest.mark.usefixtures("all_aside")
@pytest.mark.parametrize("n", [0, 1, 5, 1000, 100_000])  # the last one's edges are more than a piece
def test_what_is_put_aside_reads_as_before(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "_PIECE", 2 << 20)
    aside, own = Spill(), record(n)
    first, second = aside.put(own), aside.put(record(n))
    for found in (first, second):
        assert found.number == 3
        for name in ("events", "edges", "is_held", "alike"):
            column, expected = getattr(found, name), getattr(own, name)
            assert (column.dtype, column.shape) == (expected.dtype, expected.shape)
            np.testing.assert_array_equal(column, expected)
    assert first.alike is own.alike, "takes no room in memory"
    if n:
        assert first.events is not own.events
        assert not first.events.flags.writeable
        assert aside.put(first).events is first.events, "once is enough"


class Slow(io.BytesIO):
    def write(self, part: Any) -> int:  # three bytes at a time
        return super().write(part[:3])


def test_what_a_file_takes_in_parts_is_written_whole() -> None:
    file: Any = Slow()
    spill._write(file, np.arange(9))
    assert file.getvalue() == np.arange(9).tobytes()


def test_the_first_bytes_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "_IN_MEMORY", 10_000)
    aside, column = Spill(), np.zeros(8_000, np.int8)
    assert aside.put_arrays([column])[0] is column  # 8,000 of 10,000
    assert aside.put_arrays([column])[0] is not column  # 16,000
    small = np.zeros(100, np.int8)
    assert aside.put_arrays([small])[0] is small, "not worth a place"


def test_without_room_for_a_file_all_stays_in_memory(
    all_aside: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(**_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", none)
    own = record(1000)
    assert Spill().put(own) is own


@pytest.mark.parametrize("command", few(3, ((words,) for words in ALL)), ids=lambda command: command[-1])
def test_options_answer_alike_with_all_steps_aside(
    monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    job = REPO / "examples" / "lenet-100mbit"
    words = (*command, "--path", job, "--format", "json", "--jobs", "1")
    expected = run_cli(*words)
    with patch.object(Spill, "_put", autospec=True, side_effect=Spill._put) as put:
        monkeypatch.setattr(spill, "_IN_MEMORY", -1)
        monkeypatch.setattr(spill, "_LEAST", 0)
        assert run_cli(*words) == expected
    assert put.call_count > 3
