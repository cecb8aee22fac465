"""CPU time and memory of the options on recorded and generated jobs, against `json.load` and another tree.

    python3 -m benchmarks.speed DIRECTORY [--jobs lenet byteps200 ...] [--options statistic ...]
                                [--against TREE] [--repeat 3] [--processes 1]

The inputs are generated into DIRECTORY once. Each command runs in a process of its own; with `--against`, the
other tree's command follows it in turn, so that both meet the same pace of the machine. Printed are the least
CPU seconds, the peak memory, the multiple of `json.load` of one file of the job, and the ratio to the other
tree: above 1 where this tree takes more.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import generate

REPO = Path(__file__).resolve().parents[1]
_MB = 1_000_000
_COMMANDS = {
    "diagnose": ["--path", "{job}"],
    "statistic": ["--path", "{job}"],
    "graph": ["--path", "{job}", "--output", "{out}/graph.graphml"],
    "combine": ["--path", "{job}", "--output", "{out}/combined.json"],
    "compare": ["--path", "{job}", "{job}"],
    "critical": ["--path", "{job}"],
    "replay": ["--path", "{job}", "--output", "{out}/replay.json"],
    "3dcompare": ["--path", "{job}", "{job}", "--output", "{out}/sweep.html"],
}
_JSON_LOAD = """
import gzip, json, sys
with (gzip.open if sys.argv[1].endswith(".gz") else open)(sys.argv[1], "rt") as file:
    json.load(file)
"""


class Cost(NamedTuple):
    """The cost of one command, its child processes included."""

    wall_s: float
    cpu_s: float
    peak_mb: float  # of the largest single process


def _trace(dialect: str, mb: int, suffix: str = ".json") -> Callable[[Path], Path]:
    def write(directory: Path) -> Path:
        return generate.write(directory / f"{dialect}-{mb}{suffix}", dialect, mb * _MB)

    return write


def _ranks(n_ranks: int, mb: int) -> Callable[[Path], Path]:
    def write(directory: Path) -> Path:
        sys.path.insert(0, str(REPO / "tests"))
        from oracles import ranks

        job = directory / f"ranks-{n_ranks}x{mb}"
        if not job.exists():
            ranks.write(job, ranks.Job(n_ranks, "host", 5 % n_ranks, 0.2), mb * _MB)
        return job

    return write


def _dumps(n_ranks: int, n_entries: int = 2000) -> Callable[[Path], Path]:
    def write(directory: Path) -> Path:
        job = directory / f"dumps-{n_ranks}x{n_entries}"
        if not job.exists():
            job.mkdir()
            for rank in range(n_ranks):
                generate.write_dump(job, rank, n_ranks, n_entries)
        return job

    return write


def _step_log(n_ranks: int, n_steps: int) -> Callable[[Path], Path]:
    def write(directory: Path) -> Path:
        path = directory / f"steps-{n_ranks}x{n_steps}.csv"
        if not path.exists():
            with path.open("w") as file:
                file.write("step,rank,step_ms,load_ms,forward_ms\n")
                for step in range(n_steps):
                    file.writelines(
                        f"{step},{rank},{100 + (step * 31 + rank * 17) % 13}.25,{5 + rank % 3}.5,40.125\n"
                        for rank in range(n_ranks)
                    )
        return path

    return write


#: Inputs by name: each is written below a directory unless it is there.
JOBS: Mapping[str, Callable[[Path], Path]] = {
    "lenet": lambda _: REPO / "examples" / "lenet",
    "byteps200": _trace("byteps", 200),
    "kineto200": _trace("kineto", 200),
    "kineto1000": _trace("kineto", 1000),
    "kineto200gz": _trace("kineto", 200, ".json.gz"),
    "ranks8x20": _ranks(8, 20),
    "ranks64x20": _ranks(64, 20),
    "ranks1024x2": _ranks(1024, 2),
    "dumps256": _dumps(256),
    "dumps4096": _dumps(4096),
    "steps1024x1000": _step_log(1024, 1000),
}
#: Inputs of which not every option can be asked.
_ONLY = {"dumps256": ("diagnose",), "dumps4096": ("diagnose",), "steps1024x1000": ("diagnose", "statistic")}


def run(command: Sequence[str], tree: Path = REPO) -> Cost | None:
    """Run a command from a tree's root; None if it fails."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    begin = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=tree, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - begin
    return None if status else Cost(wall_s, usage.ru_utime + usage.ru_stime, _peak_mb(usage))


def _peak_mb(usage: resource.struct_rusage) -> float:
    return usage.ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)


def _ask(tree: Path, option: str, job: Path, processes: int) -> Cost | None:
    """Run one option of a tree on a job, with outputs in a folder of their own."""
    with tempfile.TemporaryDirectory() as out:
        words = [word.format(job=job, out=out) for word in _COMMANDS[option]]
        command = [sys.executable, "analyze.py", "--option", option, "--jobs", str(processes), *words]
        return run(command, tree)


def _in_turn(trees: Sequence[Path], option: str, job: Path, repeat: int, processes: int) -> list[Cost | None]:
    """Ask trees in turn and keep each one's run of the least CPU time; a first turn compiles modules."""
    runs = [[_ask(tree, option, job, processes) for tree in trees] for _ in range(1 + repeat)][1:]
    best: list[Cost | None] = []
    for costs in zip(*runs, strict=True):
        sound = [cost for cost in costs if cost is not None]
        best.append(min(sound, key=lambda cost: cost.cpu_s) if len(sound) == len(costs) else None)
    return best


def _json_load(job: Path) -> Cost | None:
    """Cost of `json.load` of the job's first trace."""
    files = sorted(job.rglob("*.json*")) if job.is_dir() else [job]
    return run([sys.executable, "-c", _JSON_LOAD, str(files[0])]) if files else None


def main() -> None:
    """Measure and print one line per job and option."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument(
        "--jobs", nargs="+", choices=JOBS, default=["lenet", "byteps200", "kineto200", "ranks8x20"]
    )
    parser.add_argument(
        "--options", nargs="+", choices=_COMMANDS, default=["statistic", "critical", "replay", "diagnose"]
    )
    parser.add_argument("--against", type=Path, metavar="TREE", help="another tree of this program")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--processes", type=int, default=1, help="--jobs of each command")
    args = parser.parse_args()
    args.directory.mkdir(parents=True, exist_ok=True)
    trees = [REPO, *([args.against.resolve()] if args.against else [])]
    print("job             option        wall s   CPU s  peak MB  / json.load    / other tree")
    for name in args.jobs:
        job = JOBS[name](args.directory).resolve()
        load = _json_load(job)
        for option in args.options:
            if option not in _ONLY.get(name, _COMMANDS):
                continue
            here, *other = _in_turn(trees, option, job, args.repeat, args.processes)
            print(_line(name, option, here, load, other[0] if other else None), flush=True)


def _line(job: str, option: str, cost: Cost | None, load: Cost | None, other: Cost | None) -> str:
    if cost is None:
        return f"{job:16}{option:12}   fails"
    to_load = f"{cost.cpu_s / load.cpu_s:.1f}" if load else "-"
    to_other = f"{cost.cpu_s / other.cpu_s:.2f} ({other.peak_mb:.0f} MB)" if other else "-"
    seconds = f"{cost.wall_s:8.2f}{cost.cpu_s:8.2f}"
    return f"{job:16}{option:12}{seconds}{cost.peak_mb:9.0f}{to_load:>13}{to_other:>16}"


if __name__ == "__main__":
    main()
