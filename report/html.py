"""The face for browsers: one page that holds all it needs and asks no network for anything."""

from __future__ import annotations

import html
import itertools
from collections.abc import Iterator, Sequence
from functools import singledispatch
from pathlib import Path
from typing import Any

from atomic_output import open_output
from output_marks import MARK
from report.colours import PALETTE
from report.json import encode
from report.tables import printable
from result import Bars, Bars3D, Cell, Column, Lines, Network, Result, Table, Timeline

_ASSETS = Path(__file__).parent / "assets"
#: The scripts that draw each kind of chart, in the order in which the page needs them.
_SCRIPTS: dict[type, tuple[str, ...]] = {
    Bars: ("charts.js",),
    Lines: ("charts.js",),
    Bars3D: ("charts.js",),
    Timeline: ("view.js", "timeline.js"),
    Network: ("view.js", "network.js"),
}
_BY_PLOTLY = (Bars, Lines, Bars3D)

# Nothing may be loaded or sent, and only what is in the page may run.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)
_PAGE = """<!doctype html>
<!-- {mark} -->
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>
{style}</style>
</head>
<body>
<noscript>This page shows its tables and charts by JavaScript, which is switched off here.</noscript>
<script type="application/json" id="data">"""


def write(result: Result, path: Path) -> None:
    """Write `result` as one self-contained page, whole or not at all.

    The page carries the data as JSON and builds itself from text nodes, so that no name in a trace
    can become markup; plotly's script is in it only if a chart needs it.

    Raises
    ------
    OutputError
        The file cannot be written.
    """
    title = html.escape(printable(result.headline or result.title) or result.option)
    head = _PAGE.format(mark=MARK, policy=_POLICY, title=title, style=_asset("page.css"))
    with open_output(path) as stream:
        stream.write(head.encode("utf-8", "backslashreplace"))
        stream.write(_inert(encode(_document(result))))
        stream.write(b"</script>\n")
        for script in _scripts(result):
            stream.write(b"<script>\n" + script.encode() + b"</script>\n")
        stream.write(b"</body>\n</html>\n")


def _document(result: Result) -> dict[str, Any]:
    """Return what the page's script shows; every text in it can be printed."""
    lines = {"notes": result.notes, "read": result.read, "repairs": result.repairs}
    return {
        "option": result.option,
        "title": printable(result.headline or result.title),
        "palette": PALETTE,
        "figures": [(printable(label), printable(value)) for label, value in result.figures],
        "commentary": _printable_all(result.commentary),
        **{key: _printable_all(value) for key, value in lines.items()},
        "charts": [{"id": f"chart-{i}", **_payload(chart)} for i, chart in enumerate(result.charts, start=1)],
        "tables": [{"id": f"table-{i}", **_table(table)} for i, table in enumerate(result.tables, start=1)],
    }


def _table(table: Table) -> dict[str, Any]:
    return {
        "name": table.name,
        "title": printable(table.title),
        "note": printable(table.note),
        "columns": [_column(column) for column in table.columns],
        "rows": [[_cell(cell) for cell in row] for row in table.rows],
        "certain": table.certain_at,
    }


def _column(column: Column) -> dict[str, Any]:
    kept = {key: getattr(column, key) for key in ("kind", "digits", "floor", "scale")}
    return {"title": printable(column.title), **kept}


def _cell(cell: Cell) -> Cell:
    return printable(cell) if isinstance(cell, str) else cell


@singledispatch
def _payload(chart: object) -> dict[str, Any]:
    """Return what the script that draws this kind of chart reads; a registration for each kind."""
    raise TypeError(f"no drawing for {type(chart).__name__}")


@_payload.register(Bars)
def _bars(chart: Bars) -> dict[str, Any]:
    return {
        **_common("bars", chart),
        "y_label": printable(chart.y_label),
        "x": _printable_all(chart.x),
        "series": {printable(name): values for name, values in chart.series.items()},
        "stacked": chart.stacked,
        "horizontal": chart.horizontal,
    }


@_payload.register(Lines)
def _lines(chart: Lines) -> dict[str, Any]:
    return {
        **_common("lines", chart),
        "y_label": printable(chart.y_label),
        "x": chart.x,
        "series": {printable(name): values for name, values in chart.series.items()},
    }


@_payload.register(Timeline)
def _timeline(chart: Timeline) -> dict[str, Any]:
    """Return spans as (lane, name, start, duration, group), the texts by their places in lists."""
    lanes, names, groups = _Numbered(), _Numbered(), _Numbered()
    spans = [
        (lanes[span.lane], names[span.name], span.start_ms, span.dur_ms, groups[span.group])
        for span in chart.spans
    ]
    texts = {"lane_names": lanes.texts(), "names": names.texts(), "groups": groups.texts()}
    return {**_common("timeline", chart), **texts, "spans": spans}


@_payload.register(Bars3D)
def _bars_3d(chart: Bars3D) -> dict[str, Any]:
    return {
        **_common("bars3d", chart),
        "y_label": printable(chart.y_label),
        "z_label": printable(chart.z_label),
        "x": _printable_all(chart.x),
        "y": _printable_all(chart.y),
        "group": _printable_all(chart.group),
        "z": chart.z,
    }


@_payload.register(Network)
def _network(chart: Network) -> dict[str, Any]:
    kinds = _Numbered()
    edges = [(source, target, kinds[kind]) for source, target, kind in chart.looks()]
    nodes = [{key: _cell(value) for key, value in node.items()} for node in chart.nodes]
    note = {"note": printable(chart.note)}
    return {**_common("network", chart), **note, "nodes": nodes, "edges": edges, "kinds": kinds.texts()}


def _common(kind: str, chart: Bars | Lines | Timeline | Bars3D | Network) -> dict[str, str]:
    label = "" if isinstance(chart, Network) else chart.x_label
    return {"kind": kind, "title": printable(chart.title), "x_label": printable(label)}


class _Numbered(dict[str, int]):
    """Texts and their numbers; a new text gets the next one."""

    def __missing__(self, text: str) -> int:
        self[text] = len(self)
        return self[text]

    def texts(self) -> list[str]:
        return _printable_all(list(self))


def _printable_all(texts: Sequence[str]) -> list[str]:
    return [printable(text) for text in texts]


def _scripts(result: Result) -> Iterator[str]:
    """Yield the scripts of the page in order: plotly if needed, then ours in one."""
    if any(isinstance(chart, _BY_PLOTLY) for chart in result.charts):
        from plotly.offline import get_plotlyjs

        yield get_plotlyjs()
    drawing = itertools.chain.from_iterable(_SCRIPTS[type(chart)] for chart in result.charts)
    names = dict.fromkeys(["page.js", "table.js", *drawing])
    yield '"use strict";\n' + "".join(_asset(name) for name in names) + "build();\n"


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _inert(encoded: bytes) -> bytes:
    """Return JSON in which nothing can end or begin a tag, so that it may stand inside a script."""
    return encoded.replace(b"<", b"\\u003c").replace(b">", b"\\u003e").replace(b"&", b"\\u0026")
