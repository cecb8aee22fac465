"""Ranks that the others wait for, and work that is spread unevenly over them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from arrays import Float64, Int64
from arrays.distributions import binomial_tail
from arrays.median import FEWEST, median
from dag.step_graph import Bool
from diagnose.chance import is_no_chance, surely_positive
from diagnose.detectors.exposed import whose_loading
from diagnose.detectors.negotiations import late_in_negotiations
from diagnose.finding import Evidence, Finding, Skipped, edit
from diagnose.finding_thresholds import CHANCE, HALF, MUCH, NEGLIGIBLE, NOTICEABLE, OUTLYING
from diagnose.job_view import JobView, longest_awaited
from errors import listed
from function_names import named
from replay.edit import EditRequest
from replay.even_work import excess_ns, is_own_work, peers_of, peers_usual
from replay.whatif.scaling import GONE
from replay.whatif.straggler import stragglers
from units import in_ms

_LOADERS = "look at the loaders: data, disk, workers, prefetching"
_MACHINE = "compare its batch, its data and its machine (clocks, other processes) with its peers'"
_PYTHON = "look at what runs there: input, Python code, garbage collection, other processes"


class _Cause(NamedTuple):
    """Why owners are late by `late_ns` a step: `most` of it is in these operations, or before them."""

    owners: Sequence[int]
    late_ns: float
    most: str
    edits: Sequence[EditRequest]
    action: str
    operations: Sequence[str] = ()
    evidence: Sequence[Evidence] = ()
    caveat: str = ""
    least_share: float = 0.0


def late_ranks(view: JobView) -> Iterator[Finding | Skipped]:
    """Find the ranks that others wait for, each with the largest of its causes."""
    if len(view.recording.owners) < 2:
        yield from late_in_negotiations(view)
        return
    pausing = _pausing(view)
    causes = [_work(view, pausing) or _input(view), _extra_work(view), _gaps(view, pausing)]
    late: set[int] = set()
    for cause in sorted(filter(None, causes), key=lambda cause: -cause.late_ns):
        if not late.issuperset(cause.owners):
            yield _finding(view, cause)
        late.update(cause.owners)
    if (last := _often_last(view)) is not None and last.owners[0] not in late:
        yield _finding(view, last)


def _finding(view: JobView, cause: _Cause) -> Finding:
    ranks = [view.recording.owners[owner] for owner in cause.owners]
    last = np.concatenate([np.empty(0, np.int64), *(who for who, _ in view.last_arrivals())])
    n_last = int(np.isin(last, cause.owners).sum())
    return Finding(
        kind="late_rank",
        title=f"{listed(ranks)} {'is' if len(ranks) == 1 else 'are'} late by {in_ms(cause.late_ns)}, "
        f"most of it {cause.most}",
        cause=f"the last to arrive at {n_last:,} of {len(last):,} synchronisations",
        action=cause.action,
        edits=cause.edits,
        ranks=ranks,
        operations=cause.operations,
        evidence=cause.evidence,
        caveat=cause.caveat,
        look=("critical", "--head", "10"),
        least_share=cause.least_share,
    )


def uneven_work(view: JobView) -> Iterator[Finding | Skipped]:
    """Find work that differs by rank although no single rank holds up the others."""
    if len(view.recording.owners) < 2:
        yield Skipped("uneven_work", "only one rank is recorded")
        return
    work = view.owner_work_ns(view.is_compared)
    typical = np.median(work, axis=0)
    spread = typical.max() - typical.mean()
    if spread < NEGLIGIBLE * view.step_ns or not _is_systematic(work):
        return
    order = np.argsort(-typical)
    is_pipeline, owner_of = view.stage.any(), view.recording.column(lambda one: one.owner)
    most, least = (
        f"stage {view.stage[one]}" if is_pipeline else view.recording.owners[one] for one in order[[0, -1]]
    )
    yield Finding(
        kind="uneven_work",
        title=f"{most} works {in_ms(typical[order[0]] - typical[order[-1]])} more than {least}",
        cause=f"{most} works {in_ms(typical[order[0]])}, {least} {in_ms(typical[order[-1]])}; who has more "
        "work makes the others wait in every step",
        action="split layers or data so that every rank works as long as the mean",
        edits=[edit("straggler", "even")],
        evidence=[one for at in order[[0, -1]] for one in view.show(view.is_own & (owner_of == at))[:1]],
        caveat="every rank is taken to work as long as the mean rank, which no real split reaches",
    )


# ---- signals


def behind_peers(view: JobView, work: Float64) -> list[int]:
    """Return the owners whose times in each step, `work` (steps, m), exceed the median of their peers'.

    Peers are the ranks of the same stage; where a stage is one rank, it has none. They take longer in
    every step but for chance (`is_no_chance`).
    """
    if not work.any():
        return []
    owners = np.flatnonzero((np.bincount(view.stage) > 1)[view.stage]).tolist()
    peers = work.copy()
    peers[:, owners] = peers_usual(work, view.stage)[:, owners]
    excess, own = work - peers, np.median(work, axis=0)
    usual = np.median(excess, axis=0)
    ratio = np.median(work / np.maximum(peers, 1), axis=0)
    always = (work.argmax(axis=1)[:, None] == np.arange(work.shape[1])).all(axis=0)
    found = [
        owner
        for owner in owners
        if usual[owner] >= NEGLIGIBLE * view.step_ns
        and usual[owner] >= OUTLYING * _spread(own[peers_of(owner, [], view.stage)])
        and is_no_chance(excess[:, owner], float(ratio[owner]), len(owners), always_most=bool(always[owner]))
    ]
    return found if len(found) <= work.shape[1] // 2 else []


def _spread(usual: Float64) -> float:
    """Return the median absolute deviation of the owners' usual work (m,)."""
    return median(np.abs(usual - median(usual)))


def _is_systematic(work: Float64) -> bool:
    """Whether the work (steps, m) of some owner differs from the step's mean in the same way in all steps."""
    if len(work) < FEWEST:
        return bool(np.median(work.max(axis=1) / np.maximum(work.mean(axis=1), 1)) > MUCH)
    excess = work - work.mean(axis=1, keepdims=True)
    return any(surely_positive(column, CHANCE / work.shape[1]) for column in excess.T)


# ---- causes


def _work(view: JobView, pausing: Sequence[int]) -> _Cause | None:
    """Return that ranks take longer for what all ranks do."""
    work = view.owner_work_ns(view.is_compared)
    late = behind_peers(view, work)
    if not late:
        return None
    excess = np.maximum(_excess_by_name(view, late), 0.0)
    names, number = view.kind_of
    order = np.argsort(-excess)
    enough = int(np.searchsorted(np.cumsum(excess[order]), HALF * max(float(excess.sum()), 1.0))) + 1
    kinds = order[:enough].tolist()
    ranks = [view.recording.owners[owner] for owner in late]
    begins_late = bool((_later_ns(view)[late] > NEGLIGIBLE * view.step_ns).any())
    late_ns = excess_ns(work, late, view.stage)
    pauses_more = bool(pausing) and late_ns < excess_ns(view.owner_gap_ns(view.is_begun), pausing, view.stage)
    is_all = sorted(late) == stragglers(view.recording) and not begins_late and not pauses_more
    chosen = view.which(lambda operation: operation.owner in late) & np.isin(number, kinds)
    loads = all(view.is_input[number == kind].any() for kind in kinds)
    return _Cause(
        late,
        late_ns,
        f"in {named([names[kind] for kind in kinds[:2]], 2)}" if enough <= 2 else "in most of its operations",
        [edit("straggler", "none") if is_all else edit(",".join(ranks), "peers")],
        _LOADERS if loads else _MACHINE,
        [names[kind] for kind in kinds],
        view.show(chosen, 3, view.step_with_much(chosen)),
        whose_loading(view) if loads else "",
    )


def _excess_by_name(view: JobView, late: Sequence[int]) -> Float64:
    """Return how much longer own work of each name (k,) takes on the late ranks, the median over steps."""
    names, kind = view.kind_of
    n_owners = len(view.recording.owners)
    table_of = view.recording.table
    owner = np.array([one.owner for one in table_of.kinds], np.int64)
    cell = np.empty(len(owner), np.int64)
    cell[table_of.kind] = owner[table_of.kind] * len(names) + kind
    compared = view.of_kinds(view.is_compared)
    excess = []
    for work in view.work_by_kind:
        table = np.bincount(cell, work * compared, n_owners * len(names)).reshape(n_owners, -1)
        peers = [np.median(table[peers_of(one, late, view.stage)], axis=0) for one in late]
        excess.append(np.mean(table[list(late)] - peers, axis=0))
    return np.median(excess, axis=0)


def _extra_work(view: JobView) -> _Cause | None:
    """Return that ranks do what not all do, where that is most of what they work longer.

    What takes the place of something else on another rank (a kernel of another name) is no more work.
    """
    own = is_own_work(view.recording)
    extra = own & ~view.is_compared
    work = view.owner_work_ns(own)
    late = behind_peers(view, work)
    if not late:
        return None
    excess, extra_ns = (excess_ns(ns, late, view.stage) for ns in (work, view.owner_work_ns(extra)))
    chosen = extra & view.which(lambda operation: operation.owner in late)
    if extra_ns < HALF * excess or not chosen.any():
        return None
    ranks = [view.recording.owners[owner] for owner in late]
    names = _most_of(view, chosen, view.work_by_kind)
    return _Cause(
        late,
        min(excess, extra_ns),
        f"in {named(names)}, which not all ranks run",
        [edit(f"{','.join(ranks)}.extra", "peers")],
        "do it less often, on another thread or process, or share it out",
        names,
        view.show(chosen, 3, view.step_with_much(chosen)),
    )


def _input(view: JobView) -> _Cause | None:
    """Return that ranks load longer than their peers."""
    work = view.owner_work_ns(view.is_input)
    late = behind_peers(view, work)
    if not late:
        return None
    peers = float(np.median(np.delete(work, late, axis=1)))
    factors = {owner: peers / max(float(np.median(work[:, owner])), 1.0) for owner in late}
    chosen = view.is_input & view.which(lambda one: one.owner in late)
    names = view.mains(chosen)
    return _Cause(
        late,
        float(np.median(work[:, late])) - peers,
        f"in {named(names)}",
        [
            edit(f"{view.recording.owners[owner]}.I/O", max(factor, float(GONE)))
            for owner, factor in factors.items()
        ],
        _LOADERS,
        names,
        view.show(chosen, 3, view.step_with_much(chosen)),
        whose_loading(view),
    )


def _gaps(view: JobView, late: Sequence[int]) -> _Cause | None:
    """Return that ranks pause for longer than their peers, with nothing recorded."""
    gaps = view.owner_gap_ns(view.is_begun)
    if not late:
        return None
    chosen = view.is_begun & view.which(lambda operation: operation.owner in late)
    before = _most_of(view, chosen, view.gap_by_kind)
    return _Cause(
        late,
        float(np.median(gaps[:, late]) - np.median(np.delete(gaps, late, axis=1))),
        f"before {named(before)}, where nothing is recorded",
        [_as_peers_pause(view, late)],
        _PYTHON,
        before,
        view.show_gaps(chosen, 3),
    )


def _pausing(view: JobView) -> list[int]:
    """Return the owners with longer gaps than their peers, if it is they who are waited for in most steps.

    That counts where they meet others: one that has waited for them may then come last to its own group.
    """
    if len(view.rows) < FEWEST:
        return []
    late = behind_peers(view, view.owner_gap_ns(view.is_begun))
    waited = longest_awaited(view.last_arrivals(among=late))
    return late if np.isin(waited, late).sum() > len(view.rows) / 2 else []


def _most_of(view: JobView, chosen: Bool, by_kind: Float64) -> list[str]:
    """Return the name that has most of some times (steps, k) of the `chosen` operations (n,), else three."""
    by_name = view.by_name(np.where(view.of_kinds(chosen), by_kind.mean(axis=0), 0.0))
    return view.longest(by_name, 1 if by_name.max() >= HALF * by_name.sum() else 3)


def _as_peers_pause(view: JobView, late: Sequence[int]) -> EditRequest:
    return edit(f"{','.join(view.recording.owners[owner] for owner in late)}.gap", "peers")


# ---- late by arrival


def _often_last(view: JobView) -> _Cause | None:
    """Return the rank that comes last far more often than chance, though it works no longer."""
    several = len(view.rows) >= FEWEST
    arrivals = view.last_arrivals(of_own_step=several)
    # meetings of one step are not independent, as one delay makes a rank late for all that follow: of each
    # step counts who was waited for longest
    last = longest_awaited(arrivals) if several else np.concatenate([who for who, _ in arrivals])
    if not len(last):
        return None
    n_owners, owner = len(view.recording.owners), int(np.bincount(last).argmax())
    times = int((last == owner).sum())
    late_at = _late_at(view, owner, arrivals)
    if binomial_tail(times, len(last), 1 / n_owners) * n_owners > CHANCE or not late_at:
        return None
    work, later = view.owner_work_ns(view.is_compared), _later_ns(view)
    late = sorted({owner, *np.flatnonzero(later > NEGLIGIBLE * view.step_ns).tolist()})
    works_longer = np.median(work[:, owner] - work.mean(axis=1)) > NEGLIGIBLE * view.step_ns
    if works_longer and late == [owner] and later[owner] < NEGLIGIBLE * view.step_ns:
        return None
    seen = view.recording.steps[late_at[0].row]
    name = view.event(seen, late_at[0].event).name
    return _Cause(
        [owner],
        sum(arrival.by_ns for arrival in late_at) / len(arrivals),
        f"before {named([name])}, though it works no longer than its peers",
        [_as_peers_pause(view, late if len(late) < n_owners else [owner])],
        _PYTHON,
        evidence=[_before(view, one) for one in late_at[:3]],
        least_share=0.0 if several else NOTICEABLE,
    )


def _later_ns(view: JobView) -> Float64:
    """Return how much later than the median owner each begins its steps (m,), the median over steps."""
    begins = np.array([step.begin_ns for step in view.steps], np.float64)
    return np.median(begins - np.median(begins, axis=1, keepdims=True), axis=0)


class _Late(NamedTuple):
    """How long after the median owner one comes last, at most in a step, and its event there."""

    by_ns: float
    row: int
    event: int


def _late_at(view: JobView, owner: int, arrivals: Sequence[tuple[Int64, Int64]]) -> list[_Late]:
    """Return where an owner comes last in each step, the latest first; `arrivals` as of `last_arrivals`."""
    found = []
    for row, (who, _), one in zip(view.rows, arrivals, view.meetings, strict=True):
        bounds = np.searchsorted(one.meeting, np.arange(one.meeting.max(initial=-1) + 2))
        late = []
        for meeting in np.flatnonzero(who == owner).tolist():
            met = slice(bounds[meeting], bounds[meeting + 1])
            own = bounds[meeting] + int((one.owner[met] == owner).argmax())
            late.append(_Late(float(one.at_ns[own] - np.median(one.at_ns[met])), row, int(one.event[own])))
        if late:
            found.append(max(late))
    return sorted(found, reverse=True)


def _before(view: JobView, late: _Late) -> Evidence:
    """Return the gap for which an owner is late as evidence, else the event at which it is."""
    step, event = view.recording.steps[late.row], late.event
    own = np.flatnonzero((step.owner == step.owner[event]) & (step.start_ns <= step.start_ns[event]))
    longest = int(own[step.gap_ns[own].argmax()])
    return (
        view.gap_before(step, longest) if 2 * step.gap_ns[longest] > late.by_ns else view.event(step, event)
    )
