"""Whether the answers depend on how they are computed.

In C or in Python, by one process, two, or a cluster, and with the steps in memory or put aside in a file.

    python3 -m benchmarks.same_answers JOB [JOB ...] [--options statistic graph ...] [--ways python two]

Each option is asked for JSON in each way; its standard output, standard error and output file are compared
byte for byte with those of one process with what is in C. Prints differences, and counts after each job. A
command that fails has to fail alike. The cluster is a scheduler and two workers on this machine.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from unittest import mock

import analyze

_BASE = "native"
_WAYS = {
    _BASE: ["--jobs", "1"],
    "python": ["--jobs", "1"],
    "two": ["--jobs", "2"],
    "cluster": ["--cluster", "{address}"],
    "aside": ["--jobs", "1"],
}
_WHATIF = ["--path", "{job}", "--output", "-", "--sub_option", "whatif"]
_COMMANDS = {
    "statistic": ["--path", "{job}"],
    "breakdown": ["--path", "{job}", "--sub_option", "breakdown"],
    "graph": ["--path", "{job}", "--output", "graph.graphml"],
    "combine": ["--path", "{job}", "--output", "combined.json"],
    "compare": ["--path", "{job}", "{job}"],
    "critical": ["--path", "{job}"],
    "replay": ["--path", "{job}", "--output", "-"],
    "whatif": [*_WHATIF, "--set", "BW=0.5", "--set", "straggler=none", "--set", "straggler=mean"],
    "bandwidth": [*_WHATIF, "--set", "bandwidth=2"],
    "bottleneck": ["--path", "{job}", "--output", "-", "--sub_option", "bottleneck"],
    "diagnose": ["--path", "{job}"],
    "iter_time": ["--path", "{job}", "--sub_option", "iter_time"],
    "3dcompare": ["--path", "{job}", "{job}", "--output", "sweep.html"],
}
_REPLAYS = dict.fromkeys(("whatif", "bandwidth", "bottleneck"), "replay")
_OPTION = {"breakdown": "statistic", "iter_time": "collect", **_REPLAYS}

Answer = tuple[int, bytes, str, list[bytes]]  # exit code, standard output, standard error, files


def main() -> None:
    """Ask, compare, print; the exit code is 1 where anything differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("jobs", type=Path, nargs="+", metavar="JOB")
    parser.add_argument("--options", nargs="+", choices=_COMMANDS, default=list(_COMMANDS))
    others = [way for way in _WAYS if way != _BASE]
    parser.add_argument("--ways", nargs="+", choices=others, default=others)
    args = parser.parse_args()
    count: Counter[str] = Counter()
    jobs = [job.resolve() for job in args.jobs]
    with _cluster("cluster" in args.ways) as address, tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        for job in jobs:
            for command in args.options:
                expected = _answer(command, job, _BASE, address)
                count["answers" if expected[0] in (0, 3) else "refusals"] += 1
                for way in args.ways:
                    found = _answer(command, job, way, address)
                    count[f"{way}: {'the same' if found == expected else 'DIFFERENT'}"] += 1
                    if found != expected:
                        print(f"{job} {command}, {way}: {_difference(expected, found)}", flush=True)
            print(f"up to {job}: {'; '.join(f'{what} {n}' for what, n in count.items())}", flush=True)
    sys.exit(any("DIFFERENT" in what for what in count))


@contextlib.contextmanager
def _cluster(is_wanted: bool) -> Iterator[str]:
    """Give the address of a scheduler with two workers, which end with the block; "" where not wanted."""
    if not is_wanted:
        yield ""
        return
    from distributed import LocalCluster

    os.environ["ANALYZE_NATIVE"] = "1"  # of the workers
    with LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0", silence_logs=50
    ) as cluster:
        yield cluster.scheduler_address


def _answer(command: str, job: Path, way: str, address: str) -> Answer:
    """Return the answer of a command in one of the ways; its files are in the working directory."""
    os.environ["ANALYZE_NATIVE"] = "0" if way == "python" else "1"
    for file in Path().iterdir():
        file.unlink()
    logging.getLogger().handlers.clear()  # they would write to the last command's standard error
    words = ["--option", _OPTION.get(command, command), "--format", "json", *_COMMANDS[command], *_WAYS[way]]
    raw, errors = io.BytesIO(), io.StringIO()
    output = io.TextIOWrapper(raw, encoding="utf-8", write_through=True)
    aside = mock.patch.multiple("arrays.spill", _IN_MEMORY=-1, _LEAST=0) if way == "aside" else nullcontext()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors), aside:
        try:
            code = analyze.main([word.format(job=job, address=address) for word in words])
        except SystemExit as end:  # a wrong usage
            code = end.code if isinstance(end.code, int) else 2
    # a page draws what JSON tells, with numbers that are chosen anew each time
    files = [path.read_bytes() for path in sorted(Path().iterdir()) if path.suffix != ".html"]
    return code, raw.getvalue(), errors.getvalue(), files


def _difference(expected: Answer, found: Answer) -> str:
    parts = zip(("exit code", "standard output", "standard error", "files"), expected, found, strict=True)
    return ", ".join(what for what, one, other in parts if one != other)


if __name__ == "__main__":
    main()
