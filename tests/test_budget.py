"""What a newcomer must learn has a budget: lines, public types, and the modules that a question enters."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import REPO

#: The most there may be. A larger number is a decision, with its reason in the commit message.
PRODUCT_LINES = 46_540  # of Python, C and page assets
PUBLIC_TYPES = 220
MODULES_ENTERED = {"statistic": 60, "critical": 70, "diagnose": 110}  # on examples/lenet

_OUTSIDE = ("tests", "benchmarks", "examples", "docs")
_SUFFIXES = (".py", ".c", ".h", ".js", ".css", ".html")
#: Prints how many of the program's modules run a function while a command is answered.
_ENTERED = """
import contextlib, io, sys, threading
root, args = sys.argv[1], sys.argv[2:]
seen = set()
def note(frame, event, arg):
    if event == "call" and frame.f_code.co_name != "<module>":
        seen.add(frame.f_code.co_filename)
sys.path.insert(0, root)
sys.setprofile(note)
threading.setprofile(note)
import analyze
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    analyze.main(args)
sys.setprofile(None)
print(len({file for file in seen if file.startswith(root) and "/.venv/" not in file}))
"""


def product_files() -> list[Path]:
    """List the tracked files of the program."""
    listed = subprocess.run(["git", "ls-files"], cwd=REPO, capture_output=True, text=True, check=True)
    paths = [Path(name) for name in listed.stdout.splitlines()]
    files = [REPO / path for path in paths if path.suffix in _SUFFIXES and path.parts[0] not in _OUTSIDE]
    return [path for path in files if path.exists()]


needs_git = pytest.mark.skipif(not (REPO / ".git").exists(), reason="files are counted as git lists them")


@needs_git
def test_the_program_stays_within_its_lines() -> None:
    assert sum(len(path.read_text().splitlines()) for path in product_files()) <= PRODUCT_LINES


@needs_git
def test_public_types_stay_few() -> None:
    trees = [ast.parse(path.read_text()) for path in product_files() if path.suffix == ".py"]
    types = [node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]
    assert sum(not name.startswith("_") for name in types) <= PUBLIC_TYPES


@pytest.mark.slow
@pytest.mark.parametrize("option", MODULES_ENTERED)
def test_a_question_enters_few_modules(option: str) -> None:
    command = [sys.executable, "-c", _ENTERED, f"{REPO}/", option, "examples/lenet"]
    environment = {**os.environ, "ANALYZE_NATIVE": "0"}
    done = subprocess.run(command, cwd=REPO, env=environment, capture_output=True, text=True, check=True)
    assert int(done.stdout) <= MODULES_ENTERED[option]
