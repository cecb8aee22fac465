"""Which operation matters: each delayed in turn, or each group made faster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial

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


class Effect(Struct, frozen=True):
    """The cost of a change of some operations: `added_ns` of work per step, `effect_ns` of its time."""

    kind: str  # operation, category, rank or link
    name: str
    cat: str
    members: Int64  # numbers of operations
    tails: frozenset[int] = frozenset()  # owners whose untraced forward pass belongs to it
    added_ns: float = 0.0
    effect_ns: float = 0.0


def changed_in_turn(
    recording: Recording,
    ratio: float,
    *,
    parts: bool,
    groups: bool = False,
    jobs: int | None = None,
    progress: bool | None = None,
) -> tuple[list[Effect], int]:
    """Return how the step changes if one operation takes `ratio` times as long, the largest effect first.

    A communication is one operation unless `parts`. With `groups` also if each category does, or stage of
    communication, each rank, which stands for its computation, and each link. Also returned is how many
    were left out, with less work than any that was tried.
    """
    owners = recording.owners
    prefix = [f"{owner}." if len(owners) > 1 else "" for owner in owners]
    named: list[tuple[str, Callable[[Operation], str]]] = [
        ("operation", lambda one: prefix[one.owner] + (one.label if parts else one.main))
    ]
    if groups:
        named += [
            ("category", lambda one: one.purpose or one.cat),
            ("category", lambda one: one.transfer.stage),
            ("rank", lambda one: owners[one.owner] if one.is_compute and len(owners) > 1 else ""),
            ("link", lambda one: one.transfer.link),
        ]
    members = [group for kind, name_of in named for group in _grouped(recording, kind, name_of)]
    return _effects(recording, members, ratio, jobs, progress)


def _grouped(recording: Recording, kind: str, name_of: Callable[[Operation], str]) -> list[Effect]:
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
        groups.append(Effect(kind, name, cat, np.array(numbers), frozenset(tails)))
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
    recording: Recording, groups: Sequence[Effect], ratio: float, jobs: int | None, progress: bool | None
) -> tuple[list[Effect], int]:
    base = _base(recording, ratio)
    n_groups = len(groups)
    most = (_MOST_QUEUED if recording.links else _MOST_SIMULATED) // max(1, 2 * base.n_operations)
    groups = _with_most_work(base, groups, max(_LEAST_GROUPS, most))
    effects: list[Effect] = []
    found: Iterator[Effect]
    alone = jobs == 1 or len(groups) * 2 * base.n_operations < _FORK_FROM
    with ExitStack() as opened:
        shown = opened.enter_context(bar(len(groups), "operations", what="replaying", enabled=progress))
        if alone:
            found = map(partial(_effect, base), groups)
        else:
            pool = opened.enter_context(process_pool(jobs or cores(), _start, (base,)))
            found = pool.map(_effect_of, groups, chunksize=8)
        for effect in found:
            effects.append(effect)
            shown.update(1)
    effects.sort(key=lambda effect: -abs(effect.effect_ns))
    return effects, n_groups - len(groups)


def _with_most_work(base: _Base, groups: Sequence[Effect], most: int) -> Sequence[Effect]:
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


def _effect_of(group: Effect) -> Effect:
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


def _effect(base: _Base, group: Effect) -> Effect:
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
    return replace(group, added_ns=added / len(rows), effect_ns=effect * base.scale)
