"""Causes of an idle device: a host that launches too slowly or waits for it, allocations, and copies."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

import dialects
from arrays import Int64
from arrays.intervals import union_length
from arrays.numbering import unique
from dag.step_graph import Bool, StepGraph
from diagnose.finding import Finding, Skipped, edit
from diagnose.finding_thresholds import EXPOSED, HALF, LAUNCH_NS, LIMIT, NEARLY_ALL, NOTICEABLE
from diagnose.job_view import JobView, what_runs
from dialects.roles import Role
from dialects.step_parts import Operation
from function_names import brief, named
from replay.whatif.host import allocates, is_allocation, is_sync, prepares
from replay.whatif.scaling import GONE
from replay.whatif.sized_collectives import events_by_owner
from result import in_ms, in_percent

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
        cause=f"it takes {in_ms(alone_ns)}{view.per_step} on the critical path",
        action="make this faster, or do it ahead: in another thread or process, while the device works",
        edits=[edit(largest[0], GONE)],
        from_ns=alone_ns,
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
    left = "" if view.is_recorded else " that other findings leave"
    yield Finding(
        kind="host_bound",
        title=f"{'launching is' if busy < NEARLY_ALL else 'the host and the device are both'} the limit",
        cause=f"{in_percent(on_path / view.left_ns)} of the critical path{left} is the host's; the device is "
        f"busy {in_percent(busy)} of the step, with {kernels:,.0f} kernels of "
        f"{usual_ns / 1e3:.0f} µs{', shorter than their launches' if usual_ns < LAUNCH_NS else ''}; "
        f"most of the host's time is in {named(largest)}",
        action="launch less and larger: CUDA graphs, compiled or fused operations, a larger batch",
        edits=[edit("host", "none")],
        from_ns=on_path,
        operations=largest,
        evidence=view.show(launching & is_largest, 3),
        caveat="an upper bound: as if the host took no time, so that the device is the limit"
        + _recording(view, launching),
        look=("critical", "--head", "10"),
    )


def _recording(view: JobView, launching: Bool) -> str:
    """Return as words how much of a step the recording of what launches may have taken; "" if unknown."""
    costs_us = dialects.named(view.loaded.files[0].dialect).recording_us
    events = int(launching[view.usual_step.operation].sum()) / len(view.recording.owners)
    low, high = (min(one * 1e3 * events, view.step_ns) for one in costs_us)
    if high < NOTICEABLE * view.step_ns:
        return ""
    return f"; about {in_ms(low, unit='')} to {in_ms(high)} of a step is the profiler's own time"


def host_sync(view: JobView) -> Iterator[Finding | Skipped]:
    """Find host calls that wait for the device, after which the device waits for the host."""
    if not _on_device(view).any():
        yield Skipped("host_sync", NO_DEVICE)
        return
    waits = {calls: wait for calls, wait in _sync_waits(view).items() if not is_allocation(calls[0])}
    total = sum(waits.values())
    if total < NOTICEABLE * view.step_ns:
        return
    ordered = sorted(waits, key=lambda calls: -waits[calls])
    largest = list(dict.fromkeys(name for name, _ in ordered))[:3]
    callers = list(dict.fromkeys(caller for _, caller in ordered if caller))[:3]
    chosen = view.which(lambda one: not one.on_device and one.name in largest)
    works = view.of_kinds(view.which(lambda one: prepares(one) and one.role is not Role.CALL))
    names, busy = view.kind_of[0], _busy_share(view)
    runs = dict(zip(names, view.by_name(np.where(works, view.path_work_by_kind, 0.0)).tolist(), strict=True))
    for (name, only_waits), ns in view.path_covers_ns.items():
        runs[name] = runs.get(name, 0.0) + (0.0 if only_waits else ns)
    then = sorted((one for one in runs if runs[one] > NOTICEABLE * view.step_ns), key=lambda one: -runs[one])
    is_told = bool(then) and runs[then[0]] > HALF * (1 - busy) * view.step_ns
    last = brief(then[0]) if is_told else "the host"
    yield Finding(
        kind="host_sync",
        title="launches block until their kernels are done"
        if is_launch(largest[0])
        else f"the host waits for the device, which then waits for {last}",
        cause=f"{in_ms(total)}{view.per_step} in {named(largest)}; "
        + (f"{named(callers)} called {'them' if len(largest) > 1 else 'it'}; " if callers else "")
        + "while it waits it launches nothing, so the device runs out of work after each of these calls"
        + (f", and waits for {named(then[:3])}" if then else "")
        + f"; it is busy {in_percent(busy)} of the step",
        action="unset CUDA_LAUNCH_BLOCKING, HIP_LAUNCH_BLOCKING or AMD_SERIALIZE_KERNEL"
        if is_launch(largest[0])
        else "keep values on the device: no .item(), .cpu() or print in the loop, pinned memory and "
        "non-blocking copies",
        edits=[edit("sync", "none")],
        from_ns=total,
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
        cause=f"{in_ms(usual_ns)}{view.per_step} in {named(names)}, "
        f"{np.median(n_calls) / n_owners:,.0f} calls: "
        "while one runs nothing is launched, and one that frees waits until the device is idle",
        action="let PyTorch keep the memory that it has: no empty_cache() in the loop, "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True against fragmentation, or less memory in use "
        "(a smaller batch, checkpointing)",
        edits=[edit("allocations", "none")],
        from_ns=usual_ns,
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
        from_ns=on_path,
        operations=names,
        evidence=view.show(copying, 3),
    )


def idle(view: JobView) -> Iterator[Finding | Skipped]:
    """Find time on the critical path in which nothing was recorded."""
    if not view.which(computes).any():
        yield Skipped("idle", NO_COMPUTATION)
        return
    idle_ns, share = view.path_idle_ns()
    if share < NOTICEABLE:
        return
    by_kind = view.path_gaps_by_kind
    before = view.by_name(by_kind[:-1])
    within = view.by_name(np.where(view.is_frame, view.path_work_by_kind, 0.0))
    places = {"before": before, "in": within}
    word = max(places, key=lambda one: places[one].sum())
    largest = view.longest(places[word])
    outside = by_kind[-1] > max(before.max(initial=0.0), within.max(initial=0.0))
    where = "before the first operation or after the last" if outside else f"{word} {named(largest)}"
    told = "; Python's stacks tell what ran there" if view.has_stacks else ""
    title = f"{in_percent(share)} of the critical path is not covered by the trace"
    cause = f"{in_ms(idle_ns)} of its {in_ms(idle_ns / share)}; most of that lies {where}{told}"
    action = (
        what_runs(view)
        if view.has_stacks
        else "record more (Python stacks, annotations around your own code) to see what runs there"
    )
    covered_ns, path_ns = sum(view.path_covers_ns.values()), idle_ns / share
    pauses_ns, n_pauses = view.path_pauses
    if pauses_ns > HALF * idle_ns:
        title = f"{in_percent(pauses_ns / path_ns)} of the step passes between kernels"
        cause = (
            f"{in_ms(pauses_ns)} in {n_pauses:,.0f} pauses of {pauses_ns / n_pauses / 1e3:.2g} µs, in which "
        )
        cause += "the device goes on from one to the next; the host is ahead"
        action = "run fewer and larger kernels: compiled or fused operations, a fused optimizer"
    leads = False
    for waits in (True, False):
        covers = {name: ns for (name, only_waits), ns in view.path_covers_ns.items() if only_waits is waits}
        named_ns = sum(covers.values())
        if 2 * named_ns <= idle_ns:
            continue
        leads = 2 * covered_ns > path_ns
        ordered = sorted(covers, key=lambda name: -covers[name])
        kept = ordered[:1] + [name for name in ordered[1:3] if covers[name] >= EXPOSED * named_ns]
        is_all = sum(covers[name] for name in kept) >= NEARLY_ALL * named_ns
        shown = named(kept) if is_all else f"{', '.join(map(brief, kept))} and others"
        if waits:
            most = f"{in_percent(covers[kept[0]] / path_ns)} of the step in {brief(kept[0])}"
            title = f"the host waits {most} for work not in this trace"
            if len(kept) > 1 or not is_all:  # the title has the share of the first
                shown = shown.replace(brief(kept[0]), f"{brief(kept[0])} ({in_ms(covers[kept[0]])})", 1)
            cause = f"{in_ms(named_ns)} in {shown}, {where}"
            cause += f"; the step itself takes {in_ms(path_ns - named_ns)}" if leads else ""
            action = "find what the device, or another process on it, does there: record it from its start on"
        else:
            title = (
                f"{in_percent(named_ns / path_ns)} of the step passes in {shown}, outside of any operation"
            )
            cause = f"{in_ms(named_ns)}, {where}"
            action = (
                f"make {shown} faster, or do it ahead: in other processes, while the device works"
                if view.has_device
                else f"record what runs in {shown}: Python stacks (with_stack=True), all threads, the device"
            )
    yield Finding(
        kind="idle",
        title=title,
        cause=cause,
        action=action,
        operations=largest,
        look=("critical", "--full"),
        weight=share,
        leads=leads,
    )


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


def _sync_waits(view: JobView) -> dict[tuple[str, str], float]:
    """Return how long calls wait for a device in a step, by their names and callers; means over owners."""
    recording, device = view.recording, _on_device(view)
    _, thread = recording.numbered(lambda one: (one.owner, one.track))
    is_operator = view.which(lambda one: not one.on_device and one.role is not Role.CALL)
    total: dict[tuple[str, str], float] = {}
    for step in view.steps:
        targets = np.unique(step.edges[is_sync(step.edges, device[step.operation]), 1])
        waits = (step.end_ns - step.start_ns - step.work_ns)[targets]
        operators = np.flatnonzero(is_operator[step.operation])
        callers = _callers(step, operators, targets, thread[step.operation])
        for event, caller, wait in zip(targets.tolist(), callers.tolist(), waits.tolist(), strict=True):
            name, by = (
                recording.operations[int(step.operation[one])].name if one >= 0 else ""
                for one in (event, caller)
            )
            total[name, by] = total.get((name, by), 0.0) + wait
    parts = len(view.rows) * len(recording.owners)
    return {calls: wait / parts for calls, wait in total.items() if wait}


def _callers(step: StepGraph, operators: Int64, targets: Int64, thread: Int64) -> Int64:
    """Return which of the events `operators` called each of `targets` (k,); -1 for none.

    `thread` (n,) is that of each event. The time of an operator itself ends where it calls something.
    """
    since = int(step.start_ns.min(initial=0))
    span = int(step.end_ns.max(initial=0)) - since + 1
    ends = thread[operators] * span + step.end_ns[operators] - since
    order = np.argsort(ends, kind="stable")
    wanted = thread[targets] * span + step.start_ns[targets] - since
    at = np.searchsorted(ends[order], wanted)
    found = np.append(operators[order], -1)[at]
    return np.where(np.append(ends[order], -1)[at] == wanted, found, -1)
