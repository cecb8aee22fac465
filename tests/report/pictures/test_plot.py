"""Stills: what is drawn, read back from the file, and what names may hold."""

from __future__ import annotations

import io
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image

from analyzer.report.pictures import colours, plot
from analyzer.report.result import Bars, Chart, GraphNode, HeatMap, Network, Result
from conftest import few

pytestmark = pytest.mark.slow

NODES = [
    GraphNode("FW.a", "FW", 0, 0, 1.5, critical=True),
    GraphNode("BW.b", "BW", 1, 0, 150.0, critical=True),
    GraphNode("Comm.c", "Comm", 0, 3),
]
BARS = Bars("Time", "time (ms)", ["r0", "r1"], {"FW": [1.0, None], "BW": [2.0, 3.0]})
STEPS = Bars("Steps", "ms", ["7", "8"], {"usual": [5.0, 9.0]}, by_step=True, level=(7.0, "mean: 7.00 ms"))
HEAT = HeatMap("Map", "", "step", "rank", ["1", "2"], ["r0", "r1"], [[1.0, 2.0], [None, 3.0]])
BOUNDED = Bars("Gains", "ms", ["a", "b"], {"to save": [5.0, -2.0]}, between=[(3.0, 9.0), None])
NETWORK = Network("Graph", NODES, [(0, 1, "data"), (1, 2, "next")], path=[(0, 1)])
CHARTS = (BARS, STEPS, HEAT, BOUNDED, NETWORK)
KINDS = ("bars", "steps", "map", "bounds", "network")

_DRAWN = {"svg", "g", "path", "rect", "text"}


def write_still(chart: Chart, path: Path, headline: str = "") -> Path:
    plot.write(Result("o", "", {}, charts=(chart,), headline=headline), path)
    return path


def elements(path: Path) -> list[ElementTree.Element]:
    return list(ElementTree.parse(path).iter())


def texts(path: Path) -> list[str]:
    return [element.text or "" for element in elements(path) if element.tag.endswith(("}text", "}tspan"))]


def boxes(chart: Chart, path: Path) -> dict[str, list[float]]:
    """Return x, y, width and height of each mark, by what it says that it is."""
    write_still(chart, path)
    found = [element for element in elements(path) if element.get("role") and element.get("width")]
    return {
        box.get("aria-label", ""): [float(box.get(side, "")) for side in ("x", "y", "width", "height")]
        for box in found
    }


@pytest.mark.parametrize(
    ("suffix", "starts"), few(2, [(".png", b"\x89PNG"), (".SVG", b"<?xml"), (".pdf", b"%PDF")])
)
@pytest.mark.parametrize("chart", CHARTS, ids=KINDS)
def test_every_chart_in_every_format(chart: Chart, suffix: str, starts: bytes, tmp_path: Path) -> None:
    content = write_still(chart, tmp_path / f"a{suffix}").read_bytes()
    assert content.startswith(starts)
    if suffix == ".png":
        with Image.open(io.BytesIO(content)) as picture:
            picture.load()


def test_a_bar_is_as_long_as_its_value_and_begins_where_the_one_before_ends(tmp_path: Path) -> None:
    found = boxes(BARS, tmp_path / "a.svg")
    assert list(found) == ["r0, FW: 1.00 ms", "r0, BW: 2.00 ms", "r1, BW: 3.00 ms"]
    (x0, _, one, _), (x1, _, two, _), (x2, _, three, _) = found.values()
    assert [x1, x2, two, three] == pytest.approx([x0 + one, x0, 2 * one, 3 * one], abs=0.1)
    (x0, _, five, _), (x1, _, two, _) = boxes(BOUNDED, tmp_path / "b.svg").values()
    assert [two, x1 + two] == pytest.approx([0.4 * five, x0], abs=0.1)
    (_, high, _, five), (_, higher, _, nine) = boxes(STEPS, tmp_path / "c.svg").values()
    assert [nine, higher + nine] == pytest.approx([1.8 * five, high + five], abs=0.1)


def test_a_map_has_a_cell_for_each_value(tmp_path: Path) -> None:
    found = boxes(HEAT, tmp_path / "c.svg")
    assert list(found) == ["r0, step 1: 1.00 ms", "r0, step 2: 2.00 ms", "r1, step 2: 3.00 ms"]
    (x0, y0, *_), (x1, y1, *_), (x2, y2, *_) = found.values()
    assert (x0 < x1 == x2, y0 == y1 < y2) == (True, True)


def test_a_graph_has_a_box_for_each_node_and_marks_the_path(tmp_path: Path) -> None:
    path = write_still(NETWORK, tmp_path / "a.svg")
    drawn = [e for e in elements(path) if e.tag.endswith("}rect") and e.get("rx")]
    assert [box.get("fill") for box in drawn] == [colours.of(cat) for cat in ("FW", "BW", "Comm")]
    assert [box.get("stroke") for box in drawn] == [colours.INK, colours.INK, None]
    assert [float(box.get("x", "")) for box in drawn] == [-78, 112, -78]  # 190 a layer, 156 a box
    assert {"FW.a", "1.50 ms", "150 ms", "FW (1)", "critical path", "into the next step"} <= set(texts(path))


def test_the_same_chart_gives_the_same_file(tmp_path: Path) -> None:
    for chart in (BARS, NETWORK):
        for suffix in (".svg", ".png"):
            first, second = tmp_path / f"1{suffix}", tmp_path / f"2{suffix}"
            assert write_still(chart, first).read_bytes() == write_still(chart, second).read_bytes()


HOSTILE = [
    "x" * 100_000, "<script>alert(1)</script>" * 4_000, "\u202eevil" * 20_000, "e" + "\u0301" * 100_000,
    "A::" * 30_000, "void f<" + "a," * 50_000 + ">", "\x00\x1b[31m", "漢" * 100_000, "datum.x", "{{x}}",
    "\ud800", "&amp;\"'", "$x_$", "_hidden", "",
]  # fmt: skip


def hostile(chart: Chart) -> Chart:
    """Return a chart of this kind in which every name is hostile."""
    n, ones = HOSTILE, [1.0] * len(HOSTILE)
    made: dict[type, Chart] = {
        Bars: Bars(n[1], n[0], n, dict.fromkeys(n, ones)),
        HeatMap: HeatMap(n[1], n[3], "run", "operation", n, n, [ones for _ in n]),
        Network: Network(n[1], [GraphNode(x, x, i, 0, 1.0) for i, x in enumerate(n)], [(0, 1, n[1])]),
    }
    return made[type(chart)]


@pytest.mark.parametrize("chart", [BARS, NETWORK, HEAT], ids=lambda chart: type(chart).__name__)
def test_a_hostile_name_stays_a_short_text(chart: Chart, tmp_path: Path) -> None:
    path = write_still(hostile(chart), tmp_path / "a.svg", HOSTILE[1])
    write_still(hostile(chart), tmp_path / "a.png", HOSTILE[1])
    assert {element.tag.rpartition("}")[2] for element in elements(path)} <= _DRAWN
    assert max(map(len, texts(path))) <= 400
    assert all(text.isprintable() for text in texts(path))
