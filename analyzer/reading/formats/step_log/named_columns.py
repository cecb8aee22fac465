"""The kinds of a step log's columns by their names and first rows, and the values of their cells."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from analyzer.base.arrays import Float64, Int64
from analyzer.base.inputs import natural
from analyzer.reading.formats.values import FARTHEST_NS, clean_text

STEP_NAME = re.compile(
    r"(?i)(?:global|train(?:ing)?)?[_ /.]?(?:step|iter(?:ation)?)(?:_?(?:num(?:ber)?|id|idx))?"
)
_RANK_NAME = re.compile(r"(?i)(?:global_?)?rank(?:_?id)?|process_?index")
#: Columns that together tell ranks apart if no other column does: of a host, and within it.
_LABELS = tuple(
    re.compile(rf"(?i){name}(?:_?(?:name|rank|id|index|idx))?")
    for name in ("(?:host|node|machine)", "(?:local|worker|process|proc|replica|gpu|device)")
)
#: Columns of rows with one number each: its name, and the number.
_METRIC_NAME = re.compile(
    r"(?i)(?:metric|variable|measure(?:ment)?|series|tag|key|phase|stage|part|section|timer|span|op(?:eration)?|event)"
    r"(?:_?name)?|name"
)
_MEASURE_NAME = re.compile(r"(?i)val(?:ue)?")
_TIME_NAME = re.compile(
    r"(?i)ts|_?time(?:stamp)?|date(?:time)?|wall[_ ]?time|epoch_?(?:s|time)|end(?:_?(?:ts|time(?:stamp)?))?"
)
_BEGIN_NAME = re.compile(r"(?i)start|begin")
_UNIT = r"(?P<unit>ms|msecs?|milliseconds?|us|usecs?|ns|s|secs?|seconds?)"
_DURATION = re.compile(rf"(?i)^(?:tim(?:e|ing)/)?(?P<name>.*?)[_ /.(\[-]*(?:\b|_){_UNIT}[)\]]?$")
_PER = re.compile(rf"(?i)^{_UNIT}(?:[_ ]per[_ ]|/)(?P<name>.+)$")
_RATE = re.compile(
    r"(?i)(?:/|(?:^|[_ /.-])"
    r"(?:per|tok|tokens?|samples?|images?|imgs?|examples?|seqs?|bytes|[kmgt]i?b|[a-z]?flops?))"
    r"[_ /.(\[-]*(?:s|secs?|seconds?)[)\]]?$"
)
_TIMED = re.compile(r"(?i)^tim(?:e|ing)/(?P<name>.+)$|^(?P<other>.+[_ ](?:time|duration|elapsed|latency))$")
_TIMED_IN = re.compile(rf"(?i)^(?P<name>.*(?:time|elapsed|duration|latency)s?[_ ]{_UNIT}[_ /].+)$")
_PART_NAME = re.compile(
    r"(?i)data|load|fetch|input|comput|fwd|forward|bwd|backward|comm|reduce|gather|sync|wait|idle|barrier|opt|update|copy"
)
NS_OF = {"n": 1, "u": 1_000, "m": 1_000_000, "s": 1_000_000_000}
NEARLY_ALL_ROWS = 0.95
ROUNDING = 0.005  # parts may be longer than their step by this share of it
LONGEST_NAME = 300
_EARLIEST_NS = 10**17  # the earliest time of day: 1973
#: A growing column with such a name counts from the start of the run.
_COUNTER_NAME = re.compile(r"(?i)elapsed|since|cumul|uptime|wall|run_?time|total_?time")
_FEWEST_ROWS, _MANY_ROWS = 4, 8  # rows by which growth is judged: of a counter by its name, and of any other
_FIRST_STEP = 1.5  # a counter from 0 is at most this many usual steps in its first row


class Kinds(Struct, frozen=True):
    """The columns of each kind.

    Durations are (name, unit in ns, or 0 if the name has none), `values` other numbers; `labels` tell ranks
    apart if no column is a rank. `texts` are the labels and times of day that are texts; `nested` rows have
    objects in them. If a row holds one number, `metric` names it, and `measure` is the number. Columns
    `unread` are named like durations but hold texts. If `time` counts from the start of the run instead of
    the epoch, `clock_ns` is its unit in ns. `columns` are all columns of the rows.
    """

    step: str | None
    rank: str | None
    time: str | None
    durations: Mapping[str, tuple[str, int]]
    values: Sequence[str]
    labels: Sequence[str] = ()
    texts: Sequence[str] = ()
    nested: bool = False
    metric: str | None = None
    measure: str = ""
    unread: Sequence[str] = ()
    clock_ns: int = 0
    columns: Sequence[str] = ()

    def ends_ns(self, columns: Mapping[str, Float64]) -> Int64:
        """Moments (n,) at which the rows were written, in ns; 0 where unknown."""
        if self.time is None:
            return np.zeros(len(next(iter(columns.values()))), np.int64)
        if not self.clock_ns:
            return times_of_day_ns(columns[self.time])
        moments = columns[self.time] * self.clock_ns
        is_sound = (moments >= 0) & (moments <= FARTHEST_NS / 4)
        return np.where(is_sound, np.rint(np.where(is_sound, moments, 0)).astype(np.int64) + 1, 0)


def kinds_of(
    rows: Sequence[Mapping[str, Any]], rank_by: str | None = None, step_by: str | None = None
) -> Kinds | None:
    """Sort the columns of rows into kinds; None if the rows are not steps.

    The column `rank_by` tells the ranks apart, whatever its name and cells; a column `step_by` is kept.
    """
    named = dict.fromkeys(name for row in rows for name in row)
    if "ph" in named:
        return None
    # a column without a name is the index of a table; W&B has bounds beside its columns
    names = [
        name
        for name in named
        if name.strip() and clean_text(name) == name
        if not (name.endswith(("__MIN", "__MAX")) and name[:-5] in named)
    ]
    cells = {name: [row.get(name) for row in rows] for name in names}
    numeric = {name for name in names if are_numbers(cells[name])}
    times = {name for name in names if _are_times(rows, name)}
    in_a_unit = {name for name in times & numeric if _are_times_in_their_unit(name, cells[name])}
    local = {name: local_name(name) for name in sorted(names, key=lambda name: name.count("/"))}

    def column_named(rule: re.Pattern[str], among: Collection[str]) -> str | None:
        return next((name for name in local if name in among and rule.fullmatch(local[name])), None)

    step = column_named(STEP_NAME, numeric - {rank_by})
    rank = column_named(_RANK_NAME, numeric) if rank_by is None else None
    time = column_named(_TIME_NAME, times)
    if time is None:
        time = next(
            (name for name in local if name in in_a_unit and not _BEGIN_NAME.search(local[name])), None
        )
    durations = {}
    for name in names:
        is_other = name in (step, rank, time, rank_by) or name in in_a_unit
        duration = duration_of(name) if name in numeric and not is_other else None
        if duration is not None and (duration[1] or name not in times):
            durations[name] = duration
    known = {step, rank, time, *durations}
    values = [name for name in names if name in numeric and name not in known]
    texts = {name for name in names if _in_most([isinstance(cell, str) for cell in cells[name]])} - numeric
    metric = column_named(_METRIC_NAME, texts - {rank_by})
    is_again = any(len({*map(str, cells[name])}) < len(rows) for name in (step, metric) if name is not None)
    measure = _measure(durations, values) if None not in (step, metric) and is_again else ""
    metric = metric if measure else None
    if metric is None and ((not durations and None in (step, time)) or (step is None and len(rows) < 2)):
        return None
    labels = [column_named(rule, texts | {*values}) for rule in _LABELS]
    if rank_by is not None:
        labels = [rank_by] if rank_by in names else []
    if step_by in texts:
        values.append(step_by)
    known_texts = {time, metric, step_by, *(() if rank else labels)}
    return Kinds(
        step, rank, time, durations, values,
        labels=[] if rank else [name for name in labels if name],
        texts=[name for name in names if name in texts & known_texts],
        nested=any(isinstance(cell, dict) for column in cells.values() for cell in column),
        metric=metric,
        measure=measure,
        unread=[name for name in names if name in texts - times - {rank_by, step_by} and duration_of(name)],
        columns=names,
    )  # fmt: skip


def _measure(durations: Collection[str], values: Collection[str]) -> str:
    """Find the column with the only measured number of a row: by its name, or the only duration."""
    called = [name for name in values if _MEASURE_NAME.fullmatch(local_name(name))]
    took = [*durations, *(name for name in values if duration_of(f"it {name}"))]
    return next((columns[0] for columns in (called, took) if len(columns) == 1), "")


def local_name(name: str) -> str:
    """Strip the enclosing objects, or groups of columns, from a name."""
    return _words_apart(name if name.lower().startswith(("time/", "timing/")) else name.rpartition("/")[2])


def duration_of(name: str) -> tuple[str, int] | None:
    """Name and unit (ns, or 0) of a column of durations; None for any other column."""
    if len(name) > LONGEST_NAME:  # the patterns take quadratic time
        return None
    name = _words_apart(name)
    if _RATE.search(name) and not _TIMED.match(name):
        return None
    if match := _PER.match(name) or _DURATION.match(name) or _TIMED_IN.match(name):
        return match["name"].strip("_ /.-(") or name, NS_OF[match["unit"][0].lower()]
    match = _TIMED.match(name)
    return (match["name"] or match["other"], 0) if match else None


def _words_apart(name: str) -> str:
    """Separate the words of a name.

    >>> _words_apart("stepTimeMs")
    'step_Time_Ms'
    """
    return re.sub("(?<=[a-z])(?=[A-Z])", "_", name)


def are_numbers(cells: Sequence[Any]) -> bool:
    """Check whether most cells that are not empty hold a number: a damaged cell costs no column."""
    recorded = [cell for cell in cells if cell not in (None, "")]
    return _in_most([not np.isnan(_number_of(cell)) or str(cell).lower() == "nan" for cell in recorded])


def _in_most(which: Sequence[bool]) -> bool:
    return 2 * sum(which) > len(which)


def _number_of(cell: Any) -> float:
    try:
        return np.nan if isinstance(cell, bool) else float(cell)
    except (TypeError, ValueError, OverflowError):
        return np.nan


def seconds_of(cell: Any) -> float:
    """Read a number, or a time of day in ISO 8601 as seconds since the epoch; NaN for anything else."""
    number = _number_of(cell)
    if not np.isnan(number):
        return number
    try:
        moment = datetime.fromisoformat(str(cell).replace("Z", "+00:00"))
        return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()
    except (ValueError, OverflowError):
        return np.nan


def numbers_in(texts: Sequence[str]) -> list[int]:
    """Assign numbers to distinct texts: by the only number in each, if all have one, else by their order.

    >>> numbers_in(["step-10", "step-9"]), numbers_in(["warm", "cold"])
    ([10, 9], [1, 0])
    """
    digits = [re.findall(r"\d{1,15}", text) for text in texts]
    if all(len(numbers) == 1 for numbers in digits):
        return [int(number) for (number,) in digits]
    places = {text: index for index, text in enumerate(sorted(texts, key=natural))}
    return [places[text] for text in texts]


def _are_times(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    """Check whether most cells are times of day: seconds to ns since the epoch, or ISO 8601."""
    return _in_most((times_of_day_ns(np.array([seconds_of(row.get(name)) for row in rows])) > 0).tolist())


def _are_times_in_their_unit(name: str, cells: Sequence[Any]) -> bool:
    """Check whether most cells, in the unit of the column's name, lie after 1973: no duration is that long.

    >>> _are_times_in_their_unit("ts_us", [1.7e15]), _are_times_in_their_unit("step_ns", [2e8])
    (True, False)
    """
    duration = duration_of(name)
    unit_ns = duration[1] if duration else 0
    numbers = np.array([_number_of(cell) for cell in cells if cell not in (None, "")], np.float64)
    return bool(unit_ns) and _in_most((numbers * unit_ns >= _EARLIEST_NS).tolist())


def times_of_day_ns(numbers: Float64) -> Int64:
    """Convert times of day (n,) to ns since the epoch, to a microsecond; 0 for anything else."""
    times_ns = np.zeros(len(numbers), np.int64)
    for unit_ns in reversed(NS_OF.values()):
        is_time = (numbers >= _EARLIEST_NS / unit_ns) & (numbers <= FARTHEST_NS / unit_ns) & (times_ns == 0)
        times_ns[is_time] = np.rint(numbers[is_time] * (unit_ns / 1_000)).astype(np.int64) * 1_000
    return times_ns


def without_counters(kinds: Kinds, columns: Mapping[str, Float64]) -> Kinds:
    """Make values of the durations that count from the start of the run; `columns` are of one rank.

    If no other column has the length of a step, the first of them is the clock of the rows.
    """
    counters = _counters({name: columns[name] * unit for name, (_, unit) in kinds.durations.items()})
    if not counters:
        return kinds
    durations = {name: duration for name, duration in kinds.durations.items() if name not in counters}
    if durations or kinds.time is not None or kinds.step is None:
        return replace(kinds, durations=durations, values=[*kinds.values, *counters])
    clock, *others = counters
    clock_ns = kinds.durations[clock][1]
    return replace(kinds, durations={}, values=[*kinds.values, *others], time=clock, clock_ns=clock_ns)


def _counters(spent_ns: Mapping[str, Float64]) -> list[str]:
    """Name the columns that grow from row to row because they count the time since the start.

    A step that becomes slower grows, too. So a column named after a step or a part counts only if its name
    also says that it counts; and a counter grows by half a step or more, has such a name, or begins at 0.
    """
    recorded = {name: column[~np.isnan(column)] for name, column in spent_ns.items()}
    growing = {
        name: column
        for name, column in recorded.items()
        if _COUNTER_NAME.search(name) or not (STEP_NAME.search(name) or _PART_NAME.search(name))
        if len(column) >= _FEWEST_ROWS and (np.diff(column) > 0).mean() >= NEARLY_ALL_ROWS
    }
    steps = [
        float(np.median(column))
        for name, column in recorded.items()
        if name not in growing and len(column) and STEP_NAME.search(name)
    ]
    counters = []
    for name, column in growing.items():
        usual = float(np.median(np.diff(column)))
        if any(steps):
            is_counter = usual >= max(steps) / 2
        else:
            from_zero = len(column) >= _MANY_ROWS and column[0] <= _FIRST_STEP * usual
            is_counter = from_zero or _COUNTER_NAME.search(name) is not None
        if is_counter:
            counters.append(name)
    return counters


def whole_of(spent: Mapping[str, Float64]) -> str | None:
    """Find the column of the whole step: by name, or at least the sum of the others in most rows."""
    if len(spent) < 2 or not all(map(len, spent.values())):
        return next(iter(spent)) if len(spent) == 1 else None
    longest = max(spent, key=lambda name: float(np.median(spent[name])))
    is_named = STEP_NAME.search(longest) is not None or "total" in longest.lower()
    covers = 2 * spent[longest] >= sum(spent.values()) * (1 - ROUNDING)  # so does a long wait for a late rank
    is_whole = covers.mean() >= NEARLY_ALL_ROWS and not _PART_NAME.search(longest)
    return longest if is_named or is_whole else None
