"""Stills: what is drawn, read back from the file, and what names may hold."""

from __future__ import annotations

import io
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image

from conftest import few
from errors import OutputError
from report import colours, plot
from result import Bars, Chart, HeatMap, Network, Result

pytestmark = pytest.mark.slow

NODES = [
    {"label": "FW.a", "cat": "FW", "x": 0.0, "y": 0.0, "dur_ms": 1.5, "critical": True},
    {"label": "BW.b", "cat": "BW", "x": 1.0, "y": 0.0, "dur_ms": 150.0, "critical": True},
    {"label": "Comm.c", "cat": "Comm", "x": 0.0, "y": 3.0, "dur_ms": None, "critical": False},
]
BARS = Bars("Time", "rank", "time (ms)", ["r0", "r1"], {"FW": [1.0, None], "BW": [2.0, 3.0]}, stacked=True)
HEAT = HeatMap("Map", "step", "rank", "ms", ["1", "2"], ["r0", "r1"], [[1.0, 2.0], [None, 3.0]])
BOUNDED = Bars(
    "Gains", "ms", "", ["a", "b"], {"to save": [5.0, 2.0]}, horizontal=True, between=[(3.0, 9.0), None]
)
NETWORK = Network("Graph", NODES, [(0, 1, "data"), (1, 2, "next")], path=[(0, 1)])
CHARTS = (BARS, HEAT, BOUNDED, NETWORK)
KINDS = ("bars", "map", "bounds", "network")

_DRAWN = {"svg", "g", "path", "rect", "line", "text", "tspan", "defs", "linearGradient", "stop", "clipPath"}


def write_still(chart: Chart, path: Path, headline: str = "") -> Path:
    plot.write(Result("o", "", {}, charts=(chart,), headline=headline), path)
    return path


def elements(path: Path) -> list[ElementTree.Element]:
    return list(ElementTree.parse(path).iter())


def texts(path: Path) -> list[str]:
    return [element.text or "" for element in elements(path) if element.tag.endswith(("}text", "}tspan"))]


def marks(chart: Chart, path: Path) -> list[str]:
    """Return the description of every mark of a chart, as readers of a page hear it."""
    write_still(chart, path)
    found = [element.get("aria-label") for element in elements(path) if element.get("role") is not None]
    return sorted(text for text in found if text and re.search(r": [\d.]+$", text) and "legend" not in text)


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


def test_each_bar_says_what_it_is(tmp_path: Path) -> None:
    assert marks(BARS, tmp_path / "a.svg") == ["r0, BW: 2.00", "r0, FW: 1.00", "r1, BW: 3.00"]
    assert marks(HEAT, tmp_path / "c.svg") == ["r0, 1: 1.00", "r0, 2: 2.00", "r1, 2: 3.00"]


def test_a_graph_has_a_box_for_each_node_and_marks_the_path(tmp_path: Path) -> None:
    path = write_still(NETWORK, tmp_path / "a.svg")
    boxes = [e for e in elements(path) if e.tag.endswith("}rect") and e.get("rx")]
    assert [box.get("fill") for box in boxes] == [colours.of(cat) for cat in ("FW", "BW", "Comm")]
    assert [box.get("stroke") for box in boxes] == [colours.INK, colours.INK, None]
    assert [float(box.get("x", "")) for box in boxes] == [-78, 112, -78]  # 190 a layer, 156 a box
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
        Bars: Bars(n[1], n[0], n[2], n, dict.fromkeys(n, ones)),
        HeatMap: HeatMap(n[1], n[0], n[2], n[3], n, n, [ones for _ in n]),
        Network: Network(
            n[1],
            [
                {"label": x, "cat": x, "x": i, "y": 0, "dur_ms": 1.0, "critical": False}
                for i, x in enumerate(n)
            ],
            [(0, 1, n[1])],
            note=n[1],
        ),
    }
    return made[type(chart)]


@pytest.mark.parametrize("chart", [BARS, NETWORK, HEAT], ids=lambda chart: type(chart).__name__)
def test_a_hostile_name_stays_a_short_text(chart: Chart, tmp_path: Path) -> None:
    path = write_still(hostile(chart), tmp_path / "a.svg", HOSTILE[1])
    if chart in (BARS, NETWORK):  # drawn by Vega, and here: every PNG is made of such an SVG
        write_still(hostile(chart), tmp_path / "a.png", HOSTILE[1])
    assert {element.tag.rpartition("}")[2] for element in elements(path)} <= _DRAWN
    assert max(map(len, texts(path))) <= 400
    assert all(text.isprintable() for text in texts(path))


def test_a_drawing_that_holds_more_than_shapes_does_not_get_into_a_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inside = (
        "><script>x</script>",
        ' onload="x">',
        '><a href="x"/>',
        '><path style="x"/>',
        "><style>x</style>",
    )
    for words in inside:
        picture = f'<svg xmlns="http://www.w3.org/2000/svg"{words}</svg>'
        monkeypatch.setattr(plot, "_converted", lambda spec, picture=picture: picture)
        with pytest.raises(OutputError, match="is not put into a page"):
            plot.svg(BARS)
