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
from arrays.change_points import higher_span, spread_of
from arrays.median import MEDIAN_TO_MEAN
from diagnose.diagnosis import Diagnosis, Ranked
from diagnose.finding import BREAKDOWN, Finding, FindingKind, Skipped
from diagnose.finding_thresholds import (
    CHANCE,
    FAR_NOISES,
    HALF,
    NEARLY_ALL,
    NEGLIGIBLE,
    NOISES,
    NOTICEABLE,
    SHARED_BLAME,
    STALL,
)
from diagnose.log_steps import REST, LogSteps
from dialects import Role
from errors import counted, listed
from figures.job_figures import JobFigures
from replay.forecast import Gain
from result import in_ms

#: Steps that a span has at least, and the spans that are looked for in each series.
_LEAST_STEPS, _MOST_SPANS = 5, 6
_AROUND = 21  # steps around a step
_ROLE_KINDS: Mapping[Role, FindingKind] = {Role.INPUT: "input", Role.COMM: "exposed_communication"}
_EXAMINED = {"late_rank", "outlier_steps", "input", "exposed_communication", "uneven_work"}
#: Of ranks and their parts, those that move most: whose parts alone grow is among them.
_MOST_SERIES = 100


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
    shown = [*spans_found, *(one for one in stalled if one.lost_ns >= least_ns)]
    shown.sort(key=lambda one: -one.lost_ns)
    reason = "a step log holds no single events"
    never = dialects.named(job.files[0].dialect).never_shows
    return Diagnosis(
        findings=[Ranked(one.finding, one.gain, one.share, one.gain.mid_ns) for one in shown],
        skipped=[
            Skipped(kind, reason)
            for kind in get_args(FindingKind)
            if kind not in _EXAMINED and kind not in never
        ],
        small=len(spans_found) + len(stalled) - len(shown),
        iteration_ns=log.step_ns,
        job_ns=log.step_ns,
        numbers=log.number.tolist(),
        ranks=log.ranks,
        one_step="A step",
        excess=(log.number[log.begins].tolist(), log.mean_excess_ns().max(axis=0))
        if len(log.ranks) > 1
        else None,
    )


# ---- stalls


def _around(values: Float64) -> Float64:
    """Return the median of the steps around each (k,)."""
    padded = np.pad(values, _AROUND // 2, mode="edge")
    return np.median(np.lib.stride_tricks.sliding_window_view(padded, _AROUND), axis=-1)


def _stalls(log: LogSteps) -> Mask:
    """Return which steps (k,) are far longer than those around them, a few at a time."""
    around = _around(log.step_ns)
    far: Mask = log.step_ns - around > np.maximum(STALL * around, FAR_NOISES * spread_of(log.step_ns))
    edges = np.flatnonzero(np.diff(far, prepend=False, append=False))
    for begin, end in edges.reshape(-1, 2).tolist():
        far[begin:end] = end - begin < _LEAST_STEPS
    return far


class _Known(Struct, frozen=True):
    """A finding, its gain, as a share of a step of its span, and what it cost in all (ns)."""

    finding: Finding
    gain: Gain
    share: float
    lost_ns: float


def _of_stalls(log: LogSteps, stalls: Mask, usual: Mask) -> Iterator[_Known]:
    """Yield a finding for the stalls of each rank that holds them up itself, and one for all others."""
    more = log.step_ns - _around(log.step_ns)
    rows = np.flatnonzero(stalls)
    groups: dict[int, list[int]] = {}
    for row in rows.tolist():
        first = max(row - _AROUND, 0)
        near = first + np.flatnonzero(usual[first : row + _AROUND + 1])
        grown = log.cells(np.array([row]))[:, :, 0] - (log.usual_ns(near) if len(near) else 0.0)
        own = (grown - np.median(grown, axis=1)[:, None]).max(0)
        late = int(own.argmax())
        alone = len(own) > 1 and own[late] >= HALF * more[row] and np.sort(own)[-2] < HALF * own[late]
        groups.setdefault(late if alone else -1, []).append(row)
    for rank, of_rank in groups.items():
        at = np.array(of_rank)
        lost = float(more[at].sum())
        numbers = log.number[at].tolist()
        every = _period(log.number[at])
        steps = f"step{'' if len(at) == 1 else 's'} {listed(list(map(str, numbers)), 5)}"
        takes = "takes" if every or len(at) == 1 else "take up to"
        longer = in_ms(float(np.median(more[at]) if every else more[at].max()))
        whose = log.ranks[rank] if rank >= 0 else ""
        title = (
            f"{whose + ' stalls: ' if whose else ''}{f'every {every}th step' if every else steps} {takes} "
            f"{longer} longer than the steps around"
        )
        cause = f"{counted(len(at), 'step')} cost {in_ms(lost)} in all"
        finding = Finding(
            "outlier_steps", title, cause, "look at what ran then: checkpoints, evaluation, logging",
            ranks=[whose] if whose else [], steps=numbers, look=BREAKDOWN,
            span=(int(numbers[0]), int(numbers[-1])), lost_ns=lost,
        )  # fmt: skip
        gain = Gain(lost / len(log.step_ns), None, None)
        yield _Known(finding, gain, gain.mid_ns / float(log.step_ns.mean()), lost)


def _period(numbers: Int64) -> int:
    """Return after how many steps these steps come again; 0 where they do not."""
    if len(numbers) < 3:
        return 0
    between = np.diff(numbers)
    usual = int(between.min())
    return usual if usual > 1 and (between % usual == 0).mean() >= NEARLY_ALL else 0


# ---- spans


def _spans(log: LogSteps, usual: Mask) -> list[_Span]:
    """Return the spans of slow steps, the one that costs most first; none overlaps another by half."""
    if usual.sum() < 2 * _LEAST_STEPS:
        return []
    kept = np.flatnonzero(usual)
    step = log.step_ns[kept]
    least_ns = NEGLIGIBLE * float(np.median(step))
    # so many errors hardly any of the spans of any series reaches by chance
    sure = float(np.sqrt(2 * np.log(len(kept) ** 2 * len(log.parts) * len(log.ranks))))
    candidates = _of_series(step, least_ns, sure)
    for part, rank in _moved(log, usual, least_ns):
        candidates += _of_series(log.excess_ns(part, rank)[kept], least_ns, sure)
    best: dict[tuple[int, ...], tuple[float, _Span]] = {}
    for begin, end in dict.fromkeys(candidates):
        if (span := _judged(log, kept, begin, end, sure)) is not None:
            of = log.excess_ns(span.part, span.ranks[0])[kept] if span.ranks else step
            score = _explained(of, begin, end)
            whose = (span.part, *span.ranks)
            if whose not in best or score > best[whose][0]:
                best[whose] = score, span
    chosen: list[_Span] = []
    for _, span in sorted(best.values(), key=lambda one: -one[1].cost_ns * (one[1].end - one[1].begin)):
        if all(_shared(span, other) < HALF for other in chosen):
            chosen.append(_with_stalls(log, _from_zero(log, span, usual), usual))
    return chosen


def _moved(log: LogSteps, usual: Mask, least_ns: float) -> list[tuple[int, int]]:
    """Return the part and the rank of the series that move by more than `least_ns`, most first."""
    if len(log.ranks) == 1:
        return []
    excess = log.mean_excess_ns()[:, :, log.stretches_of(usual)]
    width = max(1, excess.shape[2] // 100)
    blocks = np.add.reduceat(excess, np.arange(0, excess.shape[2], width), axis=2) / width
    moved = np.quantile(blocks, 0.98, axis=2) - np.quantile(blocks, 0.02, axis=2)
    most = np.argsort(-moved, axis=None, kind="stable")[:_MOST_SERIES]
    pairs = [divmod(at, len(log.ranks)) for at in most.tolist()]
    return [pair for pair in pairs if moved[pair] > least_ns]


def _explained(values: Float64, begin: int, end: int) -> float:
    """Return how much nearer the values (k,) are to a median inside and one outside than to a single one."""
    inside, outside = values[begin:end], np.concatenate([values[:begin], values[end:]])
    of_two = sum(float(np.abs(part - np.median(part)).sum()) for part in (inside, outside))
    return float(np.abs(values - np.median(values)).sum()) - of_two


def _from_zero(log: LogSteps, span: _Span, usual: Mask) -> _Span:
    """Return a span whose steps grow one after the other from where they begin to grow; others unchanged.

    They do where a line explains most of their spread and rises by more than half of what they cost.
    """
    inside = span.begin + np.flatnonzero(usual[span.begin : span.end])
    if len(inside) < 2 * _LEAST_STEPS:
        return span
    outside = np.setdiff1d(np.flatnonzero(usual), inside)
    near = _around(log.step_ns[inside] - np.median(log.step_ns[outside]))
    slope, level = np.polyfit(inside, near, 1)
    left = near - (slope * inside + level)
    if slope * len(inside) < HALF * span.cost_ns or left.var() > HALF**2 * near.var():
        return span
    series = log.excess_ns(span.part, span.ranks[0]) if span.ranks else log.step_ns
    is_longer = series > np.median(series[outside]) + NOISES * spread_of(series)
    begin, zero = span.begin, max(-level / slope, 0)
    while begin - 1 > zero and is_longer[begin - 1]:
        begin -= 1
    return replace(span, begin=begin, grows=True)


def _with_stalls(log: LogSteps, span: _Span, usual: Mask) -> _Span:
    """Return the span with the stalls right before and after it in which the same part is as long."""
    series = log.series(span.part, span.ranks[0]) if span.ranks else log.middle_ns[span.part]
    is_longer = series > np.median(series[span.begin : span.end]) - HALF * span.part_ns
    begin, end = span.begin, span.end
    while begin > 0 and not usual[begin - 1] and is_longer[begin - 1]:
        begin -= 1
    while end < len(usual) and not usual[end] and is_longer[end]:
        end += 1
    return replace(span, begin=begin, end=end)


def _shared(one: _Span, other: _Span) -> float:
    """Return which part of the shorter span lies in the other."""
    both = min(one.end, other.end) - max(one.begin, other.begin)
    return max(both, 0) / min(one.end - one.begin, other.end - other.begin)


def _of_series(values: Float64, least_ns: float, sure: float) -> list[tuple[int, int]]:
    """Return the spans in which a series (k,) is higher, each without those before it."""
    left = values.copy()
    found = []
    for _ in range(_MOST_SPANS):
        begin, end = higher_span(left, _LEAST_STEPS)
        outside = np.concatenate([left[:begin], left[end:]])
        if not len(outside):
            break
        more = float(np.median(left[begin:end]) - np.median(outside))
        error = _error(left[begin:end]) + _error(outside)
        if more < max(least_ns, sure * error):
            break
        found.append((begin, end))
        left[begin:end] -= more
    return found


def _error(values: Float64) -> float:
    """Return the standard error of a median of normal values."""
    return MEDIAN_TO_MEAN * spread_of(values) / float(np.sqrt(max(len(values), 1)))


def _judged(log: LogSteps, kept: Int64, begin: int, end: int, sure: float) -> _Span | None:
    """Return who is to blame for a span of the steps `kept`; None where it costs nothing that is sure."""
    inside = kept[begin:end]
    outside = np.setdiff1d(kept, inside)
    step = log.step_ns
    cost = float(np.median(step[inside]) - np.median(step[outside]))
    usual = float(np.median(step[outside]))
    half_interval = NormalDist().inv_cdf(1 - CHANCE / 2)
    error = half_interval * float(np.hypot(_error(step[inside]), _error(step[outside])))
    if cost < max(NEGLIGIBLE * usual, error):
        return None
    grown = log.usual_ns(inside) - log.usual_ns(outside)
    middle = np.sort(grown, axis=1)[:, (len(log.ranks) - 1) // 2, None]
    own = np.minimum(grown, grown - middle) if len(log.ranks) > 1 else np.zeros_like(grown)
    if len(log.ranks) == 2:  # what the one has more of the other waits for: which is which, its name tells
        waits = [log.roles[name] in (Role.COMM, Role.WAIT) for name in log.parts]
        own[waits] *= NEARLY_ALL
    part, rank = divmod(int(own.argmax()), own.shape[1])
    first, last = int(inside[0]), int(inside[-1]) + 1
    if own[part, rank] >= HALF * cost:
        late = np.flatnonzero(own[part] >= SHARED_BLAME * own[part, rank])
        if len(late) <= max(1, len(log.ranks) // 2):
            return _Span(first, last, cost, error, part, float(own[part, rank]), late.tolist())
    if cost < max(NOTICEABLE * usual, sure / half_interval * error):
        return None
    part = int(middle[:, 0].argmax())
    return _Span(first, last, cost, error, part, float(middle[part, 0]))


def _of_span(log: LogSteps, span: _Span, usual: Mask, in_span: Mask) -> _Known:
    """Return the finding of a span: whose fault it is, in which part, since when, and at what cost."""
    inside = span.begin + np.flatnonzero(usual[span.begin : span.end])
    outside = np.flatnonzero(usual & ~in_span)
    step = log.step_ns
    base = float(np.median(step[outside]))
    lost = float((step[span.begin : span.end] - base).sum())
    more = step[inside] - base
    mean = float(more.mean()) if span.grows else float(np.median(more))
    from_step, to_step = int(log.number[span.begin]), int(log.number[span.end - 1])
    where = f"from step {from_step} to {to_step}" if span.end < len(step) else f"from step {from_step} on"
    part = log.parts[span.part]
    names = [log.ranks[rank] for rank in span.ranks]
    is_inside = np.isin(np.arange(len(usual)), inside)
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
        title = f"{whose} are longer {where}: {in_ms(mean)} a step, most of it in {part}{ramp}"
        cause = f"A step takes {in_ms(base + mean)} there instead of {in_ms(base)}{alike}{went}"
        action = (
            f"look at why {changed[0][0]} changed on {listed(list(dict.fromkeys(who)))}"
            if who
            else "look at what changed then for all ranks: the network, the input, the devices' clocks"
        )
        names = list(dict.fromkeys(who))
    if names and kind == "late_rank":
        cause += went
    cause += f"; {counted(span.end - span.begin, 'step')} cost {lost / 1e9:,.1f} s in all"
    finding = Finding(
        kind, title, cause, action,
        ranks=names, operations=[] if part == REST else [part], look=BREAKDOWN,
        span=(from_step, to_step), lost_ns=lost,
    )  # fmt: skip
    gain = Gain(mean, mean - span.error_ns, mean + span.error_ns)
    return _Known(finding, gain, mean / (base + mean), lost)


def _changed_values(log: LogSteps, inside: Mask, outside: Mask) -> Iterator[tuple[str, int, float, float]]:
    """Yield column, rank, value before and in the span, of other columns that changed on a few ranks."""
    if not inside.any() or not outside.any():
        return
    for name, of_ranks in log.values.items():
        new, old = np.median(of_ranks[:, inside], axis=1), np.median(of_ranks[:, outside], axis=1)
        spread = np.array([spread_of(one[outside]) for one in of_ranks])
        moved = np.abs(new - old) > np.maximum(FAR_NOISES * spread, NOTICEABLE * np.abs(old))
        steady = np.abs(of_ranks[:, inside] - new[:, None]) < HALF * np.abs(new - old)[:, None]
        is_same = moved & (steady.mean(1) >= NEARLY_ALL)
        if 0 < is_same.sum() <= max(1, len(log.ranks) // 4):
            for rank in np.flatnonzero(is_same).tolist():
                yield name, rank, float(old[rank]), float(new[rank])


def _plain(number: float) -> str:
    return f"{number:,.0f}" if number == round(number) else f"{number:.4g}"
