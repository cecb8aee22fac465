"""Which operation matters: those on the critical path delayed in turn, or made faster."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from arrays import Float64, Int64
from dag.step_graph import Recording, StepGraph
from dag_utils import critical_path
from dialects.roles import Phase, Role
from dialects.step_parts import Operation
from parallel.progress import bar
from replay.occurrences import with_usual_gaps
from replay.runs import Simulation, replayed_ns, simulated
from replay.whatif.scaling import forward_share

#: Of each kind (operations, categories, ranks, links) so many are simulated.
_MOST_TRIED = 20


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
    recording: Recording, ratio: float, *, parts: bool, groups: bool = False, progress: bool | None = None
) -> list[Effect]:
    """Return how the step changes if one operation takes `ratio` times as long, the largest effect first.

    Tried are those with the most time on the critical paths, then those with the most work. A communication
    is one operation unless `parts`. With `groups` also if each category does, or stage of communication,
    each rank, which stands for its computation, and each link.
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
    base = _base(recording, ratio)
    rank = _importance(base)
    tried: list[Effect] = []
    for kind in dict.fromkeys(kind for kind, _ in named):
        names = [name_of for of_kind, name_of in named if of_kind == kind]
        groups_of_kind = [group for name_of in names for group in _grouped(recording, kind, name_of)]
        groups_of_kind.sort(key=lambda group: -np.inf if group.tails else -rank[group.members].sum())
        tried += groups_of_kind[:_MOST_TRIED]
    effects = []
    with bar(len(tried), "operations", what="replaying", enabled=progress) as shown:
        for group in tried:
            effects.append(_effect(base, group))
            shown.update(1)
    return sorted(effects, key=lambda effect: -abs(effect.effect_ns))


def _importance(base: _Base) -> Float64:
    """Return the time of each operation (n,) on the critical path; of others less than 1, by their work."""
    recording = base.before.recording
    n = len(recording.operations)
    on_path, work = np.zeros((2, n))
    for step in map(base.before.step, range(len(base.before.rows))):
        path = critical_path(step)
        is_work = (path.operation >= 0) & (path.cat == 0)
        on_path += np.bincount(path.operation[is_work], (path.end_ns - path.start_ns)[is_work], n)
        work += np.bincount(step.operation, step.work_ns, n)
    return np.asarray(on_path + work / max(work.sum(), 1.0))


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
    """The replay that each change is compared with."""

    before: Simulation
    before_ns: float  # the mean step
    untraced: frozenset[int]  # owners whose forward pass is in the time between two steps
    ratio: float
    tail_ratio: float  # `ratio` for the forward pass's share of the time between steps
    scale: float  # the recorded time over the replayed one: gaps are replayed as they usually are


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
