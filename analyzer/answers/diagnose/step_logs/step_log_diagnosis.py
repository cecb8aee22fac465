"""The diagnosis of a step log: spans of slow steps, their cost, and the rank at fault.

All ranks' steps last equally long, as each waits for the others. So the waiting hides in a part of the step
that grows on the other ranks; the late rank is the one in which another part grows instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, get_args

import numpy as np

from analyzer.answers.diagnose.diagnosis import Diagnosis, Ranked
from analyzer.answers.diagnose.finding import (
    BREAKDOWN,
    FAR_NOISES,
    HALF,
    NEARLY_ALL,
    NEGLIGIBLE,
    NOTICEABLE,
    STALL,
    Finding,
    FindingKind,
    FindingScope,
    Skipped,
    StepSpan,
)
from analyzer.answers.diagnose.step_logs.log_steps import BETWEEN, REST, LogSteps, frontier
from analyzer.answers.diagnose.step_logs.slow_spans import AROUND, FEW, SlowSpan, beside, covered, slow_spans
from analyzer.base.arrays import Float64, Int64, Mask
from analyzer.base.arrays.change_points import LEAST_STEPS, around, spread_of
from analyzer.base.arrays.intervals import stretches
from analyzer.base.errors import counted, listed
from analyzer.base.units import in_digits, in_ms
from analyzer.model.figures.job_figures import JobFigures
from analyzer.reading import dialects
from analyzer.reading.dialects import Role
from replay.forecast import Gain

_ROLE_KINDS: Mapping[Role, FindingKind] = {Role.INPUT: "input", Role.COMM: "exposed_communication"}
_OF_ALL = "look at what changed then for all ranks: the network, the input, the devices' clocks"
_EXAMINED = {"late_rank", "outlier_steps", "uneven_work", *_ROLE_KINDS.values()}


def diagnose_step_log(job: JobFigures) -> Diagnosis:
    """Diagnose the figures of a step log; TraceError if no step is in every rank."""
    log = LogSteps(job)
    near = around(log.step_ns, AROUND)
    stalls = _stalls(log, near)
    spans = slow_spans(log, ~stalls)
    usual = ~stalls & ~covered(spans, len(stalls))
    for span in spans:  # stalls that are many there are the span's own work
        if stalls[span.begin : span.end].mean() > 1 / LEAST_STEPS:
            stalls[span.begin : span.end] = False
    steady_ns = np.where(stalls, near, log.step_ns)
    spanning = [_of_span(log, span, usual, steady_ns) for span in spans]
    stalled = list(_of_stalls(log, log.step_ns - near, np.flatnonzero(stalls), ~stalls))
    least_ns = NEGLIGIBLE * float(log.step_ns.sum())
    shown = [*spanning, *(ranked for ranked in stalled if _lost_ns(ranked) >= least_ns)]
    examined = _EXAMINED.union(dialects.named(job.files[0].dialect).never_shows)
    kinds: list[FindingKind] = [kind for kind in get_args(FindingKind) if kind not in examined]
    return Diagnosis(
        findings=sorted(shown, key=_lost_ns, reverse=True),
        skipped=[Skipped(kind, "a step log holds no single events") for kind in kinds],
        small=len(spanning) + len(stalled) - len(shown),
        iteration_ns=log.rows_ns,
        job_ns=log.step_ns,
        numbers=log.number.tolist(),
        ranks=log.ranks,
        one_step="A step",
        notes=_left_out(log),
        excess=(log.number[log.begins].tolist(), log.longer_ns.max(axis=0)) if len(log.ranks) > 1 else None,
        frontier=frontier(log) if len(log.ranks) > 1 else (),
    )


def _lost_ns(ranked: Ranked) -> float:
    span = ranked.finding.scope.span
    return span.lost_ns if span else 0.0


def _left_out(log: LogSteps) -> list[str]:
    """Note the steps that are left out because some rank did not log them."""
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
    """Mask the steps (k,) that are far longer than the steps around them, `near` (k,), a few at a time."""
    more, noise = log.step_ns - near, spread_of(log.step_ns)
    least = np.maximum(STALL * near, FAR_NOISES * noise)
    far: Mask = more > least
    closed = more > HALF * least  # close gaps, so that a slow span near the limit is no series of stalls
    closed[1:-1] |= closed[:-2] & closed[2:]
    edges = stretches(closed)
    n_far = np.diff(np.append(0, far.cumsum())[edges], axis=1)[:, 0]
    width = edges[:, 1] - edges[:, 0]
    for begin, end in edges[(width >= LEAST_STEPS) | (n_far < width) & (n_far * 2 > LEAST_STEPS)].tolist():
        far[begin:end] = False
    return far


def _of_stalls(log: LogSteps, more: Float64, stalls: Int64, usual: Mask) -> Iterator[Ranked]:
    """Yield a finding for the stalls of each rank, and one for all others.

    `more` (k,) is the excess of steps over the steps around them.
    """
    groups: dict[tuple[int, bool], list[int]] = {}
    for row in stalls.tolist():
        groups.setdefault(_stalling_rank(log, row, float(more[row]), usual), []).append(row)
    lost = {key: float(more[rows].sum()) for key, rows in groups.items() if key[0] >= 0 and not key[1]}
    if len(lost) > FEW:  # stalls are common here: name only a rank with more than all others
        for key in [key for key, cost in lost.items() if cost < HALF * sum(lost.values())]:
            groups.setdefault((-1, False), []).extend(groups.pop(key))
    for (rank, between), rows in groups.items():
        yield _stall(log, np.sort(rows), more, log.ranks[rank] if rank >= 0 else "", between=between)


def _stalling_rank(log: LogSteps, row: int, more: float, usual: Mask) -> tuple[int, bool]:
    """Find the rank that alone makes a step longer, else -1; True if its time is between its rows."""
    first = max(row - AROUND, 0)
    near = first + np.flatnonzero(usual[first : row + AROUND + 1])
    # a rank that is late after all have met makes the others wait in the next step
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


def _stall(log: LogSteps, rows: Int64, more: Float64, rank: str, *, between: bool) -> Ranked:
    lost_ns = float(more[rows].sum())
    numbers = log.number[rows].tolist()
    steps = f"step{'' if len(rows) == 1 else 's'} {listed(list(map(str, numbers)), 5)}"
    longer = f"{in_ms(float(more[rows].max()))} longer than the steps around"
    cause = f"{counted(len(rows), 'step')} cost {in_ms(lost_ns)} in all"
    if rank and not between:
        title = f"{rank} stalls in {steps}: {longer}"
    else:
        title = f"{steps} {'takes' if len(rows) == 1 else 'take up to'} {longer}"
    if between:
        title += f"; all other ranks wait for {rank}"
        cause += f"; the log has no row for what {rank} does between its steps"
    finding = Finding(
        kind="outlier_steps",
        title=title,
        cause=cause,
        action="look at what ran then: checkpoints, evaluation, logging",
        scope=FindingScope(
            [rank] if rank and not between else [],
            steps=numbers,
            span=StepSpan(int(numbers[0]), int(numbers[-1]), lost_ns),
        ),
        look=BREAKDOWN,
    )
    gain = Gain(lost_ns / len(log.step_ns), None, None)
    return Ranked(finding, gain, gain.mid_ns / float(log.step_ns.mean()), gain.mid_ns)


# ---- spans


class _Change(NamedTuple):
    """A column that has another value on a rank in a span of steps."""

    column: str
    rank: str
    old: float
    new: float


def _of_span(log: LogSteps, span: SlowSpan, usual: Mask, steady_ns: Float64) -> Ranked:
    """Make the finding of a span; `steady_ns` (k,) are the steps without their stalls."""
    outside = beside(usual, span.begin, span.end)
    always = len(outside) < LEAST_STEPS
    base_ns = float(np.median(log.step_ns) - span.cost_ns if always else np.median(log.step_ns[outside]))
    more_ns = steady_ns[span.begin : span.end] - base_ns
    mean_ns = float(around(more_ns, LEAST_STEPS).mean()) if span.grows else float(np.median(more_ns))
    lost_ns = float(more_ns.sum())
    numbers = int(log.number[span.begin]), int(log.number[span.end - 1])
    changes = list(_changes(log, log.stretches_of(covered([span], len(usual))), log.stretches_of(usual)))
    part = log.parts[span.part]
    if span.ranks:
        kind: FindingKind = "late_rank"
        ranks = [log.ranks[rank] for rank in span.ranks]
        subject = f"{listed(ranks)} {'is' if len(ranks) == 1 else 'are'} late"
        growth = f"{in_ms(span.part_ns)} more in {part}"
        action = f"look at {listed(ranks)} in these steps: its host, its device, its input"
    else:
        subject = f"steps{' of all ranks' if len(log.ranks) > 1 else ''} are longer"
        growth = f"{in_ms(mean_ns)} per step, most of it in {part}"
        ranks = list(dict.fromkeys(change.rank for change in changes))
        if ranks:
            kind, action = "uneven_work", f"look at why {changes[0].column} changed on {listed(ranks)}"
        else:
            kind, action = _ROLE_KINDS.get(log.roles[part], "outlier_steps"), _OF_ALL
    when = f"from step {numbers[0]} {'on' if span.end == len(log.step_ns) else f'to {numbers[1]}'}"
    when = "in all steps" if always else when
    ramp = f", growing to {in_ms(float(np.median(more_ns[-max(1, len(more_ns) // 20) :])))}"
    cause = f"A step takes {in_ms(base_ns + mean_ns)} there instead of {in_ms(base_ns)}"
    cause += "".join(
        f"; {change.column} of {change.rank} is {_plain(change.new)} there instead of {_plain(change.old)}"
        for change in changes
    )
    finding = Finding(
        kind=kind,
        title=f"{subject} {when}: {growth}{ramp if span.grows else ''}",
        cause=f"{cause}; {counted(span.end - span.begin, 'step')} cost {in_digits(lost_ns / 1e9)} s in all",
        action=action,
        scope=FindingScope(
            ranks,
            operations=[] if part in (REST, BETWEEN) else [part],
            span=StepSpan(*numbers, lost_ns),
        ),
        look=BREAKDOWN,
    )
    gain = Gain(mean_ns, mean_ns - span.error_ns, mean_ns + span.error_ns)
    return Ranked(finding, gain, mean_ns / (base_ns + mean_ns), mean_ns)


def _changes(log: LogSteps, inside: Mask, outside: Mask) -> Iterator[_Change]:
    """Yield other columns that changed in a span on a few ranks."""
    if not inside.any() or not outside.any():
        return
    for name, values in log.values.items():
        new, old = np.median(values[:, inside], axis=1), np.median(values[:, outside], axis=1)
        noise = np.array([spread_of(of_rank[outside]) for of_rank in values])
        low, high = np.percentile(values[:, outside], [16, 84], axis=1)
        spread = np.maximum(noise, (high - low) / 2)  # large for a counter, which always grows
        moved = np.abs(new - old) > np.maximum(FAR_NOISES * spread, NOTICEABLE * np.abs(old))
        steady = np.abs(values[:, inside] - new[:, None]) < HALF * np.abs(new - old)[:, None]
        is_changed = moved & (steady.mean(1) >= NEARLY_ALL)
        most = np.abs(new - old)[~is_changed].max(initial=0.0)  # on the others, where it may be noisier
        is_changed &= HALF * np.abs(new - old) > most
        if 0 < is_changed.sum() <= max(1, len(log.ranks) // 4):
            for rank in np.flatnonzero(is_changed).tolist():
                yield _Change(name, log.ranks[rank], float(old[rank]), float(new[rank]))


def _plain(number: float) -> str:
    return f"{number:,.0f}" if number == round(number) else f"{number:.4g}"
