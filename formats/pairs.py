"""Pairs begins with ends: B/E events become slices."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from formats.columns import Int32, Int64


@dataclass(frozen=True, slots=True)
class Pairing:
    """Row numbers (k,) of begins and of the ends that close them, by begin; and what stayed alone."""

    begin: Int64
    end: Int64
    unclosed: int  # begins without an end
    unopened: int  # ends without a begin


class Rule(Enum):
    """Which begin an end closes; see `pair` and `pair_neighbours`."""

    NESTED = "nested"
    NESTED_BY_NAME = "nested by name"
    NEIGHBOURS = "neighbours"


def pair(is_begin: NDArray[np.bool_], track: Int32, ts_ns: Int64, name: Int32 | None = None) -> Pairing:
    """Match each end with the innermost open begin of its track, in time order.

    Parameters
    ----------
    is_begin, track, ts_ns : (n,) the B and E rows in file order
    name : (n,) name ids, -1 where an end has none. Where given, an end closes the innermost open begin
        of its own name, or nothing: Composer begins to record in the middle of a nest and so writes
        ends whose begins were before. In general an end's name says nothing.
    """
    n = len(track)
    if n == 0:
        none = np.empty(0, np.int64)
        return Pairing(none, none, 0, 0)
    order = _time_order(is_begin, track, ts_ns)
    begin, end = _nest(order, is_begin, track)
    wrong = _misnamed(begin, end, name)
    if name is not None and wrong.any():  # only the tracks in question go the slow way
        bad_tracks = np.unique(track[begin[wrong]])
        keep = ~np.isin(track[begin], bad_tracks)
        more = _by_stack(order[np.isin(track[order], bad_tracks)], is_begin, track, name)
        begin = np.concatenate([begin[keep], more[0]])
        end = np.concatenate([end[keep], more[1]])
    by_begin = np.argsort(begin, kind="stable")
    n_begins = int(is_begin.sum())
    return Pairing(begin[by_begin], end[by_begin], n_begins - len(begin), n - n_begins - len(end))


def pair_neighbours(is_begin: NDArray[np.bool_], track: Int32, ts_ns: Int64, name: Int32) -> Pairing:
    """Match each begin with the end right behind it in the file, on its track and of its name.

    So MXNet's profiler writes an operation, and operations of one thread may overlap: an asynchronous
    one ends long after the next has begun, which no nesting can tell. What has no such neighbour is
    matched by nesting. Parameters as of `pair`.
    """
    same = (track[:-1] == track[1:]) & ((name[1:] < 0) | (name[:-1] == name[1:]))
    begin = np.flatnonzero(is_begin[:-1] & ~is_begin[1:] & same)
    alone = np.ones(len(track), np.bool_)
    alone[begin] = alone[begin + 1] = False
    rest = np.flatnonzero(alone)
    others = pair(is_begin[rest], track[rest], ts_ns[rest])
    begins = np.concatenate([begin, rest[others.begin]])
    ends = np.concatenate([begin + 1, rest[others.end]])
    by_begin = np.argsort(begins, kind="stable")
    return Pairing(begins[by_begin], ends[by_begin], others.unclosed, others.unopened)


def _misnamed(begin: Int64, end: Int64, name: Int32 | None) -> NDArray[np.bool_]:
    if name is None:
        return np.zeros(len(begin), np.bool_)
    wrong: NDArray[np.bool_] = (name[end] >= 0) & (name[begin] != name[end])
    return wrong


def _time_order(is_begin: NDArray[np.bool_], track: Int32, ts_ns: Int64) -> Int64:
    """Return the rows by track, then time; at one instant as in the file.

    In a track that the file does not hold in time order, an end goes before the begins of its instant
    unless it stands right behind its own begin (a slice of no length).
    """
    n = len(track)
    by_track = np.argsort(track, kind="stable")
    same = track[by_track][1:] == track[by_track][:-1]
    step = np.diff(ts_ns[by_track])
    late = np.zeros(n, np.int8)
    backwards = same & (step < 0)
    if backwards.any():
        unsorted = np.isin(track, np.unique(track[by_track[1:][backwards]]))
        closes_own = np.zeros(n, np.bool_)
        closes_own[by_track[1:]] = same & (step == 0) & is_begin[by_track[:-1]]
        late = np.where(unsorted & ~is_begin & ~closes_own, 0, 1).astype(np.int8)
    return np.lexsort((np.arange(n), late, ts_ns, track))


def _nest(order: Int64, is_begin: NDArray[np.bool_], track: Int32) -> tuple[Int64, Int64]:
    """Match by depth: in a track, the end that leaves a depth closes the begin that entered it."""
    order = _drop_unopened(order, is_begin, track)
    step = np.where(is_begin[order], 1, -1)
    depth = _depth(step, track[order])
    level = np.where(step > 0, depth, depth + 1)
    sequence = np.lexsort((np.arange(len(order)), level, track[order]))
    rows = order[sequence]
    opens = is_begin[rows[:-1]] & ~is_begin[rows[1:]]
    opens &= (track[rows[:-1]] == track[rows[1:]]) & (level[sequence][:-1] == level[sequence][1:])
    first = np.flatnonzero(opens)
    return rows[first], rows[first + 1]


def _drop_unopened(order: Int64, is_begin: NDArray[np.bool_], track: Int32) -> Int64:
    """Return `order` without the ends that close nothing: those that reach a new low below zero."""
    step = np.where(is_begin[order], 1, -1)
    depth = _depth(step, track[order])
    if depth.min(initial=0) >= 0:
        return order
    new_track = _starts(track[order])
    # a running minimum for each track: shift every track below all that the earlier ones reach
    group = np.cumsum(new_track) - 1
    shift = group * (2 * len(order) + 2)
    lowest = np.minimum.accumulate(np.minimum(depth, 0) - shift) + shift
    before = np.concatenate([[0], lowest[:-1]])
    before[new_track] = 0
    return order[~((step < 0) & (depth < before))]


def _depth(step: NDArray[np.int64], track: Int32) -> NDArray[np.int64]:
    """Return the running sum of `step` (n,) within each run of equal `track`."""
    total = np.cumsum(step)
    starts = np.flatnonzero(_starts(track))
    base = np.concatenate([[0], total[starts[1:] - 1]]) if len(starts) else np.empty(0, np.int64)
    lengths = np.diff(np.append(starts, len(step)))
    return total - np.repeat(base, lengths)


def _starts(track: Int32) -> NDArray[np.bool_]:
    """Return where (n,) a run of equal values begins."""
    out = np.ones(len(track), np.bool_)
    out[1:] = track[1:] != track[:-1]
    return out


def _by_stack(order: Int64, is_begin: NDArray[np.bool_], track: Int32, name: Int32) -> tuple[Int64, Int64]:
    """Match with a stack for each track, names considered."""
    open_rows: dict[int, list[int]] = {}
    begins: list[int] = []
    ends: list[int] = []
    for row in order.tolist():
        stack = open_rows.setdefault(int(track[row]), [])
        if is_begin[row]:
            stack.append(row)
            continue
        wanted = name[row]
        for depth in range(len(stack) - 1, -1, -1):
            if wanted < 0 or name[stack[depth]] == wanted:
                begins.append(stack.pop(depth))
                ends.append(row)
                break
    return np.array(begins, np.int64), np.array(ends, np.int64)
