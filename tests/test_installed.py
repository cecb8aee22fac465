"""`pip install .` installs the whole program, and its command is the program."""

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
SETUPTOOLS = PROJECT["tool"]["setuptools"]
#: Folders that users do not run; `build` is what a build leaves.
OTHERS = {"build", "tests", "docs", "examples", "benchmarks"}


def test_each_package_and_root_module_is_installed() -> None:
    packages = {path.parent.name for path in REPO.glob("*/__init__.py")} - OTHERS
    assert {pattern.rstrip("*") for pattern in SETUPTOOLS["packages"]["find"]["include"]} == packages
    assert set(SETUPTOOLS["py-modules"]) == {path.stem for path in REPO.glob("*.py")}


def test_each_folder_of_modules_is_a_package() -> None:
    folders = {path.parent for path in _product() if path.suffix == ".py"}
    assert [folder for folder in folders if not (REPO / folder / "__init__.py").exists()] == []


def test_each_file_beside_the_code_is_installed() -> None:
    patterns = [
        f"{package.replace('.', '/')}/{pattern}"
        for package, of_package in SETUPTOOLS["package-data"].items()
        for pattern in of_package
    ]
    data = [path for path in _product() if path.suffix != ".py"]
    assert [path for path in data if not any(fnmatch(str(path), pattern) for pattern in patterns)] == []


def test_the_installed_command_is_the_program_of_this_version() -> None:
    assert PROJECT["project"]["version"] == VERSION
    assert PROJECT["project"]["scripts"] == {INSTALLED: "analyze:run_command"}
    words = f"import sys; sys.argv = ['/bin/{INSTALLED}', {str(REPO / 'examples/lenet')!r}]"
    code = f"{words}; from analyze import run_command; run_command()"
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPO, timeout=120
    )
    assert f" /bin/{INSTALLED} whatif " in shown.stdout


def _product() -> list[Path]:
    """List the files of the program's packages, relative to the tree."""
    tops = [path.parent for path in REPO.glob("*/__init__.py") if path.parent.name not in OTHERS]
    files = (path.relative_to(REPO) for top in tops for path in top.rglob("*") if path.is_file())
    return [path for path in files if "__pycache__" not in path.parts]
