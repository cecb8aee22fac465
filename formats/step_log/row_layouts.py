"""Rows of a step log by rank."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from arrays import Float64

_MANY_ROWS = 100_000  # of which some tell the whole step
_PIECE_ROWS = 250_000  # that are sorted together
_MOST = 1 << 31  # of ranks, and of numbers that are labels
_SHARED_STEPS = 0.5  # that two ranks have, at least


class RowsByRank:
    """The numbers in rows of a log, by their rank.

    `n` counts the rows, `lost` those of which the rank is damaged.
    """

    def __init__(self, names: Sequence[str], whose: str | Sequence[str]) -> None:
        self.names, self.n, self.lost = names, 0, 0
        self.is_rank = isinstance(whose, str)  # else labels may tell ranks
        self.labels = [whose] if isinstance(whose, str) else whose
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

    def number(self, step: str | None, codes: Mapping[str, Mapping[str, int]]) -> list[str]:
        """Give the ranks that labels tell their numbers, and return a note.

        They are one rank where each has steps of its own, as where the label is a measurement.
        """
        ranks = self.ranks()
        one, other = (self.of(rank)[step] if step else np.zeros(0) for rank in (ranks * 2)[:2])
        if len(ranks) < 2 or not np.isin(one, other).mean() >= _SHARED_STEPS:
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
        if len(texts) > 1 or codes:
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
