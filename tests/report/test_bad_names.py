"""Names that are hostile to a format: strict readers find them, or their escapes, in each output."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import networkx
import openpyxl
import pytest
from openpyxl.utils.escape import unescape

from analyzer.base.errors import printable
from conftest import open_page, run_cli
from make import span, write

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

pytestmark = pytest.mark.slow

NAMES = (
    "a\x1bb", "line\nbreak", "tab\there", "nul\0x", "\u202eevil", "__proto__", "constructor", "toString",
    "length", "=cmd|' /C calc'!A0", "x" * 10_000, "lone\ud800s", "", "\U0001f600" * 60, "</script><b>", "]]>",
    'a"b', "a\\b", "a|b", "`c`", "\u2028", "\ufffe", "\x7f\x85", "History",
)  # fmt: skip
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("job"), NAMES)


def written(folder: Path, names: Sequence[str]) -> Path:
    """Write a job of two ranks with operations and categories of these names."""
    for rank in (0, 1):
        events = [span(name, 100 * i, 50 + rank, name) for i, name in enumerate(names)]
        info = {"rank": rank, "world_size": 2}
        write(folder / f"rank{rank}.json", events, schemaVersion=1, distributedInfo=info)
    return folder


def run(*args: object) -> str:
    code, out, err = run_cli(*args)
    assert code == 0, err
    return out


def mended(name: str) -> str:
    """Return a name as a reader of traces gives it."""
    return name.replace("\ud800", "\ufffd")


#: The names of operations of a graph, where each has one.
LABELS = [mended(name) for name in NAMES if name]


def legal_in_xml(name: str) -> str:
    """Return a name as it is written where some characters cannot be."""
    return re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe]", "\ufffd", name)


def test_csv_and_json_have_each_name_as_it_is(job: Path) -> None:
    text = run("--option", "statistic", "--path", job, "--format", "csv")
    rows = csv.reader(io.StringIO(text.replace("\0", "NUL")), strict=True)  # Python 3.10 reads no NUL
    in_csv = {cell.replace("NUL", "\0") for row in rows for cell in row}
    document = json.loads(run("--option", "statistic", "--path", job, "--format", "json"))
    in_json = {row["name"] for row in document["operations"]}
    for name in map(mended, NAMES):
        assert any(cell.endswith(name) for cell in in_csv), name
        assert any(cell.endswith(name) for cell in in_json), name


@pytest.mark.parametrize("kind", ["table", "markdown"])
def test_text_has_no_control_characters(job: Path, kind: str) -> None:
    assert _CONTROL.findall(run("--option", "statistic", "--path", job, "--format", kind)) == []


def test_a_workbook_is_strict_xml(job: Path, tmp_path: Path) -> None:
    run("--option", "statistic", "--path", job, "--xlsx", tmp_path / "x.xlsx")
    book = openpyxl.load_workbook(tmp_path / "x.xlsx")
    rows = itertools.chain.from_iterable(sheet.iter_rows(values_only=True) for sheet in book)
    cells = {unescape(cell) for row in rows for cell in row if isinstance(cell, str)}
    assert {f"rank0.{mended(name)}" for name in NAMES} <= cells
    with zipfile.ZipFile(tmp_path / "x.xlsx") as packed:
        for name in packed.namelist():
            if name.endswith((".xml", ".rels")):
                ElementTree.fromstring(packed.read(name))


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def reference(name: str) -> str:
        return "".join(c if c.isascii() and c.isalnum() else f"&#{ord(c)};" for c in name)

    nodes = [f'node [ id {i} label "{reference(name)}" ]' for i, name in enumerate(LABELS)]
    edges = [f"edge [ source {i} target {i + 1} ]" for i in range(len(LABELS) - 1)]
    path = tmp_path_factory.mktemp("graph") / "g.gml"
    path.write_text("\n".join(["graph [", "directed 1", *nodes, *edges, "]"]))
    return path


def test_graphs_in_other_languages_are_read_back(graph: Path) -> None:
    for suffix in (".dot", ".graphml"):
        run("graph", graph, "--output", graph.with_suffix(suffix))
    text = graph.with_suffix(".dot").read_text(encoding="utf-8")
    escapes = {r"\n": "\n", r"\"": '"', r"\\": "\\"}
    labels = [
        re.sub(r"\\.", lambda match: escapes[match[0]], label)
        for label in re.findall(r'\[label="((?:[^"\\]|\\.)*)"', text)
    ]
    assert set(map(legal_in_xml, LABELS)) <= set(map(legal_in_xml, labels))
    assert re.findall(r"[\x00-\x08\x0b-\x1f]", text) == []
    nodes = networkx.read_graphml(graph.with_suffix(".graphml")).nodes(data=True)
    assert [members["label"] for _, members in nodes] == [legal_in_xml(name) for name in LABELS]


def test_pages_have_each_name_in_what_can_be_printed(browser: Chrome, job: Path, tmp_path: Path) -> None:
    run("statistic", job, "--html", tmp_path / "a.html")
    assert open_page(browser, tmp_path / "a.html") == []
    text = browser.execute_script("return document.body.textContent")
    assert [name for name in map(mended, NAMES) if printable(name) not in text] == []
    assert not browser.find_elements("css selector", "td b, th b")  # as one of the names has it


def test_a_timeline_has_each_name(job: Path, tmp_path: Path) -> None:
    run("--option", "combine", "--path", job, "--output", tmp_path / "c.json")
    document = json.loads((tmp_path / "c.json").read_text(encoding="utf-8"))
    found = {event.get("name") for event in document["traceEvents"]}
    assert set(map(mended, NAMES)) <= found
