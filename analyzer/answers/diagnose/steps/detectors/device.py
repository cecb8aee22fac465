"""Causes of an idle device (a slow host, waits, allocations, copies), and the memory of devices."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from analyzer.answers.diagnose.finding import (
    BREAKDOWN,
    EXPOSED,
    FULL,
    HALF,
    LIMIT,
    NEARLY_ALL,
    NEGLIGIBLE,
    NOTICEABLE,
    SPIKY,
    Finding,
    FindingScope,
    Skipped,
    edit,
)
from analyzer.answers.diagnose.steps.causes import cause_of_host, synchronises
from analyzer.answers.diagnose.steps.detectors.one_off import one_off_ns, path_length_ns
from analyzer.answers.diagnose.steps.job_view import JobView, longest_events, usual_step
from analyzer.base.arrays import Float64, Int64, Mask
from analyzer.base.arrays.distributions import FEWEST
from analyzer.base.arrays.intervals import union_length
from analyzer.base.arrays.numbering import unique
from analyzer.base.errors import listed
from analyzer.base.names import brief, named
from analyzer.base.units import in_ms, in_percent
from analyzer.model.graph.step_graph import StepGraph
from analyzer.reading import dialects
from analyzer.reading.dialects.roles import Role
from analyzer.reading.dialects.step_parts import Operation
from analyzer.reading.dialects.system import MemorySamples
from replay.whatif.host import allocates, is_allocation, is_sync, prepares
from replay.whatif.scaling import GONE

_BETWEEN = re.compile(r"\b(?:HtoD|DtoH)\b|Host ?To ?Device|Device ?To ?Host", re.IGNORECASE)
_LAUNCH_LESS = "launch less and larger: compiled or fused operations, a larger batch"
NO_DEVICE = "no work of a device is recorded"
NO_COMPUTATION = "no computation is recorded; the time before a transfer stands for it"


def long_operation(view: JobView, least: float = LIMIT) -> Iterator[Finding]:
    """Find one operation of the host for which alone the device waits, for `least` of its idle time."""
    launching = view.which(prepares)
    decides_ns = view.path_work_ns(launching) + view.path.beside_ns
    largest, is_largest = view.largest(
        launching & view.which(lambda operation: operation.role is not Role.CALL)
    )
    alone = launching & is_largest
    alone_ns = view.path_work_ns(alone)
    is_long = _longest_ns(usual_step(view), alone) >= NOTICEABLE * view.step_ns
    if not view.has_device or not is_long or alone_ns < EXPOSED * view.step_ns:
        return
    if decides_ns >= HALF * view.step_ns and alone_ns <= HALF * decides_ns:
        return  # that is launching
    if alone_ns < least * (1 - busy_share(view)) * view.step_ns:
        return
    yield Finding(
        kind="host_bound",
        title=f"the device waits for {brief(largest[0])}",
        cause=f"it takes {in_ms(alone_ns)} on the critical path; the device is busy "
        f"{in_percent(busy_share(view))} of the step",
        action="make this faster, or do it ahead: in another thread or process, while the device works",
        edits=[edit(largest[0], GONE)],
        scope=FindingScope(operations=largest[:1]),
        evidence=longest_events(view, alone, 3),
    )


def host_bound(view: JobView) -> Iterator[Finding | Skipped]:
    """Find steps whose length the host decides, because it launches more slowly than the device works."""
    if not view.has_device:
        yield Skipped("host_bound", NO_DEVICE)
        return
    if findings := list(long_operation(view, least=0.0)):
        yield from findings
        return
    launching = view.which(prepares)
    decides_ns = view.path_work_ns(launching) + view.path.beside_ns - one_off_ns(view)
    longest_ns = _longest_ns(usual_step(view), launching)
    if decides_ns < HALF * path_length_ns(view) or longest_ns > HALF * decides_ns:
        return  # one long call is not launching
    largest, is_largest = view.largest(launching)
    kernels, usual_ns = _kernels(view)
    title, action = "the CPU launches kernels too slowly (host-bound)", _LAUNCH_LESS
    if (shown := cause_of_host(view)) is not None:
        title, action, is_largest = shown.counted, shown.action, shown.calls
    elif not synchronises(view):
        action = f"CUDA graphs; {action}"
    yield Finding(
        kind="host_bound",
        title=title,
        cause=f"the device is busy {in_percent(busy_share(view))} of the step, with {kernels:,.0f} kernels "
        f"of {usual_ns / 1e3:.0f} µs; otherwise it waits for the CPU, mostly in {named(largest)}",
        action=action,
        edits=[edit("host", "none")],
        scope=FindingScope(operations=largest),
        evidence=longest_events(view, launching & is_largest, 3) or longest_events(view, launching, 3),
        caveat="assumes a host that takes no time",
        is_upper_bound=True,
        look=("critical", "--head", "10"),
    )


def host_sync(view: JobView) -> Iterator[Finding | Skipped]:
    """Find host calls that wait for the device, after which the device waits for the host."""
    if not view.has_device:
        yield Skipped("host_sync", NO_DEVICE)
        return
    waits = {name: wait for name, wait in _sync_waits(view).items() if not is_allocation(name)}
    total = sum(waits.values())
    if total < NOTICEABLE * view.step_ns:
        return
    largest = sorted(waits, key=lambda name: -waits[name])[:3]
    chosen = view.which(lambda operation: not operation.on_device and operation.name in largest)
    yield Finding(
        kind="host_sync",
        title="CPU–GPU synchronisation stalls both",
        cause=f"{in_ms(total)} in {named(largest)}; the device is busy {in_percent(busy_share(view))} "
        "of the step",
        action="keep values on the device: no .item(), .cpu() or print in the loop, pinned memory and "
        "non-blocking copies; unset CUDA_LAUNCH_BLOCKING if it is set",
        edits=[edit("sync", "none")],
        scope=FindingScope(operations=largest),
        evidence=longest_events(view, chosen, 3),
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
    names = sorted({operation.name for operation in view.recording.chosen_kinds(calls)})
    number = view.recording.numbered(lambda operation: operation.name)[1]
    once_ns = sum(start_up_ns(view, calls & (number == name)) for name in unique(number[calls]).tolist())
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
        scope=FindingScope(operations=names),
        evidence=longest_events(view, calls, 3),
    )


def device_idle_ns(view: JobView) -> float:
    """Time of a step in which the device of a rank does nothing, neither computes nor copies.

    The mean over steps, of the rank whose device idles longest.
    """
    length_ns, busy_ns = _device_times(view)
    return float((length_ns - busy_ns).mean(axis=0).max())


def busy_share(view: JobView) -> float:
    """Share of a step in which a device works: the union of its events, the median over steps."""
    length_ns, busy_ns = _device_times(view)
    return float(np.median(busy_ns / np.maximum(length_ns, 1)))


def _device_times(view: JobView) -> Int64:
    """Measure each step of each owner, and the time in which its device works (2, steps, m)."""
    device = view.which(lambda operation: operation.on_device)
    times: Int64 = np.array([_device_time(step, device) for step in view.steps], np.int64).swapaxes(0, 1)
    return times


def _device_time(step: StepGraph, device: Mask) -> tuple[list[int], list[int]]:
    lengths, busy = [], []
    for owner, events in enumerate(step.events_by_owner(device)):
        begin, end = int(step.begin_ns[owner]), int(step.next_ns[owner])
        end = end if end > begin else int(step.end_ns[events].max(initial=begin))
        lengths.append(end - begin)
        busy.append(union_length(*(np.clip(ns[events], begin, end) for ns in (step.start_ns, step.end_ns))))
    return lengths, busy


def start_up_ns(view: JobView, chosen: Mask) -> float:
    """Return the work of the one event of the `chosen` operations (n,) that is start-up; 0 without one.

    It takes nearly all of their time, or is the first and takes far longer than any other.
    """
    works = [step.work_ns[chosen[step.operation]] for step in view.steps]
    ordered = np.sort(np.concatenate(works))
    first = next((row for row, work in zip(view.rows, works, strict=True) if len(work)), None)
    if first is None:
        return 0.0
    step = view.recording.steps[first]
    events = np.flatnonzero(chosen[step.operation])
    is_first = step.work_ns[events[step.start_ns[events].argmin()]] == ordered[-1]
    is_alone = ordered[-1] > NEARLY_ALL * ordered.sum()
    is_far_longer = len(ordered) > 1 and ordered[-1] > SPIKY * ordered[-2]
    return float(ordered[-1]) if is_alone or (is_first and is_far_longer) else 0.0


def copies(view: JobView) -> Iterator[Finding | Skipped]:
    """Find copies between host and device on the critical path."""
    if not view.has_device:
        yield Skipped("copies", NO_DEVICE)
        return
    copying = view.which(lambda operation: operation.role is Role.COPY and _BETWEEN.search(operation.name))
    on_path = view.path_work_ns(copying)
    if on_path < NOTICEABLE * view.step_ns:
        return
    names = sorted({operation.name for operation in view.recording.chosen_kinds(copying)})
    yield Finding(
        kind="copies",
        title="copies between host and device are not overlapped",
        cause=f"{in_ms(on_path)} of {named(names)} on the critical path",
        action="copy from pinned memory, ahead of time and on a stream of its own; send smaller types",
        edits=[edit(name, GONE) for name in names],
        scope=FindingScope(operations=names),
        evidence=longest_events(view, copying, 3),
    )


# ---- signals


def computes(operation: Operation) -> bool:
    """Recognise recorded computation, as opposed to time that stands for it."""
    is_work = operation.role not in (Role.UNTRACED, Role.WAIT) and not operation.is_overhead
    return operation.is_compute and is_work


def _longest_ns(step: StepGraph, chosen: Mask) -> int:
    """Return the work of the longest event of the `chosen` operations (n,) in a step."""
    return int(step.work_ns[chosen[step.operation]].max(initial=0))


def _kernels(view: JobView) -> tuple[float, float]:
    """Return the number of kernels of an owner in a step, and their median duration (ns)."""
    kernel = view.which(lambda operation: operation.is_kernel)
    works = [step.work_ns[kernel[step.operation]] for step in view.steps]
    per_step = float(np.median([len(work) for work in works])) / len(view.recording.owners)
    return per_step, float(np.median(np.concatenate(works))) if per_step else 0.0


def _sync_waits(view: JobView) -> dict[str, float]:
    """Return the time for which calls wait for a device in a step (ns), by name: the mean over owners."""
    recording, device = view.recording, view.which(lambda operation: operation.on_device)
    total: dict[str, float] = {}
    for step in view.steps:
        targets = np.unique(step.edges[is_sync(step.edges, device[step.operation]), 1])
        waits = (step.end_ns - step.start_ns - step.work_ns)[targets]
        for event, wait in zip(targets.tolist(), waits.tolist(), strict=True):
            name = recording.operations[int(step.operation[event])].name
            total[name] = total.get(name, 0.0) + wait
    parts = len(view.rows) * len(recording.owners)
    return {name: wait / parts for name, wait in total.items() if wait}


_NOTHING = "no memory events are recorded"
_HOST_ONLY = "memory events of the host are recorded, but none of a device"


def memory(view: JobView) -> Iterator[Finding | Skipped]:
    """Find memory that grows over the steps, or nearly fills a device."""
    peaks: dict[str, Float64] = {}
    filled: dict[str, float] = {}
    for owner, rank in enumerate(view.loaded.ranks):
        name = view.recording.owners[owner]
        if rank.memory is not None and len(by_step := _peaks(view, owner, rank.memory)):
            peaks[name] = by_step
            filled[name] = float(by_step.max()) / rank.memory.capacity if rank.memory.capacity else 0.0
    if not peaks:
        on_host = any(rank.memory is not None for rank in view.loaded.ranks)
        setting = dialects.named(view.loaded.files[0].dialect).memory_setting
        remedy = f"; {setting} records them" if setting else ""
        yield Skipped("memory", _HOST_ONLY if on_host else _NOTHING + remedy)
        return
    growing = {}
    for name, by_step in peaks.items():
        growth = float(by_step[-1] / max(by_step[0], 1.0) - 1)
        if len(by_step) >= FEWEST and (np.diff(by_step) > 0).all() and growth > NEGLIGIBLE:
            growing[name] = growth
    if growing:
        worst = max(growing, key=lambda rank: growing[rank])
        first, *_, last = peaks[worst]
        yield _finding(
            f"memory grows from step to step on {listed(list(growing))}",
            f"the peak on {worst} grows from {_gb(first)} to {_gb(last)} in {len(peaks[worst])} steps",
            "look for what is kept: losses that hold their graph, growing lists, caches",
            list(growing),
            growing[worst],
        )
    full = [rank for rank, share in filled.items() if share > FULL]
    if full:
        worst = max(full, key=lambda rank: filled[rank])
        yield _finding(
            f"memory is nearly full on {listed(full)}",
            f"{_gb(peaks[worst].max())}, {in_percent(filled[worst])}, are allocated on {worst}",
            "allocations may have to wait for freed blocks: a smaller batch, recomputation, sharded states",
            full,
            filled[worst] - FULL,
        )


def _finding(title: str, cause: str, action: str, ranks: Sequence[str], weight: float) -> Finding:
    scope, caveat = FindingScope(ranks), "no gain is claimed"
    return Finding("memory", title, cause, action, scope=scope, caveat=caveat, look=BREAKDOWN, weight=weight)


def _gb(n_bytes: float) -> str:
    return f"{n_bytes / 1e9:.2f} GB"


def _peaks(view: JobView, owner: int, samples: MemorySamples) -> Float64:
    """Find the peak in bytes of each whole step of an owner with samples."""
    peaks = []
    for step in (view.as_recorded.recording.steps[row] for row in view.rows):
        within = (samples.at_ns >= step.begin_ns[owner]) & (samples.at_ns < step.next_ns[owner])
        peaks.append(samples.n_bytes[within].max(initial=0.0))
    return np.array([peak for peak in peaks if peak > 0], np.float64)
