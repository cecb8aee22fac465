"""Text for people at a terminal: figures, tables that fit the width, and notes."""

from __future__ import annotations

import os
import re
import textwrap
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import TextIO

from msgspec import Struct

from analyzer.base.errors import counted, printable
from analyzer.base.units import in_percent
from analyzer.report.cells import (
    IN_A_LANE,
    NO_VALUE,
    cell_texts,
    display_width,
    is_text,
    labels,
    short_names,
    shorten,
    with_short_functions,
)
from analyzer.report.result import Bars, Card, Cell, Column, Command, Result, Table

_HEADER = 6  # least columns of a header with long words
_SPACE = "  "
_LEGIBLE = 20  # columns of words; a narrower column is hidden
_LEAST_ROOM = 20  # columns of a figure, however long its label
_MOST_ROWS = 20  # rows of a table without `--full` and `--head`
_LEAD = r"(\d+\. )?( *)(\w+ {2,})?"  # number or label of a line; continuation lines are indented below it
_UNIT = re.compile(r"(?<=\d) (?=(?:ms|%)(?!\w))")
_BOLD, _DIM, _GOOD, _BAD, _PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[32m", "\x1b[31m", "\x1b[0m"
_WIDE = 100  # columns of a drawing if the width is unlimited
_WIDEST = 10_000  # columns: wider than all terminals
_LEAST_BARS, _FEWEST_BARS = 20, 3  # least columns of all bars in a line, and least bars
_REST = "rest"
_Style = Callable[[Iterable[str]], list[str]]


def write(result: Result, stream: TextIO, args: Namespace) -> None:
    """Print `result` for people.

    On a terminal, or where COLUMNS gives a width, tables are fitted to the width; files and pipes get names
    in full. On a terminal the headline is bold, and significant changes are red (more) or green (less). A
    table has 20 rows; `--full` or a larger `--head` shows more. `--quiet` leaves out the title.
    """
    width = _width(stream)
    colour = stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    blocks = _blocks(result, width, most_rows(args), quiet=args.quiet, colour=colour)
    stream.write("\n".join("".join(f"{line}\n" for line in block) for block in blocks if any(block)))


def _blocks(
    result: Result, width: int | None, n_rows: int | None, *, quiet: bool, colour: bool
) -> Iterator[list[str]]:
    """Yield the lines of each part of the answer."""
    bold, dim = (partial(_styled, style) if colour else list for style in (_BOLD, _DIM))
    if width is not None and n_rows is not None and len(result.cards) > 1:
        more = f"--full says why and what to do for {counted(len(result.cards) - 1, 'more finding')}."
        result = result._replace(cards=result.cards[:1], notes=[more, *result.notes])
    title = "" if quiet or result.headline else result.title
    headline, further, heading = (
        [*_wrapped(filter(None, [text]), width)] for text in (result.headline, result.further, title)
    )
    yield [*bold(headline), *further]
    yield heading
    yield from (_shares(chart, width) for chart in result.charts[:1] if isinstance(chart, Bars))
    yield [*_figures(result.figures, width)]
    tables = shown_tables(result)
    for table in tables:
        yield [*_table(table, width, n_rows, headed=len(tables) > 1, colour=colour)]
    for number, card in enumerate(result.cards, 1):
        yield _card(card, number, width, bold)
    asked = [Command(f"next: {text}") for text in result.commands if width is not None and not quiet]
    notes, last = [*_wrapped(result.sentences, width)], dim(_wrapped(asked, width))
    yield from [[*dim(notes), *last]] if result.cards else [notes, last]


def _styled(style: str, lines: Iterable[str]) -> list[str]:
    return [f"{style}{line}{_PLAIN}" for line in lines]


def _shares(chart: Bars, width: int | None) -> list[str]:
    """Write a single stacked bar as one line, and its legend; without room its last parts are joined."""
    if len(chart.names) > 1:
        return []
    short = labels([*chart.series], IN_A_LANE)
    values = {name: value or 0.0 for name, (value,) in zip(short, chart.series.values(), strict=True)}
    whole = sum(values.values()) or 1.0
    while True:
        words = {name: in_percent(value / whole) for name, value in values.items()}
        room = (width or _WIDE) - sum(len(name) + len(words[name]) + 5 for name in values)
        if room >= _LEAST_BARS or len(values) <= _FEWEST_BARS:
            break
        least = [name for name in values if name != _REST][-1]
        values[_REST] = values.pop(least) + values.pop(_REST, 0.0)
    parts = [f"{name} {_bar(value / whole, room)} {words[name]}" for name, value in values.items()]
    legend = chart.label.partition("; ")[2]
    return ["  ".join(map(printable, parts)), *filter(None, [legend])]


def _card(card: Card, number: int, width: int | None, bold: _Style) -> list[str]:
    lines = [*_wrapped(card.texts(number), width)]
    title = f"{number}. {card.title}"
    if lines[0].startswith(title):
        lines[0] = "".join(bold([title])) + lines[0][len(title) :]
    return lines


def _width(stream: TextIO) -> int | None:
    """Measure the terminal; None if the width is unlimited."""
    if not stream.isatty() and not os.environ.get("COLUMNS"):
        return None
    import shutil

    return min(max(shutil.get_terminal_size().columns, 20), _WIDEST)


def _figures(figures: Sequence[tuple[str, str]], width: int | None) -> Iterator[str]:
    widest = max((display_width(label) for label, _ in figures), default=0)
    for label, value in figures:
        head = f"{printable(label)}{' ' * (widest - display_width(label))}  "
        room = 0 if width is None else max(width - len(head), _LEAST_ROOM)
        lines = _wrapped([value], room) if room and display_width(value) > room else [printable(value)]
        for line in lines:
            yield head + line
            head = " " * len(head)


def _wrapped(sentences: Iterable[str], width: int | None) -> Iterator[str]:
    for sentence in sentences:
        text = printable(sentence)
        if width is None or isinstance(sentence, Command):
            yield text  # unbroken, so that it can be copied as one line
        else:
            lead = re.match(_LEAD, text)
            indent = " " * (lead.end() if lead else 0)
            whole = _UNIT.sub("\0", text)  # a number stays with its unit
            lines = textwrap.wrap(
                whole, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
            )
            yield from (line.replace("\0", " ") for line in lines)


class _Part(Struct):
    """A column being laid out: its cells as text, its header as lines, and its width."""

    column: Column
    header: list[str]
    cells: list[str]
    width: int


def _table(
    table: Table, width: int | None, n_rows: int | None, *, headed: bool, colour: bool
) -> Iterator[str]:
    if headed or not table.rows:
        yield printable(table.title)
    if not table.rows:
        yield "  (no rows)"
    else:
        rows = table.rows[:n_rows]
        rows = with_short_functions(rows) if width is None else rows
        parts, left_out = _laid_out(table.columns, rows, is_tall=width is not None), list[_Part]()
        if width is not None:
            parts, left_out = _fitted(parts, width)
        yield from _lines(parts, _colours(table, rows) if colour else {})
        if len(rows) < len(table.rows):
            yield f"the first {len(rows)} of {len(table.rows):,} rows; --full shows all"
        if left_out:
            names = ", ".join(part.column.title for part in left_out)
            yield from _wrapped([f"Hidden to fit the terminal: {names}."], width)
    if table.note:
        yield from _wrapped([table.note], width)


def _bar(share: float, width: int) -> str:
    """Draw a bar for a share of `width` columns, to an eighth of a column."""
    full, eighths = divmod(round(share * max(width, 0) * 8), 8)
    return "█" * full + " ▏▎▍▌▋▊▉"[eighths].strip()


def most_rows(args: Namespace) -> int | None:
    """Choose the maximum rows of a printed table; None for all."""
    return None if args.full else max(args.head or 0, _MOST_ROWS)


def shown_tables(result: Result) -> list[Table]:
    """Choose the tables for standard output."""
    return [table for table in result.tables if not table.detail]


def _laid_out(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], *, is_tall: bool) -> list[_Part]:
    """Lay out the columns; headers take one line or, if `is_tall`, as many as make columns narrow."""
    parts = []
    for column, values in zip(columns, zip(*rows, strict=True), strict=True):
        cells = cell_texts(column, values)
        if column.kind == "float":  # decimal points stand below each other
            decimals = [len(cell) - cell.find(".") if "." in cell else 0 for cell in cells]
            cells = [cell + " " * (max(decimals) - n) for cell, n in zip(cells, decimals, strict=True)]
        widest = max(map(display_width, cells))
        title = printable(column.title)
        header = _stacked(title, widest) if is_tall else [title]
        parts.append(_Part(column, header, cells, max(widest, *map(display_width, header))))
    return parts


def _stacked(title: str, width: int) -> list[str]:
    """Put the words of a header below each other."""
    return textwrap.wrap(title, max(width, _HEADER), break_long_words=False, break_on_hyphens=False) or [""]


def _fitted(parts: list[_Part], width: int) -> tuple[list[_Part], list[_Part]]:
    """Fit columns into `width` by shortening words; return also the columns left out.

    Empty columns go first, unmentioned, then those to the right; the first column stays.
    """
    parts = [part for i, part in enumerate(parts) if i == 0 or not {"", NO_VALUE}.issuperset(part.cells)]
    left_out: list[_Part] = []
    while True:
        texts = [part for part in parts if is_text(part.column)]
        between = len(_SPACE) * (len(parts) - 1)
        least = sum(min(part.width, _LEGIBLE) if is_text(part.column) else part.width for part in parts)
        if len(parts) == 1 or least + between <= width:
            break
        left_out.insert(0, parts.pop())
    room = width - between - sum(part.width for part in parts if not is_text(part.column))
    cap = max(_even_share([part.width for part in texts], room), 1)
    for part in texts:
        part.width = min(part.width, cap)
        if part.column.kind == "sentence":
            wrapped = [textwrap.wrap(cell, part.width) for cell in part.cells]
            part.cells = ["\n".join(shorten(line, part.width) for line in lines) for lines in wrapped]
        else:
            part.cells = short_names(part.cells, part.width)
        part.header = [
            shorten(line, part.width) for line in _stacked(printable(part.column.title), part.width)
        ]
        lines = [line for cell in part.cells for line in cell.split("\n")]
        part.width = max(map(display_width, [*lines, *part.header]))
    rows = zip(*([cell.split("\n") for cell in part.cells] for part in parts), strict=True)
    lines_of_rows = [line for row in rows for line in zip_longest(*row, fillvalue="")]
    for part, cells in zip(parts, zip(*lines_of_rows, strict=True), strict=True):
        part.cells = list(cells)
    return parts, left_out


def _even_share(widths: Sequence[int], room: int) -> int:
    """Find the largest cap at which `widths`, each cut to it, fit into `room`."""
    for taken, width in enumerate(sorted(widths)):
        share = room // (len(widths) - taken)
        if width > share:
            return share
        room -= width
    return max(widths, default=0)


def _colours(table: Table, rows: Sequence[Sequence[Cell]]) -> dict[str, list[str]]:
    """Choose the colours of each column of changes, by its key; only significant rows have one."""
    certain = table.certain_at

    def colour_of(row: Sequence[Cell], change: Cell) -> str:
        is_certain = certain is None or row[certain] is True
        if not is_certain or not isinstance(change, int | float) or not change:
            return ""
        return _BAD if change > 0 else _GOOD

    return {
        column.key: [colour_of(row, row[i]) for row in rows]
        for i, column in enumerate(table.columns)
        if column.scale == "diverging"
    }


def _lines(parts: Sequence[_Part], colours: Mapping[str, Sequence[str]]) -> Iterator[str]:
    tall = max(len(part.header) for part in parts)
    headers = [_aligned(part, [""] * (tall - len(part.header)) + part.header) for part in parts]
    columns = [_aligned(part, part.cells) for part in parts]
    for i, part in enumerate(parts):
        if shades := colours.get(part.column.key):
            pairs = zip(columns[i], shades, strict=True)
            columns[i] = [f"{colour}{cell}{_PLAIN}" if colour else cell for cell, colour in pairs]
    yield from (_SPACE.join(row).rstrip() for row in zip(*headers, strict=True))
    yield _SPACE.join("─" * part.width for part in parts)
    yield from (_SPACE.join(row).rstrip() for row in zip(*columns, strict=True))


def _aligned(part: _Part, texts: Sequence[str]) -> list[str]:
    """Pad texts to the column's width: words on the right, numbers on the left."""
    pairs = [(text, " " * (part.width - display_width(text))) for text in texts]
    return [text + blank if is_text(part.column) else blank + text for text, blank in pairs]
