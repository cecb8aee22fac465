"""The painter of heat maps: a cell for each row and column, the larger its value the darker."""

from __future__ import annotations

import math
from collections.abc import Iterator

from analyzer.base.units import in_digits
from analyzer.report.cells import bounded, labels
from analyzer.report.pictures.colours import ink_on
from analyzer.report.pictures.svg import MIDDLE, RIGHT, Drawing, mark, swatch, text, text_width
from analyzer.report.result import HeatMap

#: ColorBrewer's YlOrRd, of nine classes.
_SHADES = (
    "#ffffcc", "#ffeda0", "#fed976", "#feb24c", "#fd8d3c", "#fc4e2a", "#e31a1c", "#bd0026", "#800026",
)  # fmt: skip
_ROW, _COLUMN = 18, 48  # pixels of a cell; a cell as wide shows its value
_WIDEST_NAME = 300
_NAME = 44  # columns
#: The scale ends at this quantile of the values if the largest value is this many times as large.
_USUAL, _FAR_LARGER = 0.99, 4


def paint(chart: HeatMap, width: float) -> Drawing:
    """Draw a map with the names of its rows and columns."""
    rows = labels(chart.rows, _NAME)
    left = min(max(map(text_width, rows), default=0.0), _WIDEST_NAME) + 10
    widest = max(map(text_width, chart.columns), default=0.0) + 8
    wide = min((width - left) / max(len(chart.columns), 1), max(_COLUMN, widest))
    low, high, over = _ends(chart)
    shapes = [*_names(chart, rows, left, wide), *_cells(chart, left, wide, low, high)]
    label = f"{chart.label} (ms)" if chart.label else "ms"
    legend = [(swatch(shade), "") for shade in _SHADES]
    legend[0] = (legend[0][0], in_digits(low))
    legend[-1] = (legend[-1][0], bounded(f"{in_digits(high)}{over} {label}"))
    return Drawing(shapes, width, _ROW * len(rows) + 40, legend)


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


def _names(chart: HeatMap, rows: list[str], left: float, wide: float) -> Iterator[str]:
    for i, name in enumerate(rows):
        yield text(name, left - 6, i * _ROW + 13, look=RIGHT, room=left - 10)
    bottom = len(rows) * _ROW
    fitting = labels(chart.columns, max(4, int(wide / 6.5))) if not chart.by_step else chart.columns
    every = math.ceil((max(map(text_width, fitting), default=0.0) + 4) / wide) if chart.by_step else 1
    for i in range(0, len(fitting), every):
        yield text(bounded(fitting[i]), left + (i + 0.5) * wide, bottom + 14, look=MIDDLE)
    yield text(chart.x_label, left + len(fitting) * wide / 2, bottom + 32, look=MIDDLE)


def _cells(chart: HeatMap, left: float, wide: float, low: float, high: float) -> Iterator[str]:
    for i, (row, values) in enumerate(zip(chart.rows, chart.values, strict=True)):
        for j, (column, value) in enumerate(zip(chart.columns, values, strict=True)):
            if value is None or not math.isfinite(value):
                continue
            shade = int(len(_SHADES) * (value - low) / ((high - low) or 1.0))
            box = (left + j * wide, i * _ROW, max(wide - 0.5, 0.3), _ROW - 0.5)
            step = column if chart.by_step else None
            description = f"{bounded(row)}, {chart.x_label} {bounded(column)}: {in_digits(value)} ms"
            colour = _SHADES[min(shade, len(_SHADES) - 1)]
            yield mark(description, colour, box, step)
            if wide >= _COLUMN:
                ink = f'class="on" pointer-events="none" text-anchor="middle" fill="{ink_on(colour)}"'
                yield text(in_digits(value), left + (j + 0.5) * wide, i * _ROW + 13, look=ink)
