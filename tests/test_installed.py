"""`pip install .` installs the whole program, and its command is the program."""

from __future__ import annotations

import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

from analyzer.cli import INSTALLED
from analyzer.cli.arguments import VERSION
from collector.network import packets
from conftest import REPO, run_cli

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


@pytest.mark.parametrize(
    ("words", "needing", "package", "module"),
    [
        (("3dcompare", "examples/lenet", "examples/lenet-100mbit", "--output", "HERE/a.png"), ".png",
         "vl-convert-python", "vl_convert"),
        (("statistic", "examples/lenet", "--cluster", "tcp://localhost:1"), "--cluster", "distributed",
         "distributed"),
        (("collect", "HERE/a.pcap", "--sub_option", "pcap"), "a packet capture", "scapy", "scapy.utils"),
    ],
)  # fmt: skip
def test_a_missing_extra_is_one_line_with_the_command_that_installs_it(
    words: tuple[str, ...],
    needing: str,
    package: str,
    module: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "a.pcap").write_bytes(b"\xd4\xc3\xb2\xa1" + bytes(20))
    monkeypatch.chdir(REPO)
    monkeypatch.setitem(sys.modules, module, None)
    packets._scapy.cache_clear()
    code, _, err = run_cli(*(word.replace("HERE", str(tmp_path)) for word in words))
    line = f"analyze.py: error: {needing} needs {package}: python3 -m pip install {package}"
    assert (code, err.splitlines()[-1].partition("; no file")[0]) == (1, line)


def test_a_page_of_3dcompare_is_small(tmp_path: Path) -> None:
    page = tmp_path / "a.html"
    job = REPO / "examples/lenet"
    assert run_cli("3dcompare", job, f"{job}-100mbit", "--output", page)[0] == 0
    assert page.stat().st_size < 1_000_000


def _product() -> list[Path]:
    """List the files of the program's packages, relative to the tree."""
    tops = [path.parent for path in REPO.glob("*/__init__.py") if path.parent.name not in OTHERS]
    files = (path.relative_to(REPO) for top in tops for path in top.rglob("*") if path.is_file())
    return [path for path in files if "__pycache__" not in path.parts]
