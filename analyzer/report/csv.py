"""CSV for spreadsheets and shell tools: the first table as comma-separated values."""

from __future__ import annotations

import csv
import math
from argparse import Namespace
from types import SimpleNamespace
from typing import TextIO

from analyzer.base.errors import AnalyzeError
from analyzer.report.result import Cell, Result


def write(result: Result, stream: TextIO, args: Namespace) -> None:
    """Print the first table: the columns' keys, then the rows; numbers in full, gaps empty.

    Names stay exact, even a name that a spreadsheet takes for a formula (``=1+1``). Raises AnalyzeError
    without a table.
    """
    if not result.files_tables:
        raise AnalyzeError(f"--format csv: {result.option} has no table here; use --format json")
    table = result.files_tables[0]
    # `csv.writer` ends rows in CR LF, so that it quotes names with CR and with LF; these rows end in LF.
    lines = SimpleNamespace(write=lambda row: stream.write(row.removesuffix("\r\n") + "\n"))
    # Python 3.10 takes a NUL in a name for the escape character if none is set; no text has this one.
    writer = csv.writer(lines, escapechar="\udfff")
    writer.writerow([column.key for column in table.columns])
    writer.writerows([_plain(cell) for cell in row] for row in table.rows)


def _plain(cell: Cell) -> Cell:
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, float):
        return repr(float(cell)) if math.isfinite(cell) else None
    return cell
