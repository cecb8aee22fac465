"""Single operations that make up much of the critical path."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dag.step_graph import Bool
from diagnose.detectors.device import NO_COMPUTATION, computes
from diagnose.evidence import longest_events
from diagnose.finding import Finding, Place, Scope, Skipped, edit
from diagnose.finding_thresholds import FASTER, HOT, NEARLY_ALL
from diagnose.job_view import JobView, names_of
from dialects.roles import Role
from function_names import brief
from result import in_ms, in_percent

#: Roles of what a job computes, unlike calls that only hand work to a device.
_OF_THE_JOB = (Role.COMPUTE, Role.HOST, Role.UPDATE)
#: If a phase has no more operations and one takes nearly all of its time, this one is the whole phase.
_FEW = 3


def hot_operation(view: JobView) -> Iterator[Finding | Skipped]:
    """Find the operation that makes up much of the critical path.

    Neither an annotation, whose own time is something else's, nor a call of the runtime is one.
    """
    names, kind = view.kind_of
    works = view.which(
        lambda operation: computes(operation) and not operation.is_span and operation.role in _OF_THE_JOB
    )
    if not works.any():
        yield Skipped("hot_operation", NO_COMPUTATION)
        return
    by_name = view.by_name(np.where(view.of_kinds(works), view.path.work_ns, 0.0))
    hottest = int(by_name.argmax())
    share = by_name[hottest] / max(float(view.iteration_ns.mean()), 1.0)
    if share <= HOT:
        return
    chosen = works & (kind == hottest)
    if _is_whole_phase(view, chosen):
        yield Skipped("hot_operation", "forward and backward passes are recorded as one operation each")
        return
    yield Finding(
        kind="hot_operation",
        title=f"{brief(names[hottest])} makes up {in_percent(share)} of the critical path",
        cause=f"it takes {in_ms(by_name[hottest])} there",
        action="make this one faster first: another algorithm or precision, a fused or tuned kernel, "
        "fewer calls",
        edits=[edit(names[hottest], 1 - FASTER)],
        scope=Scope(operations=[names[hottest]]),
        evidence=longest_events(view, chosen, 3),
        caveat=f"the gain assumes that it takes {in_percent(FASTER)} less",
        place=Place.LAST,
    )


def _is_whole_phase(view: JobView, chosen: Bool) -> bool:
    purposes = {operation.purpose for operation in view.recording.chosen_kinds(chosen)} - {""}
    of_phase = view.which(lambda operation: operation.purpose in purposes)
    if not purposes or len(names_of(view, of_phase)) > _FEW:
        return False
    return bool(view.owner_work_ns(chosen).sum() > NEARLY_ALL * view.owner_work_ns(of_phase).sum())
