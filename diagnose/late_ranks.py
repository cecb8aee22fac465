"""Ranks that the others wait for, and work that is spread unevenly over them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from dag.step_graph import Bool, Recording
from diagnose.finding import Evidence, Finding, Level, Skipped
from diagnose.job_view import JobView, listed
from dialects.step_parts import WAIT, Kind
from formats.columns import Int64
from replay.uncertainty import FEWEST, Float
from replay.whatif.edits import apply
from replay.whatif.straggler import stragglers, without_stragglers

#: Chance of calling one of a job's ranks late that is not.
_CHANCE = 0.05
#: Work that is longer than the peers' by this factor in the median step …
_MUCH = 1.25
#: … and longer at all in this share of the steps is no chance either.
_MOSTLY = 2 / 3
#: A rank with less excess, of the step, holds nobody up.
_LEAST = 0.01
#: The share of the excess that the kinds of work which a title names make up.
_NAMED = 0.5


def late_ranks(view: JobView) -> Iterator[Finding | Skipped]:
    """Find the ranks that work longer than their peers, or begin what all do together last."""
    if len(view.recording.owners) < 2:
        yield from _late_in_negotiations(view)
        return
    late = behind_peers(view, view.is_own & _recorded_everywhere(view))
    if late:
        yield _by_work(view, late)
    late = behind_peers(view, view.is_input)
    if late:
        yield _by_input(view, late)
    last = _often_last(view)
    if last is not None:
        yield last


def uneven_work(view: JobView) -> Iterator[Finding | Skipped]:
    """Find work that differs by rank although no single rank holds up the others."""
    if len(view.recording.owners) < 2:
        yield Skipped("uneven_work", "only one rank is recorded")
        return
    work = view.owner_work_ns(view.is_own & _recorded_everywhere(view))
    typical = np.median(work, axis=0)
    spread = typical.max() - typical.mean()
    if spread < _LEAST * view.step_ns or not _is_systematic(work):
        return
    order = np.argsort(-typical)
    most, least = view.recording.owners[order[0]], view.recording.owners[order[-1]]
    yield Finding(
        kind="uneven_work",
        title=f"work is uneven: {most} works {typical[order[0]] / 1e6:.1f} ms a step, "
        f"{least} {typical[order[-1]] / 1e6:.1f} ms",
        cause="the ranks with more work make the others wait in every step",
        action="split layers or data so that every rank works as long as the mean",
        edit=lambda recording: _evened(recording, view),
        ranks=view.recording.owners,
        evidence=[_longest_of(view, int(owner)) for owner in (order[0], order[-1])],
        caveat="every rank is taken to work as long as the mean rank, which no real split reaches",
        look=("--option", "replay", "--sub_option", "whatif", "--set", "straggler=mean"),
    )


# ---- signals


def _recorded_everywhere(view: JobView) -> Bool:
    """Return which operations (n,) are of a kind that every owner has: others cannot be compared."""
    names, kind = view.kind_of
    owner = np.array([one.owner for one in view.recording.operations], np.int64)
    n_owners = len(view.recording.owners)
    pairs = np.unique(kind * n_owners + owner)
    everywhere: Bool = (np.bincount(pairs // n_owners, minlength=len(names)) == n_owners)[kind]
    return everywhere


def behind_peers(view: JobView, chosen: Bool) -> list[int]:
    """Return the owners whose `chosen` operations (n,) take longer than the median of their peers'.

    They do in every step but for chance (a t-test of the excess, over all owners), or by so much in most
    steps that a disturbed step does not hide it.
    """
    work = view.owner_work_ns(chosen)
    if not work.any():
        return []
    owners = range(work.shape[1])
    peers = np.array([np.median(np.delete(work, owner, axis=1), axis=1) for owner in owners]).T
    excess = work - peers
    usual = np.median(excess, axis=0)
    ratio = np.median(work / np.maximum(peers, 1), axis=0)
    found = [
        owner
        for owner in owners
        if usual[owner] >= _LEAST * view.step_ns
        and _is_no_chance(excess[:, owner], ratio[owner], len(owners))
    ]
    return found if len(found) <= len(owners) // 2 else []


def _is_no_chance(excess: Float, ratio: float, n_owners: int) -> bool:
    if len(excess) < FEWEST:
        return bool((excess > 0).all() and ratio > _MUCH)
    if ratio > _MUCH and (excess > 0).mean() >= _MOSTLY:
        return True
    return _surely_positive(excess, _CHANCE / n_owners)


def _surely_positive(values: Float, chance: float) -> bool:
    from scipy.stats import ttest_1samp

    if np.ptp(values) == 0:
        return bool(values[0] > 0)
    return bool(ttest_1samp(values, 0, alternative="greater").pvalue < chance)


def _is_systematic(work: Float) -> bool:
    """Whether the work (steps, m) of some owner differs from the step's mean in the same way in all steps."""
    if len(work) < FEWEST:
        return bool(np.median(work.max(axis=1) / np.maximum(work.mean(axis=1), 1)) > _MUCH)
    excess = work - work.mean(axis=1, keepdims=True)
    return any(_surely_positive(column, _CHANCE / work.shape[1]) for column in excess.T)


# ---- late by work


def _by_work(view: JobView, late: Sequence[int]) -> Finding:
    recording = view.recording
    excess = _excess_by_kind(view, late)
    names, number = view.kind_of
    order = np.argsort(-excess)
    total = max(float(excess[excess > 0].sum()), 1.0)
    enough = int(np.searchsorted(np.cumsum(np.maximum(excess[order], 0)), _NAMED * total)) + 1
    kinds = [int(kind) for kind in order[:enough]]
    only_input = all(view.is_input[number == kind].any() for kind in kinds)
    same = sorted(late) == stragglers(recording)
    ranks = [recording.owners[owner] for owner in late]
    what = listed([names[kind] for kind in kinds[:2]], 2) if enough <= 2 else "most of its operations"
    chosen = view.which(lambda one: one.owner in late) & np.isin(number, kinds)
    return Finding(
        kind="late_rank",
        title=f"{listed(ranks)} {_holds(ranks)} up the other{'s' if len(recording.owners) > 2 else ' rank'} "
        f"with {_longer(view, late)} more work a step, in {what}",
        cause=f"its own work takes {_longer(view, late)} longer a step than its peers'{_last_in(view, late)}",
        action="make its loader as fast as its peers' (data, disk, workers)"
        if only_input
        else "compare its batch, its data and its machine (clocks, other processes) with its peers'",
        edit=without_stragglers if same else lambda one: as_peers(one, late, gaps=False),
        change="straggler=none" if same else "",
        level=Level.RANK,
        ranks=ranks,
        operations=[names[kind] for kind in kinds],
        evidence=view.show(chosen, 3),
        look=("--option", "critical", "--head", "10"),
    )


def _holds(ranks: Sequence[str]) -> str:
    return "holds" if len(ranks) == 1 else "hold"


def _longer(view: JobView, late: Sequence[int]) -> str:
    work = view.owner_work_ns(view.is_own & _recorded_everywhere(view))
    peers = np.median(np.delete(work, list(late), axis=1), axis=1)
    excess = float(np.median(work[:, list(late)].mean(axis=1) - peers))
    return f"{excess / 1e6:.1f} ms"


def _last_in(view: JobView, late: Sequence[int]) -> str:
    """Return how often the late ranks came last, as words that end the cause; "" where nothing tells."""
    last = np.concatenate([np.empty(0, np.int64), *_last_arrivals(view)])
    if not len(last):
        return ""
    return f"; last in {int(np.isin(last, list(late)).sum()):,} of {len(last):,} meetings"


def _excess_by_kind(view: JobView, late: Sequence[int]) -> Float:
    """Return how much longer each kind of own work (k,) takes on the late ranks, the median over steps."""
    names, kind = view.kind_of
    recording = view.recording
    n_owners = len(recording.owners)
    cell = np.array([one.owner for one in recording.operations], np.int64) * len(names) + kind
    compared = view.is_own & _recorded_everywhere(view)
    excess = []
    for row in view.rows:
        step = recording.steps[row]
        own = np.where(compared[step.operation], step.work_ns, 0)
        table = np.bincount(cell[step.operation], own, n_owners * len(names)).reshape(n_owners, -1)
        peers = np.median(np.delete(table, list(late), axis=0), axis=0)
        excess.append(table[list(late)].mean(axis=0) - peers)
    usual: Float = np.median(excess, axis=0)
    return usual


def _by_input(view: JobView, late: Sequence[int]) -> Finding:
    recording = view.recording
    work = view.owner_work_ns(view.is_input)
    peers = float(np.median(np.delete(work, list(late), axis=1)))
    ranks = [recording.owners[owner] for owner in late]
    factors = [peers / max(float(np.median(work[:, owner])), 1.0) for owner in late]
    edits = [f"{rank}.I/O={max(factor, 0.001):.3g}" for rank, factor in zip(ranks, factors, strict=True)]
    chosen = view.is_input & view.which(lambda one: one.owner in late)
    slow = float(np.median(work[:, list(late)]))
    return Finding(
        kind="late_rank",
        title=f"{listed(ranks)} {_holds(ranks)} up the others: loading takes {(slow - peers) / 1e6:.1f} ms "
        "longer a step there",
        cause=f"loading takes {slow / 1e6:.1f} ms a step there and {peers / 1e6:.1f} ms on the other ranks"
        + _last_in(view, late),
        action="make its loader as fast as its peers' (data, disk, workers)",
        edit=lambda one: apply(one, edits),
        change=" ".join(edits),
        level=Level.RANK,
        ranks=ranks,
        operations=sorted({one.main for one, yes in zip(recording.operations, chosen, strict=True) if yes}),
        evidence=view.show(chosen, 3),
        look=("--option", "critical", "--head", "10"),
    )


# ---- late by arrival


def _last_arrivals(view: JobView, *, of_own_step: bool = False) -> list[Int64]:
    """Return for each whole step the owner that came last to each of its meetings.

    `of_own_step`: last as counted from the begin of its own step. A rank that is served last ends, and
    begins, its steps later than the others, without being slow.
    """
    found = []
    for row, one in zip(view.rows, view.meetings, strict=True):
        begin = view.recording.steps[row].begin_ns
        at_ns = one.at_ns - begin[one.owner] if of_own_step else one.at_ns
        order = np.lexsort((at_ns, one.meeting))
        is_last = np.append(np.diff(one.meeting[order]) != 0, np.ones(min(len(order), 1), np.bool_))
        found.append(one.owner[order[is_last]])
    return found


def _often_last(view: JobView) -> Finding | None:
    """Return the rank that comes last far more often than chance, though it works no longer."""
    from scipy.stats import binomtest

    owners, several = view.recording.owners, len(view.rows) >= FEWEST
    by_step = [one for one in _last_arrivals(view, of_own_step=several) if len(one)]
    if not by_step:
        return None
    last = np.concatenate(by_step)
    # meetings of one step are not independent: one delay makes a rank late for all that follow
    winners = np.array([np.bincount(one).argmax() for one in by_step])
    counted = winners if several else last
    owner = int(np.bincount(last).argmax())
    times = int((counted == owner).sum())
    if binomtest(times, len(counted), 1 / len(owners), alternative="greater").pvalue * len(owners) > _CHANCE:
        return None
    name = owners[owner]
    late = _begin_late(view, owner)
    return Finding(
        kind="late_rank",
        title=f"{name} holds up the others: last in {(last == owner).sum():,} of {len(last):,} meetings",
        cause=f"it works no longer than its peers but comes later{_begins_later(view, late)}",
        action="look at what it does before its first operation of the step, and at the gaps between them",
        edit=lambda recording: as_peers(recording, late, gaps=True),
        level=Level.RANK,
        ranks=[name],
        steps=view.numbers,
        evidence=_last_events(view, owner),
        look=("--option", "critical", "--scope", "job", "--head", "10"),
    )


def _begin_late(view: JobView, owner: int) -> list[int]:
    """Return the owner and all that begin their steps later than the median owner does."""
    later = _later_ns(view)
    found = np.flatnonzero(later > _LEAST * view.step_ns).tolist()
    return sorted({owner, *found}) if len(found) < len(later) else [owner]


def _later_ns(view: JobView) -> Float:
    """Return how much later than the median owner each begins its steps (m,), the median over steps."""
    begins = np.array([view.recording.steps[row].begin_ns for row in view.rows], np.float64)
    later: Float = np.median(begins - np.median(begins, axis=1, keepdims=True), axis=0)
    return later


def _begins_later(view: JobView, late: Sequence[int]) -> str:
    later, owners = _later_ns(view), view.recording.owners
    ranks = [owners[owner] for owner in late if later[owner] > _LEAST * view.step_ns]
    if not ranks:
        return ""
    return f": steps begin up to {later.max() / 1e6:.1f} ms later than usual on {listed(ranks, 8)}"


def _last_events(view: JobView, owner: int, most: int = 3) -> list[Evidence]:
    found: list[Evidence] = []
    for row, one in zip(view.rows, view.meetings, strict=True):
        step = view.recording.steps[row]
        for meeting in range(one.n_meetings):
            members = np.flatnonzero(one.meeting == meeting)
            last = int(members[np.argmax(one.at_ns[members])])
            if int(one.owner[last]) == owner and len(found) < most:
                found.append(view.event(step, int(one.event[last])))
    return found


# ---- late in negotiations that one rank recorded for all


def _late_in_negotiations(view: JobView) -> Iterator[Finding | Skipped]:
    if not view.which(lambda one: one.cat == WAIT).any():
        yield Skipped("late_rank", "only one rank is recorded, without a peer to compare it with")
        return
    waited = _waited_for(view)
    if not waited:
        return
    who, per_step = max(waited.items(), key=lambda pair: float(np.median(pair[1])))
    usual = float(np.median(per_step))
    name = who.removesuffix(": computation")
    is_told = "ticks" not in name and name.startswith("rank ")
    # without ticks, the wait for whichever rank is last is taken for that of one
    others = [times for name, times in waited.items() if name != who] or [np.zeros(len(per_step))]
    more = per_step - np.median(others, axis=0)
    if usual < (_LEAST if is_told else _MUCH - 1) * view.step_ns or not _is_no_chance(more, 1.0, len(waited)):
        return
    is_known = name.startswith("rank ")
    rank = f"rank{name.split()[1]}" if is_known else "the last rank"
    chosen = view.which(lambda one: one.name == who)
    yield Finding(
        kind="late_rank",
        title=f"{rank} holds up the others: they wait {usual / 1e6:.1f} ms a step for it in negotiations",
        cause=f"{rank} is ready with its tensors later than the first rank"
        + (" (the ticks of the first negotiations tell which rank)" if "ticks" in name else ""),
        action="compare its batch, its data and its machine (clocks, other processes) with its peers'",
        edit=lambda one: ready_with_the_first(one, who),
        level=Level.RANK,
        ranks=[rank] if is_known else [],
        evidence=view.show(chosen, 3),
        caveat="" if is_known else "the recording does not tell which rank was last",
        look=("--option", "critical", "--head", "10"),
    )


def _waited_for(view: JobView) -> dict[str, Float]:
    """Return how long negotiations waited in each whole step for whose computation, by its name."""
    recording = view.recording
    found: dict[str, Float] = {}
    for place, row in enumerate(view.rows):
        step = recording.steps[row]
        for events, late in _lateness(recording, row).values():
            name = recording.operations[int(step.operation[events[0]])].name
            found.setdefault(name, np.zeros(len(view.rows)))[place] = float(late.max(initial=0))
    return found


def _lateness(recording: Recording, row: int) -> dict[str, tuple[Int64, Int64]]:
    """Return by name the computations of a step that negotiations wait for, in order, and how late each was.

    How late: from when the first rank was ready (the negotiation's begin) to the computation's end.
    """
    step = recording.steps[row]
    waits = np.array([one.cat == WAIT for one in recording.operations], np.bool_)
    edges = step.edges[(step.edges[:, 3] == Kind.GROUP) & waits[step.operation[step.edges[:, 1]]]]
    late: dict[int, int] = {}
    for source, target in edges[:, :2].tolist():
        late[source] = max(late.get(source, 0), int(step.end_ns[source] - step.start_ns[target]))
    by_name: dict[str, list[int]] = {}
    for event in sorted(late, key=lambda one: int(step.end_ns[one])):
        by_name.setdefault(recording.operations[int(step.operation[event])].name, []).append(event)
    return {
        name: (np.array(events, np.int64), np.array([late[one] for one in events], np.int64))
        for name, events in by_name.items()
    }


def ready_with_the_first(recording: Recording, who: str) -> Recording:
    """Return the recording in which `who` (the name of a computation) is ready when the first rank is.

    Of a chain of computations each is shortened by how much later it was than the one before it; one
    that was much less late began after all ranks had met again, and is a chain's first.
    """
    steps = []
    for row, step in enumerate(recording.steps):
        work = step.work_ns.copy()
        events, late = _lateness(recording, row).get(who, (np.empty(0, np.int64),) * 2)
        if len(events):
            before = np.append(0, late[:-1])
            more = np.where(2 * late < before, late, np.maximum(late - before, 0))
            work[events] = np.maximum(work[events] - more, 0)
        steps.append(replace(step, work_ns=work))
    return replace(recording, steps=steps)


# ---- edits


def as_peers(recording: Recording, late: Sequence[int], *, gaps: bool) -> Recording:
    """Return the recording in which some owners do each kind of own work in their peers' usual time.

    The times of a kind (of a name) are scaled in all steps alike, by the medians over the steps of what
    it takes in a step. With `gaps` those before its events as well, and no late owner begins a step later
    than its peers do.
    """
    names = list(dict.fromkeys(one.name for one in recording.operations))
    place = {name: i for i, name in enumerate(names)}
    kind = np.array([place[one.name] for one in recording.operations], np.int64)
    own = np.array([not one.is_communication for one in recording.operations], np.bool_)
    owner = np.array([one.owner for one in recording.operations], np.int64)
    change = own & np.isin(owner, list(late))
    work_factor = _factors(recording, kind, owner, late, "work_ns")[owner, kind]
    gap_factor = np.minimum(_factors(recording, kind, owner, late, "gap_ns")[owner, kind], 1.0)
    peers = [one for one in range(len(recording.owners)) if one not in late]
    steps = []
    for step in recording.steps:
        chosen = change[step.operation]
        work = np.where(chosen, np.rint(step.work_ns * work_factor[step.operation]), step.work_ns)
        edited = replace(step, work_ns=work.astype(np.int64))
        if gaps:
            gap = np.where(chosen, np.rint(step.gap_ns * gap_factor[step.operation]), step.gap_ns)
            begin, tail = step.begin_ns.copy(), step.tail_ns.copy()
            begin[list(late)] = np.minimum(begin[list(late)], int(np.median(begin[peers])))
            tail[list(late)] = np.minimum(tail[list(late)], int(np.median(tail[peers])))
            edited = replace(edited, gap_ns=gap.astype(np.int64), begin_ns=begin, tail_ns=tail)
        steps.append(edited)
    return replace(recording, steps=steps)


def _factors(recording: Recording, kind: Int64, owner: Int64, late: Sequence[int], column: str) -> Float:
    """Return by (owner, kind) what share the peers' usual time is of each owner's; 1 where it has none."""
    n_owners, n_kinds = len(recording.owners), int(kind.max(initial=-1)) + 1
    cell = owner * n_kinds + kind
    tables = [
        np.bincount(cell[step.operation], getattr(step, column), n_owners * n_kinds).reshape(n_owners, -1)
        for step in (recording.steps[row] for row in recording.whole_steps)
    ]
    usual = np.median(tables, axis=0)
    peers = np.median(np.delete(usual, list(late), axis=0), axis=0)
    factor: Float = np.where(usual > 0, peers / np.maximum(usual, 1), 1.0)
    return factor


def _evened(recording: Recording, view: JobView) -> Recording:
    """Return the recording in which each kind of own work takes the usual time of the mean owner."""
    _, kind = view.kind_of
    owner = np.array([one.owner for one in recording.operations], np.int64)
    n_owners, n_kinds = len(recording.owners), int(kind.max(initial=-1)) + 1
    tables = [
        np.bincount(owner[step.operation] * n_kinds + kind[step.operation], step.work_ns, n_owners * n_kinds)
        for step in (recording.steps[row] for row in recording.whole_steps)
    ]
    usual = np.median(tables, axis=0).reshape(n_owners, n_kinds)
    factor = np.where(usual > 0, usual.mean(axis=0) / np.maximum(usual, 1), 1.0)[owner, kind]
    factor = np.where(view.is_own, factor, 1.0)
    steps = [
        replace(step, work_ns=np.rint(step.work_ns * factor[step.operation]).astype(np.int64))
        for step in recording.steps
    ]
    return replace(recording, steps=steps)


def _longest_of(view: JobView, owner: int) -> Evidence:
    return view.show(view.is_own & view.which(lambda one: one.owner == owner))[0]
