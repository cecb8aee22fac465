"""Captures of ps-lite traffic: speed against scapy, and memory, on a capture made here.

    python3 -m benchmarks.pcap [megabytes]

The capture (default 1000 MB) has several connections at a time, repeated and reordered segments, ports
that are used again and connections that begin before the capture. Scapy reads a part of it: the same
packets as objects, which is what reassembly with it begins with.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests"))  # where the maker of captures lies

SESSION_MB = 24
SCAPY_MB = 24

_OURS = """
import sys, time
from pathlib import Path
from collector.network.transfers import read_traffic
begin = time.process_time()
traffic = read_traffic(Path(sys.argv[1]))
spent = time.process_time() - begin
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(len(traffic.transfers), spent, peak)
"""


def write_capture(path: Path, n_bytes: int, value_bytes: int, mss: int) -> int:
    """Write about `n_bytes` of traffic; return how many transfers it has whole, at least."""
    from traffic import NEW, Connection, in_order, pcap, shaken, train

    written = made = 0
    start_ns = 1_795_000_000 * 10**9
    with open(path, "wb") as out:
        session = 0
        while written < n_bytes:
            connections = [
                Connection(
                    (f"10.0.0.{w}", 40_000),
                    ("10.0.1.1", 9000),
                    mss,
                    first=(2**32 - 10_000 - session, session),
                )
                for w in (1, 2, 3, 4)
            ]
            steps = max(SESSION_MB * 1_000_000 // (len(connections) * 2 * value_bytes), 1)
            expected = [
                train(
                    c,
                    NEW,
                    server=8,
                    worker=9 + 2 * i,
                    keys=[(65536, value_bytes)],
                    steps=steps,
                    start_ns=start_ns,
                )
                for i, c in enumerate(connections)
            ]
            packets = shaken(in_order(connections), session, 40, 0.02)
            cut = len(packets) // 50 if session == 0 else 0  # the first session was under way already
            pieces = list(pcap(packets[cut:], ns=True))
            out.write(b"".join(pieces[1:] if session else pieces))
            written = out.tell()
            begun_ns = packets[cut].ts_ns
            made += sum(e.request_start_ns > begun_ns + 10**6 for group in expected for e in group)
            start_ns = packets[-1].ts_ns + 10**9
            session += 1
    return made


def measure(path: Path) -> tuple[int, float, int]:
    """Return transfers, processor time (s) and peak memory (KiB) of reading in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", _OURS, str(path)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    transfers, seconds, peak = done.stdout.split()
    return int(transfers), float(seconds), int(peak)


def measure_scapy(path: Path, n_bytes: int) -> float:
    """Return the MB/s of processor time with which scapy makes packets of the beginning of the capture."""
    from scapy.layers.inet import TCP
    from scapy.layers.l2 import Ether  # noqa: F401  (registers the link layer)
    from scapy.utils import PcapReader

    begin, done = time.process_time(), 0
    with PcapReader(str(path)) as packets:
        for packet in packets:
            done += len(packet) + 16
            _ = bytes(packet[TCP].payload) if TCP in packet else b""
            if done >= n_bytes:
                break
    return done / 1e6 / (time.process_time() - begin)


def main() -> None:
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    with tempfile.TemporaryDirectory(prefix="pcap-") as folder:
        for what, value_bytes, mss in (
            ("partitions of 4 MB, segments of 1448 bytes", 4_096_000, 1448),
            ("partitions of 4 KB, segments of 1448 bytes", 4096, 1448),
            ("partitions of 4 MB, segments of 32 KB", 4_096_000, 32_000),
        ):
            path = Path(folder) / "job.pcap"
            made = write_capture(path, megabytes * 1_000_000, value_bytes, mss)
            size = path.stat().st_size / 1e6
            transfers, seconds, peak = measure(path)
            peer = measure_scapy(path, SCAPY_MB * 1_000_000)
            print(
                f"{what}: {size:.0f} MB, {transfers:,} transfers (at least {made:,} were made), "
                f"{size / seconds:.0f} MB/s, "
                f"{size / seconds / peer:.0f} x scapy ({peer:.1f} MB/s), peak {peak / 1024:.0f} MiB",
                flush=True,
            )


if __name__ == "__main__":
    main()
