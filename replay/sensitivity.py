"""Sensitivity to operations: delay or speed up those on the critical path in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from analyzer.base.arrays import Float64
from analyzer.base.parallel import progress_bar
from analyzer.model.graph.step_graph import Recording
from analyzer.reading.dialects.roles import Phase, Role
from analyzer.reading.dialects.step_parts import Operation
from dag_utils import critical_path
from replay.runs import Simulation, replayed_ns, simulated
from replay.selection import Selection
from replay.usual_times import with_usual_gaps
from replay.whatif.scaling import changed

#: Number of operations, categories, ranks and links each that are simulated.
_MOST_TRIED = 20


class Effect(Struct, frozen=True):
    """Effect of changing a group of operations."""

    kind: str  # operation, category, rank or link
    name: str
    cat: str
    chosen: Selection
    added_ns: float = 0.0  # work per step
    effect_ns: float = 0.0  # step time


def changed_in_turn(
    recording: Recording, ratio: float, *, parts: bool, groups: bool = False, progress: bool | None = None
) -> list[Effect]:
    """Simulate each operation `ratio` times as long; sort by effect, largest first.

    Operations with the most time on the critical paths are tried, then those with the most work. A
    communication is one operation unless `parts`. `groups` adds each category or stage of communication, the
    computation of each rank, and each link.
    """
    rows, owners = recording.whole_steps, recording.owners
    before = simulated(with_usual_gaps(recording), rows)
    prefix = [f"{owner}." if len(owners) > 1 else "" for owner in owners]
    names_of: dict[str, Sequence[Callable[[Operation], str]]] = {
        "operation": [lambda op: prefix[op.owner] + (op.label if parts else op.main)]
    }
    if groups:
        names_of |= {
            "category": [lambda op: op.purpose or op.cat, lambda op: op.transfer.stage],
            "rank": [lambda op: owners[op.owner] if op.is_compute and len(owners) > 1 else ""],
            "link": [lambda op: op.transfer.link],
        }
    importance = _importance(before)

    def rank_of(group: Effect) -> float:
        return -np.inf if group.chosen.tails.any() else -float(importance[group.chosen.operations].sum())

    tried: list[Effect] = []
    for kind, naming in names_of.items():
        groups_of_kind = [group for name_of in naming for group in _grouped(recording, kind, name_of)]
        tried += sorted(groups_of_kind, key=rank_of)[:_MOST_TRIED]
    # with usual gaps, so that a recorded step may take longer
    longer = replayed_ns(recording, rows).mean() / max(before.iteration_ns.mean(), 1)
    effects = []
    with progress_bar(len(tried), "operations", what="replaying", enabled=progress) as advance:
        for group in tried:
            effects.append(_effect(before, group, ratio, longer))
            advance(1)
    return sorted(effects, key=lambda effect: -abs(effect.effect_ns))


def _importance(before: Simulation) -> Float64:
    """Time of each operation (n,) on the critical path; ties are broken by the share of all work."""
    n = len(before.recording.operations)
    on_path, work = np.zeros((2, n))
    for step in map(before.step, range(len(before.rows))):
        path = critical_path(step)
        is_work = (path.operation >= 0) & (path.cat == 0)
        on_path += np.bincount(path.operation[is_work], (path.end_ns - path.start_ns)[is_work], n)
        work += np.bincount(step.operation, step.work_ns, n)
    return np.asarray(on_path + work / max(work.sum(), 1.0))


def _grouped(recording: Recording, kind: str, name_of: Callable[[Operation], str]) -> list[Effect]:
    """Group operations by name; those without a name are in no group.

    A rank, and the forward pass, have the time between steps of ranks whose forward pass is untraced, too.
    """
    names, number = recording.numbered(name_of)
    untraced = np.zeros(len(recording.owners), np.bool_)
    untraced[[op.owner for op in recording.operations.kinds if op.role is Role.UNTRACED]] = True
    groups = []
    for name_number, name in enumerate(names):
        if not name:
            continue
        members = number == name_number
        first = recording.operations[int(members.argmax())]
        is_rank, is_forward = kind == "rank", (kind, name) == ("category", Phase.FORWARD.word)
        belongs = np.arange(len(untraced)) == first.owner if is_rank else np.full_like(untraced, is_forward)
        cat = "" if is_rank else first.purpose or first.cat
        groups.append(Effect(kind, name, cat, Selection(members, untraced & belongs)))
    return groups


def _effect(before: Simulation, group: Effect, ratio: float, longer: float) -> Effect:
    """Simulate steps with the operations of a group `ratio` times as long; real steps are `longer`."""
    recording, rows, runs = before.recording, before.rows, before.runs
    edited, added_ns = changed(recording, group.chosen, ratio), 0
    for row in rows:
        old, new = recording.steps[row], edited.steps[row]
        added_ns += int((new.work_ns - old.work_ns).sum() + (new.tail_ns - old.tail_ns).sum())
    after = runs.iteration_ns(runs.simulate(map(edited.steps.__getitem__, rows)))
    effect_ns = float((after.mean() - before.iteration_ns.mean()) * longer)
    return replace(group, added_ns=added_ns / len(rows), effect_ns=effect_ns)
