"""ZMTP framing: messages out of bytes in any pieces, and anew after a hole."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.network.packets import Capture
from collector.network.pslite import MessageReader
from conftest import examples
from traffic import NEW, OLD, SERVER_BASE, Dialect, greeting, message

HELLO = greeting("ps9")


Messages = list[tuple[Sequence[bytes], int]]


def reader() -> tuple[MessageReader, Messages, list[bytes]]:
    """A reader, and the messages (frames, bytes) and identities that it finds."""
    messages: Messages = []
    identities: list[bytes] = []

    def add(frames: Sequence[bytes], start_ns: int, end_ns: int, wire_bytes: int) -> None:
        messages.append((frames, wire_bytes))

    made = MessageReader(Capture(Path()), on_message=add, on_identity=identities.append)
    return made, messages, identities


def decoded(*pieces: bytes) -> Messages:
    made, messages, _ = reader()
    for at, piece in enumerate(pieces):
        made.feed(piece, at)
    return messages


def test_frames_up_to_the_first_without_more_are_a_message() -> None:
    messages = decoded(HELLO + b"\x01\x02ab\x00\x03cde" + b"\x00\x00")
    assert messages == [([b"ab", b"cde"], 9), ([b""], 2)]


def test_the_identity_is_read_from_the_ready_command() -> None:
    made, messages, identities = reader()
    made.feed(HELLO, 0)
    assert (identities, messages) == ([b"ps9"], [])


@pytest.mark.parametrize("dialect", [NEW, OLD])
def test_after_a_hole_the_next_segment_that_begins_a_message_counts(dialect: Dialect) -> None:
    made, messages, _ = reader()
    push = dialect.push(1, SERVER_BASE + 65536, bytes(5000))
    made.feed(HELLO + push[:1000], 0)
    made.lost()
    for piece in (push[2000:], dialect.pulled(10, 2, 65536, bytes(5000)), dialect.pull(3, 65536)):
        made.feed(piece, 0)
    assert [[len(frame) for frame in frames[-2:]] for frames, _ in messages] == [[5000, 4], [8, 0]]


def test_a_frame_of_impossible_length_is_a_hole() -> None:
    odd = HELLO + message(b"x") + b"\x01\x01a\x02" + (1 << 40).to_bytes(8, "big")
    assert [frames[0][:1] for frames, _ in decoded(odd, NEW.push(7, 65536, b"v" * 40))] == [b"x", b"\0"]


@given(st.lists(st.integers(10, 2600), max_size=12))  # ZeroMQ sends the first 10 bytes at once
@settings(max_examples=examples(100), deadline=None)
def test_the_pieces_do_not_matter(cuts: list[int]) -> None:
    data = HELLO + message(b"a" * 300, b"b", b"c" * 2000) + message(b"") + message(b"d" * 255, b"e" * 256)
    whole = decoded(data)
    pieces = decoded(*(data[a:b] for a, b in pairwise([0, *sorted(cuts), len(data)])))
    assert pieces == whole
    assert len(whole) == 3


@given(st.binary(max_size=2000))
@settings(max_examples=examples(200), deadline=None)
def test_any_bytes_do_no_harm(data: bytes) -> None:
    made, *_ = reader()
    for part in (HELLO, data, message(b"x"), data):
        made.feed(part, 0)
    made.lost()
    made.feed(data, 0)
