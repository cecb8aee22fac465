"""Damaged files of every kind: each run ends in a result or in one line, soon, and changes no input.

`make fuzz SEED=1 COUNT=5000` runs other mutations than these.
"""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mutations
import pytest

from conftest import run_cli

pytestmark = pytest.mark.slow

FIRST = int(os.environ.get("FUZZ_SEED", "1"))
COUNT = int(os.environ.get("FUZZ_COUNT", "30"))
_BLOCK = 10
_LIMIT_S = 20
_OPTIONS: dict[str, Callable[[Path, Path], list[object]]] = {
    "statistic": lambda job, out: ["--path", job],
    "groups": lambda job, out: ["--path", job, "--group_by", "module"],
    "kernel kinds": lambda job, out: ["--path", job, "--group_by", "kernel_kind", "--comm", "gemm"],
    "fields": lambda job, out: ["--path", job, "--rank_by", "tid", "--step_by", "args.step"],
    "collectives": lambda job, out: ["--path", job, "--sub_option", "collectives", "--peak", "100"],
    "breakdown": lambda job, out: ["--path", job, "--sub_option", "breakdown"],
    "combine": lambda job, out: ["--path", job, "--output", out / "all.json"],
    "compare": lambda job, out: ["--path", job, job],
    "critical": lambda job, out: ["--path", job],
    "diagnose": lambda job, out: ["--path", job, "--html", out / "page.html"],
    "replay": lambda job, out: ["--path", job, "--output", "-", "--jobs", "1"],
    "edits": lambda job, out: [
        *("--path", job, "--sub_option", "whatif", "--set", "bandwidth=2", "--set", "straggler=none"),
        *("--set", "overlap=off", "--set", "FW=0.5", "--jobs", "1"),
    ],
    "graph": lambda job, out: ["--path", job, "--output", out / "graph.dot"],
    "collect": lambda job, out: ["--path", job],
}


@pytest.mark.thorough
@pytest.mark.parametrize("first", range(FIRST, FIRST + COUNT, _BLOCK))
def test_damaged_files_end_in_a_result_or_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    for seed in range(first, min(first + _BLOCK, FIRST + COUNT)):
        monkeypatch.setenv("ANALYZE_NATIVE", str(seed // 2 % 2))  # both decoders
        folder = tmp_path / str(seed)
        try:
            run(seed, folder)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


def run(seed: int, folder: Path) -> None:
    """Damage a job as `seed` says, run an option on it, and check what comes of it."""
    rng = random.Random(seed)
    kind = rng.choice(list(mutations.KINDS))
    job, out = folder / "job", folder / "out"
    mutations.write_job(kind, job)
    out.mkdir()
    files = sorted(path for path in job.rglob("*") if path.is_file())
    for path in rng.sample(files, min(len(files), rng.choice((1, 1, 2)))):
        path.write_bytes(mutations.damaged(rng, path.name, path.read_bytes()))
    option = "graph" if kind == "graph" else rng.choice(list(_OPTIONS))
    path = files[0] if kind == "graph" else job
    before = {path: path.read_bytes() for path in files}
    flags = _OPTIONS[option](path, out)
    if option in ("breakdown", "collectives", "fields", "groups", "kernel kinds"):
        option = "statistic"
    option = "replay" if option == "edits" else option
    with _within(_LIMIT_S):
        code, stdout, stderr = run_cli("--option", option, *flags, "--format", "json")
    assert code in (0, 1, 2), stderr
    assert all(line.startswith("analyze.py: ") for line in stderr.splitlines()), stderr
    assert stderr.count("analyze.py: error:") == (code != 0 and "usage:" not in stderr), stderr
    if code == 0:
        _strict(stdout)
    for written in out.glob("*.json"):
        _strict(written.read_text())
    changed = [path for path, content in before.items() if path.read_bytes() != content]
    assert option == "collect" or not changed


def _strict(text: str) -> None:
    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} in JSON")

    json.loads(text, parse_constant=refuse)


@contextmanager
def _within(seconds: int) -> Iterator[None]:
    """Fail where the block takes longer."""

    def stop(signum: int, frame: object) -> None:
        raise TimeoutError(f"not done after {seconds} s")

    old = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old)
