"""Which operation matters: each delayed in turn, or each group made faster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from arrays import Int64
from dag.step_graph import Recording, StepGraph
from dialects.roles import Phase, Role
from dialects.step_parts import Operation
from parallel import cores, process_pool
from parallel.progress import bar
from replay.occurrences import with_usual_gaps
from replay.runs import Simulation, replayed_ns, simulated
from replay.whatif.scaling import forward_share

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
    """The cost of a change of a group: `added_ns` of work per step, `effect_ns` of the iteration time."""

    group: Group
    added_ns: float
    effect_ns: float


def delay_each(
    recording: Recording, ratio: float, *, parts: bool, jobs: int | None = None, progress: bool | None = None
) -> Explored:
    """Return the increase of the step if one operation takes `ratio` times as long; largest first.

    A communication is one operation unless `parts`.
    """
    return _effects(recording, _operations(recording, parts), ratio, jobs, progress)


def speed_up_each(
    recording: Recording, ratio: float, *, parts: bool, jobs: int | None = None, progress: bool | None = None
) -> Explored:
    """Return the saving if one operation, category, rank or link takes `ratio` of its time.

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

    before: Simulation
    before_ns: float  # the mean step
    untraced: frozenset[int]  # owners whose forward pass is in the time between two steps
    ratio: float
    tail_ratio: float  # `ratio` for the forward pass's share of the time between steps
    scale: float  # the recorded time over the replayed one: gaps are replayed as they usually are

    @property
    def n_operations(self) -> int:
        """How many operations the replayed steps have."""
        return sum(len(self.before.recording.steps[row]) for row in self.before.rows)


def _effects(
    recording: Recording, groups: Sequence[Group], ratio: float, jobs: int | None, progress: bool | None
) -> Explored:
    base = _base(recording, ratio)
    n_groups = len(groups)
    most = (_MOST_QUEUED if recording.links else _MOST_SIMULATED) // max(1, 2 * base.n_operations)
    groups = _with_most_work(base, groups, max(_LEAST_GROUPS, most))
    effects: list[Effect] = []
    found: Iterator[Effect]
    alone = jobs == 1 or len(groups) * 2 * base.n_operations < _FORK_FROM
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


def _with_most_work(base: _Base, groups: Sequence[Group], most: int) -> Sequence[Group]:
    """Return which groups have most work in the replayed steps, in order: no effect is larger than that."""
    if len(groups) <= most:
        return groups
    recording = base.before.recording
    n = len(recording.operations)
    steps = map(recording.steps.__getitem__, base.before.rows)
    work = sum((np.bincount(step.operation, step.work_ns, n) for step in steps), np.zeros(n))
    of_group = [np.inf if group.tails else work[group.members].sum() for group in groups]
    return [groups[at] for at in np.sort(np.argsort(of_group)[-most:]).tolist()]


_shared: list[_Base] = []  # what this process compares with; filled in the workers of a pool only


def _start(base: _Base) -> None:
    _shared[:] = [base]


def _effect_of(group: Group) -> Effect:
    return _effect(_shared[0], group)


def _base(recording: Recording, ratio: float) -> _Base:
    rows = recording.whole_steps
    before = simulated(with_usual_gaps(recording), rows)
    mean = float(before.iteration_ns.mean())
    return _Base(
        before=before,
        before_ns=mean,
        untraced=frozenset(one.owner for one in recording.table.kinds if one.role is Role.UNTRACED),
        ratio=ratio,
        tail_ratio=1 + forward_share(recording) * (ratio - 1),
        scale=replayed_ns(recording, rows).mean() / max(mean, 1),
    )


def _effect(base: _Base, group: Group) -> Effect:
    recording, rows = base.before.recording, base.before.rows
    changed = np.zeros(len(recording.operations), np.bool_)
    changed[group.members] = True
    tails = np.isin(np.arange(len(recording.owners)), list(group.tails & base.untraced))
    added = 0

    def edited() -> Iterator[StepGraph]:
        nonlocal added
        for step in map(recording.steps.__getitem__, rows):
            ratio = np.where(changed[step.operation], base.ratio, 1.0)
            work = np.rint(step.work_ns * ratio).astype(np.int64)
            tail = np.rint(step.tail_ns * np.where(tails, base.tail_ratio, 1.0)).astype(np.int64)
            added += int((work - step.work_ns).sum() + (tail - step.tail_ns).sum())
            yield replace(step, work_ns=work, tail_ns=tail)

    runs = base.before.runs
    after = runs.iteration_ns(runs.simulate(edited()))
    effect = float(after.mean()) - base.before_ns
    return Effect(group, added / len(rows), effect * base.scale)
