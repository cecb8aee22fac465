"""The packets of Perfetto's format as the events of a chrome trace.

A system that writes both formats is recognised in both:

- a begin and its end become an ``X`` with the arguments of both; without a partner they stay ``B`` or ``E``;
- a thread's track becomes its pid and tid; another track becomes a thread of the track's name, and a track
  below a thread of the same name, for slices that overlap, belongs to that thread;
- an arrow leaves the first slice with its number (``s``) and reaches each other slice with it (``f``).

A file is a list of fields 1, each a `TracePacket`. Numbers and types of fields are from
perfetto/protos/perfetto/trace/perfetto_trace.proto; other fields are skipped.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec import Struct

from analyzer.base.arrays import Int32, Int64, Mask, NDArray
from analyzer.base.arrays.numbering import numbered, unique
from analyzer.base.errors import counted
from analyzer.reading.formats.builder import ALL, Builder, pair
from analyzer.reading.formats.event import UNDECODABLE
from analyzer.reading.formats.perfetto.message_fields import PADDING, _Fields, fields_of
from analyzer.reading.formats.protobuf_messages import declared, is_xla_profile
from analyzer.reading.formats.values import FARTHEST_NS, MOST_DEPTH, NO_TIME, cleaned, microseconds

# tags of fields: their number times 8, and 1 for eight bytes, or 2 for a text or a message
_PACKET = 1 << 3 | 2
_TIMESTAMP, _SEQUENCE, _FLAGS, _CLEARED, _CLOCK = (number << 3 for number in (8, 10, 13, 41, 58))
_EVENT, _INTERNED, _DEFAULTS, _DESCRIPTOR = (number << 3 | 2 for number in (11, 12, 59, 60))
_NAMES_NOT_READ = """1:ftrace_events 2:process_tree 7:sys_stats 9:process_stats 37:profile_packet 38:battery
 39:android_log 43:process_descriptor 44:thread_descriptor 50:compressed_packets 52:gpu_counter_event
 53:gpu_render_stage_event 54:streaming_profile_packet 66:perf_sample 95:etw_events
 133:zstd_compressed_packets"""
_NOT_READ = {int(n) << 3 | 2: name for n, name in (each.split(":") for each in _NAMES_NOT_READ.split())}
# of a TrackEvent
_CAT_IID, _TYPE, _NAME_IID, _TRACK, _COUNT = (number << 3 for number in (3, 9, 10, 11, 30))
_ANNOTATION, _LEGACY, _CAT, _NAME = (number << 3 | 2 for number in (4, 6, 22, 23))
_REAL_COUNT, _FLOW, _LAST_FLOW = (number << 3 | 1 for number in (44, 47, 48))
_START, _END, _INSTANT, _COUNTER = 1, 2, 3, 4  # its types
_ARROW, _ARROW_END, _META, _SLICE = 5, 6, 7, 8  # further kinds of events
_ARROWS, _POINTS = (_ARROW, _ARROW_END), (_INSTANT, _COUNTER, _ARROW, _ARROW_END)
_PHASES = ("", "B", "E", "i", "C", "s", "f", "M", "X")
# of a DebugAnnotation
_KEY_IID, _BOOL, _TEXT_IID = (number << 3 for number in (1, 2, 17))
_TEXT, _JSON, _KEY, _DICT, _LIST = (number << 3 | 2 for number in (6, 9, 10, 11, 12))
_NUMBERS = ((3 << 3, np.uint64), (4 << 3, np.int64), (7 << 3, np.uint64), (5 << 3 | 1, np.float64))

#: Messages that say something for the packets after them.
_SAID = {_INTERNED: "InternedData", _DEFAULTS: "Defaults", _DESCRIPTOR: "TrackDescriptor"}
_MESSAGES = """
InternedData event_categories:1:*Interned event_names:2:*Interned debug_annotation_names:3:*Interned
 debug_annotation_string_values:29:*Interned
Interned iid:1:int64 name:2:bytes
Defaults timestamp_clock_id:58:uint32 track_event_defaults:11:EventDefaults
EventDefaults track_uuid:11:int64
TrackDescriptor uuid:1:int64 parent_uuid:5:int64 name:2:bytes static_name:10:bytes
 process:3:Process thread:4:Thread counter:8:CounterTrack
Process pid:1:int32 process_name:6:bytes
Thread pid:1:int32 tid:2:int64 thread_name:5:bytes
CounterTrack unit_name:6:bytes
"""
# what messages say: the fields of InternedData, and defaults
_CATS, _NAMES, _KEYS, _TEXTS, _TRACKS, _CLOCKS = 1, 2, 3, 29, -1, -2
_LARGEST = 4 << 20  # bytes of a packet
_LOCAL_CLOCKS = 64, 128  # clocks of one sequence only
_BATCH = 1 << 20  # bytes of JSON in a piece
_DEEPEST = 8  # tracks above a track
_UNSIGNED = 1 << 64
_ENCODE = msgspec.json.Encoder().encode
_Change = tuple[int, int, dict[int, int] | None]  # packet, sequence, what is said; None: all is forgotten


def recognises(head: bytes) -> bool:
    """Check whether a file begins with a packet that has a known field, followed by a packet."""
    if head[:1] != b"\n" or is_xla_profile(head):
        return False
    size, begin = _varint(head, 1)
    end = begin + size
    if not 0 < size <= len(head) - begin or (end < len(head) and head[end] != _PACKET):
        return False
    fields, is_damaged = fields_of(head + PADDING, np.array([begin]), np.array([end]))
    known = {_TIMESTAMP, _SEQUENCE, _FLAGS, _CLEARED, _CLOCK, _EVENT, *_SAID, *_NOT_READ}
    return not is_damaged[0] and not known.isdisjoint(fields.tag.tolist())


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Decode the number at a byte; also the byte after it, or (-1, `position`) if it does not end."""
    value = 0
    for i, byte in enumerate(data[position : position + 10]):
        value |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            return value, position + i + 1
    return -1, position


def read(pieces: Iterable[bytes], repairs: list[str], rows: Builder | None) -> Iterator[bytes]:
    """Add the events of a file to `rows`, or yield their JSON; `repairs` then describes the missing parts."""
    yield b'{"traceEvents":['  # by which the beginning of a file is recognised
    events = _Events(rows or Builder((ALL,), points=True))
    for packets in _packets(pieces, repairs):
        events.add(*packets)
    if rows is None:
        yield from _json_of(events.finished())
    else:
        _fill(rows, events.finished())
    yield b"]}"
    repairs += [f"{counted(n, noun)} {fate}" for (noun, fate), n in events.left_out.items() if n]


def _packets(pieces: Iterable[bytes], repairs: list[str]) -> Iterator[tuple[bytes, Int64, Int64]]:
    """Yield the whole packets of each piece: its bytes, and where packets begin and end."""
    data, done, is_damaged = b"", 0, False
    for piece in pieces:
        data += piece
        position, n = 0, len(data)
        begins, ends = [], []
        while position < n:
            begin = position + 2
            size = data[position + 1] if begin <= n else 0x80
            if size > 0x7F:  # most packets are shorter
                size, begin = _varint(data, position + 1)
            is_damaged = data[position] != _PACKET or size > _LARGEST or (size < 0 and n - position > 10)
            if is_damaged or size < 0 or begin + size > n:
                break
            position = begin + size
            begins.append(begin)
            ends.append(position)
        yield data[:position] + PADDING, np.array(begins, np.int64), np.array(ends, np.int64)
        data, done = data[position:], done + position
        if is_damaged:
            repairs.append(f"damaged after {done:,} bytes: the rest is left out")
            return
    if data:
        repairs.append(f"cut off inside a packet, after {done:,} bytes")


class _Track(Struct):
    """A track as described in the file."""

    parent: int
    name: str
    process: int | None  # the pid
    thread: tuple[int, int] | None
    unit: str


class _Finished(NamedTuple):
    """The events (n,) of a file, in the order in which they are complete."""

    keys: list[tuple[Any, ...]]  # distinct (phase, name, category, pid, tid)
    key: Int32
    kind: Int64
    ts_ns: Int64
    dur_ns: Int64
    number: Int64  # of an arrow
    args: dict[int, dict[str, Any]]  # of some events


class _Events:
    """Events of packets, a piece of the file at a time, with the arguments that `rows` wants."""

    def __init__(self, rows: Builder) -> None:
        self.left_out: Counter[tuple[str, str]] = Counter()
        self._wants, self._wants_all = rows.wants, ALL in rows.wanted
        self._number = defaultdict(itertools.count(1).__next__, {b"": 0})  # of each text
        #: What packets said, by its kind and their sequence.
        self._said: defaultdict[int, defaultdict[int, dict[int, int]]] = defaultdict(
            lambda: defaultdict(dict)
        )
        self._changes: defaultdict[int, list[_Change]] = defaultdict(list)  # in the current piece
        self._wanted_iids: set[int] = set()
        self._tracks: dict[int, _Track] = {}
        self._named: dict[int, str] = {}  # the names last written, by track
        self._titles: list[str] = []  # of the processes and threads, as events name them
        self._n = 0
        # of events: phase, track, name, category, time, number of an arrow; of arguments: row, key, value
        self._columns = [(np.empty(0, np.int64),) * 6]
        self._arguments, self._values = [(np.empty(0, np.int64),) * 2], list[Any]()
        self._data, self._sequence = b"", np.empty(0, np.int64)  # of the current piece, and of its packets

    def add(self, data: bytes, begin: Int64, end: Int64) -> None:
        """Add the packets (n,) of a piece."""
        n = len(begin)
        packets, is_damaged = fields_of(data, begin, end)
        messages = packets.tagged(_EVENT)
        fields, is_bad = fields_of(data, messages.begin, messages.begin + messages.value)
        fields = fields._replace(message=messages.message[fields.message])
        is_damaged[messages.message[is_bad]] = True
        self._data, self._sequence = data, packets.column(_SEQUENCE, n)
        is_event = packets.has(_EVENT, n)
        described = self._learn(packets, is_event, is_damaged)
        self.left_out["damaged packet", "left out"] += int(is_damaged.sum())
        for tag in packets.tag[~(is_event | is_damaged)[packets.message]].tolist():
            if tag in _NOT_READ:
                self.left_out["packet", f"of {_NOT_READ[tag]} not read"] += 1
        is_event &= ~is_damaged
        clock = self._or_default(_CLOCKS, packets.column(_CLOCK, n), is_event)
        is_local = is_event & (clock >= _LOCAL_CLOCKS[0]) & (clock < _LOCAL_CLOCKS[1])
        self.left_out["event", "with a clock of its sequence left out"] += int(is_local.sum())
        is_event &= ~is_local
        args = self._annotations(fields.tagged(_ANNOTATION), is_event)
        kind = fields.column(_TYPE, n)
        is_legacy = is_event & fields.has(_LEGACY, n) & (kind != _START) & (kind != _END)
        self.left_out["event", "of chrome's older kinds not read"] += int(is_legacy.sum())
        track = self._or_default(_TRACKS, fields.column(_TRACK, n), is_event)
        name, cat = self._names(fields, n), self._cats(fields, n)
        arrows = fields.tagged(_FLOW, _LAST_FLOW)
        arrows = arrows.select(is_event[arrows.message] & (kind[arrows.message] != _END))
        is_row = is_event & ~is_legacy & (kind >= _START) & (kind <= _COUNTER)
        for i, uuid, what in described:
            is_row[i], kind[i], track[i], name[i] = True, _META, uuid, what
        main = np.flatnonzero(is_row)
        packet = np.append(main, arrows.message)
        order = np.argsort(packet, kind="stable")
        phase = np.append(kind[main], _ARROW + (arrows.tag == _LAST_FLOW))[order]
        number, packet = np.append(np.zeros_like(main), arrows.value)[order], packet[order]
        ts = packets.column(_TIMESTAMP, n)
        self._columns.append((phase, track[packet], name[packet], cat[packet], ts[packet], number))
        row = np.empty(n, np.int64)
        row[main] = self._n + np.flatnonzero((phase != _ARROW) & (phase != _ARROW_END))
        self._n += len(packet)
        counters = np.flatnonzero(is_row & (kind == _COUNTER) & self._wants_all)
        real, count = (fields.column(tag, n)[counters] for tag in (_REAL_COUNT, _COUNT))
        has_real = fields.has(_REAL_COUNT, n)[counters]
        counts = np.where(has_real, real.view(np.float64).astype(object), count.astype(object))
        for of_arg, key, values in (args, (counters, np.full(len(counters), -1), counts)):
            kept = is_row[of_arg]
            self._arguments.append((row[of_arg[kept]], key[kept]))
            self._values += values[kept].tolist()

    # ---- what packets say for the following ones of their sequence

    def _learn(self, packets: _Fields, is_event: Mask, is_damaged: Mask) -> list[tuple[int, int, int]]:
        """Note the texts, defaults and tracks of a piece, and mark damaged packets.

        Lists the packets that name a process or thread, with their track and the event's name.
        """
        from google.protobuf.message import DecodeError

        self._changes.clear()
        described: list[tuple[int, int, int]] = []
        is_cleared = packets.column(_FLAGS, len(is_event)) & 1 | packets.column(_CLEARED, len(is_event))
        cleared = ((packet, 0, 0, 0) for packet in np.flatnonzero(is_cleared).tolist())
        said = zip(*(column.tolist() for column in packets.tagged(*_SAID)), strict=True)
        for packet, tag, size, begin in sorted([*cleared, *said]):
            if is_damaged[packet] or (tag == _DESCRIPTOR and is_event[packet]):
                continue
            message: Any = None
            changes: dict[int, Any] = dict.fromkeys((_CATS, _NAMES, _KEYS, _TEXTS, _TRACKS, _CLOCKS))
            try:
                if tag:
                    message = _class(tag).FromString(self._data[begin : begin + size])
            except DecodeError:
                is_damaged[packet] = True
                continue
            if tag == _DESCRIPTOR:
                changes = {}
                if what := self._describe(message):
                    described.append((packet, message.uuid, self._number[what]))
            elif tag == _DEFAULTS:
                track, clock = message.track_event_defaults.track_uuid, message.timestamp_clock_id
                changes = {kind: {0: value} for kind, value in ((_TRACKS, track), (_CLOCKS, clock)) if value}
            elif tag == _INTERNED:
                changes = {
                    field.number: {entry.iid: self._number[entry.name] for entry in entries}
                    for field, entries in message.ListFields()
                }
                keys = message.debug_annotation_names
                self._wanted_iids.update(entry.iid for entry in keys if self._wants(_text(entry.name)))
            for kind, entries in changes.items():
                self._changes[kind].append((packet, int(self._sequence[packet]), entries))
        return described

    def _as_of(self, kind: int, packet: Int64, iid: Int64) -> Int64:
        """Look up what was said by each packet (k,) in its sequence, once in a piece; 0: nothing."""
        said, order = self._said[kind], np.argsort(packet, kind="stable")
        packets, iids = packet[order].tolist(), iid[order].tolist()
        sequences = self._sequence[packet[order]].tolist()
        values: list[int] = []
        for change, sequence, entries in (*self._changes[kind], (len(self._sequence), 0, {})):
            low, high = len(values), bisect_left(packets, change)
            pairs = zip(sequences[low:high], iids[low:high], strict=True)
            values += [said[writer].get(key, 0) for writer, key in pairs] if said else [0] * (high - low)
            if entries is None:
                said.pop(sequence, None)
            elif entries:
                said[sequence].update(entries)
        looked_up = np.zeros(len(packet), np.int64)
        looked_up[order] = values
        return looked_up

    def _or_default(self, kind: int, column: Int64, is_event: Mask) -> Int64:
        missing = np.flatnonzero(is_event & (column == 0))
        column[missing] = self._as_of(kind, missing, np.zeros_like(missing))
        return column

    def _texts_of(self, fields: _Fields) -> list[int]:
        data, spans = self._data, zip(fields.begin.tolist(), fields.value.tolist(), strict=True)
        return [self._number[data[begin : begin + size]] for begin, size in spans]

    def _names(self, fields: _Fields, n: int) -> Int64:
        name, iid, written = np.zeros(n, np.int64), fields.column(_NAME_IID, n), fields.tagged(_NAME)
        name[written.message] = self._texts_of(written)
        interned = np.flatnonzero(iid)
        name[interned] = self._as_of(_NAMES, interned, iid[interned])
        return name

    def _cats(self, fields: _Fields, n: int) -> Int64:
        """Categories of packets (n,), joined by commas."""
        cat, interned, written = np.zeros(n, np.int64), fields.tagged(_CAT_IID), fields.tagged(_CAT)
        packet = np.append(interned.message, written.message)
        numbers = np.append(self._as_of(_CATS, interned.message, interned.value), self._texts_of(written))
        cat[packet] = numbers
        several = np.flatnonzero((np.bincount(packet, minlength=n) > 1)[packet])
        several = several[np.argsort(packet[several], kind="stable")]
        pairs = zip(packet[several].tolist(), numbers[several].tolist(), strict=True)
        texts = list(self._number) if len(several) else []
        for of_packet, group in itertools.groupby(pairs, itemgetter(0)):
            cat[of_packet] = self._number[b",".join(texts[int(number)] for _, number in group)]
        return cat

    # ---- tracks

    def _describe(self, descriptor: Any) -> bytes:
        """Add a track; the event's name if this names its process or thread anew."""
        process = descriptor.process if descriptor.HasField("process") else None
        thread = descriptor.thread if descriptor.HasField("thread") else None
        of_thread = thread.thread_name if thread else b""
        name = _text(descriptor.name or descriptor.static_name or of_thread)
        self._tracks[descriptor.uuid] = _Track(
            parent=descriptor.parent_uuid,
            name=name,
            process=process.pid if process else None,
            thread=(thread.pid, thread.tid) if thread else None,
            unit=_text(descriptor.counter.unit_name),
        )
        title = (_text(process.process_name) if process else "") or name
        if not title or self._named.get(descriptor.uuid) == title or not (process or thread):
            return b""
        self._named[descriptor.uuid] = title
        self._titles.append(title)
        return b"process_name" if process else b"thread_name"

    def _place(self, uuid: int) -> tuple[Any, Any]:
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
                return track.name or None, (track.name or None) if tid is None else tid
            if not track.unit and tid is None:
                tid = track.name or None
            track = parent
        return None, uuid % _UNSIGNED if tid is None else tid

    # ---- arguments

    def _annotations(self, top: _Fields, is_event: Mask) -> tuple[Int64, Int64, NDArray[np.object_]]:
        """List the packets, keys and values of wanted arguments; leave out events with damaged ones."""
        packet, parent = top.message, np.full(len(top.message), -1)
        begin, end = top.begin, top.begin + top.value
        packets, parents, parts, n = [packet], [parent], [top.select(top.tag < 0)], 0
        while len(packet) and len(parents) <= MOST_DEPTH:
            fields, is_bad = fields_of(self._data, begin, end)
            if not n:
                bad = unique(packet[is_bad & is_event[packet]])
                is_event[bad] = False
                self.left_out["event", "with damaged arguments left out"] += len(bad)
                may_be = np.isin(fields.column(_KEY_IID, len(packet)), list(self._wanted_iids))
                fields = fields.select((may_be | fields.has(_KEY, len(packet)))[fields.message])
            elif is_bad.any():
                self.left_out["argument", "with damaged parts"] += int(is_bad.sum())
            inner = fields.tagged(_DICT, _LIST)
            parts.append(fields._replace(message=fields.message + n))
            parent, n, packet = inner.message + n, n + len(packet), packet[inner.message]
            begin, end = inner.begin, inner.begin + inner.value
            packets.append(packet)
            parents.append(parent)
        fields = _Fields(*map(np.concatenate, zip(*parts, strict=True)))
        packet, parent = np.concatenate(packets), np.concatenate(parents)
        written, iid = fields.tagged(_KEY), fields.column(_KEY_IID, len(packet))
        key, interned = np.zeros_like(packet), np.flatnonzero(iid)
        key[written.message] = self._texts_of(written)
        key[interned] = self._as_of(_KEYS, packet[interned], iid[interned])
        texts = list(map(_text, self._number))
        values = self._values_of(fields, packet, texts)
        inside = np.flatnonzero(parent >= 0)
        for child, of_child in zip(inside.tolist(), parent[inside].tolist(), strict=True):
            if isinstance(values[of_child], list):
                values[of_child].append(values[child])
            else:
                values[of_child][texts[key[child]]] = values[child]
        wanted = [number for number in unique(key).tolist() if self._wants(texts[number])]
        kept = np.flatnonzero((parent < 0) & np.isin(key, wanted))
        return packet[kept], key[kept], values[kept]

    def _values_of(self, fields: _Fields, packet: Int64, texts: list[str]) -> NDArray[np.object_]:
        """Values of annotations (n,); lists and dictionaries are empty."""
        values = np.empty(len(packet), np.object_)
        values.fill({})  # of an annotation without a value; there are few
        for tag, kind in _NUMBERS:
            chosen = fields.tagged(tag)
            values[chosen.message] = chosen.value.view(kind).astype(object)
        chosen = fields.tagged(_BOOL)
        values[chosen.message] = (chosen.value != 0).astype(object)
        chosen = fields.tagged(_TEXT_IID)
        numbers = self._as_of(_TEXTS, packet[chosen.message], chosen.value)
        values[chosen.message] = np.array(texts, np.object_)[numbers]
        contents = fields.tagged(_TEXT, _JSON, _DICT, _LIST)
        for i, tag, size, begin in zip(*(column.tolist() for column in contents), strict=True):
            values[i] = _CONTENTS[tag](self._data[begin : begin + size])
        return values

    # ---- all events

    def finished(self) -> _Finished:
        """Pair begins with ends and order the events: a slice has the place of its end."""
        phase, track, name, cat, ts, number = map(np.concatenate, zip(*self._columns, strict=True))
        uuids, inverse = np.unique(track, return_inverse=True)
        track = inverse.astype(np.int32)
        bounds = np.flatnonzero((phase == _START) | (phase == _END))
        no_name = np.full(len(bounds), -1, np.int32)
        begin, end = (
            bounds[index] for index in pair(phase[bounds] == _START, track[bounds], bounds, no_name)
        )
        is_far = np.abs(ts) > FARTHEST_NS
        dur = np.zeros_like(ts)
        dur[end] = np.where(is_far[begin] | is_far[end], -1, ts[end] - ts[begin])
        ts[is_far] = NO_TIME
        for column in (name, cat, ts):
            column[end] = column[begin]
        phase[end], phase[begin] = _SLICE, 0
        order = np.append(np.flatnonzero(phase > _START), np.flatnonzero(phase == _START))
        arrows = np.flatnonzero(phase == _ARROW)
        phase[arrows] = _ARROW_END
        phase[arrows[np.unique(number[arrows], return_index=True)[1]]] = _ARROW
        is_arrow = np.isin(phase, _ARROWS)
        # PyTorch's arrows between operators lead to the backward pass
        kinds = np.where(cat == self._number[b"cpu_op"], self._number[b"fwdbwd"], self._number[b"ac2g"])
        name[is_arrow] = cat[is_arrow] = kinds[is_arrow]
        tracks = [self._tracks.get(uuid) for uuid in uuids.tolist()]
        counters = np.flatnonzero((phase == _COUNTER) & (name == 0))
        names = [self._number[track.name.encode()] if track else 0 for track in tracks]
        name[counters] = np.array(names, np.int64)[track[counters]]
        row, key = map(np.concatenate, zip(*self._arguments, strict=True))
        counts = np.flatnonzero(key < 0)
        units = [self._number[(track.unit if track else "").encode() or b"value"] for track in tracks]
        key[counts] = np.array(units, np.int64)[track[row[counts]]]
        place = np.empty(len(phase), np.int64)
        place[order] = np.arange(len(order))
        place[begin] = place[end]
        texts, places = list(map(_text, self._number)), [self._place(uuid) for uuid in uuids.tolist()]
        columns = [column[order].tolist() for column in (phase, name, cat, track)]
        codes, key_of = numbered(zip(*columns, strict=True))
        keys = [(_PHASES[p], texts[n] or None, texts[c] or None, *places[t]) for p, n, c, t in codes]
        args: defaultdict[int, dict[str, Any]] = defaultdict(dict)
        rows, words = place[row].tolist(), key.tolist()
        for i in np.argsort(place[row], kind="stable").tolist():
            args[rows[i]][texts[words[i]]] = self._values[i]
        for of_row, title in zip(np.flatnonzero(phase[order] == _META).tolist(), self._titles, strict=True):
            args[of_row]["name"] = title
        return _Finished(keys, key_of, phase[order], ts[order], dur[order], number[order], args)


def _fill(rows: Builder, table: _Finished) -> None:
    """Add events to rows."""
    keys, key, phase, ts, dur, number, args = table
    is_point = np.isin(phase, _POINTS)
    numbers = zip(number[is_point].tolist(), np.isin(phase[is_point], _ARROWS).tolist(), strict=True)
    ids = [str(number % _UNSIGNED) if is_arrow else None for number, is_arrow in numbers if rows.with_points]
    rows.add_columns(keys, key, (ts, dur), ids, np.array([*args], np.int64), [*args.values()])
    for i in np.flatnonzero(phase == _META).tolist():
        _, name, _, pid, tid = keys[key[i]]
        rows.metadata.append({"name": name, "pid": pid, "tid": tid, "args": args[i]})
    if rows.with_points and ALL in rows.wanted:
        rows.point_args += [
            cleaned(args.get(i, {})) for i in np.flatnonzero(is_point & (ts != NO_TIME)).tolist()
        ]


def _json_of(table: _Finished) -> Iterator[bytes]:
    """Yield the JSON of events, about 1 MiB at a time."""
    keys, args = table.keys, table.args
    batch, size, comma = [], 0, b""
    rows = zip(*(column.tolist() for column in table[1:-1]), strict=True)
    for i, (key, kind, ts, dur, number) in enumerate(rows):
        phase, name, cat, pid, tid = keys[key]
        event: dict[str, Any] = {"ph": phase, "cat": cat, "name": name, "pid": pid, "tid": tid}
        event["ts"] = None if kind == _META else microseconds(ts)
        event["dur"] = microseconds(dur) if kind == _SLICE else None
        event |= {"id": number % _UNSIGNED, "bp": "e" if phase == "f" else None} if kind in _ARROWS else {}
        event["args"] = args.get(i)
        batch.append(_ENCODE({member: value for member, value in event.items() if value is not None}))
        size += len(batch[-1])
        if size > _BATCH:
            yield comma + b",".join(batch)
            batch, size, comma = [], 0, b","
    if batch:
        yield comma + b",".join(batch)


@lru_cache
def _class(tag: int) -> Any:
    """Make the class of a message in `_SAID`."""
    return declared(_MESSAGES)[_SAID[tag]]


def _text(text: bytes) -> str:
    return text.decode("utf-8", "replace")


def _json(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except UNDECODABLE:
        return _text(text)


_CONTENTS: dict[int, Callable[[bytes], Any]] = {
    _TEXT: _text, _JSON: _json, _DICT: lambda _: {}, _LIST: lambda _: [],
}  # fmt: skip
