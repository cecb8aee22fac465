"""Time without computation: nothing recorded, loading of input, transfers, waiting for ranks and stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from analyzer.answers.diagnose.finding import (
    EXPOSED,
    HALF,
    NEGLIGIBLE,
    NOTICEABLE,
    Finding,
    FindingScope,
    ListPlace,
    Skipped,
    edit,
)
from analyzer.answers.diagnose.steps.detectors.device import NO_COMPUTATION, computes
from analyzer.answers.diagnose.steps.detectors.one_off import losses_of, path_length_ns
from analyzer.answers.diagnose.steps.detectors.slow_transfers import NO_COMMUNICATION, lacking_ranks
from analyzer.answers.diagnose.steps.job_view import (
    JobView,
    busy_step,
    is_no_chance,
    is_python_gap,
    last_arrivals,
    longest_awaited,
    longest_events,
    longest_gaps,
    names_of,
)
from analyzer.base.arrays import Float64, Mask
from analyzer.base.arrays.distributions import FEWEST
from analyzer.base.names import brief, named
from analyzer.base.units import in_ms, in_percent
from analyzer.reading.dialects.roles import Phase, Role
from analyzer.reading.dialects.step_parts import Operation, Whose
from dag_utils import critical_path
from replay.whatif.negotiation import waited_for
from replay.whatif.scaling import GONE


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


def late_in_negotiations(view: JobView) -> Iterator[Finding | Skipped]:
    """Find the rank that causes most of the waiting in negotiations."""
    if not view.which(_is_negotiation).any():
        yield Skipped("late_rank", "only one rank is recorded, without a peer to compare it with")
        return
    waited = waited_for(view.recording, view.rows)
    if not waited:
        return
    computation, waits_ns = max(waited.items(), key=lambda pair: float(np.median(pair[1])))
    others = [times for name, times in waited.items() if name != computation] or [np.zeros(len(waits_ns))]
    if not is_no_chance(waits_ns - np.median(others, axis=0), 1.0, len(waited)):
        yield from _waiting(view, float(np.median(np.max(list(waited.values()), axis=0))))
        return
    usual_ns = float(np.median(waits_ns))
    kinds = view.recording.operations.kinds
    last = next(kind.whose or Whose() for kind in kinds if kind.name == computation)
    is_known = last.rank is not None
    if usual_ns < (NEGLIGIBLE if is_known and not last.is_guess else HALF) * view.step_ns:
        yield from _waiting(view, usual_ns)
        return
    rank = f"rank{last.rank}" if is_known else "the last rank"
    source = " (Horovod's first negotiation ticks show it)" if last.is_guess else ""
    yield Finding(
        kind="late_rank",
        title=f"{rank} is late in negotiations, and the other ranks wait",
        cause=f"they wait {in_ms(usual_ns)} for it; {rank} submits its tensors last{source}",
        action="compare its batch, its data and its machine (clocks, other processes) with its peers'",
        edits=[edit(f"{rank}.ready" if is_known else "ready", "peers")],
        scope=FindingScope([rank] if is_known else []),
        evidence=longest_events(view, view.which(lambda operation: operation.name == computation), 3),
        caveat="" if is_known else "the recording does not tell which rank was last",
        look=("critical", "--head", "10"),
    )


def _waiting(view: JobView, usual_ns: float) -> Iterator[Finding]:
    """Report negotiations that wait for a different rank each time, or for an unknown rank."""
    if usual_ns < EXPOSED * view.step_ns:
        return
    yield Finding(
        kind="exposed_communication",
        title="ranks wait in negotiations for the last one",
        cause=f"they wait {in_ms(usual_ns)}; it is a different rank each time, or one that the recording "
        "does not name after the first negotiations",
        action="record with HOROVOD_CACHE_CAPACITY=0 to see which rank is last each time",
        edits=[edit("ready", "first")],
        evidence=longest_events(view, view.which(_is_negotiation), 3),
        caveat="the last rank is taken to be ready when the first one is",
        is_upper_bound=True,
        look=("critical", "--head", "10"),
    )


def _is_negotiation(operation: Operation) -> bool:
    return operation.role is Role.WAIT


# ---- after all are ready


def negotiation(view: JobView) -> Iterator[Finding | Skipped]:
    """Find time between the last rank's readiness and the next look of the negotiating thread."""
    waits = view.which(_is_negotiation)
    if not waits.any():
        yield Skipped("negotiation", "no negotiation is recorded")
        return
    waits_ns, counts = [], []
    for step in view.steps:
        negotiated = waits[step.operation]
        reduced = step.edges[negotiated[step.edges[:, 0]], 1]
        waits_ns.append(step.work_ns[negotiated].max(initial=0) + step.gap_ns[reduced].max(initial=0))
        counts.append(negotiated.sum())
    yield Finding(
        kind="negotiation",
        title="reductions wait although all ranks are ready",
        cause=f"up to {in_ms(np.median(waits_ns))}; {np.median(counts):.0f} tensors are negotiated in a "
        "step, and looked at once in a cycle",
        action="shorten HOROVOD_CYCLE_TIME, or raise HOROVOD_FUSION_THRESHOLD for fewer reductions",
        edits=[edit("negotiation", "none")],
        scope=FindingScope(operations=names_of(view, waits)[:3]),
        evidence=longest_events(view, waits, 1),
    )


def slow_input(view: JobView) -> Iterator[Finding | Skipped]:
    """Find steps that wait for the loader."""
    if not view.is_input.any():
        yield Skipped("input", "no loading of input is recorded")
        return
    on_path = view.path_work_ns(view.is_input)
    if on_path < NOTICEABLE * view.step_ns:
        return
    yield Finding(
        kind="input",
        title="the steps wait for their input",
        cause=f"loading takes {in_ms(on_path)} on the critical path, "
        f"{in_percent(on_path / view.iteration_ns.mean())} of the mean step",
        action="load ahead of time: more workers, prefetching, a faster store, less decoding on the way",
        edits=[edit(Phase.INPUT.word, GONE)],
        scope=FindingScope(operations=names_of(view, view.is_input)),
        evidence=longest_events(view, view.is_input, 3, busy_step(view, view.is_input)),
        caveat=whose_loading(view),
    )


def whose_loading(view: JobView) -> str:
    """Write a caveat if ranks wait for each other in their loading, or load ahead; else ""."""
    loads = [kind for kind in view.recording.operations.kinds if kind.phase is Phase.INPUT]
    waits = any(kind.is_collective for kind in loads)
    ahead = any(rank.loads_ahead for rank in view.loaded.ranks)
    if len(view.recording.owners) < 2 or not (waits or ahead):
        return ""
    return "loaders work ahead, or end together, so the recording does not tell whose loading is slow"


def exposed_communication(view: JobView) -> Iterator[Finding | Skipped]:
    """Find transfers on the critical path, and ranks that wait for a different rank in each step."""
    transfers = view.is_communication
    if not transfers.any():
        yield Skipped("exposed_communication", NO_COMMUNICATION)
    yield from _pauses_in_turn(view)
    on_path = view.path_work_ns(transfers)
    waiting = _above_mean(view, view.owner_work_ns(~view.is_communication))
    if on_path + waiting < EXPOSED * view.step_ns:
        return
    least = NOTICEABLE * view.step_ns
    largest, is_largest = view.largest(transfers)
    has_computation = any(  # Horovod's timeline has none
        kind.is_traced and not kind.is_communication and kind.role is not Role.WAIT
        for kind in view.recording.operations.kinds
    )
    if on_path > least and not has_computation:
        share = on_path / view.step_ns
        yield Finding(
            kind="exposed_communication",
            title=f"communication takes {in_percent(share)} of the step; its overlap is not recorded",
            cause=f"{in_ms(on_path)} of transfers, mostly {named(largest)}; no computation is recorded, so "
            "whether it overlaps them is unknown",
            action="record the computation as well, with the profiler of the framework",
            scope=FindingScope(operations=largest),
            caveat="no gain is claimed: only communication is recorded",
            look=("statistic", "--sub_option", "breakdown"),
            weight=share,
        )
    elif on_path > least:
        unknown = lacking_ranks(view)
        yield Finding(
            kind="exposed_communication",
            title="communication is not overlapped",
            cause=f"{in_ms(on_path)} of transfers on the critical path, mostly {named(largest)}",
            action="overlap it with computation (smaller buckets, priorities), send less (compression, "
            "fewer synchronisations), or use a faster network",
            edits=[] if unknown else [edit(Role.COMM.word, GONE)],
            scope=FindingScope(operations=largest),
            evidence=longest_events(view, transfers & is_largest, 3),
            caveat=f"no saving is claimed: {unknown}" if unknown else "assumes free transfers",
            is_upper_bound=not unknown,
            weight=on_path / view.step_ns if unknown else 0.0,
        )
    if waiting > least:
        yield Finding(
            kind="exposed_communication",
            title="the slowest rank changes from step to step",
            cause=f"the rank with the most work in a step has {in_ms(waiting)} more than the mean rank",
            action="give all ranks inputs of the same length, and look for other processes on the machines",
            edits=[edit("straggler", "each_step")],
            caveat="every rank is taken to work as long as the mean one in each step",
            is_upper_bound=True,
        )


def idle_stages(view: JobView) -> Iterator[Finding | Skipped]:
    """Find a pipeline in which even the busiest stage is often idle: it fills and drains in each step."""
    if not view.stage.any():
        return
    on_device = view.which(lambda operation: operation.is_kernel)
    work = view.owner_work_ns(on_device if on_device.any() else ~view.is_communication)
    stages = range(view.stage.max() + 1)
    by_stage = np.array([work[:, view.stage == stage].mean(axis=1) for stage in stages])
    busiest = int(by_stage.mean(axis=1).argmax())
    share = float(np.median(by_stage[busiest] / view.iteration_ns))
    if 1 - share < EXPOSED:
        return
    yield Finding(
        kind="idle",
        title=f"the busiest pipeline stage is idle {in_percent(1 - share)} of the step",
        cause=f"stage {busiest} computes for {in_ms(np.median(by_stage[busiest]))}; then it waits for "
        "other stages, as the pipeline fills and drains, or for transfers",
        action="cut the batch into more micro-batches, or give each rank several shorter stages (an "
        "interleaved schedule)",
        caveat="no gain is claimed: how a step is cut into micro-batches is not recorded",
        look=("statistic", "--sub_option", "bubbles"),
        weight=1 - share,
    )


def _pauses_in_turn(view: JobView) -> Iterator[Finding | Skipped]:
    """Find pauses that delay the others, each time on a different rank."""
    gaps, arrivals = view.owner_gap_ns(~view.is_communication), last_arrivals(view)
    more_ns, meets = _above_mean(view, gaps), [len(owner) > 0 for owner, _ in arrivals]
    is_last = gaps.argmax(axis=1)[meets] == longest_awaited(arrivals)
    if len(gaps) < FEWEST or more_ns < EXPOSED * view.step_ns or is_last.sum() <= len(gaps) / 2:
        return
    yield Finding(
        kind="exposed_communication",
        title="a different rank pauses in every step",
        cause=f"the rank with the longest gaps in a step has {in_ms(more_ns)} more of them than the mean",
        action="look at what ranks do in turn: logging, garbage collection, checkpoints, other processes",
        edits=[edit("gap", "even")],
        evidence=longest_gaps(view, ~view.is_communication),
        caveat="every rank is taken to pause as long as the mean one in each step",
        is_upper_bound=True,
    )


def _above_mean(view: JobView, time: Float64) -> float:
    """Compute the excess of the largest `time` of an owner (steps, m) over the mean, the median over steps.

    0 if ranks never meet.
    """
    if not any(len(met.meeting) for met in view.meetings):
        return 0.0
    return float(np.median(time.max(axis=1) - time.mean(axis=1)))
