"""ZMTP framing: messages out of bytes in any pieces, over losses, from the middle."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.network.pslite import locate
from collector.network.zmtp import Message, MessageReader
from conftest import examples
from traffic import NEW, OLD, SERVER_BASE, Dialect, greeting, message

HELLO = greeting("ps9")


class Sink:
    """Keeps what a reader tells."""

    def __init__(self, accept: Callable[[Message], bool] = lambda m: True) -> None:
        self.messages: list[Message] = []
        self.identities: list[bytes] = []
        self._accept = accept

    def take(self, item: Message) -> bool:
        if self._accept(item):
            self.messages.append(item)
            return True
        return False

    def reader(self, from_start: bool = True) -> MessageReader:
        reader = MessageReader(self.take, self.identities.append, locate)
        reader.from_start = from_start
        return reader


def feed(reader: MessageReader, data: bytes, at_ns: int = 0) -> None:
    """Feed as a stream does: skipped bytes are not shown."""
    if reader.skip > len(data):
        reader.skip -= len(data)
    elif data:
        reader.feed(data, 0, len(data), at_ns, at_ns)


def test_frames_up_to_the_first_without_more_are_a_message() -> None:
    sink = Sink()
    feed(sink.reader(), HELLO + b"\x01\x02ab\x00\x03cde" + b"\x00\x00")
    assert [m.frames for m in sink.messages] == [[b"ab", b"cde"], [b""]]
    assert [m.wire_bytes for m in sink.messages] == [9, 2]


def test_the_identity_is_read_from_the_ready_command() -> None:
    sink = Sink()
    feed(sink.reader(), HELLO)
    assert (sink.identities, sink.messages) == ([b"ps9"], [])


def test_a_command_between_messages_is_none() -> None:
    sink = Sink()
    feed(sink.reader(), HELLO + b"\x04\x07\x04PING\0\x0a" + message(b"x"))
    assert [m.frames for m in sink.messages] == [[b"x"]]


def test_the_body_of_a_large_frame_is_counted_not_kept() -> None:
    sink = Sink()
    feed(sink.reader(), HELLO + message(b"meta", b"key", bytes(5000), b"lens"))
    assert [(m.frames, m.sizes) for m in sink.messages] == [
        ([b"meta", b"key", b"", b"lens"], [4, 3, 5000, 4])
    ]


def test_times_are_those_of_the_first_and_the_last_byte() -> None:
    sink = Sink()
    reader = sink.reader()
    feed(reader, HELLO, 1)
    data = message(b"meta", b"key", bytes(5000))
    for at, (a, b) in enumerate([(0, 1), (1, 7), (7, 4000), (4000, len(data))], 10):
        feed(reader, data[a:b], at)
    assert [(m.start_ns, m.end_ns) for m in sink.messages] == [(10, 13)]


def test_bytes_lost_inside_a_large_body_are_stepped_over() -> None:
    sink = Sink()
    reader = sink.reader()
    data = HELLO + message(b"meta", b"key", bytes(5000), b"lens") + message(b"next")
    feed(reader, data[:1000])
    reader.lost(2000, 0)
    feed(reader, data[3000:])
    assert [(m.frames[0], m.sizes) for m in sink.messages] == [(b"meta", [4, 3, 5000, 4]), (b"next", [4])]


def test_a_message_whose_end_is_lost_is_told_and_the_next_one_found() -> None:
    sink = Sink()
    reader = sink.reader()
    data = NEW.push(1, 65536, bytes(5000))
    feed(reader, HELLO + data[:1000])
    reader.lost(len(data) - 1000 + 50, 0)
    feed(reader, NEW.push(2, 65536, bytes(5000))[50:])
    feed(reader, NEW.push(3, 65536, bytes(5000)))
    assert [m.sizes[:3] for m in sink.messages] == [[124, 8, 5000]] * 2


def test_a_foreign_protocol_is_left_alone() -> None:
    sink = Sink()
    reader = sink.reader()
    feed(reader, b"GET / HTTP/1.1\r\n")
    assert not reader.wanted


def test_zmtp_that_is_not_ps_lite_is_left_alone() -> None:
    sink = Sink(lambda m: False)
    reader = sink.reader()
    feed(reader, HELLO + message(b"hello") * 100)
    assert not reader.wanted


def test_an_unknown_message_between_known_ones_costs_only_itself() -> None:
    sink = Sink(lambda m: m.frames != [b"?"])
    feed(sink.reader(), HELLO + message(b"?") + message(b"a") + message(b"?") + message(b"b"))
    assert [m.frames for m in sink.messages] == [[b"a"], [b"b"]]


def test_a_frame_of_impossible_length_loses_the_framing() -> None:
    sink = Sink()
    reader = sink.reader()
    feed(reader, HELLO + message(b"x") + b"\x01\x01a\x02" + (1 << 40).to_bytes(8, "big"))
    feed(reader, NEW.push(7, 65536, b"v" * 40))
    assert [m.frames[0][:1] for m in sink.messages] == [b"x", b"\0"]


@given(st.lists(st.integers(0, 2600), max_size=12))
@settings(max_examples=examples(100), deadline=None)
def test_the_pieces_do_not_matter(cuts: list[int]) -> None:
    data = HELLO + message(b"a" * 300, b"b", b"c" * 2000) + message(b"") + message(b"d" * 255, b"e" * 256)
    whole, pieces = Sink(), Sink()
    feed(whole.reader(), data)
    reader = pieces.reader()
    for a, b in pairwise([0, *sorted(cuts), len(data)]):
        feed(reader, data[a:b])
    assert [(m.frames, m.sizes) for m in pieces.messages] == [(m.frames, m.sizes) for m in whole.messages]
    assert len(whole.messages) == 3


def stream(dialect: Dialect) -> tuple[bytes, list[int]]:
    """What a worker sends in three steps, and where its messages end."""
    sent = [
        part
        for i in range(3)
        for part in (dialect.push(2 * i, SERVER_BASE + 65536, bytes(3000)), dialect.pull(2 * i + 1, 65536))
    ]
    ends, at = [], 0
    for part in sent:
        at += len(part)
        ends.append(at)
    return b"".join(sent), ends


@pytest.mark.parametrize("dialect", [NEW, OLD])
def test_joined_at_any_byte_the_messages_that_begin_later_are_found(dialect: Dialect) -> None:
    data, ends = stream(dialect)
    for start in range(1, len(data) - 1, 7):
        sink = Sink()
        feed(sink.reader(from_start=False), data[start:])
        begun_later = sum(end >= start for end in ends[:-1])
        assert len(sink.messages) == begun_later


@pytest.mark.parametrize("dialect", [NEW, OLD])
@pytest.mark.parametrize("size", [1, 13, 100])
def test_joined_in_the_middle_in_small_pieces(dialect: Dialect, size: int) -> None:
    data, _ = stream(dialect)
    sink = Sink()
    reader = sink.reader(from_start=False)
    for at in range(100, len(data), size):
        feed(reader, data[at : at + size], at)
    assert len(sink.messages) == 5
    assert [m.start_ns // size for m in sink.messages] == sorted(m.start_ns // size for m in sink.messages)


@pytest.mark.parametrize("dialect", [NEW, OLD])
def test_the_start_of_a_message_found_in_the_middle_is_that_of_its_first_byte(dialect: Dialect) -> None:
    data, ends = stream(dialect)
    sink = Sink()
    reader = sink.reader(from_start=False)
    for at in range(100, len(data), 10):
        feed(reader, data[at : at + 10], at)
    # the second message begins at ends[0]; pieces begin at 100, 110, …
    assert sink.messages[0].start_ns == (ends[0] - 100) // 10 * 10 + 100


@pytest.mark.parametrize("dialect", [NEW, OLD])
def test_a_servers_stream_is_found_by_its_identity(dialect: Dialect) -> None:
    data = b"".join(
        dialect.pushed(10, i, 65536) if i % 2 else dialect.pulled(10, i, 65536, bytes(600)) for i in range(6)
    )
    sink = Sink()
    feed(sink.reader(from_start=False), data[50:])
    assert [m.frames[0] for m in sink.messages] == [b"ps10"] * 5


@given(st.binary(max_size=2000))
@settings(max_examples=examples(200), deadline=None)
def test_any_bytes_do_no_harm(data: bytes) -> None:
    for from_start in (True, False):
        sink = Sink()
        reader = sink.reader(from_start=from_start)
        for part in (HELLO, data, message(b"x"), data):
            feed(reader, part)
        reader.lost(10, 0)
        feed(reader, data)
        reader.close()
