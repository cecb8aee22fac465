"""Names that are hostile to a format: strict readers find them, or their escapes, in each output."""

from __future__ import annotations

import csv
import io
import json
import re
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import pytest

from conftest import run_cli
from report.xlsx import sheet_name

pytestmark = pytest.mark.slow

NAMES = (
    "a\x1bb", "line\nbreak", "tab\there", "nul\0x", "\u202eevil", "__proto__", "constructor", "toString",
    "length", "=cmd|' /C calc'!A0", "x" * 10_000, "lone\ud800s", "", "\U0001f600" * 60, "</script><b>", "]]>",
    'a"b', "a\\b", "a|b", "`c`", "\u2028", "\ufffe", "\x7f\x85", "History",
)  # fmt: skip
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    for rank in (0, 1):
        events = [
            {"ph": "X", "name": name, "cat": name, "pid": 1, "tid": 1, "ts": 100 * i, "dur": 50 + rank}
            for i, name in enumerate(NAMES)
        ]
        head = {"schemaVersion": 1, "distributedInfo": {"rank": rank, "world_size": 2}}
        (folder / f"rank{rank}.json").write_text(json.dumps({**head, "traceEvents": events}))
    return folder


def run(*args: object) -> str:
    code, out, err = run_cli(*args)
    assert code == 0, err
    return out


def mended(name: str) -> str:
    """Return a name as a reader of traces gives it."""
    return name.replace("\ud800", "\ufffd")


def test_csv_and_json_have_each_name_as_it_is(job: Path) -> None:
    rows = csv.reader(
        io.StringIO(run("--option", "statistic", "--path", job, "--format", "csv")), strict=True
    )
    in_csv = {cell for row in rows for cell in row}
    document = json.loads(run("--option", "statistic", "--path", job, "--format", "json"))
    in_json = {row["name"] for row in document["operations"]}
    for name in map(mended, NAMES):
        assert any(cell.endswith(name) for cell in in_csv), name
        assert any(cell.endswith(name) for cell in in_json), name


@pytest.mark.parametrize("kind", ["table", "markdown"])
def test_text_has_no_control_characters(job: Path, kind: str) -> None:
    assert _CONTROL.findall(run("--option", "statistic", "--path", job, "--format", kind)) == []


def test_a_workbook_is_strict_xml_and_its_sheets_have_legal_names(job: Path, tmp_path: Path) -> None:
    run("--option", "statistic", "--path", job, "--xlsx", tmp_path / "x.xlsx")
    with zipfile.ZipFile(tmp_path / "x.xlsx") as packed:
        for name in packed.namelist():
            if name.endswith((".xml", ".rels")):
                ElementTree.fromstring(packed.read(name))
    taken: set[str] = set()
    for name in map(mended, NAMES):
        legal = sheet_name(name, taken)
        assert 1 <= len(legal.encode("utf-16-le")) // 2 <= 31
        assert _CONTROL.findall(legal) == re.findall(r"[\[\]:*?/\\\n\t]", legal) == []


@pytest.mark.parametrize("suffix", [".svg", ".dot", ".graphml"])
def test_graphs_in_other_languages_are_read_back(tmp_path: Path, suffix: str) -> None:
    def reference(name: str) -> str:
        return "".join(c if c.isascii() and c.isalnum() else f"&#{ord(c)};" for c in name)

    nodes = [
        f'node [ id {i} label "{reference(name) or "none"}" ]' for i, name in enumerate(map(mended, NAMES))
    ]
    edges = [f"edge [ source {i} target {i + 1} ]" for i in range(len(NAMES) - 1)]
    (tmp_path / "g.gml").write_text("\n".join(["graph [", "directed 1", *nodes, *edges, "]"]))
    run("--option", "graph", "--path", tmp_path / "g.gml", "--output", tmp_path / f"g{suffix}")
    text = (tmp_path / f"g{suffix}").read_text(encoding="utf-8")
    if suffix == ".dot":
        assert re.findall(r"[\x00-\x08\x0b-\x1f]", text) == []
        labels = re.findall(r'\[label="((?:[^"\\]|\\.)*)"', text)
        assert len(labels) >= len(NAMES)
    else:
        ElementTree.fromstring(text)


def test_a_timeline_has_each_name(job: Path, tmp_path: Path) -> None:
    run("--option", "combine", "--path", job, "--output", tmp_path / "c.json")
    document = json.loads((tmp_path / "c.json").read_text(encoding="utf-8"))
    found = {event.get("name") for event in document["traceEvents"]}
    assert set(map(mended, NAMES)) <= found
