"""Parts that all drawings share: texts, marks, ticks, heading and legend, as SVG of shapes and texts only."""

from __future__ import annotations

import html
import math
import re
import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from analyzer.report.cells import bounded, display_width
from analyzer.report.pictures.colours import FONT, INK, SOFT

#: Pixels: width of a drawing, width of one that shares a row, height of upright bars.
WIDTH, SMALL, HEIGHT = 860, 560, 260
#: Styles of a text: minor, centred; and to the left of a mark.
MIDDLE, RIGHT = f'class="soft" fill="{SOFT}" text-anchor="middle"', f'fill="{INK}" text-anchor="end"'
_MARGIN = 16
_TEXT, _TITLE = 11, 15  # font sizes
_EM = 0.58  # mean width of a character, in font sizes
_MOST_LEGEND = 12  # entries; marks of other series show their names under the pointer
_ILLEGAL_XML = "[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"


class Drawing(NamedTuple):
    """The shapes of a chart, from (0, 0) to the right and down, and its legend."""

    shapes: Sequence[str]
    width: float
    height: float
    legend: Sequence[tuple[str, str]] = ()  # a symbol of 14 by 12 pixels, and its words


def picture(drawing: Drawing, heading: Sequence[str] = ()) -> tuple[str, int]:
    """Put a heading and the legend above a drawing; with a heading it is a still, on white.

    Return the whole SVG and the number of its pixels.
    """
    head, top = _head(heading, drawing.width)
    if drawing.legend:
        symbols, lower = _legend(drawing.legend, drawing.width, top)
        head, top = [*head, *symbols], lower
    margin = _MARGIN if heading else 2
    width, height = round(drawing.width + 2 * margin), round(drawing.height + top + 2 * margin)
    area = f'width="{width}" height="{height}"'
    look = f'{area} viewBox="0 0 {width} {height}" font-family="{FONT}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {look}>',
        *([f'<rect {area} fill="white"/>'] if heading else []),
        f'<g transform="translate({margin},{margin})">',
        *head,
        f'<g transform="translate(0,{top:g})">',
        *drawing.shapes,
        "</g></g></svg>",
    ]
    return "\n".join(lines), width * height


def _head(heading: Sequence[str], width: float) -> tuple[list[str], float]:
    """Draw the lines of a heading, the first large; return the shapes and their height."""
    parts, y = [], 0.0
    for i, words in enumerate(filter(None, heading)):
        size, look = (_TEXT, f'fill="{SOFT}"') if i else (_TITLE, f'font-weight="bold" fill="{INK}"')
        for line in textwrap.wrap(bounded(words), max(20, int(width / (size * _EM))))[:4]:
            y += size * 1.45
            parts.append(text(line, 0, y, size, look, room=width))
    return parts, y + 10 if parts else 0.0


def _legend(entries: Sequence[tuple[str, str]], width: float, top: float) -> tuple[list[str], float]:
    """Draw symbols with their words in rows; return the shapes and their lower edge."""
    parts, x = [], 0.0
    for symbol, words in entries[:_MOST_LEGEND]:
        wide = 38 + text_width(words) if words else 13.0
        if x and x + wide > width:
            x, top = 0.0, top + 18
        parts.append(f'<g transform="translate({x:g},{top:g})">{symbol}{text(words, 18, 10)}</g>')
        x += wide
    return parts, top + 26


def swatch(colour: str) -> str:
    """Draw a colour for the legend."""
    return f'<rect width="12" height="12" fill="{colour}"/>'


def text(
    words: str, x: float, y: float, size: float = _TEXT, look: str = f'fill="{INK}"', *, room: float = 0
) -> str:
    """Draw a text; a text estimated wider than `room` is squeezed."""
    squeezed = ""
    if 0 < room < text_width(words, size):
        squeezed = f' textLength="{room:g}" lengthAdjust="spacingAndGlyphs"'
    return f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" {look}{squeezed}>{escaped(words)}</text>'


def text_width(words: str, size: float = _TEXT) -> float:
    """Estimate the pixels of a text; capitals are wider than the average."""
    return (display_width(words) + 0.25 * sum(map(str.isupper, words))) * size * _EM


def mark(label: str, colour: str, box: Sequence[float], step: str | None = None) -> str:
    """Draw a rectangle (x, y, width, height) with its label and its step."""
    of_step = "" if step is None else f' data-step="{escaped(bounded(step))}"'
    role = f'role="graphics-symbol" aria-label="{escaped(label)}"{of_step}'
    x, y, width, height = (f"{side:.2f}" for side in box)
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{colour}" {role}/>'


def line(x0: float, y0: float, x1: float, y1: float, kind: str) -> str:
    """Draw a line: of the grid, or over marks (`rule`)."""
    look = {"grid": 'stroke="#e1e5ea"', "rule": f'stroke="{INK}" stroke-width="2"'}[kind]
    return f'<path class="{kind}" d="M{x0:.2f} {y0:.2f}L{x1:.2f} {y1:.2f}" {look}/>'


def ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Choose at most about six round values that enclose `low` to `high`, with their labels.

    >>> ticks(0, 12)
    [(0.0, '0'), (2.0, '2'), (4.0, '4'), (6.0, '6'), (8.0, '8'), (10.0, '10'), (12.0, '12')]
    """
    least = (high - low) / 6 or 1.0
    power = 10.0 ** math.floor(math.log10(least))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * 0.999)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    above = max(high, low + step)  # an axis has a length
    values = [i * step for i in range(math.floor(low / step + 1e-9), math.ceil(above / step - 1e-9) + 1)]
    return [(value, f"{value:,.{decimals}f}".replace("-", "−")) for value in values]


def escaped(words: str) -> str:
    """Escape a text for XML."""
    return html.escape(legal(words))


def legal(words: str) -> str:
    """Replace the characters that XML cannot hold."""
    return re.sub(_ILLEGAL_XML, "\ufffd", words)
