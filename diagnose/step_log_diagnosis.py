"""The diagnosis of a step log: since when are steps slow, by how much, and which rank holds them up.

All ranks' steps last equally long, as each waits for the others. So the waiting hides in whatever part of
the step grows on the other ranks; the rank that is late is the one whose own other part grows instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import NormalDist
from typing import get_args

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

import dialects
from arrays import Float64, Int64, Mask
from arrays.change_points import (
    LEAST_STEPS,
    MOST_SPANS,
    around,
    clipped_to_noise,
    difference_error,
    higher_spans,
    level_error,
    spread_of,
)
from arrays.intervals import stretches
from diagnose.diagnosis import Diagnosis, Ranked
from diagnose.finding import BREAKDOWN, Finding, FindingKind, Skipped
from diagnose.finding_thresholds import (
    CHANCE,
    FAR_NOISES,
    HALF,
    MOST_STEPS,
    NEARLY_ALL,
    NEGLIGIBLE,
    NOTICEABLE,
    OUTLYING,
    SHARED_BLAME,
    STALL,
    VISIBLE,
)
from diagnose.log_steps import BETWEEN, REST, LogSteps
from dialects import Role
from errors import counted, listed
from figures.job_figures import JobFigures
from replay.forecast import Gain
from result import in_digits, in_ms

_AROUND = 21  # steps around a step; with 11 or 41 the same is found (docs/accuracy.md, 9)
_ROLE_KINDS: Mapping[Role, FindingKind] = {Role.INPUT: "input", Role.COMM: "exposed_communication"}
_EXAMINED = {"late_rank", "outlier_steps", "uneven_work", *_ROLE_KINDS.values()}
#: Ranks that may be late in one job.
_FEW = 3
#: Of ranks and their parts, those that move most: whose parts alone grow is among them.
_MOST_SERIES = 100
_MOST_LOOKED_AT = 2_000  # steps, of which a median is near enough

#: Begin and end of a span, and the part and rank whose it is, if it is not of the whole step.
_Candidate = tuple[int, int, tuple[int, int] | None]


class _Span(Struct, frozen=True):
    """Slow steps from index `begin` to before `end`: what they cost, each, and who or what grew.

    `cost_ns` with its 95 % error; `part` grew by `part_ns` on `ranks`, or on all where these are empty.
    """

    begin: int
    end: int
    cost_ns: float
    error_ns: float
    part: int
    part_ns: float
    ranks: Sequence[int] = ()
    grows: bool = False  # step by step


def diagnose_step_log(job: JobFigures) -> Diagnosis:
    """Return the diagnosis of the figures of a step log; TraceError where no step is in every rank."""
    log = LogSteps(job)
    stalls = _stalls(log)
    usual = ~stalls
    spans = _spans(log, usual)
    in_span = np.zeros(len(usual), np.bool_)
    for span in spans:
        in_span[span.begin : span.end] = True
    spans_found = [_of_span(log, span, usual, in_span) for span in spans]
    stalled = list(_of_stalls(log, stalls & ~in_span, usual & ~in_span))
    least_ns = NEGLIGIBLE * float(log.step_ns.sum())
    shown = [*spans_found, *(one for one in stalled if (one.finding.lost_ns or 0.0) >= least_ns)]
    shown.sort(key=lambda one: -(one.finding.lost_ns or 0.0))
    reason = "a step log holds no single events"
    never = dialects.named(job.files[0].dialect).never_shows
    return Diagnosis(
        findings=shown,
        skipped=[
            Skipped(kind, reason)
            for kind in get_args(FindingKind)
            if kind not in _EXAMINED and kind not in never
        ],
        small=len(spans_found) + len(stalled) - len(shown),
        iteration_ns=log.rows_ns,
        job_ns=log.step_ns,
        numbers=log.number.tolist(),
        ranks=log.ranks,
        one_step="A step",
        excess=(log.number[log.begins].tolist(), log.longer_ns.max(axis=0)) if len(log.ranks) > 1 else None,
    )


# ---- stalls


def _stalls(log: LogSteps) -> Mask:
    """Return which steps (k,) are far longer than those around them, a few at a time, or again and again."""
    more, noise = log.step_ns - (near := around(log.step_ns, _AROUND)), spread_of(log.step_ns)
    least = np.maximum(STALL * near, FAR_NOISES * noise)
    far: Mask = more > least
    closed = more > HALF * least  # or else slow steps near the border would be some stalls
    closed[1:-1] |= closed[:-2] & closed[2:]
    edges = stretches(closed)
    n_far = np.diff(np.append(0, far.cumsum())[edges], axis=1)[:, 0]
    width = edges[:, 1] - edges[:, 0]
    again = more > np.maximum(NOTICEABLE * near, OUTLYING * noise)
    for begin, end in edges[(width >= LEAST_STEPS) | (n_far < width) & (n_far * 2 > LEAST_STEPS)].tolist():
        far[begin:end] = False
    return far | _again(log, again)


def _again(log: LogSteps, longer: Mask) -> Mask:
    """Return those of the longer steps (k,), a few at a time, that come again after equally many steps."""
    edges = stretches(longer)
    edges = edges[edges[:, 1] - edges[:, 0] < 2 * LEAST_STEPS]
    found = np.zeros(len(longer), np.bool_)
    for _, again in _recurring(log.number[edges[:, 0]], len(longer)):
        for begin, end in edges[again].tolist():
            found[begin:end] = True
    return found


def _of_stalls(log: LogSteps, stalls: Mask, usual: Mask) -> Iterator[Ranked]:
    """Yield findings for the stalls that one rank causes, and for all others; apart where they recur."""
    more = log.step_ns - around(log.step_ns, _AROUND)
    rows = np.flatnonzero(stalls)
    groups: dict[tuple[int, bool], list[int]] = {}  # by rank, or -1, and whether it is not in its rows
    for row in rows.tolist():
        first = max(row - _AROUND, 0)
        near = first + np.flatnonzero(usual[first : row + _AROUND + 1])
        # what a rank does after all have met makes the others wait in the next step
        grown = log.cells(np.arange(max(row - 1, 0), row + 1))
        grown -= (log.usual_ns(near)[0] if len(near) else np.zeros(grown.shape[:2]))[:, :, None]
        each = (grown - np.median(grown, axis=1)[:, None]).max(2)
        own = each.max(0)
        late = int(own.argmax())
        alone = len(own) > 1 and own[late] >= HALF * more[row] and np.sort(own)[-2] < HALF * own[late]
        in_rows = [part for part, name in enumerate(log.parts) if name != BETWEEN]
        between = alone and each[in_rows, late].max() < HALF * more[row]
        groups.setdefault((late if alone else -1, between), []).append(row)
    lost = {key[0]: more[of_rank].sum() for key, of_rank in groups.items() if key[0] >= 0 and not key[1]}
    if len(lost) > _FEW:  # that ranks stall is usual here, but for one that does more than all others
        for rank in [rank for rank, cost in lost.items() if cost < HALF * sum(lost.values())]:
            groups.setdefault((-1, False), []).extend(groups.pop((rank, False)))
    for (rank, between), of_rank in groups.items():
        every = np.sort(of_rank)
        starts = np.diff(log.number[every], prepend=log.number[every[0]] - 2) > 1
        whose = log.ranks[rank] if rank >= 0 else ""
        left = np.ones(len(every), np.bool_)
        for period, begins in _recurring(log.number[every[starts]], len(stalls)):
            recurs = begins[np.cumsum(starts) - 1]
            left &= ~recurs
            yield _of_some(log, every[recurs], more, whose, period, between=between)
        if left.any():
            yield _of_some(log, every[left], more, whose, 0, between=between)


def _of_some(log: LogSteps, at: Int64, more: Float64, whose: str, period: int, *, between: bool) -> Ranked:
    lost = float(more[at].sum())
    numbers = log.number[at].tolist()
    steps = f"step{'' if len(at) == 1 else 's'} {listed(list(map(str, numbers)), 5)}"
    after = round(len(at) / int((np.diff(at, prepend=-2) > 1).sum())) - 1
    when, takes = steps, "takes" if len(at) == 1 else "take up to"
    if period:
        when = f"every {period}th step" + (f", and {after} after it," if after else "")
        takes = "take" if after else "takes"
    longer = in_ms(float(np.median(more[at]) if period else more[at].max()))
    waits = f", in which all others wait for {whose}" if between else ""
    title = f"{when} {takes} {longer} longer than the steps around{waits}"
    if whose and not between:
        title = f"{whose} stalls in {when}: {longer} longer than the steps around"
    cause = f"{counted(len(at), 'step')} cost {in_ms(lost)} in all"
    if between:
        cause += f"; the log has no row for what {whose} does between its steps"
    finding = Finding(
        "outlier_steps", title, cause, "look at what ran then: checkpoints, evaluation, logging",
        ranks=[whose] if whose and not between else [], steps=numbers, look=BREAKDOWN,
        span=(int(numbers[0]), int(numbers[-1])), lost_ns=lost,
    )  # fmt: skip
    gain = Gain(lost / len(log.step_ns), None, None)
    return Ranked(finding, gain, gain.mid_ns / float(log.step_ns.mean()), gain.mid_ns)


def _recurring(numbers: Int64, n_steps: int) -> Iterator[tuple[int, Mask]]:
    """Yield after how many steps some of these come again, and which of them (n,): others each time.

    They are more than chance would place so among `n_steps`, in all ways to begin, recur and be missing.
    """
    left = np.ones(len(numbers), np.bool_)
    while True:
        period, found = 0, np.zeros(len(numbers), np.bool_)
        few = numbers[left][:MOST_SPANS]
        between = np.unique(few[None, :] - few[:, None])
        for every in between[between > 1].tolist():
            for first in few.tolist():
                own = left & ((numbers - first) % every == 0)
                n = int(own.sum())
                if n < max(3, found.sum() + 1):
                    continue
                expected = int(np.ptp(numbers[own])) // every + 1
                ways = 2 * np.log(n_steps) + (expected - n) * np.log(expected)
                if n >= MOST_STEPS * expected and n * np.log(n_steps / len(numbers)) > ways:
                    period, found = every, own
        if not period:
            return
        yield period, found
        left &= ~found


# ---- spans


def _spans(log: LogSteps, usual: Mask) -> list[_Span]:
    """Return the spans of slow steps: first those of ranks, the one that costs most first.

    Then those of all ranks, in what they leave. No two of them share half of the shorter one.
    """
    kept = np.flatnonzero(usual)
    if len(kept) < 2 * LEAST_STEPS:
        return []
    step_ns = log.step_ns.copy()
    least_ns = NEGLIGIBLE * float(np.median(step_ns[kept]))
    # so many errors hardly any of the spans of any series reaches by chance
    sure = float(np.sqrt(2 * np.log(len(kept) ** 2 * len(log.parts) * len(log.ranks))))
    chosen: list[_Span] = []

    def choose(candidates: Sequence[_Candidate], of_ranks: bool) -> None:
        judged: list[tuple[float, _Span]] = []
        for begin, end, whose in dict.fromkeys(candidates):
            span = _judged(log, step_ns, kept, begin, end, sure, whose, of_ranks=of_ranks)
            if span is not None:
                of = log.excess_ns(span.part, span.ranks[0]) if span.ranks else step_ns
                judged.append((_explained(of[kept], begin, end), span))
        best: list[_Span] = []  # of those of the same ranks and part that share steps
        for _, span in sorted(judged, key=lambda one: -one[0]):
            alike = [one for one in best if (one.part, one.ranks) == (span.part, span.ranks)]
            if all(_shared(span, other) < HALF for other in alike):
                best.append(span)
        for span in sorted(best, key=lambda one: -one.cost_ns * (one.end - one.begin)):
            over = [one for one in chosen if _shared(span, one) >= HALF]
            # of ranks that are late at once each holds up the others visibly
            if all(
                span.ranks and not {*span.ranks} & {*one.ranks} and span.part_ns >= VISIBLE * one.cost_ns
                for one in over
            ):
                chosen.append(_with_stalls(log, _growing(log, span, usual), usual))
                own = slice(span.begin, span.end)  # of ranks that are late at once one holds up the others
                step_ns[own] = np.minimum(step_ns[own], log.step_ns[own] - span.cost_ns)

    every = [(begin, end, None) for begin, end in higher_spans(step_ns[kept], least_ns, sure)]
    if len(log.ranks) > 1:
        found = [
            (begin, end, one)
            for one in _moved(log, usual, least_ns)
            for begin, end in higher_spans(log.excess_ns(*one)[kept], least_ns, sure)
        ]
        choose([*every, *found], of_ranks=True)
        in_span = np.zeros(len(step_ns), np.bool_)
        for span in chosen:
            in_span[span.begin : span.end] = True
        chosen += _always_late(log, kept[~in_span[kept]])
        every = [(begin, end, None) for begin, end in higher_spans(step_ns[kept], least_ns, sure)]
    choose(every, of_ranks=False)
    return chosen


def _always_late(log: LogSteps, kept: Int64) -> list[_Span]:
    """Return the rank that is late in all steps, if one is in those `kept`, which are in no other span.

    It is longer in one part than all others are, which meet in another one. In which of the two ranks wait
    tells the part's name, or that each step is as much longer as this rank is at the time.
    """
    n = len(log.ranks)
    if n < 4 or len(kept) < 2 * LEAST_STEPS:
        return []
    step = float(np.median(log.step_ns[kept]))
    _, longer = log.usual_ns(kept)
    own = longer.copy()
    for part, name in enumerate(log.parts):
        if log.roles[name] in (Role.WAIT, Role.COMM):
            own[part] = 0
    part, rank = divmod(int(own.argmax()), n)
    waits_in = int(longer[:, rank].argmin())
    others = np.arange(n) != rank
    if own[part, rank] < NOTICEABLE * step or own[part, others].max() > HALF * own[part, rank]:
        return []
    told = (
        log.roles[log.parts[waits_in]] in (Role.WAIT, Role.COMM) or log.roles[log.parts[part]] is Role.INPUT
    )
    if not told and not _leads(log, part, rank, kept):
        return []
    most = kept[np.linspace(0, len(kept) - 1, min(len(kept), _MOST_LOOKED_AT)).astype(np.int64)]
    waits = log.cells(most)[waits_in]
    less = waits[others].min(0) - waits[rank]  # by so much it is later than the last of all others
    cost, error = float(np.median(less)), NormalDist().inv_cdf(1 - CHANCE / 2) * level_error(less, len(less))
    if cost < max(NOTICEABLE * step, error):
        return []
    return [_Span(0, len(log.step_ns), cost, error, part, float(own[part, rank]), [rank])]


def _leads(log: LogSteps, part: int, rank: int, kept: Int64) -> bool:
    """Whether steps, or those after them, are longer by what the part of a rank is longer (least squares)."""
    excess, step = log.excess_ns(part, rank)[kept], log.step_ns[kept]
    x, y = (clipped_to_noise(one - around(one, _AROUND)) for one in (excess[:-1], step[:-1] + step[1:]))
    x, y = x - x.mean(), y - y.mean()
    if not x.any():
        return False
    slope = float(x @ y / (x @ x))
    error = float(np.sqrt(((y - slope * x) ** 2).mean() / (x @ x)))
    return slope > max(HALF, 2 * error)


def _moved(log: LogSteps, usual: Mask, least_ns: float) -> list[tuple[int, int]]:
    """Return the part and the rank of the series that move by more than `least_ns`, most first."""
    if len(log.ranks) == 1:
        return []
    excess = log.longer_ns[:, :, log.stretches_of(usual)]
    width = max(1, excess.shape[2] // 100)
    blocks = np.add.reduceat(excess, np.arange(0, excess.shape[2], width), axis=2) / width
    moved = blocks.max(axis=2) - np.median(blocks, axis=2)
    most = np.argsort(-moved, axis=None, kind="stable")[:_MOST_SERIES]
    pairs = [divmod(at, len(log.ranks)) for at in most.tolist()]
    return [pair for pair in pairs if moved[pair] > least_ns]


def _explained(values: Float64, begin: int, end: int) -> float:
    """Return how much nearer the values (k,) are to a median inside and one outside than to a single one."""
    inside, outside = values[begin:end], np.concatenate([values[:begin], values[end:]])
    of_two = sum(float(np.abs(part - np.median(part)).sum()) for part in (inside, outside))
    return float(np.abs(values - np.median(values)).sum()) - of_two


def _growing(log: LogSteps, span: _Span, usual: Mask) -> _Span:
    """Return a span whose steps grow one after the other from where they begin to; others unchanged.

    They begin where a line up to the span's end explains most (least squares), at most twice the span's
    length before it; they grow where it rises by half of their mean and explains half of what differs.
    """
    series = log.excess_ns(span.part, span.ranks[0]) if span.ranks else log.step_ns
    first = max(0, span.begin - 2 * (span.end - span.begin))
    outside = _beside(usual, first, span.end)
    if len(outside) < LEAST_STEPS:
        return span
    own = usual[first : span.end]
    more = np.where(own, series[first : span.end] - np.median(series[outside]), 0.0)
    at = np.arange(len(own), dtype=np.float64)
    sums = np.array([own, own * at, own * at * at, more, more * at, more * more])
    n, x, xx, y, xy, yy = sums[:, ::-1].cumsum(1)[:, ::-1][:, : 1 + len(own) - LEAST_STEPS]
    n = np.maximum(n, 1)
    spread = np.maximum(n * xx - x * x, 1)
    by_line = (n * xy - x * y) ** 2 / spread / n
    begin = int((by_line + y * y / n).argmax())
    slope, level, differs = (n * xy - x * y) / spread, y / n, yy - y * y / n
    if (slope * n)[begin] < HALF * level[begin] or by_line[begin] < HALF * differs[begin]:
        return span
    return replace(span, begin=first + begin, grows=True)


def _with_stalls(log: LogSteps, span: _Span, usual: Mask) -> _Span:
    """Return the span with the stalls right before and after it in which the same part is as long.

    In a stall that part is long on all ranks that wait. So where no rank is late, one after the span tells
    nothing; one before it is when the span's cause came.
    """
    series = log.series(span.part, span.ranks[0]) if span.ranks else log.middle_ns[span.part]
    is_longer = series > np.median(series[span.begin : span.end]) - HALF * span.part_ns
    begin, end = span.begin, span.end
    while begin > 0 and not usual[begin - 1] and is_longer[begin - 1]:
        begin -= 1
    while span.ranks and end < len(usual) and not usual[end] and is_longer[end]:
        end += 1
    return replace(span, begin=begin, end=end)


def _shared(one: _Span, other: _Span) -> float:
    """Return which part of the shorter span lies in the other."""
    both = min(one.end, other.end) - max(one.begin, other.begin)
    return max(both, 0) / min(one.end - one.begin, other.end - other.begin)


def _beside(free: Mask, begin: int, end: int) -> Int64:
    """Return the steps beside a span with which its are compared: as many before it as after it.

    So a drift is in none. Where one side has few, they are those of the other.
    """
    most = max(_AROUND, end - begin)
    before, after = np.flatnonzero(free[:begin])[-most:], end + np.flatnonzero(free[end:])[:most]
    both = min(len(before), len(after))
    if both >= most // 4:
        return np.concatenate([before[-both:], after[:both]])
    return before if len(before) > len(after) else after


def _judged(
    log: LogSteps,
    step_ns: Float64,
    kept: Int64,
    begin: int,
    end: int,
    sure: float,
    whose: tuple[int, int] | None,
    *,
    of_ranks: bool,
) -> _Span | None:
    """Return the cost of a span of the steps `kept`, and who is to blame; None where that is not sure.

    `step_ns` (k,) is what no other span explains; `of_ranks`: whether ranks or all of them are to blame, of
    ranks the one `whose` part the span is of, if that is nearly the latest.
    """
    inside, free = kept[begin:end], np.zeros(len(step_ns), np.bool_)
    free[kept] = True
    first, last = int(inside[0]), int(inside[-1]) + 1
    outside = _beside(free, first, last)
    if len(outside) < LEAST_STEPS:
        return None
    usual = float(np.median(step_ns[outside]))
    cost = float(np.median(step_ns[inside])) - usual
    half_interval = NormalDist().inv_cdf(1 - CHANCE / 2)
    error = half_interval * difference_error(step_ns[kept], end - begin)
    if end - begin > _AROUND:
        error = max(error, half_interval * level_error(step_ns[inside], end - begin))
    if of_ranks and cost < error:  # steps of a few lengths have means rather than medians
        plain = clipped_to_noise(step_ns[np.concatenate([inside, outside])])
        cost = float(plain[: len(inside)].mean() - plain[len(inside) :].mean())
    least = NEGLIGIBLE if of_ranks else NOTICEABLE
    if cost < max(least * usual, error if of_ranks else sure / half_interval * error):
        return None
    (then, longer), (before, longer_before) = log.usual_ns(inside), log.usual_ns(outside)
    grown = then - before
    if not of_ranks:
        if _by_chance(step_ns[inside], step_ns[kept], usual + HALF * cost):
            return None
        middle = np.sort(grown, axis=1)[:, (len(log.ranks) - 1) // 2]
        part = int(middle.argmax())
        return _Span(first, last, cost, error, part, float(middle[part]))
    own = np.minimum(grown, longer - longer_before)
    own[longer < HALF * own] = 0  # of what it only had less of before
    for part, name in enumerate(log.parts):
        if log.roles[name] is Role.WAIT:
            own[part] = 0
        elif log.roles[name] is Role.COMM:  # nearly always waiting
            own[part] *= HALF
    part, rank = divmod(int(own.argmax()), own.shape[1])
    if whose is not None and own[whose] >= SHARED_BLAME * own[part, rank]:
        part, rank = whose
    if own[part, rank] < max(
        VISIBLE * cost, sure * difference_error(log.excess_ns(part, rank)[kept], end - begin)
    ):
        return None
    late = np.flatnonzero(own[part] >= SHARED_BLAME * own[part, rank])
    many = len(late) > max(1, len(log.ranks) // 2) or (own[part] >= HALF * own[part, rank]).sum() > len(late)
    if len(late) > 1 and (many or own[part, rank] < HALF * cost):  # they are the first of many
        return None
    if HALF * own[part, rank] < _elsewhere(log, free, part, late, first, last):
        return None
    return _Span(first, last, cost, error, part, float(own[part, rank]), late.tolist())


def _by_chance(inside: Float64, every: Float64, above: float) -> bool:
    """Whether some of the steps in a row are as often above a time by chance, as one step of all is.

    Of a binomial distribution (Chernoff's bound), at any place, for any number of steps.
    """
    n, p = len(inside), float((inside > above).mean())
    q = max(float((every > above).sum() - p * n), 1.0) / max(len(every) - n, 1)
    if p <= q:
        return True
    apart = p * np.log(p / q) + (0.0 if p == 1 else (1 - p) * np.log((1 - p) / (1 - q)))
    return bool(n * apart < np.log(len(every) ** 2 / CHANCE))


def _elsewhere(log: LogSteps, free: Mask, part: int, late: Int64, begin: int, end: int) -> float:
    """Return how much longer a part is at most in so many steps of other ranks, or of `late` at other times.

    The `_FEW`-th most of them: some may be late, too. Where hosts are loaded it is about as long on many.
    """
    if len(log.ranks) < 4:
        return 0.0
    longer = np.where(log.stretches_of(free), log.longer_ns[part], 0.0)
    longer -= np.median(longer, axis=1)[:, None]
    n = max(1, (end - begin) * longer.shape[1] // len(log.number))
    longer[np.ix_(late, (log.begins >= begin) & (log.begins < end))] = 0.0
    sums = np.pad(longer, ((0, 0), (1, 0))).cumsum(1)
    most = np.sort((sums[:, n:] - sums[:, :-n]).max(1) / n)
    return float(most[-min(_FEW, len(log.ranks) // 2)])


def _of_span(log: LogSteps, span: _Span, usual: Mask, in_span: Mask) -> Ranked:
    """Return the finding of a span: whose fault it is, in which part, since when, and at what cost."""
    outside = _beside(usual & ~in_span, span.begin, span.end)
    step = log.step_ns
    always = len(outside) < LEAST_STEPS
    base = float(np.median(step) - span.cost_ns if always else np.median(step[outside]))
    more = step[span.begin : span.end] - base
    mean = float(around(more, LEAST_STEPS).mean()) if span.grows else float(np.median(more))
    lost = float(more.sum())
    from_step, to_step = int(log.number[span.begin]), int(log.number[span.end - 1])
    if log.width > 1 and span.end < len(step):  # up to the start of the next stretch
        to_step = int(log.number[span.end]) - 1
    where = f"from step {from_step} to {to_step}" if span.end < len(step) else f"from step {from_step} on"
    where = "in all steps" if always else where
    part = log.parts[span.part]
    names = [log.ranks[rank] for rank in span.ranks]
    is_inside = np.zeros(len(usual), np.bool_)
    is_inside[span.begin : span.end] = True
    changed = list(_changed_values(log, log.stretches_of(is_inside), log.stretches_of(usual & ~in_span)))
    went = "".join(
        f"; {name} of {log.ranks[rank]} is {_plain(new)} there instead of {_plain(old)}"
        for name, rank, old, new in changed
    )
    ramp = f", growing to {in_ms(float(np.median(more[-max(1, len(more) // 20) :])))}" if span.grows else ""
    if names:
        verb = "is" if len(names) == 1 else "are"
        title = f"{listed(names)} {verb} late {where}: {in_ms(span.part_ns)} more in {part}{ramp}"
        cause = f"A step takes {in_ms(base + mean)} there instead of {in_ms(base)}, as all others wait"
        kind: FindingKind = "late_rank"
        action = f"look at {listed(names)} in these steps: its host, its device, its input"
    else:
        who = [log.ranks[rank] for _, rank, _, _ in changed]
        kind = "uneven_work" if who else _ROLE_KINDS.get(log.roles[part], "outlier_steps")
        whose, alike = ("all ranks' steps", ", on all ranks alike") if len(log.ranks) > 1 else ("steps", "")
        title = f"{whose} are longer {where}: {in_ms(mean)} per step, most of it in {part}{ramp}"
        cause = f"A step takes {in_ms(base + mean)} there instead of {in_ms(base)}{alike}{went}"
        action = (
            f"look at why {changed[0][0]} changed on {listed(list(dict.fromkeys(who)))}"
            if who
            else "look at what changed then for all ranks: the network, the input, the devices' clocks"
        )
        names = list(dict.fromkeys(who))
    if names and kind == "late_rank":
        cause += went
    cause += f"; {counted(span.end - span.begin, 'step')} cost {in_digits(lost / 1e9)} s in all"
    finding = Finding(
        kind, title, cause, action,
        ranks=names, operations=[] if part in (REST, BETWEEN) else [part], look=BREAKDOWN,
        span=(from_step, to_step), lost_ns=lost,
    )  # fmt: skip
    gain = Gain(mean, mean - span.error_ns, mean + span.error_ns)
    return Ranked(finding, gain, mean / (base + mean), mean)


def _changed_values(log: LogSteps, inside: Mask, outside: Mask) -> Iterator[tuple[str, int, float, float]]:
    """Yield column, rank, value before and in the span, of other columns that changed on a few ranks."""
    if not inside.any() or not outside.any():
        return
    for name, of_ranks in log.values.items():
        new, old = np.median(of_ranks[:, inside], axis=1), np.median(of_ranks[:, outside], axis=1)
        spread = np.array([spread_of(one[outside]) for one in of_ranks])
        low, high = np.percentile(of_ranks[:, outside], [16, 84], axis=1)
        spread = np.maximum(
            spread, (high - low) / 2
        )  # what grows all the time, as a counter, changed not there
        moved = np.abs(new - old) > np.maximum(FAR_NOISES * spread, NOTICEABLE * np.abs(old))
        steady = np.abs(of_ranks[:, inside] - new[:, None]) < HALF * np.abs(new - old)[:, None]
        is_same = moved & (steady.mean(1) >= NEARLY_ALL)
        most = np.abs(new - old)[~is_same].max(initial=0.0)  # on the others, where it may be noisier
        is_same &= HALF * np.abs(new - old) > most
        if 0 < is_same.sum() <= max(1, len(log.ranks) // 4):
            for rank in np.flatnonzero(is_same).tolist():
                yield name, rank, float(old[rank]), float(new[rank])


def _plain(number: float) -> str:
    return f"{number:,.0f}" if number == round(number) else f"{number:.4g}"
