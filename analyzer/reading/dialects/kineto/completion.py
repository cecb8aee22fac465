"""When a step on a device is complete, which decides where it begins and ends under every option.

A step is complete when the host has left it and all work that it launched there is done. The host may be
steps ahead of its device, so a step lasts from the completion of the step before to its own.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from msgspec import Struct

from analyzer.base.arrays import Int64, Mask
from analyzer.base.arrays.distributions import median
from analyzer.base.arrays.numbering import unique
from analyzer.base.errors import NoteKind, notes_of
from analyzer.reading.dialects.kineto.kineto_device import CALLS_THAT_WAIT, calls_of, integers
from analyzer.reading.dialects.kineto.lost_work import launches_of
from analyzer.reading.dialects.roles import by_cat, by_name
from analyzer.reading.dialects.step_windows import windows
from analyzer.reading.dialects.steps import Steps
from analyzer.reading.dialects.system import DEVICE_CATS, RUNTIME_CATS
from analyzer.reading.dialects.tolerances import AGREE_NS, BY_LOOP, FILLS_QUEUE, LOST_LAUNCHES
from analyzer.reading.formats.columns import Trace
from analyzer.reading.formats.values import FARTHEST_NS


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
    by_loop : whether two threads launch most of it: a training loop's own and that of its backward pass
    """

    row: Int64
    track: Int64
    start_ns: Int64
    end_ns: Int64
    call_ns: Int64
    is_leftover: Mask
    is_known: bool
    by_loop: bool


def launched(trace: Trace) -> Launched:
    """Work of the devices of a trace that was read for `Need.STEPS`."""
    row = np.flatnonzero(by_cat(trace, DEVICE_CATS.__contains__))
    row = row[np.lexsort((trace.ts_ns[row], trace.track_id[row]))]
    call = calls_of(trace, row)
    call_ns = np.where(call >= 0, trace.ts_ns[call], -FARTHEST_NS)
    track = trace.track_id[row].astype(np.int64)
    is_first = np.zeros(len(row), np.bool_)
    for stream in unique(track[call >= 0]).tolist():
        low, high = np.searchsorted(track, [stream, stream + 1])
        is_first[low : low + int((call[low:high] >= 0).argmax())] = True
    is_known = 2 * int((call >= 0).sum()) > len(call)
    is_leftover = is_first & (integers(trace, "correlation", row) >= 0) & is_known
    by_loop = np.sort(np.bincount(trace.track_id[call[call >= 0]]))[-2:].sum() > BY_LOOP * (call >= 0).sum()
    return Launched(row, track, trace.ts_ns[row], trace.end_ns[row], call_ns, is_leftover, is_known, by_loop)


def leftovers(trace: Trace) -> Mask:
    """Mask the work (n,) of an iteration before the recording; see `Launched.is_leftover`."""
    works = launched(trace)
    is_leftover = np.zeros(len(trace), np.bool_)
    is_leftover[works.row[works.is_leftover]] = True
    return is_leftover


def places(steps: Int64, moments: Int64) -> Int64:
    """Find the step of the host, of (n, 3) in order, in which each of `moments` lies; -1 for none."""
    _, begins, ends = windows(steps).T
    step = np.searchsorted(begins, moments, side="right") - 1
    return np.where((step >= 0) & (moments < np.append(ends, 0)[step]), step, -1)


class Completed(Struct, frozen=True):
    """The n steps of a trace as of its device, in order.

    Attributes
    ----------
    table : (n, 3) number, begin and end of each: from completion to completion
    is_told : (n,) whether the host's step is a whole one
    is_late : (n,) complete no later than the step before, as its work was not recorded; such stay as they are
    fills : (n,) those that fill the device's queue, and are longer than the median of the others
    is_lost : (n,) whether work of the step was lost by the profiler
    """

    table: Int64
    is_told: Mask
    is_late: Mask
    fills: Mask
    is_lost: Mask

    @property
    def is_whole(self) -> Mask:
        """Mark the steps (n,) that count in means."""
        return self.is_told & ~self.is_late & ~self.fills & ~self.is_lost


def from_completion(trace: Trace, whole: Int64, partial: Int64, how: Steps) -> Completed | None:
    """Return the steps of a trace from completion to completion; None where launches are not recorded.

    `whole` and `partial` (n, 3) are those of the host, `how` they are told.
    The first one, and one after a pause, begins where the host enters it, or as soon as the device is done
    with what stood in its queue by then. What a host does after a step, before the next one, is of that.
    """
    host = np.concatenate([whole, partial])
    order = np.lexsort((host[:, 2], host[:, 1]))
    host, is_told = host[order], order < len(whole)
    works = launched(trace)
    if not len(host) or not works.is_known or (how.is_guess and not works.by_loop):
        return None
    turns = _Turns(trace, works, places(host, works.call_ns))
    _, begin, host_end = host.T.copy()
    complete, (is_late, fills) = host_end.copy(), np.zeros((2, len(host)), np.bool_)
    np.maximum.at(complete, turns.place[turns.place >= 0], works.end_ns[turns.place >= 0])
    bounds = windows(host)
    firsts = np.flatnonzero(np.append(True, bounds[:-1, 2] != bounds[1:, 1])).tolist()
    for low, high in pairwise([*firsts, len(host)]):
        begin[low] = turns.begin_ns(low, int(host[low, 1]))
        latest = np.maximum.accumulate(complete[low:high])
        is_late[low + 1 : high] = complete[low + 1 : high] <= latest[:-1]
        complete[low:high], begin[low + 1 : high] = latest, latest[:-1]
        behind_ns = int(latest[0] - host_end[low])
        fills[low] = begin[low] == host[low, 1] and behind_ns > FILLS_QUEUE * (latest[0] - begin[low])
    if 2 * is_late.sum() > len(host):  # work that runs beside several steps
        return None
    is_lost = _lost(trace, host)
    is_lost &= not (is_lost | is_late)[is_told].all()
    fills &= _longer(complete - begin, is_told & ~is_late & ~is_lost & ~fills)
    table = np.column_stack((host[:, 0], begin, complete))
    made = Completed(np.where(is_late[:, None], host, table), is_told, is_late, fills, is_lost)
    made.table[made.is_whole] = windows(made.table[made.is_whole])
    return made


def _longer(lengths_ns: Int64, usual: Mask) -> Mask:
    """Mark the steps (n,) that are longer than the median of the `usual` ones; without these none."""
    if not usual.any():
        return np.zeros(len(lengths_ns), np.bool_)
    longer: Mask = lengths_ns > median(lengths_ns[usual])
    return longer


def _lost(trace: Trace, host: Int64) -> Mask:
    """Mark the steps of a host (n, 3) in which the profiler lost work of the device."""
    if not notes_of(NoteKind.LOST_WORK, trace.repairs):
        return np.zeros(len(host), np.bool_)
    launches, is_lost = launches_of(trace)
    step = places(host, trace.ts_ns[launches])
    n_launches = np.bincount(step[step >= 0], minlength=len(host))
    n_lost = np.bincount(step[(step >= 0) & is_lost], minlength=len(host))
    lost: Mask = n_lost > LOST_LAUNCHES * n_launches
    return lost


def goes_on(trace: Trace, host: Int64) -> bool:
    """Check for a device that works on for longer than a step after its host's last step (n, 3)."""
    works, (_, begin, end) = launched(trace), host.T
    return len(host) > 0 and int(works.end_ns.max(initial=0)) > int(end.max() + (end - begin).max())


class _Turns:
    """When a device turns to steps that follow no other; `place` (n,) is the step of each of its works."""

    def __init__(self, trace: Trace, works: Launched, place: Int64) -> None:
        self.works, self.place = works, place
        self.order = np.argsort(place, kind="stable")
        self.ordered = place[self.order]
        self.tracks = np.append(np.flatnonzero(np.diff(works.track, prepend=-1)), len(works.row)).tolist()
        #: (n,) when all work is done that began before on the track, and that too
        self.done_ns = np.concatenate(
            [np.maximum.accumulate(works.end_ns[low:high]) for low, high in pairwise(self.tracks)]
            or [works.end_ns]
        )
        calls = by_cat(trace, RUNTIME_CATS.__contains__)
        waits = np.flatnonzero(by_name(trace, CALLS_THAT_WAIT.fullmatch, calls))
        waits = waits[np.argsort(trace.ts_ns[waits], kind="stable")]
        self.waits_ns = trace.ts_ns[waits], trace.end_ns[waits]

    def begin_ns(self, step: int, begin_ns: int) -> int:
        """Find the moment when the device begins with a step's own work, after what it had to do before.

        That is when the host enters the step, unless work stood in the queue behind that of others, or the
        host waited for these before it launched any.
        """
        works = self.works
        works_of_step = self.order[slice(*np.searchsorted(self.ordered, [step, step + 1]))]
        if not len(works_of_step):
            return begin_ns
        first_ns = int(works.start_ns[works_of_step].min())
        until_ns = over_ns = begin_ns
        for low, high in pairwise(self.tracks):
            first = works_of_step[np.searchsorted(works_of_step, low) :][:1]
            if len(first) and low < first[0] < high:
                before_ns = int(self.done_ns[first[0] - 1])
                until_ns = before_ns if before_ns > max(works.call_ns[first[0]], until_ns) else until_ns
            before = low + int(np.searchsorted(works.start_ns[low:high], first_ns))
            over_ns = max(over_ns, int(self.done_ns[before - 1])) if before > low else over_ns
        starts, ends = self.waits_ns
        low, high = np.searchsorted(starts, [begin_ns, min(works.call_ns[works_of_step].min(), over_ns)])
        if (over_ns <= ends[low:high] + AGREE_NS).any():
            until_ns = over_ns
        return max(first_ns, until_ns) if until_ns > begin_ns else begin_ns
