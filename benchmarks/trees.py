"""Two trees of this program against each other: CPU time of every option on given jobs, run in turns.

    python3 -m benchmarks.trees OLD NEW JOB [JOB ...] [--repeat 5] [--options statistic replay]

Prints for each job and option the least CPU time of each tree and their ratio: above 1 where NEW takes more.
A command that fails in one of the trees is not compared.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
from pathlib import Path

from benchmarks import measure

_COMMANDS = {
    "diagnose": ["--path", "{job}"],
    "statistic": ["--path", "{job}"],
    "graph": ["--path", "{job}", "--output", "{out}/graph.html"],
    "combine": ["--path", "{job}", "--output", "{out}/combined.json"],
    "compare": ["--path", "{job}", "{job}"],
    "critical": ["--path", "{job}"],
    "replay": ["--path", "{job}", "--output", "{out}/replay.json"],
    "3dcompare": ["--path", "{job}", "{job}", "--output", "{out}/sweep.html"],
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trees", type=Path, nargs=2, metavar="TREE")
    parser.add_argument("jobs", type=Path, nargs="+", metavar="JOB")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--options", nargs="+", choices=_COMMANDS, default=list(_COMMANDS))
    args = parser.parse_args()
    print("job option old_s new_s new/old")
    with tempfile.TemporaryDirectory() as scratch:
        for job in args.jobs:
            for option in args.options:
                old, new = _least(args.trees, job.resolve(), option, args.repeat, Path(scratch))
                ratio = f"{new / old:.2f}" if old and new else "fails"
                print(job.name, option, f"{old or 0:.2f} {new or 0:.2f}", ratio, flush=True)


def _least(
    trees: list[Path], job: Path, option: str, repeat: int, scratch: Path
) -> tuple[float | None, float | None]:
    """Return the least CPU seconds of `option` in each of the two `trees`; None where it fails."""
    costs: list[list[float]] = [[], []]
    for turn in range(1 + repeat):  # the first compiles modules
        for tree, values in zip(trees, costs, strict=True):
            cpu_s = _cpu_s(tree.resolve(), job, option, scratch)
            if turn and cpu_s is not None:
                values.append(cpu_s)
    old, new = (min(values, default=None) for values in costs)
    return old, new


def _cpu_s(tree: Path, job: Path, option: str, scratch: Path) -> float | None:
    """Return the seconds of CPU that one command of `tree` takes; None if it fails."""
    environment = dict(os.environ, PYTHONPYCACHEPREFIX=str(scratch / f"compiled-{tree.name}"))
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory(dir=scratch) as out:
        words = [word.format(job=job, out=out) for word in _COMMANDS[option]]
        command = [measure.python(), "analyze.py", "--option", option, "--jobs", "1", *words]
        process = subprocess.Popen(
            command, cwd=tree, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        _, status, usage = os.wait4(process.pid, 0)
    return None if status else usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
