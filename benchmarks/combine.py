"""`combine` against the old tool's way: load every file, rewrite dictionaries, dump them.

    python3 -m benchmarks.combine [--mb 100] [--ranks 2 4 8] [--dialect byteps kineto]

Ratios of CPU time and of wall time; peak memory is that of the largest single process and should not
grow with the number of inputs.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks import generate, measure

OLD = """
import json, sys
events = []
for rank, path in enumerate(sys.argv[2:]):
    with open(path) as file:
        document = json.load(file)
    for event in document["traceEvents"]:
        event["pid"] = "rank%d.%s" % (rank, event["pid"])
        event["name"] = "rank%d.%s" % (rank, event["name"])
        events.append(event)
with open(sys.argv[1], "w") as file:
    json.dump({"traceEvents": events, "displayTimeUnit": "ms"}, file, indent=4)
"""


def main() -> None:
    """Generate the inputs, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mb", type=int, default=100, help="size of each rank's file")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--dialect", choices=generate.EVENTS, nargs="+", default=list(generate.EVENTS))
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()) / "trace-benchmarks")
    parser.add_argument("--peer_limit_mb", type=int, default=250, help="the peer is not run on more input")
    args = parser.parse_args()
    args.dir.mkdir(exist_ok=True)
    rows: list[list[object]] = [
        ["files", "MB", "way", "wall s", "CPU s", "MB/s of CPU", "peak MB", "CPU ratio", "wall ratio"]
    ]
    for dialect in args.dialect:
        for n in args.ranks:
            paths = [_write(args.dir, dialect, args.mb, rank) for rank in range(n)]
            rows += _measure(dialect, paths, args.dir, args.mb * n <= args.peer_limit_mb)
    print(measure.table(rows))


def _write(directory: Path, dialect: str, mb: int, rank: int) -> Path:
    """Write one rank's file; a BytePS worker has a directory of its own."""
    path = directory / f"combine-{dialect}-{mb}" / f"worker_{rank}" / "0" / "comm.json"
    if dialect != "byteps":
        path = directory / f"combine-{dialect}-{mb}" / f"rank{rank}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    return generate.write(path, dialect, mb * 1_000_000, seed=rank)


def _measure(dialect: str, paths: list[Path], directory: Path, with_peer: bool) -> list[list[object]]:
    output = directory / "combined.json"
    here = [measure.python(), "analyze.py", "--option", "combine", "--output", str(output), "--path"]
    here += [str(path.parent.parent if dialect == "byteps" else path) for path in paths]
    costs = {
        "one process": measure.run([*here, "--jobs", "1"], repeat=3),
        "two processes": measure.run([*here, "--jobs", "2"], repeat=3),
    }
    peer = None
    if with_peer:
        peer = measure.run([measure.python(), "-c", OLD, str(output), *map(str, paths)])
        costs["json.load and json.dump"] = peer
    output.unlink()
    size = sum(path.stat().st_size for path in paths)
    return [
        [
            f"{len(paths)} x {dialect}",
            size // 1_000_000,
            way,
            cost.wall_s,
            cost.cpu_s,
            size / cost.cpu_s / 1e6,
            cost.peak_mb,
            peer.cpu_s / cost.cpu_s if peer else None,
            peer.wall_s / cost.wall_s if peer else None,
        ]
        for way, cost in costs.items()
    ]


if __name__ == "__main__":
    main()
