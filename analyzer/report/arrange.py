"""`--sort`, `--head` and `--full`: which rows and tables are shown, for every option alike."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from analyzer.base.lazy_sequence import LazySequence
from analyzer.report.result import Result, Table


def arranged(result: Result, args: Namespace) -> Result:
    """Sort and cut the tables of a result and of its document, and choose those for standard output."""
    return result._replace(
        tables=[chosen(_rows(table, args), full=args.full) for table in result.tables],
        document=_document(result.document, args),
    )


def ordered(table: Table) -> Table:
    """Sort the rows by the table's `order`, the least first; without one they stay."""
    if not table.order:
        return table
    places = sorted(range(len(table.rows)), key=table.order.__getitem__)
    about = [table.about[row] for row in places] if table.about else ()
    return table._replace(rows=LazySequence(places, table.rows.__getitem__), about=about, order=())


def chosen(table: Table, *, full: bool) -> Table:
    """Keep a table for the other kind of answer, with `--full` or without, from standard output."""
    return table if table.full in (None, full) else table._replace(detail=True)


def _rows(table: Table, args: Namespace) -> Table:
    return (ordered(table) if args.sort else table).first(args.head)


def _document(value: Any, args: Namespace) -> Any:
    """Replace each table of a document by its rows as JSON objects."""
    if isinstance(value, Table):
        return _rows(value, args).records()
    if isinstance(value, Mapping):
        return {key: _document(item, args) for key, item in value.items()}
    if isinstance(value, list):
        return [_document(item, args) if isinstance(item, Mapping) else item for item in value]
    return value
