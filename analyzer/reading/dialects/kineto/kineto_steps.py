"""PyTorch's steps: those that serving programs annotate, and the completion of steps on a device.

A step is complete when the host has left it and all work that it launched there is done. The host may be
steps ahead of its device, so a step lasts from the completion of the step before to its own. This decides
the begin and end of a step under every option.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct

from analyzer.base.arrays import Int64, Mask
from analyzer.base.arrays.distributions import median
from analyzer.base.arrays.numbering import unique
from analyzer.base.errors import listed
from analyzer.base.units import in_ms
from analyzer.reading.dialects.kineto.kineto_device import CALLS_THAT_WAIT, calls_of, integers
from analyzer.reading.dialects.kineto.lost_work import launches_of, lost_work
from analyzer.reading.dialects.roles import by_cat, by_name
from analyzer.reading.dialects.steps import NO_STEPS, Steps, outer_rows, spans, windows
from analyzer.reading.dialects.system import DEVICE_CATS, RUNTIME_CATS
from analyzer.reading.dialects.tolerances import AGREE_NS, BY_LOOP, FILLS_QUEUE, LOST_LAUNCHES
from analyzer.reading.formats.columns import Trace
from analyzer.reading.formats.values import FARTHEST_NS

#: vLLM counts requests (and tokens) of prompts and of generation in its annotations; TensorRT-LLM likewise.
_COUNTED = re.compile(
    r"execute_(?:\d+_)?context_(?P<prompts>\d+)\(.*_generation_(?P<others>\d+)\(.*"
    r"|execute_new_(?P<new>\d+)_cached_(?P<cached>\d+)"
    r"|\[Executor\] _forward_step \d+: (?P<ctx>\d+) ctx reqs.* (?P<gen>\d+) gen reqs"
)
#: SGLang names the kind of a batch.
_NAMED = re.compile(r"step\[(\w+)\b.*")
_WORDS = {"extend": "prefill", "target_verify": "decode"}
_ANY = re.compile(r"execute_\w.*")
#: Names that users give such steps.
_PLAIN = re.compile(r"(prefill|decode)(?:[ _-]?step)?(?:[ _#-]?\d+)?", re.IGNORECASE)
_BEGINS = ("execute_", "step[", "[Executor] ", "prefill", "Prefill", "decode", "Decode")
_LEAST = 3  # annotations without a kind that make a loop


# ---- annotated steps of inference


def kind_of_step(name: str) -> str | None:
    """Parse the kind of the step that an annotation marks: "" if unnamed, None if it marks no step.

    >>> [kind_of_step(f"execute_context_{n}(0)_generation_{m}(16)") for n, m in ((0, 16), (2, 0), (1, 15))]
    ['decode', 'prefill', 'mixed']
    >>> [kind_of_step(name) for name in ("step[DECODE bs=32]", "Prefill 3", "execute_model", "decode_image")]
    ['decode', 'prefill', '', None]
    """
    if not name.startswith(_BEGINS):  # names are many
        return None
    counted = _COUNTED.fullmatch(name)
    if counted:
        prompts, others = (int(number) > 0 for number in counted.groups() if number is not None)
        return ("", "decode", "prefill", "mixed")[2 * prompts + others]
    named = _NAMED.fullmatch(name) or _PLAIN.fullmatch(name)
    if named:
        word = named[1].lower()
        return _WORDS.get(word, word)
    return "" if _ANY.fullmatch(name) else None


def annotated_steps(trace: Trace) -> tuple[Steps, Sequence[str]]:
    """List the steps that a serving program annotates, numbered from 1, and the kind of each."""
    rows = outer_rows(trace, lambda name: kind_of_step(name) is not None)
    kinds = [kind_of_step(trace.names[i]) or "" for i in trace.name_id[rows].tolist()]
    if not any(kinds) and len(rows) < _LEAST:
        return NO_STEPS, ()
    steps = tuple(spans(trace, rows, range(1, len(rows) + 1)))
    return Steps(steps, (), "annotations of a serving program"), kinds


def chosen_kind(steps: Int64, kinds: Sequence[str], by: str | None = None) -> tuple[str, str]:
    """Choose the kind `by`, else that of most steps (n, 3), then of most time; with a note on other kinds."""
    kind_of = np.array(kinds)[steps[:, 0] - 1]
    counts = Counter(kind_of.tolist())
    if len(counts) < 2 and by is None:
        return next(iter(counts), ""), ""
    took_ns = steps[:, 2] - steps[:, 1]
    kind = max(counts, key=lambda name: (counts[name], took_ns[kind_of == name].sum())) if by is None else by
    others = []
    for other in sorted(counts.keys() - {kind}):
        usual = median(took_ns[kind_of == other])
        n_steps = f"{counts[other]:,} {other} step{'' if counts[other] == 1 else 's'}".replace("  ", " ")
        option = f" (show with --step_by {other})" if other else ""
        others.append(f"{n_steps}, {in_ms(usual)} in the median{option}")
    return kind, f"steps of other kinds are not in these figures: {listed(others)}" if others else ""


# ---- steps on a device


class Launched(Struct, frozen=True):
    """The work of a trace's devices: n kernels and copies by track, then by time."""

    row: Int64  # of the trace
    track: Int64
    start_ns: Int64
    end_ns: Int64
    call_ns: Int64  # begin of the call that launched it; far in the past without one
    #: Launched before the recording: without a call, and before all work of its track that has one, as a
    #: stream is served in order.
    is_leftover: Mask
    is_known: bool  # the launches of most of the work are recorded
    by_loop: bool  # two threads launch most of it: a training loop's own and that of its backward pass


def launched(trace: Trace) -> Launched:
    """List the work of the devices of a trace that was read for `Need.STEPS`."""
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


def places(steps: Int64, moments: Int64) -> Int64:
    """Find the step of the host, of (n, 3) in order, around each of `moments` (k,); -1 for none."""
    _, begins, ends = windows(steps).T
    step = np.searchsorted(begins, moments, side="right") - 1
    return np.where((step >= 0) & (moments < np.append(ends, 0)[step]), step, -1)


class Completed(Struct, frozen=True):
    """The n steps of a trace on its device, in order; masks are (n,)."""

    table: Int64  # (n, 3) number, begin and end: from completion to completion
    is_told: Mask  # the host's step is whole
    is_late: Mask  # complete no later than the step before, as its work was not recorded; kept as on the host
    fills: Mask  # fills the device's queue, and is longer than the median of the others
    is_lost: Mask  # the profiler lost work of the step

    @property
    def is_whole(self) -> Mask:
        """Mark the steps (n,) that count in means."""
        return self.is_told & ~self.is_late & ~self.fills & ~self.is_lost


def from_completion(trace: Trace, whole: Int64, partial: Int64, how: Steps) -> Completed | None:
    """Find the steps of a trace from completion to completion; None where launches are not recorded.

    `whole` and `partial` (n, 3) are those of the host, found as in `how`. The first step, and one after a
    pause, begins where the host enters it, or as soon as the device has emptied its queue of earlier work.
    Work of the host between two steps belongs to the earlier one.
    """
    host = np.concatenate([whole, partial])
    order = np.lexsort((host[:, 2], host[:, 1]))
    host, is_told = host[order], order < len(whole)
    works = launched(trace)
    if not len(host) or not works.is_known or (how.is_guess and not works.by_loop):
        return None
    step = places(host, works.call_ns)
    turns = _Turns(trace, works, step)
    _, begin, host_end = host.T.copy()
    complete, (is_late, fills) = host_end.copy(), np.zeros((2, len(host)), np.bool_)
    np.maximum.at(complete, step[step >= 0], works.end_ns[step >= 0])
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
    lengths_ns, usual = complete - begin, is_told & ~is_late & ~is_lost & ~fills
    fills &= lengths_ns > (median(lengths_ns[usual]) if usual.any() else np.inf)
    table = np.column_stack((host[:, 0], begin, complete))
    completed = Completed(np.where(is_late[:, None], host, table), is_told, is_late, fills, is_lost)
    completed.table[completed.is_whole] = windows(completed.table[completed.is_whole])
    return completed


def _lost(trace: Trace, host: Int64) -> Mask:
    """Mark the steps of a host (n, 3) in which the profiler lost work of the device."""
    if not lost_work(trace):
        return np.zeros(len(host), np.bool_)
    launches, is_lost = launches_of(trace)
    step = places(host, trace.ts_ns[launches])
    n_launches = np.bincount(step[step >= 0], minlength=len(host))
    n_lost = np.bincount(step[(step >= 0) & is_lost], minlength=len(host))
    lost: Mask = n_lost > LOST_LAUNCHES * n_launches
    return lost


def goes_on(trace: Trace, host: Int64) -> bool:
    """Check for device work later than a step's length after the host's last step (n, 3)."""
    works, (_, begin, end) = launched(trace), host.T
    return len(host) > 0 and int(works.end_ns.max(initial=0)) > int(end.max() + (end - begin).max())


class _Turns:
    """The moments at which a device turns to steps that follow no other; `step` (n,) is that of each work."""

    def __init__(self, trace: Trace, works: Launched, step: Int64) -> None:
        self.works = works
        self.order = np.argsort(step, kind="stable")
        self.ordered = step[self.order]
        self.tracks = np.append(np.flatnonzero(np.diff(works.track, prepend=-1)), len(works.row)).tolist()
        #: (n,) end of all work of the track up to this one
        self.done_ns = np.concatenate(
            [np.maximum.accumulate(works.end_ns[low:high]) for low, high in pairwise(self.tracks)]
            or [works.end_ns]
        )
        calls = by_cat(trace, RUNTIME_CATS.__contains__)
        waits = np.flatnonzero(by_name(trace, CALLS_THAT_WAIT.fullmatch, calls))
        waits = waits[np.argsort(trace.ts_ns[waits], kind="stable")]
        self.waits_ns = trace.ts_ns[waits], trace.end_ns[waits]

    def begin_ns(self, step: int, begin_ns: int) -> int:
        """Find the moment at which the device begins with the work of a step.

        The host enters the step then, unless the work stood in the queue behind that of other steps, or the
        host waited for those before its first launch.
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
