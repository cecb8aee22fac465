"""Charts as pictures: bars, heat maps and rooflines, drawn without a display or a browser."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from analyzer.base.errors import optional
from analyzer.base.outputs.atomic import open_output
from analyzer.base.units import in_digits
from analyzer.report.cells import bounded, labels
from analyzer.report.pictures import colours, draw, svg
from analyzer.report.pictures.svg import HEIGHT, MIDDLE, RIGHT, WIDTH, Drawing
from analyzer.report.result import Bars, HeatMap, Network, Result, Roofline, Timeline

_MOST_BITMAP_PIXELS = 50_000_000
_ROW, _THICK = 18, 12  # pixels of a row of a map or a bar with its space, and of a bar without
_COLUMN, _WIDEST = 48, 60  # pixels of a cell that shows its value, and of a bar that stands upright
_WIDEST_NAME = 300  # pixels of the names of rows
_NAME, _SERIES = 44, 24  # columns of a name beside its row, and in the legend
#: ColorBrewer's YlOrRd, of nine classes.
_SHADES = (
    "#ffffcc", "#ffeda0", "#fed976", "#feb24c", "#fd8d3c", "#fc4e2a", "#e31a1c", "#bd0026", "#800026",
)  # fmt: skip
#: The scale of a map ends at this quantile of the values if the largest value is this many times as large.
_USUAL, _FAR_LARGER = 0.99, 4
_LEFT, _TOP, _DOT = 60, 14, 10  # pixels around upright bars and rooflines, and of a mark


def write(result: Result, path: Path) -> None:
    """Draw the first chart of `result` as .svg, .png or .pdf, by the suffix of `path`.

    Raises AnalyzeError if vl-convert, which turns SVG into PNG and PDF, is missing.
    """
    chart = next(chart for chart in result.charts if not isinstance(chart, Timeline))
    drawing, n_pixels = painted(chart, WIDTH, [result.headline, chart.title])
    with open_output(path) as stream:
        stream.write(_encoded(drawing, n_pixels, path.suffix.lower()))


def painted(
    chart: Bars | HeatMap | Roofline | Network, width: float, heading: Sequence[str] = ()
) -> tuple[str, int]:
    """Draw a chart: for a page without a heading, else as a still; also the number of pixels."""
    painters: dict[type, Any] = {Bars: _bars, HeatMap: _heat_map, Roofline: _roofline, Network: draw.paint}
    return svg.picture(painters[type(chart)](chart, width), heading)


def _encoded(drawing: str, n_pixels: int, suffix: str) -> bytes:
    if suffix == ".svg":
        return f'<?xml version="1.0" encoding="UTF-8"?>\n{drawing}\n'.encode()
    vl_convert = optional("vl_convert", "vl-convert-python", suffix)
    if suffix == ".pdf":
        return bytes(vl_convert.svg_to_pdf(drawing))
    return bytes(vl_convert.svg_to_png(drawing, scale=min(2.0, math.sqrt(_MOST_BITMAP_PIXELS / n_pixels))))


def _room(names: Sequence[str]) -> float:
    """Choose the pixels for the names of rows."""
    return min(max(map(svg.text_width, names), default=0.0), _WIDEST_NAME) + 10


def _rows(names: Sequence[str], left: float) -> Iterator[str]:
    for i, name in enumerate(names):
        yield svg.text(name, left - 6, i * _ROW + 13, look=RIGHT, room=left - 10)


def _columns(
    names: Sequence[str], title: str, left: float, wide: float, bottom: float, *, by_step: bool
) -> Iterator[str]:
    """Write the names of columns, of steps as many as fit, and the title below them."""
    every = math.ceil((max(map(svg.text_width, names), default=0.0) + 4) / wide) if by_step else 1
    for i in range(0, len(names), every):
        yield svg.text(bounded(names[i]), left + (i + 0.5) * wide, bottom + 14, look=MIDDLE)
    yield svg.text(title, left + len(names) * wide / 2, bottom + 32, look=MIDDLE)


# ---- bars: parts of each name on one another, coloured by series


class _Part(NamedTuple):
    """The part of a bar that belongs to one series."""

    bar: int
    series: str
    start: float
    end: float


def _bars(chart: Bars, width: float) -> Drawing:
    """Draw bars of steps upright beside each other, other bars below each other with their names."""
    parts = list(_parts(chart))
    ends = [end for part in parts for end in (part.start, part.end)]
    ends += [end for pair in chart.between if pair for end in pair]
    axis = svg.ticks(min(ends, default=0.0), max(ends, default=1.0))
    shades = colours.assign(chart.series)
    shapes = (_upright if chart.by_step else _lying)(chart, parts, axis, shades, width)
    height = HEIGHT + 40 if chart.by_step else _ROW * len(chart.names) + 40
    names = labels(list(chart.series), _SERIES)
    legend = [(svg.swatch(shade), name) for shade, name in zip(shades.values(), names, strict=True)]
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


def _lying(
    chart: Bars, parts: list[_Part], axis: list[tuple[float, str]], shades: Mapping[str, str], width: float
) -> Iterator[str]:
    names = labels(chart.names, _NAME)
    left, bottom = _room(names), _ROW * len(names)
    (low, _), (high, _) = axis[0], axis[-1]
    scale = (width - left - 20) / (high - low)

    def x(value: float) -> float:
        return left + (value - low) * scale

    for value, words in axis:
        yield svg.line(x(value), 0, x(value), bottom, "grid")
        yield svg.text(words, x(value), bottom + 14, look=MIDDLE)
    yield svg.text(bounded(chart.label), (left + width) / 2, bottom + 32, look=MIDDLE, room=width - left)
    yield from _rows(names, left)
    for part in parts:
        begin, end = sorted((x(part.start), x(part.end)))
        box = (begin, part.bar * _ROW + 3, end - begin, _THICK)
        yield svg.mark(_description(chart, part), shades[part.series], box)
    for i, pair in enumerate(chart.between):
        if pair:
            yield svg.line(x(pair[0]), i * _ROW + 9, x(pair[1]), i * _ROW + 9, "rule")


def _upright(
    chart: Bars, parts: list[_Part], axis: list[tuple[float, str]], shades: Mapping[str, str], width: float
) -> Iterator[str]:
    left = max(svg.text_width(words) for _, words in axis) + 10
    (low, _), (high, _) = axis[0], axis[-1]
    wide = min((width - left) / max(len(chart.names), 1), _WIDEST)
    right = left + wide * len(chart.names)

    def y(value: float) -> float:
        return HEIGHT - (value - low) * (HEIGHT - _TOP) / (high - low)

    for value, words in axis:
        yield svg.line(left, y(value), right, y(value), "grid")
        yield svg.text(words, left - 6, y(value) + 4, look=RIGHT)
    yield from _columns(chart.names, bounded(f"step ({chart.label})"), left, wide, HEIGHT, by_step=True)
    for part in parts:
        box = (left + (part.bar + 0.1) * wide, y(part.end), 0.8 * wide, y(part.start) - y(part.end))
        yield svg.mark(_description(chart, part), shades[part.series], box, chart.names[part.bar])
    if chart.level:
        value, words = chart.level
        rule = svg.line(left, y(value), right, y(value), "rule")
        yield f'<g role="graphics-symbol" aria-label="{svg.escaped(bounded(words))}">{rule}</g>'
        yield svg.text(f"─ {bounded(words)}", left, 8)


# ---- heat maps: a cell for each row and column, the larger its value the darker


def _heat_map(chart: HeatMap, width: float) -> Drawing:
    """Draw a map with the names of its rows and columns."""
    rows, columns = labels(chart.rows, _NAME), chart.columns
    left, bottom = _room(rows), _ROW * len(rows)
    widest = max(map(svg.text_width, columns), default=0.0) + 8
    wide = min((width - left) / max(len(columns), 1), max(_COLUMN, widest))
    low, high, over = _ends(chart)
    fitting = columns if chart.by_step else labels(columns, max(4, int(wide / 6.5)))
    shapes = [
        *_rows(rows, left),
        *_columns(fitting, chart.x_label, left, wide, bottom, by_step=chart.by_step),
        *_cells(chart, left, wide, low, high),
    ]
    label = f"{chart.label} (ms)" if chart.label else "ms"
    legend = [(svg.swatch(shade), "") for shade in _SHADES]
    legend[0] = (legend[0][0], in_digits(low))
    legend[-1] = (legend[-1][0], bounded(f"{in_digits(high)}{over} {label}"))
    return Drawing(shapes, width, bottom + 40, legend)


def _ends(chart: HeatMap) -> tuple[float, float, str]:
    """Choose the values of the lightest and the darkest colour, and words for values beyond."""
    known = sorted(
        value for row in chart.values for value in row if value is not None and math.isfinite(value)
    )
    if not known:
        return 0.0, 1.0, ""
    most = known[int(_USUAL * (len(known) - 1))]
    if most > known[0] and known[-1] > _FAR_LARGER * most:  # else all other values have one colour
        return known[0], most, " and more"
    return known[0], known[-1], ""


def _cells(chart: HeatMap, left: float, wide: float, low: float, high: float) -> Iterator[str]:
    for i, (row, values) in enumerate(zip(chart.rows, chart.values, strict=True)):
        for j, (column, value) in enumerate(zip(chart.columns, values, strict=True)):
            if value is None or not math.isfinite(value):
                continue
            shade = int(len(_SHADES) * (value - low) / ((high - low) or 1.0))
            colour = _SHADES[min(shade, len(_SHADES) - 1)]
            box = (left + j * wide, i * _ROW, max(wide - 0.5, 0.3), _ROW - 0.5)
            description = f"{bounded(row)}, {chart.x_label} {bounded(column)}: {in_digits(value)} ms"
            yield svg.mark(description, colour, box, column if chart.by_step else None)
            if wide >= _COLUMN:
                ink = f'class="on" pointer-events="none" text-anchor="middle" fill="{colours.ink_on(colour)}"'
                yield svg.text(in_digits(value), left + (j + 0.5) * wide, i * _ROW + 13, look=ink)


# ---- rooflines: rates by FLOP/byte on logarithmic axes, under the peaks of a device


def _roofline(chart: Roofline, width: float) -> Drawing:
    """Draw a mark for each kind of work, and lines for the memory and the peaks."""
    shades = colours.assign(name for name, _, _ in chart.points)
    legend = [(svg.swatch(shade), bounded(name)) for name, shade in shades.items()]
    return Drawing(list(_under_roofs(chart, shades, width)), width, HEIGHT + 40, legend)


def _under_roofs(chart: Roofline, shades: Mapping[str, str], width: float) -> Iterator[str]:
    ends = [(peak / chart.slope, peak) for _, peak in chart.roofs]
    columns = _powers([*(x for _, x, _ in chart.points), *(x for x, _ in ends)])
    rows = _powers([*(y for *_, y in chart.points), *(y for _, y in ends)])
    left, right, low, high = columns[0], columns[-1], rows[0], rows[-1]

    def point(x: float, y: float) -> tuple[float, float]:
        across, up = math.log(x / left) / math.log(right / left), math.log(y / low) / math.log(high / low)
        return _LEFT + across * (width - _LEFT - 20), HEIGHT - up * (HEIGHT - _TOP)

    for x in columns:
        yield svg.line(*point(x, low), *point(x, high), "grid")
        yield svg.text(f"{x:,g}", point(x, low)[0], HEIGHT + 14, look=MIDDLE)
    for y in rows:
        yield svg.line(*point(left, y), *point(right, y), "grid")
        yield svg.text(f"{y:,g}", _LEFT - 6, point(left, y)[1] + 4, look=RIGHT)
    yield svg.text("FLOP/byte", (_LEFT + width) / 2, HEIGHT + 32, look=MIDDLE)
    yield svg.text("TFLOP/s", 0, 8)
    start = max(left, low / chart.slope)
    yield svg.line(*point(start, start * chart.slope), *point(*max(ends)), "rule")
    for (name, peak), end in zip(chart.roofs, ends, strict=True):
        yield svg.line(*point(*end), *point(right, peak), "rule")
        yield svg.text(f"{name} {in_digits(peak)}", width - 22, point(right, peak)[1] - 5, look=RIGHT)
    for name, x, y in chart.points:
        label = f"{bounded(name)}: {in_digits(y)} TFLOP/s at {in_digits(x)} FLOP/byte"
        yield svg.mark(label, shades[name], (*(side - _DOT / 2 for side in point(x, y)), _DOT, _DOT))


def _powers(values: list[float]) -> list[float]:
    """List the powers of ten that enclose positive values."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return [10.0**power for power in range(low, max(high, low + 1) + 1)]
