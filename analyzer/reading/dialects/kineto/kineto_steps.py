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

from analyzer.base.arrays import Int64, Mask
from analyzer.base.arrays.distributions import median
from analyzer.base.errors import listed
from analyzer.base.units import in_ms
from analyzer.reading.dialects.kineto import launches
from analyzer.reading.dialects.roles import by_cat, by_name
from analyzer.reading.dialects.steps import NO_STEPS, Steps, outer_rows, spans, windows
from analyzer.reading.dialects.system import RUNTIME_CATS
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


#: Why a step does not count in means; of several reasons the last.
COUNTS, PARTIAL, FILLS, LOST, LATE = range(5)


def places(steps: Int64, moments: Int64) -> Int64:
    """Find the step of the host, of (n, 3) in order, around each of `moments` (k,); -1 for none."""
    _, begins, ends = windows(steps).T
    step = np.searchsorted(begins, moments, side="right") - 1
    return np.where((step >= 0) & (moments < np.append(ends, 0)[step]), step, -1)


def from_completion(trace: Trace, whole: Int64, partial: Int64, how: Steps) -> tuple[Int64, Int64] | None:
    """Find the steps of a trace from completion to completion; None where launches are not recorded.

    `whole` and `partial` (n, 3) are those of the host, found as in `how`. Returned are the table (n, 3) of
    steps in order, and why each does not count (n,), of which late ones are kept as on the host. The first
    step, and one after a pause, begins where the host enters it, or as soon as the device has emptied its
    queue of earlier work. Work of the host between two steps belongs to the earlier one.
    """
    host = np.concatenate([whole, partial])
    order = np.lexsort((host[:, 2], host[:, 1]))
    host, is_whole = host[order], order < len(whole)
    rows, calls = launches.launched(trace)
    if not len(host) or not launches.are_recorded(calls) or (how.is_guess and not _by_loop(trace, calls)):
        return None
    launched_ns = np.where(calls >= 0, trace.ts_ns[calls], -FARTHEST_NS)
    step = places(host, launched_ns)
    turns = _Turns(trace, rows, launched_ns, step)
    _, begin, host_end = host.T.copy()
    complete, (is_late, fills) = host_end.copy(), np.zeros((2, len(host)), np.bool_)
    np.maximum.at(complete, step[step >= 0], trace.end_ns[rows][step >= 0])
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
    is_lost &= not (is_lost | is_late)[is_whole].all()
    lengths_ns, usual = complete - begin, is_whole & ~is_late & ~is_lost & ~fills
    fills &= lengths_ns > (median(lengths_ns[usual]) if usual.any() else np.inf)
    why = np.select([~is_whole, is_late, is_lost, fills], [PARTIAL, LATE, LOST, FILLS], COUNTS)
    table = np.where(is_late[:, None], host, np.column_stack((host[:, 0], begin, complete)))
    table[why == COUNTS] = windows(table[why == COUNTS])
    return table, why


def _by_loop(trace: Trace, calls: Int64) -> bool:
    """Check that two threads launch most work: a training loop's own and that of its backward pass."""
    threads = np.sort(np.bincount(trace.track_id[calls[calls >= 0]]))
    return bool(threads[-2:].sum() > BY_LOOP * threads.sum())


def _lost(trace: Trace, host: Int64) -> Mask:
    """Mark the steps of a host (n, 3) in which the profiler lost work of the device."""
    if not launches.lost_work(trace):
        return np.zeros(len(host), np.bool_)
    rows, is_lost = launches.launches_of(trace)
    step = places(host, trace.ts_ns[rows])
    n_launches = np.bincount(step[step >= 0], minlength=len(host))
    n_lost = np.bincount(step[(step >= 0) & is_lost], minlength=len(host))
    lost: Mask = n_lost > LOST_LAUNCHES * n_launches
    return lost


def goes_on(trace: Trace, host: Int64) -> bool:
    """Check for work without launches later than a step's length after the host's last step (n, 3)."""
    (rows, _), (_, begin, end) = launches.launched(trace), host.T
    ends_late = len(host) and trace.end_ns[rows].max(initial=0) > end.max() + (end - begin).max()
    return bool(ends_late) and launches.are_missing(trace)


class _Turns:
    """The moments at which a device turns to steps that follow no other; `step` (n,) is that of each work."""

    def __init__(self, trace: Trace, rows: Int64, launched_ns: Int64, step: Int64) -> None:
        self.start_ns, self.launched_ns, end_ns = trace.ts_ns[rows], launched_ns, trace.end_ns[rows]
        self.order = np.argsort(step, kind="stable")
        self.ordered = step[self.order]
        self.tracks = np.append(np.flatnonzero(np.diff(trace.track_id[rows], prepend=-1)), len(rows)).tolist()
        #: (n,) end of all work of the track up to this one
        self.done_ns = np.concatenate(
            [np.maximum.accumulate(end_ns[low:high]) for low, high in pairwise(self.tracks)] or [end_ns]
        )
        calls = by_cat(trace, RUNTIME_CATS.__contains__)
        waits = np.flatnonzero(by_name(trace, launches.CALLS_THAT_WAIT.fullmatch, calls))
        waits = waits[np.argsort(trace.ts_ns[waits], kind="stable")]
        self.waits_ns = trace.ts_ns[waits], trace.end_ns[waits]

    def begin_ns(self, step: int, begin_ns: int) -> int:
        """Find the moment at which the device begins with the work of a step.

        The host enters the step then, unless the work stood in the queue behind that of other steps, or the
        host waited for those before its first launch.
        """
        works_of_step = self.order[slice(*np.searchsorted(self.ordered, [step, step + 1]))]
        if not len(works_of_step):
            return begin_ns
        first_ns = int(self.start_ns[works_of_step].min())
        until_ns = over_ns = begin_ns
        for low, high in pairwise(self.tracks):
            first = works_of_step[np.searchsorted(works_of_step, low) :][:1]
            if len(first) and low < first[0] < high:
                before_ns = int(self.done_ns[first[0] - 1])
                until_ns = before_ns if before_ns > max(self.launched_ns[first[0]], until_ns) else until_ns
            before = low + int(np.searchsorted(self.start_ns[low:high], first_ns))
            over_ns = max(over_ns, int(self.done_ns[before - 1])) if before > low else over_ns
        starts, ends = self.waits_ns
        low, high = np.searchsorted(starts, [begin_ns, min(self.launched_ns[works_of_step].min(), over_ns)])
        if (over_ns <= ends[low:high] + AGREE_NS).any():
            until_ns = over_ns
        return max(first_ns, until_ns) if until_ns > begin_ns else begin_ns
