"""Which operation matters: each delayed in turn, or each group made faster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dag.step_graph import Bool, Recording
from dialects.step_parts import Operation
from formats.columns import Int64
from parallel import cores, process_pool
from progress import bar
from replay.engine import simulate
from replay.occurrences import with_usual_gaps
from replay.simulation import Replay
from replay.simulation import replay as run_steps
from replay.whatif.edits import forward_share

#: Operations to simulate in all from which the compiled loop pays for its start.
_COMPILE_FROM = 2_000_000
#: … and from which further processes pay for theirs.
_FORK_FROM = 20_000_000


@dataclass(frozen=True, slots=True)
class Group:
    """Operations that are changed together."""

    kind: str  # operation, category, rank or link
    name: str
    cat: str
    members: Bool  # (operations,)
    tails: frozenset[int] = frozenset()  # owners whose untraced forward pass belongs to it


@dataclass(frozen=True, slots=True)
class Effect:
    """What a change of a group costs: `added_ns` of work per step, `effect_ns` of the iteration time."""

    group: Group
    added_ns: float
    effect_ns: float


def delay_each(
    recording: Recording, ratio: float, *, parts: bool, jobs: int | None = None, progress: bool | None = None
) -> list[Effect]:
    """Return what it costs when each operation in turn takes `ratio` times as long, dearest first."""
    return _effects(recording, operations(recording, parts=parts), ratio, jobs, progress)


def speed_up_each(
    recording: Recording, ratio: float, *, parts: bool, jobs: int | None = None, progress: bool | None = None
) -> list[Effect]:
    """Return what it brings when each operation, category, rank and link takes `ratio` of its time."""
    groups = [
        *operations(recording, parts=parts),
        *categories(recording),
        *ranks(recording),
        *links(recording),
    ]
    return _effects(recording, groups, ratio, jobs, progress)


def operations(recording: Recording, *, parts: bool) -> list[Group]:
    """Return each operation of each owner; a communication as a whole unless `parts`."""
    several = len(recording.owners) > 1

    def name(operation: Operation) -> str:
        owner = f"{recording.owners[operation.owner]}." if several else ""
        return owner + (operation.label if parts else operation.main)

    return _grouped(recording, "operation", name)


def categories(recording: Recording) -> list[Group]:
    """Return the operations of each category, and of each stage of communication."""
    stages = _grouped(recording, "category", lambda operation: operation.stage)
    return _grouped(recording, "category", lambda operation: operation.phase or operation.cat) + stages


def ranks(recording: Recording) -> list[Group]:
    """Return the computation of each owner; nothing for a single one."""
    owners = recording.owners
    if len(owners) < 2:
        return []
    return _grouped(
        recording, "rank", lambda operation: owners[operation.owner] if operation.is_compute else ""
    )


def links(recording: Recording) -> list[Group]:
    """Return the transfers of each link."""
    return _grouped(recording, "link", lambda operation: operation.link)


def _grouped(recording: Recording, kind: str, name_of: Callable[[Operation], str]) -> list[Group]:
    names = [name_of(operation) for operation in recording.operations]
    first: dict[str, Operation] = {}
    for name, operation in zip(names, recording.operations, strict=True):
        if name:
            first.setdefault(name, operation)
    table = np.array(names)
    untraced = {one.owner for one in recording.operations if not one.is_traced}
    return [
        Group(
            kind,
            name,
            "" if kind == "rank" else operation.phase or operation.cat,
            table == name,
            frozenset(untraced & _whose_forward(kind, name, operation, untraced)),
        )
        for name, operation in first.items()
    ]


def _whose_forward(kind: str, name: str, operation: Operation, everyone: set[int]) -> set[int]:
    """Return the owners whose forward pass a group stands for."""
    if kind == "category" and name == "FW":
        return everyone
    return {operation.owner} if kind == "rank" else set()


# ---- the simulations


@dataclass(frozen=True, slots=True)
class _Base:
    """The replay that each change is compared with; what a process needs."""

    result: Replay
    operation: Int64  # (ops of the plan,) the operation whose body it is, -1 for none
    tail_of: Int64  # (ops of the plan,) the owner whose untraced forward pass is in it, -1 for none
    ratio: float
    tail_ratio: float  # `ratio` for the forward pass's share of the time between steps
    compiled: bool
    scale: float  # the recorded time over the replayed one: gaps are replayed as they usually are


def _effects(
    recording: Recording, groups: Sequence[Group], ratio: float, jobs: int | None, progress: bool | None
) -> list[Effect]:
    base = _base(recording, ratio, len(groups))
    effects: list[Effect] = []
    work = len(groups) * len(base.result.plan)
    with bar(len(groups), "operations", what="replay", enabled=progress) as shown:
        if work < _FORK_FROM or jobs == 1:
            for group in groups:
                effects.append(_effect(base, group))
                shown.update(1)
        else:
            with process_pool(jobs or cores(), _start, (base,)) as pool:
                for effect in pool.map(_effect_of, groups, chunksize=8):
                    effects.append(effect)
                    shown.update(1)
    return sorted(effects, key=lambda effect: -abs(effect.effect_ns))


_shared: list[_Base] = []  # what this process compares with; filled in the workers of a pool only


def _start(base: _Base) -> None:
    _shared[:] = [base]


def _effect_of(group: Group) -> Effect:
    return _effect(_shared[0], group)


def _base(recording: Recording, ratio: float, n_groups: int) -> _Base:
    rows = recording.whole_steps
    result = run_steps(with_usual_gaps(recording), rows)
    operation = np.full(len(result.plan), -1)
    tail_of = np.full(len(result.plan), -1)
    untraced = {one.owner for one in recording.operations if not one.is_traced}
    for position, row in enumerate(rows):
        step = recording.steps[row]
        bodies = result.first_op[position] + 2 * np.arange(len(step)) + 1
        operation[bodies] = step.operation
        for owner in untraced:
            tail_of[result.end_op[position, owner]] = owner
    return _Base(
        result=result,
        operation=operation,
        tail_of=tail_of,
        ratio=ratio,
        tail_ratio=1 + forward_share(recording) * (ratio - 1),
        compiled=n_groups * len(result.plan) >= _COMPILE_FROM,
        scale=run_steps(recording, rows).iteration_ns.mean() / max(result.iteration_ns.mean(), 1),
    )


def _effect(base: _Base, group: Group) -> Effect:
    recording = base.result.recording
    mine = (base.operation >= 0) & group.members[base.operation]
    plan = base.result.plan
    ratio = np.where(mine, base.ratio, 1.0)
    ratio[np.isin(base.tail_of, list(group.tails))] = base.tail_ratio
    dur = np.rint(plan.dur_ns * ratio).astype(np.int64)
    changed = replace(plan, dur_ns=dur)
    after = replace(base.result, plan=changed, schedule=simulate(changed, compiled=base.compiled))
    steps = len(base.result.rows)
    owners = len(recording.owners)
    added = float((dur - plan.dur_ns).sum()) / steps
    effect = float((after.iteration_ns - base.result.iteration_ns).sum()) / steps / owners
    return Effect(group, added, effect * base.scale)
