"""`pip install .` leaves nothing of the tree out, and its command is the program."""

from __future__ import annotations

import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

from analyzer.cli import INSTALLED
from analyzer.cli.arguments import VERSION
from conftest import REPO

tomllib = pytest.importorskip("tomllib", reason="of Python 3.11")
PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text())
ROOT = "analyze_traces"
#: What users do not run; the first is what a build leaves.
OTHERS = {"build", "tests", "docs", "examples", "benchmarks"}


def product() -> list[Path]:
    """Return the files of the program's packages, relative to the tree."""
    tops = [path.parent for path in REPO.glob("*/__init__.py") if path.parent.name not in OTHERS]
    files = (path.relative_to(REPO) for top in tops for path in top.rglob("*") if path.is_file())
    return [path for path in files if "__pycache__" not in path.parts]


def test_each_package_is_installed() -> None:
    folders = {path.parent for path in product() if path.suffix == ".py"} | {Path()}
    expected = {".".join([ROOT, *folder.parts]) for folder in folders}
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == expected
    assert PROJECT["tool"]["setuptools"]["package-dir"] == {ROOT: "."}


def test_each_file_beside_the_code_is_installed() -> None:
    data = PROJECT["tool"]["setuptools"]["package-data"]
    patterns = [
        f"{package.removeprefix(ROOT + '.').replace('.', '/')}/{pattern}"
        for package, of_package in data.items()
        for pattern in of_package
    ]
    left_out = [
        path
        for path in product()
        if path.suffix != ".py" and not any(fnmatch(str(path), one) for one in patterns)
    ]
    assert not left_out


def test_the_installed_command_is_the_program_of_this_version() -> None:
    assert PROJECT["project"]["version"] == VERSION
    assert PROJECT["project"]["scripts"] == {INSTALLED: f"{ROOT}.installed:main"}
    words = f"import sys; sys.argv = ['/bin/{INSTALLED}', {str(REPO / 'examples/lenet')!r}]"
    code = f"{words}; from installed import main; main()"
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPO, timeout=120
    )
    assert f" /bin/{INSTALLED} whatif " in shown.stdout
