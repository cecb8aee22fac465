"""Every option's page, in a real browser: no error, and its figures are to be read there."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from analyzer import cli
from analyzer.base.errors import printable
from analyzer.base.units import in_ms
from analyzer.cli import arguments
from analyzer.report import html
from analyzer.report.cells import cell_texts
from analyzer.report.result import Bars, Command, Result, Timeline
from conftest import REPO, open_page

pytestmark = pytest.mark.slow

LENET = REPO / "examples" / "lenet"
SLOW = REPO / "examples" / "lenet-100mbit"

#: The page's name, the option, its inputs, its further words.
COMMANDS: tuple[tuple[str, str, list[Path], list[str]], ...] = (
    ("statistic", "statistic", [LENET], []),
    ("compare", "compare", [LENET, SLOW], []),
    ("graph", "graph", [LENET / "worker_0" / "0"], ["--output", "a.svg"]),
    ("critical", "critical", [LENET], []),
    ("breakdown", "statistic", [LENET], ["--sub_option", "breakdown"]),
    ("replay", "replay", [LENET], ["--output", "-"]),
    ("combine", "combine", [LENET], ["--output", "a.json"]),
    ("3dcompare", "3dcompare", [LENET, SLOW], ["--output", "a.html"]),
    ("collect", "collect", [LENET], ["--sub_option", "iter_time"]),
    ("diagnose", "diagnose", [LENET], []),
    ("whatif", "replay", [LENET], ["--sub_option", "whatif", "--set", "bandwidth=2"]),
    ("whatifs", "replay", [LENET], ["--sub_option", "whatif"]),
    ("bottleneck", "replay", [LENET], ["--sub_option", "bottleneck"]),
)
#: Pages whose headline has a number that is a mark of a drawing; other pages draw a timeline, or have tables.
DRAWN = ("statistic", "compare", "breakdown", "3dcompare", "diagnose", "whatif", "whatifs", "bottleneck")


def result_of(option: str, inputs: list[Path], words: list[str]) -> Result:
    """Run an option on copies of `inputs` in the current directory."""
    copies = [str(shutil.copytree(path, Path.cwd() / path.name, dirs_exist_ok=True)) for path in inputs]
    args = arguments.parse(["--option", option, "--path", *copies, *words])
    result: Result = cli.load(option).run(args)
    return result


@pytest.fixture(scope="module")
def lenet(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """The diagnosis of an example with all that its page shows, made once for the tests of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("lenet"))
        return result_of("diagnose", [LENET], ["--html", "a.html"])


@contextlib.contextmanager
def screen_of(browser: Chrome, width: int, height: int) -> Iterator[None]:
    screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    yield
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def texts(browser: Chrome, selector: str) -> list[str | None]:
    script = "return [...document.querySelectorAll(arguments[0])].map(element => element.textContent)"
    found: list[str | None] = browser.execute_script(script, selector)
    return found


@pytest.mark.parametrize(("name", "option", "inputs", "words"), COMMANDS)
def test_a_page_answers_on_its_first_screen_without_an_error_or_a_request(
    name: str,
    option: str,
    inputs: list[Path],
    words: list[str],
    browser: Chrome,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    result = result_of(option, inputs, [*words, "--html", "page.html"])
    html.write(result, tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size < 500_000
    with screen_of(browser, 1440, 900):
        assert open_page(browser, tmp_path / "page.html") == []
        assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
        answer = "return document.querySelector('.drawing svg, canvas, tbody tr').getBoundingClientRect().top"
        assert browser.execute_script(answer) < 600
    assert texts(browser, ".figures dd") == [printable(value) for _, value in result.figures]
    for index, table in enumerate(result.files_tables, start=1):
        first = [
            cell_texts(column, [cell])[0]
            for row in table.rows[:1]
            for column, cell in zip(table.columns, row, strict=True)
            if not isinstance(cell, Command)
        ]
        assert (texts(browser, f"#table-{index} tbody tr:first-child td") or [])[: len(first)] == first
    labels = "return [...document.querySelectorAll('[role=graphics-symbol]')].map((mark) => mark.ariaLabel)"
    numbers = re.findall(r"(\d[\d,.]*)(?: →| ms)", result.headline)
    of_marks = {word for label in browser.execute_script(labels) for word in re.split(r"[:\s−]+", label)}
    assert any(number in of_marks for number in numbers) == (name in DRAWN), (numbers, result.headline)


def outliers_of(result: Result) -> dict[str, Any]:
    """Return the finding that some steps are far longer."""
    (finding,) = (one for one in result.document["findings"] if one["kind"] == "outlier_steps")
    return dict(finding)


def test_diagnose_marks_the_steps_that_a_finding_names(lenet: Result) -> None:
    finding = outliers_of(lenet)
    (chart,) = (one for one in lenet.charts if one.title == "Length of each step")
    assert isinstance(chart, Bars)
    usual, far = chart.series["iteration time"], chart.series["far longer"]
    named = [int(name) for name, ms in zip(chart.names, far, strict=True) if ms]
    assert named == finding["scope"]["steps"]
    assert all((a is None) != (b is None) for a, b in zip(usual, far, strict=True))


def test_diagnose_draws_the_outlier_beside_the_usual_step(lenet: Result) -> None:
    finding = outliers_of(lenet)
    evidence = finding["evidence"][0]
    usual, far, *others = (one for one in lenet.charts if isinstance(one, Timeline))
    assert "of typical length" in usual.title  # the median of the ranks' mean, which no bar shows
    assert far.title.startswith(f"Step {evidence['step']}, far longer than the others")
    assert any(evidence["name"].endswith(one.name) for one in far.spans), evidence
    drawn = [int(one.step) for one in (usual, far, *others)]
    assert sorted(drawn) == lenet.document["steps"]  # a small job: there is room for all


@pytest.mark.parametrize("job", [LENET, SLOW])
def test_a_step_has_one_length_in_headline_bars_and_timelines(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = result_of("diagnose", [job], ["--html", "a.html"])
    (every,) = (chart for chart in result.charts if isinstance(chart, Bars) and chart.level)
    assert every.level is not None
    assert result.headline.startswith(f"A step takes {every.level[0]:.0f} ms: ")
    bars = {
        step: max(filter(None, ms)) for step, *ms in zip(every.names, *every.series.values(), strict=True)
    }
    for timeline in _timelines(result):
        path_ms = sum(part.dur_ms for part in timeline.path)
        assert f": {in_ms(1e6 * bars[timeline.step])} " in timeline.title
        assert f"{in_ms(1e6 * path_ms)} on " in timeline.title
        if job is SLOW:  # here the rank that ends last begins the step last, too
            assert path_ms == pytest.approx(bars[timeline.step], abs=1e-3)
            assert "wk1.rank0 may lie up to 134 ms to either side" in timeline.note


def test_the_page_of_a_diagnosis_answers_on_its_first_screen(
    browser: Chrome, tmp_path: Path, lenet: Result
) -> None:
    result = lenet
    html.write(result, tmp_path / "a.html")
    with screen_of(browser, 1440, 900):
        assert open_page(browser, tmp_path / "a.html") == []
        assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
        bottom = "return document.querySelector('.answer').getBoundingClientRect().bottom"
        assert browser.execute_script(bottom) <= 900
        mean = browser.execute_script(
            "return document.querySelector('[aria-label^=\"mean of\"]').getAttribute('aria-label')"
        )
        assert mean.split(": ")[1] in result.headline
        names = (
            "return [...document.querySelectorAll('.drawing svg')].map((one) => [one.role, one.ariaLabel])"
        )
        for role, name in browser.execute_script(names):
            assert (role, bool(name)) == ("graphics-document", True)
        first, second, *_ = browser.find_elements(By.CSS_SELECTOR, ".cards details")
        ActionChains(browser).send_keys(Keys.TAB).perform()
        assert browser.switch_to.active_element == first.find_element(By.TAG_NAME, "summary")
        assert (first.get_property("open"), second.get_property("open")) == (True, False)
        second.find_element(By.TAG_NAME, "summary").send_keys(Keys.ENTER)
        assert second.get_property("open")


def _timelines(result: Result) -> list[Timeline]:
    return [one for one in result.charts if isinstance(one, Timeline)]
