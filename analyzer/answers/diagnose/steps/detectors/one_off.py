"""Overhead and one-off work: the profiler's work, first launches of kernels, captures of graphs."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from analyzer.answers.diagnose.finding import (
    BREAKDOWN,
    HALF,
    LAUNCH_NS,
    NOTICEABLE,
    SPIKY,
    Finding,
    FindingScope,
    ListPlace,
    Skipped,
)
from analyzer.answers.diagnose.steps.job_view import JobView, longest_events, names_of
from analyzer.base.arrays import Float64, Mask
from analyzer.base.arrays.distributions import FEWEST, median
from analyzer.base.errors import NoteKind, counted, listed, notes_of
from analyzer.base.names import brief, named
from analyzer.base.units import in_ms, in_percent
from analyzer.model.graph.step_graph import StepGraph
from analyzer.reading import dialects
from analyzer.reading.dialects.edge_rules import EdgeKind, kinds_of
from analyzer.reading.dialects.name_rules import is_capture_begin, is_capture_end
from analyzer.reading.dialects.step_parts import Operation
from dag_utils import critical_path

_SHOWN = 3


def capture_quality(view: JobView) -> Iterator[Finding | Skipped]:
    """Find flaws of the recording that make the answer less certain."""
    for file in view.loaded.files:
        for note in file.lost_work:
            yield _flaw(
                note.partition(":")[0],
                f"{file.path.name}: how long the device worked is not known",
                "record with the device's activities switched on, no other profiler beside it, and "
                "fewer steps at a time",
                place=ListPlace.BY_GAIN if view.has_device else ListPlace.FIRST,
            )
    for flaw in _flaws(view):
        yield _flaw(*flaw)


def _flaw(title: str, cause: str, action: str, place: ListPlace = ListPlace.BY_GAIN) -> Finding:
    scope = FindingScope(ranks=())
    return Finding("capture_quality", title, cause, action, scope=scope, look=BREAKDOWN, place=place)


def _flaws(view: JobView) -> Iterator[tuple[str, str, str]]:
    n_steps = len(view.rows)
    if n_steps < FEWEST:
        yield (
            f"only {counted(n_steps, 'whole step')} recorded",
            f"{FEWEST} or more are needed for error bars",
            "record ten steps after the warm-up",
        )
    loaded = view.loaded
    missing = [*loaded.unread, *notes_of(NoteKind.MISSING, loaded.job.notes)]
    if len(loaded.ranks) == 1 and loaded.ranks[0].rank is not None:  # loading does not note a single rank
        missing += loaded.job.rank_notes([loaded.ranks[0].rank], loaded.ranks[0].world_size or 0)
    if missing:
        cause = "waiting for the missing ranks cannot be seen"
        yield listed(missing, 1), cause, "collect the files of all ranks"
    if losses := losses_of(view):
        yield (
            f"{counted(len(losses), 'damaged file')}: {listed(list(losses), _SHOWN)}",
            "; ".join(next(iter(losses.values()))),
            "let the profiler finish writing before the job ends",
        )
    if loaded.broken:
        yield "parts of the recording cannot be used", listed(loaded.broken, 1), "record them again"
    if unaligned := view.recording.unaligned:
        ties = "record what ranks do together (collectives, sends and receives with their peers)"
        yield "the clocks of the ranks are not aligned", unaligned, f"compare within a rank only, or {ties}"
    yield from _unseen(view)


def losses_of(view: JobView) -> dict[str, list[str]]:
    """List the repairs of each file that lost events."""
    losses = {}
    for file in view.loaded.files:
        known = [*notes_of(NoteKind.WHOLE, file.repairs), *file.lost_work]
        if lost := [repair for repair in file.repairs if repair not in known]:
            losses[file.path.name] = lost
    return losses


def _unseen(view: JobView) -> Iterator[tuple[str, str, str]]:
    """Find communication of several ranks that no rule recognises."""
    n_ranks = max([len(view.recording.owners), *(rank.world_size or 0 for rank in view.loaded.ranks)])
    if n_ranks < 2:
        return
    system = dialects.named(view.loaded.files[0].dialect)
    action = "say with --comm NAME which operations are communication"
    if system.shows_communication and not view.is_communication.any():
        title = f"no communication is recorded, though the job has {n_ranks:,} ranks"
        yield title, view.loaded.ranks[0].rule, action


ONE_OFF = "one-off work (creating a device's context, loading, compiling, tuning) is in the first steps"
WARM_UP = "leave more steps to the warm-up before the recording begins"

_INSTANTIATES = re.compile(r"(?:cu|cuda|hip)GraphInstantiate\w*")


def profiler_cost(view: JobView) -> Iterator[Finding]:
    """Find work of the profiler on the critical path, which is no part of the job."""
    chosen = view.which(lambda operation: operation.is_of_profiler)
    cost_ns = _profiler_ns(view)
    share = cost_ns / path_length_ns(view)
    if share < NOTICEABLE:
        return
    names = names_of(view, chosen)
    yield Finding(
        kind="profiling_overhead",
        title=f"{in_percent(share)} of the step is work of the profiler, not of the job",
        cause=f"{in_ms(cost_ns)} in {named(names)}",
        action="count it out, or record less at a time: fewer steps, no shapes and stacks, larger buffers",
        scope=FindingScope(operations=names),
        evidence=longest_events(view, chosen, 1),
        weight=share,
        place=_place(share),
    )


def first_launches(view: JobView) -> Iterator[Finding]:
    """Find the first launches of several kernels, which load their code: start-up."""
    costs = _first_launch_costs(view)
    if len(costs) < 2:  # `start_up` finds a single one
        return
    start_up_ns = sum(costs.values()) / len(view.rows)
    share = start_up_ns / path_length_ns(view)
    if share < NOTICEABLE:
        return
    kernels = sorted(costs, key=lambda name: -costs[name])
    yield Finding(
        kind="profiling_overhead",
        title=f"the first launches of {len(costs):,} kernels are start-up, {in_percent(share)} of the step",
        cause=f"loading the code of a kernel takes its first launch up to {in_ms(costs[kernels[0]])}, "
        f"for {brief(kernels[0])}",
        action=WARM_UP,
        scope=FindingScope(operations=kernels[:3]),
        weight=share,
        place=_place(share),
    )


def graph_capture(view: JobView) -> Iterator[Finding]:
    """Find steps in which a graph of the device is captured."""
    captured_ns = _capture_ns(view)
    share = captured_ns / path_length_ns(view)
    if share < NOTICEABLE:
        return
    calls = view.which(_ends_capture)
    yield Finding(
        kind="profiling_overhead",
        title=f"{in_percent(share)} of the step captures a graph of the device, which is one-off work",
        cause=f"launches are recorded into the graph for {in_ms(captured_ns)}; they run nothing",
        action="record steps that run the graph, after the capture",
        scope=FindingScope(operations=names_of(view, calls)),
        evidence=longest_events(view, calls, 1),
        weight=share,
        place=_place(share),
    )


def one_off_ns(view: JobView) -> float:
    """Add up first launches and captures on the path of a step, the mean over steps."""
    return _capture_ns(view) + sum(_first_launch_costs(view).values()) / len(view.rows)


def not_of_the_job_ns(view: JobView) -> float:
    """Add up the profiler's work and one-off work in a step."""
    return _profiler_ns(view) + one_off_ns(view)


def _profiler_ns(view: JobView) -> float:
    return view.path_work_ns(view.which(lambda operation: operation.is_of_profiler))


def path_length_ns(view: JobView) -> float:
    """Add up work and gaps on the path of a step, the denominator of shares."""
    return max(float(view.path.work_ns.sum() + view.path.gap_ns.sum()), 1.0)


def _place(share: float) -> ListPlace:
    return ListPlace.FIRST if share > HALF else ListPlace.BY_GAIN


def _path_ns(step: StepGraph, *, gaps: bool = False) -> Float64:
    """Compute the work of each event (n,) on the critical path of a step, with the `gaps` before it."""
    path = critical_path(step)
    chosen = (path.event >= 0) & (path.is_work | (gaps & path.is_gap))
    lasts_ns = (path.end_ns - path.start_ns)[chosen]
    return np.bincount(path.event[chosen], lasts_ns, len(step)).astype(np.float64)


def _first_launch_costs(view: JobView) -> dict[str, float]:
    """Add up the time on all steps' paths of first launches that take far longer than usual, by kernel."""
    kernels = view.which(lambda operation: operation.is_kernel)
    names, number = view.kind_of
    seen = np.zeros((len(view.recording.owners), len(names)), np.bool_)
    costs: dict[str, float] = {}
    for step in view.steps:
        call, kernel = step.edges[kinds_of(step.edges) == EdgeKind.LAUNCH, :2].T
        chosen = kernels[step.operation[kernel]]
        order = np.argsort(step.start_ns[call[chosen]], kind="stable")
        call, kernel = call[chosen][order], kernel[chosen][order]
        if not len(call):
            continue
        owner, kind = step.owner[kernel], number[step.operation[kernel]]
        far_ns = SPIKY * max(median(step.work_ns[call]), LAUNCH_NS)
        is_first = ~seen[owner, kind] & (step.work_ns[call] > far_ns)
        seen[owner, kind] = True
        if not is_first.any():
            continue
        on_path_ns = _path_ns(step)
        kind_of_call = dict(zip(call[is_first].tolist(), kind[is_first].tolist(), strict=True))
        for event, of_call in kind_of_call.items():
            costs[names[of_call]] = costs.get(names[of_call], 0.0) + float(on_path_ns[event])
    return {name: cost_ns for name, cost_ns in costs.items() if cost_ns}


def _capture_ns(view: JobView) -> float:
    """Compute the time on the path of a step in which a host captures a graph, the mean over steps."""
    begins = view.which(lambda operation: not operation.on_device and is_capture_begin(operation.name))
    ends = view.which(_ends_capture)
    if not begins.any():
        return 0.0
    captured_ns = [_path_ns(step, gaps=True)[_captured(step, begins, ends)].sum() for step in view.steps]
    return float(np.mean(captured_ns))


def _ends_capture(operation: Operation) -> bool:
    is_end = is_capture_end(operation.name) or _INSTANTIATES.fullmatch(operation.name) is not None
    return not operation.on_device and is_end


def _captured(step: StepGraph, begins_capture: Mask, ends_capture: Mask) -> Mask:
    """Mask the events (n,) of a host between the begin and the last end of a capture.

    `begins_capture` and `ends_capture` (k,) mask the kinds of operations that begin and end one.
    """
    begins = np.flatnonzero(begins_capture[step.operation])
    ends = np.flatnonzero(ends_capture[step.operation])
    captured = np.zeros(len(step), np.bool_)
    for begin in begins.tolist():
        begin_ns, start_ns = step.start_ns[begin], step.start_ns[begins]
        next_ns = start_ns[start_ns > begin_ns].min(initial=np.iinfo(np.int64).max)
        is_of_this = (step.start_ns[ends] >= begin_ns) & (step.start_ns[ends] < next_ns)
        of_host = step.owner == step.owner[begin]
        until_ns = step.end_ns[ends[is_of_this & of_host[ends]]].max(initial=-1)
        captured |= (step.start_ns >= begin_ns) & (step.end_ns <= until_ns) & of_host
    return captured
