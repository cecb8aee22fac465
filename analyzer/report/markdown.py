"""Markdown for a chat or a pull request: the headline, the tables and the findings."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Iterable, Iterator
from typing import TextIO

from analyzer.base.errors import printable
from analyzer.report.cells import NO_VALUE, cell_texts, is_text, with_short_functions
from analyzer.report.result import Card, Command, Result, Table
from analyzer.report.text import most_rows, shown_tables

#: Characters with a meaning in Markdown or HTML; an underscore only at the edge of a word.
_SPECIAL = re.compile(r"[\\`*<\[|]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


def write(result: Result, stream: TextIO, args: Namespace) -> None:
    """Print `result` in GitHub's Markdown; of each table as many rows as on a terminal."""
    tables, n_rows = shown_tables(result), most_rows(args)
    parts = [
        [f"**{_escaped(result.headline or result.title)}**"],
        [_escaped(result.further)] if result.further else [],
        [f"- {_escaped(label)}: {_escaped(value)}" for label, value in result.figures],
        *(
            [*([_escaped(table.title), ""] if len(tables) > 1 else []), *_rows(table, n_rows)]
            for table in tables
        ),
        [line for number, card in enumerate(result.cards, 1) for line in _item(card, number)],
        [_escaped(note) for note in result.sentences],
        [f"- `{printable(text)}`" for text in result.commands],
    ]
    stream.write("\n\n".join("\n".join(part) for part in parts if part) + "\n")


def _rows(table: Table, n_rows: int | None) -> Iterator[str]:
    """Yield the lines of a table; a column without a value in any row is left out."""
    rows = with_short_functions(table.rows[:n_rows])
    texts = [(column, cell_texts(column, [row[i] for row in rows])) for i, column in enumerate(table.columns)]
    texts = [(column, cells) for column, cells in texts if not {"", NO_VALUE}.issuperset(cells)]
    yield _line(column.title for column, _ in texts)
    yield f"| {' | '.join('---' if is_text(column) else '---:' for column, _ in texts)} |"
    yield from (_line(row) for row in zip(*(cells for _, cells in texts), strict=True))
    if len(rows) < len(table.rows):
        yield f"\n{len(rows)} of {len(table.rows):,} rows; --full shows all"
    if table.note:
        yield f"\n{_escaped(table.note)}"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(map(_escaped, cells))} |"


def _item(card: Card, number: int) -> Iterator[str]:
    yield f"{number}. **{_escaped(card.title)}**{f' {_escaped(card.figure)}' if card.figure else ''}"
    for label, text in card.lines:
        shown = f"`{printable(text)}`" if isinstance(text, Command) else _escaped(text)
        yield f"   - {f'{label}: ' if label else ''}{shown}"


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\g<0>", printable(text))
