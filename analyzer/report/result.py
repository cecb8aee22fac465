"""The result of one run, as every output format (text, JSON, CSV, XLSX, HTML) can show it.

An option's `run` returns one `Result`. Units and rounding are decided here, by the columns; times are
milliseconds from here on (`_ns` inside the analysis).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any, Literal, NamedTuple

from analyzer.base.errors import AnalyzeError, optional
from analyzer.base.units import LazySequence, ms_of

#: An id is a number that is never summed or formatted; sentences wrap, names are shortened.
ColumnKind = Literal["text", "sentence", "int", "id", "float", "percent", "bool"]
Cell = str | int | float | bool | None


class Command(str):
    """A line of a result that ends in a command; every format shows it unbroken."""

    __slots__ = ()


class Column(NamedTuple):
    """One column of a table: its JSON/CSV key, its header (with the unit) and the format of its cells.

    `value` takes the cell from an item (see `Table.of`); the default is the item's attribute or entry `key`.
    In tables of a document a cell may be a list.
    """

    key: str
    title: str
    kind: ColumnKind = "text"
    digits: int = 3  # after the decimal point, for float and percent
    scale: Literal["diverging"] | None = None  # coloured by value: below 0 good, above 0 bad
    value: Callable[[Any], Any] | None = None


class Table(NamedTuple):
    """Named rows; a cell of None is a gap. `percent` cells are fractions (0.098 shows as 9.8 %).

    `certain` is the key of a boolean column that marks the significant rows; other rows have no colours.
    `order` has the sort key of each row for `--sort`.
    """

    name: str  # key in documents, sheet name, heading: "operations"
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    detail: bool = False  # only in files (CSV, XLSX, HTML)
    full: bool | None = None  # on standard output only with `--full` (True), or only without it (False)
    certain: str = ""
    brief: bool = False  # only on standard output
    order: Sequence[Any] = ()
    about: Sequence[Collection[str]] = ()  # for each row the keys of its boxes in a timeline

    @classmethod
    def of(
        cls,
        name: str,
        title: str,
        columns: Sequence[Column],
        items: Iterable[Any],
        sort_by: Callable[[Any], Any] | None = None,
        **settings: Any,
    ) -> Table:
        """Make a row for each item: columns take their cells from it, and `sort_by` the row's `order`."""
        items = items if isinstance(items, Sequence) else list(items)
        of_key: Callable[[str], Any] = itemgetter if items and isinstance(items[0], Mapping) else attrgetter
        cells = [column.value or of_key(column.key) for column in columns]
        rows = LazySequence(items, lambda item: [cell(item) for cell in cells])
        order = LazySequence(items, sort_by) if sort_by else ()
        return cls(name, title, columns, rows, order=order, **settings)

    def first(self, n: int | None) -> Table:
        """Keep the first n rows; all for None."""
        return self if n is None else self._replace(rows=self.rows[:n], about=self.about[:n], order=())

    @property
    def certain_at(self) -> int | None:
        """The index of the column `certain`; None if all rows are certain."""
        return next((i for i, column in enumerate(self.columns) if column.key == self.certain), None)

    @property
    def objects(self) -> LazySequence[dict[str, Cell]]:
        """Each row as a JSON object, keyed by the columns' keys."""
        keys = [column.key for column in self.columns]
        return LazySequence(self.rows, lambda row: dict(zip(keys, row, strict=True)))

    def records(self) -> list[dict[str, Cell]]:
        """Make a dict of each row, keyed by the columns' keys."""
        return list(self.objects)

    def to_pandas(self) -> Any:
        """Make a `pandas.DataFrame`; AnalyzeError without pandas."""
        pandas = optional("pandas", "pandas", "to_pandas")
        return pandas.DataFrame(self.records(), columns=[column.key for column in self.columns])

    def to_polars(self) -> Any:
        """Make a `polars.DataFrame`; AnalyzeError without polars."""
        keys = [column.key for column in self.columns]
        polars = optional("polars", "polars", "to_polars")
        return polars.DataFrame(self.records(), keys, strict=False, infer_schema_length=None)


class Bars(NamedTuple):
    """Stacked bars with a part for each series. None is a gap.

    Bars `by_step` stand upright; their names are step numbers, and a named line crosses them at `level`.
    `between` has the bounds of each bar's value.
    """

    title: str
    label: str  # of the values
    names: Sequence[str]
    series: Mapping[str, Sequence[float | None]]
    unit: str = "ms"
    by_step: bool = False
    between: Sequence[tuple[float, float] | None] = ()
    level: tuple[float, str] | None = None
    is_small: bool = False  # half width: two such charts share a row


#: Most bars of a chart that lie below each other: 360 pixels, so that chart and answer fit a screen.
MOST_BARS = 20


class HeatMap(NamedTuple):
    """A grid of values; larger values are darker. None is a gap."""

    title: str
    label: str  # of the values
    x_label: str
    y_label: str
    columns: Sequence[str]
    rows: Sequence[str]
    values: Sequence[Sequence[float | None]]  # values[row][column]
    by_step: bool = False  # columns are steps, which a page lets users pick
    in_3d: bool = False  # a page offers it in 3-D


class Roofline(NamedTuple):
    """Rates (TFLOP/s) of named kinds of work by their FLOP/byte, under the peaks of a device."""

    title: str
    points: Sequence[tuple[str, float, float]]  # name, FLOP/byte, rate
    roofs: Sequence[tuple[str, float]]  # type of numbers, rate
    slope: float  # TB/s of its memory


def key_of(owner: str, name: str) -> str:
    """Make the key of an operation of an owner (see `Table.about`)."""
    return f"{owner}.{name}"


def stretch_key(number: int) -> str:
    """Make the key of a stretch by its number in `NamedPath.of`."""
    return f"#{number}"


#: The group of the stretches of a path where nothing ran.
IDLE = "gap"


class Span(NamedTuple):
    """One coloured box of a timeline, or a stretch of the path through the boxes.

    Its `keys` link it to rows of tables (`Table.about`).
    """

    lane: str
    name: str
    start_ms: float
    dur_ms: float
    group: str  # decides the colour; shown in the legend
    keys: Sequence[str] = ()
    on: int = -1  # of a stretch: the number of the box around it, or of the next box


class Timeline(NamedTuple):
    """Boxes on lanes, to scale; the stretches of `path` are in the order of time.

    A page shows the timelines without a `step` and the timeline of the picked step, at first the first step.
    """

    title: str
    spans: Sequence[Span]
    path: Sequence[Span] = ()
    note: str = ""
    step: str = ""


class GraphNode(NamedTuple):
    """A box of a drawn graph, in a layer (`x`, time goes to the right) and a row (`y`, downwards)."""

    label: str
    cat: str  # decides the colour
    x: float
    y: float
    dur_ms: float | None = None
    critical: bool = False  # on the critical path
    slack_ms: float | None = None
    names: Sequence[str] = ()  # of the operations in it


class Network(NamedTuple):
    """A drawn graph; `path` has the edges of the critical path. No two nodes share layer and row."""

    title: str
    nodes: Sequence[GraphNode]
    edges: Sequence[tuple[int, int, str]]  # source, target, kind
    path: Collection[tuple[int, int]] = ()  # (source, target)
    lanes: Sequence[tuple[str, float]] = ()  # names and first rows


class Card(NamedTuple):
    """A finding: a short title and labelled texts."""

    title: str
    figure: str  # the saving, with its unit
    lines: Sequence[tuple[str, str]] = ()  # label ("" for none) and text
    bar: tuple[float, float | None, float | None] | None = None  # the saving and its bounds (ms)
    about: Collection[str] = ()  # keys, as of `Table.about`
    step: str = ""  # the step of the evidence
    seen: str = ""  # the key of the evidence in that step

    def texts(self, number: int) -> Iterator[str]:
        """Yield the card as lines of text; `number` counts from 1."""
        plain = " ".join(text for label, text in self.lines if not label)
        yield f"{number}. {self.title}. {plain}".rstrip()
        widest = max((len(label) for label, _ in self.lines), default=0)
        for label, text in self.lines:
            if label:
                yield type(text)(f"   {label:<{widest}}  {text}")  # a `Command` stays a `Command`


Chart = Bars | HeatMap | Roofline | Timeline | Network


class Result(NamedTuple):
    """The result of one run of an option.

    `headline` is the answer in one sentence, `further` the next sentences, and `title` the subject, which is
    the heading if there is no headline.
    `document` is the JSON answer with the keys documented in docs/options/*.md (without ``option``,
    ``headline`` and ``repairs``, which report/json.py adds); a `Table` in it becomes a list of
    objects. CSV carries the first table. A `Command` among the notes is a next step.
    """

    option: str
    title: str
    document: Mapping[str, Any]
    tables: Sequence[Table] = ()
    charts: Sequence[Chart] = ()
    figures: Sequence[tuple[str, str]] = ()  # key figures: label, value with unit
    cards: Sequence[Card] = ()  # findings, the most important first
    notes: Sequence[str] = ()  # sentences under the tables, and commands
    repairs: Sequence[str] = ()  # a line per file: repaired or skipped input
    exit_code: int = 0
    headline: str = ""
    further: str = ""

    def __repr__(self) -> str:
        return f"<{self.option}: {self.headline or self.title}>"

    @property
    def findings(self) -> Sequence[Mapping[str, Any]]:
        """The findings of the JSON answer."""
        return list(self.document.get("findings", ()))

    def table(self, name: str) -> Table:
        """Look up a table by its name in files; AnalyzeError without it."""
        tables = {table.name: table for table in self.files_tables}
        if name not in tables:
            raise AnalyzeError(f"{self.option} has no table {name}; there are {', '.join(tables) or 'none'}")
        return tables[name]

    @property
    def files_tables(self) -> list[Table]:
        """The tables that files carry."""
        return [table for table in self.tables if not table.brief]

    @property
    def sentences(self) -> list[str]:
        """The notes without the commands."""
        return [note for note in self.notes if not isinstance(note, Command)]

    @property
    def commands(self) -> list[Command]:
        """The commands among the notes."""
        return [note for note in self.notes if isinstance(note, Command)]


def ms_column(key: str, title: str, of: str, **settings: Any) -> Column:
    """Make a column of milliseconds; `of` is the attribute of the items in nanoseconds."""
    get = attrgetter(of)
    return Column(key, f"{title} (ms)", "float", value=lambda item: ms_of(get(item)), **settings)
