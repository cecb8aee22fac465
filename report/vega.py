"""Parts of Vega-Lite specifications: axes, colours and words.

Names occur only as data and are looked up by number, so that equal ones stay apart and none is read as an
expression.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from report import colours
from report.colours import INK, SOFT
from report.names import bounded, labels
from report.tables import display_width
from result import in_digits

Values = list[dict[str, Any]]
Spec = dict[str, Any]

#: Pixels of a chart's plotting area, without axes and legend.
WIDTH, HEIGHT = 860, 260
CHARACTER = 5.8  # pixels of one, on average
MANY = 120  # names

_GRID = "#e1e5ea"
_WIDEST_LABEL = 300
_LEGEND, _SYMBOL = 24, 30  # columns of a name in a legend, and pixels beside it
_LABEL, _NARROW_LABEL = 44, 20  # columns of a name; the second where there are many
_MOST_LEGEND = 8  # names of a legend: what more there is says its name under the pointer
_MOST_TICKS = 40  # names along the bottom; beyond, every n-th
_AXIS = {
    "labelColor": SOFT,
    "titleColor": SOFT,
    "gridColor": _GRID,
    "domainColor": "#9aa5b4",
    "tickColor": "#9aa5b4",
    "labelFontSize": 11,
    "titleFontSize": 11,
    "titleFontWeight": "normal",
    "labelLimit": 340,
    "titlePadding": 8,
    "aria": False,  # what it says are numbers of places; each mark has its name
}
#: What is alike in all charts.
CONFIG: dict[str, Any] = {
    "font": colours.FONT,
    "background": None,
    "view": {"stroke": None},
    "axis": _AXIS,
    "legend": {
        "aria": False,
        "orient": "top",
        "title": None,
        "labelColor": INK,
        "labelFontSize": 11,
        "labelLimit": 300,
        "symbolType": "square",
        "symbolSize": 120,
        "symbolLimit": 64,
    },
    "title": {
        "anchor": "start",
        "color": INK,
        "fontSize": 16,
        "offset": 14,
        "frame": "bounds",
        "subtitleColor": SOFT,
        "subtitleFontSize": 12,
        "subtitlePadding": 6,
    },
}


def specified(
    values: Values, mark: str | Spec, encoding: Spec, lists: Mapping[str, Sequence[str]], **size: Any
) -> Spec:
    """Return a specification; `lists` are the names that axes and legends look up, by the field's name."""
    shown = {
        field: labels(names, _LEGEND) if field == "s" else _shown(names) for field, names in lists.items()
    }
    return {
        "data": {"values": values},
        "params": [{"name": f"names_{field}", "value": names} for field, names in shown.items()],
        "mark": mark,
        "encoding": {**encoding, "description": {"field": "d"}},
        **size,
    }


def legend_columns(spec: Spec, width: int) -> Spec:
    """Return how many columns the legend of a chart may have, which is not to be wider than the chart."""
    names = [
        name for one in spec["params"] if one["name"] == "names_s" for name in one["value"][:_MOST_LEGEND]
    ]
    widest = max(map(display_width, names), default=0)
    return {"columns": max(1, min(_MOST_LEGEND, int(width / (CHARACTER * widest + _SYMBOL))))}


def layered(spec: Spec, layers: list[Spec]) -> Spec:
    """Return a specification with layers in place of its one mark."""
    return {key: part for key, part in spec.items() if key not in ("mark", "encoding")} | {"layer": layers}


def looked_up(field: str, guide: str, look: Spec, count: int = 0) -> Spec:
    """Return an encoding by numbers whose axis, legend or header shows the names of `field`."""
    scale = {"scale": {"domain": list(range(count))}} if count and guide == "axis" else {}
    return {
        "field": field,
        "type": "ordinal",
        **scale,
        guide: {"labelExpr": f"names_{field}[datum.value]", **look},
    }


def names_axis(
    field: str, names: Sequence[str], title: str, *, upright: bool = False, room: int = WIDTH
) -> Spec:
    """Return the axis of things with names, up the side or along the bottom (there every n-th, if many)."""
    look: Spec = {"title": bounded(title) or None, "grid": False}
    if upright:
        look |= {"domain": False, "ticks": False}
    else:
        every = max(1, math.ceil(len(names) / _MOST_TICKS))
        longest = max(map(len, _shown(names)), default=0)
        fits = (longest + 1) * math.ceil(len(names) / every) * CHARACTER < room
        look |= {"labelAngle": 0 if fits else -40, "values": list(range(0, len(names), every))}
    return looked_up(field, "axis", look, len(names))


def quantity(field: str, title: str) -> Spec:
    """Return the axis of a quantity."""
    axis = {"title": bounded(title) or None, "tickCount": 6, "domain": False, "labelFlush": False}
    return {"field": field, "type": "quantitative", "axis": axis}


def series(names: Sequence[str]) -> Spec:
    """Return the colours of series, with a legend where there are several; of many the first."""
    shades = colours.assign(names)
    scale = {"domain": list(range(len(names))), "range": [shades[name] for name in names]}
    few = {"values": list(range(_MOST_LEGEND))} if len(names) > _MOST_LEGEND else {}
    legend = looked_up("s", "legend", few) if len(names) > 1 else {"field": "s", "legend": None}
    return {**legend, "type": "nominal", "scale": scale}


def _shown(names: Sequence[str]) -> list[str]:
    return labels(names, _LABEL if len(names) <= MANY else _NARROW_LABEL)


def described(places: Sequence[str], value: float | None) -> str:
    """Return the description of a mark: its names and its value."""
    words = ", ".join(bounded(place) for place in places if place)
    return words if value is None else f"{words}: {in_digits(value)}"


def room_beside(width: int, names: Sequence[str]) -> int:
    """Return the pixels that are left of `width` beside names."""
    longest = max(map(display_width, _shown(names)), default=0)
    return max(120, width - min(_WIDEST_LABEL, round(longest * CHARACTER) + 12))


def is_number(value: float | None) -> bool:
    """Whether it can be drawn."""
    return value is not None and math.isfinite(value)
