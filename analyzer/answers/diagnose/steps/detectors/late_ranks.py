"""Ranks that the others wait for, and work that is spread unevenly over them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from analyzer.answers.diagnose.finding import (
    CHANCE,
    EXPOSED,
    HALF,
    MUCH,
    NEARLY_ALL,
    NEGLIGIBLE,
    OUTLYING,
    Evidence,
    Finding,
    FindingScope,
    ListPlace,
    Skipped,
    edit,
)
from analyzer.answers.diagnose.steps.detectors.exposed import late_in_negotiations, whose_loading
from analyzer.answers.diagnose.steps.job_view import (
    JobView,
    LastArrivals,
    busy_step,
    event_of,
    gap_before,
    is_no_chance,
    last_arrivals,
    longest_awaited,
    longest_events,
    longest_gaps,
    surely_positive,
)
from analyzer.base.arrays import Float64, Mask
from analyzer.base.arrays.distributions import FEWEST, binomial_tail, median
from analyzer.base.errors import listed
from analyzer.base.names import named
from analyzer.base.units import in_ms
from replay.edit import EditRequest
from replay.usual_times import begun_by_owners, done_by_all, excess_ns, is_own_work, peers_of, peers_usual
from replay.whatif.straggler import stragglers

_LOADERS = "look at the loaders: data, disk, workers, prefetching"


_MACHINE = "compare its batch, its data and its machine (clocks, other processes) with its peers'"
_PAUSES = "look at what runs there: input, Python code, garbage collection, other processes"


class _LateCause(NamedTuple):
    """Why owners are late by `late_ns` a step: `most` of it is in these operations, or before them.

    `detail` are clauses for the cause.
    """

    owners: Sequence[int]
    late_ns: float
    most: str
    edits: Sequence[EditRequest]
    action: str
    operations: Sequence[str] = ()
    evidence: Sequence[Evidence] = ()
    caveat: str = ""
    detail: str = ""
    place: ListPlace = ListPlace.BY_GAIN


def late_ranks(view: JobView) -> Iterator[Finding | Skipped]:
    """Find the ranks that others wait for, each with the largest of its causes."""
    if len(view.recording.owners) < 2:
        yield from late_in_negotiations(view)
        return
    for cause in _late_causes(view):
        yield _finding(view, cause)


def causes_of_late_ranks(view: JobView) -> list[str]:
    """Name the late ranks and their causes without times, which differ between runs of one cause."""
    causes = _late_causes(view) if len(view.recording.owners) > 1 else ()
    return [
        f"{listed(_names(view, cause.owners))} late, most of it {cause.most}"
        for cause in causes
        if cause.edits
    ]


def _late_causes(view: JobView) -> Iterator[_LateCause]:
    """Yield the largest cause of each late rank."""
    compared = compared_operations(view)
    causes = [_work(view, compared), _extra_work(view, compared)]
    if is_tied := not view.recording.untied(view.recording.owners):
        causes.append(_pauses(view))
    late: set[int] = set()
    for cause in sorted(filter(None, causes), key=lambda cause: -cause.late_ns):
        if not late.issuperset(cause.owners):
            yield cause
        late.update(cause.owners)
    last = _often_last(view, view.owner_work_ns(compared)) if is_tied else None
    if last is not None and last.owners[0] not in late:
        yield last


def _finding(view: JobView, cause: _LateCause) -> Finding:
    ranks = _names(view, cause.owners)
    last = np.concatenate([np.empty(0, np.int64), *(owner for owner, _ in last_arrivals(view))])
    n_last = int(np.isin(last, cause.owners).sum())
    seen = f"the last to arrive at {n_last:,} of {len(last):,} synchronisations"
    late = f"{'is' if len(ranks) == 1 else 'are'} late by {in_ms(cause.late_ns)}"
    if view.recording.untied(ranks):
        seen = "own work is compared, without waits and pauses"
        late = f"{'works' if len(ranks) == 1 else 'work'} {in_ms(cause.late_ns)} longer than peers"
    return Finding(
        kind="late_rank",
        title=f"{listed(ranks)} {late}, most of it {cause.most}",
        cause=f"{seen}{cause.detail}",
        action=cause.action,
        edits=cause.edits,
        scope=FindingScope(ranks, operations=cause.operations),
        evidence=cause.evidence,
        caveat=cause.caveat,
        look=("critical", "--head", "10"),
        place=cause.place,
    )


def uneven_work(view: JobView) -> Iterator[Finding | Skipped]:
    """Find work that differs by rank although no single rank delays the others."""
    if len(view.recording.owners) < 2:
        yield Skipped("uneven_work", "only one rank is recorded")
        return
    work = view.owner_work_ns(compared_operations(view))
    typical = np.median(work, axis=0)
    spread = typical.max() - typical.mean()
    if spread < NEGLIGIBLE * view.step_ns or not _is_systematic(work):
        return
    owners = [int(typical.argmax()), int(typical.argmin())]
    most, least = (
        f"stage {view.stage[owner]}" if view.stage.any() else view.recording.owners[owner] for owner in owners
    )
    most_ns, least_ns = typical[owners]
    owner_of = view.recording.column(lambda operation: operation.owner)
    yield Finding(
        kind="uneven_work",
        title=f"{most} works {in_ms(most_ns - least_ns)} more than {least}",
        cause=f"{most} works {in_ms(most_ns)}, {least} {in_ms(least_ns)}; the rank with more work makes "
        f"the others wait in every step{_slowdown(view)}",
        action="split layers or data so that every rank works as long as the mean",
        edits=[edit("straggler", "even")],
        evidence=[
            event
            for owner in owners
            for event in longest_events(view, ~view.is_communication & (owner_of == owner))
        ],
        caveat="every rank is taken to work as long as the mean rank, which no real split reaches",
    )


# ---- operations


def compared_operations(view: JobView) -> Mask:
    """Mark the operations (n,) that are own work of a kind that every owner has: others cannot be compared.

    Nor can BytePS's STEP, in which the wait for communication lies.
    """
    return is_own_work(view.recording) & done_by_all(view.recording)


def _begun(view: JobView) -> Mask:
    """Mark the operations (n,) that an owner begins itself: in a gap before them this owner is late.

    Of a tensor's partitions, which it hands over together, that is the first.
    """
    begun, seen = begun_by_owners(view.recording), set[tuple[int, str, str]]()
    for i in np.flatnonzero(begun & view.is_communication).tolist():
        operation = view.recording.operations[i]
        tensor = operation.owner, operation.main, operation.transfer.stage
        begun[i] = operation.transfer.key is None or tensor not in seen
        seen.add(tensor)
    return begun


# ---- signals


def behind_peers(view: JobView, work: Float64) -> list[int]:
    """List the owners whose times in each step, `work` (steps, m), exceed the median of their peers'.

    Peers are the ranks of the same stage; where a stage is one rank, it has none. They take longer in
    every step but for chance (`is_no_chance`).
    """
    if not work.any():
        return []
    owners = np.flatnonzero((np.bincount(view.stage) > 1)[view.stage]).tolist()
    peers = work.copy()
    peers[:, owners] = peers_usual(work, view.stage)[:, owners]
    excess, typical = work - peers, np.median(work, axis=0)
    usual = np.median(excess, axis=0)
    ratio = np.median(work / np.maximum(peers, 1), axis=0)
    always = (work.argmax(axis=1)[:, None] == np.arange(work.shape[1])).all(axis=0)
    behind = [
        owner
        for owner in owners
        if usual[owner] >= NEGLIGIBLE * view.step_ns
        and usual[owner] >= OUTLYING * _spread(typical[peers_of(owner, [], view.stage)])
        and is_no_chance(excess[:, owner], float(ratio[owner]), len(owners), always_most=bool(always[owner]))
    ]
    return behind if len(behind) <= work.shape[1] // 2 else []


def _spread(usual: Float64) -> float:
    """Median absolute deviation of the owners' usual work (m,)."""
    return median(np.abs(usual - median(usual)))


def _is_systematic(work: Float64) -> bool:
    """Check whether the work (steps, m) of an owner differs from the step's mean alike in all steps."""
    if len(work) < FEWEST:
        return bool(np.median(work.max(axis=1) / np.maximum(work.mean(axis=1), 1)) > MUCH)
    excess = work - work.mean(axis=1, keepdims=True)
    return any(surely_positive(column, CHANCE / work.shape[1]) for column in excess.T)


# ---- causes


def _work(view: JobView, compared: Mask) -> _LateCause | None:
    """Late ranks that take longer for what all ranks do."""
    work = view.owner_work_ns(compared)
    late = behind_peers(view, work)
    if not late:
        return None
    kinds = _slower_kinds(view, compared, late)
    slower = [view.kind_of[0][kind] for kind in kinds]
    begins_late = bool((_begin_later_ns(view)[late] > NEGLIGIBLE * view.step_ns).any())
    is_all = sorted(late) == stragglers(view.recording) and not begins_late
    chosen = _of_owners(view, late) & np.isin(view.kind_of[1], kinds)
    loads = all(view.is_input[view.kind_of[1] == kind].any() for kind in kinds)
    late_ns = excess_ns(work, late, view.stage)
    edits = [edit("straggler", "none") if is_all else edit(",".join(_names(view, late)), "peers")]
    if _is_awaited_in_gaps(view, late, late_ns):
        edits.append(edit("gap", "even"))
    busy = _busy(view, compared, late)
    overlap = "; loading overlaps work of the device, so less than that can be saved"
    return _LateCause(
        late,
        late_ns,
        f"in {named(slower, 2)}" if len(kinds) <= 2 else "in several operations",
        edits,
        _LOADERS if loads else _MACHINE,
        slower,
        longest_events(view, chosen, 3, busy_step(view, chosen)),
        whose_loading(view) if loads else "",
        busy + (overlap if loads and view.has_device else "") + _slowdown(view),
        ListPlace.FIRST if busy else ListPlace.BY_GAIN,
    )


def _busy(view: JobView, compared: Mask, late: Sequence[int]) -> str:
    """Clause on ranks that in nearly all steps work for over half of the step, much longer than their peers.

    That counts whatever a replay says, which knows only the waits that are recorded. "" for other ranks. Of a
    job with devices the work of these counts.
    """
    works = view.which(lambda operation: operation.is_traced and (operation.on_device or not view.has_device))
    work = view.owner_work_ns(compared & works)
    late_ns, peers_ns = work[:, late].min(axis=1), peers_usual(work, view.stage)[:, late].max(axis=1)
    is_much = (late_ns > MUCH * peers_ns) & (late_ns > HALF * view.iteration_ns)
    if is_much.mean() < NEARLY_ALL:
        return ""
    times = (in_ms(float(np.median(ns))) for ns in (late_ns, view.iteration_ns, peers_ns))
    return "; {} of work in a step of {}, {} on its peers".format(*times)


def _is_awaited_in_gaps(view: JobView, late: Sequence[int], late_ns: float) -> bool:
    """Check whether another rank pauses for most of the extra work: it waits in something unrecorded.

    So in the published pipeline with a slow rank, where the reduction over tensor-parallel ranks is not known
    to be a collective.
    """
    usual_ns = np.median(view.owner_gap_ns(~view.is_communication), axis=0)
    others_ns = np.delete(usual_ns, late)
    return bool(others_ns.max(initial=0.0) - usual_ns[late].max() > HALF * late_ns)


def _slowdown(view: JobView) -> str:
    """Clause on the slowdown of a pipeline; "" for any other job."""
    if not view.stage.any():
        return ""
    from replay.slowdown import slowdown_ratio

    ratio = slowdown_ratio(view.loaded.recording)
    return f"; without pauses, a step takes {ratio:.2f} times as long as with work spread evenly"


def _slower_kinds(view: JobView, compared: Mask, late: Sequence[int]) -> list[int]:
    """Find the names (of `kind_of`) of own work that make up half of the late ranks' excess."""
    n_names, n_owners = len(view.kind_of[0]), len(view.recording.owners)
    table = view.recording.operations
    owner = np.array([kind.owner for kind in table.kinds], np.int64)
    cell = np.empty(len(owner), np.int64)
    cell[table.kind] = owner[table.kind] * n_names + view.kind_of[1]
    is_compared = view.of_kinds(compared)
    excess = []
    for work in view.work_by_kind:
        cells = np.bincount(cell, work * is_compared, n_owners * n_names).reshape(n_owners, -1)
        peers = [np.median(cells[peers_of(rank, late, view.stage)], axis=0) for rank in late]
        excess.append(np.mean(cells[list(late)] - peers, axis=0))
    longer = np.maximum(np.median(excess, axis=0), 0.0)
    order = np.argsort(-longer)
    enough = np.searchsorted(np.cumsum(longer[order]), HALF * max(float(longer.sum()), 1.0))
    kinds: list[int] = order[: int(enough) + 1].tolist()
    return kinds


def _extra_work(view: JobView, compared: Mask) -> _LateCause | None:
    """Late ranks that do what not all do, where that is most of what they work longer.

    What takes the place of something else on another rank (a kernel of another name) is no more work. Work
    that all ranks do may scatter from step to step: only what they do not share is to recur.
    """
    own_work = is_own_work(view.recording)
    extra = own_work & ~compared
    extra_work = view.owner_work_ns(extra)
    late = behind_peers(view, extra_work)
    if not late:
        return None
    excess, extra_ns = (excess_ns(ns, late, view.stage) for ns in (view.owner_work_ns(own_work), extra_work))
    chosen = extra & _of_owners(view, late)
    if extra_ns < HALF * excess or excess < NEGLIGIBLE * view.step_ns:
        return None
    most = _most_of(view, chosen, view.work_by_kind)
    return _LateCause(
        late,
        min(excess, extra_ns),
        f"in {named(most)}, which not all ranks run",
        [edit(f"{','.join(_names(view, late))}.extra", "peers")],
        "do it less often, on another thread or process, or share it out",
        most,
        longest_events(view, chosen, 3, busy_step(view, chosen)),
    )


def _pauses(view: JobView) -> _LateCause | None:
    """Late ranks that pause for longer than their peers, with nothing recorded, if most steps wait for them.

    That counts where they meet others: one that has waited for them may then come last to its own group.
    """
    if len(view.rows) < FEWEST:
        return None
    begun = _begun(view)
    gaps = view.owner_gap_ns(begun)
    late = behind_peers(view, gaps)
    awaited = longest_awaited(last_arrivals(view, among=late))
    if np.isin(awaited, late).sum() <= len(view.rows) / 2:
        return None
    chosen = begun & _of_owners(view, late)
    before = _most_of(view, chosen, view.gap_by_kind)
    return _LateCause(
        late,
        float(np.median(gaps[:, late]) - np.median(np.delete(gaps, late, axis=1))),
        f"before {named(before)}, where nothing is recorded",
        [edit(f"{','.join(_names(view, late))}.gap", "peers")],
        _PAUSES,
        before,
        longest_gaps(view, chosen),
    )


def _of_owners(view: JobView, owners: Sequence[int]) -> Mask:
    return view.which(lambda operation: operation.owner in owners)


def _most_of(view: JobView, chosen: Mask, by_kind: Float64) -> list[str]:
    """Name that has most of some times (steps, k) of the `chosen` operations (n,), else three names."""
    by_name = view.by_name(np.where(view.of_kinds(chosen), by_kind.mean(axis=0), 0.0))
    return view.longest(by_name, 1 if by_name.max() >= HALF * by_name.sum() else 3)


# ---- late by arrival


def _names(view: JobView, owners: Sequence[int]) -> list[str]:
    return [view.recording.owners[owner] for owner in owners]


def _often_last(view: JobView, work: Float64) -> _LateCause | None:
    """Find the rank that comes last far more often than chance, though its `work` (steps, m) is usual."""
    several = len(view.rows) >= FEWEST
    arrivals = last_arrivals(view, of_own_step=several)
    # meetings of one step are not independent, as one delay makes a rank late for all that follow: of each
    # step counts who was waited for longest
    last = longest_awaited(arrivals) if several else np.concatenate([owner for owner, _ in arrivals])
    if not len(last):
        return None
    n_owners, owner = len(view.recording.owners), int(np.bincount(last).argmax())
    delays = _delays(view, owner, arrivals)
    if binomial_tail(int((last == owner).sum()), len(last), 1 / n_owners) * n_owners > CHANCE or not delays:
        return None
    late_ns = sum(delay.ns for delay in delays) / len(arrivals)
    if not several and late_ns < EXPOSED * view.step_ns:
        return None
    later = _begin_later_ns(view)
    late = sorted({owner, *np.flatnonzero(later > NEGLIGIBLE * view.step_ns).tolist()})
    works_longer = np.median(work[:, owner] - work.mean(axis=1)) > NEGLIGIBLE * view.step_ns
    if works_longer and late == [owner] and later[owner] < NEGLIGIBLE * view.step_ns:
        return None
    name = event_of(view, view.recording.steps[delays[0].row], delays[0].event).name
    return _LateCause(
        [owner],
        late_ns,
        f"before {named([name])}, though it works no longer than its peers",
        [edit(f"{','.join(_names(view, late if len(late) < n_owners else [owner]))}.gap", "peers")],
        _PAUSES,
        evidence=[_before(view, delay) for delay in delays[:3]],
    )


def _begin_later_ns(view: JobView) -> Float64:
    """Usual delay with which each owner (m,) begins its steps after the median owner."""
    begins = np.array([step.begin_ns for step in view.steps], np.float64)
    return np.median(begins - np.median(begins, axis=1, keepdims=True), axis=0)


class _Delay(NamedTuple):
    """The largest delay of the last owner behind the median one in a step, and its event there."""

    ns: float
    row: int
    event: int


def _delays(view: JobView, owner: int, arrivals: Sequence[LastArrivals]) -> list[_Delay]:
    """Largest delay of each step in which an owner comes last, the largest first."""
    largest = []
    for row, (last, _), met in zip(view.rows, arrivals, view.meetings, strict=True):
        bounds = np.searchsorted(met.meeting, np.arange(met.meeting.max(initial=-1) + 2))
        delays = []
        for meeting in np.flatnonzero(last == owner).tolist():
            inside = slice(bounds[meeting], bounds[meeting + 1])
            arrival = bounds[meeting] + int((met.owner[inside] == owner).argmax())
            late_ns = float(met.at_ns[arrival] - np.median(met.at_ns[inside]))
            delays.append(_Delay(late_ns, row, int(met.event[arrival])))
        if delays:
            largest.append(max(delays))
    return sorted(largest, reverse=True)


def _before(view: JobView, delay: _Delay) -> Evidence:
    """Gap for which an owner is late, else the event at which it is."""
    step, event = view.recording.steps[delay.row], delay.event
    earlier = np.flatnonzero((step.owner == step.owner[event]) & (step.start_ns <= step.start_ns[event]))
    longest = int(earlier[step.gap_ns[earlier].argmax()])
    if 2 * step.gap_ns[longest] > delay.ns:
        return gap_before(view, step, longest)
    return event_of(view, step, event)
