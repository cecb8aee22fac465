"""Arrows from slice to slice (flow events): what waits for what, as the trace itself says.

An arrow leaves the slice in which it begins. It holds up the slice at whose begin it ends, or the next one on
that thread; one in whose middle it ends waited for it. That is, for the end of the slice that it left, or
where that goes on, for the moment at which it left: there the slice is cut. Where only one end of an arrow is
in a rank's trace, it may meet that of another rank in the same file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from arrays import Int64, Mask
from arrays.numbering import numbered, occurrence_number
from dialects.step_parts import EdgeKind, Joint, Meeting, edge_rows
from formats.columns import Trace

_LEAVES, _ENTERS = "st", "tf"


class Arrows(NamedTuple):
    """The ends (k,) of arrows: those of one `flow` follow each other, by time."""

    path: str
    names: list[tuple[str, str, str]]  # of flows
    flow: Int64
    track: Int64
    at_ns: Int64
    leaves: Mask
    enters: Mask

    def cut(self, track: Int64, start: Int64, end: Int64) -> tuple[Int64, Int64, Int64]:
        """Return which event (m,) each piece is of, and when it starts and ends, cut where arrows begin."""
        event = _last_begun(track, start, self.track, self.at_ns)
        inside = ~self.enters & (event >= 0) & (start[event] < self.at_ns) & (self.at_ns < end[event])
        pieces = np.unique(np.stack([event[inside], self.at_ns[inside]]), axis=1)
        event = np.append(np.arange(len(start)), pieces[0])
        start = np.append(start, pieces[1])
        order = np.lexsort((start, event))
        event, start = event[order], start[order]
        is_cut = np.append(event[1:] == event[:-1], False)
        return event, start, np.where(is_cut, np.roll(start, -1), end[event])

    def edges(self, track: Int64, start: Int64, end: Int64) -> tuple[Int64, list[Meeting]]:
        """Return the edges (e, 4) between events (m,), and their part in arrows of other ranks."""
        left = _last_begun(track, start, self.track, self.at_ns)
        following = _last_begun(track, -start, self.track, -self.at_ns)
        is_over = (left < 0) | ((end[left] <= self.at_ns) & (start[left] < self.at_ns))
        entered = np.where(is_over, following, left)
        left[end[left] < self.at_ns] = -1
        joint = np.where(self.at_ns > start[entered], Joint.END_TO_BODY, Joint.END_TO_HEAD)
        leads_on = self.leaves[:-1] & self.enters[1:] & (self.flow[1:] == self.flow[:-1])
        begins, ends = self.leaves & ~np.append(leads_on, False), self.enters & ~np.append(False, leads_on)
        meetings = [
            *self._meetings_of(begins, left, joint, True),
            *self._meetings_of(ends, entered, joint, False),
        ]
        here = np.flatnonzero(leads_on & (left[:-1] >= 0) & (entered[1:] >= 0) & (left[:-1] != entered[1:]))
        source, target = left[here], entered[here + 1]
        goes_on = end[source] > self.at_ns[here + 1]
        return edge_rows(source, target, joint[here + 1] + goes_on, EdgeKind.MESSAGE), meetings

    def _meetings_of(self, chosen: Mask, event: Int64, joint: Int64, enters: bool) -> Iterator[Meeting]:
        """Yield the `chosen` ends (k,), at an `event` (k,), as parts in what another rank has the rest of."""
        ends = np.flatnonzero(chosen & (event >= 0))
        for i, turn in zip(ends.tolist(), occurrence_number(self.flow[ends]).tolist(), strict=True):
            key = (self.path, *self.names[self.flow[i]])
            yield Meeting(key, int(event[i]), enters, not enters, Joint(joint[i]), EdgeKind.MESSAGE, turn)


def arrows(trace: Trace) -> Arrows | None:
    """Return the ends of the arrows of a trace; None without any."""
    points, both = trace.points, zip(trace.points.phase, trace.points.ids, strict=True)
    rows = [i for i, (phase, one) in enumerate(both) if phase in _LEAVES + _ENTERS and one is not None]
    if not rows or not len(trace):
        return None
    ends = points.select(np.array(rows))
    places = zip(ends.cat_id.tolist(), ends.name_id.tolist(), ends.ids, strict=True)
    names, flow = numbered((trace.cats[cat], trace.names[name], one) for cat, name, one in places)
    order = np.lexsort((ends.ts_ns, flow))
    ends = ends.select(order)
    leaves, enters = (np.array([phase in of for phase in ends.phase]) for of in (_LEAVES, _ENTERS))
    track = ends.track_id.astype(np.int64)
    return Arrows(trace.path, names, flow[order].astype(np.int64), track, ends.ts_ns, leaves, enters)


def _last_begun(track: Int64, start: Int64, of_track: Int64, moments: Int64) -> Int64:
    """Return which event (n,) began last on each of some tracks by some moments (k,); -1 for none."""
    n, tracks = len(start), np.append(track, of_track)
    order = np.lexsort((np.arange(len(tracks)) >= n, np.append(start, moments), tracks))
    last = np.maximum.accumulate(np.where(order < n, np.arange(len(order)), 0))
    event = order[last]
    found = np.full(len(order), -1)
    found[order] = np.where((event < n) & (tracks[event] == tracks[order]), event, -1)
    return found[n:]
