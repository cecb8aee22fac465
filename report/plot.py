"""Charts as Vega-Lite specifications, and as stills: .svg, .png and .pdf without a display or a browser."""

from __future__ import annotations

import math
import struct
import textwrap
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from atomic_output import open_output
from errors import AnalyzeError, OutputError, UsageError
from output_marks import MARK
from report import colours, draw
from report.names import bounded, labels
from report.tables import display_width
from result import (
    Bars,
    Bars3D,
    Chart,
    HeatMap,
    Lines,
    Network,
    Points,
    Result,
    Span,
    Timeline,
    Waterfall,
    in_ms,
)

SUFFIXES = (".svg", ".png", ".pdf")
#: Pixels of a chart's plotting area, without axes and legend.
WIDTH = 860

_HEIGHT = 260
_WIDEST_BAR = 90
_WIDEST_LABEL = 300
_CHARACTER = 5.8  # pixels of one, on average
_LABEL, _NARROW_LABEL = 44, 20  # columns of a name; the second where there are many
_MANY = 120
_SHORTEST_NAME = 5  # columns, in a box of a timeline
_MOST_TICKS = 40  # names along the bottom; beyond, every n-th
_MOST_POINTS = 60  # of a line that shows them
_TALL_STRIPS = 8
_ROWS_A_LANE = (12, 8, 5, 3)  # at most: the first with which there are no more in all than these
_ALL_ROWS = 64
_MANY_ROWS = 80  # of a timeline; more are lower
_LEAST_PIXELS = 0.3  # of a span
_MOST_FLAGS = 10  # stretches of a path that are named
_FLAG = 26  # columns of a name
_APART = 6  # pixels between two poles
_BEYOND = 120  # pixels to the right of a still, for names
_MOST_RUNS = 12  # beside each other as bars; more become a heat map
_MOST_BITMAP_PIXELS = 50_000_000
_LONGEST_SIDE = 14_400  # points, what PDF allows
_HANDLES = 24
_ADDRESS_SPACE = 80 << 30  # the engine that runs Vega reserves most of this, and aborts where it cannot

_INK, _SOFT, _GRID = "#1b1f24", "#5a6472", "#e1e5ea"
_AXIS = {
    "labelColor": _SOFT,
    "titleColor": _SOFT,
    "gridColor": _GRID,
    "domainColor": "#9aa5b4",
    "tickColor": "#9aa5b4",
    "labelFontSize": 11,
    "titleFontSize": 11,
    "titleFontWeight": "normal",
    "labelLimit": 340,
    "titlePadding": 8,
}
_CONFIG: dict[str, Any] = {
    "font": colours.FONT,
    "background": None,
    "view": {"stroke": None},
    "axis": _AXIS,
    "header": {"labelColor": _INK, "labelFontSize": 11, "titleColor": _SOFT, "labelLimit": 240},
    "legend": {
        "orient": "top",
        "title": None,
        "labelColor": _INK,
        "labelFontSize": 11,
        "labelLimit": 300,
        "symbolType": "square",
        "symbolSize": 120,
        "columns": 8,
    },
    "title": {
        "anchor": "start",
        "color": _INK,
        "fontSize": 16,
        "offset": 14,
        "frame": "bounds",
        "subtitleColor": _SOFT,
        "subtitleFontSize": 12,
        "subtitlePadding": 6,
    },
}
_HEAT = {"scheme": "yelloworangered"}
_FAR = 0.95  # of the ratios of a map are not beyond its last colour
_LEAST_RATIO = 1.1  # of the last colour

#: What an SVG of Vega holds: nothing that runs, loads or leads anywhere.
_INERT = {
    f"{{http://www.w3.org/2000/svg}}{tag}"
    for tag in (
        "svg",
        "g",
        "path",
        "rect",
        "line",
        "text",
        "tspan",
        "defs",
        "clipPath",
        "linearGradient",
        "stop",
    )
}

_Values = list[dict[str, Any]]
_Spec = dict[str, Any]


def write(result: Result, path: Path) -> None:
    """Draw the first chart of `result` into `path`, whose suffix (.svg, .png, .pdf) decides the format.

    Raises
    ------
    UsageError
        The suffix is none of these, or there is no chart.
    OutputError
        The file cannot be written.
    AnalyzeError
        Too little address space, or too few file handles, for what draws charts.
    """
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise UsageError(f"{path}: a picture ends in {', '.join(SUFFIXES)} or .html")
    if not result.charts:
        raise UsageError(f"{path}: {result.option} has no chart to draw here")
    chart = result.charts[0]
    with open_output(path) as stream:
        if isinstance(chart, Network):
            picture = draw.svg(chart, result.headline)
        else:
            spec = specification(chart)
            spec["title"] = _headed(chart.title, result.headline)
            picture = _converted(spec | {"background": "white", "padding": 16})
        stream.write(_encoded(picture, suffix))


def svg(chart: Chart, width: int = WIDTH) -> str:
    """Return a chart (no `Network`) as SVG for a page: no title, no background, nothing that runs.

    Each mark has its name, value and unit as ``aria-label``.
    """
    picture = _converted(specification(chart, width))
    for part in ElementTree.fromstring(picture).iter():
        active = [name for name in part.attrib if name.startswith("on") or name.endswith(("href", "style"))]
        if part.tag not in _INERT or active:
            raise OutputError(f"{chart.title}: a drawing with {part.tag} {active} is not put into a page")
    return picture


def specification(chart: Chart, width: int = WIDTH) -> _Spec:
    """Return the Vega-Lite specification of a chart that is no `Network`, its texts fit to be drawn.

    Names occur only as data and are looked up by number, so that equal ones stay apart and none is read
    as an expression.
    """
    for kind, made in _KINDS.items():
        if isinstance(chart, kind):
            return {"config": _CONFIG, **made(chart, width)}
    raise TypeError(type(chart).__name__)


def place_along(chart: Bars | HeatMap) -> int | None:
    """Return where in the words by which a mark is told stands which of `x` it is; None: nowhere."""
    if isinstance(chart, HeatMap):
        return -1
    return None if chart.horizontal else -2 if chart.strips else 0


# ---- kinds of charts


def _bars(chart: Bars, width: int) -> _Spec:
    if chart.strips:
        return _strips(chart, width)
    names = list(chart.series)
    values = [
        {"n": at, "s": s, "v": value, "d": _described([chart.x[at], name][: len(names)], value)}
        for s, name in enumerate(names)
        for at, value in enumerate(chart.series[name])
        if _is_number(value)
    ]
    beside = 1 if chart.stacked else max(1, len(names))
    if chart.horizontal:
        named, measured, names_title, title, room = "y", "x", "", chart.x_label, width
        size: _Spec = {"width": _beside(width, chart.x), "height": {"step": 9 + 9 * beside}}
    else:
        named, measured, names_title, title = "x", "y", chart.x_label, chart.y_label
        few = 40 + _WIDEST_BAR * len(chart.x)  # a few bars are no walls
        size = {"width": min(width, few), "height": _HEIGHT}
        room = min(width, few)
    encoding = {
        named: _names("n", chart.x, names_title, upright=chart.horizontal, room=room),
        measured: _measure("v", title),
        "color": _series(names),
        "order": {"field": "s"},
        **_faint(names),
    }
    if beside > 1:
        encoding[f"{named}Offset"] = {"field": "s", "type": "ordinal"}
    spec = _spec(values, "bar", encoding, {"n": chart.x, "s": names}, **size)
    return _with_bounds(spec, chart.between, named, measured) if any(chart.between) else spec


def _with_bounds(
    spec: _Spec, between: Sequence[tuple[float, float] | None], named: str, measured: str
) -> _Spec:
    """Return bars with a line over each, from the lowest to the highest that it may be."""
    bounds = dict(enumerate(between))
    values = [
        value | dict(zip(("low", "high"), bounds[value["n"]] or (), strict=False))
        for value in spec["data"]["values"]
    ]
    for value in values:
        if "low" in value:
            value["d"] += f" ({value['low']:,.4g} to {value['high']:,.4g})"
    bars = {key: spec[key] for key in ("mark", "encoding")}
    place = {channel: bars["encoding"][channel] for channel in (named, measured)}
    line = {
        named: place[named],
        measured: {**place[measured], "field": "low"},
        f"{measured}2": {"field": "high"},
    }
    rule = {"type": "rule", "color": _INK, "strokeWidth": 2}
    layers: list[_Spec] = [
        {**bars, "mark": {"type": "bar", "opacity": 0.85}},
        {"mark": rule, "encoding": line, "transform": [{"filter": "isValid(datum.low)"}]},
    ]
    return _layered(spec, layers) | {"data": {"values": values}}


def _waterfall(chart: Waterfall, width: int) -> _Spec:
    groups = list(dict.fromkeys(group for *_, group in chart.parts if group))
    names = [*(name for name, *_ in chart.parts), chart.total]
    number = {**{group: i for i, group in enumerate(groups)}, "": len(groups)}
    values: _Values = []
    at = 0.0
    whole = sum(value for _, value, _ in chart.parts)
    for n, (name, value, group) in enumerate(chart.parts):
        words = f"{_described([name], value)} of {whole:,.4g} ({value / (whole or 1):.0%})"
        ends = {"a": at, "b": at + value}
        values.append({"n": n, **ends, "s": number[group], "d": words, "t": f"{value:,.3g}"})
        at += value
    last = {"n": len(chart.parts), "a": 0.0, "b": at, "s": len(groups)}
    values.append({**last, "d": _described([chart.total], at), "t": f"{at:,.4g}"})
    colour = _series(groups, always=True)
    colour["scale"] = {
        "domain": [*range(len(groups) + 1)],
        "range": [*colour["scale"]["range"], _SOFT],
    }
    colour["legend"] = {**colour["legend"], "values": [*range(len(groups))], "columns": 5}
    place = _names("n", names, "", upright=True)
    along = {**_measure("a", chart.label), "scale": {"zero": True}}
    bars = {"y": place, "x": along, "x2": {"field": "b"}, "color": colour, "description": {"field": "d"}}
    texts = {"y": place, "x": {**along, "field": "b"}, "text": {"field": "t"}}
    spec = _spec(values, "bar", {}, {"n": names, "s": groups}, width=_beside(width, names) - 40,
                 height={"step": 20})  # fmt: skip
    text = {"type": "text", "align": "left", "dx": 4, "fontSize": 10, "color": _INK}
    layers: list[_Spec] = [{"mark": "bar", "encoding": bars}, {"mark": text, "encoding": texts}]
    return _layered(spec, layers)


def _strips(chart: Bars, width: int) -> _Spec:
    """Return bars in strips below each other, so that what has one place in each can be compared."""
    strips, places, names = (
        list(dict.fromkeys(chart.strips)),
        list(dict.fromkeys(chart.x)),
        list(chart.series),
    )
    row, column = {name: i for i, name in enumerate(strips)}, {name: i for i, name in enumerate(places)}
    values = [
        {"n": column[x], "r": row[strip], "s": s, "v": value, "d": _described([strip, x, name], value)}
        for s, name in enumerate(names)
        for x, strip, value in zip(chart.x, chart.strips, chart.series[name], strict=True)
        if _is_number(value)
    ]
    header = {"labelAngle": 0, "labelAlign": "left", "labelOrient": "right", "title": None}
    encoding = {
        "x": _names("n", places, chart.x_label),
        "y": {**_measure("v", chart.y_label), "axis": {"title": bounded(chart.y_label), "tickCount": 3}},
        "color": _series(names),
        "order": {"field": "s"},
        **_faint(names),
        "row": {**_looked_up("r", "header", header), "spacing": 8},
    }
    lists = {"n": places, "s": names, "r": strips}
    height = 90 if len(strips) <= _TALL_STRIPS else 48
    return _spec(values, "bar", encoding, lists, width=_beside(width, strips), height=height)


def _lines(chart: Lines, width: int) -> _Spec:
    names = sorted(chart.series, key=lambda name: name in chart.dashed)
    values = [
        {"x": x, "s": s, "v": value, "d": _described([f"{chart.x_label} {x:g}", name], value)}
        for s, name in enumerate(names)
        for x, value in zip(chart.x, chart.series[name], strict=True)
        if value is None or _is_number(value)
    ]
    solid = [name for name in names if name not in chart.dashed]
    shades = colours.assign(solid)
    colour = _series(names)
    colour["scale"] = {**colour["scale"], "range": [shades[chart.dashed.get(name, name)] for name in names]}
    if chart.dashed and colour["legend"]:
        colour["legend"] = {**colour["legend"], "values": [*range(len(solid))]}
    upper = {} if chart.most is None else {"scale": {"domainMax": chart.most}}
    across: _Spec = {"zero": False, "nice": False}
    encoding = {
        "x": {**_measure("x", chart.x_label), "scale": across},
        "y": {**_measure("v", chart.y_label), **upper},
        "color": colour,
    }
    if chart.dashed:
        dashed = {"test": f"datum.s >= {len(solid)}", "value": [5, 3]}
        encoding["strokeDash"] = {"condition": dashed, "value": [1, 0]}
        encoding["detail"] = {"field": "s"}
    if chart.log:
        across |= {"type": "log", "base": 2}
        encoding["x"]["axis"] |= {"values": list(chart.x), "tickCount": len(chart.x)}
    mark = {"type": "line", "clip": True, "strokeWidth": 1.8, "point": len(chart.x) <= _MOST_POINTS}
    spec = _spec(values, mark, encoding, {"s": names}, width=width, height=_HEIGHT)
    if not any(chart.band):
        return spec
    ends = [(x, *both) for x, both in zip(chart.x, chart.band, strict=True) if both]
    area = {
        "data": {"values": [{"x": x, "low": low, "high": high} for x, low, high in ends]},
        "mark": {"type": "area", "opacity": 0.2, "color": shades[solid[0]]},
        "encoding": {
            "description": {"value": bounded(f"{solid[0]}: between its bounds")},
            "x": encoding["x"],
            "y": {**encoding["y"], "field": "low", "scale": {"zero": True}},
            "y2": {"field": "high"},
        },
    }
    return _layered(spec, [area, {"mark": mark, "encoding": spec["encoding"]}])


def _points(chart: Points, width: int) -> _Spec:
    groups = list(dict.fromkeys(point.group for point in chart.points))
    values: _Values = [
        {"x": one.x, "v": one.y, "z": one.size, "s": groups.index(one.group),
         "d": f"{_described([one.name], one.x)} {chart.x_label}, {one.y:,.4g} {chart.y_label}, "
              f"{one.size:,.4g} {chart.size_label}"}
        for one in chart.points
        if one.x > 0 and one.y > 0
    ]  # fmt: skip
    axes = {
        channel: {**_measure(field, title), "scale": {"type": "log", "nice": False, "padding": 12}}
        for channel, field, title in (("x", "x", chart.x_label), ("y", "v", chart.y_label))
    }
    tens = [10.0**power for power in range(-12, 19)]
    for axis, form, shown in ((axes["x"], "~s", "x"), (axes["y"], "~g", "v")):
        least, most = (end((value[shown] for value in values), default=1.0) for end in (min, max))
        inside = [one for one in tens if least <= one <= most]
        axis["axis"] |= {"format": form, "tickCount": max(6, len(inside))}  # or it keeps some values only
        axis["axis"] |= {"values": inside} if len(inside) > 1 else {}
    size: _Spec = {"title": bounded(chart.size_label), "symbolType": "circle", "titleColor": _INK}
    size |= {"orient": "right", "columns": 1, "symbolFillColor": "#9aa5b4"}  # on dark pages, too
    encoding = {
        **axes,
        "size": {"field": "z", "type": "quantitative", "scale": {"range": [12, 500]}, "legend": size},
        "color": _series(groups, always=True),
    }
    mark = {"type": "circle", "opacity": 0.65}
    spec = _spec(values, mark, encoding, {"s": groups}, width=width - 120, height=_HEIGHT)
    if chart.roof is None:
        return spec
    high, name = chart.roof
    place = {"y": {**axes["y"], "field": "y"}}
    words = {"text": {"value": bounded(name)}, "x": {"value": 4}}
    layers: list[_Spec] = [
        {"mark": mark, "encoding": spec["encoding"]},
        {"data": {"values": [{"y": high, "d": f"{bounded(name)}: {high:,.4g}"}]}, "layer": [
            {"mark": {"type": "rule", "color": _INK, "strokeDash": [6, 3]},
             "encoding": {**place, "description": {"field": "d"}}},
            {"mark": {"type": "text", "align": "left", "dy": -7, "fontSize": 11, "color": _INK},
             "encoding": {**place, **words}},
        ]},
    ]  # fmt: skip
    return _layered(spec, layers)


def _heat_map(chart: HeatMap, width: int) -> _Spec:
    values: _Values = [
        {"n": x, "r": y, "v": value, "d": _described([chart.y[y], chart.x[x]], value)}
        for y, row in enumerate(chart.values)
        for x, value in enumerate(row)
        if _is_number(value)
    ]
    gradient: _Spec = {
        "title": bounded(chart.value_label),
        "gradientLength": 220,
        "titleColor": _INK,
        "titleLimit": 400,
    }
    scale: _Spec = _HEAT
    if chart.ratios:
        sizes = sorted(abs(math.log(value["v"])) for value in values if value["v"] > 0)
        most = max(math.exp(sizes[int(_FAR * (len(sizes) - 1))]) if sizes else 1.0, _LEAST_RATIO)
        scale = {"type": "log", "scheme": "redblue", "reverse": True, "domain": [1 / most, most]}
        scale["clamp"] = True
        gradient |= {"values": [1 / most, 1, most], "format": ".3~g"}
    wide = min(_beside(width, chart.y), 48 * max(1, len(chart.x)))
    encoding = {
        "x": _names("n", chart.x, chart.x_label, room=wide),
        "y": _names("r", chart.y, "", upright=True),
        "color": {"field": "v", "type": "quantitative", "scale": scale, "legend": gradient},
    }
    mark = {"type": "rect", "stroke": "white", "strokeWidth": 1 if len(chart.x) < _MANY else 0}
    lists = {"n": chart.x, "r": chart.y}
    return _spec(values, mark, encoding, lists, width=wide, height={"step": 18})


def _bars_3d(chart: Bars3D, width: int) -> _Spec:
    """Return a grid of bars as small multiples: a column for each run, all to one scale."""
    if len(chart.x) > _MOST_RUNS:
        words = (chart.title, chart.x_label, chart.y_label, chart.z_label)
        return _heat_map(HeatMap(*words, chart.x, chart.y, chart.z), width)
    groups = list(dict.fromkeys(chart.group))
    number = {name: i for i, name in enumerate(groups)}
    values = [
        {"r": y, "c": run, "s": number[group], "v": value, "d": _described([name, chart.x[run]], value)}
        for y, (row, group, name) in enumerate(zip(chart.z, chart.group, chart.y, strict=True))
        for run, value in enumerate(row)
        if _is_number(value)
    ]
    each = max(56, _beside(width, chart.y) // max(1, len(chart.x)) - 14)
    title = chart.z_label if each > 7 * len(chart.z_label) else ""
    header = {"title": None, "labelFontWeight": "bold", "labelLimit": each}
    encoding = {
        "y": _names("r", chart.y, "", upright=True),
        "x": {**_measure("v", title), "axis": {"title": bounded(title) or None, "tickCount": each // 60}},
        "color": _series(groups),
        "column": {**_looked_up("c", "header", header, len(chart.x)), "spacing": 14},
    }
    lists = {"r": chart.y, "s": groups, "c": chart.x}
    return _spec(values, "bar", encoding, lists, width=each, height={"step": 15})


def _timeline(chart: Timeline, width: int) -> _Spec:
    lanes = lane_rows(chart.spans)
    groups = list(dict.fromkeys(span.group for span in chart.spans))
    number, shades = {name: i for i, name in enumerate(groups)}, colours.assign(groups)
    start = min((span.start_ms for span in chart.spans), default=0.0)
    end = max((span.start_ms + span.dur_ms for span in chart.spans), default=1.0)
    room = _beside(width, list(lanes))
    pixels = room / max(end - start, 1e-9)  # of a millisecond
    values: _Values = []
    names: list[str] = []
    rows_of: dict[int, int] = {}
    named = flags(flag_texts(chart), lambda ms: (ms - start) * pixels, room + _BEYOND)
    if named:  # their rows, one in which poles bend, and the path
        names += [""] * (2 + max(flag.row for flag in named)) + ["critical path"]
    strip = len(names) - 1
    for lane, rows in lanes.items():
        for row in rows:
            rows_of |= {id(span): len(names) for span in row}
            for span, room_ms in _seen(row, pixels):
                ends = span.start_ms + max(span.dur_ms, _LEAST_PIXELS / pixels)
                words = f"{_described([lane, span.name], span.dur_ms)} ms, from {span.start_ms:,.4g}"
                fits = int((min(span.dur_ms, room_ms) * pixels - 6) / _CHARACTER)
                name = labels([span.name], fits)[0] if fits >= _SHORTEST_NAME else ""
                values.append(
                    {"a": span.start_ms, "b": ends, "r": len(names), "s": number[span.group], "d": words}
                    | ({"t": name, "i": colours.ink_on(shades[span.group])} if name else {})
                )
            names.append(lane if row is rows[0] else "")
    tops = [row for row, name in enumerate(names) if name]
    axis = {"title": None, "grid": True, "ticks": False, "domain": False, "values": tops}
    place = {**_looked_up("r", "axis", axis, len(names)), "scale": {"paddingInner": 0.12}}
    time = {**_measure("a", chart.x_label), "scale": {"zero": False, "nice": False, "domain": [start, end]}}
    boxes = {"x": time, "x2": {"field": "b"}, "y": place, "color": _series(groups, always=True)}
    texts = {"x": time, "y": place, "text": {"field": "t"}, "color": {"field": "i", "scale": None}}
    layers: list[_Spec] = [
        {"mark": "bar", "encoding": {**boxes, "description": {"field": "d"}}},
        {"mark": {"type": "text", "align": "left", "dx": 3, "dy": -2 if named else 0, "fontSize": 9},
         "encoding": texts, "transform": [{"filter": "isValid(datum.t)"}]},
    ]  # fmt: skip
    layers += _path_layers(chart, rows_of, time, place)
    layers += _flag_layers(
        chart, named, shades, strip, lambda at: start + at / pixels, {"x": time, "y": place}
    )
    height = {"step": 17 if len(names) <= _MANY_ROWS else 9}
    spec = _spec(values, "bar", {}, {"r": names, "s": groups}, width=room, height=height)
    return _layered(spec, layers)


def _path_layers(
    chart: Timeline, row_of: Mapping[int, int], time: _Spec, place: _Spec
) -> list[dict[str, Any]]:
    """Return the path as one line through the boxes, on a wider one in white."""
    points = []
    for part in chart.path:
        row = row_of[id(chart.spans[part.span])]
        points += [{"a": part.start_ms, "r": row}, {"a": part.start_ms + part.dur_ms, "r": row}]
    if not points:
        return []
    data = {"values": [{**point, "k": k, "d": "critical path"} for k, point in enumerate(points)]}
    order = {"field": "k", "type": "quantitative"}
    encoding = {"x": time, "y": place, "order": order, "description": {"field": "d"}}
    marks = [
        {"type": "line", "interpolate": "linear", "yOffset": 5, "color": colour, "strokeWidth": width}
        for colour, width in (("#ffffff", 4.5), (colours.PATH, 2.2))
    ]
    return [{"data": data, "encoding": encoding, "mark": mark} for mark in marks]


def flag_texts(chart: Timeline) -> list[tuple[float, float, str]]:
    """Return start, duration (ms) and what is written of the longest stretches of the path, by time."""
    stretches = chart.longest(_MOST_FLAGS)
    names = labels([name for *_, name in stretches], _FLAG)
    return [
        (start, ms, f"{name} {in_ms(ms * 1e6)}")
        for (start, ms, _), name in zip(stretches, names, strict=True)
    ]


class Flag(NamedTuple):
    """A name that flies from a pole to the right: its row (0 is the lowest), and pixels from the left."""

    row: int
    left: float  # of the text, and of the pole as high as texts are
    foot: float  # of the pole: what it stands on
    text: str


def flags(
    stretches: Sequence[tuple[float, float, str]], across: Callable[[float], float], room: float
) -> list[Flag]:
    """Return names of stretches (start, duration, text; by time) so that nothing goes through a text.

    Each stands on the middle of its stretch, `across` pixels from the left of `room`. Those that would not
    fit fly from elsewhere; their poles bend. `timeline.js` has the same rules.
    """
    found: list[Flag] = []
    before = math.inf  # where the one to the right flies
    for at in range(len(stretches) - 1, -1, -1):
        start, ms, text = stretches[at]
        foot, wide = across(start + ms / 2), _CHARACTER * (display_width(text) + 1)
        left = max(min(foot, room - wide, before - _APART), at * _APART)  # with room for those before it
        if left + wide <= room:
            before = left
            row = 1 + max((flag.row for flag in found if flag.left <= before + wide), default=-1)
            found.append(Flag(row, before, foot, text))
    return found


def _flag_layers(
    chart: Timeline,
    named: Sequence[Flag],
    shades: Mapping[str, str],
    strip: int,
    ms_at: Callable[[float], float],
    at: _Spec,
) -> list[_Spec]:
    """Return the path as a strip in a row of its own, and above it the names of its longest stretches.

    `ms_at` tells what lies so many pixels from the left, and `at` is how marks are placed.
    """
    if not named:
        return []
    fills = [
        colours.of("gap") if part.is_idle else shades[chart.spans[part.span].group] for part in chart.path
    ]
    parts = [
        {"a": part.start_ms, "b": part.start_ms + part.dur_ms, "r": strip, "i": fill,
         "d": f"{_described(['critical path', part.name], part.dur_ms)} ms"}
        for part, fill in zip(chart.path, fills, strict=True)
    ]  # fmt: skip
    rows = [strip - 2 - flag.row for flag in named]
    words = [{"a": ms_at(flag.left), "r": row, "t": flag.text} for flag, row in zip(named, rows, strict=True)]
    poles = [{"a": one["a"], "b": one["a"], "r": one["r"], "q": strip - 1} for one in words]
    poles += [{"a": ms_at(flag.left), "b": ms_at(flag.foot), "r": strip - 1, "q": strip} for flag in named]
    colour = {"color": {"field": "i", "scale": None}, "description": {"field": "d"}}
    text = {"type": "text", "align": "left", "dx": 3, "fontSize": 10, "color": _INK}
    return [
        {"data": {"values": parts}, "mark": {"type": "bar", "height": {"band": 0.6}},
         "encoding": {**at, "x2": {"field": "b"}, **colour}},
        {"data": {"values": poles}, "mark": {"type": "rule", "color": _SOFT, "strokeWidth": 0.8},
         "encoding": {**at, "x2": {"field": "b"}, "y2": {"field": "q"}}},
        {"data": {"values": words}, "mark": text, "encoding": {**at, "text": {"field": "t"}}},
    ]  # fmt: skip


def lane_rows(spans: Sequence[Span]) -> dict[str, list[list[Span]]]:
    """Return the spans of each lane in rows: those of a row do not overlap, but in the lane's last.

    A lane has 12 rows at most; fewer, but 3 at least, where all lanes together would have too many.
    """
    for most in _ROWS_A_LANE:
        lanes = _lane_rows(spans, most)
        if sum(map(len, lanes.values())) <= _ALL_ROWS:
            break
    return lanes


def _lane_rows(spans: Sequence[Span], most: int) -> dict[str, list[list[Span]]]:
    lanes: dict[str, list[list[Span]]] = {span.lane: [] for span in spans}
    ends: dict[str, list[float]] = {lane: [] for lane in lanes}
    for span in sorted(spans, key=lambda span: (span.start_ms, -span.dur_ms)):
        rows, until = lanes[span.lane], ends[span.lane]
        touching = span.start_ms + 1e-9 * max(1.0, abs(span.start_ms))
        row = next((i for i, at in enumerate(until) if at <= touching), min(len(rows), most - 1))
        if row == len(rows):
            rows.append([])
            until.append(-math.inf)
        rows[row].append(span)
        until[row] = max(until[row], span.start_ms + span.dur_ms)
    return lanes


def _seen(row: Sequence[Span], pixels: float) -> Iterator[tuple[Span, float]]:
    """Yield each span of a row and how long (ms) it is in sight before the next one begins.

    Left out are those whose place, at that many pixels a millisecond, is taken by the one before.
    """
    drawn_to = -math.inf
    for span, after in zip(row, [*row[1:], None], strict=True):
        last = (span.start_ms + span.dur_ms) * pixels
        if last >= drawn_to + _LEAST_PIXELS:
            yield span, math.inf if after is None else after.start_ms - span.start_ms
            drawn_to = last


_KINDS: Mapping[type, Callable[[Any, int], _Spec]] = {
    Bars: _bars,
    Waterfall: _waterfall,
    Lines: _lines,
    Points: _points,
    HeatMap: _heat_map,
    Bars3D: _bars_3d,
    Timeline: _timeline,
}


# ---- parts of a specification


def _spec(
    values: _Values, mark: str | _Spec, encoding: _Spec, lists: Mapping[str, Sequence[str]], **size: Any
) -> _Spec:
    """Return a specification; `lists` are the names that axes and legends look up, by the field's name."""
    return {
        "data": {"values": values},
        "params": [{"name": f"names_{field}", "value": _shown(names)} for field, names in lists.items()],
        "mark": mark,
        "encoding": {**encoding, "description": {"field": "d"}},
        **size,
    }


def _layered(spec: _Spec, layers: list[_Spec]) -> _Spec:
    """Return a specification with layers in place of its one mark."""
    return {key: part for key, part in spec.items() if key not in ("mark", "encoding")} | {"layer": layers}


def _looked_up(field: str, guide: str, look: _Spec, count: int = 0) -> _Spec:
    """Return an encoding by numbers whose axis, legend or header shows the names of `field`."""
    scale = {"scale": {"domain": list(range(count))}} if count and guide == "axis" else {}
    return {
        "field": field,
        "type": "ordinal",
        **scale,
        guide: {"labelExpr": f"names_{field}[datum.value]", **look},
    }


def _names(
    field: str, names: Sequence[str], title: str, *, upright: bool = False, room: int = WIDTH
) -> _Spec:
    """Return the axis of things with names, up the side or along the bottom (there every n-th, if many)."""
    look: _Spec = {"title": bounded(title) or None, "grid": False}
    if upright:
        look |= {"domain": False, "ticks": False}
    else:
        every = max(1, math.ceil(len(names) / _MOST_TICKS))
        longest = max(map(len, _shown(names)), default=0)
        fits = (longest + 1) * math.ceil(len(names) / every) * _CHARACTER < room
        look |= {"labelAngle": 0 if fits else -40, "values": list(range(0, len(names), every))}
    return _looked_up(field, "axis", look, len(names))


def _measure(field: str, title: str) -> _Spec:
    axis = {"title": bounded(title) or None, "tickCount": 6, "domain": False, "labelFlush": False}
    return {"field": field, "type": "quantitative", "axis": axis}


def _series(names: Sequence[str], *, always: bool = False) -> _Spec:
    """Return the colours of series, with a legend where there are several."""
    shades = colours.assign(names)
    scale = {"domain": list(range(len(names))), "range": [shades[name] for name in names]}
    legend = _looked_up("s", "legend", {}) if always or len(names) > 1 else {"field": "s", "legend": None}
    return {**legend, "type": "nominal", "scale": scale}


def _faint(names: Sequence[str]) -> _Spec:
    """Return how bars look that stand for what was not recorded: hollow, with a dashed edge."""
    places = [at for at, name in enumerate(names) if "not recorded" in name]
    if not places:
        return {}
    test = f"indexof({places}, datum.s) >= 0"
    looks = {"fillOpacity": (0.25, 1), "strokeWidth": (1, 0), "strokeDash": ([3, 2], [1, 0])}
    return {
        channel: {"condition": {"test": test, "value": hollow}, "value": full}
        for channel, (hollow, full) in looks.items()
    } | {"stroke": {"condition": {"test": test, "value": _SOFT}, "value": None}}


def _shown(names: Sequence[str]) -> list[str]:
    return labels(names, _LABEL if len(names) <= _MANY else _NARROW_LABEL)


def _headed(title: str, headline: str) -> _Spec:
    """Return the title of a still: the answer, and below it what is shown."""
    first, second = (headline, title) if headline else (title, "")
    return {"text": textwrap.wrap(bounded(first), 105)[:4], "subtitle": [bounded(second)] if second else []}


def _described(places: Sequence[str], value: float | None) -> str:
    words = ", ".join(bounded(place) for place in places if place)
    return words if value is None else f"{words}: {value:,.4g}"


def _beside(width: int, names: Sequence[str]) -> int:
    """Return the pixels that are left of `width` beside names."""
    longest = max(map(display_width, _shown(names)), default=0)
    return max(120, width - min(_WIDEST_LABEL, round(longest * _CHARACTER) + 12))


def _is_number(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


# ---- files


def _converted(spec: _Spec) -> str:
    """Return a specification as SVG."""
    _check_limits()
    import vl_convert

    try:
        picture: str = vl_convert.vegalite_to_svg(spec, vl_version="6.1", allowed_base_urls=[])
    except ValueError as error:  # what it makes of too few file handles
        reason = str(error).rpartition("\n")[2] or error
        raise OutputError(f"the chart cannot be drawn: {reason}") from error
    return picture


def can_draw() -> bool:
    """Whether there are address space and file handles enough for charts (`ulimit -v`, `ulimit -n`)."""
    try:
        import resource
    except ImportError:  # not on this system
        return True
    needed = ((resource.RLIMIT_AS, _ADDRESS_SPACE), (resource.RLIMIT_NOFILE, _HANDLES))
    limits = [(resource.getrlimit(which)[0], least) for which, least in needed]
    return all(limit == resource.RLIM_INFINITY or limit >= least for limit, least in limits)


def _check_limits() -> None:
    if not can_draw():
        room = f"{_ADDRESS_SPACE >> 30} GiB of address space and {_HANDLES} file handles"
        raise AnalyzeError(f"charts need {room} (ulimit -v, ulimit -n)")


def _encoded(picture: str, suffix: str) -> bytes:
    """Return an SVG as a file of the format, with our mark in it."""
    if suffix == ".svg":
        return f'<?xml version="1.0" encoding="UTF-8"?>\n<!-- {MARK} -->\n{picture}\n'.encode()
    import vl_convert

    width, height = draw.size_of(picture)
    if suffix == ".pdf":
        longest = max(width, height)
        fits = picture if longest <= _LONGEST_SIDE else draw.resized(picture, _LONGEST_SIDE / longest)
        return vl_convert.svg_to_pdf(fits) + f"\n% {MARK}\n".encode()
    scale = min(2.0, math.sqrt(_MOST_BITMAP_PIXELS / (width * height)))
    return _marked_png(vl_convert.svg_to_png(picture, scale=scale))


def _marked_png(picture: bytes) -> bytes:
    """Return a PNG with the text "Software" after its first chunk (length, type, data, CRC-32 of both)."""
    text = b"tEXtSoftware\0" + MARK.encode()
    chunk = struct.pack(">I", len(text) - 4) + text + struct.pack(">I", zlib.crc32(text))
    after = 8 + 12 + 13  # the signature, and a header of 13 bytes
    return picture[:after] + chunk + picture[after:]
