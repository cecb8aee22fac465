"""Save every answer of a tree of this program on recorded jobs, and compare it with another tree's.

    python3 -m benchmarks.snapshots save TREE DIRECTORY [JOB ...] [--options statistic ...]
    python3 -m benchmarks.snapshots compare OLD_DIRECTORY NEW_DIRECTORY [--tolerance 1e-9] [--show 8]

`save` asks each option for JSON and keeps its exit code, document, messages and a digest of the file it
wrote, in one file per job; without jobs it takes all recordings in `examples/` and `../shared/data`. A job is
compared with the next one of its folder. `compare` prints each key of the JSON that differs; the exit code
is 1 where any does.
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

_REPO = Path(__file__).resolve().parents[1]
_EXAMPLES = _REPO / "examples"
_DATA = _REPO.parent / "shared" / "data"
#: Folders beside recordings that hold answers of other programs, or what was put into the job.
_ANSWERS = {"truth", "oracle", "expected"}
_WHATIF = ["--option", "replay", "--sub_option", "whatif", "--path", "{job}"]
_COMMANDS = {
    "statistic": ["--option", "statistic", "--path", "{job}"],
    "operations": ["--option", "statistic", "--group_by", "operation", "--path", "{job}"],
    "kernel_kinds": ["--option", "statistic", "--group_by", "kernel_kind", "--path", "{job}"],
    "breakdown": ["--option", "statistic", "--sub_option", "breakdown", "--path", "{job}"],
    "collectives": ["--option", "statistic", "--sub_option", "collectives", "--path", "{job}"],
    "function_bottleneck": [
        "--option",
        "statistic",
        "--sub_option",
        "function_bottleneck",
        "--path",
        "{job}",
    ],
    "task_bottleneck": ["--option", "statistic", "--sub_option", "task_bottleneck", "--path", "{job}"],
    "task_balance": ["--option", "statistic", "--sub_option", "task_balance", "--path", "{job}"],
    "graph": ["--option", "graph", "--path", "{job}", "--output", "graph.graphml"],
    "combine": ["--option", "combine", "--path", "{job}", "--output", "combined.json"],
    "compare": ["--option", "compare", "--path", "{job}", "{other}"],
    "critical": ["--option", "critical", "--path", "{job}"],
    "mean_path": ["--option", "critical", "--step", "mean", "--path", "{job}"],
    "partitions": ["--option", "critical", "--del_queue", "--path", "{job}"],
    "replay": ["--option", "replay", "--path", "{job}", "--output", "replay.json"],
    "whatif": [*_WHATIF, "--set", "BW=0.5", "--set", "straggler=none", "--set", "straggler=mean"],
    "bandwidth": [*_WHATIF, "--set", "bandwidth=2"],
    "kernel": [*_WHATIF, "--set", "kernel=0.5"],
    "bottleneck": ["--option", "replay", "--sub_option", "bottleneck", "--path", "{job}"],
    "diagnose": ["--path", "{job}"],
    "iter_time": ["--option", "collect", "--sub_option", "iter_time", "--path", "{job}"],
    "3dcompare": ["--option", "3dcompare", "--path", "{job}", "{other}", "--output", "sweep.html"],
}
_TIMEOUT_S = 300
_ANSWER = """
import contextlib, hashlib, io, json, logging, pathlib, sys
import analyze

def digest(path):
    text = path.read_bytes()
    with contextlib.suppress(ValueError, KeyError, TypeError):
        events = json.loads(text)["traceEvents"]
        text = "\\n".join(sorted(json.dumps(event, sort_keys=True) for event in events)).encode()
    return hashlib.sha256(text).hexdigest()

def answer(words):
    logging.getLogger().handlers.clear()
    raw, errors = io.BytesIO(), io.StringIO()
    output = io.TextIOWrapper(raw, encoding="utf-8", write_through=True)
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            code = analyze.main([*words, "--jobs", "1", "--format", "json"])
        except SystemExit as end:
            code = end.code
        except Exception as error:
            code = f"{type(error).__name__}: {error}"
    files = {}
    for path in sorted(pathlib.Path().iterdir()):
        if path.suffix != ".html":
            files[path.name] = digest(path)
        path.unlink()
    return {"code": code, "output": raw.getvalue().decode(), "errors": errors.getvalue(), "files": files}

print(json.dumps({name: answer(words) for name, words in json.loads(sys.argv[1]).items()}))
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
    save.add_argument("jobs", type=Path, nargs="*")
    save.add_argument("--options", nargs="+", choices=_COMMANDS, default=list(_COMMANDS))
    compare = actions.add_parser("compare")
    compare.add_argument("directories", type=Path, nargs=2)
    compare.add_argument("--tolerance", type=float, default=1e-9, help="of a number, relative")
    compare.add_argument("--show", type=int, default=8, help="differences printed of one answer")
    args = parser.parse_args()
    if args.action == "save":
        args.directory.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            jobs = [job.resolve() for job in args.jobs] or _recorded_jobs()
            tasks = [
                pool.submit(_save, args, job, other if other.parent == job.parent else job)
                for job, other in zip(jobs, [*jobs[1:], jobs[0]], strict=True)
            ]
            for task in tasks:
                print(task.result(), flush=True)
    else:
        old, new = args.directories
        sys.exit(_compare(old, new, args.tolerance, args.show))


def _recorded_jobs() -> list[Path]:
    """List the recordings of `examples/` and `../shared/data`: jobs, other folders of traces, or files."""
    jobs = [path for path in sorted(_EXAMPLES.iterdir()) if path.is_dir()]
    jobs += [path for path in sorted((_DATA / "byteps").glob("*")) if path.is_dir()]
    for folder in sorted(path for path in _DATA.rglob("*") if path.is_dir()):
        parts = folder.relative_to(_DATA).parts
        if parts[0] == "byteps" or _ANSWERS & set(parts):
            continue
        files = [path for path in sorted(folder.iterdir()) if path.is_file() and _is_recording(path)]
        alone = "cases" in parts or "generic" in parts or (folder / "truth.json").exists() or "nsys" in parts
        jobs += files if alone else [folder] if files else []
    return jobs


def _is_recording(path: Path) -> bool:
    """Whether the name of a file allows it to be a recording."""
    return (
        path.name != "truth.json"
        and path.suffix.lower() not in (".md", ".txt", ".py")
        and path.stem != "README"
    )


def _save(args: argparse.Namespace, job: Path, other: Path) -> str:
    """Keep the answers about one job, compared with the `other`; return a line about it."""
    name = "--".join(job.parts[-3:])
    commands = {
        option: [word.format(job=job, other=other) for word in words]
        for option, words in _COMMANDS.items()
        if option in args.options
    }
    environment = dict(os.environ, PYTHONPATH=str(args.tree.resolve()), COLUMNS="120")
    with tempfile.TemporaryDirectory() as scratch:
        done = subprocess.run(
            [sys.executable, "-c", _ANSWER, json.dumps(commands)],
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
    if old["code"] != new["code"]:
        yield f"exit code {old['code']} → {new['code']} {new['errors'][-300:]!r}"
        return
    if old["errors"] != new["errors"]:
        yield f"stderr {old['errors'][-300:]!r} → {new['errors'][-300:]!r}"
    if old["files"] != new["files"]:
        yield f"files {sorted(old['files'])} → {sorted(new['files'])}, or their contents"
    try:
        documents = [json.loads(answer["output"] or "null") for answer in (old, new)]
    except ValueError:
        documents = [old["output"], new["output"]]
    yield from _differences(documents[0], documents[1], "", tolerance)


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
