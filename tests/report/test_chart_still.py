"""Stills of charts: what is drawn, read back from the figure or the file."""

from __future__ import annotations

import html
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from errors import OutputError, UsageError
from report import chart_still, colours
from result import Bars, Bars3D, Chart, Result

GRID = Bars3D(
    "Runs", "run", "operation", "ms", ["a", "b"], ["x", "y"], ["FW", "BW"], [[1.0, None], [2.0, 3.0]]
)


def write_still(chart: Chart, path: Path) -> None:
    chart_still.write(Result("o", "", {}, charts=(chart,)), path)


def texts(chart: Chart, path: Path) -> list[str]:
    """Return the texts of an SVG still: matplotlib writes each as a comment before its outlines."""
    write_still(chart, path)
    return [html.unescape(text) for text in re.findall("<!-- (.*?) -->", path.read_text(encoding="utf-8"))]


@pytest.mark.parametrize(("suffix", "starts"), [(".png", b"\x89PNG"), (".pdf", b"%PDF"), (".SVG", b"<?xml")])
def test_every_format(suffix: str, starts: bytes, tmp_path: Path) -> None:
    path = tmp_path / f"a{suffix}"
    write_still(GRID, path)
    assert path.read_bytes().startswith(starts)


def test_a_still_has_title_axes_and_legend(tmp_path: Path) -> None:
    written = texts(GRID, tmp_path / "a.svg")
    for words in ("Runs", "run", "operation", "ms", "FW", "BW", "a", "x"):
        assert words in written


def test_a_chart_that_has_no_still_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"this chart has no still picture; use \.html"):
        write_still(Bars("", "", "", [], {}), tmp_path / "a.png")


def test_a_dollar_in_a_name_is_a_dollar(tmp_path: Path) -> None:
    chart = Bars3D("$x_$", "", "", "", ["a"], ["$\\frac$"], ["_hidden"], [[1.0]])
    found = texts(chart, tmp_path / "a.svg")
    assert "$x_$" in found
    assert " _hidden" in found  # the space keeps it in the legend


def test_the_same_chart_gives_the_same_file(tmp_path: Path) -> None:
    first, second = tmp_path / "1.svg", tmp_path / "2.svg"
    write_still(GRID, first)
    write_still(GRID, second)
    assert first.read_bytes() == second.read_bytes()


def test_a_gap_in_a_grid_is_not_a_bar(tmp_path: Path) -> None:
    """A grid of gaps only shows none of its group's colour outside the legend."""
    full, empty = tmp_path / "full.png", tmp_path / "empty.png"
    write_still(Bars3D("", "", "", "", ["a"], ["x"], ["FW"], [[1.0]]), full)
    write_still(Bars3D("", "", "", "", ["a"], ["x"], ["FW"], [[None]]), empty)

    def coloured(path: Path) -> int:
        pixels = np.asarray(Image.open(path).convert("RGB"))[300:1100, 200:1100].astype(int)
        return int((pixels[..., 2] - pixels[..., 0] > 60).sum())

    assert coloured(full) > 1000
    assert coloured(empty) == 0


def test_an_unknown_suffix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"a\.gif: a picture ends in \.png, \.svg, \.pdf or \.html"):
        write_still(GRID, tmp_path / "a.gif")


def test_a_directory_that_is_not_there_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot be written: No such file or directory"):
        write_still(GRID, tmp_path / "nowhere" / "a.png")


def test_colours_differ_while_the_palette_lasts() -> None:
    chosen = colours.assign(["a", "b", "a", *map(str, range(10))])
    assert len(set(chosen.values())) == len(chosen) == 12
