"""Bars and heat maps as Vega-Lite specifications."""

from __future__ import annotations

from collections.abc import Sequence

from report.colours import INK
from report.names import bounded
from report.vega import (
    HEIGHT,
    MANY,
    Spec,
    Values,
    described,
    is_number,
    layered,
    names_axis,
    quantity,
    room_beside,
    series,
    specified,
)
from result import Bars, HeatMap, in_digits

_WIDEST_BAR = 90
_LOWEST_NAME = 12  # pixels of a name up the side
_HEAT = {"scheme": "yelloworangered"}
#: A map's colours end where so many of its values do if the largest is so many times as large.
_USUAL, _FAR_LARGER = 0.99, 4


def bars(chart: Bars, width: int) -> Spec:
    """Return bars of several series, with their bounds where these are known."""
    names = list(chart.series)
    values = [
        {"n": at, "s": s, "v": value, "d": described([chart.x[at], names[s]][: len(names)], value)}
        for at, beside in enumerate(zip(*chart.series.values(), strict=True))
        for s, value in enumerate(beside)
        if is_number(value)
    ]
    beside = 1 if chart.stacked else max(1, len(names))
    if chart.horizontal:
        named, measured, names_title, title, room = "y", "x", "", chart.x_label, width
        size: Spec = {"width": room_beside(width, chart.x), "height": {"step": 9 + 9 * beside}}
    else:
        named, measured, names_title, title = "x", "y", chart.x_label, chart.y_label
        few = 40 + _WIDEST_BAR * len(chart.x)  # a few bars must not be as broad as walls
        size = {"width": min(width, few), "height": HEIGHT}
        room = min(width, few)
    encoding = {
        named: names_axis("n", chart.x, names_title, upright=chart.horizontal, room=room),
        measured: quantity("v", title),
        "color": series(names),
        "order": {"field": "s"},
    }
    if beside > 1:
        encoding[f"{named}Offset"] = {"field": "s", "type": "ordinal"}
    spec = specified(values, "bar", encoding, {"n": chart.x, "s": names}, **size)
    if chart.level:
        mark = {key: spec[key] for key in ("mark", "encoding")}
        return layered(spec, [mark, _level(*chart.level, measured, encoding[measured])])
    return _with_bounds(spec, chart.between, named, measured) if any(chart.between) else spec


def _level(value: float, name: str, measured: str, axis: Spec) -> Spec:
    """Return a line across at a value of the `axis` that is `measured` along, with its name above."""
    place = {measured: {**axis, "field": "at"}}
    words = {"text": {"value": f"┄ {bounded(name)}"}, "x": {"value": 0}, "y": {"value": -8}}
    return {"data": {"values": [{"at": value, "d": f"{bounded(name)}: {in_digits(value)}"}]}, "layer": [
        {"mark": {"type": "rule", "color": INK, "strokeDash": [6, 3]},
         "encoding": {**place, "description": {"field": "d"}}},
        {"mark": {"type": "text", "align": "left", "fontSize": 11, "color": INK}, "encoding": words},
    ]}  # fmt: skip


def _with_bounds(
    spec: Spec, between: Sequence[tuple[float, float] | None], named: str, measured: str
) -> Spec:
    """Return bars with a line over each, from the lowest to the highest that it may be."""
    bounds = dict(enumerate(between))
    values = [
        value | dict(zip(("low", "high"), bounds[value["n"]] or (), strict=False))
        for value in spec["data"]["values"]
    ]
    for value in values:
        if "low" in value:
            value["d"] += f" ({in_digits(value['low'])} to {in_digits(value['high'])})"
    bars = {key: spec[key] for key in ("mark", "encoding")}
    place = {channel: bars["encoding"][channel] for channel in (named, measured)}
    line = {
        named: place[named],
        measured: {**place[measured], "field": "low"},
        f"{measured}2": {"field": "high"},
    }
    rule = {"type": "rule", "color": INK, "strokeWidth": 2}
    layers: list[Spec] = [
        {**bars, "mark": {"type": "bar", "opacity": 0.85}},
        {"mark": rule, "encoding": line, "transform": [{"filter": "isValid(datum.low)"}]},
    ]
    return layered(spec, layers) | {"data": {"values": values}}


def heat_map(chart: HeatMap, width: int) -> Spec:
    """Return a map."""
    values: Values = [
        {"n": x, "r": y, "v": value, "d": described([chart.y[y], chart.x[x]], value)}
        for y, row in enumerate(chart.values)
        for x, value in enumerate(row)
        if is_number(value)
    ]
    known = sorted(one["v"] for one in values)
    most = known[int(_USUAL * (len(known) - 1))] if known else 0.0
    scale: Spec = {**_HEAT}
    over = ""
    if known and most > known[0] and known[-1] > _FAR_LARGER * most:  # the others would be one colour
        scale |= {"domain": [known[0], most], "clamp": True}
        over = f", the darkest is {in_digits(most)} and more"
    gradient: Spec = {
        "title": bounded(chart.value_label) + over,
        "gradientLength": 220,
        "titleColor": INK,
        "titleLimit": 400,
    }
    wide = min(room_beside(width, chart.y), 48 * max(1, len(chart.x)))
    encoding = {
        "x": names_axis("n", chart.x, chart.x_label, room=wide),
        "y": names_axis("r", chart.y, "", upright=True),
        "color": {"field": "v", "type": "quantitative", "scale": scale, "legend": gradient},
    }
    row = max(4, min(18, HEIGHT // max(1, len(chart.y)))) if chart.is_small else 18
    every = -(-_LOWEST_NAME // row)
    encoding["y"]["axis"] |= {"values": list(range(0, len(chart.y), every))}
    mark = {"type": "rect", **({"stroke": "white"} if len(chart.x) < MANY and every == 1 else {})}
    lists = {"n": chart.x, "r": chart.y}
    return specified(values, mark, encoding, lists, width=wide, height={"step": row})
