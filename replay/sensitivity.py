"""Which operation matters: each delayed in turn, or each group made faster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from arrays import Int64
from dag.step_graph import Recording
from dialects.roles import Phase, Role
from dialects.step_parts import Operation
from parallel import cores, process_pool
from parallel.progress import bar
from replay.engine import pays
from replay.occurrences import with_usual_gaps
from replay.runs import replayed_ns
from replay.simulation import Planned, planned
from replay.whatif.edits import forward_share

#: Operations to simulate in all, some ten seconds: more are left out, those with the least work, …
_MOST_SIMULATED = 150_000_000
_MOST_QUEUED = 50_000_000  # where operations wait for devices, which takes longer
#: … but for so many.
_LEAST_GROUPS = 100
#: Operations to simulate in all from which further processes pay for their start.
_FORK_FROM = 20_000_000


class Group(Struct, frozen=True):
    """Operations that are changed together."""

    kind: str  # operation, category, rank or link
    name: str
    cat: str
    members: Int64  # numbers of operations
    tails: frozenset[int] = frozenset()  # owners whose untraced forward pass belongs to it


class Explored(NamedTuple):
    """The effects of all groups but `left_out`, whose operations have less work than any that was tried."""

    effects: list[Effect]
    left_out: int


class Effect(Struct, frozen=True):
    """What a change of a group costs: `added_ns` of work per step, `effect_ns` of the iteration time."""

    group: Group
    added_ns: float
    effect_ns: float


def delay_each(
    recording: Recording, ratio: float, *, parts: bool, jobs: int | None = None, progress: bool | None = None
) -> Explored:
    """Return what it costs when each operation in turn takes `ratio` times as long, dearest first.

    A communication is one operation unless `parts`.
    """
    return _effects(recording, _operations(recording, parts), ratio, jobs, progress)


def speed_up_each(
    recording: Recording, ratio: float, *, parts: bool, jobs: int | None = None, progress: bool | None = None
) -> Explored:
    """Return what it brings when each operation, category, rank and link takes `ratio` of its time.

    Categories include the stages of communication; a rank stands for its computation.
    """
    owners = recording.owners
    groups = _operations(recording, parts)
    groups += _grouped(recording, "category", lambda one: one.purpose or one.cat)
    groups += _grouped(recording, "category", lambda one: one.transfer.stage)
    if len(owners) > 1:
        groups += _grouped(recording, "rank", lambda one: owners[one.owner] if one.is_compute else "")
    groups += _grouped(recording, "link", lambda one: one.transfer.link)
    return _effects(recording, groups, ratio, jobs, progress)


def _operations(recording: Recording, parts: bool) -> list[Group]:
    prefix = [f"{owner}." if len(recording.owners) > 1 else "" for owner in recording.owners]
    return _grouped(
        recording, "operation", lambda one: prefix[one.owner] + (one.label if parts else one.main)
    )


def _grouped(recording: Recording, kind: str, name_of: Callable[[Operation], str]) -> list[Group]:
    """Return the groups of operations of one name each; those without a name are in none."""
    members: dict[str, list[int]] = {}
    for number, operation in enumerate(recording.operations):
        if name := name_of(operation):
            members.setdefault(name, []).append(number)
    untraced = {one.owner for one in recording.operations if one.role is Role.UNTRACED}
    groups = []
    for name, numbers in members.items():
        one = recording.operations[numbers[0]]
        is_rank, is_forward = kind == "rank", (kind, name) == ("category", Phase.FORWARD.word)
        tails = untraced & {one.owner} if is_rank else untraced if is_forward else set()
        cat = "" if is_rank else one.purpose or one.cat
        groups.append(Group(kind, name, cat, np.array(numbers), frozenset(tails)))
    return groups


# ---- the simulations


class _Base(Struct, frozen=True):
    """The replay that each change is compared with; what a process needs."""

    planned: Planned
    operation: Int64  # (ops of the plan,) the operation whose body it is, -1 for none
    tail_of: Int64  # (ops of the plan,) the owner whose untraced forward pass is in it, -1 for none
    ratio: float
    tail_ratio: float  # `ratio` for the forward pass's share of the time between steps
    compiled: bool
    scale: float  # the recorded time over the replayed one: gaps are replayed as they usually are


def _effects(
    recording: Recording, groups: Sequence[Group], ratio: float, jobs: int | None, progress: bool | None
) -> Explored:
    base = _base(recording, ratio, len(groups))
    n_groups = len(groups)
    contends = (base.planned.plan.device >= 0).any()
    most = (_MOST_QUEUED if contends else _MOST_SIMULATED) // max(1, len(base.operation))
    groups = _with_most_work(base, groups, max(_LEAST_GROUPS, most))
    effects: list[Effect] = []
    found: Iterator[Effect]
    alone = jobs == 1 or len(groups) * len(base.planned.plan) < _FORK_FROM
    with ExitStack() as opened:
        shown = opened.enter_context(bar(len(groups), "operations", what="replay", enabled=progress))
        if alone:
            found = map(partial(_effect, base), groups)
        else:
            pool = opened.enter_context(process_pool(jobs or cores(), _start, (base,)))
            found = pool.map(_effect_of, groups, chunksize=8)
        for effect in found:
            effects.append(effect)
            shown.update(1)
    effects.sort(key=lambda effect: -abs(effect.effect_ns))
    return Explored(effects, n_groups - len(groups))


def _with_most_work(base: _Base, groups: Sequence[Group], n: int) -> Sequence[Group]:
    """Return which n groups have most work in the replayed steps, in order: no effect is larger than that."""
    if len(groups) <= n:
        return groups
    n_operations = len(base.planned.result.recording.operations)
    work = np.bincount(base.operation + 1, base.planned.plan.dur_ns, n_operations + 1)[1:]
    of_group = [np.inf if group.tails else work[group.members].sum() for group in groups]
    return [groups[at] for at in np.sort(np.argsort(of_group)[-n:]).tolist()]


_shared: list[_Base] = []  # what this process compares with; filled in the workers of a pool only


def _start(base: _Base) -> None:
    _shared[:] = [base]


def _effect_of(group: Group) -> Effect:
    return _effect(_shared[0], group)


def _base(recording: Recording, ratio: float, n_groups: int) -> _Base:
    rows = recording.whole_steps
    base = planned(with_usual_gaps(recording), rows)
    result, n_ops = base.result, len(base.plan)
    operation = np.full(n_ops, -1)
    tail_of = np.full(n_ops, -1)
    untraced = {one.owner for one in recording.operations if one.role is Role.UNTRACED}
    for position, row in enumerate(rows):
        step = recording.steps[row]
        operation[result.heads(position) + 1] = step.operation
        for owner in untraced:
            tail_of[result.end_op[position, owner]] = owner
    return _Base(
        planned=base,
        operation=operation,
        tail_of=tail_of,
        ratio=ratio,
        tail_ratio=1 + forward_share(recording) * (ratio - 1),
        compiled=pays(n_groups * n_ops),
        scale=replayed_ns(recording, rows).mean() / max(result.iteration_ns.mean(), 1),
    )


def _effect(base: _Base, group: Group) -> Effect:
    result = base.planned.result
    changed = np.zeros(len(result.recording.operations) + 1, np.bool_)  # the last is -1: none
    changed[group.members] = True
    ratio = np.where(changed[base.operation], base.ratio, 1.0)
    ratio[np.isin(base.tail_of, list(group.tails))] = base.tail_ratio
    before = base.planned.plan.dur_ns
    dur = np.rint(before * ratio).astype(np.int64)
    after = base.planned.with_durations(dur, compiled=base.compiled)
    steps, owners = result.iteration_ns.shape
    added = float((dur - before).sum()) / steps
    effect = float((after.iteration_ns - result.iteration_ns).sum()) / steps / owners
    return Effect(group, added, effect * base.scale)
