"""`combine` against the old tool's way: load every file, rewrite dictionaries, dump them.

    python3 -m benchmarks.combine [--mb 100] [--ranks 2 4 8] [--kind byteps kineto absolute composer filter]

Ratios of CPU time and of wall time, with the functions in C and without; peak memory is that of the largest
single process and should not grow with the number of inputs. `absolute` is Kineto with fractional times since
the epoch, `filter` is BytePS with `--filter`.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from benchmarks import generate, measure

OLD = """
import json, sys
events = []
wanted = sys.argv[2].split()
for rank, path in enumerate(sys.argv[3:]):
    with open(path) as file:
        document = json.load(file)
    for event in document["traceEvents"] if isinstance(document, dict) else document:
        if wanted and event["pid"] not in wanted:
            continue
        event["pid"] = "rank%d.%s" % (rank, event["pid"])
        event["name"] = "rank%d.%s" % (rank, event["name"])
        events.append(event)
with open(sys.argv[1], "w") as file:
    json.dump({"traceEvents": events, "displayTimeUnit": "ms"}, file, indent=4)
"""


_KINDS = [*generate.EVENTS, *generate.MORE_EVENTS, "filter"]
_DIALECTS = {"filter": "byteps"}
_WANTED = [f"Comm.byteps.gradient_{i}" for i in range(8)]  # of 160


def main() -> None:
    """Generate the inputs, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mb", type=int, default=100, help="size of each rank's file")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--kind", choices=_KINDS, nargs="+", default=_KINDS)
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()) / "trace-benchmarks")
    parser.add_argument("--peer_limit_mb", type=int, default=250, help="the peer is not run on more input")
    args = parser.parse_args()
    args.dir.mkdir(exist_ok=True)
    rows: list[list[object]] = [
        ["files", "MB", "way", "wall s", "CPU s", "MB/s of CPU", "peak MB", "CPU ratio", "wall ratio"]
    ]
    for kind in args.kind:
        for n in args.ranks:
            paths = [_write(args.dir, _DIALECTS.get(kind, kind), args.mb, rank) for rank in range(n)]
            rows += _measure(kind, paths, args.dir, args.mb * n <= args.peer_limit_mb)
    print(measure.table(rows))


def _write(directory: Path, dialect: str, mb: int, rank: int) -> Path:
    """Write one rank's file; a BytePS worker has a directory of its own."""
    path = directory / f"combine-{dialect}-{mb}" / f"worker_{rank}" / "0" / "comm.json"
    if dialect != "byteps":
        path = directory / f"combine-{dialect}-{mb}" / f"rank{rank}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    return generate.write(path, dialect, mb * 1_000_000, seed=rank)


def _measure(kind: str, paths: list[Path], directory: Path, with_peer: bool) -> list[list[object]]:
    output = directory / "combined.json"
    wanted = _WANTED if kind == "filter" else []
    here = [measure.python(), "analyze.py", "--option", "combine", "--output", str(output)]
    here += [part for name in wanted for part in ("--filter", name)]
    has_folders = _DIALECTS.get(kind, kind) == "byteps"
    here += ["--path", *(str(path.parent.parent if has_folders else path) for path in paths)]
    costs = {}
    for native in ("1", "0"):
        os.environ["ANALYZE_NATIVE"] = native
        how = "C" if native == "1" else "Python"
        costs[f"{how}, one process"] = measure.run([*here, "--jobs", "1"], repeat=3)
        costs[f"{how}, two processes"] = measure.run([*here, "--jobs", "2"], repeat=3)
    peer = None
    if with_peer:
        peer = measure.run([measure.python(), "-c", OLD, str(output), " ".join(wanted), *map(str, paths)])
        costs["json.load and json.dump"] = peer
    output.unlink()
    size = sum(path.stat().st_size for path in paths)
    return [
        [
            f"{len(paths)} x {kind}",
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
