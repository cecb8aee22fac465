"""Bars, lines, points and maps as Vega-Lite specifications."""

from __future__ import annotations

import math
from collections.abc import Sequence

from report import colours
from report.colours import INK, SOFT
from report.names import bounded
from report.vega import (
    HEIGHT,
    MANY,
    Spec,
    Values,
    described,
    faint,
    is_number,
    layered,
    looked_up,
    names_axis,
    quantity,
    room_beside,
    series,
    specified,
)
from result import Bars, Bars3D, HeatMap, Lines, Scatter, Waterfall, in_digits, in_percent

_WIDEST_BAR = 90
_MOST_BARS = 800  # upright; more are thinner than a pixel
_MOST_POINTS = 60  # of a line that shows them
_TALL_STRIPS = 8
_A_TICK = 60  # pixels for the number at a tick
_LOWEST_NAME = 12  # pixels of a name up the side
_MOST_RUNS = 12  # beside each other as bars; more become a heat map
_HEAT = {"scheme": "yelloworangered"}
#: A map's colours end where so many of its values do if the largest is so many times as large.
_USUAL, _FAR_LARGER = 0.99, 4


def place_along(chart: Bars | HeatMap) -> int | None:
    """Return the place of a mark's `x` among the words of its description; None if it is not there."""
    if isinstance(chart, HeatMap):
        return -1
    return None if chart.horizontal else -2 if chart.strips else 0


def bars(chart: Bars, width: int) -> Spec:
    """Return bars of several series, with their bounds where these are known; in strips where it has some."""
    if chart.strips:
        return _strips(chart, width)
    if not chart.horizontal:
        chart = _with_room(chart)
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
        "color": series(names, pale=chart.pale),
        "order": {"field": "s"},
        **faint(names),
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


def _with_room(chart: Bars) -> Bars:
    """Return a chart of no more places than can be seen: of some that follow each other the longest."""
    n = len(chart.x)
    every = math.ceil(n * (1 if chart.stacked else max(1, len(chart.series))) / _MOST_BARS)
    if every <= 1:
        return chart
    totals = [sum(filter(is_number, values)) for values in zip(*chart.series.values(), strict=True)]
    kept = [max(range(at, min(at + every, n)), key=totals.__getitem__) for at in range(0, n, every)]
    return chart._replace(
        x_label=f"{chart.x_label} (of {every} in a row the longest)",
        x=[chart.x[at] for at in kept],
        series={name: [values[at] for at in kept] for name, values in chart.series.items()},
        between=[chart.between[at] for at in kept] if chart.between else (),
    )


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


def waterfall(chart: Waterfall, width: int) -> Spec:
    """Return a waterfall: parts that add up to a total."""
    groups = list(dict.fromkeys(group for *_, group in chart.parts if group))
    names = [*(name for name, *_ in chart.parts), chart.total]
    number = {**{group: i for i, group in enumerate(groups)}, "": len(groups)}
    values: Values = []
    at = 0.0
    whole = sum(value for _, value, _ in chart.parts)
    are_changes = any(not group for *_, group in chart.parts)
    for n, (name, value, group) in enumerate(chart.parts):
        words = f"{described([name], value)} of {in_digits(whole)} ({in_percent(value / (whole or 1))})"
        size = in_digits(value, sign="+") if are_changes and group else in_digits(value)
        ends: Spec = {"a": at, "b": at + value, "end": max(at, at + value), "pale": n in chart.pale}
        values.append({"n": n, **ends, "s": number[group], "d": words, "t": size})
        at += value
    last = {"n": len(chart.parts), "a": 0.0, "b": at, "end": at, "s": len(groups)}
    values.append({**last, "d": described([chart.total], at), "t": in_digits(at)})
    for bar, between in zip(values, chart.between, strict=False):  # few waterfalls have them
        if between:
            low, high = (bar["a"] + bound for bound in between)
            bar |= {"low": low, "high": high, "end": max(bar["end"], high)}
            what = described([names[bar["n"]]], bar["b"] - bar["a"])
            bar["d"] = f"{what} (95 %: {' to '.join(map(in_digits, between))})"
    colour = series(groups, always=True)
    colour["scale"] = {
        "domain": [*range(len(groups) + 1)],
        "range": [*colour["scale"]["range"], SOFT],
    }
    colour["legend"] = {**colour["legend"], "values": [*range(len(groups))]}
    place = names_axis("n", names, "", upright=True)
    room = room_beside(width, names) - 40
    along = quantity("a", chart.label)
    along["axis"] |= {"tickCount": max(2, room // _A_TICK)}
    along["scale"] = {"zero": True, **({} if chart.most is None else {"domainMax": chart.most})}
    pale: Spec = {"condition": {"test": "datum.pale", "value": 0.35}, "value": 1}
    bars = {"y": place, "x": along, "x2": {"field": "b"}, "color": colour, "description": {"field": "d"}}
    texts = {"y": place, "x": {**along, "field": "end"}, "text": {"field": "t"}}
    spec = specified(values, "bar", {}, {"n": names, "s": groups}, width=room, height={"step": 20})
    text: Spec = {"type": "text", "align": "left", "dx": 4, "fontSize": 10, "color": INK}
    layers: list[Spec] = [{"mark": "bar", "encoding": {**bars, "opacity": pale}}]
    if any(chart.between):
        line: Spec = {"y": place, "x": {**along, "field": "low"}, "x2": {"field": "high"}}
        rule: Spec = {"type": "rule", "color": INK, "strokeWidth": 2}
        layers.append({"mark": rule, "encoding": line, "transform": [{"filter": "isValid(datum.low)"}]})
    if chart.level:
        layers.append(_level(*chart.level, "x", along))
    return layered(spec, [*layers, {"mark": text, "encoding": texts}])


def _strips(chart: Bars, width: int) -> Spec:
    """Return bars in strips below each other, so that what has one place in each can be compared."""
    strips, places, names = (
        list(dict.fromkeys(chart.strips)),
        list(dict.fromkeys(chart.x)),
        list(chart.series),
    )
    row, column = {name: i for i, name in enumerate(strips)}, {name: i for i, name in enumerate(places)}
    values = [
        {"n": column[x], "r": row[strip], "s": s, "v": value, "d": described([strip, x, name], value)}
        for s, name in enumerate(names)
        for x, strip, value in zip(chart.x, chart.strips, chart.series[name], strict=True)
        if is_number(value)
    ]
    header = {"labelAngle": 0, "labelAlign": "left", "labelOrient": "right", "title": None}
    encoding = {
        "x": names_axis("n", places, chart.x_label),
        "y": {**quantity("v", chart.y_label), "axis": {"title": bounded(chart.y_label), "tickCount": 3}},
        "color": series(names),
        "order": {"field": "s"},
        **faint(names),
        "row": {**looked_up("r", "header", header), "spacing": 8},
    }
    lists = {"n": places, "s": names, "r": strips}
    height = 90 if len(strips) <= _TALL_STRIPS else 48
    return specified(values, "bar", encoding, lists, width=room_beside(width, strips), height=height)


def lines(chart: Lines, width: int) -> Spec:
    """Return lines, with a band where it has one."""
    names = sorted(chart.series, key=lambda name: name in chart.dashed)
    values = [
        {"x": x, "s": s, "v": value, "d": described([f"{chart.x_label} {x:.12g}", name], value)}
        for s, name in enumerate(names)
        for x, value in zip(chart.x, chart.series[name], strict=True)
        if value is None or is_number(value)
    ]
    solid = [name for name in names if name not in chart.dashed]
    shades = colours.assign(solid)
    colour = series(names)
    colour["scale"] = {**colour["scale"], "range": [shades[chart.dashed.get(name, name)] for name in names]}
    if chart.dashed and colour["legend"]:
        colour["legend"] = {**colour["legend"], "values": [*range(len(solid))]}
    upper = {} if chart.most is None else {"scale": {"domainMax": chart.most}}
    across: Spec = {"zero": False, "nice": False}
    encoding = {
        "x": {**quantity("x", chart.x_label), "scale": across},
        "y": {**quantity("v", chart.y_label), **upper},
        "color": colour,
    }
    if chart.dashed:
        dashed = {"test": f"datum.s >= {len(solid)}", "value": [5, 3]}
        encoding["strokeDash"] = {"condition": dashed, "value": [1, 0]}
        encoding["detail"] = {"field": "s"}
    if all(map(float.is_integer, chart.x)):  # numbers of steps: there is no half of one
        encoding["x"]["axis"] |= {"tickCount": min(6, max(1, round(max(chart.x) - min(chart.x))))}
    if chart.log:
        across |= {"type": "log", "base": 2}
        encoding["x"]["axis"] |= {"values": list(chart.x), "tickCount": len(chart.x)}
    mark = {"type": "line", "clip": True, "strokeWidth": 1.8, "point": len(chart.x) <= _MOST_POINTS}
    spec = specified(values, mark, encoding, {"s": names}, width=width, height=HEIGHT)
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
    return layered(spec, [area, {"mark": mark, "encoding": spec["encoding"]}])


def points(chart: Scatter, width: int) -> Spec:
    """Return points of two sizes on logarithmic axes."""
    groups = list(dict.fromkeys(point.group for point in chart.points))
    values: Values = [
        {"x": one.x, "v": one.y, "z": one.size, "s": groups.index(one.group),
         "d": f"{described([one.name], one.x)} {chart.x_label}, {in_digits(one.y)} {chart.y_label}, "
              f"{in_digits(one.size)} {chart.size_label}"}
        for one in chart.points
        if one.x > 0 and one.y > 0
    ]  # fmt: skip
    axes = {
        channel: {**quantity(field, title), "scale": {"type": "log", "nice": False, "padding": 12}}
        for channel, field, title in (("x", "x", chart.x_label), ("y", "v", chart.y_label))
    }
    tens = [10.0**power for power in range(-12, 19)]
    for axis, form, shown in ((axes["x"], "~s", "x"), (axes["y"], "~g", "v")):
        least, most = (end((value[shown] for value in values), default=1.0) for end in (min, max))
        inside = [one for one in tens if least <= one <= most]
        axis["axis"] |= {"format": form, "tickCount": max(6, len(inside))}  # or it keeps some values only
        axis["axis"] |= {"values": inside} if len(inside) > 1 else {}
    size: Spec = {"title": bounded(chart.size_label), "symbolType": "circle", "titleColor": INK}
    size |= {"orient": "right", "columns": 1, "symbolFillColor": "#9aa5b4"}  # on dark pages, too
    encoding = {
        **axes,
        "size": {"field": "z", "type": "quantitative", "scale": {"range": [12, 500]}, "legend": size},
        "color": series(groups, always=True),
    }
    mark = {"type": "circle", "opacity": 0.65}
    spec = specified(values, mark, encoding, {"s": groups}, width=width - 120, height=HEIGHT)
    if chart.roof is None:
        return spec
    points = {"mark": mark, "encoding": spec["encoding"]}
    return layered(spec, [points, _level(*chart.roof, "y", axes["y"])])


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


def bars_3d(chart: Bars3D, width: int) -> Spec:
    """Return a grid of bars as small multiples: a column for each run, all to one scale."""
    if len(chart.x) > _MOST_RUNS:
        words = (chart.title, chart.x_label, chart.y_label, chart.z_label)
        return heat_map(HeatMap(*words, chart.x, chart.y, chart.z), width)
    groups = list(dict.fromkeys(chart.group))
    number = {name: i for i, name in enumerate(groups)}
    values = [
        {"r": y, "c": run, "s": number[group], "v": value, "d": described([name, chart.x[run]], value)}
        for y, (row, group, name) in enumerate(zip(chart.z, chart.group, chart.y, strict=True))
        for run, value in enumerate(row)
        if is_number(value)
    ]
    each = max(56, room_beside(width, chart.y) // max(1, len(chart.x)) - 14)
    title = chart.z_label if each > 7 * len(chart.z_label) else ""
    header = {"title": None, "labelFontWeight": "bold", "labelLimit": each}
    encoding = {
        "y": names_axis("r", chart.y, "", upright=True),
        "x": {**quantity("v", title), "axis": {"title": bounded(title) or None, "tickCount": each // 60}},
        "color": series(groups),
        "column": {**looked_up("c", "header", header, len(chart.x)), "spacing": 14},
    }
    lists = {"r": chart.y, "s": groups, "c": chart.x}
    return specified(values, "bar", encoding, lists, width=each, height={"step": 15})
