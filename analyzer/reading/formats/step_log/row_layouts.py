"""Rows of a step log by rank: one for each step, a metric in each, or the columns of all ranks in one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from analyzer.base.arrays import Float64, Mask, NDArray
from analyzer.base.errors import TraceError
from analyzer.reading.formats.step_log.lines import Form
from analyzer.reading.formats.step_log.named_columns import LONGEST_NAME, Kinds, are_numbers, duration_of
from analyzer.reading.formats.values import as_ranks

#: A rank's own column, in rows of all ranks: ``rank3_data_ms``, ``data_ms/rank3``, ``rank3 - step_ms``.
_OF_RANK = re.compile(r"(?i)(?P<before>.*?)(?<![a-z])rank[ _:=#-]?(?P<rank>\d{1,7})(?!\d)(?P<after>.*)")
_MANY_ROWS = 100_000  # of which some tell the whole step
_PIECE_ROWS = 250_000  # that are sorted together
_MOST_METRICS = 1_000  # beyond it the column names something else: each becomes a column of every step
_MOST = 1 << 31  # of ranks, and of numbers that are labels
_SHARED_STEPS = 0.5  # that two ranks have, at least
OwnColumns = Mapping[int, Mapping[str, str]]  # of ranks: the names without the rank -> those in the file


def columns_by_rank(rows: Sequence[Mapping[str, Any]]) -> OwnColumns:
    """Return the columns of numbers that each rank has of its own, by what they are called without the rank.

    None where they are not of several ranks, which all have the same, durations among them.
    """
    found: dict[int, dict[str, str]] = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        if len(name) > LONGEST_NAME or not (match := _OF_RANK.fullmatch(name)):
            continue
        parts = [match[part].strip(" _-:./") for part in ("before", "after")]
        if any(parts) and are_numbers([row.get(name) for row in rows]):
            found.setdefault(int(match["rank"]), {})["_".join(filter(None, parts))] = name
    alike = {frozenset(own) for own in found.values()}
    return found if len(found) > 1 and len(alike) == 1 and any(map(duration_of, *alike)) else {}


class Wide:
    """Rows of all ranks at once, as a row for each rank."""

    def __init__(self, form: Form, kinds: Kinds, ranks: OwnColumns) -> None:
        self.form, self.kinds, self.ranks = form, kinds, ranks
        names = (kinds.step, *kinds.durations, *kinds.values, kinds.rank, kinds.time, kinds.metric)
        self.names = [name for name in names if name is not None]
        self.codes = form.codes

    @property
    def lost(self) -> int:
        """See `Form`."""
        return self.form.lost

    @property
    def odd(self) -> int:
        """See `Form`."""
        return self.form.odd

    def tables(self, blocks: Iterable[bytes]) -> Iterator[Float64]:
        """Yield the numbers (rows of ranks, columns); see `Form.tables`."""
        for rows in self.form.tables(blocks):
            every = dict(zip(self.form.names, rows.T, strict=True))
            of_ranks = [
                np.broadcast_arrays(
                    *(
                        every[columns[name]] if name in columns else every.get(name, rank)
                        for name in self.names
                    )
                )
                for rank, columns in self.ranks.items()
            ]
            table: Float64 = np.concatenate(of_ranks, axis=1, dtype=np.float64).T
            yield table


class RowsByRank:
    """The numbers in rows of a log, by their rank.

    `n` counts the rows, `lost` those of which the rank is damaged, `added` those added to others, by rank.
    """

    def __init__(self, names: Sequence[str], whose: str | Sequence[str]) -> None:
        self.names, self.n, self.lost = names, 0, 0
        self.is_rank = isinstance(whose, str)  # else labels may tell ranks
        self.labels = [whose] if isinstance(whose, str) else whose
        self.added: dict[int, int] = {}
        self.known: dict[int, int] = {}  # the rank of each number in the rows, where that is another one
        self._blocks: list[Float64] = []  # (rows, columns) that are in no piece yet
        self._pieces: list[tuple[dict[int, slice], Float64]] = []  # which rows are whose, rows

    def add(self, table: Float64) -> None:
        """Add rows (n, columns)."""
        self._blocks.append(table)
        if sum(map(len, self._blocks)) >= _PIECE_ROWS:
            self._end_piece()

    def _end_piece(self) -> None:
        table = np.concatenate(self._blocks)
        self._blocks = []
        rank = np.full(len(table), -1.0)
        if self.is_rank:
            rank = table[:, self.names.index(self.labels[0])].copy()  # it is gone through several times
        elif self.labels:  # maybe measurements, which a row may lack: it stays
            labels = [
                np.rint(np.nan_to_num(table[:, self.names.index(name)], nan=-1)) for name in self.labels
            ]
            host, local = (np.clip(label, -1, _MOST) for label in (0 * labels[-1], *labels)[-2:])
            rank = host * _MOST + local
        is_known = (np.abs(rank) < _MOST) & (np.rint(rank) == rank)  # not NaN
        if self.is_rank and not is_known.all():
            self.lost += int((~is_known).sum())
            table, rank = table[is_known], rank[is_known]
        if (np.diff(rank) < 0).any():
            is_short = rank.min() >= 0 and rank.max() <= np.iinfo(np.uint16).max  # sorted by its digits
            order = np.argsort(rank.astype(np.uint16) if is_short else rank, kind="stable")
            table, rank = table.take(order, axis=0), rank[order]
        first = np.flatnonzero(np.diff(rank, prepend=np.nan))
        own = map(slice, first.tolist(), [*first[1:].tolist(), len(rank)])
        whose = dict(zip(rank[first].astype(np.int64).tolist(), own, strict=True))
        self._pieces.append((whose, table))
        self.n += len(rank)

    def end(self) -> None:
        """Know that no rows are added after."""
        if self._blocks:
            self._end_piece()

    def ranks(self) -> list[int]:
        """Return the numbers of the ranks in the rows, in the order of the ranks."""
        found = {rank for whose, _ in self._pieces for rank in whose}
        return sorted(found, key=lambda rank: self.known.get(rank, rank))

    def kinds(self, path: Path, of_file: Kinds) -> Kinds:
        """Tell the kinds of the rows' columns; `of_file` are those of the columns in the file."""
        return of_file

    def translate(self, name: str, numbers: Sequence[int]) -> None:
        """Replace the codes in a column by the `numbers` that they stand for."""
        column = self.names.index(name)
        for _, table in self._pieces:
            is_known = ~np.isnan(table[:, column])
            codes = table[is_known, column].astype(np.int64)
            table[is_known, column] = np.array(numbers, np.float64)[codes]

    def number(
        self, step: str | None, codes: Mapping[str, Mapping[str, int]], *, is_asked: bool = False
    ) -> list[str]:
        """Give the ranks that labels tell their numbers, and return a note.

        They are one rank where each has steps of its own, as where the label is a measurement; but not where
        the user asked for the label (`is_asked`): then its numbers may be the ids of processes.
        """
        ranks = self.ranks()
        one, other = (self.of(rank)[step] if step else np.zeros(0) for rank in (ranks * 2)[:2])
        if not is_asked and (len(ranks) < 2 or not np.isin(one, other).mean() >= _SHARED_STEPS):
            self._pieces = [({-1: slice(len(table))}, table) for _, table in self._pieces]
            return []
        texts = [{code: text for text, code in codes.get(name, {}).items()} for name in self.labels]

        def told(rank: int) -> str:
            labels = divmod(rank, _MOST)[-len(texts) :]
            return " ".join(one.get(label, str(label)) for one, label in zip(texts, labels, strict=True))

        def natural(rank: int) -> list[Any]:
            parts = re.split(r"(\d+)", told(rank))
            return [int(part) if at % 2 else part for at, part in enumerate(parts)]

        ranks.sort(key=natural)
        if is_asked and not texts[0]:
            self.known = dict(zip(ranks, as_ranks(ranks, self.labels[0]), strict=True))
            if all(rank == number for number, rank in self.known.items()):
                return []
        elif len(texts) > 1 or any(texts):
            self.known = {rank: place for place, rank in enumerate(ranks)}
        first, last = (f"rank {self.known.get(rank, rank)} is {told(rank)}" for rank in (ranks[0], ranks[-1]))
        return [f"ranks are told apart by {' and '.join(self.labels)}: {first}, {last}"]

    def some(self) -> dict[str, Float64]:
        """Return the columns of enough rows of all ranks to tell what they are."""
        every = 1 + self.n // _MANY_ROWS
        return self._columns([(slice(None, None, every), table) for _, table in self._pieces])

    def of(self, rank: int) -> dict[str, Float64]:
        """Return the columns of a rank's rows, in the order of the file."""
        return self._columns([(whose[rank], table) for whose, table in self._pieces if rank in whose])

    def _columns(self, pieces: Sequence[tuple[slice, Float64]]) -> dict[str, Float64]:
        """Return the columns of some rows of pieces."""
        table = np.concatenate([table[own] for own, table in pieces])
        return dict(zip(self.names, table.T.copy(), strict=True))


class Metrics(RowsByRank):
    """Rows of one number each, which a metric names, as a row of all metrics for each step."""

    def __init__(self, form: Form | Wide, whose: str | Sequence[str], apart: Sequence[str]) -> None:
        super().__init__(form.names, whose)
        self._metric, self._measure = str(form.kinds.metric), form.kinds.measure
        self._keys = [str(form.kinds.step), *apart]
        self._codes = form.codes[self._metric]

    def add(self, table: Float64) -> None:
        """Add rows (n, columns); those without a metric are lost."""
        is_named = ~np.isnan(table[:, self.names.index(self._metric)])
        self.lost += int((~is_named).sum())
        super().add(table[is_named])

    def metrics(self) -> list[str]:
        """Return the names of the metrics as columns, in the order of their codes."""
        return [name if name not in self.names else f"{name} {self._measure}" for name in self._codes]

    def kinds(self, path: Path, of_file: Kinds) -> Kinds:
        """Return the metrics that are durations, by their names or that of the number, and all others."""
        if len(self._codes) > _MOST_METRICS:
            raise TraceError(
                f"{path}: column {self._metric} has more than {_MOST_METRICS:,} names of metrics"
            )
        in_all = duration_of(f"it {self._measure}")
        found = {name: duration_of(name) for name in self.metrics() if name}
        if in_all is not None:
            found = {name: one if one and one[1] else (name, in_all[1]) for name, one in found.items()}
        durations = {name: one for name, one in found.items() if one is not None}
        if not durations:
            raise TraceError(
                f"{path}: which of its metrics are durations is not told: call them such as forward_ms, "
                f"or column {self._measure} such as value_ms"
            )
        values = [name for name in of_file.values if name != self._measure]
        values += [name for name in found if name not in durations]
        return replace(of_file, durations=durations, values=values)

    def of(self, rank: int) -> dict[str, Float64]:
        """Return the columns of a rank's steps, in the order of the file.

        Numbers of one metric that follow each other in a step are added up. What comes after other steps is
        the step run again, and a row of its own.
        """
        columns = super().of(rank)
        keys, metric = [columns[name] for name in self._keys], columns[self._metric]
        visit = np.cumsum(_changes(keys))
        order = np.lexsort((visit, metric, *keys))
        is_first = _changes([key[order] for key in (visit, metric, *keys)])
        total = np.add.reduceat(columns[self._measure][order], np.flatnonzero(is_first))
        last = order[np.append(is_first[1:], True)]  # of each sum: its last row
        self.added[rank] = len(order) - len(last)
        keys, metric, at = [key[last] for key in keys], metric[last], np.arange(len(last))
        again = at - np.maximum.accumulate(np.where(_changes([metric, *keys]), at, 0))
        order = np.lexsort((last, again, *keys))
        is_first = _changes([key[order] for key in (again, *keys)])
        table = np.full((len(self._codes), int(is_first.sum())), np.nan)
        table[metric[order].astype(np.int64), np.cumsum(is_first) - 1] = total[order]
        last = last[order][np.append(is_first[1:], True)]
        in_file = np.argsort(last)
        found = {name: column[last[in_file]] for name, column in columns.items()}
        return found | dict(zip(self.metrics(), table[:, in_file], strict=True))

    def some(self) -> dict[str, Float64]:
        """Return the columns of the first rank, which tell what they are."""
        return self.of(self.ranks()[0])


def _changes(keys: Sequence[NDArray[Any]]) -> Mask:
    """Mask the rows (n,) that have another key than the one before; the first one has."""
    return np.asarray(np.any([np.diff(key, prepend=np.nan) != 0 for key in keys], axis=0))
