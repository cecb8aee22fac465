"""The painter of bars: parts of each name on one another, coloured by series."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from analyzer.base.units import in_digits
from analyzer.report.cells import bounded, labels
from analyzer.report.pictures import colours
from analyzer.report.pictures.svg import (
    HEIGHT,
    MIDDLE,
    RIGHT,
    Drawing,
    escaped,
    line,
    mark,
    swatch,
    text,
    text_width,
    ticks,
)
from analyzer.report.result import Bars

_ROW, _THICK = 18, 12  # pixels of a bar with its space, and without
_WIDEST = 60  # pixels of a bar that stands upright
_WIDEST_NAME = 300
_NAME, _SERIES = 44, 24  # columns of a name beside its bar, and in the legend


class _Part(NamedTuple):
    """The part of a bar that belongs to one series."""

    bar: int
    series: str
    start: float
    end: float


def paint(chart: Bars, width: float) -> Drawing:
    """Draw bars of steps upright beside each other, other bars below each other with their names."""
    parts = list(_parts(chart))
    ends = [end for part in parts for end in (part.start, part.end)]
    ends += [end for pair in chart.between if pair for end in pair]
    axis = ticks(min(ends, default=0.0), max(ends, default=1.0))
    shapes = (_upright if chart.by_step else _lying)(chart, parts, axis, width)
    height = HEIGHT + 40 if chart.by_step else _ROW * len(chart.names) + 40
    shades, names = colours.assign(chart.series).values(), labels(list(chart.series), _SERIES)
    legend = [(swatch(shade), name) for shade, name in zip(shades, names, strict=True)]
    return Drawing(list(shapes), width, height, legend if len(legend) > 1 else [])


def _parts(chart: Bars) -> Iterator[_Part]:
    for bar, values in enumerate(zip(*chart.series.values(), strict=True)):
        total = 0.0
        for name, value in zip(chart.series, values, strict=True):
            if value is not None and math.isfinite(value):
                yield _Part(bar, name, total, total + value)
                total += value


def _description(chart: Bars, part: _Part) -> str:
    name = bounded(chart.names[part.bar])
    words = [f"step {name}" if chart.by_step else name] + [bounded(part.series)] * (len(chart.series) > 1)
    return f"{', '.join(filter(None, words))}: {in_digits(part.end - part.start)} {chart.unit}"


def _lying(chart: Bars, parts: list[_Part], axis: list[tuple[float, str]], width: float) -> Iterator[str]:
    names = labels(chart.names, _NAME)
    left = min(max(map(text_width, names), default=0.0), _WIDEST_NAME) + 10
    (low, _), (high, _) = axis[0], axis[-1]
    scale = (width - left - 20) / (high - low)
    bottom = _ROW * len(names)
    shades = colours.assign(chart.series)

    def x(value: float) -> float:
        return left + (value - low) * scale

    for value, words in axis:
        yield line(x(value), 0, x(value), bottom, "grid")
        yield text(words, x(value), bottom + 14, look=MIDDLE)
    yield text(bounded(chart.label), (left + width) / 2, bottom + 32, look=MIDDLE, room=width - left)
    for i, name in enumerate(names):
        yield text(name, left - 6, i * _ROW + 13, look=RIGHT, room=left - 10)
    for part in parts:
        begin, end = sorted((x(part.start), x(part.end)))
        box = (begin, part.bar * _ROW + 3, end - begin, _THICK)
        yield mark(_description(chart, part), shades[part.series], box)
    for i, pair in enumerate(chart.between):
        if pair:
            yield line(x(pair[0]), i * _ROW + 9, x(pair[1]), i * _ROW + 9, "rule")


def _upright(chart: Bars, parts: list[_Part], axis: list[tuple[float, str]], width: float) -> Iterator[str]:
    left, top = max(text_width(words) for _, words in axis) + 10, 14
    (low, _), (high, _) = axis[0], axis[-1]
    wide = min((width - left) / max(len(chart.names), 1), _WIDEST)
    right = left + wide * len(chart.names)
    shades = colours.assign(chart.series)

    def y(value: float) -> float:
        return HEIGHT - (value - low) * (HEIGHT - top) / (high - low)

    for value, words in axis:
        yield line(left, y(value), right, y(value), "grid")
        yield text(words, left - 6, y(value) + 4, look=RIGHT)
    every = math.ceil((max(map(text_width, chart.names), default=0.0) + 4) / wide)
    for i in range(0, len(chart.names), every):
        yield text(bounded(chart.names[i]), left + (i + 0.5) * wide, HEIGHT + 14, look=MIDDLE)
    yield text(bounded(f"step ({chart.label})"), (left + right) / 2, HEIGHT + 32, look=MIDDLE)
    for part in parts:
        box = (left + (part.bar + 0.1) * wide, y(part.end), 0.8 * wide, y(part.start) - y(part.end))
        yield mark(_description(chart, part), shades[part.series], box, chart.names[part.bar])
    if chart.level:
        value, words = chart.level
        rule = line(left, y(value), right, y(value), "rule")
        yield f'<g role="graphics-symbol" aria-label="{escaped(bounded(words))}">{rule}</g>'
        yield text(f"─ {bounded(words)}", left, 8)
