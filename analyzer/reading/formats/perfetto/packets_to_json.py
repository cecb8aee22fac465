"""The packets of Perfetto's format as the JSON of a chrome trace, piece by piece.

The reader of chrome traces then reads them, and a system that writes both formats is recognised in both:

- a begin and its end become an ``X`` with the arguments of both; without a partner they stay ``B`` or ``E``;
- a thread's track becomes its pid and tid; another track becomes a thread of the track's name, and a track
  below a thread of the same name, for slices that overlap, belongs to that thread;
- an arrow leaves the first slice with its number (``s``) and reaches each other slice with it (``f``).
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct, field

from analyzer.base.errors import counted
from analyzer.reading.formats.event import UNDECODABLE
from analyzer.reading.formats.perfetto.trace_packets import CLEARED, COUNTER, END, INSTANT, START, messages
from analyzer.reading.formats.protobuf_messages import is_xla_profile
from analyzer.reading.formats.values import microseconds

_PACKET = 0x0A  # field 1, with a length
_LARGEST = 4 << 20  # bytes of a packet, or of the arguments of an event
_ENCODE = msgspec.json.Encoder().encode
_BOOT = 6  # default clock of a packet
_LOCAL_CLOCKS = range(64, 128)  # clocks of one sequence only
_EACH = 16  # bytes counted for an argument without its text
_BATCH = 1 << 20  # bytes of JSON in a piece
_DEEPEST = 8  # tracks above a track
_REMEMBERED = 1 << 16
_NUMBERS = ("int_value", "uint_value", "bool_value", "double_value", "pointer_value")


def recognises(head: bytes) -> bool:
    """Check whether a file begins with a packet that has a known field, followed by a packet."""
    from google.protobuf.message import DecodeError

    if head[:1] != b"\n" or is_xla_profile(head):
        return False
    size, position = _varint(head, 1)
    end = position + size
    if not 0 < size <= len(head) - position or (end < len(head) and head[end] != _PACKET):
        return False
    with contextlib.suppress(DecodeError):
        return bool(messages()["TracePacket"].FromString(head[position:end]).ListFields())
    return False


def _varint(data: bytes | bytearray, position: int) -> tuple[int, int]:
    """Decode the number at a byte; also the byte after it, or (-1, `position`) if it does not end."""
    value = 0
    for shift in range(0, 70, 7):
        if position + shift // 7 >= len(data):
            break
        byte = data[position + shift // 7]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + shift // 7 + 1
    return -1, position


def as_json(pieces: Iterator[bytes], repairs: list[str]) -> Iterator[bytes]:
    """Yield the JSON of a file's `pieces`; `repairs` then describes the missing parts."""
    events = _Events()
    texts = itertools.chain.from_iterable(map(events.of, _packets(pieces, events, repairs)))
    before = b'{"traceEvents":['
    for batch in _batches(itertools.chain(texts, events.unfinished())):
        yield before + batch
        before = b","
    yield b"]}" if before == b"," else before + b"]}"
    repairs += [f"{counted(n, noun)} {fate}" for (noun, fate), n in events.left_out.items()]


def _packets(pieces: Iterator[bytes], events: _Events, repairs: list[str]) -> Iterator[Any]:
    """Yield the whole packets of each piece."""
    data = bytearray()
    done = 0
    for piece in pieces:
        data += piece
        position = 0
        spans: list[tuple[int, int]] = []
        while position < len(data):
            begin = position + 2
            size = data[position + 1] if begin <= len(data) else 0x80
            if size > 0x7F:  # most packets are shorter
                size, begin = _varint(data, position + 1)
            if data[position] != _PACKET or size > _LARGEST or (size < 0 and len(data) - position > 10):
                yield _parsed(bytes(data[:position]), spans, events)
                repairs.append(f"damaged after {done + position:,} bytes: the rest is left out")
                return
            if size < 0 or begin + size > len(data):
                break
            spans.append((begin, begin + size))
            position = begin + size
        yield _parsed(bytes(data[:position]), spans, events)
        del data[:position]
        done += position
    if data:
        repairs.append(f"cut off inside a packet, after {done:,} bytes")


def _parsed(data: bytes, spans: list[tuple[int, int]], events: _Events) -> list[Any]:
    from google.protobuf.message import DecodeError

    parse, packets = messages()["TracePacket"].FromString, []
    for begin, end in spans:
        with contextlib.suppress(DecodeError):
            packets.append(parse(data[begin:end]))
    if n := len(spans) - len(packets):
        events.left_out["damaged packet", "left out"] += n
    return packets


def _batches(texts: Iterator[bytes]) -> Iterator[bytes]:
    """Join events up to about 1 MiB: a few packets may repeat long texts by their numbers."""
    batch: list[bytes] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size > _BATCH:
            yield b",".join(batch)
            batch, size = [], 0
    if batch:
        yield b",".join(batch)


class _Sequence(Struct):
    """Texts and defaults of the packets of one writer."""

    names: dict[int, str] = field(default_factory=dict)
    cats: dict[int, str] = field(default_factory=dict)
    keys: dict[int, str] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)
    track: int = 0
    clock: int = _BOOT


class _Track(Struct):
    """A track as described in the file."""

    parent: int
    name: str | None
    process: int | None  # the pid
    thread: tuple[int, int] | None
    unit: str


_Begin = tuple[str, str, int, dict[str, Any]]  # name, category, time, arguments


class _TooLargeError(ValueError):
    """The arguments of one event are too large."""


class _Events:
    """Events of packets, as JSON texts."""

    def __init__(self) -> None:
        self.left_out: Counter[tuple[str, str]] = Counter()
        self._sequences: defaultdict[int, _Sequence] = defaultdict(_Sequence)
        self._tracks: dict[int, _Track] = {}
        self._named: dict[int, str] = {}  # the names last written, by track
        self._open: defaultdict[int, list[_Begin]] = defaultdict(list)
        self._flows: set[int] = set()
        self._size = 0
        self._annotation = messages()["Annotation"]
        self._place = lru_cache(_REMEMBERED)(self._find_place)

    def of(self, packets: list[Any]) -> Iterator[bytes]:
        """Yield the events of packets."""
        out: list[bytes] = []
        from google.protobuf.message import DecodeError

        for packet in packets:
            sequence = self._sequences[packet.trusted_packet_sequence_id]
            if packet.incremental_state_cleared or packet.sequence_flags & CLEARED:
                sequence = self._sequences[packet.trusted_packet_sequence_id] = _Sequence()
            if packet.HasField("trace_packet_defaults"):
                defaults = packet.trace_packet_defaults
                sequence.track = defaults.track_event_defaults.track_uuid or sequence.track
                sequence.clock = defaults.timestamp_clock_id or sequence.clock
            if packet.HasField("interned_data"):
                data = packet.interned_data
                for table, entries in (
                    (sequence.names, data.event_names),
                    (sequence.cats, data.event_categories),
                    (sequence.keys, data.debug_annotation_names),
                    (sequence.texts, data.debug_annotation_string_values),
                ):
                    table.update((entry.iid, _text(entry.name)) for entry in entries)
            if packet.HasField("track_event"):
                try:
                    self._event(packet, packet.track_event, sequence, out)
                except (_TooLargeError, RecursionError):
                    self.left_out["event", "with endless arguments left out"] += 1
                except DecodeError:
                    self.left_out["event", "with damaged arguments left out"] += 1
            elif packet.HasField("track_descriptor"):
                self._describe(packet.track_descriptor, out)
            else:
                for kind, _ in packet.ListFields():
                    if kind.type == kind.TYPE_BYTES:
                        self.left_out["packet", f"of {kind.name} not read"] += 1
            if out:
                yield from out
                out.clear()

    def unfinished(self) -> Iterator[bytes]:
        """Yield the begins without an end."""
        for uuid, begins in self._open.items():
            for begin in begins:
                yield self._text_of("B", uuid, *begin)

    def _event(self, packet: Any, event: Any, sequence: _Sequence, out: list[bytes]) -> None:
        if (packet.timestamp_clock_id or sequence.clock) in _LOCAL_CLOCKS:
            self.left_out["event", "with a clock of its sequence left out"] += 1
            return
        uuid = event.track_uuid or sequence.track
        ts = packet.timestamp
        ts -= ts >> 63 << 64  # negative times are unsigned in the file
        args: dict[str, Any] = {}
        self._size = 0
        for packed in event.debug_annotations:
            entry = self._annotation.FromString(packed)
            key = self._key(entry, sequence)
            args[key] = self._value(entry, sequence)
        kind = event.type
        if kind == END and (begins := self._open.get(uuid)):
            name, cat, begin_ns, before = begins.pop()
            text = self._text_of(
                "X", uuid, name, cat, begin_ns, before | args, dur=microseconds(ts - begin_ns)
            )
            out.append(text)
            return
        name = sequence.names.get(event.name_iid, "") if event.name_iid else _text(event.name)
        cats = [sequence.cats.get(iid, "") for iid in event.category_iids]
        cat = ",".join([*cats, *map(_text, event.categories)])
        if kind == START:
            self._open[uuid].append((name, cat, ts, args))
        elif event.HasField("legacy_event"):
            self.left_out["event", "of chrome's older kinds not read"] += 1
        elif kind == COUNTER:
            track = self._tracks.get(uuid)
            value = (
                event.double_counter_value if event.HasField("double_counter_value") else event.counter_value
            )
            key = (track.unit if track else "") or "value"
            name = name or (track.name if track else None) or ""
            out.append(self._text_of("C", uuid, name, cat, ts, {key: value}))
        elif kind in (END, INSTANT):
            out.append(self._text_of("i" if kind == INSTANT else "E", uuid, name, cat, ts, args))
        for number in event.flow_ids:
            out.append(self._arrow(uuid, number, cat, ts, is_end=number in self._flows))
            self._flows.add(number)
        out.extend(self._arrow(uuid, n, cat, ts, is_end=True) for n in event.terminating_flow_ids)

    def _arrow(self, uuid: int, number: int, cat: str, ts: int, *, is_end: bool) -> bytes:
        """Write an end of an arrow; PyTorch's arrows between operators lead to the backward pass."""
        kind = "fwdbwd" if cat == "cpu_op" else "ac2g"
        phase, bound_to = ("f", "e") if is_end else ("s", None)
        return self._text_of(phase, uuid, kind, kind, ts, {}, id=number, bp=bound_to)

    def _text_of(
        self, phase: str, uuid: int, name: str, cat: str, ts: int, args: dict[str, Any], **more: Any
    ) -> bytes:
        pid, tid = self._place(uuid)
        event = {"ph": phase, "cat": cat or None, "name": name or None, "pid": pid, "tid": tid}
        event |= {"ts": microseconds(ts), **more, "args": args or None}
        return _ENCODE({key: value for key, value in event.items() if value is not None})

    # -- tracks

    def _find_place(self, uuid: int) -> tuple[Any, Any]:
        """Find the pid and tid of a track."""
        track = self._tracks.get(uuid)
        tid: Any = None
        for _ in range(_DEEPEST):
            if track is None:
                break
            if track.thread is not None:
                pid, thread = track.thread
                return pid, thread if tid in (None, track.name, str(thread)) else tid
            if track.process is not None:
                return track.process, 0 if tid is None else tid
            parent = self._tracks.get(track.parent)
            if parent is None:
                return track.name, track.name if tid is None else tid
            if not track.unit and tid is None:
                tid = track.name
            track = parent
        return None, uuid if tid is None else tid

    def _describe(self, descriptor: Any, out: list[bytes]) -> None:
        """Add a track, and append the metadata that names its process or thread."""
        process = descriptor.process if descriptor.HasField("process") else None
        thread = descriptor.thread if descriptor.HasField("thread") else None
        of_thread = thread.thread_name if thread else b""
        name = _text(descriptor.name or descriptor.static_name or of_thread) or None
        self._tracks[descriptor.uuid] = _Track(
            parent=descriptor.parent_uuid,
            name=name,
            process=process.pid if process else None,
            thread=(thread.pid, thread.tid) if thread else None,
            unit=_text(descriptor.counter.unit_name),
        )
        self._place.cache_clear()
        title = (_text(process.process_name) if process else "") or name
        if title is None or self._named.get(descriptor.uuid) == title or not (process or thread):
            return
        self._named[descriptor.uuid] = title
        pid, tid = self._place(descriptor.uuid)
        where = {"pid": pid, "tid": 0 if process else tid}
        kind = "process_name" if process else "thread_name"
        out.append(_ENCODE({"ph": "M", "name": kind, **where, "args": {"name": title}}))

    # -- arguments

    def _key(self, entry: Any, sequence: _Sequence) -> str:
        return self._count(sequence.keys.get(entry.name_iid, "") if entry.name_iid else _text(entry.name))

    def _value(self, entry: Any, sequence: _Sequence) -> Any:
        for kind in _NUMBERS:
            if entry.HasField(kind):
                self._count("")
                return getattr(entry, kind)
        if entry.HasField("string_value"):
            return self._count(_text(entry.string_value))
        if entry.string_value_iid:
            return self._count(sequence.texts.get(entry.string_value_iid, ""))
        if entry.HasField("legacy_json_value"):
            try:
                return msgspec.json.decode(entry.legacy_json_value)
            except UNDECODABLE:
                return _text(entry.legacy_json_value)
        if entry.array_values:
            return [self._value(item, sequence) for item in entry.array_values]
        return {self._key(item, sequence): self._value(item, sequence) for item in entry.dict_entries}

    def _count(self, text: str) -> str:
        self._size += len(text) + _EACH
        if self._size > _LARGEST:
            raise _TooLargeError
        return text


def _text(text: bytes) -> str:
    return text.decode("utf-8", "replace")
