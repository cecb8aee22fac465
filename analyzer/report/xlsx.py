"""XLSX for spreadsheet programs: a workbook with a summary and a sheet for each table."""

from __future__ import annotations

import io
import logging
import math
from pathlib import Path
from typing import Any

from analyzer.base.errors import PROGRAM, OutputError, printable
from analyzer.base.outputs.atomic import open_output, temporary_directory
from analyzer.report.cells import cell_texts, display_width, is_text, shorten
from analyzer.report.result import Cell, Column, Result, Table

#: Limits of the file format.
ROWS_A_SHEET = 1_048_576
_CELL_CHARACTERS = 32_767
_NAME_CHARACTERS = 31
_NOT_IN_NAMES = str.maketrans("[]:*?/\\", "()-----")
_EXACT_INTEGERS = 2**53

_WIDTH_SAMPLE = 1000  # rows that decide the width of a column
_WIDEST = 60
_TITLE_LINE, _TITLE_CHARACTERS = 20, 85  # points of a line of the title, and characters in it
_SUMMARY, _SUMMARY_WIDTH = "Summary", (28, 100)  # in characters, of its two columns
#: The colours of changes: good below 0, bad above.
_BY_CHANGE = {
    "type": "3_color_scale", "mid_type": "num", "mid_value": 0,
    "min_color": "#63BE7B", "mid_color": "#FFFFFF", "max_color": "#F8696B",
}  # fmt: skip


def write(result: Result, path: Path) -> None:
    """Write a summary and every table of `result` to the workbook `path`, whole or not at all.

    Rows beyond a sheet's limit are left out and texts beyond a cell's limit are cut, with a warning. Text
    stays text, whatever it looks like. Raises OutputError.
    """
    from xlsxwriter.exceptions import XlsxWriterException

    packed = io.BytesIO()  # the zip writer fails badly on a full disk
    try:
        with open_output(path) as stream:
            cells_cut = _fill(packed, result)
            stream.write(packed.getbuffer())
    except XlsxWriterException as error:  # how it reports an OSError
        raise OutputError(f"{path}: cannot be written: {error}") from error
    if cells_cut:
        logging.warning("%s: texts cut to %d characters: %d", path, _CELL_CHARACTERS, cells_cut)


def _fill(packed: io.BytesIO, result: Result) -> int:
    """Write the workbook row by row; count the texts that were cut."""
    from xlsxwriter import Workbook

    n_cut, taken = 0, {_SUMMARY.casefold()}
    with temporary_directory() as scratch:
        options = {"constant_memory": True, "tmpdir": str(scratch)}
        with Workbook(packed, options) as workbook:
            _write_summary(workbook, result)
            for table in result.files_tables:
                sheet = workbook.add_worksheet(sheet_name(table.name, taken))
                if left_out := max(len(table.rows) + 1 - ROWS_A_SHEET, 0):
                    logging.warning("%s: %d rows are left out of the workbook", table.name, left_out)
                n_cut += _write_sheet(workbook, sheet, table.first(ROWS_A_SHEET - 1))
    return n_cut


def _write_summary(workbook: Any, result: Result) -> None:
    """Fill the first sheet: the answer, the key figures, findings, notes and repairs."""
    title = _legal(result.headline or result.title)
    workbook.set_properties({"title": title, "author": PROGRAM})
    sheet = workbook.add_worksheet(_SUMMARY)
    large = workbook.add_format({"bold": True, "font_size": 14, "text_wrap": True, "valign": "top"})
    wrapped = workbook.add_format({"text_wrap": True, "valign": "top"})
    labels = [label for label, _ in result.figures]
    first = min(max([_SUMMARY_WIDTH[0], *(display_width(label) + 2 for label in labels)]), _WIDEST)
    sheet.set_column(0, 0, first)
    sheet.set_column(1, 1, _SUMMARY_WIDTH[1])
    sheet.merge_range(0, 0, 0, 1, "", large)  # merged text would be taken for a formula
    sheet.write_string(0, 0, title[:_CELL_CHARACTERS], large)
    sheet.set_row(0, _TITLE_LINE * math.ceil(len(title) / _TITLE_CHARACTERS))
    lines = [*([("", result.further)] if result.further else []), *result.figures]
    findings = [text for number, card in enumerate(result.cards, 1) for text in card.texts(number)]
    groups = {"Findings": findings, "Notes": result.sentences, "Repaired or left out": result.repairs}
    for label, texts in groups.items():
        lines += [("" if i else label, text) for i, text in enumerate(texts)]
    for row, (label, text) in enumerate(lines[: ROWS_A_SHEET - 2], start=2):
        if label:
            sheet.write_string(row, 0, _legal(label)[:_CELL_CHARACTERS])
        sheet.write_string(row, 1, _legal(text)[:_CELL_CHARACTERS], wrapped)


def sheet_name(wanted: str, taken: set[str]) -> str:
    r"""Make a legal sheet name like `wanted` that is not yet `taken`, and add it there.

    At most 31 characters, all printable, none of ``[]:*?/\``, no apostrophe at an end, not "History"; names
    that differ only in case are the same.
    """
    name = printable(wanted).translate(_NOT_IN_NAMES).strip(" '") or "Sheet"
    if name.casefold() == "history":
        name += "_"
    legal, count = _shortened(name, ""), 1
    while legal.casefold() in taken:
        count += 1
        legal = _shortened(name, f" ({count})")
    taken.add(legal.casefold())
    if len(name) > _NAME_CHARACTERS:
        logging.warning("the sheet for %s is called %s: names end at 31 characters", wanted, legal)
    return legal


def _number_format(column: Column) -> str:
    if column.kind == "id":
        return "0"
    decimals = "." + "0" * column.digits if column.digits and column.kind != "int" else ""
    return f"0{decimals}%" if column.kind == "percent" else f"#,##0{decimals}"


def _write_sheet(workbook: Any, sheet: Any, table: Table) -> int:
    """Fill one sheet; count the texts that were cut."""
    cell_formats: list[Any] = []
    for index, column in enumerate(table.columns):
        header = {"bold": True, "bottom": 1, "text_wrap": True, "valign": "bottom"}
        if is_text(column):
            cell_formats.append(None)
        else:
            header["align"] = "right"
            cell_formats.append(workbook.add_format({"num_format": _number_format(column)}))
        sheet.set_column(index, index, _width(table, index))
        sheet.write_string(0, index, _legal(column.title), workbook.add_format(header))
    sheet.freeze_panes(1, 1)
    cut = last = 0
    for last, row in enumerate(table.rows, start=1):
        for index, cell in enumerate(row):
            cut += _write_cell(sheet, last, index, cell, cell_formats[index])
    sheet.autofilter(0, 0, last, len(table.columns) - 1)
    for index, column in enumerate(table.columns):
        if column.scale == "diverging" and last:
            sheet.conditional_format(1, index, last, index, _BY_CHANGE)
    return cut


def _write_cell(sheet: Any, row: int, column: int, cell: Cell, cell_format: Any) -> bool:
    """Write one cell, nothing for a gap; True if its text was cut."""
    if isinstance(cell, str):
        text = _legal(cell)
        sheet.write_string(row, column, text[:_CELL_CHARACTERS])
        return len(text) > _CELL_CHARACTERS
    if isinstance(cell, bool):
        sheet.write_boolean(row, column, cell)
    elif isinstance(cell, int) and abs(cell) > _EXACT_INTEGERS:
        sheet.write_string(row, column, str(cell))
    elif cell is not None and math.isfinite(cell):
        sheet.write_number(row, column, cell, cell_format)
    return False


def _width(table: Table, index: int) -> int:
    """Choose the width of a column, in characters, by its header and first rows."""
    column = table.columns[index]
    values = [row[index] for row in table.rows[:_WIDTH_SAMPLE]]
    texts = cell_texts(column, values)
    widest_word = max(map(len, column.title.split()), default=0) + 3  # room for the filter's arrow
    return min(max([6, widest_word, *(display_width(text) + 2 for text in texts)]), _WIDEST)


def _shortened(name: str, suffix: str) -> str:
    """Shorten `name` so that it has 31 of the format's characters (UTF-16 units) with `suffix`."""
    room = _NAME_CHARACTERS - len(suffix)
    units = shorten(name, room).encode("utf-16-le")[: 2 * room]
    return units.decode("utf-16-le", "ignore").strip(" '") + suffix


def _legal(text: str) -> str:
    """Escape lone surrogates in `text`, which UTF-8 cannot encode."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")
