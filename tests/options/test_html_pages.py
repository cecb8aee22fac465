"""Every option's page, in a real browser: no error, and its figures are to be read there."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome

import analyze
import options
from conftest import REPO, open_page
from report import html
from report.tables import cell_texts, printable
from result import Bars, Result, Timeline

LENET = REPO / "examples" / "lenet"
SLOW = REPO / "examples" / "lenet-100mbit"

#: The page's name, the option, its inputs, its further words.
COMMANDS: tuple[tuple[str, str, list[Path], list[str]], ...] = (
    ("statistic", "statistic", [LENET], []),
    ("breakdown", "statistic", [LENET], ["--sub_option", "breakdown"]),
    ("compare", "compare", [LENET, SLOW], []),
    ("3dcompare", "3dcompare", [LENET, SLOW], ["--output", "a.html"]),
    ("graph", "graph", [LENET / "worker_0" / "0"], ["--output", "a.svg"]),
    ("critical", "critical", [LENET], []),
    ("replay", "replay", [LENET], ["--output", "-"]),
    ("combine", "combine", [LENET], ["--output", "a.json"]),
    ("collect", "collect", [LENET], ["--sub_option", "iter_time"]),
)


def result_of(option: str, inputs: list[Path], words: list[str]) -> Result:
    """Run an option on copies of `inputs` in the current directory."""
    copies = [str(shutil.copytree(path, Path.cwd() / path.name)) for path in inputs]
    args = analyze.build_parser().parse_args(["--option", option, "--path", *copies, *words])
    args.path = analyze.expand_paths(args.path)
    return options.load(option).run(args)


def texts(browser: Chrome, selector: str) -> list[str | None]:
    script = "return [...document.querySelectorAll(arguments[0])].map(element => element.textContent)"
    found: list[str | None] = browser.execute_script(script, selector)
    return found


@pytest.mark.parametrize(("name", "option", "inputs", "words"), COMMANDS, ids=[name for name, *_ in COMMANDS])
def test_a_page_shows_its_figures_and_first_rows(
    name: str,
    option: str,
    inputs: list[Path],
    words: list[str],
    browser: Chrome,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    result = result_of(option, inputs, words)
    html.write(result, tmp_path / f"{name}.html")
    assert open_page(browser, tmp_path / f"{name}.html") == []
    assert texts(browser, ".figures dd") == [printable(value) for _, value in result.figures]
    for index, table in enumerate(result.tables, start=1):
        first = [
            cell_texts(column, [cell])[0]
            for row in table.rows[:1]
            for column, cell in zip(table.columns, row, strict=True)
        ]
        assert texts(browser, f"#table-{index} tbody tr:first-child td") == first


def test_combine_shows_a_step_on_one_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first, *others = result_of("combine", [LENET], ["--output", "a.json", "--html", "a.html"]).charts
    assert isinstance(first, Timeline)
    assert {span.lane.split()[0] for span in first.spans} == {"wk0.rank0", "wk1.rank0"}
    assert others  # what was added to the clocks
    plain = result_of("combine", [LENET / "worker_0"], ["--output", "b.json", "--picture", "b.svg"]).charts
    assert not plain  # a picture is of the clocks, of which there is one


def diagnosed_outliers(monkeypatch: pytest.MonkeyPatch, directory: Path) -> tuple[Result, dict[str, Any]]:
    """Diagnose an example in which some steps are far longer; return the result, and that finding of it."""
    monkeypatch.chdir(directory)
    result = result_of("diagnose", [LENET], ["--html", "a.html"])
    (finding,) = (one for one in result.document["findings"] if one["kind"] == "outlier_steps")
    return result, finding


def test_diagnose_marks_the_steps_that_a_finding_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, finding = diagnosed_outliers(monkeypatch, tmp_path)
    (chart,) = (one for one in result.charts if one.title == "Every step")
    assert isinstance(chart, Bars)
    usual, far = chart.series["iteration time"], chart.series["far longer than the others"]
    named = [int(name) for name, ms in zip(chart.x, far, strict=True) if ms]
    assert named == finding["scope"]["steps"]
    assert all((a is None) != (b is None) for a, b in zip(usual, far, strict=True))


def test_diagnose_draws_the_outlier_beside_the_usual_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, finding = diagnosed_outliers(monkeypatch, tmp_path)
    evidence = finding["evidence"][0]
    usual, far = (one for one in result.charts if isinstance(one, Timeline))
    assert "of median length" in usual.title
    assert far.title.startswith(f"Step {evidence['step']}, far longer than the others")
    assert any(evidence["name"].endswith(one.name) for one in far.spans), evidence
