"""Tables in all output formats: a cell as text, and the width that a text takes."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from functools import lru_cache

from analyzer.base.errors import printable
from analyzer.base.units import in_digits
from analyzer.report.result import Cell, Column

NO_VALUE = "–"
ELLIPSIS = "…"


def cell_texts(column: Column, values: Sequence[Cell]) -> list[str]:
    r"""Write a column's cells for people; a gap, NaN or infinity is a dash.

    Numbers have three significant digits and at most `column.digits` decimals (`in_digits`). A text in which
    something cannot be printed shows it as an escape (``\x1b``), which keeps names from steering the
    terminal.
    """
    if column.kind in ("float", "percent"):
        return _numbers(column, values)
    if column.kind == "int":
        return [NO_VALUE if _is_gap(value) else f"{int(value):,}".replace("-", "−") for value in values]  # type: ignore[arg-type]
    if column.kind == "id":
        return [NO_VALUE if _is_gap(value) else str(value) for value in values]
    if column.kind == "bool":
        return [NO_VALUE if value is None else "yes" if value else "no" for value in values]
    return [NO_VALUE if value is None else printable(str(value)) for value in values]


def is_text(column: Column) -> bool:
    """Tell columns of words, which align left and may be shortened, from numbers."""
    return column.kind in ("text", "sentence", "bool")


def display_width(text: str) -> int:
    """Count the columns of a terminal that `text` takes: two for a wide East Asian character.

    >>> display_width("变a")
    3
    """
    if text.isascii():
        return len(text)
    return sum(map(_char_width, text))


def shorten(text: str, width: int) -> str:
    """Shorten `text` to at most `width` columns by replacing its middle with ``…``.

    >>> shorten("abcdefghij", 7)
    'abc…hij'
    """
    if len(text) * 2 <= width or display_width(text) <= width:
        return text
    head = beginning(text, (width - 1) // 2)
    tail = beginning(text[::-1], width - 1 - display_width(head))[::-1]
    return head + ELLIPSIS + tail


def _numbers(column: Column, values: Sequence[Cell]) -> list[str]:
    scale, unit = (100.0, " %") if column.kind == "percent" else (1.0, "")
    texts = []
    for value in values:
        if _is_gap(value):
            texts.append(NO_VALUE)
            continue
        number = float(value)  # type: ignore[arg-type]  # no gap: a number
        texts.append(in_digits(number * scale, column.digits) + unit)
    return texts


def _is_gap(value: Cell) -> bool:
    return value is None or (isinstance(value, float) and not math.isfinite(value))


@lru_cache(maxsize=4096)
def _char_width(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def beginning(text: str, width: int) -> str:
    """Cut `text` to its longest beginning of at most `width` columns."""
    used = 0
    for index, char in enumerate(text):
        used += _char_width(char)
        if used > width:
            return text[:index]
    return text
