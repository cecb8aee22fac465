"""HTML for browsers: one page that holds all it needs and asks no network for anything."""

from __future__ import annotations

import html
import re
import shlex
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from analyzer.base.errors import PROGRAM, printable
from analyzer.base.outputs.atomic import open_output
from analyzer.report.cells import IN_A_LANE, beginning, bounded, labels, short_functions
from analyzer.report.json import encode
from analyzer.report.pictures import colours, plot
from analyzer.report.pictures.svg import SMALL, WIDTH
from analyzer.report.result import (
    IDLE,
    Bars,
    Card,
    Chart,
    Command,
    HeatMap,
    Network,
    Result,
    Span,
    Table,
    Timeline,
)

_ASSETS = Path(__file__).parent / "assets"
_SCRIPTS = ("page.js", "table.js", "view.js", "drawing.js", "timeline.js")
_LONGEST = 160  # characters of a name in a timeline
_TAB = 90  # characters of the title in a browser's tab
_MOST_ROWS = 10_000  # rows of a table
_LEGEND = 11  # groups of boxes with a colour of their own

# The page may load and send nothing, and run only its own scripts.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>
{style}</style>
</head>
<body>
<noscript>This page shows its tables and charts by JavaScript, which is switched off here.</noscript>
<script type="application/json" id="data">"""


def write(result: Result, path: Path) -> None:
    """Write `result` as one self-contained page, whole or not at all.

    The page carries the data as JSON and builds itself from text nodes, so that no name in a trace
    can become markup. Bars and heat maps are drawings (SVG of shapes and texts only).
    """
    title = html.escape(beginning(result.headline or result.title, _TAB) or result.option)
    head = _PAGE.format(policy=_POLICY, title=title, style=_asset("page.css"))
    with open_output(path) as stream:
        stream.write(head.encode("utf-8", "backslashreplace"))
        stream.write(_inert(encode(_all_printable(_document(result)))))
        stream.write(b"</script>\n")
        script = "".join(map(_asset, _SCRIPTS))
        stream.write(f'<script>\n"use strict";\n{script}build();\n</script>\n</body>\n</html>\n'.encode())


def _document(result: Result) -> dict[str, Any]:
    keys = _Numbered()
    tables = [_table(_cut(table), keys) for table in result.files_tables]
    cards = [_card(card, keys) for card in result.cards]
    shades = _shades(result.charts)
    charts = [_payload(chart, keys, [*shades]) for chart in result.charts]
    return {
        "title": result.headline or result.title,
        "subject": result.title if result.headline and result.title else f"analyze.py {result.option}",
        "further": result.further,
        "figures": result.figures,
        "repairs": result.repairs,
        "cards": cards,
        "notes": result.sentences,
        "groups": [(group, colour, colours.ink_on(colour)) for group, colour in shades.items()],
        "legend": _LEGEND,
        "charts": [{"id": f"chart-{i}", **chart} for i, chart in enumerate(charts, start=1)],
        "tables": [{"id": f"table-{i}", **table} for i, table in enumerate(tables, start=1)],
    }


def _cut(table: Table) -> Table:
    """Cut a table that is too large for a page, and say so in its note."""
    n_rows = len(table.rows)
    if n_rows <= _MOST_ROWS:
        return table
    note = f"The first {_MOST_ROWS:,} of {n_rows:,} rows; --xlsx and --format csv or json have all."
    return table.first(_MOST_ROWS)._replace(note=f"{note} {table.note}".rstrip())


def _table(table: Table, keys: dict[str, int]) -> dict[str, Any]:
    """Encode a table for the script; the keys of its subjects become numbers."""
    kept = ("title", "kind", "digits", "scale")
    commands = dict(_command(cell) for row in table.rows for cell in row[-1:] if isinstance(cell, Command))
    rows = [[*row[:-1], _command(str(row[-1]))[0]] for row in table.rows] if commands else table.rows
    return {
        "name": table.name,
        "title": table.title,
        "note": table.note,
        "columns": [{key: getattr(column, key) for key in kept} for column in table.columns],
        "rows": rows,
        "commands": commands,
        "short": short_functions(cell for row in table.rows for cell in row),
        "certain": table.certain_at,
        "about": [[keys[key] for key in of_row] for of_row in table.about],
    }


def _card(card: Card, keys: _Numbered) -> dict[str, Any]:
    lines = [
        (label, *(_command(text) if isinstance(text, Command) else (text,))) for label, text in card.lines
    ]
    about, seen = [keys[key] for key in card.about], keys[card.seen] if card.seen else None
    return {**card._asdict(), "lines": lines, "about": about, "seen": seen}


def _command(text: str) -> tuple[str, str]:
    """Write a command for reading, and for pasting into any shell of this machine."""
    program = re.search(rf"\S*{re.escape(PROGRAM)}", text)
    if program is None:  # the command of an installed copy
        return text.strip(), f"cd {shlex.quote(str(Path.cwd()))} && {text.strip()}"
    flags, typed = text[program.end() :], shlex.join([sys.executable, program[0]])
    return f"{PROGRAM}{flags}", f"cd {shlex.quote(str(Path.cwd()))} && {typed}{flags}"


def _shades(charts: Sequence[Chart]) -> dict[str, str]:
    """Give the groups of all timelines colours, as in the bars; those with the shortest boxes share one."""
    spent: dict[str, float] = defaultdict(float)
    for chart in charts:
        for span in chart.spans if isinstance(chart, Timeline) else ():
            spent[span.group] += span.dur_ms
    rest = colours.PALETTE["rest"]
    series = [name for chart in charts if isinstance(chart, Bars) for name in chart.series]
    of_bars = {name: number - len(series) for number, name in enumerate(series)}
    groups = sorted(spent, key=lambda name: (colours.of(name) == rest, of_bars.get(name, 0), -spent[name]))
    return dict.fromkeys(groups, rest) | colours.assign(groups[:_LEGEND])


def _payload(chart: Chart, keys: Mapping[str, int], groups: Sequence[str]) -> dict[str, Any]:
    """Encode a chart for its script."""
    if isinstance(chart, Timeline):
        return _timeline(chart, keys, groups)
    is_small = isinstance(chart, Bars) and chart.is_small
    grid = None
    if isinstance(chart, HeatMap) and chart.in_3d:  # the marks of the map become columns
        names = {"columns": labels(chart.columns, IN_A_LANE), "rows": labels(chart.rows, IN_A_LANE)}
        grid = {**names, "values": chart.values}
    return {
        "kind": "drawing",
        "title": chart.title,
        "narrow": is_small,
        "svg": plot.painted(chart, SMALL if is_small else WIDTH)[0],
        "large": isinstance(chart, Network),
        "grid": grid,
    }


def _timeline(chart: Timeline, keys: Mapping[str, int], groups: Sequence[str]) -> dict[str, Any]:
    """Encode a timeline for its script; repeated texts are indices into a list."""
    lanes, names = _Numbered(), _Numbered()
    number = {group: i for i, group in enumerate(groups)}
    spans = [
        (lanes[span.lane], names[bounded(span.name, _LONGEST)], *_times(span), number[span.group],
         *_known(span.keys, keys))
        for span in chart.spans
    ]  # fmt: skip
    path = [
        (part.on, *_times(part), names[bounded(part.name, _LONGEST)],
         int(part.group == IDLE), *_known(part.keys, keys))
        for part in chart.path
    ]  # fmt: skip
    return {
        "kind": "timeline",
        **{key: getattr(chart, key) for key in ("title", "note", "step")},
        "spans": spans,
        "path": path,
        "lane_names": list(lanes),
        "names": list(names),
    }


def _times(box: Span) -> tuple[float, float]:
    """Round start and duration to 1 ns so that touching boxes still touch."""
    start = round(box.start_ms, 6)
    return start, round(round(box.start_ms + box.dur_ms, 6) - start, 6)


def _known(texts: Iterable[str], keys: Mapping[str, int]) -> list[int]:
    return [keys[text] for text in texts if text in keys]


class _Numbered(dict[str, int]):
    """Texts and their numbers; a new text gets the next number."""

    def __missing__(self, text: str) -> int:
        self[text] = len(self)
        return self[text]


def _all_printable(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {printable(key): _all_printable(item) for key, item in value.items()}
    if isinstance(value, Collection):
        return [item if isinstance(item, float | int) else _all_printable(item) for item in value]
    return value


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _inert(encoded: bytes) -> bytes:
    """Escape JSON for use inside a script: no text in it can begin or end a tag."""
    return encoded.replace(b"<", b"\\u003c").replace(b">", b"\\u003e").replace(b"&", b"\\u0026")
