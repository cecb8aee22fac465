"""Reassembly: the receiver gets each byte once and in order; a hole shows."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import field

from collector.network.packets import ACK, SYN, Capture, Ends, Half, Segment, read_segments, reassemble
from conftest import examples

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
