"""How the cost of each option for many ranks grows with their number, relative to what a rank costs of 64.

The jobs are the first ranks of one job (`benchmarks.ranks`), as directories of links.

    python3 -m benchmarks.growth JOB [--ranks 1 8 64 256 1024] [--option statistic combine ...] [--repeat 1]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measure import REPO, Cost, python, run

#: At this number of ranks a rank's cost is the yardstick.
_YARDSTICK = 64
_COMMANDS = {
    "statistic": ["--option", "statistic", "--path", "{job}"],
    "breakdown": ["--option", "statistic", "--sub_option", "breakdown", "--path", "{job}"],
    "compare": ["--option", "compare", "--path", "{job}", "{job}"],
    "combine": ["--option", "combine", "--path", "{job}", "--output", "{scratch}/combined.json"],
    "critical": ["--option", "critical", "--path", "{job}"],
    "replay": ["--option", "replay", "--output", "-", "--path", "{job}"],
    "diagnose": ["--option", "diagnose", "--path", "{job}"],
}


def subset(job: Path, n_ranks: int, scratch: Path) -> Path:
    """Return a directory in `scratch` with links to the files of the first ranks of a job."""
    directory = scratch / f"ranks{n_ranks}"
    directory.mkdir()
    files = sorted(job.glob("rank*"), key=lambda path: int("".join(filter(str.isdigit, path.name)) or 0))
    if len(files) < n_ranks:
        raise SystemExit(f"{job}: {len(files)} ranks, not {n_ranks}")
    for file in files[:n_ranks]:
        (directory / file.name).symlink_to(file.resolve())
    return directory


def measured(option: str, job: Path, scratch: Path, repeat: int) -> Cost:
    """Return the cost of one command; its memory is that of its largest process."""
    words = [word.format(job=job, scratch=scratch) for word in _COMMANDS[option]]
    return run([python(), str(REPO / "analyze.py"), *words], repeat=repeat)


def rows(job: Path, counts: list[int], chosen: list[str], repeat: int) -> Iterator[list[object]]:
    """Yield a row for each option and number of ranks, the fewest ranks first."""
    with TemporaryDirectory(prefix="growth-") as name:
        scratch = Path(name)
        jobs = {n: subset(job, n, scratch) for n in counts}
        for option in chosen:
            costs = {}
            for n in counts:
                costs[n] = measured(option, jobs[n], scratch, repeat)
                print(f"{option}, {n} ranks: {costs[n]}", file=sys.stderr, flush=True)
            each = costs[_YARDSTICK].cpu_s / _YARDSTICK if _YARDSTICK in costs else None
            for n, cost in costs.items():
                ratio = "–" if each is None else f"{cost.cpu_s / n / each:.2f}"
                times = f"{cost.wall_s:.1f}", f"{cost.cpu_s:.1f}", f"{1e3 * cost.cpu_s / n:.0f}"
                yield [option, n, *times, ratio, f"{cost.peak_mb:.0f}"]


def main() -> None:
    """Print the table in Markdown, the rows of an option as soon as they are known."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("job", type=Path)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 8, 64, 256, 1024])
    parser.add_argument("--option", choices=list(_COMMANDS), nargs="+", default=list(_COMMANDS))
    parser.add_argument("--repeat", type=int, default=1)
    args = parser.parse_args()
    head = ["option", "ranks", "wall, s", "CPU, s", "CPU a rank, ms", "of that at 64", "largest process, MB"]
    print(f"| {' | '.join(head)} |", f"| --- {'| --: ' * 6}|", sep="\n", flush=True)
    for row in rows(args.job, sorted(args.ranks), args.option, args.repeat):
        print(f"| {' | '.join(map(str, row))} |", flush=True)


if __name__ == "__main__":
    main()
