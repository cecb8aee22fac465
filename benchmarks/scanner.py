"""The scanner in C against the decoder in Python: the same files, in turns, in one run.

    python3 -m benchmarks.scanner [--mb 200] [--repeat 5]

Rates are bytes per CPU second of decoding alone, unpacking included. The last columns are of the whole
command, `statistic` in one process, start included.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path

from benchmarks import generate, measure

READ = """
import resource, sys, time
from pathlib import Path
from formats import chrome, native
scan, wanted = sys.argv[2] == "1", sys.argv[3].split(",") if sys.argv[3] else []
assert not scan or native.library() is not None
before = time.process_time()
chrome.read_part(Path(sys.argv[1]), wanted, bool(wanted), scan=scan)
print(time.process_time() - before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000)
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
    header = ["file", "wanted", "Python MB/s", "C MB/s", "C / Python", "peak MB, Python", "C"]
    rows: list[list[object]] = [[*header, "command CPU s, Python", "C"]]
    for mb in args.mb:
        for dialect in generate.EVENTS:
            for suffix in (".json", ".json.gz"):
                path = generate.write(args.dir / f"{dialect}-{mb}{suffix}", dialect, mb * 1_000_000)
                asked = ("", WANTED) if suffix == ".json" else ("",)
                rows += [_measure(path, mb * 1_000_000, wanted, args.repeat) for wanted in asked]
    print(measure.table(rows))


def _measure(path: Path, size: int, wanted: str, repeat: int) -> list[object]:
    read: dict[str, list[list[float]]] = {"0": [], "1": []}
    command: dict[str, list[float]] = {"0": [], "1": []}
    options = ["--option", "statistic", "--jobs", "1", "--format", "json", "--path", str(path)]
    for scan in "01" * repeat:  # in turns: what else the machine does changes
        words = [measure.python(), "-c", READ, str(path), scan, wanted]
        done = subprocess.run(words, cwd=measure.REPO, capture_output=True, text=True, check=True)
        read[scan].append(list(map(float, done.stdout.split())))
        whole = ["env", f"ANALYZE_NATIVE={scan}", measure.python(), "analyze.py", *options]
        command[scan].append(measure.run(whole).cpu_s)
    rate = [size / 1e6 / min(cpu_s for cpu_s, _ in read[scan]) for scan in "01"]
    peak = [max(peak_mb for _, peak_mb in read[scan]) for scan in "01"]
    asked = "args, ids" if wanted else ""
    return [path.name, asked, *rate, rate[1] / rate[0], *peak, *(min(command[scan]) for scan in "01")]


if __name__ == "__main__":
    main()
