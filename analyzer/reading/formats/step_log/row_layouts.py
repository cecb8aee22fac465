"""Rows of a step log by rank: a row for each step, or for each metric of a step."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from analyzer.base.arrays import Float64, Mask, NDArray
from analyzer.base.errors import Note, NoteKind, TraceError
from analyzer.base.inputs import natural
from analyzer.reading.formats.step_log.lines import Form
from analyzer.reading.formats.step_log.named_columns import LONGEST_NAME, Kinds, are_numbers, duration_of
from analyzer.reading.formats.values import as_ranks

#: A column of one rank, in rows of all ranks: ``rank3_data_ms``, ``data_ms/rank3``, ``rank3 - step_ms``.
_OF_RANK = re.compile(r"(?i)(?P<before>.*?)(?<![a-z])rank[ _:=#-]?(?P<rank>\d{1,7})(?!\d)(?P<after>.*)")
_MOST_METRICS = 1_000  # each becomes a column of every step; a column of more texts names something else
_MOST = 1 << 31  # ranks, and numbers that are labels
_SHARED_STEPS = 0.5  # two ranks have at least this share of their steps in common


def columns_by_rank(rows: Sequence[Mapping[str, Any]]) -> Mapping[int, Mapping[str, str]]:
    """Columns of numbers for each rank: their names without the rank, and in the file.

    Empty unless several ranks have the same columns, with a duration among them.
    """
    by_rank: dict[int, dict[str, str]] = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        if len(name) > LONGEST_NAME or not (match := _OF_RANK.fullmatch(name)):
            continue
        parts = [match[part].strip(" _-:./") for part in ("before", "after")]
        if any(parts) and are_numbers([row.get(name) for row in rows]):
            by_rank.setdefault(int(match["rank"]), {})["_".join(filter(None, parts))] = name
    names = {frozenset(columns) for columns in by_rank.values()}
    return by_rank if len(by_rank) > 1 and len(names) == 1 and any(map(duration_of, *names)) else {}


_SAMPLE_ROWS = 100_000  # rows by which the whole step is recognised


class RowsByRank:
    """The numbers in rows of a log: `columns` (n,), sorted by rank, else in the order of the file.

    `lost` counts the rows without a sound rank, `added` by rank the rows added to others.
    """

    def __init__(self, form: Form, columns: dict[str, Float64]) -> None:
        kinds, self.lost = form.kinds, 0
        self.labels = kinds.labels
        self.added: dict[int, int] = {}
        self.known: dict[int, int] = {}  # the rank for each number in the rows, if they differ
        rank = np.full(len(next(iter(columns.values()))), -1.0)
        if kinds.rank is not None:
            rank = columns[kinds.rank]
            is_known = (np.abs(rank) < _MOST) & (np.rint(rank) == rank)  # not NaN
            self.lost = int((~is_known).sum())
            rank = rank[is_known]
            _select(columns, is_known)
        elif self.labels:  # may be measurements, which a row may lack: such a row stays
            labels = [np.rint(np.nan_to_num(columns[name], nan=-1)) for name in self.labels]
            host, local = (np.clip(label, -1, _MOST) for label in (0 * labels[-1], *labels)[-2:])
            rank = host * _MOST + local
        if (np.diff(rank) < 0).any():
            order = np.argsort(rank, kind="stable")
            rank = rank[order]
            _select(columns, order)
        self.columns, self.n = columns, len(rank)
        first = np.flatnonzero(np.diff(rank, prepend=np.nan)).tolist()
        slices = map(slice, first, [*first[1:], self.n])
        self._rows_of = dict(zip(rank[first].astype(np.int64).tolist(), slices, strict=True))

    def ranks(self) -> list[int]:
        """Numbers of the ranks in the rows, in the order of the ranks."""
        return sorted(self._rows_of, key=lambda rank: self.known.get(rank, rank))

    def kinds(self, path: Path, of_file: Kinds) -> Kinds:
        """Kinds of the rows' columns, from the kinds of the file's columns."""
        return of_file

    def translate(self, name: str, numbers: Sequence[int]) -> None:
        """Replace the codes in a column by the `numbers` that they stand for."""
        codes = self.columns[name]
        is_known = ~np.isnan(codes)
        codes[is_known] = np.array(numbers, np.float64)[codes[is_known].astype(np.int64)]

    def number(
        self, step: str | None, codes: Mapping[str, Mapping[str, int]], *, is_asked: bool
    ) -> list[str]:
        """Assign numbers to the ranks that labels tell apart, and note them.

        If ranks share no steps, the label is a measurement and all rows are one rank, unless the user asked
        for the label (`is_asked`); its numbers may be process ids.
        """
        ranks = self.ranks()
        first, second = (self.of(rank)[step] if step else np.zeros(0) for rank in (ranks * 2)[:2])
        is_shared = len(first) and np.isin(first, second).mean() >= _SHARED_STEPS
        if not is_asked and (len(ranks) < 2 or not is_shared):
            self._rows_of = {-1: slice(self.n)}
            return []
        texts = [{code: text for text, code in codes.get(name, {}).items()} for name in self.labels]

        def label(rank: int) -> str:
            numbers = divmod(rank, _MOST)[-len(texts) :]
            return " ".join(of.get(number, str(number)) for of, number in zip(texts, numbers, strict=True))

        ranks.sort(key=lambda rank: natural(label(rank)))
        if is_asked and not texts[0]:
            self.known = dict(zip(ranks, as_ranks(ranks, self.labels[0]), strict=True))
            if all(rank == number for number, rank in self.known.items()):
                return []
        elif len(texts) > 1 or any(texts):
            self.known = {rank: index for index, rank in enumerate(ranks)}
        ends = (f"rank {self.known.get(rank, rank)} is {label(rank)}" for rank in (ranks[0], ranks[-1]))
        note = f"ranks are told apart by {' and '.join(self.labels)}: {', '.join(ends)}"
        return [Note(note, NoteKind.WHOLE)]

    def sample(self) -> dict[str, Float64]:
        """Columns of a sample of all ranks' rows: the first rank may be unlike the others."""
        return {name: column[:: 1 + self.n // _SAMPLE_ROWS] for name, column in self.columns.items()}

    def of(self, rank: int) -> dict[str, Float64]:
        """Columns of a rank's rows, in the order of the file."""
        return {name: column[self._rows_of[rank]] for name, column in self.columns.items()}


class Metrics(RowsByRank):
    """Rows with one metric each, as a row of all metrics for each step."""

    def __init__(self, form: Form, columns: dict[str, Float64], apart: Sequence[str]) -> None:
        self._metric, self._measure = str(form.kinds.metric), form.kinds.measure
        self._keys = [str(form.kinds.step), *apart]
        self._codes = form.codes[self._metric]
        is_named = ~np.isnan(columns[self._metric])
        _select(columns, is_named)
        super().__init__(form, columns)
        self.lost += int((~is_named).sum())

    def metrics(self) -> list[str]:
        """Names of the metrics as columns, in the order of their codes."""
        return [name if name not in self.columns else f"{name} {self._measure}" for name in self._codes]

    def kinds(self, path: Path, of_file: Kinds) -> Kinds:
        """Sort the metrics into durations, by their names or that of the number, and values."""
        if len(self._codes) > _MOST_METRICS:
            raise TraceError(
                f"{path}: column {self._metric} has more than {_MOST_METRICS:,} names of metrics"
            )
        of_measure = duration_of(f"it {self._measure}")
        durations = {}
        for name in filter(None, self.metrics()):
            duration = duration_of(name)
            if of_measure is not None and (duration is None or not duration[1]):
                duration = name, of_measure[1]
            if duration is not None:
                durations[name] = duration
        if not durations:
            raise TraceError(
                f"{path}: which of its metrics are durations is not told: call them such as forward_ms, "
                f"or column {self._measure} such as value_ms"
            )
        values = [name for name in of_file.values if name != self._measure]
        values += [name for name in self.metrics() if name and name not in durations]
        return replace(of_file, durations=durations, values=values)

    def of(self, rank: int) -> dict[str, Float64]:
        """Columns of a rank's steps, in the order of the file.

        Numbers of one metric that follow each other in a step are added up. A metric that comes again after
        other steps is the step run again, in a row of its own.
        """
        columns = super().of(rank)
        keys, metric = [columns[name] for name in self._keys], columns[self._metric]
        visit = np.cumsum(_changes(keys))
        order = np.lexsort((visit, metric, *keys))
        is_first = _changes([key[order] for key in (visit, metric, *keys)])
        total = np.add.reduceat(columns[self._measure][order], np.flatnonzero(is_first))
        last = order[np.append(is_first[1:], True)]  # the last row of each sum
        self.added[rank] = len(order) - len(last)
        keys, metric, index = [key[last] for key in keys], metric[last], np.arange(len(last))
        again = index - np.maximum.accumulate(np.where(_changes([metric, *keys]), index, 0))
        order = np.lexsort((last, again, *keys))
        is_first = _changes([key[order] for key in (again, *keys)])
        table = np.full((len(self._codes), int(is_first.sum())), np.nan)
        table[metric[order].astype(np.int64), np.cumsum(is_first) - 1] = total[order]
        last = last[order][np.append(is_first[1:], True)]
        in_file = np.argsort(last)
        of_steps = {name: column[last[in_file]] for name, column in columns.items()}
        return of_steps | dict(zip(self.metrics(), table[:, in_file], strict=True))

    def sample(self) -> dict[str, Float64]:
        """Columns of the first rank."""
        return self.of(self.ranks()[0])


def _select(columns: dict[str, Float64], rows: NDArray[Any]) -> None:
    """Keep some rows of all columns, one after the other to save memory."""
    for name in columns:
        columns[name] = columns[name][rows]


def _changes(keys: Sequence[NDArray[Any]]) -> Mask:
    """Mask of the rows (n,) with another key than the row before; the first row is one."""
    return np.asarray(np.any([np.diff(key, prepend=np.nan) != 0 for key in keys], axis=0))
