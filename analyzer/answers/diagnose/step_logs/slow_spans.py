"""Spans of slow steps in a step log: their extent, their cost, and the rank or part at fault."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from analyzer.answers.diagnose.finding import HALF, NEGLIGIBLE, NOTICEABLE, SHARED_BLAME, VISIBLE
from analyzer.answers.diagnose.step_logs.log_steps import LogSteps
from analyzer.base.arrays import Float64, Int64, Mask
from analyzer.base.arrays.change_points import (
    LEAST_STEPS,
    clipped_to_noise,
    difference_error,
    higher_spans,
    level_error,
    spread_of,
)
from analyzer.reading.dialects import Role
from replay.answer import Z_95

#: Steps around a step; with 11 or 41 the same is found (docs/dev/accuracy.md, 6).
AROUND = 21
#: Ranks that may be late in one job.
FEW = 3
#: Series of ranks and parts to search, those that move most.
_MOST_SERIES = 100
_MOST_SAMPLED = 2_000  # steps for a median

#: A part and a rank.
_Series = tuple[int, int]


class SlowSpan(Struct, frozen=True):
    """Slow steps from index `begin` to before `end`."""

    begin: int
    end: int
    cost_ns: float  # of each step
    error_ns: float  # 95 %
    part: int  # the part that grew
    part_ns: float  # by this much
    ranks: Sequence[int] = ()  # on these ranks; () on all
    grows: bool = False  # step by step

    def shared_with(self, other: SlowSpan) -> float:
        """Compute the share of the shorter span that lies in the other."""
        both = min(self.end, other.end) - max(self.begin, other.begin)
        return max(both, 0) / min(self.end - self.begin, other.end - other.begin)


def slow_spans(log: LogSteps, usual: Mask) -> list[SlowSpan]:
    """Find the spans of slow steps of single ranks, then of all ranks in the remaining time.

    The most expensive span comes first. No two spans of all ranks share half of the shorter one.
    """
    if usual.sum() < 2 * LEAST_STEPS:
        return []
    search = _Search(log, usual)
    if len(log.ranks) > 1:
        search.ranks()
        search.spans += _always_late(log, np.flatnonzero(usual & ~covered(search.spans, len(usual))))
    search.choose(search.of_all(*steps) for steps in search.higher(search.step_ns))
    return search.spans


def covered(spans: Iterable[SlowSpan], n: int) -> Mask:
    """Mask the steps (n,) that are in some span."""
    inside = np.zeros(n, np.bool_)
    for span in spans:
        inside[span.begin : span.end] = True
    return inside


class _Search:
    """The `spans` so far, and the lengths of steps without them, `step_ns` (k,)."""

    def __init__(self, log: LogSteps, usual: Mask) -> None:
        self.log, self.usual, self.kept = log, usual, np.flatnonzero(usual)
        self.step_ns = log.step_ns.copy()
        self.least_ns = NEGLIGIBLE * float(np.median(self.step_ns[self.kept]))
        # ratio of a span to its error that hardly any span of any series reaches by chance
        self.sure = float(np.sqrt(2 * np.log(len(self.kept) ** 2 * len(log.parts) * len(log.ranks))))
        self.spans: list[SlowSpan] = []

    def ranks(self) -> None:
        """Find spans of ranks: where all steps are longer, or a part of a rank against the median rank."""
        spans = [self._of_ranks(*steps) for steps in self.higher(self.step_ns)]
        for series in _moved(self.log, self.usual, self.least_ns):
            spans += [self._of_ranks(*steps, series) for steps in self.higher(self.log.excess_ns(*series))]
        self.choose(spans)

    def higher(self, series: Float64) -> Iterator[tuple[Int64, Int64]]:
        """Yield the kept steps of each span in which a series is higher, and the steps beside it."""
        for begin, end in higher_spans(series[self.kept], self.least_ns, self.sure):
            inside = self.kept[begin:end]
            outside = beside(self.usual, *_extent(inside))
            if len(outside) >= LEAST_STEPS:
                yield inside, outside

    def choose(self, spans: Iterable[SlowSpan | None]) -> None:
        """Keep the best of spans that share steps, and spans of several ranks that are late at once."""
        best: list[SlowSpan] = []
        for span in sorted(filter(None, spans), key=self._explained, reverse=True):
            alike = [other for other in best if (other.part, other.ranks) == (span.part, span.ranks)]
            if all(span.shared_with(other) < HALF for other in alike):
                best.append(span)
        for span in sorted(best, key=lambda span: -span.cost_ns * (span.end - span.begin)):
            if all(_are_both_late(span, other) for other in self.spans if span.shared_with(other) >= HALF):
                self.spans.append(_growing(self.log, span, self.usual))
                steps = slice(span.begin, span.end)
                self.step_ns[steps] = np.minimum(self.step_ns[steps], self.log.step_ns[steps] - span.cost_ns)

    def _explained(self, span: SlowSpan) -> float:
        """Compute how much closer values are to a median inside and one outside than to a single median."""
        values = self.log.excess_ns(span.part, span.ranks[0]) if span.ranks else self.step_ns
        inside = (self.kept >= span.begin) & (self.kept < span.end)
        values = values[self.kept]
        return _deviation(values) - sum(_deviation(part) for part in (values[inside], values[~inside]))

    # ---- one span

    def _cost(self, inside: Int64, outside: Int64) -> tuple[float, float]:
        """Compute the cost of each step `inside` against the steps outside, and its 95 % error."""
        n, step_ns = len(inside), self.step_ns
        cost = float(np.median(step_ns[inside])) - float(np.median(step_ns[outside]))
        error = difference_error(step_ns[self.kept], n)
        if n > AROUND:
            error = max(error, level_error(step_ns[inside], n))
        return cost, Z_95 * error

    def of_all(self, inside: Int64, outside: Int64) -> SlowSpan | None:
        """Make a span of all ranks; None if it is not significant."""
        cost, error = self._cost(inside, outside)
        least = NOTICEABLE * float(np.median(self.step_ns[outside]))
        if cost < max(least, self.sure / Z_95 * error):
            return None
        grown = self.log.usual_ns(inside)[0] - self.log.usual_ns(outside)[0]
        middle = np.sort(grown, axis=1)[:, (len(self.log.ranks) - 1) // 2]
        part = int(middle.argmax())
        return SlowSpan(*_extent(inside), cost, error, part, float(middle[part]))

    def _of_ranks(self, inside: Int64, outside: Int64, series: _Series | None = None) -> SlowSpan | None:
        """Make a span with the late ranks; None if they are not significant.

        The `series` in which the span was found is at fault if it grew nearly most.
        """
        cost, error = self._cost(inside, outside)
        if cost < error:  # steps of a few lengths have means rather than medians
            plain = clipped_to_noise(self.step_ns[np.concatenate([inside, outside])])
            cost = float(plain[: len(inside)].mean() - plain[len(inside) :].mean())
        if cost < max(NEGLIGIBLE * float(np.median(self.step_ns[outside])), error):
            return None
        grown = self._grown(inside, outside)
        part, rank = divmod(int(grown.argmax()), grown.shape[1])
        if series is not None and grown[series] >= SHARED_BLAME * grown[part, rank]:
            part, rank = series
        part_ns = float(grown[part, rank])
        noise_ns = difference_error(self.log.excess_ns(part, rank)[self.kept], len(inside))
        late = np.flatnonzero(grown[part] >= SHARED_BLAME * part_ns)
        is_one_of_many = len(late) > 1 and (
            len(late) > max(1, len(self.log.ranks) // 2)
            or (grown[part] >= HALF * part_ns).sum() > len(late)
            or part_ns < HALF * cost
        )
        least_ns = max(VISIBLE * cost, self.sure * noise_ns)
        begin, end = _extent(inside)
        if part_ns < least_ns or is_one_of_many:
            return None
        if HALF * part_ns < _elsewhere(self.log, self.usual, part, late, begin, end):
            return None
        return SlowSpan(begin, end, cost, error, part, part_ns, late.tolist())

    def _grown(self, inside: Int64, outside: Int64) -> Float64:
        """Compute the growth of each part on each rank, unless the rank only waits in it."""
        log = self.log
        (then, longer), (before, longer_before) = log.usual_ns(inside), log.usual_ns(outside)
        grown = np.minimum(then - before, longer - longer_before)
        grown[longer < HALF * grown] = 0  # it only was shorter than the median before
        for part, name in enumerate(log.parts):
            # communication is nearly always waiting
            grown[part] *= {Role.WAIT: 0.0, Role.COMM: HALF}.get(log.roles[name], 1.0)
        return grown


def _are_both_late(span: SlowSpan, other: SlowSpan) -> bool:
    """Tell if a span that shares steps with another has other ranks and a visible delay."""
    is_other = bool(span.ranks) and not {*span.ranks} & {*other.ranks}
    return is_other and span.part_ns >= VISIBLE * other.cost_ns


def _extent(steps: Int64) -> tuple[int, int]:
    return int(steps[0]), int(steps[-1]) + 1


def _deviation(values: Float64) -> float:
    return float(np.abs(values - np.median(values)).sum())


def _moved(log: LogSteps, usual: Mask, least_ns: float) -> list[_Series]:
    """List the series (part, rank) that move by more than `least_ns`, most first."""
    excess = log.longer_ns[:, :, log.stretches_of(usual)]
    width = max(1, excess.shape[2] // 100)
    blocks = np.add.reduceat(excess, np.arange(0, excess.shape[2], width), axis=2) / width
    moved = blocks.max(axis=2) - np.median(blocks, axis=2)
    most = np.argsort(-moved, axis=None, kind="stable")[:_MOST_SERIES]
    pairs = [divmod(cell, len(log.ranks)) for cell in most.tolist()]
    return [pair for pair in pairs if moved[pair] > least_ns]


def _growing(log: LogSteps, span: SlowSpan, usual: Mask) -> SlowSpan:
    """Extend a span of growing steps to the begin of the growth; others stay unchanged.

    It begins where a line to the span's end explains most (least squares), at most twice the span's length
    earlier. Steps grow if the line rises by half of their mean and explains half of their variance.
    """
    series = log.excess_ns(span.part, span.ranks[0]) if span.ranks else log.step_ns
    first = max(0, span.begin - 2 * (span.end - span.begin))
    outside = beside(usual, first, span.end)
    if len(outside) < LEAST_STEPS:
        return span
    kept = usual[first : span.end]
    more = np.where(kept, series[first : span.end] - np.median(series[outside]), 0.0)
    index = np.arange(len(kept), dtype=np.float64)
    sums = np.array([kept, kept * index, kept * index * index, more, more * index, more * more])
    n, x, xx, y, xy, yy = sums[:, ::-1].cumsum(1)[:, ::-1][:, : 1 + len(kept) - LEAST_STEPS]
    n = np.maximum(n, 1)
    spread = np.maximum(n * xx - x * x, 1)
    by_line = (n * xy - x * y) ** 2 / spread / n
    begin = int((by_line + y * y / n).argmax())
    slope, level, differs = (n * xy - x * y) / spread, y / n, yy - y * y / n
    if (slope * n)[begin] < HALF * level[begin] or by_line[begin] < HALF * differs[begin]:
        return span
    return replace(span, begin=first + begin, grows=True)


def beside(free: Mask, begin: int, end: int) -> Int64:
    """Choose steps beside a span to compare it with: equally many on both sides, so that a drift cancels.

    If one side has few, only the other counts.
    """
    most = max(AROUND, end - begin)
    before, after = np.flatnonzero(free[:begin])[-most:], end + np.flatnonzero(free[end:])[:most]
    both = min(len(before), len(after))
    if both >= most // 4:
        return np.concatenate([before[-both:], after[:both]])
    return before if len(before) > len(after) else after


def _elsewhere(log: LogSteps, free: Mask, part: int, late: Int64, begin: int, end: int) -> float:
    """Find the `FEW`-th highest excess of a part in equally long spans elsewhere.

    That is on other ranks, or on `late` ranks at other times: on loaded hosts many are about as long.
    """
    if len(log.ranks) < 4:
        return 0.0
    longer = np.where(log.stretches_of(free), log.longer_ns[part], 0.0)
    longer -= np.median(longer, axis=1)[:, None]
    n = max(1, (end - begin) * longer.shape[1] // len(log.number))
    longer[np.ix_(late, (log.begins >= begin) & (log.begins < end))] = 0.0
    sums = np.pad(longer, ((0, 0), (1, 0))).cumsum(1)
    most = np.sort((sums[:, n:] - sums[:, :-n]).max(1) / n)
    return float(most[-min(FEW, len(log.ranks) // 2)])


# ---- late in all steps


def _always_late(log: LogSteps, kept: Int64) -> list[SlowSpan]:
    """Find a rank that is late in all `kept` steps, which are in no other span.

    It is longer in one part than all others, which wait in another part, as names or meetings there show.
    """
    n = len(log.ranks)
    if n < 4 or len(kept) < 2 * LEAST_STEPS:
        return []
    step = float(np.median(log.step_ns[kept]))
    _, longer = log.usual_ns(kept)
    roles = [log.roles[name] for name in log.parts]
    work = longer * [[role not in (Role.WAIT, Role.COMM)] for role in roles]
    part, rank = divmod(int(work.argmax()), n)
    waits_in = int(longer[:, rank].argmin())
    others = np.arange(n) != rank
    if work[part, rank] < NOTICEABLE * step or work[part, others].max() > HALF * work[part, rank]:
        return []
    sampled = kept[np.linspace(0, len(kept) - 1, min(len(kept), _MOST_SAMPLED)).astype(np.int64)]
    is_named = roles[waits_in] in (Role.WAIT, Role.COMM) or roles[part] is Role.INPUT
    if not is_named and not _meets_after(log, rank, waits_in, part, sampled[sampled > 0]):
        return []
    waits = log.cells(sampled)[waits_in]
    less = waits[others].min(0) - waits[rank]  # delay after the last of all others
    cost, error = float(np.median(less)), Z_95 * level_error(less, len(less))
    if cost < max(NOTICEABLE * step, error):
        return []
    return [SlowSpan(0, len(log.step_ns), cost, error, part, float(work[part, rank]), [rank])]


def _meets_after(log: LogSteps, rank: int, waits_in: int, part: int, steps: Int64) -> bool:
    """Check whether a rank meets the others at the end of one part, rather than of a `part` after it.

    From one meeting to the next it takes as long as they do; at other moments its own work adds to the
    scatter. Columns need not be in the order of time, but all parts of a step come before the next step.
    """
    before, after = log.cells(steps - 1)[:-1], log.cells(steps)[:-1]  # without `BETWEEN`
    ends = (after[: end + 1].sum(0) + before[end + 1 :].sum(0) for end in (waits_in, part))
    spread, spread_later = (spread_of(times[rank] - np.median(times, axis=0)) for times in ends)
    # a ratio of 0.7 and more in made logs of a rank with less work, of at most 0.4 in most with a late one
    return waits_in < part and spread < HALF * spread_later
