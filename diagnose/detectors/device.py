"""Causes of an idle device: a host that launches too slowly or waits for it, allocations, and copies."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import numpy as np

from arrays.intervals import union_length
from arrays.numbering import unique
from dag.step_graph import Bool, StepGraph
from diagnose.finding import Finding, Skipped, edit
from diagnose.finding_thresholds import EXPOSED, HALF, LIMIT, NOTICEABLE
from diagnose.job_view import JobView
from dialects.roles import Role
from dialects.step_parts import Operation
from function_names import brief, named
from replay.whatif.host import allocates, is_allocation, is_sync, prepares
from replay.whatif.scaling import GONE
from replay.whatif.sized_collectives import events_by_owner
from units import in_ms, in_percent

_LAUNCH = re.compile(r"(?i)launch_?\w*kernel")
_BETWEEN = re.compile(r"\b(?:HtoD|DtoH)\b|Host ?To ?Device|Device ?To ?Host", re.IGNORECASE)
NO_DEVICE = "no work of a device is recorded"
NO_COMPUTATION = "no computation is recorded; the time before a transfer stands for it"


def long_operation(view: JobView, least: float = LIMIT) -> Iterator[Finding]:
    """Find one operation of the host for which alone the device waits, for `least` of its idle time."""
    launching = view.which(prepares)
    on_path = view.path_work_ns(launching)
    largest, is_largest = view.largest(launching & view.which(lambda one: one.role is not Role.CALL))
    alone = launching & is_largest
    alone_ns = view.path_work_ns(alone)
    is_long = _longest_ns(view.usual_step, alone) >= NOTICEABLE * view.step_ns
    if not _on_device(view).any() or not is_long or alone_ns < EXPOSED * view.step_ns:
        return
    if on_path >= HALF * view.step_ns and alone_ns <= HALF * on_path:
        return  # that is launching
    if alone_ns < least * (1 - _busy_share(view)) * view.step_ns:
        return
    yield Finding(
        kind="host_bound",
        title=f"the device waits for {brief(largest[0])}",
        cause=f"it takes {in_ms(alone_ns)} on the critical path",
        action="make this faster, or do it ahead: in another thread or process, while the device works",
        edits=[edit(largest[0], GONE)],
        operations=largest[:1],
        evidence=view.show(alone, 3),
    )


def host_bound(view: JobView) -> Iterator[Finding | Skipped]:
    """Find steps whose length the host decides, because it launches more slowly than the device works."""
    if not _on_device(view).any():
        yield Skipped("host_bound", NO_DEVICE)
        return
    if found := list(long_operation(view, least=0.0)):
        yield from found
        return
    launching = view.which(prepares)
    on_path = view.path_work_ns(launching)
    if on_path < HALF * view.left_ns or _longest_ns(view.usual_step, launching) > HALF * on_path:
        return  # one long call is not launching
    largest, is_largest = view.largest(launching)
    kernels, usual_ns = _kernels(view)
    busy = _busy_share(view)
    yield Finding(
        kind="host_bound",
        title="the CPU launches kernels too slowly (host-bound)",
        cause=f"{in_percent(on_path / view.left_ns)} of the critical path is CPU time, most of it in "
        f"{named(largest)}; the device is busy {in_percent(busy)} of the step, with {kernels:,.0f} kernels "
        f"of {usual_ns / 1e3:.0f} µs",
        action="launch less and larger: CUDA graphs, compiled or fused operations, a larger batch",
        edits=[edit("host", "none")],
        operations=largest,
        evidence=view.show(launching & is_largest, 3),
        caveat="upper bound: assumes a host that takes no time",
        look=("critical", "--head", "10"),
    )


def host_sync(view: JobView) -> Iterator[Finding | Skipped]:
    """Find host calls that wait for the device, after which the device waits for the host."""
    if not _on_device(view).any():
        yield Skipped("host_sync", NO_DEVICE)
        return
    waits = {name: wait for name, wait in _sync_waits(view).items() if not is_allocation(name)}
    total = sum(waits.values())
    if total < NOTICEABLE * view.step_ns:
        return
    largest = sorted(waits, key=lambda name: -waits[name])[:3]
    chosen = view.which(lambda one: not one.on_device and one.name in largest)
    blocks = is_launch(largest[0])
    yield Finding(
        kind="host_sync",
        title="launches block until their kernels are done"
        if blocks
        else "CPU–GPU synchronisation stalls both",
        cause=f"{in_ms(total)} in {named(largest)}"
        + f"; the device is busy {in_percent(_busy_share(view))} of the step",
        action="unset CUDA_LAUNCH_BLOCKING, HIP_LAUNCH_BLOCKING or AMD_SERIALIZE_KERNEL"
        if blocks
        else "keep values on the device: no .item(), .cpu() or print in the loop, pinned memory and "
        "non-blocking copies",
        edits=[edit("sync", "none")],
        operations=largest,
        evidence=view.show(chosen, 3),
        caveat="this assumes that the host needs none of the results at once",
    )


def allocations(view: JobView) -> Iterator[Finding]:
    """Find calls of the driver that allocate and free memory of the device in every step."""
    calls = view.which(allocates)
    if not calls.any() or not view.recording.has_steps:  # without a loop they may all be start-up
        return
    n_calls, took_ns = [], []
    for step in view.steps:
        events = np.flatnonzero(calls[step.operation])
        n_calls.append(len(events))
        took_ns.append(int((step.end_ns - step.start_ns)[events].sum()))
    n_owners = len(view.recording.owners)
    names = sorted({one.name for one in view.recording.chosen_kinds(calls)})
    number = view.recording.numbered(lambda one: one.name)[1]
    once_ns = sum(view.start_up_ns(calls & (number == one)) for one in unique(number[calls]).tolist())
    usual_ns = (float(np.sum(took_ns)) - once_ns) / len(took_ns) / n_owners
    if usual_ns < NOTICEABLE * view.step_ns:
        return
    yield Finding(
        kind="memory",
        title="memory of the device is allocated in the loop",
        cause=f"{in_ms(usual_ns)} in {named(names)}, "
        f"{np.median(n_calls) / n_owners:,.0f} calls: "
        "while one runs nothing is launched, and one that frees waits until the device is idle",
        action="let PyTorch keep the memory that it has: no empty_cache() in the loop, "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True against fragmentation, or less memory in use "
        "(a smaller batch, checkpointing)",
        edits=[edit("allocations", "none")],
        operations=names,
        evidence=view.show(calls, 3),
    )


def copies(view: JobView) -> Iterator[Finding | Skipped]:
    """Find copies between host and device on the critical path."""
    if not _on_device(view).any():
        yield Skipped("copies", NO_DEVICE)
        return
    copying = view.which(lambda one: one.role is Role.COPY and _BETWEEN.search(one.name))
    on_path = view.path_work_ns(copying)
    if on_path < NOTICEABLE * view.step_ns:
        return
    names = sorted({one.name for one in view.recording.chosen_kinds(copying)})
    yield Finding(
        kind="copies",
        title="copies between host and device are not overlapped",
        cause=f"{in_ms(on_path)} of {named(names)} on the critical path",
        action="copy from pinned memory, ahead of time and on a stream of its own; send smaller types",
        edits=[edit(name, GONE) for name in names],
        operations=names,
        evidence=view.show(copying, 3),
    )


def idle(view: JobView) -> Iterator[Finding | Skipped]:
    """Find time on the critical path in which nothing was recorded, and what kind of time most of it is."""
    if not view.which(computes).any():
        yield Skipped("idle", NO_COMPUTATION)
        return
    idle_ns, share = view.path_idle_ns()
    if share < NOTICEABLE:
        return
    covers = view.path_covers_ns
    waits, spans = (
        {name: ns for (name, only_waits), ns in covers.items() if only_waits is kind}
        for kind in (True, False)
    )
    path_ns = idle_ns / share
    called, called_share = _largest(waits, path_ns)
    span, span_share = _largest(spans, path_ns)
    kinds = (  # time, title and what to do
        (sum(waits.values()),
         f"the host waits {called_share} of the step in {called} for work not in this trace",
         "find what the device, or another process on it, does there: record it from its start on"),
        (sum(spans.values()), f"{span_share} of the step is inside {span}, but in no recorded operation",
         f"make {span} faster, or do it ahead: in other processes, while the device works"
         if view.has_device else "record what runs there: Python stacks (with_stack=True), all threads"),
        (view.path_pauses_ns, f"{in_percent(view.path_pauses_ns / path_ns)} of the step is between kernels",
         "run fewer and larger kernels: compiled or fused operations, a fused optimizer"),
        (idle_ns, f"no event was recorded during {in_percent(share)} of the step",
         "record Python stacks, or annotations around your own code"),
    )  # fmt: skip
    rank = next(row for row, (ns, _, _) in enumerate(kinds) if ns > HALF * idle_ns)
    ns, title, action = kinds[rank]
    before, where = _beside_gaps(view)
    yield Finding(
        kind="idle",
        title=title,
        cause=f"{in_ms(ns)} of {in_ms(path_ns)}, mostly {where}",
        action=action,
        operations=before,
        look=("critical", "--full"),
        weight=share,
        leads=rank < 2 and sum(covers.values()) > HALF * path_ns,
    )


def _largest(covers: Mapping[str, float], path_ns: float) -> tuple[str, str]:
    """Return the name that covers most, and its share of the path."""
    name = max(covers, key=lambda name: covers[name], default="")
    return brief(name), in_percent(covers.get(name, 0.0) / path_ns)


def _beside_gaps(view: JobView) -> tuple[list[str], str]:
    """Return the operations before or in which most of the path is idle, and where that is, in words."""
    by_kind = view.path_gaps_by_kind
    before = view.by_name(by_kind[:-1])
    within = view.by_name(np.where(view.is_frame, view.path_work_by_kind, 0.0))
    word, by_name = ("in", within) if within.sum() > before.sum() else ("before", before)
    names = view.longest(by_name)
    outside = by_kind[-1] > max(before.max(initial=0.0), within.max(initial=0.0))
    return names, "before the first operation or after the last" if outside else f"{word} {named(names)}"


# ---- signals


def _on_device(view: JobView) -> Bool:
    return view.which(lambda one: one.on_device)


def is_launch(name: str) -> bool:
    """Whether a call of that name launches a kernel."""
    return bool(_LAUNCH.search(name))


def computes(one: Operation) -> bool:
    """Whether an operation is recorded computation, not the time that stands for some."""
    return one.is_compute and one.role not in (Role.UNTRACED, Role.WAIT)


def _longest_ns(step: StepGraph, chosen: Bool) -> int:
    """Return the work of the longest event of the `chosen` operations (n,) in a step."""
    return int(step.work_ns[chosen[step.operation]].max(initial=0))


def _kernels(view: JobView) -> tuple[float, float]:
    """Return how many kernels an owner runs in a step, and their median duration (ns)."""
    kernel = view.which(lambda one: one.is_kernel)
    works = [step.work_ns[kernel[step.operation]] for step in view.steps]
    per_step = float(np.median([len(work) for work in works])) / len(view.recording.owners)
    return per_step, float(np.median(np.concatenate(works))) if per_step else 0.0


def _busy_share(view: JobView) -> float:
    """Return in how much of a step a device works: the union of what runs in it, the median over steps."""
    device = _on_device(view)
    shares = []
    for step in view.steps:
        for owner, mine in enumerate(events_by_owner(view.recording, step, device)):
            begin, end = int(step.begin_ns[owner]), int(step.next_ns[owner])
            end = end if end > begin else int(step.end_ns[mine].max(initial=begin))
            busy = union_length(*(np.clip(at, begin, end) for at in (step.start_ns[mine], step.end_ns[mine])))
            shares.append(busy / max(end - begin, 1))
    return float(np.median(shares))


def _sync_waits(view: JobView) -> dict[str, float]:
    """Return the time that calls wait for a device in a step (ns), by name: the mean over owners."""
    recording, device = view.recording, _on_device(view)
    total: dict[str, float] = {}
    for step in view.steps:
        targets = np.unique(step.edges[is_sync(step.edges, device[step.operation]), 1])
        waits = (step.end_ns - step.start_ns - step.work_ns)[targets]
        for event, wait in zip(targets.tolist(), waits.tolist(), strict=True):
            name = recording.operations[int(step.operation[event])].name
            total[name] = total.get(name, 0.0) + wait
    parts = len(view.rows) * len(recording.owners)
    return {name: wait / parts for name, wait in total.items() if wait}
