"""Chrome traces as packets of Perfetto's format, which is how every ``--output`` writes a ``.pftrace``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import IO, Any

import msgspec

from formats.event import NO_TIME, args_object
from formats.perfetto.trace_packets import CLEARED, COUNTER, END, EXPLICIT, INSTANT, START, messages
from formats.times import exact_ns
from formats.whole import ExactWholeEvent, WholeReader
from outputs.marks import MEMBER, PROGRAM

_SEQUENCE = 1
_MOST_INTERNED = 1 << 16  # texts that are numbered; then numbering begins anew
_INT32 = range(-(1 << 31), 1 << 31)
_INT64 = range(-(1 << 63), 1 << 63)
_ENCODE = msgspec.json.Encoder().encode


def write_packets(source: Path, file: IO[bytes]) -> None:
    """Write the chrome trace `source` as packets."""
    reader = WholeReader(source)
    reader.use(ExactWholeEvent)
    packets = _Packets()
    told = packets.add_header({MEMBER: PROGRAM})
    for events, _ in reader:
        told = packets.add_header(reader.header, told)
        for event in events:
            packets.add(event)
        file.write(packets.take())
    packets.release()
    packets.add_header(reader.header, told)
    file.write(packets.take())


class _Packets:
    """Events to packets, in their order."""

    def __init__(self) -> None:
        self._trace, self._packet = messages()["Trace"], messages()["TracePacket"]
        self._annotation = messages()["Annotation"]
        self._out = self._trace()
        self._interned: dict[tuple[str, str], int] = {}
        self._uuids: dict[tuple[Any, ...], int] = {}
        self._names: dict[tuple[Any, ...], dict[str, Any]] = {}  # what metadata say of processes and threads
        #: Of a thread: its tracks, and what is open on each.
        self._lanes: dict[int, list[tuple[int, list[int]]]] = {}
        self._ids: dict[Any, int] = {}
        self._is_cleared = False
        self._held: list[tuple[int, Any]] = []

    def take(self) -> bytes:
        """Return the packets added since the last call."""
        data: bytes = self._out.SerializeToString()
        self._out = self._trace()
        return data

    def add_header(self, members: Mapping[str, Any], known: Collection[str] = ()) -> Collection[str]:
        """Add members beside the events, a packet each; the first of all marks the file as ours."""
        for name in (name for name in members if name not in known):
            told = self._out.packet.add(trusted_packet_sequence_id=_SEQUENCE).chrome_events.metadata.add()
            told.name, told.json_value = _bytes(name), _ENCODE(members[name])
        return {*known, *members}

    def add(self, event: Any) -> None:
        """Add one event."""
        name = event.name if isinstance(event.name, str) else "" if event.name is None else str(event.name)
        if event.ph == "M" and self._is_name(event, name):
            return
        ts, dur = (exact_ns(_number(value)) for value in (event.ts, event.dur))
        ts = 0 if ts == NO_TIME else ts
        if self._held and ts != self._held[0][0]:
            self.release()
        if event.ph in _ARROWS:
            self._held.append((ts, event))
        else:
            self._add(event, name, ts, dur)

    def release(self) -> None:
        """Add the arrows of one instant, after its slices: Perfetto binds them to one that has begun."""
        held, self._held = self._held, []
        for ts, event in held:
            self._add(event, str(event.name or ""), ts, 0)

    def _add(self, event: Any, name: str, ts: int, dur: int) -> None:
        uuid = self._track(event.pid, event.tid)
        args = args_object(event.args)
        if event.ph == "X":
            dur = max(0, dur)
            uuid = self._lane(uuid, event, ts, ts + dur)
            self._event(START, uuid, ts, name, event.cat, args)
            last = self._out.packet.add(timestamp=(ts + dur) & _MASK, trusted_packet_sequence_id=_SEQUENCE)
            last.track_event.type, last.track_event.track_uuid = END, uuid
        elif event.ph in _KINDS:
            self._event(_KINDS[event.ph], uuid, ts, name, event.cat, args)
        elif event.ph == "C" and args and all(type(one) in (int, float) for one in args.values()):
            for key, value in args.items():
                packet = self._event(COUNTER, self._counter(event.pid, name, key), ts, "", event.cat, {})
                if type(value) is int and value in _INT64:
                    packet.track_event.counter_value = value
                else:
                    packet.track_event.double_counter_value = value
        else:
            legacy = self._event(0, uuid, ts, name, event.cat, args).track_event.legacy_event
            legacy.phase = ord(event.ph[:1] or "i")
            legacy.bind_to_enclosing = event.bp == "e"
            if event.id is not None:
                legacy.unscoped_id = self._number(event.id)

    def _event(self, kind: int, uuid: int, ts: int, name: str, cat: Any, args: dict[str, Any]) -> Any:
        packet = self._out.packet.add(timestamp=ts & _MASK, trusted_packet_sequence_id=_SEQUENCE)
        if len(self._interned) > _MOST_INTERNED:
            self._interned.clear()
            self._is_cleared = False
        packet.sequence_flags = 2 if self._is_cleared else 2 | CLEARED
        self._is_cleared = True
        told = packet.track_event
        told.track_uuid = uuid
        if kind:
            told.type = kind
        if name:
            told.name_iid = self._iid(packet, "event_names", name)
        if cat not in (None, ""):
            told.category_iids.append(self._iid(packet, "event_categories", str(cat)))
        for key, value in args.items():
            note = self._annotation(name_iid=self._iid(packet, "debug_annotation_names", key))
            if isinstance(value, str):
                note.string_value = _bytes(value)
            elif type(value) is int and value in _INT64:
                note.int_value = value
            else:
                note.legacy_json_value = _ENCODE(value)
            told.debug_annotations.append(note.SerializeToString())
        return packet

    def _iid(self, packet: Any, table: str, text: str) -> int:
        iid = self._interned.get((table, text))
        if iid is None:
            iid = self._interned[table, text] = len(self._interned) + 1
            getattr(packet.interned_data, table).add(iid=iid, name=_bytes(text))
        return iid

    def _number(self, value: Any) -> int:
        """Return an id as a number; texts get numbers of their own."""
        text = str(value)
        if text.isdecimal() and len(text) < 20 and int(text) < 1 << 62:
            return int(text)
        return self._ids.setdefault(text, (1 << 62) + len(self._ids))

    # -- tracks

    def _is_name(self, event: Any, name: str) -> bool:
        """Whether a metadata event says something new of a process or a thread; then its track says so."""
        kind, _, what = name.partition("_")
        args = args_object(event.args)
        if kind not in ("process", "thread") or what not in ("name", "labels", "sort_index"):
            return False
        value = args.get(what)
        if what == "sort_index" and not (isinstance(value, int) and value in _INT32):
            return True
        key = (event.pid,) if kind == "process" else (event.pid, event.tid)
        names = self._names.setdefault(key, {})
        if names.get(what) == value:
            return False
        names[what] = value
        if key in self._uuids:
            self._describe(key)
        elif kind == "process":
            self._process(event.pid)
        else:
            self._track(*key)
        return True

    def _process(self, pid: Any) -> int:
        return self._uuids.get((pid,)) or self._describe((pid,))

    def _track(self, pid: Any, tid: Any) -> int:
        uuid = self._uuids.get((pid, tid))
        if uuid is None:
            self._process(pid)
            uuid = self._describe((pid, tid))
        return uuid

    def _describe(self, key: tuple[Any, ...]) -> int:
        """Write the descriptor of a process (pid,) or a thread (pid, tid); return its number."""
        uuid = self._uuids.setdefault(key, len(self._uuids) + 1)
        told = self._descriptor(uuid)
        names = self._names.get(key, {})
        order = names.get("sort_index")
        own = None if names.get("name") is None else str(names["name"])
        is_process = len(key) == 1
        if is_process and type(key[0]) is int and key[0] in _INT32:
            told.process.pid = key[0]
            if own is not None:
                told.process.process_name = _bytes(own)
            if names.get("labels") is not None:
                told.process.process_labels.append(_bytes(str(names["labels"])))
            if order is not None:
                told.process.legacy_sort_index = order
        elif (
            not is_process and all(type(one) is int for one in key) and key[0] in _INT32 and key[1] in _INT64
        ):
            told.thread.pid, told.thread.tid = key
            if own is not None:
                told.thread.thread_name = _bytes(own)
            if order is not None:
                told.thread.legacy_sort_index = order
        else:
            told.name = _bytes(str(key[-1]) if own is None else own)
            told.description = _ENCODE(key[-1])
            if not is_process:
                told.parent_uuid = self._uuids[key[:1]]
        if is_process:
            told.child_ordering = EXPLICIT
        if order is not None:
            told.sibling_order_rank = order
        return uuid

    def _descriptor(self, uuid: int) -> Any:
        told = self._out.packet.add(trusted_packet_sequence_id=_SEQUENCE).track_descriptor
        told.uuid = uuid
        return told

    def _counter(self, pid: Any, name: str, key: str) -> int:
        place = (pid, name, key)
        if place not in self._uuids:
            self._uuids[place] = len(self._uuids) + 1
            told = self._descriptor(self._uuids[place])
            told.parent_uuid, told.name = self._process(pid), _bytes(name)
            told.counter.unit_name = _bytes(key)
        return self._uuids[place]

    def _lane(self, uuid: int, event: Any, start: int, end: int) -> int:
        """Return the track of a slice: its thread's, or one below it where it would overlap another."""
        lanes = self._lanes.setdefault(uuid, [(uuid, [])])
        for number, ends in lanes:
            while ends and ends[-1] <= start:
                ends.pop()
            if not ends or end <= ends[-1]:
                ends.append(end)
                return number
        new = self._uuids[uuid, len(lanes), "lane"] = len(self._uuids) + 1
        lanes.append((new, [end]))
        told = self._descriptor(new)
        told.parent_uuid = uuid
        name = self._names.get((event.pid, event.tid), {}).get("name")
        told.name = _bytes(str(event.tid if name is None else name))
        return new


_MASK = (1 << 64) - 1
_ARROWS = ("s", "t", "f")
_KINDS = {"B": START, "E": END, "i": INSTANT, "I": INSTANT}


def _number(value: Any) -> str:
    """Return a time as text, which is how most were decoded."""
    if isinstance(value, msgspec.Raw):
        return bytes(value).decode("ascii", "replace").strip('"')
    return str(value)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")
