"""Parts of simulated clusters: a clock, cores whose speed changes, and limits that transfers share fairly."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Hashable, Sequence
from functools import partial

_ROUNDED = 1e-3  # bytes


class Clock:
    """Lets things happen at their time, in the order in which they were asked for where that is the same."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()

    def number(self) -> int:
        """Make a unique number."""
        return next(self._count)

    def at(self, time: float, then: Callable[[], None]) -> None:
        """Call `then` at a time."""
        heapq.heappush(self._events, (time, self.number(), then))

    def run(self) -> None:
        """Go on until nothing is left to happen."""
        while self._events:
            self.now, _, then = heapq.heappop(self._events)
            then()


class Core:
    """Computes, at a speed that changes."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self.speed = clock, 1.0
        self._left, self._since, self._turn = 0.0, 0.0, 0
        self._then: Callable[[], None] | None = None

    def compute(self, work: float, then: Callable[[], None]) -> None:
        """Call `then` when that much work is done."""
        self._left, self._since, self._then = work, self._clock.now, then
        self._go_on()

    def change(self, speed: float) -> None:
        """Compute at another speed from now on."""
        if speed != self.speed:
            self._left -= (self._clock.now - self._since) * self.speed
            self._since, self.speed = self._clock.now, speed
            if self._then is not None:
                self._go_on()

    def _go_on(self) -> None:
        self._turn += 1
        over = self._clock.now + max(self._left, 0.0) / self.speed
        self._clock.at(over, partial(self._done, self._turn))

    def _done(self, turn: int) -> None:
        if turn == self._turn and self._then is not None:
            then, self._then = self._then, None
            then()


class _Flow:
    __slots__ = ("left", "limits", "rate", "then")

    def __init__(self, n_bytes: float, limits: Sequence[Hashable], then: Callable[[], None]) -> None:
        self.left, self.rate, self.limits, self.then = n_bytes, 0.0, limits, then


class SharedLimits:
    """Moves bytes through limits, which those that use them at one time share fairly (max-min).

    `carries` says how many bytes a limit carries in a unit of time, `changed` is called when others use them.
    """

    def __init__(
        self, clock: Clock, carries: Callable[[Hashable], float], changed: Callable[[], None] = lambda: None
    ) -> None:
        self._clock, self._carries, self._changed = clock, carries, changed
        self._flows: list[_Flow] = []
        self._since, self._turn, self._ending = 0.0, 0, False

    def busy(self) -> set[Hashable]:
        """Limits in use."""
        return {limit for flow in self._flows for limit in flow.limits}

    def move(self, n_bytes: float, limits: Sequence[Hashable], then: Callable[[], None]) -> None:
        """Move bytes through all of some limits; `then` comes with the last one."""
        self._flows.append(_Flow(n_bytes, limits, then))
        if not self._ending:
            self._share()

    def _share(self) -> None:
        """Give each flow its share from now on: the smallest that some limit has to offer come first."""
        now = self._clock.now
        passed, self._since, self._turn = now - self._since, now, self._turn + 1
        users: dict[Hashable, list[_Flow]] = {}
        for flow in self._flows:
            flow.left -= flow.rate * passed
            flow.rate = 0.0
            for limit in flow.limits:
                users.setdefault(limit, []).append(flow)
        left = {limit: self._carries(limit) for limit in users}
        waiting = {limit: len(of) for limit, of in users.items()}
        while waiting:
            tight = min(waiting, key=lambda limit: left[limit] / waiting[limit])
            share = left[tight] / waiting[tight]
            for flow in users[tight]:
                if not flow.rate:
                    flow.rate = share
                    for limit in flow.limits:
                        left[limit] = max(left[limit] - share, 1e-9)
                        waiting[limit] -= 1
                        if not waiting[limit]:
                            del waiting[limit]
        if self._flows:
            first = min(max(flow.left, 0.0) / flow.rate for flow in self._flows)
            self._clock.at(now + first, partial(self._arrived, self._turn))
        self._changed()

    def _arrived(self, turn: int) -> None:
        if turn != self._turn:
            return
        passed = self._clock.now - self._since
        done = [one for one in self._flows if one.left - one.rate * passed <= _ROUNDED]
        self._flows = [one for one in self._flows if one not in done]
        self._ending = True  # what follows is shared out together
        for one in done:
            one.then()
        self._ending = False
        self._share()
