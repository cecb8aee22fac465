"""Cells of tables as texts for people, and names that fit a column and can still be told apart."""

from __future__ import annotations

import functools
import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from analyzer.base.errors import printable
from analyzer.base.names import brief, without_parameters
from analyzer.base.units import in_digits
from analyzer.report.result import Cell, Column

NO_VALUE = "–"
ELLIPSIS = "…"
_FEW_SPACES = 2  # spaces in a name; sentences have more
_NARROW = 10  # columns; narrower names cannot be told apart
_OF_CODE = re.compile(r"[<:]|\w\(")
_WORDS = re.compile(r"\w+")
_WIDE = 72  # columns of a function where the width is unlimited
_OWNER = re.compile(r"(?:wk\d+\.)?(?:rank\d+\.)?")
_PATH = re.compile(r"[./]")
_SIGNATURE = 20_000  # characters of a C++ function at most
IN_A_LANE = 24  # columns of a name in a timeline
_MOST = 400  # characters of a drawn text; shaping a longer one takes minutes


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
    lose their middle. Where that leaves two alike, functions show in which words of their templates they
    differ; what is still alike is numbered.
    """
    short = {name: _shortest(name, width) for name in names}
    for same in _alike(short):
        if all(_OF_CODE.search(name) and brief(name) != name for name in same):
            short.update(zip(same, _with_arguments(same, width), strict=True))
    still = [name for same in _alike(short) for name in same[1:]] if width >= _NARROW else []
    for i, name in enumerate(still, start=2):
        short[name] = f"{shorten(short[name], width - len(str(i)) - 2)} #{i}"
    return [short[name] for name in names]


def _alike(short: Mapping[str, str]) -> list[list[str]]:
    alike: dict[str, list[str]] = defaultdict(list)
    for name, text in short.items():
        alike[text].append(name)
    return [same for same in alike.values() if len(same) > 1]


def _with_arguments(names: list[str], width: int) -> list[str]:
    """Tell functions apart that are alike when cut: by the words in which their templates differ."""
    words = [Counter(_WORDS.findall(without_parameters(name))) for name in names]
    common = functools.reduce(Counter.__and__, words)
    apart = []
    for name, of_name in zip(names, words, strict=True):
        mark = shorten(f" [{', '.join(of_name - common)}]", width // 2) if of_name - common else ""
        apart.append(shorten(brief(name), width - display_width(mark)) + mark)
    return apart


def with_short_functions(rows: Sequence[Sequence[Cell]]) -> Sequence[Sequence[Cell]]:
    """Shorten the functions in the rows of a table; see `short_functions`."""
    short = short_functions(cell for row in rows for cell in row)
    if not short:
        return rows
    return [[short.get(cell, cell) if isinstance(cell, str) else cell for cell in row] for row in rows]


def short_functions(texts: Iterable[object]) -> dict[str, str]:
    """Shorten the functions among some cells to at most `_WIDE` columns, no two alike.

    Other long ones stay: paths and sentences, which a page can break.
    """
    words = (text for text in dict.fromkeys(texts) if isinstance(text, str) and not _is_sentence(text))
    long_ones = (text for text in words if brief(text) != text)
    functions = [text for text in long_ones if not _PATH.search(_OWNER.sub("", brief(text), count=1))]
    return dict(zip(functions, short_names(functions, _WIDE), strict=True))


def _is_sentence(text: str) -> bool:
    return text.count(" ") > _FEW_SPACES and not _OF_CODE.search(text)


def bounded(text: str, most: int = _MOST) -> str:
    """Make `text` printable and at most `most` characters long, its middle replaced by ``…``."""
    text = printable(text if len(text) <= most else text[: most // 2] + ELLIPSIS + text[-most // 2 :])
    return text if len(text) <= most else text[: most // 2] + ELLIPSIS + text[1 - most // 2 :]


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
    if bare.count(" ") > _FEW_SPACES and "(" not in bare:  # a sentence is best known by its beginning
        return beginning(bare, width - 1).rstrip() + ELLIPSIS
    return shorten(bare, width)
