"""A timeline as a Vega-Lite specification: boxes in rows, the path through them, and the names above it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from report import colours
from report.colours import INK, SOFT
from report.names import IN_A_LANE, bounded, first_words, labels
from report.tables import display_width
from report.vega import (
    CHARACTER,
    Spec,
    Values,
    described,
    layered,
    looked_up,
    quantity,
    room_beside,
    series,
    specified,
)
from result import Span, Timeline, in_digits, in_ms

_ROWS_A_LANE = (12, 8, 5, 3)  # at most: the first with which there are no more in all than these
_ALL_ROWS = 64
_MANY_ROWS = 80  # more are lower
_LEAST_PIXELS = 0.3  # of a span
_MOST_FLAGS = 10  # stretches of a path that are named
_FLAG = 26  # columns of a name
_APART = 6  # pixels between two poles
_BEYOND = 120  # pixels to the right of a still, for names


def timeline(chart: Timeline, width: int) -> Spec:
    """Return boxes in lanes below each other, and the path through them."""
    lanes = lane_rows(chart.spans)
    groups = list(dict.fromkeys(span.group for span in chart.spans))
    number, shades = {name: i for i, name in enumerate(groups)}, colours.assign(groups)
    start = min((span.start_ms for span in chart.spans), default=0.0)
    end = max((span.start_ms + span.dur_ms for span in chart.spans), default=1.0)
    room = room_beside(width, list(lanes))
    pixels = room / max(end - start, 1e-9)  # of a millisecond
    distinct = list({span.name: None for span in chart.spans})
    short = dict(zip(distinct, labels(distinct, IN_A_LANE), strict=True))
    values: Values = []
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
                words = f"{described([lane, span.name], span.dur_ms)} ms, from {in_digits(span.start_ms)}"
                fits = int((min(span.dur_ms, room_ms) * pixels - 6) / CHARACTER)
                whole = (one for one in (bounded(span.name), short[span.name]) if display_width(one) <= fits)
                name = next(whole, "") or first_words(span.name, fits)
                values.append(
                    {"a": span.start_ms, "b": ends, "r": len(names), "s": number[span.group], "d": words}
                    | ({"t": name, "i": colours.ink_on(shades[span.group])} if name else {})
                )
            names.append(lane if row is rows[0] else "")
    tops = [row for row, name in enumerate(names) if name]
    axis = {"title": None, "grid": True, "ticks": False, "domain": False, "values": tops}
    place = {**looked_up("r", "axis", axis, len(names)), "scale": {"paddingInner": 0.12}}
    time = {**quantity("a", chart.x_label), "scale": {"zero": False, "nice": False, "domain": [start, end]}}
    boxes = {"x": time, "x2": {"field": "b"}, "y": place, "color": series(groups, always=True)}
    texts = {"x": time, "y": place, "text": {"field": "t"}, "color": {"field": "i", "scale": None}}
    layers: list[Spec] = [
        {"mark": "bar", "encoding": {**boxes, "description": {"field": "d"}}},
        {"mark": {"type": "text", "align": "left", "dx": 3, "dy": -2 if named else 0, "fontSize": 9},
         "encoding": texts, "transform": [{"filter": "isValid(datum.t)"}]},
    ]  # fmt: skip
    layers += _path_layers(chart, rows_of, time, place)
    layers += _flag_layers(
        chart, named, shades, strip, lambda at: start + at / pixels, {"x": time, "y": place}
    )
    height = {"step": 17 if len(names) <= _MANY_ROWS else 9}
    spec = specified(values, "bar", {}, {"r": names, "s": groups}, width=room, height=height)
    return layered(spec, layers)


def _path_layers(chart: Timeline, row_of: Mapping[int, int], time: Spec, place: Spec) -> list[dict[str, Any]]:
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
        for colour, width in (("#ffffff", 5.0), (INK, 2.2))
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
        foot, wide = across(start + ms / 2), CHARACTER * (display_width(text) + 1)
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
    at: Spec,
) -> list[Spec]:
    """Return the path as a strip in a row of its own, and above it the names of its longest stretches.

    `ms_at` gives the time at a number of pixels from the left, and `at` is how marks are placed.
    """
    if not named:
        return []
    fills = [
        colours.of("gap") if part.is_idle else shades[chart.spans[part.span].group] for part in chart.path
    ]
    parts = [
        {"a": part.start_ms, "b": part.start_ms + part.dur_ms, "r": strip, "i": fill,
         "d": f"{described(['critical path', part.name], part.dur_ms)} ms"}
        for part, fill in zip(chart.path, fills, strict=True)
    ]  # fmt: skip
    rows = [strip - 2 - flag.row for flag in named]
    words = [{"a": ms_at(flag.left), "r": row, "t": flag.text} for flag, row in zip(named, rows, strict=True)]
    poles = [{"a": one["a"], "b": one["a"], "r": one["r"], "q": strip - 1} for one in words]
    poles += [{"a": ms_at(flag.left), "b": ms_at(flag.foot), "r": strip - 1, "q": strip} for flag in named]
    colour = {"color": {"field": "i", "scale": None}, "description": {"field": "d"}}
    text = {"type": "text", "align": "left", "dx": 3, "fontSize": 10, "color": INK}
    return [
        {"data": {"values": parts}, "mark": {"type": "bar", "height": {"band": 0.6}},
         "encoding": {**at, "x2": {"field": "b"}, **colour}},
        {"data": {"values": poles}, "mark": {"type": "rule", "color": SOFT, "strokeWidth": 0.8},
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
