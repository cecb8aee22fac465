"""A heat map as bars in 3-D: a figure of plotly, drawn by the page that shows the map."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from report import colours
from report.names import labels
from report.vega import described
from result import HeatMap

_NAME = 24  # columns at a tick
_MOST_TICKS = 14
_BAR = 12  # pixels
_INK = "#7d8896"  # can be read on light and dark pages


def figure(chart: HeatMap) -> dict[str, Any]:
    """Return the figure's data and layout: a line up from the floor for each cell, in its group's colour.

    plotly reads markup in texts, so each is escaped.
    """
    shades = colours.assign(chart.groups)
    traces: dict[str, dict[str, Any]] = {}
    for y, (group, values) in enumerate(zip(chart.groups, chart.values, strict=True)):
        line = {"color": shades[group], "width": _BAR}
        look = {
            "type": "scatter3d",
            "mode": "lines",
            "name": html.escape(group),
            "line": line,
            "hoverinfo": "text",
        }
        trace = traces.setdefault(group, look | {key: [] for key in ("x", "y", "z", "hovertext")})
        for x, value in enumerate(values):
            if value is None:
                continue
            words = html.escape(described([chart.y[y], chart.x[x]], value))
            for key, ends in (("x", (x, x)), ("y", (y, y)), ("z", (0, value)), ("hovertext", (words, words))):
                trace[key] += [*ends, None]
    scene = {
        "xaxis": _named(chart.x, chart.x_label),
        "yaxis": _named(chart.y, chart.y_label),
        "zaxis": {"title": {"text": html.escape(chart.value_label)}},
        "aspectmode": "manual",
        "aspectratio": {"x": 1, "y": 1.6, "z": 0.8},
        "camera": {"eye": {"x": 1.6, "y": -1.6, "z": 0.95}},
    }
    layout = {"scene": scene, "paper_bgcolor": "rgba(0,0,0,0)", "font": {"color": _INK}, "showlegend": True}
    return {"data": [*traces.values()], "layout": layout | {"margin": dict.fromkeys("lrtb", 0)}}


def _named(names: Sequence[str], title: str) -> dict[str, Any]:
    """Return an axis of places 0, 1, 2, … with as many names as there is room for."""
    indices = range(0, len(names), -(-len(names) // _MOST_TICKS) or 1)
    texts = [html.escape(name) for name in labels([names[index] for index in indices], _NAME)]
    return {"tickvals": [*indices], "ticktext": texts, "title": {"text": html.escape(title)}}
