"""Output formats of a `Result`: text, HTML, CSV, JSON, Markdown, XLSX; one module each.

A format of standard output has ``write(result, stream, args)``; a format of files has
``write(result, path)``. To add one: write its module, and name it in `FORMATS` or `FILES`.
"""

from __future__ import annotations

import io
import logging
import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

from analyzer.base.errors import AnalyzeError, OutputError, one_line, summed_up
from analyzer.base.outputs.atomic import Outputs, abandon, default_file
from analyzer.base.units import LazySequence
from analyzer.report import FORMATS, PARQUET
from analyzer.report.result import Result, Table

#: Flags that name a file, and their modules.
FILES = {"xlsx": "analyzer.report.xlsx", "html": "analyzer.report.html", PARQUET: FORMATS[PARQUET]}
#: Options whose `--output` is a drawing of the first chart.
_DRAWN = ("graph", "3dcompare")
#: The module of stills, and suffixes of other drawings with their modules.
_STILLS, _GRAPHS = "analyzer.report.pictures.plot", "analyzer.report.pictures.draw"
_DRAWINGS = {".html": FILES["html"], ".dot": _GRAPHS, ".graphml": _GRAPHS}


def show(result: Result, args: Namespace, outputs: Outputs) -> Result:
    """Write the files of the command, then print `result` on standard output in the chosen format.

    `outputs` holds the files prepared so far. If one file cannot be written, none appears; the answer is
    printed all the same, before the error is raised. Raises OutputError and UsageError.
    """
    result = arranged(result, args)
    summary = result._replace(repairs=summed_up(result.repairs))
    failure = None
    try:
        write_files(summary, args, outputs)
    except AnalyzeError as error:
        failure = type(error)(f"{error}; no file was written")
    try:
        if args.format != PARQUET:
            _print(result if args.format == "json" else summary, args)
    except BrokenPipeError:  # the reader (`… | head`) has enough, which is no error
        abandon(sys.stdout)
    for line in summary.repairs:
        logging.warning("%s", one_line(line))
    if failure is not None:
        raise failure
    if args.open:
        _open(next(path for path, module in _wanted_files(args) if module == FILES["html"]))
    return result


def write_files(result: Result, args: Namespace, outputs: Outputs) -> Result:
    """Write the files that flags name, and let all files of the command appear."""
    files = list(_wanted_files(args))
    for path, module in files:
        import_module(module).write(result, path)
    outputs.commit()
    for path, _ in files:
        logging.info("wrote %s", path)
    return result


def _wanted_files(args: Namespace) -> Iterator[tuple[Path, str]]:
    """Yield (path, module that writes it) for each requested file."""
    for suffix, module in FILES.items():
        wanted = getattr(args, suffix)
        if wanted is not None:
            is_named = wanted is not True
            yield Path(wanted) if is_named else default_file(args.path[0], args.option, suffix), module
    if args.picture is not None:
        yield args.picture, _STILLS
    if args.option in _DRAWN and args.output is not None:
        yield args.output, _DRAWINGS.get(args.output.suffix.lower(), _STILLS)


def _open(page: Path) -> None:
    """Open a page in a browser; without a display, a browser would take the terminal."""
    import webbrowser

    is_shown = sys.platform != "linux" or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")))
    if not (is_shown and webbrowser.open(page.resolve().as_uri())):
        logging.warning("--open: there is no display here; open %s in a browser elsewhere", page)


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
    tables = [_rows(table, args) for table in result.tables]
    tables = [t if t.full in (None, args.full) else t._replace(detail=True) for t in tables]
    return result._replace(tables=tables, document=_document(result.document, args))


def _rows(table: Table, args: Namespace) -> Table:
    """Sort the rows by the table's `order` with `--sort` or `--brief`, and keep the first `--head`."""
    if (args.sort or args.brief) and table.order:
        rows = sorted(range(len(table.rows)), key=table.order.__getitem__)
        about = [table.about[row] for row in rows] if table.about else ()
        table = table._replace(rows=LazySequence(rows, table.rows.__getitem__), about=about, order=())
    return table.first(args.head)


def _document(value: Any, args: Namespace) -> Any:
    """Replace each table of a document by its rows as JSON objects."""
    if isinstance(value, Table):
        return _rows(value, args).objects
    if isinstance(value, Mapping):
        return {key: _document(item, args) for key, item in value.items()}
    if isinstance(value, list):
        return [_document(item, args) if isinstance(item, Mapping) else item for item in value]
    return value
