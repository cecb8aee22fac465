"""The documentation shows what the program prints, and its pages hang together."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

import options
from conftest import REPO, run_cli

PAGES = [REPO / "README.md", *sorted((REPO / "docs/options").glob("*.md"))]
ALL_PAGES = [*PAGES, *(REPO / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "examples/README.md"))]
CUT = "…"  # a line that stands for any number of lines of output
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


class Block(NamedTuple):
    """Commands of one page that run one after the other in one directory, each with what it prints."""

    page: Path
    start: int  # where its text begins in the page
    text: str

    def commands(self) -> Iterator[tuple[str, list[str]]]:
        """Yield each command and the lines below it."""
        lines = self.text.splitlines()
        marks = [i for i, line in enumerate(lines) if line.startswith("$ ")]
        for begin, end in pairwise([*marks, len(lines)]):
            yield lines[begin][2:], lines[begin + 1 : end]

    def __str__(self) -> str:
        return f"{self.page.stem}-{self.page.read_text()[: self.start].count(chr(10)) + 1}"


BLOCKS = [
    Block(page, match.start(1), match[1]) for page in PAGES for match in _BLOCK.finditer(page.read_text())
]


def cut_like(printed: list[str], shown: list[str]) -> list[str]:
    """Return the printed lines, cut where those shown are: as many of the beginning and of the end."""
    if CUT not in shown:
        return printed
    head, tail = shown.index(CUT), len(shown) - shown.index(CUT) - 1
    return [*printed[:head], CUT, *printed[len(printed) - tail :]]


def run_command(command: str) -> list[str]:
    """Run one line of the documentation in the current directory; return what it prints."""
    program, *words = shlex.split(command)
    if program == "cp":
        shutil.copytree(words[-2], words[-1])
        return []
    assert (program, words[0]) == ("python3", "analyze.py")
    code, out, err = run_cli(*words[1:])
    assert code == 0, err
    return [line.rstrip() for line in out.rstrip("\n").split("\n")]


@pytest.fixture
def job_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory: one with the examples, in a terminal of 100 columns."""
    shutil.copytree(REPO / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path


@pytest.mark.usefixtures("job_directory")
@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_commands_print_what_is_shown(block: Block, request: pytest.FixtureRequest) -> None:
    shown, printed = [], []
    for command, lines in block.commands():
        shown += [f"$ {command}", *lines]
        printed += [f"$ {command}", *cut_like(run_command(command), lines)]
    if request.config.getoption("--update-golden"):
        text = block.page.read_text()
        block.page.write_text(text.replace(block.text, "\n".join(printed) + "\n"))
    else:
        assert printed == shown


def test_output_is_cut_where_the_documentation_cuts_it() -> None:
    assert cut_like(["a", "b", "c", "d"], ["x", CUT, "y"]) == ["a", CUT, "d"]
    assert cut_like(["a", "b"], ["x"]) == ["a", "b"]


@pytest.mark.parametrize("name", options.MODULES)
def test_every_option_has_an_example_in_the_readme_and_a_page(name: str) -> None:
    assert f"python3 analyze.py --option {name} " in (REPO / "README.md").read_text()
    assert f"--option {name} " in (REPO / f"docs/options/{name}.md").read_text()


def test_every_flag_of_an_option_is_on_its_page() -> None:
    common = (REPO / "docs/options/README.md").read_text()
    missing = {
        name: [
            flag
            for flag in sorted(options.load(name).FLAGS)
            if f"--{flag}" not in common + (REPO / f"docs/options/{name}.md").read_text()
        ]
        for name in options.MODULES
    }
    assert not any(missing.values()), missing


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: page.name)
def test_pages_are_narrow_and_their_links_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    assert [line for line in text.splitlines() if len(line) > 120] == []
    assert [link for link in _LINK.findall(text) if not (page.parent / link).exists()] == []


def test_the_readme_is_a_front_door() -> None:
    assert len((REPO / "README.md").read_text().splitlines()) <= 200
