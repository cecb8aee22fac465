"""The charts of a workbook: a sheet with their numbers, beside them the spreadsheet program's own charts."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

from msgspec import Struct

from report import colours
from report.names import bounded, labels
from result import Bars, Chart, Lines, Waterfall

#: Name of the sheet.
SHEET = "Charts"
_MOST_NAMES = 100  # bars of a chart; more would not be legible
_WIDTH, _LEAST_HEIGHT, _ROW = 760, 320, 20  # pixels
_NAME = 44  # columns
_TOTAL = "#5a6472"
_Number = float | None


class _Block(Struct, frozen=True):
    """The numbers of a chart: a row for each name; the first series may be drawn without a colour."""

    title: str
    names: Sequence[str | float]
    series: Sequence[tuple[str, Sequence[_Number], str]]  # name, values, colour ("" for none)
    axis: str
    kind: str  # of xlsxwriter's charts
    stacked: bool = False


def can_draw(charts: Sequence[Chart]) -> bool:
    """Whether some of `charts` have a form in a workbook."""
    return any(map(_block, charts))


def _at_first(charts: Sequence[Chart]) -> list[Chart]:
    """Return the charts without those that a page shows only when their step is picked."""
    of_steps = [getattr(chart, "step", "") for chart in charts]
    shown = list(dict.fromkeys(filter(None, of_steps)))[:2]
    return [chart for chart, step in zip(charts, of_steps, strict=True) if not step or step in shown]


def write_charts(workbook: Any, sheet: Any, charts: Sequence[Chart], heading: Any) -> None:
    """Fill the sheet; its rows are written in order, as a workbook that is not kept in memory needs it."""
    sheet.set_column(0, 0, _NAME)
    row = 0
    for block in filter(None, map(_block, _at_first(charts))):
        sheet.write_string(row, 0, block.title, heading)
        first = row + 2
        for column, (name, _, _) in enumerate(block.series, 1):
            sheet.write_string(first - 1, column, name)
        for at, place in enumerate(block.names):
            write = sheet.write_string if isinstance(place, str) else sheet.write_number
            write(first + at, 0, place)
            for column, (_, values, _) in enumerate(block.series, 1):
                value = values[at]
                if value is not None and math.isfinite(value):
                    sheet.write_number(first + at, column, value)
        high = max(_LEAST_HEIGHT, 90 + 18 * len(block.names) if block.kind == "bar" else 0)
        chart = _chart(workbook, block, first, high)
        sheet.insert_chart(row + 1, len(block.series) + 2, chart, {"object_position": 3})
        row = max(first + len(block.names), row + high // _ROW + 2) + 2
    sheet.set_landscape()
    sheet.fit_to_pages(1, 0)


def _chart(workbook: Any, block: _Block, first: int, high: int) -> Any:
    chart = workbook.add_chart({"type": block.kind, **({"subtype": "stacked"} if block.stacked else {})})
    last = first + len(block.names) - 1
    for column, (_, _, colour) in enumerate(block.series, 1):
        clear = round(100 * (1 - colours.PALE)) if len(colour) > len(_TOTAL) else 0
        look = {"color": colour[: len(_TOTAL)], "transparency": clear} if colour else {"none": True}
        chart.add_series({
            "name": [SHEET, first - 1, column],
            "categories": [SHEET, first, 0, last, 0],
            "values": [SHEET, first, column, last, column],
            **({"line": {**look, "width": 1.75}} if block.kind == "line" else {"fill": look}),
            "gap": 40,
        })  # fmt: skip
    hidden = [at for at, (_, _, colour) in enumerate(block.series) if not colour]
    few = len(block.series) - len(hidden) < 2
    chart.set_legend({"none": True} if few else {"position": "top", "delete_series": hidden})
    chart.set_title({"name": block.title, "name_font": {"size": 12}})
    chart.set_size({"width": _WIDTH, "height": high})
    sideways = block.kind == "bar"
    chart.set_x_axis({"name": block.axis} if sideways else {})
    chart.set_y_axis({"reverse": True, "label_position": "low"} if sideways else {"name": block.axis})
    return chart


def _block(chart: Chart) -> _Block | None:
    """Return the numbers of a chart, None for one that a workbook does not show."""
    if isinstance(chart, Bars) and chart.series and 0 < len(chart.x) <= _MOST_NAMES:
        names = (
            [" ".join(pair) for pair in zip(chart.strips, chart.x, strict=True)] if chart.strips else chart.x
        )
        kind, axis = ("bar", chart.x_label) if chart.horizontal else ("column", chart.y_label)
        stacked = chart.stacked and len(chart.series) > 1
        return _Block(
            _text(chart.title),
            labels(names, _NAME),
            _coloured(chart.series, chart.pale),
            _text(axis),
            kind,
            stacked,
        )
    if isinstance(chart, Lines) and chart.series and chart.x:
        return _Block(_text(chart.title), chart.x, _coloured(chart.series), _text(chart.y_label), "line")
    if isinstance(chart, Waterfall) and 0 < len(chart.parts) < _MOST_NAMES:
        return _waterfall(chart)
    return None


def _waterfall(chart: Waterfall) -> _Block:
    """Return bars that begin where those before ended: after as much without a colour."""
    groups = list(dict.fromkeys(group for *_, group in chart.parts if group))
    shades = colours.assign(groups)
    ends = [sum(value for _, value, _ in chart.parts[:at]) for at in range(len(chart.parts) + 1)]
    before = ("before", [*map(min, ends[:-1], ends[1:]), None], "")  # what falls hangs from where it began
    of_groups = [
        (
            _text(group),
            [*(abs(v) if own == group else None for _, v, own in chart.parts), None],
            shades[group],
        )
        for group in groups
    ]
    totals = [*(None if own else value for _, value, own in chart.parts), ends[-1]]
    total = (_text(chart.total), totals, _TOTAL)
    names = labels([*(name for name, *_ in chart.parts), chart.total], _NAME)
    return _Block(
        _text(chart.title), names, [before, *of_groups, total], _text(chart.label), "bar", stacked=True
    )


def _coloured(series: Any, pale: Collection[str] = ()) -> list[tuple[str, Sequence[_Number], str]]:
    shades = colours.assign(series)
    looks = {name: colours.pale(shade) if name in pale else shade for name, shade in shades.items()}
    return [(_text(name), values, looks[name]) for name, values in series.items()]


def _text(text: str) -> str:
    return bounded(text, 120)
