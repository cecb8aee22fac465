"""Output formats of a `Result`: text, HTML, CSV, JSON, Markdown, XLSX; one module each.

A format of standard output has ``write(result, stream, args)``; a format of files has
``write(result, path)``. To add one: write its module and name it here.
"""

from __future__ import annotations

import io
import logging
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

from analyzer.base.errors import AnalyzeError, OutputError, one_line, summed_up
from analyzer.base.lazy_sequence import LazySequence
from analyzer.base.outputs.atomic import Outputs, abandon
from analyzer.base.outputs.rules import default_file
from analyzer.report.result import Result, Table

#: Values of `--format` and their modules.
FORMATS = {
    "table": "analyzer.report.text",
    "json": "analyzer.report.json",
    "csv": "analyzer.report.csv",
    "markdown": "analyzer.report.markdown",
}
#: Flags that name a file, and their modules.
FILES = {"xlsx": "analyzer.report.xlsx", "html": "analyzer.report.html"}
#: Options whose `--output` is a drawing of the first chart.
_DRAWN = ("graph", "3dcompare")
#: Suffixes of drawings and their modules.
PICTURES = {
    ".html": "analyzer.report.html",
    **dict.fromkeys((".png", ".svg", ".pdf"), "analyzer.report.pictures.plot"),
    **dict.fromkeys((".dot", ".graphml"), "analyzer.report.pictures.draw"),
}


def show(result: Result, args: Namespace, outputs: Outputs) -> None:
    """Complete the files of the command, then print `result` on standard output in the chosen format.

    Where a file cannot be written none appears; that does not keep the answer from being printed, and is
    reported after.

    Parameters
    ----------
    outputs : what was prepared so far, within its block; the formats that were asked for are added

    Raises
    ------
    OutputError
        A file, or standard output, cannot be written.
    UsageError
        A file must not be replaced, or is written twice.
    """
    result = arranged(result, args)
    summary = result._replace(repairs=summed_up(result.repairs))
    for line in summary.repairs:
        logging.warning("%s", one_line(line))
    failed = _write_files(summary, args, outputs)
    try:
        _print(result if args.format == "json" else summary, args)
    except BrokenPipeError:  # the reader (`… | head`) has enough, which is no error
        abandon(sys.stdout)
    if failed is not None:
        raise failed


def _write_files(result: Result, args: Namespace, outputs: Outputs) -> AnalyzeError | None:
    """Write the files that were asked for and complete all of `outputs`; return an error, raise none."""
    written = []
    try:
        for path, module in _wanted_files(args):
            import_module(module).write(result, path)
            written.append(path)
        outputs.commit()
    except AnalyzeError as error:
        return type(error)(f"{error}; no file was written")
    for path in written:
        logging.info("wrote %s", path)
    return None


def _wanted_files(args: Namespace) -> Iterator[tuple[Path, str]]:
    """Yield (path, module that writes it) for each file that was asked for."""
    for suffix, module in FILES.items():
        wanted = getattr(args, suffix)
        if wanted is not None:
            is_named = wanted is not True
            yield Path(wanted) if is_named else default_file(args.path[0], args.option, suffix), module
    if args.picture is not None:
        yield args.picture, "analyzer.report.pictures.plot"
    if args.option in _DRAWN and args.output is not None:
        yield args.output, PICTURES.get(args.output.suffix.lower(), "analyzer.report.pictures.plot")


def _print(result: Result, args: Namespace) -> None:
    stream: TextIO | None = sys.stdout
    if stream is None:
        raise OutputError("standard output is closed")
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")  # names may hold characters that the encoding lacks
    try:
        import_module(FORMATS[args.format]).write(result, stream, args)
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        abandon(stream)
        raise OutputError(f"standard output: cannot be written: {error.strerror or error}") from error


# ---- --sort, --head and --full: the same for the tables of every option


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
