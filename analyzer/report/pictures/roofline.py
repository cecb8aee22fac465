"""The painter of a roofline: rates by FLOP/byte on logarithmic axes, under the peaks of a device."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from analyzer.base.units import in_digits
from analyzer.report.cells import bounded
from analyzer.report.pictures import colours
from analyzer.report.pictures.svg import HEIGHT, MIDDLE, RIGHT, Drawing, line, mark, swatch, text
from analyzer.report.result import Roofline

_LEFT, _TOP, _DOT = 60, 14, 10  # pixels


def paint(chart: Roofline, width: float) -> Drawing:
    """Draw a mark for each kind of work, and lines for the memory and the peaks."""
    shades = colours.assign(name for name, _, _ in chart.points)
    legend = [(swatch(shade), bounded(name)) for name, shade in shades.items()]
    return Drawing(list(_shapes(chart, shades, width)), width, HEIGHT + 40, legend)


def _shapes(chart: Roofline, shades: Mapping[str, str], width: float) -> Iterator[str]:
    ends = [(peak / chart.slope, peak) for _, peak in chart.roofs]
    columns = _powers([*(x for _, x, _ in chart.points), *(x for x, _ in ends)])
    rows = _powers([*(y for *_, y in chart.points), *(y for _, y in ends)])
    left, right, low, high = columns[0], columns[-1], rows[0], rows[-1]

    def point(x: float, y: float) -> tuple[float, float]:
        across, up = math.log(x / left) / math.log(right / left), math.log(y / low) / math.log(high / low)
        return _LEFT + across * (width - _LEFT - 20), HEIGHT - up * (HEIGHT - _TOP)

    for x in columns:
        yield line(*point(x, low), *point(x, high), "grid")
        yield text(f"{x:,g}", point(x, low)[0], HEIGHT + 14, look=MIDDLE)
    for y in rows:
        yield line(*point(left, y), *point(right, y), "grid")
        yield text(f"{y:,g}", _LEFT - 6, point(left, y)[1] + 4, look=RIGHT)
    yield text("FLOP/byte", (_LEFT + width) / 2, HEIGHT + 32, look=MIDDLE)
    yield text("TFLOP/s", 0, 8)
    start = max(left, low / chart.slope)
    yield line(*point(start, start * chart.slope), *point(*max(ends)), "rule")
    for (name, peak), end in zip(chart.roofs, ends, strict=True):
        yield line(*point(*end), *point(right, peak), "rule")
        yield text(f"{name} {in_digits(peak)}", width - 22, point(right, peak)[1] - 5, look=RIGHT)
    for name, x, y in chart.points:
        label = f"{bounded(name)}: {in_digits(y)} TFLOP/s at {in_digits(x)} FLOP/byte"
        yield mark(label, shades[name], (*(side - _DOT / 2 for side in point(x, y)), _DOT, _DOT))


def _powers(values: list[float]) -> list[float]:
    """List the powers of ten that enclose positive values."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return [10.0**power for power in range(low, max(high, low + 1) + 1)]
