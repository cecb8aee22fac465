"""Cells of tables as texts for people, and names that fit a column and can still be told apart."""

from __future__ import annotations

import functools
import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from analyzer.base.errors import printable, shortened
from analyzer.base.names import brief, without_parameters
from analyzer.base.units import in_digits, in_percent
from analyzer.report.result import Cell, Column

NO_VALUE = "–"
_MANIFOLD = 100  # times the base, which is nearly nothing then
ELLIPSIS = "…"
_FEW_SPACES = 2  # spaces in a name; sentences have more
_NARROW = 10  # columns; narrower names cannot be told apart
_OF_CODE = re.compile(r"[<:]|\w\(")
_WORDS = re.compile(r"\w+")
_WIDE = 72  # columns of a function if the width is unlimited
_OWNER = re.compile(r"(?:wk\d+\.)?(?:rank\d+\.)?")
_PATH = re.compile(r"[./]")
_SIGNATURE = 20_000  # most characters of a C++ function
IN_A_LANE = 24  # columns of a name in a timeline
_MOST = 400  # characters of a drawn text; shaping a longer text takes minutes


def cell_texts(column: Column, values: Sequence[Cell]) -> list[str]:
    r"""Write a column's cells for people; a gap, NaN or infinity is a dash.

    Numbers have three significant digits and at most `column.digits` decimals (`in_digits`). Characters that
    cannot be printed are escaped (``\x1b``), so that no name controls the terminal.
    """
    return [_cell_text(column, value) for value in values]


def _cell_text(column: Column, value: Any) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return NO_VALUE
    if column.kind == "float":
        return in_digits(value, column.digits)
    if column.kind == "percent":
        return in_percent(value, column.digits) if value < _MANIFOLD else f"> {_MANIFOLD} ×"
    if column.kind == "int":
        return f"{int(value):,}".replace("-", "−")
    if column.kind == "bool":
        return "yes" if value else "no"
    return printable(str(value))


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


@functools.lru_cache(maxsize=4096)
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


# ---- names


def short_names(names: Sequence[str], width: int) -> list[str]:
    """Shorten names to at most `width` columns of a terminal.

    Functions of C++ first lose ``void``, namespaces and parameters, then what `brief` leaves out. Then names
    lose their middle. Functions that are then alike show the words in which their templates differ; names
    that are still alike are numbered.
    """
    short = {name: _shortest(name, width) for name in names}
    for same in _alike(short):
        if all(_OF_CODE.search(name) and brief(name) != name for name in same):
            words = {name: Counter(_WORDS.findall(without_parameters(name))) for name in same}
            common = functools.reduce(Counter.__and__, words.values())
            for name, of_name in words.items():
                mark = shorten(f" [{', '.join(of_name - common)}]", width // 2) if of_name - common else ""
                short[name] = shorten(brief(name), width - display_width(mark)) + mark
    repeated = [name for same in _alike(short) for name in same[1:]] if width >= _NARROW else []
    for i, name in enumerate(repeated, start=2):
        short[name] = f"{shorten(short[name], width - len(str(i)) - 2)} #{i}"
    return [short[name] for name in names]


def _alike(short: Mapping[str, str]) -> list[list[str]]:
    alike: dict[str, list[str]] = defaultdict(list)
    for name, text in short.items():
        alike[text].append(name)
    return [same for same in alike.values() if len(same) > 1]


def with_short_functions(rows: Sequence[Sequence[Cell]]) -> Sequence[Sequence[Cell]]:
    """Shorten the functions in the rows of a table; see `short_functions`."""
    short = short_functions(cell for row in rows for cell in row)
    if not short:
        return rows
    return [[short.get(cell, cell) if isinstance(cell, str) else cell for cell in row] for row in rows]


def short_functions(texts: Iterable[object]) -> dict[str, str]:
    """Shorten the functions among some cells to at most `_WIDE` columns, no two alike.

    Paths and sentences stay long: a page can break them.
    """
    functions = []
    for text in dict.fromkeys(texts):
        if not isinstance(text, str) or (text.count(" ") > _FEW_SPACES and not _OF_CODE.search(text)):
            continue
        if brief(text) != text and not _PATH.search(_OWNER.sub("", brief(text), count=1)):
            functions.append(text)
    return dict(zip(functions, short_names(functions, _WIDE), strict=True))


def bounded(text: str, most: int = _MOST) -> str:
    """Make `text` printable and at most `most` characters long, its middle replaced by ``…``."""
    return shortened(printable(shortened(text, most)), most)


def labels(names: Sequence[str], width: int) -> list[str]:
    """Make names fit for drawings of `width` columns: short, printable, with few combining marks.

    A character may carry any number of combining ones, which take no column but have to be drawn.
    """
    printed = [bounded(name, _SIGNATURE) for name in names]
    return [bounded(name, 3 * width) for name in short_names(printed, width)]


def _shortest(name: str, width: int) -> str:
    bare = brief(name)
    for form in (name, without_parameters(name), bare):
        if display_width(form) <= width:
            return form
    if bare.count(" ") > _FEW_SPACES and "(" not in bare:  # a sentence keeps its beginning
        return beginning(bare, width - 1).rstrip() + ELLIPSIS
    return shorten(bare, width)
