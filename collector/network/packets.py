"""TCP segments of packet captures (pcap and pcapng, plain or gzip), which scapy reads."""

from __future__ import annotations

import gzip
import logging
import os
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, cast

from msgspec import Struct, field

from analyzer.base.errors import TraceError, optional
from analyzer.base.inputs import opened, unreadable
from analyzer.reading.formats.values import FARTHEST_NS

if TYPE_CHECKING:
    from collector.network.pslite import Node
    from collector.network.transfers import Connection

_LARGEST = 1 << 20  # bytes of a packet; captures hold at most 512 KiB

#: tcpdump numbers the files when it begins a new one after some size or time (`worker_0.pcap1`).
_NAME = re.compile(r"\.(pcap|pcapng|cap)[0-9]*(\.gz)?$", re.IGNORECASE)
#: Bytes of the header by link type.
_LINKS = {
    1: 14,  # Ethernet
    113: 16,  # Linux cooked
    276: 20,  # Linux cooked, version 2
    **dict.fromkeys((0, 108), 4),  # BSD and OpenBSD loopback
    **dict.fromkeys((12, 14, 101, 228, 229), 0),  # raw IP, as different systems number it
}
_VLAN = (b"\x81\x00", b"\x88\xa8", b"\x91\x00")
_HOMES = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")

SYN, ACK = 2, 16


class Capture(Struct):
    """A capture with its traffic of ps-lite, counts and damage, filled while it is read."""

    path: Path
    n_packets: int = 0
    n_cut: int = 0  # packets that are shorter than on the wire
    other_links: set[int] = field(default_factory=set)  # link types that cannot be decoded
    damage: str = ""  # why reading stopped before the end
    n_connections: int = 0  # TCP connections of any kind
    lost_bytes: int = 0  # of TCP streams
    n_unanswered: int = 0  # requests without response
    n_unasked: int = 0  # responses without request
    connections: Sequence[Connection] = ()  # those with transfers
    nodes: set[Node] = field(default_factory=set)  # as the scheduler announced them, if that was captured

    @property
    def n_transfers(self) -> int:
        """Transfers of all connections."""
        return sum(len(connection.transfers) for connection in self.connections)


Ends = tuple[bytes, int, bytes, int]  # source address, source port, destination address, port


class Segment(NamedTuple):
    """One TCP segment with its captured payload; `length` bytes were sent."""

    ts_ns: int
    ends: Ends
    seq: int
    flags: int
    payload: bytes
    length: int


def is_capture(path: Path) -> bool:
    """Check `path` for the name of a packet capture."""
    return _NAME.search(path.name) is not None


def read_segments(capture: Capture) -> Iterator[Segment]:
    """Yield the TCP segments of ``capture.path``; damage ends them and is noted in `capture`.

    Raises TraceError where the file cannot be opened, is empty, or is not a capture.
    """
    for ts_ns, link, data, length in _packets(capture):
        capture.n_packets += 1
        capture.n_cut += length > len(data)
        offset = _LINKS.get(link)
        if offset is None:
            capture.other_links.add(link)
            continue
        while link == 1 and data[offset - 2 : offset] in _VLAN:
            offset += 4
        if (segment := _segment(ts_ns, data, offset, length)) is not None:
            yield segment


def _packets(capture: Capture) -> Iterator[tuple[int, int, bytes, int]]:
    """Yield time, link type, bytes, and length on the wire of each packet."""
    reader_class, scapy_error = _scapy()
    damaged = (EOFError, OverflowError, OSError, struct.error, zlib.error, scapy_error)
    with _opened(capture.path) as file:
        try:
            reader = reader_class(file)
        except damaged:
            reason = (
                "not a packet capture (neither pcap nor pcapng)" if capture.path.stat().st_size else "empty"
            )
            raise TraceError(f"{capture.path}: {reason}: no packets in it") from None
        is_next_generation = hasattr(reader, "_read_block")
        read = reader._read_block if is_next_generation else reader._read_packet
        whole = file.tell()  # end of the last whole packet
        while True:
            try:
                packet = read(_LARGEST)
            except damaged:
                break
            if packet is not None:
                data, about = packet
                ts_ns = _time_ns(about, nano=not is_next_generation and reader.nano)
                is_whole = is_next_generation or len(data) == about.caplen
                if not is_whole or not 0 <= ts_ns < FARTHEST_NS:
                    break
                link = about.linktype if is_next_generation else reader.linktype & 0xFFFF
                yield ts_ns, link, data, max(about.wirelen, len(data))
            whole = file.tell()
        try:
            is_whole = file.tell() == whole and not file.read(1)
        except damaged:
            is_whole = False
        if not is_whole:
            capture.damage = f"damaged or cut off at byte {whole:,}: the rest was not read"


def _opened(path: Path) -> IO[bytes]:
    try:
        file = opened(path)
    except OSError as error:
        raise unreadable(path, error) from error
    is_packed = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    return cast("IO[bytes]", gzip.GzipFile(fileobj=file)) if is_packed else file


def _time_ns(about: Any, *, nano: bool) -> int:
    if hasattr(about, "sec"):
        return int(about.sec * 10**9 + about.usec * (1 if nano else 1000))
    ticks = (about.tshigh or 0) << 32 | (about.tslow or 0)  # a simple packet of pcapng has no time
    return int(ticks * 10**9 // about.tsresol)


@lru_cache(1)
def _scapy() -> tuple[Any, type[Exception]]:
    """Import scapy's reader and its error; the import must neither make directories nor log."""
    environment = dict(os.environ)
    os.environ.update(dict.fromkeys(_HOMES, os.devnull))
    try:
        utils = optional("scapy.utils", "scapy", "a packet capture")
    finally:
        os.environ.clear()
        os.environ.update(environment)
    logging.getLogger("scapy").setLevel(logging.CRITICAL)
    return utils.RawPcapReader, utils.Scapy_Exception


_IPV4 = struct.Struct("!2xH2xHxB2x4s4s")
_IPV6 = struct.Struct("!4xHBx16s16s")
_TCP = struct.Struct("!HHI4xBB")  # ports, sequence number, header size, flags


def _segment(ts_ns: int, data: bytes, offset: int, length: int) -> Segment | None:
    """Decode the TCP segment of the IP packet at `offset`; None if it has none, or is a fragment."""
    if offset + 40 > len(data):
        return None
    version = data[offset] >> 4
    if version == 4:
        size, fragment, protocol, source, target = _IPV4.unpack_from(data, offset)
        head, end = offset + (data[offset] & 15) * 4, offset + size
    elif version == 6:
        size, protocol, source, target = _IPV6.unpack_from(data, offset)
        head, end, fragment = offset + 40, offset + 40 + size, 0
    else:
        return None
    if protocol != 6 or fragment & 0x3FFF or head + 20 > len(data):
        return None
    if not size:  # larger than the field can say
        end = length
    sport, dport, seq, words, flags = _TCP.unpack_from(data, head)
    first = head + (words >> 4) * 4
    return Segment(ts_ns, (source, sport, target, dport), seq, flags, data[first:end], max(end - first, 0))


_FAR = 1 << 28  # no window reaches so far: another connection, or a pause in the capture


class Half(Struct):
    """One direction of a TCP connection; a subclass takes its bytes."""

    capture: Capture
    trip_ns: int = 0  # round trip from the capture to the sender and back; 0 if unknown
    _first_seq: int | None = None  # of the first byte
    _next_seq: int = 0
    _syn_ns: int | None = None  # time of the SYN, until it is answered

    def feed(self, data: bytes, now_ns: int) -> None:
        """Take the next bytes, captured at `now_ns`."""
        raise NotImplementedError

    def lost(self) -> None:
        """Note that bytes are missing here."""
        raise NotImplementedError

    def is_reopened(self, segment: Segment) -> bool:
        """Check whether a segment opens another connection with the ports of this one."""
        return bool(segment.flags & SYN) and self._first_seq not in (None, segment.seq + 1 & 0xFFFFFFFF)

    def take(self, segment: Segment, back: Half) -> None:
        """Add a segment; `back` is the other direction."""
        if segment.flags & ACK and back._syn_ns is not None:
            self.trip_ns = max(segment.ts_ns - back._syn_ns, 0)
            back._syn_ns = None
        seq = segment.seq + bool(segment.flags & SYN)
        if segment.flags & SYN:
            self._syn_ns = segment.ts_ns
        if self._first_seq is None and (segment.flags & SYN or segment.length):
            self._first_seq = self._next_seq = seq & 0xFFFFFFFF
        if segment.length:
            self._add(segment, seq)

    def _add(self, segment: Segment, seq: int) -> None:
        """Add a segment's payload, which begins at `seq`."""
        ahead = ((seq - self._next_seq + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)
        if ahead > 0 or ahead < -_FAR:
            self.capture.lost_bytes += ahead if 0 < ahead <= _FAR else 0
            self.lost()
            ahead, self._next_seq = 0, seq
        n_new = segment.length + ahead  # the rest was sent before
        if n_new > 0:
            new = segment.payload[-ahead:]
            self._next_seq = (self._next_seq + n_new) & 0xFFFFFFFF
            self.feed(new, segment.ts_ns)
            if len(new) < n_new:
                self.lost()


def reassemble(
    segments: Iterable[Segment], make: Callable[[Ends], tuple[Half, Half]], capture: Capture
) -> None:
    """Add segments to their connections; `make` creates the halves of a packet's direction and the other."""
    flows: dict[Ends, tuple[Half, Half]] = {}  # both directions, each with its own half first
    for segment in segments:
        flow = flows.get(segment.ends)
        if flow is None or flow[0].is_reopened(segment):
            if not segment.flags & SYN and not segment.length:
                continue
            capture.n_connections += 1
            flow = flows[segment.ends] = make(segment.ends)
            flows[segment.ends[2:] + segment.ends[:2]] = flow[::-1]
        flow[0].take(segment, flow[1])
