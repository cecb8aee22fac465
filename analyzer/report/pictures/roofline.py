"""The painter of a roofline: rates by FLOP/byte on logarithmic axes, under the peaks of a device."""

from __future__ import annotations

import math
from collections.abc import Iterator

from analyzer.base.units import in_digits
from analyzer.report.cells import bounded
from analyzer.report.pictures import colours
from analyzer.report.pictures.svg import HEIGHT, MIDDLE, RIGHT, Drawing, line, mark, swatch, text
from analyzer.report.result import Roofline

_LEFT, _TOP, _DOT = 60, 14, 10  # pixels


def paint(chart: Roofline, width: float) -> Drawing:
    """Draw each kind as a mark; rates cannot lie above the lines of memory and peaks."""
    shades = colours.assign(name for name, _, _ in chart.points)
    legend = [(swatch(shade), bounded(name)) for name, shade in shades.items()]
    return Drawing(list(_shapes(chart, shades, width)), width, HEIGHT + 40, legend)


def _shapes(chart: Roofline, shades: dict[str, str], width: float) -> Iterator[str]:
    """Yield axes, roofs, and marks."""
    ridges = [peak / chart.slope for _, peak in chart.roofs]
    left, right = _decades([*(x for _, x, _ in chart.points), *ridges])
    low, high = _decades([*(y for *_, y in chart.points), *(peak for _, peak in chart.roofs)])

    def place(x: float, y: float) -> tuple[float, float]:
        across, up = (math.log10(x) - left) / (right - left), (math.log10(y) - low) / (high - low)
        return _LEFT + across * (width - _LEFT - 20), HEIGHT - up * (HEIGHT - _TOP)

    for power in range(left, right + 1):
        yield line(*place(10.0**power, 10.0**low), *place(10.0**power, 10.0**high), "grid")
        yield text(f"{10.0**power:,g}", place(10.0**power, 1)[0], HEIGHT + 14, look=MIDDLE)
    for power in range(low, high + 1):
        yield line(*place(10.0**left, 10.0**power), *place(10.0**right, 10.0**power), "grid")
        yield text(f"{10.0**power:,g}", _LEFT - 6, place(1, 10.0**power)[1] + 4, look=RIGHT)
    yield text("FLOP/byte", (_LEFT + width) / 2, HEIGHT + 32, look=MIDDLE)
    yield text("TFLOP/s", 0, 8)
    highest = max(peak for _, peak in chart.roofs)
    start = max(10.0**left, 10.0**low / chart.slope)
    yield line(*place(start, start * chart.slope), *place(highest / chart.slope, highest), "rule")
    for (name, peak), ridge in zip(chart.roofs, ridges, strict=True):
        yield line(*place(ridge, peak), *place(10.0**right, peak), "rule")
        yield text(f"{name} {in_digits(peak)}", width - 22, place(1, peak)[1] - 5, look=RIGHT)
    for name, x, y in chart.points:
        across, down = place(x, y)
        label = f"{bounded(name)}: {in_digits(y)} TFLOP/s at {in_digits(x)} FLOP/byte"
        yield mark(label, shades[name], (across - _DOT / 2, down - _DOT / 2, _DOT, _DOT))


def _decades(values: list[float]) -> tuple[int, int]:
    """Choose the powers of ten that enclose positive values."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)
