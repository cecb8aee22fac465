"""Every answer of a tree of this program on given jobs, saved and compared with those of another tree.

    python3 -m benchmarks.snapshots save TREE DIRECTORY JOB [JOB ...] [--options statistic ...]
    python3 -m benchmarks.snapshots compare OLD_DIRECTORY NEW_DIRECTORY [--tolerance 1e-9] [--show 8]

`save` asks each option for JSON and for its table, and keeps exit code, both outputs and standard error in
one file per job; a job is compared with the next one of its folder. `compare` prints each key of the JSON and
each line of a table that differs; the exit code is 1 where anything does. Jobs are named by their last two
folders, so both directories must hold the same jobs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks import measure

_WHATIF = ["--option", "replay", "--sub_option", "whatif", "--output", "-", "--path", "{job}"]
_COMMANDS = {
    "statistic": ["--option", "statistic", "--path", "{job}"],
    "breakdown": ["--option", "statistic", "--sub_option", "breakdown", "--path", "{job}"],
    "graph": ["--option", "graph", "--path", "{job}", "--output", "graph.graphml"],
    "combine": ["--option", "combine", "--path", "{job}", "--output", "combined.json"],
    "compare": ["--option", "compare", "--path", "{job}", "{other}"],
    "critical": ["--option", "critical", "--path", "{job}", "--scope", "all"],
    "replay": ["--option", "replay", "--path", "{job}", "--output", "-"],
    "whatif": [*_WHATIF, "--set", "BW=0.5", "--set", "straggler=none", "--set", "straggler=mean"],
    "bandwidth": [*_WHATIF, "--set", "bandwidth=2"],
    "bottleneck": [*_WHATIF, "--sub_option", "bottleneck"],
    "diagnose": ["--path", "{job}"],
    "iter_time": ["--option", "collect", "--sub_option", "iter_time", "--path", "{job}"],
    "3dcompare": ["--option", "3dcompare", "--path", "{job}", "{other}", "--output", "sweep.html"],
}
_TIMEOUT_S = 300
_ONE = """
import contextlib, io, json, logging, os, signal, sys
import analyze

def answer(words):
    logging.getLogger().handlers.clear()
    raw, errors = io.BytesIO(), io.StringIO()
    output = io.TextIOWrapper(raw, encoding="utf-8", write_through=True)
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            code = analyze.main(words)
        except SystemExit as end:
            code = end.code
        except Exception as error:
            code = f"{type(error).__name__}: {error}"
    return {"code": code, "output": raw.getvalue().decode(), "errors": errors.getvalue()}

forms = ("json", "table")
commands = json.loads(sys.argv[1]).items()
print(json.dumps({name: {form: answer([*words, "--jobs", "1", "--format", form]) for form in forms}
                  for name, words in commands}))
"""


def main() -> None:
    """Save or compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    actions = parser.add_subparsers(dest="action", required=True)
    save = actions.add_parser("save")
    save.add_argument("tree", type=Path)
    save.add_argument("directory", type=Path)
    save.add_argument("jobs", type=Path, nargs="+")
    save.add_argument("--options", nargs="+", choices=_COMMANDS, default=list(_COMMANDS))
    compare = actions.add_parser("compare")
    compare.add_argument("directories", type=Path, nargs=2)
    compare.add_argument("--tolerance", type=float, default=1e-9, help="of a number, relative")
    compare.add_argument("--show", type=int, default=8, help="differences printed of one answer")
    args = parser.parse_args()
    if args.action == "save":
        args.directory.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            jobs = [job.resolve() for job in args.jobs]
            tasks = [
                pool.submit(_save, args, job, other if other.parent == job.parent else job)
                for job, other in zip(jobs, [*jobs[1:], jobs[0]], strict=True)
            ]
            for task in tasks:
                print(task.result(), flush=True)
    else:
        old, new = args.directories
        sys.exit(_compare(old, new, args.tolerance, args.show))


def _save(args: argparse.Namespace, job: Path, other: Path) -> str:
    """Keep the answers about one job, compared with the `other`; return a line about it."""
    name = "--".join(job.parts[-2:])
    commands = {
        option: [word.format(job=job, other=other) for word in words]
        for option, words in _COMMANDS.items()
        if option in args.options
    }
    environment = dict(os.environ, PYTHONPATH=str(args.tree.resolve()), COLUMNS="120")
    with tempfile.TemporaryDirectory() as scratch:
        done = subprocess.run(
            [measure.python(), "-c", _ONE, json.dumps(commands)],
            cwd=scratch,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S * len(commands),
        )
    if done.returncode:
        return f"{name}: FAILED {done.stderr[-500:]}"
    (args.directory / f"{name}.json").write_text(done.stdout)
    return f"{name}: {len(commands)} answers"


def _compare(old: Path, new: Path, tolerance: float, show: int) -> int:
    """Print what differs; return how many answers do."""
    count = 0
    files = sorted({path.name for path in (*old.glob("*.json"), *new.glob("*.json"))})
    for file in files:
        if not ((old / file).exists() and (new / file).exists()):
            print(f"{file}: only in one of the directories")
            continue
        before, after = (json.loads((directory / file).read_text()) for directory in (old, new))
        for option in sorted(before.keys() & after.keys()):
            found = list(_answers_differ(before[option], after[option], tolerance))
            count += bool(found)
            for line in found[:show]:
                print(f"{file.removesuffix('.json')} {option}: {line}")
            if len(found) > show:
                print(f"{file.removesuffix('.json')} {option}: … {len(found) - show} more")
    print(f"{count} answers differ")
    return min(count, 1)


def _answers_differ(old: dict[str, Any], new: dict[str, Any], tolerance: float) -> Iterator[str]:
    if old["json"]["code"] != new["json"]["code"]:
        yield f"exit code {old['json']['code']} → {new['json']['code']} {new['json']['errors'][-300:]!r}"
        return
    if old["json"]["errors"] != new["json"]["errors"]:
        yield f"stderr {old['json']['errors'][-300:]!r} → {new['json']['errors'][-300:]!r}"
    try:
        documents = [json.loads(one["json"]["output"] or "null") for one in (old, new)]
    except ValueError:
        documents = [old["json"]["output"], new["json"]["output"]]
    yield from _differences(documents[0], documents[1], "", tolerance)
    lines = [one["table"]["output"].splitlines() for one in (old, new)]
    changed = [(a, b) for a, b in zip(*lines, strict=False) if a != b]
    if changed or len(lines[0]) != len(lines[1]):
        yield f"table: {len(lines[0])} → {len(lines[1])} lines, {len(changed)} differ"
        for before, after in changed:
            yield f"table: {before.strip()}  →  {after.strip()}"


def _differences(old: Any, new: Any, where: str, tolerance: float) -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            if key not in old or key not in new:
                yield f"{where}.{key} only in {'new' if key in new else 'old'}"
            else:
                yield from _differences(old[key], new[key], f"{where}.{key}", tolerance)
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            yield f"{where}: {len(old)} → {len(new)} items"
        for place, (before, after) in enumerate(zip(old, new, strict=False)):
            yield from _differences(before, after, f"{where}[{place}]", tolerance)
    elif isinstance(old, float) and isinstance(new, float):
        if not math.isclose(old, new, rel_tol=tolerance, abs_tol=1e-9):
            yield f"{where}: {old!r} → {new!r}"
    elif old != new:
        yield f"{where}: {old!r} → {new!r}"


if __name__ == "__main__":
    main()
