"""Runs on damaged jobs, in children of a process that has everything loaded: 15 ms each, not a second.

``PYTHONPATH=. python tests/fuzz_runs.py FIRST COUNT`` tries the seeds from FIRST on, and prints those that
break a law; with COUNT 1 also the command, and what it printed.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import json
import os
import pkgutil
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, NamedTuple

import mutations

from analyzer import cli
from analyzer.cli.arguments import parser_of
from analyzer.reading.formats import native
from conftest import REPO, run_cli

#: What a run may take beside a second and ten bytes of memory for each byte of its input.
_MOST_S, _MOST_BYTES = 10, 300 << 20
_WAIT_S = 120  # of a busy machine
_BLOCK = 20  # runs of a child: a new one takes as long as one of them
_LOADED = ("scipy.stats", "google.protobuf", "xlsxwriter", "vl_convert", "networkx")
_WORDS = ("Comm", "FW", "gradient_0", "Comm.byteps.gradient_0.PUSH", "gemm", "nothing", "", "\x1b[31m", "(")
_FIELDS = ("pid", "tid", "args.step", "args.rank", "args.", "rank", "train", "Profiler", "x" * 500)
_AMOUNTS = (
    "0", "-1", "0.5", "2", "1e308", "-0", "nan", "inf", "x", "200Mbit", "+400ms", "peers", "none", "even",
    "usual", "mean", "each_step", "priority", "fifo", "first", "merged", "off", "50MB", "", "9" * 400,
)  # fmt: skip
_EDITED = (
    "bandwidth", "latency", "partition_bytes", "schedule", "straggler", "drop", "negotiation", "ready", "gap",
    "step1", "step2,step3", "servers", "collectives", "overlap", "bucket_cap", "sync", "allocations", "host",
    "rank1", "rank1.extra", "rank1.gap", "rank0,rank1", "FW", "BW", "Comm", "I/O", "stage0", "FW.a", "step=1",
    "rank0.Comm", "Comm.byteps.gradient_0.PUSH", "rank7", "wk0.rank0", "gemm",
)  # fmt: skip
_SUB_OPTIONS: Mapping[str, Sequence[str]] = {
    "statistic": ("breakdown", "collectives", "function_bottleneck", "task_bottleneck", "task_balance"),
    "replay": ("smlt_delay_cmp", "smlt_delay_comm", "map_delay", "bottleneck", "whatif"),
    "collect": ("iter_time", "operator", "comm", "io", "pcap", "server"),
}
_WRITES = os.O_WRONLY | os.O_RDWR
#: What some events of a program start that works on data alone: nothing here may.
_EXECUTED = ("os.exec", "os.fork", "os.posix_spawn", "os.system", "pickle.find_class", "socket.connect",
             "subprocess.Popen")  # fmt: skip
#: Jobs of which `statistic` counts the events, and options that say, too, what was lost of them.
_COUNTED = frozenset(mutations.KINDS) - {"graph", "digest"}
_TELLING = ("statistic", "diagnose", "critical", "replay")
#: Jobs of one file, which has to be named.
_FILES = ("graph", "digest")
_CHANGED = ("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.link", "os.symlink", "os.truncate")


class Answer(NamedTuple):
    """How many events `statistic` counts in a job, and an option's notes."""

    events: int
    notes: AbstractSet[str]


#: Of each kind of job as it is, by option.
_Clean = Mapping[tuple[str, str], Answer]


class _BrokenError(Exception):
    """A law that a run breaks."""


def main(first: int, count: int) -> int:
    """Try `count` seeds, and tell how many had each kind of job; return how many break a law."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # a process with threads cannot be forked safely
    folder = Path(tempfile.mkdtemp(prefix="fuzz"))
    try:
        clean = _warm_up(folder)
        gc.freeze()
        sys.addaudithook(_watch)
        broken, begin, last = 0, time.monotonic(), first + count
        while first < last:
            block = range(first, min(first - first % _BLOCK + _BLOCK, last))
            for seed, reason in _forked(block, folder, clean, shown=count == 1):
                first = seed + 1
                if reason:
                    broken += 1
                    _tell(f"seed {seed}: {reason}")
            if first % 1000 == 0:
                _tell(f"# up to {first} in {time.monotonic() - begin:.0f} s")
        _tell("#", Counter(_drawn(seed)[1] for seed in range(last - count, last)).most_common())
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return broken


def _tell(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def _warm_up(folder: Path) -> _Clean:
    """Load what runs load, but for threads; return what options say of each job as it is."""
    for module in pkgutil.walk_packages([str(REPO)]):
        if not module.name.startswith(("tests", "benchmarks")) and module.name != "analyze":
            importlib.import_module(module.name)
    for name in _LOADED:
        importlib.import_module(name)
    native.library()
    clean = {}
    for kind in mutations.KINDS:
        mutations.write_job(kind, folder / kind)
        for option in _TELLING:
            clean[kind, option] = _answer(folder / kind, *run_cli(*_told(option, folder / kind)))
    return clean


def _told(option: str, job: Path) -> list[object]:
    without_file = ["--output", "-"] if option in ("critical", "replay") else []
    return [option, job, "--format", "json", "--jobs", "1", *without_file]


def _answer(job: Path, code: int, stdout: str, stderr: str) -> Answer:
    found = json.loads(stdout) if code == 0 else {}
    operations = found["operations"] if found.get("option") == "statistic" else ()
    events = sum(operation["count"] for operation in operations)
    notes = (*found.get("repairs", ()), *stderr.splitlines())
    return Answer(events, frozenset(note.replace(str(job), "") for note in notes))


def _forked(seeds: Sequence[int], folder: Path, clean: _Clean, *, shown: bool) -> Iterator[tuple[int, str]]:
    """Try seeds in a child; yield each with the law that it breaks, or "", up to one that ends the child."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        if not shown:
            os.dup2(writing, 2)
        faulthandler.enable()
        for seed in seeds:
            os.write(
                writing, f"{json.dumps([seed, _tried(seed, folder / str(seed), clean, shown)])}\n".encode()
            )
        os._exit(0)
    os.close(writing)
    text, tried = "", 0
    with open(reading, encoding="utf-8", errors="replace") as told:
        for line in told:
            if line.startswith(f"[{seeds[tried] if tried < len(seeds) else None}, "):
                yield tuple(json.loads(line))
                tried, text = tried + 1, ""
            else:
                text += line
    status = os.waitpid(child, 0)[1]
    if tried < len(seeds):
        shutil.rmtree(folder / str(seeds[tried]), ignore_errors=True)
        yield seeds[tried], f"{text[-3000:]}\nended by signal {status & 127} (14: waits; 27: computes)"


def _tried(seed: int, folder: Path, clean: _Clean, shown: bool) -> str:
    """Return the law that a seed breaks, or ""."""
    signal.alarm(_WAIT_S)
    signal.setitimer(signal.ITIMER_PROF, 3 * _MOST_S)
    begin, peak_before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    try:
        run(seed, folder, clean, shown=shown)
        reason = ""
    except _BrokenError as error:
        reason = str(error)
    except BaseException:
        reason = traceback.format_exc(-6)[-3000:]
    seconds = time.process_time() - begin
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.exists() else 0
    shutil.rmtree(folder, ignore_errors=True)
    if seconds > _MOST_S + size / 1e6:
        reason += f"\ntook {seconds:.1f} s for {size:,} bytes"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    if peak > max(peak_before, _MOST_BYTES + 10 * size):
        reason += f"\ntook {peak >> 20} MiB for {size:,} bytes"
    return reason


def _drawn(seed: int) -> tuple[random.Random, str]:
    rng = random.Random(seed)
    return rng, rng.choice(list(mutations.KINDS))


def run(seed: int, folder: Path, clean: _Clean, *, shown: bool = False) -> None:
    """Damage a job as `seed` says, and run a command on it; `_BrokenError` if that breaks a law."""
    rng, kind = _drawn(seed)
    os.environ["ANALYZE_NATIVE"] = str(rng.randrange(2))  # both decoders
    job, out = folder / "job", folder / "out"
    mutations.write_job(kind, job)
    (out / "tmp").mkdir(parents=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(out / "tmp")
    option = rng.choice(_TELLING) if rng.random() < 0.2 and kind in _COUNTED else ""
    if option:
        mutations.damage_visibly(rng, job)
        words = _told(option, job)
    else:
        mutations.damage(rng, job)
        words = _command(rng, kind, job, out)
    if shown:
        _tell(kind, *map(repr, map(str, words)))
    before = _contents(job)
    _within[:], _done[:] = [str(folder)], []
    ended = run_cli(*words)
    _within.clear()
    code, stdout, stderr = ended
    if shown:
        _tell(code, stdout[:5000], stderr)
    _check(code, stdout if "json" in words else "{}", stderr, out)
    if _done:
        raise _BrokenError(f"it did {_done.pop()}")
    if "collect" not in words and (
        changed := [path for path, content in before.items() if _content(path) != content]
    ):
        raise _BrokenError(f"changed {changed[0]}")
    if left := list(folder.rglob("*.tmp")):
        raise _BrokenError(f"left {left[0]}")
    if option and code == 0 and _answer(job, *ended).notes <= clean[kind, option].notes:
        lost = clean[kind, "statistic"].events - _answer(job, *run_cli(*_told("statistic", job))).events
        if lost > 0:
            raise _BrokenError(f"{kind}, {option}: {lost} events lost without a note")


def _check(code: int, stdout: str, stderr: str, out: Path) -> None:
    if code not in (0, 1, 2, 3):
        raise _BrokenError(f"exit code {code}")
    errors = 0
    for line in stderr.splitlines():
        if not line.startswith("analyze.py: ") or len(line) > 330 or not line.isprintable():
            raise _BrokenError(f"not a line for users: {line[:300]!r}")
        errors += line.startswith("analyze.py: error: ")
        if "not enough memory" in line or "cannot be loaded" in line:
            raise _BrokenError(line)
    if errors != (code in (1, 2)):
        raise _BrokenError(f"exit code {code} with {errors} lines of errors: {stderr[-300:]!r}")
    for text in (stdout, *(path.read_text() for path in out.glob("*.json"))):
        if code == 0:
            json.loads(text, parse_constant=_refuse)


def _refuse(constant: str) -> Any:
    raise _BrokenError(f"{constant} in JSON")


def _contents(job: Path) -> dict[Path, bytes | None]:
    return {path: _content(path) for path in job.rglob("*")}


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


#: The folder of the run, while one is watched; what it executed, or changed elsewhere.
_within: list[str] = []
_done: list[str] = []


def _watch(event: str, args: tuple[Any, ...]) -> None:
    if not _within:
        return
    if event in _EXECUTED:
        _done.append(f"{event} {args!r:.200}")
    elif event in _CHANGED or (event == "open" and isinstance(args[2], int) and args[2] & _WRITES):
        name = os.fsdecode(args[0]) if isinstance(args[0], str | bytes | os.PathLike) else ""
        if os.path.isabs(name) and not name.startswith((f"{_within[0]}/", "/dev/")):
            _done.append(f"{event} {args!r:.200}")


def _command(rng: random.Random, kind: str, job: Path, out: Path) -> list[object]:
    """Return a command line with flags that its option knows, and now and then one that it does not."""
    option = "graph" if kind == "graph" else rng.choice([*cli.MODULES, "diagnose", "whatif"])
    files = sorted(path for path in job.rglob("*") if path.is_file())
    path: object = job if not files or (rng.random() < 0.8 and kind not in _FILES) else rng.choice(files)
    paths = [path]
    if option in ("compare", "3dcompare") or rng.random() < 0.05:
        other = folder_of(rng, kind, out)
        paths = rng.choice(([path, other], [other, path], [path, path]))
    words: list[object] = [option, *paths]
    if rng.random() < 0.3 and option != "whatif":
        words = ["--option", option, "--path", *paths]
    elif rng.random() < 0.1:
        words = [",".join(map(str, paths))] if option == "diagnose" else [option, ",".join(map(str, paths))]
    heeded = {action.dest for action in parser_of(str(option))._actions}
    flags: list[tuple[str, Callable[[], list[object]]]] = [
        ("group_by", lambda: ["--group_by", rng.choice(("operation", "rank", *cli.GROUPS))]),
        ("rank_by", lambda: ["--rank_by", rng.choice(_FIELDS)]),
        ("step_by", lambda: ["--step_by", rng.choice(_FIELDS)]),
        ("filter", lambda: ["--filter", rng.choice(_WORDS)]),
        ("comm", lambda: ["--comm", rng.choice(_WORDS)]),
        ("sort", lambda: ["--sort"]),
        ("head", lambda: ["--head", rng.choice(("1", "0", "9" * 40))]),
        ("step", lambda: ["--step", rng.choice(("1", "2", "mean", "-1", "9" * 40))]),
        ("del_queue", lambda: ["--del_queue"]),
        ("step_num", lambda: ["--step_num", rng.choice(("1", "5", "0"))]),
        ("delay_ratio", lambda: ["--delay_ratio", rng.choice(_AMOUNTS[:8])]),
        ("align", lambda: ["--align", "none"]),
        ("fail_above", lambda: ["--fail_above", rng.choice(_AMOUNTS[:8])]),
        ("save", lambda: ["--save", out / rng.choice(("save.json", "save.json.gz"))]),
    ]
    for name, flag in flags:
        if rng.random() < (0.12 if name in heeded else 0.003):
            words += flag()
    if option in _SUB_OPTIONS and rng.random() < 0.5:
        words += ["--sub_option", rng.choice(_SUB_OPTIONS[option])]
    if option == "whatif" or "whatif" in words[1:]:
        edits = [f"{rng.choice(_EDITED)}={rng.choice(_AMOUNTS)}" for _ in range(rng.choice((0, 1, 1, 2, 4)))]
        words += edits if option == "whatif" else [word for edit in edits for word in ("--set", edit)]
    suffixes = {"graph": (".dot", ".graphml", ".svg"), "3dcompare": (".html",)}.get(
        option, (".json", ".json.gz")
    )
    if option in ("graph", "combine", "3dcompare") or ("output" in heeded and rng.random() < 0.3):
        words += ["--output", out / f"output{rng.choice(suffixes)}"]
    if rng.random() < 0.03:
        words += [rng.choice(("--html", "--xlsx")), out / "output.2"]
    words += ["--format", rng.choice(("json", "json", "json", "table", "csv", "markdown")), "--jobs", "1"]
    return words + (["--full"] if rng.random() < 0.1 else [])


def folder_of(rng: random.Random, kind: str, out: Path) -> Path:
    """Return a job that is not damaged, mostly of the same kind."""
    other = kind if rng.random() < 0.8 else rng.choice(list(mutations.KINDS))
    mutations.write_job(other, out / "other")
    return next((out / "other").iterdir()) if other in _FILES else out / "other"


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])) > 0)
