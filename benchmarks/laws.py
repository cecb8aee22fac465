"""Each law of docs/laws.md with its rule broken: its test has to fail.

    python -m benchmarks.laws [WORD ...]

A piece of a module is replaced by a wrong one in a copy of the program (`laws.json`: of each test the
modules, each with pieces and wrong ones), then the test runs there. Exit code 1 where it does not notice, or
where the piece is not in the module any more. WORD chooses the tests that have it in their names.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
#: What is not copied: recordings lie beside the copy as they lie beside the program.
_LEFT_OUT = (".git", ".venv", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", "__pycache__")
ROW = re.compile(r"\| (.+) \| `(tests/.+::(.+))` \|")
_SECONDS = 300


def main(words: list[str]) -> int:
    """Break the laws whose tests have one of the words, or all; return the exit code."""
    rows = ROW.findall((REPO / "docs" / "laws.md").read_text(encoding="utf-8"))
    chosen = [row for row in rows if not words or any(word in row[1] for word in words)]
    breaks = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    unnoticed = 0
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch, "program")
        shutil.copytree(REPO, copy, ignore=shutil.ignore_patterns(*_LEFT_OUT))
        if (REPO.parent / "shared").exists():
            Path(scratch, "shared").symlink_to((REPO.parent / "shared").resolve())
        if _exit_code(copy, *(test for _, test, _ in chosen)):
            print("a test fails although nothing is broken")
            return 1
        for law, test, name in chosen:
            found = _broken(copy, test, *breaks[name])
            unnoticed += found != "noticed"
            print(f"{found}: {law}\n    {test}", flush=True)
    print(f"{len(chosen) - unnoticed} of {len(chosen)} broken laws were noticed")
    return int(unnoticed > 0)


def _broken(copy: Path, test: str, *words: str) -> str:
    """Return whether a test notices wrong pieces: `words` are modules, each with pieces and wrong ones."""
    whole: dict[Path, str] = {}
    wrong: dict[Path, str] = {}
    left, path = iter(words), copy
    for word in left:
        if word.endswith((".py", ".c")):
            path = copy / word
            whole[path] = wrong[path] = path.read_text(encoding="utf-8")
            continue
        if (n := whole[path].count(word)) != 1:
            return f"NOT TRIED: {word!r} is in {path.relative_to(copy)} {n} times"
        wrong[path] = wrong[path].replace(word, next(left))
    try:
        for path, text in wrong.items():
            path.write_text(text, encoding="utf-8")
        code = _exit_code(copy, test)
    except subprocess.TimeoutExpired:
        return "noticed"  # it goes on for ever
    finally:
        for path, text in whole.items():
            path.write_text(text, encoding="utf-8")
    return {0: "NOT NOTICED", 1: "noticed"}.get(code, f"NOT RUN: exit code {code}")


def _exit_code(copy: Path, *tests: str) -> int:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    return subprocess.run(command, cwd=copy, capture_output=True, timeout=_SECONDS, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
