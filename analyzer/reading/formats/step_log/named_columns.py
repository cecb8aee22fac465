"""Which column of a step log is what, by its name and its first rows, and what its cells say."""

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
#: Columns that tell ranks apart together where no other does: of a host, and within it.
_WHOSE = tuple(
    re.compile(rf"(?i){name}(?:_?(?:name|rank|id|index|idx))?")
    for name in ("(?:host|node|machine)", "(?:local|worker|process|proc|replica|gpu|device)")
)
#: Columns of rows that hold one number each: what it is, and the number.
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
NEARLY_ALL, ROUNDING = 0.95, 0.005  # of rows; of a step, which its parts may be longer by
LONGEST_NAME = 300
_EARLIEST_NS = 10**17  # of times of day: 1973
#: Columns called so count from the start of the run where they only grow, even if no other column is steady.
_COUNTER_NAME = re.compile(r"(?i)elapsed|since|cumul|uptime|wall|run_?time|total_?time")
_FEWEST_ROWS, _MANY_ROWS = 4, 8  # by which growth is judged, without and with a name that says nothing
_FIRST_STEP = 1.5  # usual steps that a counter from 0 shows at most in its first row


class Kinds(Struct, frozen=True):
    """Which column is what, None where no name says it.

    Durations are (name, ns of one, 0 where the name tells no unit), `values` other numbers; `labels` tell
    ranks apart where no column is a rank. Of `texts` are labels and times of day; in `nested` rows some lie
    in objects. Where a row holds one number, `metric` tells which, and `measure` is the number.
    Columns `unread` are called durations, and hold texts. Where `time` counts from the start of the run, and
    not from the epoch, `clock_ns` is how many ns its 1 stands for. `columns` are all that the rows have.
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
        """Moments (n,) at which the rows were written, in ns; 0 for rows that do not say."""
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
    """Tell the kinds of the columns of these rows; None where they are not steps.

    The column `rank_by` tells the ranks apart, whatever its name and its cells; a column `step_by` is kept.
    """
    named = dict.fromkeys(name for row in rows for name in row)
    if "ph" in named:
        return None
    # others cannot be written; one without a name is the index of a table; W&B has bounds beside its columns
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
    own = {name: own_name(name) for name in sorted(names, key=lambda name: name.count("/"))}
    step, rank = (
        next(
            (name for name in own if name in numeric and name != rank_by and rule.fullmatch(own[name])), None
        )
        for rule in (STEP_NAME, _RANK_NAME)
    )
    rank = rank if rank_by is None else None
    time = next((name for name in own if name in times and _TIME_NAME.fullmatch(own[name])), None)
    if time is None:
        time = next((name for name in own if name in in_a_unit and not _BEGIN_NAME.search(own[name])), None)
    durations = {}
    for name in names:
        is_other = name in (step, rank, time, rank_by) or name in in_a_unit
        duration = duration_of(name) if name in numeric and not is_other else None
        if duration is not None and (duration[1] or name not in times):
            durations[name] = duration
    known = {step, rank, time, *durations}
    values = [name for name in names if name in numeric and name not in known]
    texts = {name for name in names if _in_most([isinstance(one, str) for one in cells[name]])} - numeric
    metric = next(
        (name for name in own if name in texts - {rank_by} and _METRIC_NAME.fullmatch(own[name])), None
    )
    is_again = any(len({*map(str, cells[name])}) < len(rows) for name in (step, metric) if name is not None)
    measure = _measure(durations, values) if None not in (step, metric) and is_again else ""
    metric = metric if measure else None
    if metric is None and ((not durations and None in (step, time)) or (step is None and len(rows) < 2)):
        return None
    labels = [
        next((name for name in own if name in texts | {*values} and rule.fullmatch(own[name])), None)
        for rule in _WHOSE
    ]
    if rank_by is not None:
        labels = [rank_by] if rank_by in names else []
    if step_by in texts:
        values.append(step_by)
    known_texts = {time, metric, step_by, *(() if rank else labels)}
    return Kinds(
        step, rank, time, durations, values,
        labels=[] if rank else [name for name in labels if name],
        texts=[name for name in names if name in texts & known_texts],
        nested=any(isinstance(cell, dict) for own in cells.values() for cell in own),
        metric=metric,
        measure=measure,
        unread=[name for name in names if name in texts - times - {rank_by, step_by} and duration_of(name)],
        columns=names,
    )  # fmt: skip


def _measure(durations: Collection[str], values: Collection[str]) -> str:
    """Return the column that holds the only measured number of a row: by its name, or the only duration."""
    called = [name for name in values if _MEASURE_NAME.fullmatch(own_name(name))]
    took = [*durations, *(name for name in values if duration_of(f"it {name}"))]
    return next((some[0] for some in (called, took) if len(some) == 1), "")


def own_name(name: str) -> str:
    """Return a name without the objects, or the groups of columns, in which it lies."""
    return _words_apart(name if name.lower().startswith(("time/", "timing/")) else name.rpartition("/")[2])


def duration_of(name: str) -> tuple[str, int] | None:
    """Return the name of a column of durations and its unit (ns, or 0); None for any other column."""
    if len(name) > LONGEST_NAME:  # the patterns take its square
        return None
    name = _words_apart(name)
    if _RATE.search(name) and not _TIMED.match(name):
        return None
    if match := _PER.match(name) or _DURATION.match(name) or _TIMED_IN.match(name):
        return match["name"].strip("_ /.-(") or name, NS_OF[match["unit"][0].lower()]
    match = _TIMED.match(name)
    return (match["name"] or match["other"], 0) if match else None


def _words_apart(name: str) -> str:
    """Return a name with its words apart.

    >>> _words_apart("stepTimeMs")
    'step_Time_Ms'
    """
    return re.sub("(?<=[a-z])(?=[A-Z])", "_", name)


def are_numbers(cells: Sequence[Any]) -> bool:
    """Whether most of the cells that hold something hold a number: one that is damaged costs no column."""
    return _in_most([not is_odd(cell) for cell in cells if cell not in (None, "")])


def _in_most(which: Sequence[bool]) -> bool:
    return 2 * sum(which) > len(which)


def is_odd(cell: Any) -> bool:
    """Whether a cell holds something, and not a number."""
    return cell not in (None, "") and bool(np.isnan(number_of(cell))) and str(cell).lower() != "nan"


def number_of(cell: Any) -> float:
    """Return a cell as a number; NaN for anything else."""
    try:
        return np.nan if isinstance(cell, bool) else float(cell)
    except (TypeError, ValueError, OverflowError):
        return np.nan


def seconds_of(cell: Any) -> float:
    """Return a time of day as a number: ISO 8601 in seconds since the epoch; NaN for anything else."""
    number = number_of(cell)
    if not np.isnan(number):
        return number
    try:
        moment = datetime.fromisoformat(str(cell).replace("Z", "+00:00"))
        return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()
    except (ValueError, OverflowError):
        return np.nan


def numbers_in(texts: Sequence[str]) -> list[int]:
    """Give distinct texts numbers: by the only number in each, if all have one, else by their order.

    >>> numbers_in(["step-10", "step-9"]), numbers_in(["warm", "cold"])
    ([10, 9], [1, 0])
    """
    digits = [re.findall(r"\d{1,15}", text) for text in texts]
    if all(len(numbers) == 1 for numbers in digits):
        return [int(number) for (number,) in digits]
    places = {text: place for place, text in enumerate(sorted(texts, key=natural))}
    return [places[text] for text in texts]


def _are_times(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    """Whether most cells of a column are times of day: seconds to ns since the epoch, or ISO 8601."""
    return _in_most((times_of_day_ns(np.array([seconds_of(row.get(name)) for row in rows])) > 0).tolist())


def _are_times_in_their_unit(name: str, cells: Sequence[Any]) -> bool:
    """Whether a column's cells, in the unit of its name, lie after 1973: no duration is that long.

    >>> _are_times_in_their_unit("ts_us", [1.7e15]), _are_times_in_their_unit("step_ns", [2e8])
    (True, False)
    """
    duration = duration_of(name)
    unit_ns = duration[1] if duration else 0
    numbers = np.array([number_of(cell) for cell in cells if cell not in (None, "")], np.float64)
    return bool(unit_ns) and _in_most((numbers * unit_ns >= _EARLIEST_NS).tolist())


def times_of_day_ns(numbers: Float64) -> Int64:
    """Return times of day (n,) in ns since the epoch, to a microsecond; 0 for anything else."""
    found = np.zeros(len(numbers), np.int64)
    for unit_ns in (NS_OF["s"], NS_OF["m"], NS_OF["u"], NS_OF["n"]):
        is_time = (numbers >= _EARLIEST_NS / unit_ns) & (numbers <= FARTHEST_NS / unit_ns) & (found == 0)
        found[is_time] = np.rint(numbers[is_time] * (unit_ns / 1_000)).astype(np.int64) * 1_000
        if is_time.all():
            break
    return found


def without_counters(kinds: Kinds, columns: Mapping[str, Float64]) -> Kinds:
    """Make values of the durations that count from the start of the run; `columns` are one rank's.

    Where no other column tells how long a step took, the first of them is the clock of the rows.
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
    """Name the columns that only grow from row to row, by the time that passed: they count since the start.

    A step that becomes slower grows, too. So a counter is called after a step or a part of it only if its
    name says that it counts; and it grows by half a step or more, or is called a counter, or begins with 0.
    """
    recorded = {name: column[~np.isnan(column)] for name, column in spent_ns.items()}
    growing = {name: column for name, column in recorded.items() if _may_count(name) and _only_grows(column)}
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


def _may_count(name: str) -> bool:
    is_part = STEP_NAME.search(name) or _PART_NAME.search(name)
    return not is_part or _COUNTER_NAME.search(name) is not None


def _only_grows(column: Float64) -> bool:
    return len(column) >= _FEWEST_ROWS and float((np.diff(column) > 0).mean()) >= NEARLY_ALL


def whole_of(spent: Sequence[Float64], names: Sequence[str]) -> int | None:
    """Find the column of the whole step: by name, or at least the sum of the others in most rows."""
    if len(spent) < 2 or not len(spent[0]):
        return 0 if len(spent) == 1 else None
    at = int(np.argmax([np.median(column) for column in spent]))
    named = bool(STEP_NAME.search(names[at])) or "total" in names[at].lower()
    covers = 2 * spent[at] >= sum(spent) * (1 - ROUNDING)  # as a long wait for a late rank does, too
    is_whole = covers.mean() >= NEARLY_ALL and not _PART_NAME.search(names[at])
    return at if named or is_whole else None
