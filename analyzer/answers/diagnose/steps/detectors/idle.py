"""Time on the critical path in which no operation ran, and how it passed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from analyzer.answers.diagnose.finding import (
    HALF,
    LAUNCH_NS,
    NOTICEABLE,
    Finding,
    FindingScope,
    ListPlace,
    Skipped,
)
from analyzer.answers.diagnose.steps.detectors.device import NO_COMPUTATION, computes
from analyzer.answers.diagnose.steps.detectors.one_off import losses_of, path_length_ns
from analyzer.answers.diagnose.steps.job_view import JobView, is_python_gap
from analyzer.base.arrays import Mask
from analyzer.base.names import brief, named
from analyzer.base.units import in_ms, in_percent
from analyzer.reading.dialects.roles import Role
from analyzer.reading.dialects.step_parts import Operation
from dag_utils import critical_path


class _Share(NamedTuple):
    """Idle time of one kind, and the advice on it; `has_name`: it lies inside something recorded."""

    ns: float
    title: str
    action: str
    has_name: bool = False


def idle(view: JobView) -> Iterator[Finding | Skipped]:
    """Find time on the critical path in which nothing was recorded, and what kind of time most of it is."""
    if not view.which(computes).any():
        yield Skipped("idle", NO_COMPUTATION)
        return
    is_frame = _frames(view)
    frames_ns = float(view.path.work_ns[is_frame].sum())
    idle_ns = float(view.path.gap_ns.sum()) + frames_ns
    path_ns = path_length_ns(view)
    if idle_ns < NOTICEABLE * path_ns:
        return
    shares = _shares(view, is_frame, idle_ns, path_ns)
    most = next(share for share in shares if share.ns > HALF * idle_ns)
    covered_ns = sum(share.ns for share in shares if share.has_name)
    beside, where = _beside_gaps(view, is_frame)
    yield Finding(
        kind="idle",
        title=most.title,
        cause=f"{in_ms(most.ns)} of {in_ms(path_ns)}, mostly {where}",
        action=most.action,
        scope=FindingScope(operations=beside),
        caveat="a damaged file may have lost what ran then" if (is_damaged := bool(losses_of(view))) else "",
        look=("critical", "--full"),
        weight=0.0 if is_damaged else idle_ns / path_ns,
        place=ListPlace.FIRST
        if most.has_name and covered_ns > HALF * path_ns and not is_damaged
        else ListPlace.BY_GAIN,
    )


def _shares(view: JobView, is_frame: Mask, idle_ns: float, path_ns: float) -> list[_Share]:
    """Split idle time of a path by kind; the last is all of it."""
    waits, spans = _covers_ns(view, is_frame)
    pauses_ns = _pauses_ns(view)
    call, call_share = _largest(waits, path_ns)
    span, span_share = _largest(spans, path_ns)
    return [
        _Share(
            sum(waits.values()),
            f"the host waits {call_share} of the step in {call} for work not in this trace",
            "find what the device, or another process on it, does there: record it from its start on",
            has_name=True,
        ),
        _Share(
            sum(spans.values()),
            f"{span_share} of the step is inside {span}, but in no recorded operation",
            f"make {span} faster, or do it ahead: in other processes, while the device works"
            if view.has_device
            else "record what runs there: Python stacks (with_stack=True), all threads",
            has_name=True,
        ),
        _Share(
            pauses_ns,
            f"{in_percent(pauses_ns / path_ns)} of the step is between kernels",
            "run fewer and larger kernels: compiled or fused operations, a fused optimizer",
        ),
        _Share(
            idle_ns,
            f"no event was recorded during {in_percent(idle_ns / path_ns)} of the step",
            "record Python stacks, or annotations around your own code",
        ),
    ]


def _largest(covers: Mapping[str, float], path_ns: float) -> tuple[str, str]:
    """Return the name that covers most, and its share of the path."""
    name = max(covers, key=lambda name: covers[name], default="")
    return brief(name), in_percent(covers.get(name, 0.0) / path_ns)


def _beside_gaps(view: JobView, is_frame: Mask) -> tuple[list[str], str]:
    """Return the operations before or in which most of the path is idle, and where that is, in words."""
    before = view.by_name(view.path.gap_ns[:-1])
    within = view.by_name(np.where(is_frame, view.path.work_ns, 0.0))
    word, by_name = ("in", within) if within.sum() > before.sum() else ("before", before)
    names = view.longest(by_name)
    if view.path.gap_ns[-1] > max(before.max(initial=0.0), within.max(initial=0.0)):
        return names, "before the first operation or after the last"
    return names, f"{word} {named(names)}"


def _frames(view: JobView) -> Mask:
    """Mark the kinds of operations (k,) that only surround others; in annotations a device's host works."""

    def surrounds(operation: Operation) -> bool:
        return operation.role is Role.FRAME or (operation.is_span and not view.has_device)

    return np.array(list(map(surrounds, view.recording.operations.kinds)), np.bool_)


def _covers_ns(view: JobView, is_frame: Mask) -> tuple[dict[str, float], dict[str, float]]:
    """Return the names of what covers idle time of the path: calls that wait, and spans; means over steps."""
    waits: dict[str, float] = {}
    spans: dict[str, float] = {}
    is_span = np.array([kind.is_span for kind in view.recording.operations.kinds], np.bool_) & is_frame
    within = view.by_name(np.where(is_span, view.path.work_ns, 0.0))
    for name in np.flatnonzero(within).tolist():
        spans[view.kind_of[0][name]] = float(within[name])
    for row in view.path.rows:
        step = view.recording.steps[row]
        path = critical_path(step)
        is_python = is_python_gap(view, step, path)
        for stretch, (name, only_waits) in path.gap_covers(
            view.recording.frames, view.recording.recorded_step(step)
        ).items():
            if not is_python[stretch]:
                covers = waits if only_waits else spans
                lasts_ns = float(path.end_ns[stretch] - path.start_ns[stretch])
                covers[name] = covers.get(name, 0.0) + lasts_ns / len(view.path.rows)
    return waits, spans


def _pauses_ns(view: JobView) -> float:
    """Return the time of a path between works of a device, the mean over steps.

    Those are gaps so short that the device just goes on from one to the next.
    """
    on_device = view.which(lambda operation: operation.on_device)
    total_ns = 0
    for row in view.path.rows:
        step = view.recording.steps[row]
        path = critical_path(step)
        of_device = (path.event >= 0) & on_device[np.append(step.operation, 0)[path.event]]
        lasts = path.end_ns - path.start_ns
        pauses = of_device & np.append(False, of_device[:-1])[: len(lasts)]
        pauses &= path.is_gap & (lasts < LAUNCH_NS)
        total_ns += int(lasts[pauses].sum())
    return total_ns / len(view.path.rows)
