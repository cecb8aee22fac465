"""Pairs begins with ends: B/E events become slices."""

from __future__ import annotations

from collections import defaultdict
from enum import Enum

import numpy as np
from msgspec import Struct

from arrays import Int32, Int64, Mask
from arrays.numbering import unique


class Pairing(Struct, frozen=True):
    """Row numbers (k,) of begins and of the ends that close them, by begin; and what stayed alone."""

    begin: Int64
    end: Int64
    unclosed: int  # begins without an end
    unopened: int  # ends without a begin


class Rule(Enum):
    """Which begin an end closes."""

    NESTED = "the innermost open one of its track"
    #: So it is where a file begins in the middle of a nest (Composer): its first ends have no begins. In
    #: general an end's name says nothing.
    NESTED_BY_NAME = "the innermost open one of its own name, or none"
    #: So MXNet's profiler writes operations, and those of one thread may overlap: an asynchronous one ends
    #: long after the next has begun, which no nesting can tell.
    NEIGHBOURS = "the one right before it in the file, of its track and name; else the innermost open one"


def pair(is_begin: Mask, track: Int32, ts_ns: Int64, name: Int32, rule: Rule = Rule.NESTED) -> Pairing:
    """Match each end with a begin of its track, in time order.

    Parameters
    ----------
    is_begin, track, ts_ns : (n,) the B and E rows in file order
    name : (n,) name ids, -1 where an end has none: it may close a begin of any name
    """
    rows = np.arange(len(track))
    begin = end = rows[:0]
    if rule is Rule.NEIGHBOURS:
        same = (track[:-1] == track[1:]) & ((name[1:] < 0) | (name[:-1] == name[1:]))
        begin = np.flatnonzero(is_begin[:-1] & ~is_begin[1:] & same)
        end = begin + 1
        rows = np.delete(rows, np.concatenate([begin, end]))
    order = rows[_time_order(is_begin[rows], track[rows], ts_ns[rows])]
    inner_begin, inner_end = _nest(order, is_begin, track)
    wrong = (name[inner_end] >= 0) & (name[inner_begin] != name[inner_end])
    if rule is Rule.NESTED_BY_NAME and wrong.any():  # only the tracks in question go the slow way
        bad_tracks = unique(track[inner_begin[wrong]])
        right = ~np.isin(track[inner_begin], bad_tracks)
        begin, end = _by_stack(order[np.isin(track[order], bad_tracks)], is_begin, track, name)
        inner_begin, inner_end = inner_begin[right], inner_end[right]
    begin, end = np.concatenate([begin, inner_begin]), np.concatenate([end, inner_end])
    by_begin = np.argsort(begin, kind="stable")
    n_begins = int(is_begin.sum())
    return Pairing(begin[by_begin], end[by_begin], n_begins - len(begin), len(track) - n_begins - len(end))


def _time_order(is_begin: Mask, track: Int32, ts_ns: Int64) -> Int64:
    """Return the rows by track, then time; at one instant as in the file.

    In a track that the file does not hold in time order, an end goes before the begins of its instant
    unless it stands right behind its own begin (a slice of no length).
    """
    n = len(track)
    by_track = np.argsort(track, kind="stable")
    same = track[by_track][1:] == track[by_track][:-1]
    step = np.diff(ts_ns[by_track])
    late = np.ones(n, np.bool_)
    backwards = same & (step < 0)
    if backwards.any():
        unsorted = np.isin(track, unique(track[by_track[1:][backwards]]))
        closes_own = np.zeros(n, np.bool_)
        closes_own[by_track[1:]] = same & (step == 0) & is_begin[by_track[:-1]]
        late = ~unsorted | is_begin | closes_own
    return np.lexsort((np.arange(n), late, ts_ns, track))


def _nest(order: Int64, is_begin: Mask, track: Int32) -> tuple[Int64, Int64]:
    """Match by depth: in a track, the end that leaves a depth closes the begin that entered it.

    At each depth begins and ends alternate; an end that closes nothing reaches a new one, as its first.
    """
    step = np.where(is_begin[order], 1, -1)
    level = np.cumsum(step) + (step < 0)
    sequence = np.lexsort((np.arange(len(order)), level, track[order]))
    rows, level = order[sequence], level[sequence]
    opens = is_begin[rows[:-1]] & ~is_begin[rows[1:]]
    opens &= (track[rows[:-1]] == track[rows[1:]]) & (level[:-1] == level[1:])
    first = np.flatnonzero(opens)
    return rows[first], rows[first + 1]


def _by_stack(order: Int64, is_begin: Mask, track: Int32, name: Int32) -> tuple[Int64, Int64]:
    """Match with stacks, names considered: of a track, and of each name on it."""
    open_rows: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    closed: set[int] = set()  # begins that still lie on the other stack
    begins: list[int] = []
    ends: list[int] = []
    for row, on, called in zip(order.tolist(), track[order].tolist(), name[order].tolist(), strict=True):
        if is_begin[row]:
            open_rows[on, -1].append(row)
            open_rows[on, called].append(row)
            continue
        stack = open_rows[on, called]
        while stack and stack[-1] in closed:
            stack.pop()
        if stack:
            begin = stack.pop()
            closed.add(begin)
            begins.append(begin)
            ends.append(row)
    return np.array(begins, np.int64), np.array(ends, np.int64)
