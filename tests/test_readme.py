"""The documentation shows what the program prints, and its pages hang together."""

from __future__ import annotations

import re
import shlex
import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from analyzer import cli
from analyzer.cli.arguments import parser_of
from conftest import REPO, run_cli

pytestmark = pytest.mark.slow

MANUAL = REPO / "docs/options"
#: Pages whose commands are run.
PAGES = [REPO / "README.md", REPO / "examples/README.md", *sorted(MANUAL.glob("*.md"))]
PROSE = [*PAGES, REPO / "CHANGELOG.md", REPO / "CONTRIBUTING.md", *sorted((REPO / "docs").glob("**/*.md"))]
CUT = "…"  # a line that stands for any number of lines of output
_BLOCK = re.compile(r"(?<=^```console\n).*?(?=^```$)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def as_printed(block: str) -> str:
    """Return a block of commands, which run one after the other, with what each prints now."""
    lines = block.splitlines()
    marks = [i for i, line in enumerate(lines) if line.startswith("$ ")]
    printed: list[str] = []
    for begin, end in pairwise([*marks, len(lines)]):
        printed += [lines[begin], *cut_like(run_command(lines[begin][2:]), lines[begin + 1 : end])]
    return "\n".join(printed) + "\n"


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPO)))
def test_commands_print_what_is_shown(
    page: Path, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_new_directory(block: re.Match[str]) -> str:
        directory = tmp_path / str(block.start())
        shutil.copytree(REPO / "examples", directory / "examples")
        monkeypatch.chdir(directory)
        return as_printed(block[0])

    monkeypatch.setenv("COLUMNS", "100")
    shown = page.read_text()
    printed = _BLOCK.sub(in_new_directory, shown)
    if request.config.getoption("--update-golden"):
        page.write_text(printed)
    else:
        assert printed == shown, "make golden rewrites the pages; review the difference"


def test_output_is_cut_where_the_documentation_cuts_it() -> None:
    assert cut_like(["a", "b", "c", "d"], ["x", CUT, "y"]) == ["a", CUT, "d"]
    assert cut_like(["a", "b"], ["x"]) == ["a", "b"]


@pytest.mark.parametrize("name", cli.MODULES)
def test_every_option_has_an_example_in_the_readme_and_a_page(name: str) -> None:
    for page in (REPO / "README.md", MANUAL / f"{name}.md"):
        words = [name, {"diagnose": "examples", "replay": "whatif"}.get(name, name)]
        shown = re.compile(f"analyze.py (?:--option )?(?:{'|'.join(words)})")
        assert any(shown.search(block[0]) for block in _BLOCK.finditer(page.read_text()))


@pytest.mark.parametrize("name", cli.MODULES)
def test_every_flag_of_an_option_is_in_the_manual(name: str) -> None:
    manual = (MANUAL / "README.md").read_text() + (MANUAL / f"{name}.md").read_text()
    flags = [
        flag
        for action in parser_of(name)._actions
        for flag in action.option_strings[-1:]
        if flag != "--version"
    ]
    assert [flag for flag in flags if flag not in manual] == []


@pytest.mark.parametrize("page", PROSE, ids=lambda page: page.stem)
def test_pages_are_narrow_and_their_links_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    assert [line for line in text.splitlines() if len(line) > 120 and not line.lstrip().startswith("|")] == []
    assert [link for link in _LINK.findall(text) if not (page.parent / link).exists()] == []


def test_the_readme_is_a_front_door() -> None:
    assert len((REPO / "README.md").read_text().splitlines()) <= 150
