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
from diagnose.finding_thresholds import (
    CHANCE,
    HALF,
    MOST_STEPS,
    MUCH,
    NEGLIGIBLE,
    NOTICEABLE,
    OUTLYING,
    SEVERAL,
)
from diagnose.job_view import JobView, longest_awaited, what_runs
from errors import listed
from function_names import brief, named
from replay.edit import EditRequest
from replay.even_work import excess_ns, is_own_work, peers_of, peers_usual
from replay.whatif.scaling import GONE
from replay.whatif.straggler import stragglers
from result import in_ms

_ITS_LOADER = "make its loader as fast as its peers' (data, disk, workers)"
_ALL_LOADERS = "look at the loaders of all ranks: more workers, prefetching, a faster store"


def late_ranks(view: JobView) -> Iterator[Finding | Skipped]:
    """Find the ranks that work longer than their peers, or begin what all do together last."""
    if len(view.recording.owners) < 2:
        yield from late_in_negotiations(view)
        return
    yield from _late_ranks(view)


def _late_ranks(view: JobView) -> Iterator[Finding]:
    late, pausing = behind_peers(view, view.owner_work_ns(view.is_compared)), _pausing(view)
    if not late and (slow := _slow_stage(view)) is not None:
        yield slow
    pauses_more = bool(pausing) and (
        not late
        or excess_ns(view.owner_gap_ns(view.is_begun), pausing, view.stage)
        > excess_ns(view.owner_work_ns(view.is_compared), late, view.stage)
    )
    if pauses_more:  # what takes most is named first: the rest counts with that done
        yield _by_gaps(view, pausing)
    more = {*behind_peers(view, view.owner_work_ns(is_own_work(view.recording))), *_with_extra_work(view)}
    alone = _by_extra_work(view, sorted(more))
    if alone is None and more & {*late}:
        alone = _by_extra_work(view, sorted(more - {*late}))
    if alone is not None:
        yield alone
    if late:
        begins_late = bool((_later_ns(view)[late] > NEGLIGIBLE * view.step_ns).any())
        yield _by_work(view, late, but_gaps=pauses_more or begins_late)
    loading = behind_peers(view, view.owner_work_ns(view.is_input))
    if loading:
        yield _by_input(view, loading)
    if pausing and not pauses_more:
        yield _by_gaps(view, pausing)
    last = _often_last(view, but=pausing)
    if last is not None:
        yield last


def pausing_ranks(view: JobView) -> Finding | None:
    """Return that ranks hold up the others while nothing of theirs is recorded, if some do."""
    if len(view.recording.owners) < 2:
        return None
    pausing = _pausing(view)
    return _by_gaps(view, pausing) if pausing else _often_last(view, but=())


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
        cause=f"{most} works {in_ms(typical[order[0]])}{view.per_step}, "
        f"{least} {in_ms(typical[order[-1]])}; those "
        "with more work make the others wait in every step",
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


# ---- late by work


def _by_work(view: JobView, late: Sequence[int], *, but_gaps: bool) -> Finding:
    """Return the finding that some owners work longer; `but_gaps`: their gaps are a finding of their own."""
    recording = view.recording
    excess = _excess_by_kind(view, late)
    names, number = view.kind_of
    order = np.argsort(-excess)
    total = max(float(excess[excess > 0].sum()), 1.0)
    enough = int(np.searchsorted(np.cumsum(np.maximum(excess[order], 0)), HALF * total)) + 1
    kinds = [int(kind) for kind in order[:enough]]
    only_input = all(view.is_input[number == kind].any() for kind in kinds)
    same = sorted(late) == stragglers(recording) and not but_gaps
    ranks = [recording.owners[owner] for owner in late]
    longer_ns, others = excess_ns(view.owner_work_ns(view.is_compared), late, view.stage), _others(view)
    what = named([names[kind] for kind in kinds[:2]], 2) if enough <= 2 else "most of its operations"
    title = f"{listed(ranks)} {_holds(ranks)} up {others}, in {what}"
    unknown = whose_loading(view) if only_input else ""
    if unknown:
        waits = "waits" if len(ranks) == 1 else "wait"
        title = f"{listed(ranks)} {waits} longer for input than {others}, in {what}"
    chosen = view.which(lambda one: one.owner in late) & np.isin(number, kinds)
    return Finding(
        kind="late_rank",
        title=title,
        cause=f"its own work takes {in_ms(longer_ns)} longer{view.per_step} than its peers'"
        f"{_last_in(view, late)}",
        action=(_ALL_LOADERS if unknown else _ITS_LOADER)
        if only_input
        else "compare its batch, its data and its machine (clocks, other processes) with its peers'",
        edits=[edit("straggler", "none") if same else edit(",".join(ranks), "peers")],
        from_ns=longer_ns,
        ranks=ranks,
        operations=[names[kind] for kind in kinds],
        evidence=view.show(chosen, 3, view.step_with_much(chosen)),
        caveat=unknown,
        look=("critical", "--head", "10"),
    )


def _with_extra_work(view: JobView) -> list[int]:
    """Return the owner that alone runs something in most steps, for which its steps have so much more work.

    That needs no statistics. What takes the place of something else (a kernel of another name) is not more.
    """
    own = view.owner_work_ns(is_own_work(view.recording))
    extra = view.owner_work_ns(is_own_work(view.recording) & ~view.is_compared)
    is_much = (extra >= NOTICEABLE * view.step_ns).mean(axis=0) >= MOST_STEPS
    found = []
    for owner in np.flatnonzero(is_much).tolist():
        peers = peers_of(owner, [], view.stage)
        alone = extra[:, owner] - extra[:, peers].max(axis=1)
        more = own[:, owner] - np.median(own[:, peers], axis=1)
        is_long = float(np.mean(alone >= NOTICEABLE * view.step_ns)) >= MOST_STEPS
        found += [owner] * bool(is_long and np.median(more) >= HALF * np.median(alone))
    return found if len(found) == 1 else []


def _slow_stage(view: JobView) -> Finding | None:
    """Return that the same work takes longer on one stage of a pipeline: what another cut does not mend.

    The same are operations of a name that every stage runs equally often in a step; of some names, as one
    may be a stage's whole computation, of which nobody knows how much it holds.
    """
    n_stages = int(view.stage.max()) + 1
    if n_stages < 2:
        return None
    names, kind = view.kind_of
    step, size = view.usual_step, (n_stages, len(names))
    stage = view.stage[view.recording.column(lambda one: one.owner)]
    cell = np.where(view.is_compared, stage * len(names) + kind, 0)
    of_stage = np.bincount(view.stage)[:, None]
    count = np.bincount(cell[step.operation], view.is_compared[step.operation], np.prod(size)).reshape(size)
    by_step = [
        np.bincount(cell[one.operation], one.work_ns * view.is_compared[one.operation], np.prod(size))
        for one in view.steps
    ]
    work = np.median(by_step, axis=0).reshape(size) / of_stage
    same = (count > 0).all(axis=0) & (np.ptp(count / of_stage, axis=0) == 0)
    found = []
    for one in range(n_stages):
        usual = np.median(np.delete(work, one, axis=0), axis=0)
        longer = same & (work[one] > MUCH * usual)
        ratio = work[one][same].sum() / max(float(usual[same].sum()), 1.0)
        if longer.sum() >= SEVERAL and ratio > MUCH and work[one][longer].sum() > HALF * work[one].sum():
            found.append((one, ratio, float((work[one] - usual)[same].sum()), longer))
    if len(found) != 1:
        return None
    slow, ratio, more_ns, longer = found[0]
    late = np.flatnonzero(view.stage == slow).tolist()
    ranks = [view.recording.owners[owner] for owner in late]
    largest = view.longest(np.where(longer, work[slow], 0.0))
    return Finding(
        kind="late_rank",
        title=f"stage {slow} of the pipeline ({listed(ranks)}) is slow",
        cause=f"the same operations take {ratio:.1f} times as long as on the other stages, {in_ms(more_ns)} "
        f"more{view.per_step}, {named(largest)} most of all",
        action=f"look at the machine of {listed(ranks)} (clocks, power, other processes) before you cut the "
        "layers over the stages anew",
        edits=[edit(",".join(ranks), "peers")],
        from_ns=more_ns,
        ranks=ranks,
        operations=largest,
        evidence=view.show(np.isin(kind, np.flatnonzero(longer)) & (stage == slow), 3),
        look=("critical", "--head", "10"),
    )


def _by_extra_work(view: JobView, late: Sequence[int]) -> Finding | None:
    """Return that some owners do what not all do, as far as they work longer in all; None if it is not that.

    It is most of what they work longer. What takes the place of something else on another rank (a kernel of
    another name) is no more work.
    """
    if not late:
        return None
    recording, own = view.recording, is_own_work(view.recording)
    extra = own & ~view.is_compared
    excess, its_time = (excess_ns(view.owner_work_ns(which), late, view.stage) for which in (own, extra))
    chosen = extra & view.which(lambda one: one.owner in late)
    if its_time < HALF * excess or not chosen.any():
        return None
    ranks = [recording.owners[owner] for owner in late]
    names = _most_of(view, chosen, view.work_by_kind)
    loads = bool((view.which(lambda one: one.name in names) & chosen <= view.is_input).all())
    what = f"in {named(names)}" + ("" if loads else ", which not all ranks run")
    return Finding(
        kind="late_rank",
        title=f"{listed(ranks)} {_holds(ranks)} up {_others(view)}, {what}",
        cause=f"{in_ms(min(excess, its_time))} more{view.per_step}; "
        f"all its own work takes {in_ms(excess)} longer "
        f"than its peers'{_last_in(view, late)}",
        action=_ITS_LOADER if loads else "do it less often, on another thread or process, or share it out",
        edits=[edit(f"{','.join(ranks)}.extra", "peers")],
        from_ns=min(excess, its_time),
        ranks=ranks,
        operations=names,
        evidence=view.show(chosen, 3, view.step_with_much(chosen)),
        look=("critical", "--head", "10"),
    )


def _holds(ranks: Sequence[str]) -> str:
    return "holds" if len(ranks) == 1 else "hold"


def _others(view: JobView) -> str:
    return "the others" if len(view.recording.owners) > 2 else "the other rank"


def _last_in(view: JobView, late: Sequence[int]) -> str:
    """Return how often the late ranks came last, as words that end the cause; "" for never."""
    last = np.concatenate([np.empty(0, np.int64), *(who for who, _ in view.last_arrivals())])
    n_last = int(np.isin(last, list(late)).sum())
    return f"; the last to arrive at {n_last:,} of {len(last):,} synchronisations" if n_last else ""


def _excess_by_kind(view: JobView, late: Sequence[int]) -> Float64:
    """Return how much longer each kind of own work (k,) takes on the late ranks, the median over steps."""
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


def _by_input(view: JobView, late: Sequence[int]) -> Finding:
    recording = view.recording
    work = view.owner_work_ns(view.is_input)
    peers = float(np.median(np.delete(work, list(late), axis=1)))
    ranks = [recording.owners[owner] for owner in late]
    factors = [peers / max(float(np.median(work[:, owner])), 1.0) for owner in late]
    edits = [edit(f"{rank}.I/O", max(one, float(GONE))) for rank, one in zip(ranks, factors, strict=True)]
    chosen = view.is_input & view.which(lambda one: one.owner in late)
    slow = float(np.median(work[:, list(late)]))
    unknown = whose_loading(view)
    return Finding(
        kind="late_rank",
        title=f"{listed(ranks)} {_holds(ranks)} up the others, loading input",
        cause=f"loading takes {in_ms(slow - peers)} longer{view.per_step} there: {in_ms(slow)}, "
        f"and {in_ms(peers)} "
        "on the other ranks" + _last_in(view, late),
        action=_ALL_LOADERS if unknown else _ITS_LOADER,
        edits=edits,
        from_ns=slow - peers,
        ranks=ranks,
        operations=view.mains(chosen),
        evidence=view.show(chosen, 3, view.step_with_much(chosen)),
        caveat=unknown,
        look=("critical", "--head", "10"),
    )


# ---- late by what is not recorded


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


def _by_gaps(view: JobView, late: Sequence[int]) -> Finding:
    gaps, recording = view.owner_gap_ns(view.is_begun), view.recording
    ranks = [recording.owners[owner] for owner in late]
    peers = float(np.median(np.delete(gaps, list(late), axis=1)))
    slow = float(np.median(gaps[:, list(late)]))
    chosen = view.is_begun & view.which(lambda one: one.owner in late)
    before = _most_of(view, chosen, view.gap_by_kind)
    return Finding(
        kind="late_rank",
        title=f"{listed(ranks)} {_holds(ranks)} up {_others(view)}, before {named(before)}",
        cause=f"{in_ms(slow - peers)} more{view.per_step} are not covered by the trace: "
        f"{in_ms(slow)} between its "
        f"own operations, and {in_ms(peers)} between those of its peers{_last_in(view, late)}",
        action=f"{what_runs(view)}: input, Python code, garbage collection, other processes",
        edits=[_gaps_of(view, late)],
        from_ns=slow - peers,
        ranks=ranks,
        operations=before,
        evidence=view.show_gaps(chosen, 3),
    )


def _gaps_of(view: JobView, late: Sequence[int]) -> EditRequest:
    return edit(f"{','.join(view.recording.owners[owner] for owner in late)}.gap", "peers")


# ---- late by arrival


def _often_last(view: JobView, *, but: Sequence[int]) -> Finding | None:
    """Return the rank that comes last far more often than chance, though it works no longer.

    `but` are owners of which is known why they are late.
    """
    owners, several = view.recording.owners, len(view.rows) >= FEWEST
    arrivals = view.last_arrivals(of_own_step=several)
    by_step = [one for one in arrivals if len(one[0])]
    if not by_step:
        return None
    last = np.concatenate([who for who, _ in by_step])
    # meetings of one step are not independent, as one delay makes a rank late for all that follow: of each
    # step counts who was waited for longest
    longest = longest_awaited(by_step)
    counted = longest if several else last
    owner = int(np.bincount(counted).argmax())
    times = int((counted == owner).sum())
    if binomial_tail(times, len(counted), 1 / len(owners)) * len(owners) > CHANCE:
        return None
    if owner in but:
        return None
    name, late = owners[owner], _begin_late(view, owner)
    work = view.owner_work_ns(view.is_compared)
    works_longer = np.median(work[:, owner] - work.mean(axis=1)) > NEGLIGIBLE * view.step_ns
    if works_longer and late == [owner] and _later_ns(view)[owner] < NEGLIGIBLE * view.step_ns:
        return None
    late_at = _late_at(view, owner, arrivals)
    if not late_at:  # all come at once
        return None
    by_ns, seen = sum(one.by_ns for one in late_at) / len(arrivals), view.recording.steps[late_at[0].row]
    where = brief(view.event(seen, late_at[0].event).name)
    is_later = by_ns >= NEGLIGIBLE * view.step_ns
    size = f", by {in_ms(by_ns)}{view.per_step}, most of all at {where}" if is_later else ""
    cause = "apart from its longer work it" if works_longer else "it works no longer than its peers but"
    return Finding(
        kind="late_rank",
        title=f"{name} holds up {_others(view)}",
        cause=f"it is the last to arrive at {(last == owner).sum():,} of {len(last):,} synchronisations"
        f"{size}; {cause} comes later{_begins_later(view, late)}",
        action="look at what it does before its first operation of the step, and at the gaps between them",
        edits=[_gaps_of(view, late)],
        ranks=[name],
        steps=view.numbers,
        evidence=[_before(view, one) for one in late_at[:3]],
        least_share=0.0 if several else NOTICEABLE,
    )


def _begin_late(view: JobView, owner: int) -> list[int]:
    """Return the owner and all that begin their steps later than the median owner does."""
    later = _later_ns(view)
    found = {owner, *np.flatnonzero(later > NEGLIGIBLE * view.step_ns).tolist()}
    return sorted(found) if len(found) < len(later) else [owner]


def _later_ns(view: JobView) -> Float64:
    """Return how much later than the median owner each begins its steps (m,), the median over steps."""
    begins = np.array([step.begin_ns for step in view.steps], np.float64)
    return np.median(begins - np.median(begins, axis=1, keepdims=True), axis=0)


def _begins_later(view: JobView, late: Sequence[int]) -> str:
    later, owners = _later_ns(view), view.recording.owners
    ranks = [owners[owner] for owner in late if later[owner] > NEGLIGIBLE * view.step_ns]
    if not ranks:
        return ""
    return f": steps begin up to {in_ms(later.max())} later than usual on {listed(ranks, 8)}"


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
