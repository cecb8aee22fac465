"""Reassembly: whatever happens to the packets, the receiver gets each byte once and in order."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.network import tcp
from collector.network.packets import ACK, SYN, Capture, Segment, read_segments
from collector.network.tcp import Streams
from conftest import examples

C, S = (b"\x0a\0\0\1", 40_000), (b"\x0a\0\0\2", 9_000)
FORTH, BACK = (*C, *S), (*S, *C)


class Recorder:
    """A receiver that keeps everything; a hole shows as ``|``."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.times: list[int] = []
        self.trip_ns = 0

    def feed(self, data: bytes, now_ns: int) -> None:
        self.data += data
        self.times.append(now_ns)

    def lost(self) -> None:
        self.data += b"|"


def streams() -> tuple[Streams, list[tuple[Recorder, Recorder]]]:
    made: list[tuple[Recorder, Recorder]] = []

    def make(ends: object) -> tuple[Recorder, Recorder]:
        made.append((Recorder(), Recorder()))
        return made[-1]

    return Streams(make, Capture(Path())), made


def segment(
    seq: int, data: bytes = b"", flags: int = ACK, ends: object = FORTH, ts_ns: int = 0, cut: int = 0
) -> Segment:
    return Segment(ts_ns, ends, seq % 2**32, flags, data, len(data) + cut)  # type: ignore[arg-type]


def feed(*segments: Segment) -> list[tuple[Recorder, Recorder]]:
    all_streams, made = streams()
    for item in segments:
        all_streams.take(item)
    all_streams.close()
    return made


def test_in_order_over_the_wraparound_of_the_sequence_number() -> None:
    made = feed(segment(2**32 - 4, flags=SYN), segment(2**32 - 3, b"abcd"), segment(1, b"efg"))
    assert [bytes(half.data) for half in made[0]] == [b"abcdefg", b""]


def test_an_early_segment_waits() -> None:
    made = feed(segment(0, flags=SYN), segment(4, b"def", ts_ns=5), segment(1, b"abc", ts_ns=9))
    assert bytes(made[0][0].data) == b"abcdef"
    assert made[0][0].times == [9, 9]  # captured at 5, in order only at 9


def test_a_hole_is_skipped_when_too_much_waits_or_at_the_end() -> None:
    piece = bytes(1 << 20)
    all_streams, made = streams()
    all_streams.take(segment(0, flags=SYN))
    for i in range(6):
        all_streams.take(segment(101 + i * len(piece), piece))
    assert made[0][0].data[:1] == b"|"
    assert len(made[0][0].data) > tcp.MAX_WAITING
    assert all_streams.capture.lost_bytes == 100
    assert bytes(feed(segment(0, flags=SYN), segment(4, b"def"))[0][0].data) == b"|def"


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


def test_many_connections_do_not_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp, "_MAX_FLOWS", 100)
    all_streams, _ = streams()
    for i in range(1_000):
        all_streams.take(segment(0, flags=SYN, ends=(b"%04d" % i, 1, b"peer", 80)))
        all_streams.take(segment(1, b"x", ends=(b"%04d" % i, 1, b"peer", 80)))
    assert len(all_streams._flows) <= 102  # two entries each
    assert all_streams.capture.n_connections == 1_000


@pytest.mark.slow
@given(st.data())
@settings(max_examples=examples(200), deadline=None)
def test_any_order_with_overlaps_and_repeats_gives_the_stream(data: st.DataObject) -> None:
    stream = bytes(range(1, 201))
    first = data.draw(st.sampled_from([0, 2**32 - 100, 2**31 - 50]))
    cuts = sorted({0, 200, *data.draw(st.lists(st.integers(1, 199), max_size=20))})
    pieces = list(pairwise(cuts))
    pieces += data.draw(st.lists(st.sampled_from([(a, min(a + 30, 200)) for a, _ in pieces]), max_size=10))
    order = data.draw(st.permutations(pieces))
    made = feed(segment(first - 1, flags=SYN), *(segment(first + a, stream[a:b]) for a, b in order))
    assert bytes(made[0][0].data) == stream


def test_a_recorded_connection_as_scapy_gives_it(shared_data: Path) -> None:
    """Oracle: payloads that scapy dissects, put at their sequence numbers, shuffled and repeated for us."""
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
    segments = list(read_segments(Capture(path)))
    rng = random.Random(1)
    late = sorted(range(len(segments)), key=lambda i: i + rng.uniform(0, 4) * bool(segments[i].length))
    all_streams, made = streams()
    seen: dict[tuple[int, int], Recorder] = {}
    for i in late:
        n = len(made)
        all_streams.take(segments[i])
        if len(made) > n:
            ends = segments[i].ends
            seen[ends[1], ends[3]], seen[ends[3], ends[1]] = made[-1]
    all_streams.close()
    big = {ends: data for ends, data in streams_of_scapy.items() if len(data) > 1000}
    assert len(big) == 4
    assert {ends: bytes(seen[ends].data) for ends in big} == big
