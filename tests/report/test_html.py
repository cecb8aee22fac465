"""The page face, in a real browser."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.select import Select

from analyzer.base.errors import printable
from analyzer.report import html
from analyzer.report.cells import cell_texts
from analyzer.report.result import (
    Bars,
    Card,
    Chart,
    Column,
    Command,
    GraphNode,
    HeatMap,
    Network,
    Result,
    Span,
    Table,
    Timeline,
)
from conftest import open_page, waiting

pytestmark = pytest.mark.slow

EVIL = "</script><script>window.pwned=1</script><img src=x onerror=window.pwned=1>\u2028\"'&lt;\x1b[31m"

NAME = Column("name", "Name")
COUNT = Column("count", "Count", "int")
AVERAGE = Column("avg_ms", "Average (ms)", "float")
CHANGE = Column("change", "Change", "percent", digits=1, scale="diverging")
OPERATIONS = Table(
    "operations",
    "Operations",
    (NAME, COUNT, AVERAGE, CHANGE),
    [("FW.conv10", 20, 1234.5678, 0.098), ("FW.conv9", 3, None, -0.5), ("BW.conv9", 12345, 0.25, None)],
)
BARS = Bars("Per rank", "time (ms)", ["0", EVIL], {"FW": [1.0, None], EVIL: [2.0, 3.0]})
GRID = HeatMap(
    "Per run", "", "run", "operation", ["constructor", "b"], ["__proto__", EVIL], [[1.0, None], [2, 3]],
    in_3d=True,
)  # fmt: skip
HEAT = HeatMap("Map", "", "step", "rank", ["1", "2"], ["r0", "r1"], [[1.0, 2.0], [None, 3.0]])
TIMELINE = Timeline(
    "Path",
    [
        Span("gpu", "FW.conv", 0.0, 5.0, "FW"),
        Span("gpu", EVIL, 5.0, 1.0, EVIL),
        Span("net", "p", 2, 2, "PUSH"),
    ],
)
NETWORK = Network(
    "Graph",
    [
        GraphNode("FW.first", "FW", 0, 0, 1.5, critical=True, slack_ms=0.25, names=("FW.first", "FW.hidden")),
        GraphNode(EVIL, EVIL, 1, 0),
    ],
    [(0, 1, "data")],
)
PAINTED = (
    "const board = document.querySelector('canvas');"
    "return board.getContext('2d').getImageData(0, 0, board.width, board.height).data.some(value => value)"
)


def page(path: Path, *charts: Chart, tables: tuple[Table, ...] = (OPERATIONS,), title: str = "A run") -> Path:
    figures = (("Iteration time", "123 ms"),)
    repairs = ("b.json: cut off, 1 event lost",)
    cards = [Card(title, "5.00 ms", [("", "Why."), ("Look", "python3 x")], about=("rank1.BW.b",))]
    notes = ("A note.",)
    result = Result("compare", title, {}, tables, charts, figures, cards=cards, notes=notes, repairs=repairs)
    html.write(result, path)
    return path


def cells(browser: Chrome, column: int) -> list[str]:
    return strings(browser, "'tbody tr')].map(row => row.cells[arguments[0]].textContent)", column)


def marks(browser: Chrome) -> list[str]:
    """List the labels of the marks in the drawings."""
    symbols = "\".drawing [role='graphics-symbol'][aria-label]\""
    return strings(browser, f"{symbols})].map(mark => mark.ariaLabel)")


def strings(browser: Chrome, script: str, *args: object) -> list[str]:
    found: list[str] = browser.execute_script(f"return [...document.querySelectorAll({script}", *args)
    return found


def until(browser: Chrome, script: str) -> None:
    """Wait until `script` returns true in the page."""
    waiting(browser).until(lambda page: page.execute_script(script))


def many_spans(count: int) -> Timeline:
    return Timeline("Long", [Span(f"rank{i % 8}", f"op{i}", i * 0.1, 0.9, f"c{i % 5}") for i in range(count)])


def test_the_page_shows_figures_as_the_terminal_does_and_what_was_repaired(
    browser: Chrome, tmp_path: Path
) -> None:
    assert open_page(browser, page(tmp_path / "a.html")) == []
    text = browser.find_element(By.TAG_NAME, "main").text
    for words in ("A run", "Iteration time\n123 ms", "A note.", "b.json: cut off, 1 event lost"):
        assert words in text
    assert cells(browser, 1) == ["20", "3", "12,345"]
    assert cells(browser, 2) == ["1,235", "–", "0.250"]
    assert cells(browser, 3) == ["9.8 %", "−50.0 %", "–"]
    values = [0.0625, 0.1875, 126.9635, -0.0004, 1234567.0005, 2.5, 1e22, 1e-9, -1234.5, 0.5, 999999.9996]
    for digits in (0, 1, 3):
        shown = browser.execute_script(
            "return arguments[0].map(value => formatted(value, arguments[1]))", values, digits
        )
        assert shown == cell_texts(Column("x", "X", "float", digits=digits), values)


def test_a_click_sorts_with_gaps_last_and_the_search_keeps_rows(browser: Chrome, tmp_path: Path) -> None:
    open_page(browser, page(tmp_path / "a.html"))
    head = browser.find_elements(By.CSS_SELECTOR, "th")[2]
    for order, texts in (("descending", ["1,235", "0.250", "–"]), ("ascending", ["0.250", "1,235", "–"])):
        head.find_element(By.TAG_NAME, "button").click()
        assert (cells(browser, 2), head.get_attribute("aria-sort")) == (texts, order)
    browser.find_element(By.CSS_SELECTOR, "section input").send_keys("conv9 fw")
    assert cells(browser, 0) == ["FW.conv9"]
    assert browser.find_element(By.CSS_SELECTOR, "[role=status]").text == "1 of 3 rows"


def test_a_row_with_a_command_copies_it_whole(browser: Chrome, tmp_path: Path) -> None:
    typed = Command("python3 analyze.py whatif 'my job' BW=0.5")
    table = Table("t", "T", (AVERAGE, Column("command", "Command")), [(1.5, typed)])
    open_page(browser, page(tmp_path / "a.html", tables=(table,)))
    browser.execute_script(
        "const clipboard = { writeText: (text) => (window.got = text) };"
        "Object.defineProperty(navigator, 'clipboard', { value: clipboard });"
    )
    assert cells(browser, 1) == ["analyze.py whatif 'my job' BW=0.5 Copy"]
    browser.find_element(By.CSS_SELECTOR, "td button").click()
    until(browser, "return window.got !== undefined")
    whole = f"cd {Path.cwd()} && {sys.executable} analyze.py whatif 'my job' BW=0.5"
    assert browser.execute_script("return window.got") == whole


def test_many_rows_come_in_pages(browser: Chrome, tmp_path: Path) -> None:
    table = Table("t", "T", (NAME, COUNT), [(f"op{i}", i) for i in range(10_000)])
    assert open_page(browser, page(tmp_path / "a.html", tables=(table,))) == []
    assert len(cells(browser, 0)) == 100
    next(b for b in browser.find_elements(By.CSS_SELECTOR, ".tools button") if b.text == "Next ›").click()
    assert cells(browser, 0)[0] == "op100"
    browser.find_elements(By.CSS_SELECTOR, "th button")[1].click()
    assert cells(browser, 1)[:2] == ["9,999", "9,998"]


def test_every_kind_of_chart_is_drawn_without_an_error(browser: Chrome, tmp_path: Path) -> None:
    assert open_page(browser, page(tmp_path / "a.html", BARS, HEAT, TIMELINE, NETWORK)) == []
    assert len(browser.find_elements(By.CSS_SELECTOR, ".drawing svg")) == 3
    said = [mark for mark in marks(browser) if "FW" in mark]
    assert said == ["0, FW: 1.00 ms", "FW.first, FW.hidden · FW · 1.50 ms · slack 0.250 ms · critical path"]
    assert len(browser.find_elements(By.CSS_SELECTOR, ".board canvas")) == 1


def test_a_map_is_shown_in_3d_on_demand(browser: Chrome, tmp_path: Path) -> None:
    path = page(tmp_path / "a.html", GRID, BARS)
    assert path.stat().st_size < 200_000
    assert open_page(browser, path) == []
    assert browser.find_elements(By.TAG_NAME, "canvas") == []
    browser.find_element(By.XPATH, "//button[text()='Show in 3-D']").click()
    until(browser, PAINTED)
    canvas = browser.find_element(By.CSS_SELECTOR, "canvas.plot")
    picture = "return document.querySelector('canvas.plot').toDataURL()"
    before = browser.execute_script(picture)
    canvas.send_keys(Keys.ARROW_RIGHT)
    assert browser.execute_script(picture) != before
    canvas.send_keys("0")
    assert browser.execute_script(picture) == before
    tip = browser.find_elements(By.CSS_SELECTOR, ".tip")[0]
    seen = set()
    for right in range(-250, 250, 40):
        ActionChains(browser, 0).move_to_element_with_offset(canvas, right, 60).perform()
        seen.add(tip.text)
    assert {words for words in seen if words} <= set(marks(browser))
    assert f"{printable(EVIL)}, run b: 3.00 ms" in seen  # the highest column
    assert browser.execute_script("return window.pwned") is None
    assert browser.find_elements(By.TAG_NAME, "img") == []
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0


def test_a_hostile_name_stays_a_name(browser: Chrome, tmp_path: Path) -> None:
    table = Table(EVIL, EVIL, (Column(EVIL, EVIL), COUNT), [(EVIL, 1)], note=EVIL)
    path = page(tmp_path / "a.html", BARS, TIMELINE, NETWORK, tables=(table,), title=EVIL)
    assert open_page(browser, path) == []
    assert browser.execute_script("return window.pwned") is None
    assert browser.find_elements(By.TAG_NAME, "img") == []
    shown = browser.find_element(By.CSS_SELECTOR, "tbody td")
    assert printable(EVIL) in (shown.text, shown.get_attribute("title"))
    assert f"0, {printable(EVIL)}: 2.00 ms" in marks(browser)


def test_a_step_that_is_picked_in_one_chart_is_picked_in_all(browser: Chrome, tmp_path: Path) -> None:
    every = Bars("Length of each step", "ms", ["7", "8"], {"time": [5.0, 9.0]}, by_step=True)
    work = HeatMap(
        "Work", "", "step", "rank", ["8", "9"], ["7", "r1"], [[1.5, 2.0], [None, 3.0]], by_step=True
    )
    assert open_page(browser, page(tmp_path / "a.html", every, work, BARS)) == []
    assert len(browser.find_elements(By.CSS_SELECTOR, ".detail")) == 2  # a chart by rank has none
    ActionChains(browser, 0).move_to_element(mark_of(browser, "step 8: 9.00 ms")).click().perform()
    shown = "return [...document.querySelectorAll('[data-step]:not(.aside)')].map(mark => mark.ariaLabel)"
    assert browser.execute_script(shown) == ["step 8: 9.00 ms", "7, step 8: 1.50 ms"]
    said = [detail.text for detail in browser.find_elements(By.CSS_SELECTOR, ".detail")]
    assert said == ["step 8: 9.00 ms", "7, step 8: 1.50 ms"]
    ActionChains(browser, 0).send_keys(Keys.ESCAPE).perform()
    assert browser.execute_script("return document.querySelectorAll('.aside').length") == 0


def test_the_pictures_of_the_picked_step_are_shown(browser: Chrome, tmp_path: Path) -> None:
    every = Bars("Length of each step", "ms", ["7", "8", "10"], {"time": [5.0, 9.0, 4.0]}, by_step=True)
    charts: list[Chart] = [every]
    for step, ms in (("7", 5.0), ("8", 9.0)):
        charts.append(Timeline(f"Step {step}", [Span("r0", "FW", 0.0, ms, "FW")], step=step))
    assert open_page(browser, page(tmp_path / "a.html", *charts)) == []

    def shown() -> list[str]:
        titles = (
            title.text for title in browser.find_elements(By.CSS_SELECTOR, "h2") if title.is_displayed()
        )
        return [title for title in titles if re.search(r"\d$", title)]

    assert shown() == ["Step 7"]
    Select(browser.find_element(By.CSS_SELECTOR, ".picker select")).select_by_visible_text("8")
    assert shown() == ["Step 8"]
    assert browser.execute_script("return sight.to") == pytest.approx(9, rel=0.05)


def test_a_finding_shows_the_box_that_it_names_in_the_step_that_it_names(
    browser: Chrome, tmp_path: Path
) -> None:
    def board(step: str, start: float) -> Timeline:
        spans = [
            Span("r0", "FW", 0.0, 100.0, "FW", ("r0.FW",)),
            Span("r0", "p", start, 5.0, "PUSH", ("r0.p",)),
        ]
        return Timeline(f"Step {step}", spans, step=step)

    card = Card("Slow.", "", about=("r0.FW", "r0.p"), step="9", seen="r0.p")
    charts = [board("7", 10.0), board("8", 20.0), board("9", 40.0)]
    html.write(Result("diagnose", "T", {}, charts=charts, cards=[card]), tmp_path / "a.html")
    assert open_page(browser, tmp_path / "a.html") == []
    browser.find_element(By.CSS_SELECTOR, ".cards button").click()
    in_sight = browser.execute_script("return [sight.from, sight.to]")
    assert in_sight == pytest.approx([38.75, 46.25], abs=0.3)  # the box and a quarter of it on either side
    (own,) = (one for one in browser.find_elements(By.TAG_NAME, "section") if one.text.startswith("Step 9"))
    assert own.find_element(By.CSS_SELECTOR, ".detail").text.startswith("p · PUSH · r0")
    assert browser.execute_script(
        "const { top } = arguments[0].getBoundingClientRect(); return top >= 0 && top < innerHeight", own
    )


def mark_of(browser: Chrome, name: str) -> WebElement:
    return browser.find_element(By.CSS_SELECTOR, f"[aria-label='{name}']")


def test_a_search_jumps_to_the_first_span_while_typing_and_enter_goes_on(
    browser: Chrome, tmp_path: Path
) -> None:
    spans = [
        Span("gpu", "FW.conv", 0, 5, "FW"),
        Span("gpu", "nccl a", 50, 1, "Comm"),
        Span("gpu", "nccl b", 90, 1, "Comm"),
    ]
    open_page(browser, page(tmp_path / "a.html", Timeline("T", spans)))
    browser.execute_script("sight.show(0, 10)")
    field = browser.find_element(By.CSS_SELECTOR, ".chart input")
    for typed, name, middle in (
        ("nc", "nccl a", 50.5),
        (Keys.ENTER, "nccl b", 90.5),
        (Keys.ENTER, "nccl a", 50.5),
    ):
        field.send_keys(typed)
        assert browser.find_element(By.CSS_SELECTOR, ".detail").text.startswith(
            f"{name} · Comm · gpu · 1.00 ms"
        )
        assert browser.execute_script("return (sight.from + sight.to) / 2") == pytest.approx(middle)
    assert browser.find_element(By.CSS_SELECTOR, ".chart [role=status]").text == "1 of 2"


def test_the_legend_names_the_longest_groups_in_different_colours_and_counts_the_others(
    browser: Chrome, tmp_path: Path
) -> None:
    spans = [Span("gpu", "x", i, 1 + i, f"group {i}") for i in range(30)]
    spans += [Span("gpu", "x", 40, 90, "cpu_op"), Span("gpu", "x", 41, 91, "cuda_runtime")]  # one meaning
    open_page(browser, page(tmp_path / "a.html", Timeline("T", spans)))
    chips = browser.find_elements(By.CSS_SELECTOR, ".legend span")
    assert [chip.text for chip in chips[:3]] == ["cuda_runtime 1", "cpu_op 1", "group 29 1"]
    assert [chip.text for chip in chips[-2:]] == ["group 21 1", "21 more"]
    colours = strings(browser, "'.legend i')].map((chip) => chip.style.background)")
    assert len(set(colours)) == len(chips)


def test_a_group_has_one_colour_in_bars_and_timelines(browser: Chrome, tmp_path: Path) -> None:
    shares = Bars("Where", "%", ["a step"], {"fusion": [9.0], "tanh": [1.0]}, is_small=True)
    boxes = [("wait a", 90), ("wait b", 80), ("tanh", 1), ("fusion", 2)]
    spans = [Span("gpu", group, start, dur, group) for start, (group, dur) in enumerate(boxes)]
    open_page(browser, page(tmp_path / "a.html", shares, Timeline("T", spans)))
    bars = strings(browser, "'[role=graphics-symbol]')].map((mark) => mark.getAttribute('fill'))")
    drawn = dict(browser.execute_script("return data.groups.map(([group, colour]) => [group, colour])"))
    assert [drawn["fusion"], drawn["tanh"]] == bars
    assert len(set(drawn.values())) == 4


def test_back_ticks_are_code(browser: Chrome, tmp_path: Path) -> None:
    card = Card("Hang", "", [("", "see `a b`"), ("Do", "run `py-spy dump` there")])
    html.write(Result("diagnose", "T", {}, cards=[card], notes=["a `note`"]), tmp_path / "a.html")
    open_page(browser, tmp_path / "a.html")
    assert strings(browser, "'code')].map((code) => code.textContent)") == ["a b", "py-spy dump", "note"]
    assert "`" not in browser.find_element(By.TAG_NAME, "main").text


LINKED = Timeline(
    "Step",
    [
        Span("rank0", "FW.a", 0.0, 50.0, "FW", ("rank0.FW.a",)),
        Span("rank1", "BW.b", 50.0, 50.0, "BW", ("rank1.BW.b",)),
    ],
    path=[
        Span("", "FW.a", 0.0, 50.0, "FW", ("rank0.FW.a",), on=0),
        Span("", "BW.b", 50.0, 50.0, "BW", ("#1",), on=1),
    ],
)
ABOUT = Table("t", "T", (NAME,), [("FW.a",), ("BW.b",)], about=[("rank0.FW.a",), ("#1", "rank1.BW.b")])
MARKED = "return [...document.querySelectorAll('tr.marked')].map(row => row.textContent)"


def test_a_row_goes_to_what_it_is_about_and_a_box_to_its_rows(browser: Chrome, tmp_path: Path) -> None:
    assert open_page(browser, page(tmp_path / "a.html", LINKED, tables=(OPERATIONS, ABOUT))) == []
    sections = [s.get_attribute("id") for s in browser.find_elements(By.CSS_SELECTOR, "main > section")]
    assert sections == ["chart-1", "table-2", "table-1"]  # the table below what it is linked with
    rows = browser.find_elements(By.CSS_SELECTOR, "tr.linked")
    rows[1].click()
    start, end = browser.execute_script("return [sight.from, sight.to]")
    assert 0 < start < 50  # the first box is out of sight but for its end
    assert end > 100
    assert browser.execute_script(MARKED) == ["BW.b"]
    browser.find_element(By.CSS_SELECTOR, "[aria-label='Show all']").click()
    until(browser, PAINTED)
    canvas = browser.find_element(By.CSS_SELECTOR, "canvas")
    at = browser.execute_script(
        "const { clientWidth: width, clientHeight: height } = document.querySelector('canvas');"
        "const top = laidOut(data.charts[0]).lanes[0].top, left = Math.min(190, width * 0.28);"
        "const x = left + 25 / (sight.to - sight.from) * (width - left);"
        "return [Math.round(x - width / 2), Math.round(top + 9 - height / 2)]"
    )
    ActionChains(browser, 0).move_to_element_with_offset(canvas, *at).click().perform()
    assert browser.execute_script(MARKED) == ["FW.a"]


def test_a_large_table_is_cut_with_a_note(tmp_path: Path) -> None:
    path = page(tmp_path / "a.html", tables=(Table("t", "T", (COUNT,), [(i,) for i in range(10_001)]),))
    assert "The first 10,000 of 10,001 rows; " in path.read_text(encoding="utf-8")


def test_a_graph_is_searched_and_zoomed(browser: Chrome, tmp_path: Path) -> None:
    open_page(browser, page(tmp_path / "a.html", NETWORK))
    browser.find_element(By.CSS_SELECTOR, ".chart input").send_keys("hidden")
    aside = browser.execute_script(
        "return [...document.querySelectorAll('.aside')].map(mark => mark.ariaLabel)"
    )
    assert len(aside) == 1
    assert "<script>" in aside[0]
    wide = "return document.querySelector('.drawing svg').clientWidth"
    before = browser.execute_script(wide)
    browser.find_element(By.CSS_SELECTOR, "[aria-label='Zoom in']").click()
    assert browser.execute_script(wide) == pytest.approx(1.5 * before, rel=0.01)


def test_a_large_timeline_loads_and_moves(browser: Chrome, tmp_path: Path) -> None:
    assert open_page(browser, page(tmp_path / "a.html", many_spans(20_000))) == []
    canvas = browser.find_element(By.CSS_SELECTOR, ".board canvas")
    canvas.send_keys("+++", Keys.ARROW_RIGHT, "-", "0")
    until(browser, PAINTED)


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_is_never_wider_than_the_screen(width: int, browser: Chrome, tmp_path: Path) -> None:
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        open_page(browser, page(tmp_path / "a.html", BARS, TIMELINE, NETWORK))
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
