"""Packet captures as segments (formats, link layers, damage), and these as streams; scapy is the oracle."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import field

from analyzer.base.errors import TraceError
from collector.network.packets import ACK, SYN, Capture, Ends, Half, Segment, read_segments, reassemble
from conftest import examples
from traffic import Packet, framed, pcap, pcapng, tagged, tcp

Form = Callable[[Iterable[Packet]], Iterator[bytes]]

A, B = ("10.1.2.3", 4000), ("10.1.2.4", 5000)
V6 = ("fd00::1", 4000), ("fd00::2", 5000)
PAYLOAD = b"some bytes of a message"


def packet(payload: bytes = PAYLOAD, ts_ns: int = 1_700_000_000_123_456_789, v6: bool = False) -> Packet:
    ends = V6 if v6 else (A, B)
    return Packet(ts_ns, tcp(*ends, 77, 88, ACK, payload))


def read(tmp_path: Path, pieces: Iterable[bytes]) -> tuple[list[Segment], Capture]:
    path = tmp_path / "x.pcap"
    path.write_bytes(b"".join(pieces))
    capture = Capture(path)
    return list(read_segments(capture)), capture


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(("ns", "expected"), [(True, 123_456_789), (False, 123_456_000)])
def test_classic_captures_of_either_byte_order_and_clock(
    tmp_path: Path, order: str, ns: bool, expected: int
) -> None:
    segments, _ = read(tmp_path, pcap([packet()], order=order, ns=ns))
    assert [s.ts_ns for s in segments] == [1_700_000_000_000_000_000 + expected]
    assert segments[0].payload == PAYLOAD


@pytest.mark.parametrize("order", ["<", ">"])
def test_pcapng_in_nanoseconds(tmp_path: Path, order: str) -> None:
    segments, _ = read(tmp_path, pcapng([packet(), packet(b"2")], order=order))
    assert [(s.ts_ns, s.payload) for s in segments] == [
        (1_700_000_000_123_456_789, PAYLOAD),
        (1_700_000_000_123_456_789, b"2"),
    ]


@pytest.mark.parametrize("link", [0, 1, 101, 113, 276])
@pytest.mark.parametrize("v6", [False, True])
def test_link_layers(tmp_path: Path, link: int, v6: bool) -> None:
    segments, capture = read(tmp_path, pcap([packet(v6=v6)], link))
    assert [(s.payload, s.ends[1], s.ends[3], s.seq) for s in segments] == [(PAYLOAD, 4000, 5000, 77)]
    assert not capture.other_links


def test_vlan_tags_are_stepped_over(tmp_path: Path) -> None:
    data = tagged(packet().data)
    record = struct.pack("<IIII", 1, 0, len(data), len(data)) + data
    segments, _ = read(tmp_path, [next(iter(pcap([]))), record])
    assert [s.payload for s in segments] == [PAYLOAD]


def test_a_link_layer_that_cannot_be_decoded_is_named(tmp_path: Path) -> None:
    header = b"".join(pcap([]))[:20] + struct.pack("<I", 147)
    segments, capture = read(tmp_path, [header, struct.pack("<IIII", 1, 0, 4, 4) + b"abcd"])
    assert (segments, capture.other_links) == ([], {147})


def test_padding_of_short_ethernet_frames_is_no_payload(tmp_path: Path) -> None:
    data = framed(1, packet(b"ab").data) + bytes(4)  # a frame has at least 60 bytes
    record = struct.pack("<IIII", 1, 0, len(data), len(data)) + data
    segments, _ = read(tmp_path, [next(iter(pcap([]))), record])
    assert [(s.payload, s.length) for s in segments] == [(b"ab", 2)]


def test_an_offloaded_packet_whose_length_field_is_zero(tmp_path: Path) -> None:
    segments, _ = read(tmp_path, pcap([packet(bytes(70_000))]))
    assert [s.length for s in segments] == [70_000]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b"a text file\n", "not a packet capture"),
        (b"".join(pcap([]))[:17], "not a packet capture"),
        (gzip.compress(b"", mtime=0)[:5], "not a packet capture"),
    ],
)
def test_what_is_no_capture_is_refused_in_a_line(tmp_path: Path, content: bytes, said: str) -> None:
    with pytest.raises(TraceError, match=said) as caught:
        read(tmp_path, [content])
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("form", [pcap, pcapng])
def test_a_capture_cut_at_any_byte_gives_the_packets_before(tmp_path: Path, form: Form) -> None:
    pieces = list(form([packet(b"%d" % i) for i in range(4)]))
    ends = list(accumulate(map(len, pieces)))
    packets_end = ends[-4:]
    for size in range(ends[0], ends[-1] + 1):
        segments, capture = read(tmp_path, [b"".join(pieces)[:size]])
        assert [s.payload for s in segments] == [
            b"%d" % i for i in range(sum(e <= size for e in packets_end))
        ]
        assert bool(capture.damage) == (size not in ends)


@pytest.mark.slow
@given(st.binary(max_size=400))
@settings(max_examples=examples(50), deadline=None)
def test_any_bytes_behind_a_header_do_no_harm(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    for header in (b"".join(pcap([])), b"".join(pcapng([]))):
        read(folder, [header, data])
    record = struct.pack("<IIII", 0, 0, len(data), len(data)) + data
    for link in (0, 1, 101, 113, 276, 105):
        read(folder, [b"".join(pcap([]))[:20] + struct.pack("<I", link), record])


def test_a_packed_capture(shared_data: Path, tmp_path: Path) -> None:
    path = shared_data / "byteps" / "fork_mlp_2w2s_pcap" / "worker_0.pcap"
    packed = tmp_path / "worker_0.pcap.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert list(read_segments(Capture(packed))) == list(read_segments(Capture(path)))


def test_a_time_beyond_all_measure_is_damage(tmp_path: Path) -> None:
    section, interface, record = pcapng([packet()])
    coarse = interface.replace(
        struct.pack("<HH", 9, 1) + b"\x09", struct.pack("<HH", 9, 1) + b"\x00"
    )  # seconds
    segments, capture = read(tmp_path, [section, coarse, record])
    assert segments == []
    assert "damaged" in capture.damage


# ---- TCP: the receiver gets each byte once and in order; a hole shows

C, S = (b"\x0a\0\0\1", 40_000), (b"\x0a\0\0\2", 9_000)
FORTH, BACK = (*C, *S), (*S, *C)


class Recorder(Half, kw_only=True):
    """A half that keeps everything; a hole shows as ``|``."""

    data: bytearray = field(default_factory=bytearray)

    def feed(self, data: bytes, now_ns: int) -> None:
        self.data += data

    def lost(self) -> None:
        self.data += b"|"


def segment(
    seq: int, data: bytes = b"", flags: int = ACK, ends: object = FORTH, ts_ns: int = 0, cut: int = 0
) -> Segment:
    return Segment(ts_ns, ends, seq % 2**32, flags, data, len(data) + cut)  # type: ignore[arg-type]


def feed(*segments: Segment, capture: Capture | None = None) -> list[tuple[Recorder, Recorder]]:
    made: list[tuple[Recorder, Recorder]] = []
    into = capture or Capture(Path())

    def make(ends: Ends) -> tuple[Half, Half]:
        made.append((Recorder(into), Recorder(into)))
        return made[-1]

    reassemble(segments, make, into)
    return made


def test_a_hole_is_counted_and_what_fills_it_later_is_dropped() -> None:
    capture = Capture(Path())
    pieces = (segment(0, flags=SYN), segment(4, b"def"), segment(1, b"abc"), segment(5, b"efg"))
    made = feed(*pieces, capture=capture)
    assert bytes(made[0][0].data) == b"|defg"
    assert capture.lost_bytes == 3


def test_a_packet_cut_by_the_snapshot_length_leaves_a_hole() -> None:
    made = feed(segment(0, flags=SYN), segment(1, b"abcd", cut=6), segment(11, b"k"))
    assert bytes(made[0][0].data) == b"abcd|k"


def test_a_jump_beyond_any_window_starts_anew() -> None:
    made = feed(segment(0, b"a"), segment(2**30, b"b"), segment(2**30 + 1, b"c"))
    assert bytes(made[0][0].data) == b"a|bc"


def test_the_round_trip_is_that_of_the_handshake() -> None:
    made = feed(
        segment(0, flags=SYN, ts_ns=1_000),
        segment(50, flags=SYN | ACK, ends=BACK, ts_ns=81_000),
        segment(1, ts_ns=84_000),
    )
    assert [half.trip_ns for half in made[0]] == [3_000, 80_000]


@given(st.data())
@settings(max_examples=examples(200), deadline=None)
def test_overlaps_and_repeats_give_the_stream(data: st.DataObject) -> None:
    stream = bytes(range(1, 201))
    first = data.draw(st.sampled_from([0, 2**32 - 100, 2**31 - 50]))
    cuts = sorted({0, 200, *data.draw(st.lists(st.integers(1, 199), max_size=20))})
    pieces = []
    for a, b in pairwise(cuts):
        pieces.append((max(a - data.draw(st.integers(0, 30)), 0), b))
        pieces += data.draw(st.lists(st.sampled_from(pieces), max_size=2))
    made = feed(segment(first - 1, flags=SYN), *(segment(first + a, stream[a:b]) for a, b in pieces))
    assert bytes(made[0][0].data) == stream


def test_a_recorded_connection_as_scapy_gives_it(shared_data: Path) -> None:
    """Oracle: payloads that scapy dissects, put at their sequence numbers."""
    from scapy.layers.inet import IP, TCP
    from scapy.utils import PcapReader

    path = shared_data / "byteps" / "fork_mlp_2w2s_pcap" / "worker_0.pcap"
    wanted: dict[tuple[int, int], dict[int, bytes]] = {}
    with PcapReader(str(path)) as packets:
        for p in packets:
            if TCP in p:
                size = p[IP].len - 4 * p[IP].ihl - 4 * p[TCP].dataofs
                at = wanted.setdefault((p[TCP].sport, p[TCP].dport), {})
                if size:
                    at[p[TCP].seq] = bytes(p[TCP].payload)[:size]
    streams_of_scapy = {ends: b"".join(v for _, v in sorted(at.items())) for ends, at in wanted.items()}
    seen: dict[tuple[int, int], Recorder] = {}
    capture = Capture(path)

    def make(ends: Ends) -> tuple[Half, Half]:
        halves = Recorder(capture), Recorder(capture)
        seen[ends[1], ends[3]], seen[ends[3], ends[1]] = halves
        return halves

    reassemble(read_segments(capture), make, capture)
    big = {ends: data for ends, data in streams_of_scapy.items() if len(data) > 1000}
    assert len(big) == 4
    assert {ends: bytes(seen[ends].data) for ends in big} == big
