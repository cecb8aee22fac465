"""The diagnosis of a step log: since when are steps slow, by how much, and which rank holds them up.

All ranks' steps last equally long, as each waits for the others. So the waiting hides in whatever part of
the step grows on the other ranks; the rank that is late is the one whose own other part grows instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import get_args

import numpy as np

import dialects
from arrays import Float64, Int64, Mask
from arrays.change_points import LEAST_STEPS, around, spread_of
from arrays.intervals import stretches
from diagnose.diagnosis import Diagnosis, Ranked
from diagnose.finding import BREAKDOWN, Finding, FindingKind, Skipped
from diagnose.finding_thresholds import FAR_NOISES, HALF, NEARLY_ALL, NEGLIGIBLE, NOTICEABLE, STALL
from diagnose.log_steps import BETWEEN, REST, LogSteps
from diagnose.slow_spans import AROUND, FEW, SlowSpan, beside, covered, slow_spans
from dialects import Role
from errors import counted, listed
from figures.job_figures import JobFigures
from replay.forecast import Gain
from units import in_digits, in_ms

_ROLE_KINDS: Mapping[Role, FindingKind] = {Role.INPUT: "input", Role.COMM: "exposed_communication"}
_EXAMINED = {"late_rank", "outlier_steps", "uneven_work", *_ROLE_KINDS.values()}


def diagnose_step_log(job: JobFigures) -> Diagnosis:
    """Diagnose the figures of a step log; TraceError where no step is in every rank."""
    log = LogSteps(job)
    near = around(log.step_ns, AROUND)
    stalls = _stalls(log, near)
    spans = slow_spans(log, ~stalls)
    in_span = covered(spans, len(stalls))
    usual = ~stalls & ~in_span
    findings = [_of_span(log, span, usual) for span in spans]
    stalled = list(_of_stalls(log, log.step_ns - near, np.flatnonzero(stalls & ~in_span), usual))
    least_ns = NEGLIGIBLE * float(log.step_ns.sum())
    shown = [*findings, *(ranked for ranked in stalled if (ranked.finding.lost_ns or 0.0) >= least_ns)]
    shown.sort(key=lambda ranked: -(ranked.finding.lost_ns or 0.0))
    examined = _EXAMINED.union(dialects.named(job.files[0].dialect).never_shows)
    kinds: list[FindingKind] = [kind for kind in get_args(FindingKind) if kind not in examined]
    return Diagnosis(
        findings=shown,
        skipped=[Skipped(kind, "a step log holds no single events") for kind in kinds],
        small=len(findings) + len(stalled) - len(shown),
        iteration_ns=log.rows_ns,
        job_ns=log.step_ns,
        numbers=log.number.tolist(),
        ranks=log.ranks,
        one_step="A step",
        notes=_left_out(log),
        excess=(log.number[log.begins].tolist(), log.longer_ns.max(axis=0)) if len(log.ranks) > 1 else None,
    )


def _left_out(log: LogSteps) -> list[str]:
    """Return a note on the steps that are left out because some rank did not log them."""
    most, fewest = max(log.n_logged), min(log.n_logged)
    if len(log.number) >= most:
        return []
    short = [rank for rank, n in zip(log.ranks, log.n_logged, strict=True) if n == fewest]
    return [
        f"{counted(most - len(log.number), 'step')} left out, as not all ranks logged them: "
        f"{listed(short, 3)} logged {fewest:,}, others up to {most:,}."
    ]


# ---- stalls


def _stalls(log: LogSteps, near: Float64) -> Mask:
    """Return which steps (k,) are far longer than those around them, `near` (k,), a few at a time."""
    more, noise = log.step_ns - near, spread_of(log.step_ns)
    least = np.maximum(STALL * near, FAR_NOISES * noise)
    far: Mask = more > least
    closed = more > HALF * least  # or else slow steps near the border would be some stalls
    closed[1:-1] |= closed[:-2] & closed[2:]
    edges = stretches(closed)
    n_far = np.diff(np.append(0, far.cumsum())[edges], axis=1)[:, 0]
    width = edges[:, 1] - edges[:, 0]
    for begin, end in edges[(width >= LEAST_STEPS) | (n_far < width) & (n_far * 2 > LEAST_STEPS)].tolist():
        far[begin:end] = False
    return far


def _of_stalls(log: LogSteps, more: Float64, stalls: Int64, usual: Mask) -> Iterator[Ranked]:
    """Yield a finding for the stalls that each rank causes, and one for all others.

    `more` (k,) is how much longer steps are than those around them.
    """
    groups: dict[tuple[int, bool], list[int]] = {}
    for row in stalls.tolist():
        groups.setdefault(_who_stalls(log, row, float(more[row]), usual), []).append(row)
    lost = {key: float(more[rows].sum()) for key, rows in groups.items() if key[0] >= 0 and not key[1]}
    if len(lost) > FEW:  # that ranks stall is usual here, but for one that does more than all others
        for key in [key for key, cost in lost.items() if cost < HALF * sum(lost.values())]:
            groups.setdefault((-1, False), []).extend(groups.pop(key))
    for (rank, between), rows in groups.items():
        whose = log.ranks[rank] if rank >= 0 else ""
        yield _stall(log, np.sort(rows), more, whose, between=between)


def _who_stalls(log: LogSteps, row: int, more: float, usual: Mask) -> tuple[int, bool]:
    """Return the rank that alone makes a step longer, else -1, and whether its rows do not show that."""
    first = max(row - AROUND, 0)
    near = first + np.flatnonzero(usual[first : row + AROUND + 1])
    # what a rank does after all have met makes the others wait in the next step
    grown = log.cells(np.arange(max(row - 1, 0), row + 1))
    if len(near):
        grown -= log.usual_ns(near)[0][:, :, None]
    by_part = (grown - np.median(grown, axis=1)[:, None]).max(2)
    by_rank = by_part.max(0)
    late = int(by_rank.argmax())
    if len(by_rank) < 2 or by_rank[late] < HALF * more or np.sort(by_rank)[-2] >= HALF * by_rank[late]:
        return -1, False
    in_rows = [part for part, name in enumerate(log.parts) if name != BETWEEN]
    return late, bool(by_part[in_rows, late].max() < HALF * more)


def _stall(log: LogSteps, rows: Int64, more: Float64, whose: str, *, between: bool) -> Ranked:
    lost = float(more[rows].sum())
    numbers = log.number[rows].tolist()
    steps = f"step{'' if len(rows) == 1 else 's'} {listed(list(map(str, numbers)), 5)}"
    longer = f"{in_ms(float(more[rows].max()))} longer than the steps around"
    cause = f"{counted(len(rows), 'step')} cost {in_ms(lost)} in all"
    title = f"{steps} {'takes' if len(rows) == 1 else 'take up to'} {longer}"
    if between:
        title += f", in which all others wait for {whose}"
        cause += f"; the log has no row for what {whose} does between its steps"
    elif whose:
        title = f"{whose} stalls in {steps}: {longer}"
    finding = Finding(
        kind="outlier_steps",
        title=title,
        cause=cause,
        action="look at what ran then: checkpoints, evaluation, logging",
        ranks=[whose] if whose and not between else [],
        steps=numbers,
        look=BREAKDOWN,
        span=(int(numbers[0]), int(numbers[-1])),
        lost_ns=lost,
    )
    gain = Gain(lost / len(log.step_ns), None, None)
    return Ranked(finding, gain, gain.mid_ns / float(log.step_ns.mean()), gain.mid_ns)


# ---- spans


def _of_span(log: LogSteps, span: SlowSpan, usual: Mask) -> Ranked:
    """Return the finding of a span: whose fault it is, in which part, since when, and at what cost."""
    step, part = log.step_ns, log.parts[span.part]
    outside = beside(usual, span.begin, span.end)
    always = len(outside) < LEAST_STEPS
    base = float(np.median(step) - span.cost_ns if always else np.median(step[outside]))
    more = step[span.begin : span.end] - base
    mean = float(around(more, LEAST_STEPS).mean()) if span.grows else float(np.median(more))
    from_step, to_step = int(log.number[span.begin]), int(log.number[span.end - 1])
    where = f"from step {from_step} {f'to {to_step}' if span.end < len(step) else 'on'}"
    ramp = f", growing to {in_ms(float(np.median(more[-max(1, len(more) // 20) :])))}" if span.grows else ""
    is_inside = covered([span], len(step))
    changed = list(_changed_values(log, log.stretches_of(is_inside), log.stretches_of(usual)))
    names = [log.ranks[rank] for rank in span.ranks]
    kind, title, why, ranks, action = (
        _late(names, "in all steps" if always else where, f"{in_ms(span.part_ns)} more in {part}{ramp}")
        if names
        else _all_longer(log, changed, where, in_ms(mean), span.part, ramp)
    )
    lost = float(more.sum())
    cause = f"A step takes {in_ms(base + mean)} there instead of {in_ms(base)}{why}"
    cause += "".join(
        f"; {name} of {log.ranks[rank]} is {_plain(new)} there instead of {_plain(old)}"
        for name, rank, old, new in changed
    )
    finding = Finding(
        kind=kind,
        title=title,
        cause=f"{cause}; {counted(span.end - span.begin, 'step')} cost {in_digits(lost / 1e9)} s in all",
        action=action,
        ranks=ranks,
        operations=[] if part in (REST, BETWEEN) else [part],
        look=BREAKDOWN,
        span=(from_step, to_step),
        lost_ns=lost,
    )
    gain = Gain(mean, mean - span.error_ns, mean + span.error_ns)
    return Ranked(finding, gain, mean / (base + mean), mean)


#: Kind, title, the end of the sentence on the cost, ranks and action.
_Words = tuple[FindingKind, str, str, list[str], str]


def _late(names: list[str], where: str, grew: str) -> _Words:
    title = f"{listed(names)} {'is' if len(names) == 1 else 'are'} late {where}: {grew}"
    action = f"look at {listed(names)} in these steps: its host, its device, its input"
    return "late_rank", title, ", as all others wait", names, action


def _all_longer(
    log: LogSteps, changed: list[tuple[str, int, float, float]], where: str, longer: str, part: int, ramp: str
) -> _Words:
    name = log.parts[part]
    whose, alike = ("all ranks' steps", ", on all ranks alike") if len(log.ranks) > 1 else ("steps", "")
    title = f"{whose} are longer {where}: {longer} per step, most of it in {name}{ramp}"
    ranks = list(dict.fromkeys(log.ranks[rank] for _, rank, _, _ in changed))
    if ranks:
        return "uneven_work", title, alike, ranks, f"look at why {changed[0][0]} changed on {listed(ranks)}"
    action = "look at what changed then for all ranks: the network, the input, the devices' clocks"
    return _ROLE_KINDS.get(log.roles[name], "outlier_steps"), title, alike, [], action


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
