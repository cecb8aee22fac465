"""What the figures of a digest tell of a job: sums for each rank and step, no events that could be replayed.

What is won is worked out from these sums: no operation is known to be on the critical path, so there are
no intervals, and only what can be told from how long ranks compute, communicate and pause is looked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, get_args

import numpy as np

from arrays import Float64
from dag.step_graph import Bool
from diagnose.chance import EXPOSED, LEAST_EXCESS, is_no_chance
from diagnose.diagnosis import LEAST_SHARE, Diagnosis, Ranked
from diagnose.finding import Finding, Kind, Skipped
from diagnose.gains import Gain
from dialects import Role
from errors import TraceError
from figures.job_figures import JobFigures
from figures.rank_figures import RankFigures
from figures.step_summary import outliers
from figures.time_by_role import NOTHING
from result import in_ms

#: An operation that takes more than this share of a step is a finding; what a tenth of it is, is its gain.
_HOT, _TENTH = 0.3, 0.1
#: What is idle for less than this share of a step is as good as busy.
_LEAST_IDLE = 0.05
_CAVEAT = "worked out from the sums of a digest, without a replay; the traces tell it with an interval"
_BREAKDOWN = ("--option", "statistic", "--sub_option", "breakdown")
_OPERATIONS = ("--option", "statistic", "--group_by", "operation")
_EXAMINED = frozenset(("late_rank", "outlier_steps", "exposed_communication", "hot_operation", "idle"))


class Sums(NamedTuple):
    """What k steps of m ranks spent their time on, nanoseconds.

    `step_ns` (k,) is the mean over ranks; `own_ns` and `exposed_ns` (k, m) what a rank worked, prepared or
    recorded nothing in, and what it only communicated; `spent_ns` (m, n) what each of n names took of a
    rank's average step. Of the names (n,) `is_own` are what a rank does itself: `is_computation` and more.
    """

    numbers: Sequence[int]
    ranks: Sequence[str]
    step_ns: Float64
    own_ns: Float64
    exposed_ns: Float64
    names: Sequence[str]
    spent_ns: Float64
    is_own: Bool
    is_computation: Bool
    is_communication: Bool


Found = tuple[Finding, Callable[[Sums], Sums]]  # what is wrong, and the sums without it


def diagnose_figures(job: JobFigures) -> Diagnosis:
    """Return the diagnosis of a job whose digest was read."""
    sums = _sums(job)
    known: list[tuple[Finding, Callable[[Sums], Sums], float]] = []
    small = 0
    for finding, without in _found(sums):
        won = _won(sums, without)
        if won == 0 or won >= max(LEAST_SHARE, finding.least_share) * sums.step_ns.mean():
            known.append((finding, without, won))
        else:
            small += 1
    known.sort(key=lambda one: (-one[2], -one[0].weight))
    reason = "a digest holds no single events; give the traces"
    return Diagnosis(
        findings=list(_ranked(sums, known)),
        skipped=[Skipped(kind, reason) for kind in get_args(Kind) if kind not in _EXAMINED],
        small=small,
        iteration_ns=sums.step_ns,
        job_ns=sums.step_ns,
        numbers=sums.numbers,
        ranks=sums.ranks,
        one_step="A step" if any(rank.steps.whole for rank in job.ranks) else "The recording",
    )


class _Spent(NamedTuple):
    """What one rank spent its k steps, by their numbers, on: n names, and the step's own length."""

    steps: Mapping[int, Float64]  # (n,) nanoseconds
    length_ns: Mapping[int, int]
    names: Sequence[str]
    is_own: Sequence[bool]
    is_computation: Sequence[bool]
    is_communication: Sequence[bool]


def _spent(rank: RankFigures) -> _Spent:
    """Return what a rank spent its steps on, by operation; where none are marked, by what ran at all."""
    operations = rank.operations
    if operations is None or not rank.steps.whole:
        parts = {0 if part.step is None else part.step: part for part in rank.breakdown}
        steps = {
            number: np.array([part.wall_ns - part.exposed_comm_ns - part.idle_ns, part.exposed_comm_ns,
                              part.idle_ns], np.float64)
            for number, part in parts.items()
        }  # fmt: skip
        lengths = {number: part.wall_ns for number, part in parts.items()}
        names = ("computation", "communication", NOTHING)
        return _Spent(steps, lengths, names, (True, False, True), (False,) * 3, (False, True, False))
    is_comm, whole = operations.is_comm, rank.steps.whole
    # an update that waits for communication is as long as the others let it be
    is_own = ~is_comm[:-1] & (operations.role != Role.UPDATE)
    return _Spent(
        {step.label: row for step, row in zip(whole, operations.spent_ns, strict=True)},
        {step.label: step.end_ns - step.start_ns for step in whole},
        operations.names,
        [*is_own.tolist(), True],
        [*(operations.role == Role.COMPUTE).tolist(), False],
        is_comm.tolist(),
    )


def _sums(job: JobFigures) -> Sums:
    """Return the sums of the steps that all ranks have."""
    ranks = [rank for rank in job.ranks if rank.n_slices]
    spent = [_spent(rank) for rank in ranks]
    numbers = sorted(set.intersection(*(set(one.steps) for one in spent)))
    if not numbers:
        raise TraceError(f"{job.path}: no step is in every rank of this digest")
    names: dict[str, int] = {}
    for one in spent:
        for name in one.names:
            names.setdefault(name, len(names))
    is_own, computes, moves = np.zeros((3, len(names)), np.bool_)
    own_ns, exposed_ns, length_ns = np.zeros((3, len(numbers), len(spent)))
    mean = np.zeros((len(spent), len(names)))
    for column, one in enumerate(spent):
        at = [names[name] for name in one.names]
        is_own[at], computes[at], moves[at] = one.is_own, one.is_computation, one.is_communication
        steps = np.array([one.steps[number] for number in numbers])
        own_ns[:, column] = steps[:, one.is_own].sum(axis=1)
        exposed_ns[:, column] = steps[:, one.is_communication].sum(axis=1)
        length_ns[:, column] = [one.length_ns[number] for number in numbers]
        np.add.at(mean[column], at, steps.mean(axis=0))
    return Sums(
        numbers,
        [rank.name for rank in ranks],
        length_ns.mean(axis=1),
        own_ns,
        exposed_ns,
        list(names),
        mean,
        is_own,
        computes,
        moves,
    )


def _won(sums: Sums, without: Callable[[Sums], Sums]) -> float:
    return float(max(sums.step_ns.mean() - without(sums).step_ns.mean(), 0.0))


def _ranked(sums: Sums, known: Sequence[tuple[Finding, Callable[[Sums], Sums], float]]) -> Iterator[Ranked]:
    done = sums
    for finding, without, won in known:
        if won == 0:
            yield Ranked(finding, None, None, None)
            continue
        left = _won(done, without)
        done = without(done)
        yield Ranked(finding, Gain(won, None, None), won / float(sums.step_ns.mean()), left)


# ---- what is looked for


def _found(sums: Sums) -> Iterator[Found]:
    if not sums.step_ns.any():
        return
    yield from _late_rank(sums)
    yield from _outlier_steps(sums)
    yield from _exposed(sums)
    yield from _hot(sums)
    yield from _idle(sums)


def _late_rank(sums: Sums) -> Iterator[Found]:
    """Find the rank that all others wait for: it has more to do than they do, step after step."""
    n_ranks = len(sums.ranks)
    if n_ranks < 2:
        return
    late = int(np.median(sums.own_ns, axis=0).argmax())
    peers = np.median(np.delete(sums.own_ns, late, axis=1), axis=1)
    excess = sums.own_ns[:, late] - peers
    more = float(np.median(excess))
    ratio = float(np.median(sums.own_ns[:, late] / np.maximum(peers, 1)))
    if more < LEAST_EXCESS * np.median(sums.step_ns) or not is_no_chance(excess, ratio, n_ranks):
        return

    def without(one: Sums) -> Sums:
        others = np.delete(one.own_ns, late, axis=1)
        own, waited = one.own_ns.copy(), one.exposed_ns.copy()
        # the others go on when the next of them is through; what happened once is no work of every step
        won = np.minimum(own[:, late] - others.max(axis=1), more)
        won = np.clip(won, 0, np.delete(waited, late, axis=1).min(axis=1))
        own[:, late] = np.minimum(own[:, late], np.median(others, axis=1))
        waited[:, np.arange(n_ranks) != late] -= won[:, None]
        return one._replace(step_ns=one.step_ns - won, own_ns=own, exposed_ns=waited)

    grew = sums.spent_ns[late] - np.median(np.delete(sums.spent_ns, late, axis=0), axis=0)
    grew[~sums.is_own] = 0
    most = int(grew.argmax())
    name = sums.names[most] if grew[most] > 0 else ""
    where = f", most of it in {name}" if name else ""
    if name == NOTHING:
        where = ", while nothing is recorded"
    yield (
        Finding(
            kind="late_rank",
            title=f"{sums.ranks[late]} holds up the others with {in_ms(more)} more work a step{where}",
            cause=f"what it does not only communicate takes {in_ms(more)} longer a step than its peers' does",
            action="find out why that rank is slower: its data, its host, what else runs there",
            ranks=[sums.ranks[late]],
            operations=[name] if name and name != NOTHING else [],
            caveat=_CAVEAT,
            look=_BREAKDOWN,
        ),
        without,
    )


def _outlier_steps(sums: Sums) -> Iterator[Found]:
    far = outliers(sums.step_ns)
    if not far.any():
        return

    def without(one: Sums) -> Sums:
        return one._replace(
            step_ns=np.where(far, np.minimum(one.step_ns, np.median(one.step_ns)), one.step_ns)
        )

    steps = [number for number, is_far in zip(sums.numbers, far.tolist(), strict=True) if is_far]
    which = f"step {steps[0]} takes far" if len(steps) == 1 else f"{len(steps)} steps take far"
    longest, usual = float(sums.step_ns.max()), float(np.median(sums.step_ns))
    yield (
        Finding(
            kind="outlier_steps",
            title=f"{which} longer than the others, up to {in_ms(longest)} instead of {in_ms(usual)}",
            cause="the first steps, a checkpoint, an evaluation, or load from outside",
            action="see what the traces have in these steps",
            ranks=sums.ranks,
            steps=steps,
            caveat=_CAVEAT,
            look=_BREAKDOWN,
        ),
        without,
    )


def _exposed(sums: Sums) -> Iterator[Found]:
    """Find communication that nothing hides, on whichever rank has least of it: the others wait as well."""

    def least(one: Sums) -> Float64:
        shortest: Float64 = one.exposed_ns.min(axis=1)
        return shortest

    exposed = float(np.mean(least(sums)))
    if exposed < EXPOSED * sums.step_ns.mean():
        return
    by_name = np.where(sums.is_communication, sums.spent_ns.mean(axis=0), 0.0)
    names = [sums.names[i] for i in np.argsort(-by_name)[:3].tolist() if by_name[i] > 0]
    largest = f"; most of it is {names[0]}" if names else ""
    yield (
        Finding(
            kind="exposed_communication",
            title=f"communication is not hidden: {in_ms(exposed)} a step on every rank",
            cause=f"in so much of a step all ranks only communicate, or wait{largest}",
            action="overlap it with computation, or move fewer bytes",
            ranks=sums.ranks,
            operations=names,
            caveat=_CAVEAT,
            look=_BREAKDOWN,
        ),
        lambda one: one._replace(step_ns=one.step_ns - least(one)),
    )


def _hot(sums: Sums) -> Iterator[Found]:
    own = np.where(sums.is_computation, sums.spent_ns.mean(axis=0), 0.0)
    most = int(own.argmax())
    share = own[most] / sums.step_ns.mean()
    if share < _HOT:
        return
    yield (
        Finding(
            kind="hot_operation",
            title=f"{sums.names[most]} takes {share:.0%} of a step",
            cause=f"{in_ms(own[most])} of the mean rank's step go to it alone",
            action="make it faster; the gain is that of a tenth of it",
            ranks=sums.ranks,
            operations=[sums.names[most]],
            caveat=_CAVEAT,
            look=_OPERATIONS,
        ),
        lambda one: one._replace(step_ns=one.step_ns - _TENTH * own[most]),
    )


def _idle(sums: Sums) -> Iterator[Found]:
    idle = float(sums.spent_ns[:, sums.names.index(NOTHING)].mean())
    share = idle / float(sums.step_ns.mean())
    if share < _LEAST_IDLE:
        return
    finding = Finding(
        kind="idle",
        title=f"in {in_ms(idle)} ({share:.0%}) of a step nothing is recorded on the mean rank",
        cause="neither computation nor communication ran",
        action="see in the traces what comes before and after",
        ranks=sums.ranks,
        caveat=_CAVEAT,
        look=_BREAKDOWN,
        weight=share,
    )
    yield finding, lambda one: one
