"""When a step on a device is complete, which decides where it begins and ends under every option.

A step is complete when the host has left it and all work that it launched there is done. The host may be
steps ahead of its device, so a step lasts from the completion of the step before to its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from itertools import compress, pairwise
from weakref import ReferenceType, ref

import numpy as np
from msgspec import Struct

from arrays import Int64, Mask
from arrays.numbering import unique
from dialects.kineto.kineto_device import CALLS_THAT_WAIT, integers, with_correlation
from dialects.masks import by_cat, by_name
from dialects.step_windows import windows
from dialects.steps import Step, Steps
from dialects.system import DEVICE_CATS, RUNTIME_CATS
from dialects.tolerances import AGREE_NS, FILLS_QUEUE
from formats.columns import Trace
from formats.values import FARTHEST_NS


class Launched(Struct, frozen=True):
    """The work of a trace's devices: n kernels and copies by track, then by time.

    Attributes
    ----------
    row : (n,) of the trace
    track, start_ns, end_ns : (n,)
    call_ns : (n,) when the call begins that launched it; far in the past without one
    is_leftover : (n,) work that an iteration before the recording launched: its call is not in the trace, and
        it comes before all that have theirs on its track, as a stream is served in order
    is_known : whether launches are recorded, those of most of the work
    """

    row: Int64
    track: Int64
    start_ns: Int64
    end_ns: Int64
    call_ns: Int64
    is_leftover: Mask
    is_known: bool


_latest: ContextVar[tuple[ReferenceType[Trace], Launched] | None] = ContextVar("latest", default=None)


def launched(trace: Trace) -> Launched:
    """Return the work of the devices of a trace that was read for `Need.STEPS`.

    It is worked out once for the steps of a trace and for its roles, which are asked for one after the other.
    """
    latest = _latest.get()
    if latest is not None and latest[0]() is trace:
        return latest[1]
    found = _launched(trace)
    _latest.set((ref(trace, lambda _: _latest.set(None)), found))
    return found


def _launched(trace: Trace) -> Launched:
    row = np.flatnonzero(by_cat(trace, DEVICE_CATS.__contains__))
    row = row[np.lexsort((trace.ts_ns[row], trace.track_id[row]))]
    calls = np.flatnonzero(by_cat(trace, RUNTIME_CATS.__contains__))
    correlation = integers(trace, "correlation", row)
    call = with_correlation(trace, calls, correlation)
    call_ns = np.where(call >= 0, trace.ts_ns[call], -FARTHEST_NS)
    track = trace.track_id[row].astype(np.int64)
    is_first = np.zeros(len(row), np.bool_)
    for one in unique(track[call >= 0]).tolist():
        low, high = np.searchsorted(track, [one, one + 1])
        is_first[low : low + int((call[low:high] >= 0).argmax())] = True
    is_known = 2 * int((call >= 0).sum()) > len(call)
    is_leftover = is_first & (correlation >= 0) & is_known
    return Launched(row, track, trace.ts_ns[row], trace.end_ns[row], call_ns, is_leftover, is_known)


def leftovers(trace: Trace) -> Mask:
    """Return which slices (n,) are work of an iteration before the recording; see `Launched.is_leftover`."""
    works = launched(trace)
    found = np.zeros(len(trace), np.bool_)
    found[works.row[works.is_leftover]] = True
    return found


def places(steps: Sequence[Step], moments: Int64) -> Int64:
    """Return in which of the steps, in order, each of `moments` lies for the host; -1 for none."""
    _, begins, ends = np.array([(0, 0, 0), *windows(steps)], np.int64)[1:].T
    place = np.searchsorted(begins, moments, side="right") - 1
    return np.where((place >= 0) & (moments < np.append(ends, 0)[place]), place, -1)


def from_completion(trace: Trace, steps: Steps) -> Steps | None:
    """Return the steps of a trace from completion to completion; None where launches are not recorded.

    The first one, and one after a pause, begins where the host enters it, or as soon as the device is done
    with what stood in its queue by then. One that fills the queue is longer than any other: it is `partial`.
    So is one that is complete no later than the step before, as its work was not recorded; it stays as it is.
    """
    every = sorted({*steps.whole, *steps.partial}, key=lambda step: step[1:])
    works = launched(trace)
    if not every or not works.is_known:
        return None
    waits = np.flatnonzero(
        by_name(trace, CALLS_THAT_WAIT.fullmatch) & by_cat(trace, RUNTIME_CATS.__contains__)
    )
    place = places(every, works.call_ns)
    complete = np.array([step.end_ns for step in every], np.int64)
    np.maximum.at(complete, place[place >= 0], works.end_ns[place >= 0])
    bounds = windows(every)
    follows = [False, *(one[2] == other[1] for one, other in pairwise(bounds))]
    found = {step: step for step in every}
    fills, is_late = set(), [False] * len(every)
    for i, step in enumerate(every):
        if follows[i] and complete[i] <= complete[i - 1]:
            is_late[i], complete[i] = True, complete[i - 1]
            continue
        begin = int(complete[i - 1])
        if not follows[i]:
            begin = _turns_to(trace, works, waits, place == i, step.start_ns)
        found[step] = step._replace(start_ns=begin, end_ns=int(complete[i]))
        behind = complete[i] - step.end_ns
        if not follows[i] and begin == step.start_ns and behind > FILLS_QUEUE * found[step].dur_ns:
            fills.add(step)
    if 2 * sum(is_late) > len(every):  # work that runs beside several steps
        return None
    late = set(compress(every, is_late))
    if fills.issuperset(step for step in steps.whole if step not in late):
        fills = set()
    whole = tuple(found[step] for step in steps.whole if step not in fills | late)
    partial = tuple(found[step] for step in every if step in fills | late or step in steps.partial)
    return steps._replace(whole=whole, partial=partial)


def _turns_to(trace: Trace, works: Launched, waits: Int64, is_own: Mask, begin_ns: int) -> int:
    """Return when the device begins with a step's `is_own` (n,) work, after what it had to do before.

    That is when the host enters the step, unless work stood in the queue behind that of others, or the host
    waited for these (in one of the calls `waits`) before it launched any.
    """
    if not is_own.any():
        return begin_ns
    first_ns = int(works.start_ns[is_own].min())
    until_ns = begin_ns
    is_before = ~is_own & (works.start_ns < first_ns)
    for one in unique(works.track[is_own]).tolist():
        here = works.track == one
        own = int(np.flatnonzero(here & is_own)[0])
        before = works.end_ns[here & ~is_own & (works.start_ns <= works.start_ns[own])]
        if before.max(initial=begin_ns) > max(works.call_ns[own], until_ns):
            until_ns = int(before.max())
    waits = waits[(trace.ts_ns[waits] >= begin_ns) & (trace.ts_ns[waits] < works.call_ns[is_own].min())]
    over_ns = int(works.end_ns[is_before].max(initial=begin_ns))
    wait_end_ns = trace.ts_ns[waits] + trace.dur_ns[waits]
    waited = (trace.ts_ns[waits] < over_ns) & (over_ns <= wait_end_ns + AGREE_NS)
    until_ns = over_ns if waited.any() else until_ns
    return max(first_ns, until_ns) if until_ns > begin_ns else begin_ns
