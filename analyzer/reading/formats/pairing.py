"""The ends of slices that are recorded as two events: which begin each of them closes."""

from __future__ import annotations

import numpy as np

from analyzer.base.arrays import Int32, Int64, Mask
from analyzer.base.arrays.numbering import numbered, unique
from analyzer.reading.formats.event import EndRule


def pair(
    is_begin: Mask, track: Int32, ts_ns: Int64, name: Int32, rule: EndRule = EndRule.NESTED
) -> tuple[Int64, Int64]:
    """Rows (k,) of begins and of the ends that close them, by begin, among B and E rows (n,) in file order.

    An end with the `name` -1 may close a begin of any name.
    """
    rows = np.arange(len(track))
    begin = end = rows[:0]
    if rule is EndRule.NEIGHBOURS:
        same = (track[:-1] == track[1:]) & ((name[1:] < 0) | (name[:-1] == name[1:]))
        begin = np.flatnonzero(is_begin[:-1] & ~is_begin[1:] & same)
        end = begin + 1
        rows = np.delete(rows, np.concatenate([begin, end]))
    order = rows[_time_order(is_begin[rows], track[rows], ts_ns[rows])]
    inner_begin, inner_end = _nest(order, is_begin, track)
    wrong = (name[inner_end] >= 0) & (name[inner_begin] != name[inner_end])
    if rule is EndRule.NESTED_BY_NAME and wrong.any():
        bad_tracks = unique(track[inner_begin[wrong]])
        right = ~np.isin(track[inner_begin], bad_tracks)
        _, apart = numbered(zip(track.tolist(), name.tolist(), strict=True))
        order = order[np.isin(track[order], bad_tracks)]
        begin, end = _nest(order[np.argsort(apart[order], kind="stable")], is_begin, apart)
        inner_begin, inner_end = inner_begin[right], inner_end[right]
    begin, end = np.concatenate([begin, inner_begin]), np.concatenate([end, inner_end])
    by_begin = np.argsort(begin, kind="stable")
    return begin[by_begin], end[by_begin]


def _time_order(is_begin: Mask, track: Int32, ts_ns: Int64) -> Int64:
    """Order the rows by track, then time; at one instant as in the file.

    In a track that is not in time order, an end goes before the begins of its instant unless it directly
    follows its own begin (a slice of no length).
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

    At each depth begins and ends alternate; an end that closes nothing is the first at a new depth.
    """
    step = np.where(is_begin[order], 1, -1)
    level = np.cumsum(step) + (step < 0)
    sequence = np.lexsort((np.arange(len(order)), level, track[order]))
    rows, level = order[sequence], level[sequence]
    opens = is_begin[rows[:-1]] & ~is_begin[rows[1:]]
    opens &= (track[rows[:-1]] == track[rows[1:]]) & (level[:-1] == level[1:])
    first = np.flatnonzero(opens)
    return rows[first], rows[first + 1]
