"""Discrete-event simulation: a clock, a heap of events, and a queue for each device."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from msgspec import Struct

from analyzer.base.arrays import Float64, Int64
from analyzer.base.errors import TraceError
from analyzer.reading.formats import native

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

#: The device of operations that never queue: threads, and links without contention.
UNLIMITED = -1
#: A transfer with less than this remaining (ns) has finished: speeds are fractions, so times are rounded.
_ROUNDED = 0.5
#: Bytes of input for each operation in the decision whether to load the C library.
_AS_BYTES = 64


class Plan(Struct, frozen=True):
    """The operations to simulate as columns (n,), and their successors."""

    dur_ns: Int64  # time on the device, at least 0
    gap_ns: Int64  # from the last input to joining the device's queue
    device: Int64  # runs one operation at a time, from 0; or `UNLIMITED`
    priority: Int64  # in a queue the smallest goes first, then first ready, then by number
    after_ptr: Int64  # the successors of operation i are ``after[after_ptr[i]:after_ptr[i + 1]]``
    after: Int64
    sides: Int64  # (devices, 2) the limits that busy devices share fairly, -1 for none
    carries: Float64  # (sides,) speed of a transfer that uses the limit alone, relative to the recorded one

    def __len__(self) -> int:
        return len(self.dur_ns)


def make_plan(
    dur_ns: ArrayLike,
    edges: ArrayLike = (),
    *,
    device: ArrayLike = UNLIMITED,
    priority: ArrayLike = 0,
    gap_ns: ArrayLike = 0,
    sides: Int64 | None = None,
    carries: Sequence[float] = (),
) -> Plan:
    """Make the plan of n operations with (e, 2) edges; a scalar column holds for all operations."""
    dur = np.asarray(dur_ns, np.int64)
    n = len(dur)
    source, target = np.asarray(edges, np.int64).reshape(-1, 2).T
    limits = np.zeros((0, 2), np.int64) if sides is None else sides
    gap, devices, priorities = (
        np.broadcast_to(np.asarray(values, np.int64), n) for values in (gap_ns, device, priority)
    )
    return Plan(
        dur_ns=dur,
        gap_ns=gap,
        device=devices,
        priority=priorities,
        after_ptr=np.cumsum(np.bincount(source + 1, minlength=n + 1)),
        after=target[np.argsort(source, kind="stable")],
        sides=limits,
        carries=np.array(carries or [1.0] * (int(limits.max(initial=-1)) + 1)),
    )


class Schedule(NamedTuple):
    """Start and end (n,) of each operation of a plan, in nanoseconds from the start."""

    start_ns: Int64
    end_ns: Int64


def simulate(plan: Plan, *, compiled: bool | None = None) -> Schedule:
    """Start every operation when its inputs have ended, its gap has passed and its device is free.

    A free device takes the waiting operation with the smallest (priority, time of joining the queue, number).
    The simulation is deterministic.

    Devices with sides are connections. Busy connections share the capacity of a side (`carries`, relative to
    one connection alone) by max-min fairness, as in TCP.

    `compiled` chooses the loop in C or in Python (None: C if loading it pays); the schedule is the same.
    Raises TraceError if operations wait for each other.
    """
    if compiled is None:
        compiled = native.is_worth(_AS_BYTES * len(plan))
    n_devices = int(plan.device.max(initial=UNLIMITED)) + 1
    start = np.zeros(len(plan), np.int64)
    waiting = np.bincount(plan.after, minlength=len(plan))
    dur = np.array(plan.dur_ns)  # the loop writes the times of transfers that share a side
    sides = np.full((n_devices, 2), -1)
    sides[: len(plan.sides)] = plan.sides[:n_devices]  # further devices have no sides
    columns: list[Int64 | Float64] = [
        dur, plan.gap_ns, plan.after_ptr, plan.after, plan.priority, plan.device, sides, plan.carries,
        waiting, start,
    ]  # fmt: skip
    library = native.library() if compiled else None
    if library is not None:
        done = _run(library.run, n_devices, columns)
    else:
        # Python reads elements of lists several times faster than those of arrays.
        lists: list[Any] = [column.tolist() for column in columns]
        done = _loop(n_devices, *lists)
        dur, waiting, start = (np.array(lists[i], np.int64) for i in (0, -2, -1))
    if done < len(plan):
        raise TraceError(f"{np.count_nonzero(waiting)} operations wait for each other: the graph has a cycle")
    return Schedule(start, start + dur)


_ARRAYS = ["dur", "gap", "after_ptr", "after", "priority", "device", "sides", "carries", "waiting", "start"]


class _Columns(ctypes.Structure):
    """`plan` of simulate.c."""

    _fields_ = (
        ("n", ctypes.c_int64),
        ("devices", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in _ARRAYS),
    )


def _run(run: Callable[[Any], int], n_devices: int, columns: Sequence[Int64 | Float64]) -> int:
    """Run a loop in C; `dur`, `waiting` and `start`, the first and the last columns, are changed in place."""
    held = [np.ascontiguousarray(column) for column in columns]
    pointers = [column.ctypes.data for column in held]
    done = run(ctypes.byref(_Columns(len(held[0]), n_devices, *pointers)))
    if done < 0:
        raise MemoryError
    return done


# ---- the loop of simulate.c in Python

_Numbers = list[int]


class _Connections:
    """Busy connections with their remaining work and their speed."""

    def __init__(self, sides: Sequence[Sequence[int]], carries: Sequence[float]) -> None:
        self._carries, self._sides = carries, [[side for side in both if side >= 0] for both in sides]
        #: Speed of each connection that shares no side.
        self._alone = [min((carries[side] for side in limits), default=math.inf) for limits in self._sides]
        self.busy: list[int] = []
        self.operation = [0] * len(sides)
        self._left, self._speed = [0.0] * len(sides), [0.0] * len(sides)
        self._since, self.next_ns = 0, 0

    def begin(self, device: int, operation: int, dur: int) -> None:
        """Start an operation on a connection; `share` gives it a speed."""
        self.busy.append(device)
        self.operation[device], self._left[device], self._speed[device] = operation, float(dur), 0.0

    def over(self, now: int) -> list[int]:
        """Remove the finished operations from their connections and return them."""
        passed = now - self._since
        left = [self._left[device] - passed * self._speed[device] for device in self.busy]
        gone = [device for device, work in zip(self.busy, left, strict=True) if work <= _ROUNDED]
        self.busy = [device for device in self.busy if device not in gone]
        return [self.operation[device] for device in gone]

    def share(self, now: int) -> None:
        """Give each busy connection its fair speed from now on, tightest side first."""
        passed, self._since = now - self._since, now
        used: list[int] = []
        for device in self.busy:
            self._left[device] -= passed * self._speed[device]
            self._speed[device] = self._alone[device]
            used += self._sides[device]
        if len(set(used)) < len(used):
            self._divide(used)
        ahead = [math.ceil(max(self._left[device], 0.0) / self._speed[device]) for device in self.busy]
        self.next_ns = now + min(ahead, default=0)

    def _divide(self, used: list[int]) -> None:
        """Divide shared sides among the busy connections; `used` lists the sides of all."""
        users = {side: used.count(side) for side in sorted(used)}
        room, waiting = {side: self._carries[side] for side in users}, self.busy
        while waiting:
            least, tight = min((room[side] / n, side) for side, n in users.items() if n > 0)
            for device in waiting:
                if tight in self._sides[device]:
                    self._speed[device] = least
                    for side in self._sides[device]:
                        users[side] -= 1
                        room[side] -= least
            waiting = [device for device in waiting if tight not in self._sides[device]]


def _loop(
    n_devices: int, dur: _Numbers, gap: _Numbers, after_ptr: _Numbers, after: _Numbers, priority: _Numbers,
    device: _Numbers, sides: list[_Numbers], carries: list[float], waiting: _Numbers, start: _Numbers,
) -> int:  # fmt: skip
    """Fill in `start`, count `waiting` down, and return how many operations ended.

    An event is (time, code): the end of operation `code`, or, from code n on, operation `code - n` joining
    the queue of its device. All events of a moment are processed before devices choose, so their order does
    not matter. Transfers that share sides end when the network says so; `dur` becomes their time.
    """
    n = len(dur)
    events: list[tuple[int, int]] = []
    queues: list[list[tuple[int, int, int]]] = [[] for _ in range(n_devices)]
    is_free = [True] * n_devices
    changed: list[int] = []  # devices that became free or got a waiting operation at this moment
    sent: list[int] = []  # transfers that finished at this moment, the last one first
    network, is_connection = _Connections(sides, carries), [max(both) >= 0 for both in sides]
    done = 0

    def let_go(op: int, now: int) -> None:
        if device[op] >= 0:
            heappush(events, (now + gap[op], n + op))
        else:
            start[op] = now + gap[op]
            heappush(events, (start[op] + dur[op], op))

    for op in range(n):
        if waiting[op] == 0:
            let_go(op, 0)
    while events or network.busy:
        now = events[0][0] if events else network.next_ns
        is_shared_anew = bool(network.busy) and network.next_ns <= now
        if is_shared_anew:
            now = network.next_ns
            sent = network.over(now)[::-1]
        while sent or (events and events[0][0] == now):
            if sent:
                op = sent.pop()
                dur[op] = now - start[op]
            else:
                op = heappop(events)[1]
            if op >= n:
                heappush(queues[device[op - n]], (priority[op - n], now, op - n))
                changed.append(device[op - n])
                continue
            done += 1
            if device[op] >= 0:
                is_free[device[op]] = True
                changed.append(device[op])
            for then in after[after_ptr[op] : after_ptr[op + 1]]:
                waiting[then] -= 1
                if waiting[then] == 0:
                    let_go(then, now)
        for ready_device in changed:
            if is_free[ready_device] and queues[ready_device]:
                op = heappop(queues[ready_device])[2]
                is_free[ready_device] = False
                start[op] = now
                if is_connection[ready_device]:
                    network.begin(ready_device, op, dur[op])
                    is_shared_anew = True
                else:
                    heappush(events, (now + dur[op], op))
        changed.clear()
        if is_shared_anew:
            network.share(now)
    return done
