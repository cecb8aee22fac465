"""The scanner in C against the decoder in Python: the same files, in turns, in one run.

    python3 -m benchmarks.scanner [--mb 200] [--repeat 5]

Rates are bytes per CPU second of decoding alone: what an empty trace costs is taken off. The last columns
are of the whole command, `statistic` in one process, start included.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks import generate, measure

READ = """
import sys
from pathlib import Path
from formats import chrome, native
scan, wanted = sys.argv[2] == "1", sys.argv[3].split(",") if sys.argv[3] else []
assert not scan or native.library() is not None
chrome.read_part(Path(sys.argv[1]), wanted, bool(wanted), scan=scan)
"""
WANTED = "correlation,External id,stream"  # what a step's graph of a Kineto rank asks for


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mb", type=int, nargs="+", default=[200])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()) / "trace-benchmarks")
    args = parser.parse_args()
    args.dir.mkdir(exist_ok=True)
    empty = args.dir / "empty.json"
    empty.write_text("[]")
    header = ["file", "wanted", "Python MB/s", "C MB/s", "C / Python", "peak MB, Python", "C"]
    rows: list[list[object]] = [[*header, "command CPU s, Python", "C"]]
    for mb in args.mb:
        for dialect in generate.EVENTS:
            for suffix in (".json", ".json.gz"):
                path = generate.write(args.dir / f"{dialect}-{mb}{suffix}", dialect, mb * 1_000_000)
                asked = ("", WANTED) if suffix == ".json" else ("",)
                rows += [_measure(path, mb * 1_000_000, empty, wanted, args.repeat) for wanted in asked]
    print(measure.table(rows))


def _measure(path: Path, size: int, empty: Path, wanted: str, repeat: int) -> list[object]:
    costs: dict[str, list[measure.Cost]] = {}
    for _ in range(repeat):  # in turns: what else the machine does changes
        for scan in "01":
            read = [measure.python(), "-c", READ]
            command = [
                measure.python(),
                "analyze.py",
                "--option",
                "statistic",
                "--jobs",
                "1",
                "--path",
                str(path),
            ]
            for what, words in (
                ("start", [*read, str(empty), scan, wanted]),
                ("read", [*read, str(path), scan, wanted]),
                ("command", ["env", f"ANALYZE_NATIVE={scan}", *command, "--format", "json"]),
            ):
                costs.setdefault(what + scan, []).append(measure.run(words))
    cpu = {what: min(cost.cpu_s for cost in found) for what, found in costs.items()}
    peak = {what: max(cost.peak_mb for cost in found) for what, found in costs.items()}
    rate = [size / 1e6 / (cpu[f"read{scan}"] - cpu[f"start{scan}"]) for scan in "01"]
    return [
        path.name,
        "args, ids" if wanted else "",
        *rate,
        rate[1] / rate[0],
        peak["read0"],
        peak["read1"],
        cpu["command0"],
        cpu["command1"],
    ]


if __name__ == "__main__":
    main()
