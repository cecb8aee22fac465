"""`statistic` on large traces against the old tool's way (`json.load`, dictionaries) and against HTA.

    python3 -m benchmarks.load [--mb 10 200 1000] [--hta PYTHON]

HTA is measured where `--hta` names an interpreter that has HolisticTraceAnalysis installed (on
Kineto-like files only). All sizes are those of the unpacked file; ratios are of wall time in one process.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks import generate, measure

# The old tool's algorithm: the whole document by the standard decoder, a dictionary for each operation,
# a sub-task's name put together from its stage and partition key, a second pass for the variance.
OLD = """
import gzip, json, sys
from collections import defaultdict
path = sys.argv[1]
stages = ["COORDINATE_REDUCE", "REDUCE", "COPYD2H", "PCIE_REDUCE", "COORDINATE_PUSH", "PUSH", "PULL"]
stages += ["COPYH2D", "COORDINATE_BROADCAST", "BROADCAST"]
with (gzip.open(path, "rt") if path.endswith(".gz") else open(path)) as file:
    events = [event for event in json.load(file)["traceEvents"] if event["ph"] == "X"]
stats, keys = {}, defaultdict(set)
def operation(event):
    name = event["name"]
    if "Comm" in name and name.split(".")[-1] in stages:
        keys[".".join(name.split(".")[:-1])].add(event["tid"])
        name += "." + event["tid"]
    return name
for event in events:
    name, ms = operation(event), event["dur"] / 1000.0
    if name in stats:
        stats[name]["cnt"] += 1
        stats[name]["time"] += ms
        stats[name]["min_t"] = min(stats[name]["min_t"], ms)
        stats[name]["max_t"] = max(stats[name]["max_t"], ms)
    else:
        stats[name] = {"cnt": 1, "time": ms, "min_t": ms, "max_t": ms, "cat": event["cat"]}
for stat in stats.values():
    stat["avg"], stat["var"] = stat["time"] / stat["cnt"], 0.0
for event in events:
    stat = stats[operation(event)]
    stat["var"] += (event["dur"] / 1000.0 - stat["avg"]) ** 2
for name, stat in stats.items():
    print(name, *(stat[key] for key in ("cnt", "time", "min_t", "max_t", "avg")), stat["var"] / stat["cnt"])
"""
HTA = """
import sys
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="/")
analysis.get_gpu_kernel_breakdown(visualize=False)
"""


def main() -> None:
    """Generate the inputs, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mb", type=int, nargs="+", default=[10, 200, 1000])
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()) / "trace-benchmarks")
    parser.add_argument("--hta", metavar="PYTHON", help="an interpreter with HolisticTraceAnalysis")
    parser.add_argument("--peer_limit_mb", type=int, default=250, help="peers are not run on larger files")
    args = parser.parse_args()
    args.dir.mkdir(exist_ok=True)
    rows: list[list[object]] = [
        [
            "file",
            "MB",
            "way",
            "wall s",
            "CPU s",
            "MB/s",
            "events/s",
            "peak MB",
            "peak/file",
            "time / one process",
        ]
    ]
    for mb in args.mb:
        for dialect in generate.EVENTS:
            for suffix in (".json", ".json.gz"):
                path = generate.write(args.dir / f"{dialect}-{mb}{suffix}", dialect, mb * 1_000_000)
                rows += _measure(path, mb * 1_000_000, dialect, args.hta, mb <= args.peer_limit_mb)
    print(measure.table(rows))


def _measure(path: Path, size: int, dialect: str, hta: str | None, with_peers: bool) -> list[list[object]]:
    here = [measure.python(), "analyze.py", "--option", "statistic", "--path", str(path), "--format", "json"]
    repeat = 3 if size < 500_000_000 else 1
    one = measure.run([*here, "--jobs", "1"], repeat=repeat)
    costs = {"one process": one, "two processes": measure.run([*here, "--jobs", "2"], repeat=repeat)}
    if with_peers:
        costs["json.load and dictionaries"] = measure.run([measure.python(), "-c", OLD, str(path)])
        if hta and dialect == "kineto":
            try:
                costs["HTA"] = measure.run([hta, "-c", HTA, str(path)])
            except RuntimeError as error:
                print(f"HTA fails on {path.name}: {str(error).splitlines()[-1]}")
    n_events = _count(path)
    return [
        [
            path.name,
            size // 1_000_000,
            way,
            cost.wall_s,
            cost.cpu_s,
            cost.rate(size),
            int(n_events / cost.wall_s),
            cost.peak_mb,
            cost.peak_mb * 1e6 / size,
            cost.wall_s / one.wall_s,
        ]
        for way, cost in costs.items()
    ]


def _count(path: Path) -> int:
    from formats.reader import EventReader

    return sum(len(events) for events, _ in EventReader(path))


if __name__ == "__main__":
    main()
