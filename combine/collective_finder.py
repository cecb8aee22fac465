"""Finds the operations that several ranks do together, by which the clocks of hosts are compared."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from arrays import Int64
from dialects.needs import Need
from dialects.sync_points import SyncPart, SyncPoints, collected
from dialects.system import System
from formats.columns import Trace
from formats.event import args_object
from formats.whole import WholeEvent

NO_ROLE = 0
_LOOK = 1  # only the event's args tell which operation it is part of
_FIRST = 2  # the number of the first operation that name and track tell


class SyncFinder:
    """Collects begins and ends of one source's synchronous operations, as `System.sync_part` tells them."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._parts: dict[SyncPart, int] = {}
        self._may_matter = lru_cache(None)(self._system.may_synchronise)
        self._roles: list[Int64] = []
        self._begins: list[Int64] = []
        self._ends: list[Int64] = []

    def role(self, name: Any, cat: Any, tid: Any) -> int:
        """Return the role of events of that name, category and thread: what `add` is to take them for."""
        if not isinstance(name, str) or not self._may_matter(name):
            return NO_ROLE
        if self._system.args.get(Need.SYNC):
            return _LOOK
        return self._number(self._system.sync_part(name, str(cat or ""), tid, {}))

    def add(self, event_of: Callable[[int], WholeEvent], roles: Int64, ts: Int64, dur: Int64) -> None:
        """Look through the events of one piece, `roles`, `ts` and `dur` (n,); a dur of -1 means no duration.

        `event_of` returns the name, the category and the arguments of an event.
        """
        rows = np.flatnonzero((roles != NO_ROLE) & (dur >= 0))
        roles = roles[rows]
        if self._system.args.get(Need.SYNC):
            roles = np.fromiter((self._looked_at(event_of(i)) for i in rows.tolist()), np.int64, len(rows))
            rows, roles = rows[roles != NO_ROLE], roles[roles != NO_ROLE]
        if len(rows):
            self._roles.append(roles)
            self._begins.append(ts[rows])
            self._ends.append(ts[rows] + dur[rows])

    def found(self, about: Trace) -> SyncPoints:
        """Return the operations, in nanoseconds on the source's own clock; `about` has its metadata."""
        if not self._roles:
            return self._system.sync_points(about)
        roles, begins, ends = map(np.concatenate, (self._roles, self._begins, self._ends))
        order = np.argsort(roles.astype(np.min_scalar_type(len(self._parts) + _FIRST)), kind="stable")
        parts = list(self._parts)
        first = np.flatnonzero(np.diff(roles[order], prepend=-1))
        points = collected(
            (parts[int(roles[rows[0]]) - _FIRST], begins[rows], ends[rows])
            for rows in np.split(order, first[1:])
        )
        return self._system.in_groups(points, about.header)

    def _looked_at(self, event: WholeEvent) -> int:
        args = args_object(event.args) if isinstance(event.args, msgspec.Raw) else {}
        return self._number(self._system.sync_part(str(event.name), str(event.cat or ""), None, args))

    def _number(self, part: SyncPart | None) -> int:
        return NO_ROLE if part is None else self._parts.setdefault(part, len(self._parts) + _FIRST)
