"""ps-lite's headers of both generations, and ZMTP framing: messages out of bytes in any pieces."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.network.packets import Capture
from collector.network.pslite import MessageReader, Node, begins_message, read_meta
from conftest import examples
from traffic import NEW, OLD, SERVER_BASE, Dialect, greeting, message, struct_meta, varint


def test_the_struct_of_a_recorded_job() -> None:
    """The first push of a worker of BytePS 0.2.5, as captured."""
    body = bytearray(124)
    body[32], body[68], body[40] = 1, 1, 2
    struct.pack_into("<I", body, 44, 3)
    struct.pack_into("<QQ", body, 80, 0x7FFF59EBBCB0, 0x7FECA24B9000)  # never set for ZeroMQ
    meta = read_meta(bytes(body))
    assert meta is not None
    assert (meta.request, meta.push, meta.timestamp) == (True, True, 2)


def test_the_protobuf_of_a_recorded_job() -> None:
    """A push of a worker of the profiler's fork, as captured, and its response."""
    push = read_meta(bytes.fromhex("0800200128013000380040034a03080b035000588c2060006800700078e5aa01"))
    response = read_meta(bytes.fromhex("0800200028013000380040034a02080b500058086000680070187800"))
    assert push is not None
    assert response is not None
    assert (push.request, push.push, push.timestamp) == (True, True, 3)
    assert (response.request, response.push, response.timestamp) == (False, True, 3)


def test_the_scheduler_announces_the_nodes() -> None:
    node = bytearray(552)
    struct.pack_into("<ii", node, 0, 1, 9)
    node[8:17] = b"10.77.0.5"
    struct.pack_into("<i", node, 204, 58639)
    body = bytearray(struct_meta(False, False, 1, 0, 2))
    struct.pack_into("<I", body, 12, 1)
    meta = read_meta(bytes(body) + bytes(node))
    assert meta is not None
    assert (meta.control, meta.nodes) == (2, (Node("worker", 9, "10.77.0.5", 58639),))

    node = bytearray(b"\x08\x00\x10\x0a\x1a\x0910.77.0.2\x20" + varint(33823) + b"\x28\x00")
    control = b"\x08\x02\x12" + varint(len(node)) + bytes(node)
    meta = read_meta(b"\x08\x00\x1a" + varint(len(control)) + control + b"\x40\x01")
    assert meta is not None
    assert meta.nodes == (Node("server", 10, "10.77.0.2", 33823),)


@given(st.binary(max_size=300))
@settings(max_examples=examples(300))
def test_random_bytes_hold_no_message(data: bytes) -> None:
    read_meta(data)
    assert not begins_message(data)


# ---- framing

HELLO = greeting("ps9")


Messages = list[tuple[Sequence[bytes], int]]


def reader() -> tuple[MessageReader, Messages]:
    """A reader, and the messages (frames, bytes) that it finds."""
    messages: Messages = []

    def add(frames: Sequence[bytes], start_ns: int, end_ns: int, wire_bytes: int) -> None:
        messages.append((frames, wire_bytes))

    return MessageReader(Capture(Path()), on_message=add), messages


def decoded(*pieces: bytes) -> Messages:
    made, messages = reader()
    for at, piece in enumerate(pieces):
        made.feed(piece, at)
    return messages


def test_frames_up_to_the_first_without_more_are_a_message() -> None:
    messages = decoded(HELLO + b"\x01\x02ab\x00\x03cde" + b"\x00\x00")
    assert messages == [([b"ab", b"cde"], 9), ([b""], 2)]


def test_the_identity_is_read_from_the_ready_command() -> None:
    made, messages = reader()
    made.feed(HELLO, 0)
    assert (made.node_id, messages) == (9, [])


@pytest.mark.parametrize("dialect", [NEW, OLD])
def test_after_a_hole_the_next_segment_that_begins_a_message_counts(dialect: Dialect) -> None:
    made, messages = reader()
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
    made, _ = reader()
    for part in (HELLO, data, message(b"x"), data):
        made.feed(part, 0)
    made.lost()
    made.feed(data, 0)
