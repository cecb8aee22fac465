"""PyTorch's step graphs: the threads, streams and collectives of one rank, and their dependencies.

A host thread is a chain of segments of its innermost operations; device work follows the work before it
on its stream and the call that launched it; a call that blocks waits for the device; collectives meet
those of other ranks. Times supply the links that are not recorded: an idle thread resumes when
something elsewhere has ended.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from analyzer.base.arrays import Int64, Mask, NDArray
from analyzer.base.arrays.numbering import as_of, numbered, unique
from analyzer.base.errors import Note, in_words
from analyzer.reading.dialects import step_windows
from analyzer.reading.dialects.edge_rules import Rule
from analyzer.reading.dialects.kineto import collectives, kineto_events
from analyzer.reading.dialects.kineto.kineto_events import Segments, segments
from analyzer.reading.dialects.kineto.kineto_steps import COUNTS, FILLS, LATE, LOST, places
from analyzer.reading.dialects.kineto.launches import calls_of, integers
from analyzer.reading.dialects.roles import Phase, Role, by_cat, by_name
from analyzer.reading.dialects.step_parts import (
    UNMARKED,
    Joint,
    Meeting,
    Meetings,
    Operation,
    RankSteps,
    RankTrace,
    edge_rows,
    meetings_table,
    renumbered,
)
from analyzer.reading.dialects.system import DEVICE_CATS, RUNTIME_CATS
from analyzer.reading.dialects.tolerances import ROUNDED_NS, SOON, TOLERANCE_NS, UNRECORDED_NS
from analyzer.reading.formats.columns import Trace, used_tables
from analyzer.reading.formats.values import FARTHEST_NS

_ENQUEUES = "c10d::"
#: A compiled graph's name ends with a digest of its shapes, or the count of its compilations, which differ on
#: a rank with more tokens. Only names with the word are searched, as names are many.
_IS_COMPILED = "Compiled"
_COMPILED = re.compile(r"(## Call CompiledFxGraph) \w+|(Torch-Compiled Region: \d+)/\d+")
_UNKNOWN_GROUP = Note(
    "ranks are in several groups, and no call of the host names its own: who waited for whom in these calls "
    "is not known"
)
#: Python functions that wait for a result.
_PYTHON_WAITS = re.compile(r"(?:.*: |<built-in method )(?:block_until_ready|wait|result|synchronize)\b.*")


class _Rank(Struct, frozen=True):
    """One rank's recording; its events are the host's segments, the collectives beside them, the works."""

    trace: Trace
    end_ns: Int64  # of the trace's slices
    host: Segments
    aside: Int64  # rows, by `aside_end_ns`
    aside_start_ns: Int64  # as of `_exchanges`
    aside_end_ns: Int64
    called: Int64  # segments of the operations in them
    enqueued: Int64  # segments that enqueued them, as of `_enqueuing`
    works: kineto_events.Works
    steps: Int64  # (n, 3) number, begin and end, as the host runs them
    roles: NDArray[np.int8]  # of the trace's slices

    @property
    def first_work(self) -> int:
        return len(self.host) + len(self.aside)

    @property
    def aside_numbers(self) -> Int64:
        return len(self.host) + np.arange(len(self.aside))


def record(
    rank_trace: RankTrace,
    steps: Int64,
    bounds: Int64,
    roles: NDArray[np.int8],
    completed: tuple[Int64, Int64] | None = None,
) -> RankSteps:
    """Build the steps of one rank, whose slices have `roles`; without marked steps, one of the whole trace.

    `steps` (n, 3) are those of the host, `bounds` (k, 3) the wanted ones, of the device if `completed`.
    """
    trace = rank_trace.trace
    chosen, sample_notes = step_windows.sampled(bounds, rank_trace.most_steps)
    step_bounds = step_windows.as_bounds(bounds[chosen])
    n_leftover = int((by_cat(trace, DEVICE_CATS.__contains__) & (roles == Role.IGNORED)).sum())
    if sample_notes:
        rank_trace, roles = _around(rank_trace, roles, step_bounds)
    rank = _read(rank_trace, steps, roles)
    events = _events(rank)
    is_unknown = len(rank.aside) > 0 and collectives.host_group(trace.header, trace.rank) is None
    notes: list[str] = [_UNKNOWN_GROUP] if is_unknown else []
    if not len(steps) and len(events.kind):
        step_bounds = [(1, int(events.start_ns.min()), int(events.end_ns.max()))]
        if len(rank.works):  # the one step is complete when its host and all of its streams are done
            events = replace(events, iteration=np.ones(len(events.kind), np.int64))
        else:
            events = replace(events, leads=np.zeros(len(events.kind), np.bool_))
        notes.append(UNMARKED)
    elif completed is not None:
        step_row = places(steps, events.issued_ns)
        iteration = np.where(step_row >= 0, steps[:, 0][step_row] if len(steps) else 0, step_windows.NO_STEP)
        events = replace(events, iteration=iteration)
        table, why = completed
        of_all_kinds = len(bounds) == (why == COUNTS).sum()
        for reason, text in (
            (LATE, "the device completed it no later than the step before"),
            (FILLS, "the host fills the device's queue in it, so it is longer"),
            (LOST, "the profiler lost work of the device"),
        ):
            if labels := table[of_all_kinds & (why == reason), 0].tolist():
                are = "are" if len(labels) > 1 else "is"
                notes.append(f"{in_words(labels, 'step')} {are} left out: {text}")
    step_windows.check_sizes(trace.path, events.start_ns, events.end_ns, step_bounds)
    operations, cut = step_windows.cut_into_steps(events, step_bounds)
    whole = [step for step in cut if len(step)]
    return RankSteps(rank_trace.name, operations, whole, [*notes, *sample_notes], n_before=n_leftover)


def _around(
    rank: RankTrace, roles: NDArray[np.int8], bounds: Sequence[tuple[int, int, int]]
) -> tuple[RankTrace, NDArray[np.int8]]:
    """Select the slices that run within ordered bounds, and the launches of these, with their roles."""
    trace = rank.trace
    _, begins, ends = np.array([*bounds, (0, FARTHEST_NS, FARTHEST_NS)], np.int64).T
    kept = begins[np.searchsorted(ends[:-1], trace.ts_ns, side="right")] < trace.end_ns
    works = np.flatnonzero(kept & by_cat(trace, DEVICE_CATS.__contains__))
    launches = calls_of(trace, works)
    kept[launches[launches >= 0]] = True
    return replace(rank, trace=used_tables(trace.select(kept))), roles[kept]


def _read(rank: RankTrace, steps: Int64, roles: NDArray[np.int8]) -> _Rank:
    trace = rank.trace
    end_ns = trace.end_ns
    is_aside = collectives.lasting_collectives(trace)
    aside = np.flatnonzero(is_aside)
    host = segments(trace, end_ns, is_aside, steps)
    enqueued = _enqueuing(trace, host, trace.ts_ns[aside])
    inside = enqueued >= 0
    inside[inside] = host.end_ns[enqueued[inside]] > trace.ts_ns[aside][inside]
    host = host.cut(enqueued[inside], trace.ts_ns[aside][inside])
    begins, ends, called = _exchanges(trace, end_ns, host, aside)
    by_end = np.argsort(ends, kind="stable")
    aside, begins, ends = aside[by_end], begins[by_end], ends[by_end]
    enqueued = _enqueuing(trace, host, trace.ts_ns[aside])
    works = kineto_events.read_works(trace, end_ns, ~np.isin(roles, (Role.IGNORED, Role.WAIT)))
    return _Rank(trace, end_ns, host, aside, begins, ends, called, enqueued, works, steps, roles)


def _exchanges(trace: Trace, end_ns: Int64, host: Segments, aside: Int64) -> tuple[Int64, Int64, Int64]:
    """Find the begins and ends of the exchanges of collectives `aside` (k,), and the segments in them.

    For tensors of a device, the thread of a collective waits for their copy to the host, and at the end
    launches the copy back: the exchange is the longest piece of the slice without other operations.
    """
    begins, ends = trace.ts_ns[aside], end_ns[aside]
    around = as_of(trace.track_id[aside], begins, host.thread, host.start_ns)
    called = np.flatnonzero(around >= 0)
    around, row = around[called], host.row[called]
    is_inside = (trace.ts_ns[row] >= begins[around]) & (end_ns[row] <= ends[around])
    outer, inside = around[is_inside], called[is_inside]
    calls = unique(outer)
    piece_of, begin = np.append(calls, outer), np.append(begins[calls], host.end_ns[inside])
    order = np.lexsort((begin, piece_of))
    piece_of, begin = piece_of[order], begin[order]
    until = np.append(host.start_ns[inside], ends[calls])
    until = until[np.lexsort((until, np.append(outer, calls)))]
    longest = np.lexsort((until - begin, piece_of))
    longest = longest[until[longest] > begin[longest]]
    begins[piece_of[longest]], ends[piece_of[longest]] = begin[longest], until[longest]
    return begins, ends, inside


def _enqueuing(trace: Trace, host: Segments, moments: Int64) -> Int64:
    """Find the segment that enqueued a collective at each moment, else the last before it; -1 for none."""
    segment = host.started(np.full(len(moments), host.main), moments)
    enqueues = by_name(trace, lambda name: name.startswith(_ENQUEUES))
    for thread in unique(host.thread).tolist():
        here = host.started(np.full(len(moments), thread), moments)
        ran = (here >= 0) & (host.end_ns[here] >= moments) & enqueues[host.row[here]]
        segment = np.where(ran, here, segment)
    return segment


def _events(rank: _Rank) -> step_windows.RecordedEvents:
    host, works, trace = rank.host, rank.works, rank.trace
    rows = np.concatenate([host.row, rank.aside, works.row])
    first, _ = host.of_rows(len(trace) + 1)
    launches = np.where(works.call >= 0, first[works.call], -1)
    requests = np.append(rank.enqueued, launches)
    passed_on = np.append(host.phase, Phase.NONE)[requests]
    passed_on[passed_on == Phase.INPUT] = Phase.NONE  # a copy of input loads none
    phase = np.append(host.phase, passed_on)
    start = np.concatenate([host.start_ns, rank.aside_start_ns, works.start_ns])
    meetings, communicates = _meetings_of(rank, rows, start)
    kinds, kind = _kinds(rank, rows, phase, communicates)
    issued = start.copy()
    issued[rank.first_work :] = np.minimum(works.call_start_ns, works.start_ns)
    end = np.concatenate([host.end_ns, rank.aside_end_ns, works.end_ns])
    leads = np.zeros(len(rows), np.bool_)
    if (works.call >= 0).any() or not len(works):  # else the work that the host waits for is unknown
        leads[: len(host)] = host.thread == host.main
    edges = _edges(rank, start, end)
    return step_windows.RecordedEvents(kinds, kind, start, end, issued, leads, edges, meetings)


def _kinds(rank: _Rank, rows: Int64, phase: Int64, communicates: Mask) -> tuple[list[Operation], Int64]:
    """List the distinct operations, and the index of each event's operation (n,).

    Communication is collective, except for the calls that hand it to a library.
    """
    trace = rank.trace
    together = communicates & (np.arange(len(rows)) >= len(rank.host))
    on_device = np.arange(len(rows)) >= rank.first_work
    names, name_of = numbered(
        _COMPILED.sub(r"\1\2", text) if _IS_COMPILED in text else text for text in trace.names
    )
    name_ids, cat_ids, tracks = name_of[trace.name_id[rows]], trace.cat_id[rows], trace.track_id[rows]
    phase = np.where(communicates & ~together, Phase.NONE, phase)
    works = np.isin(rank.roles, (Role.COMPUTE, Role.COPY, Role.HOST, Role.CALL))  # annotations as operators
    usual = Role.HOST if (rank.roles == Role.HOST).any() else Role.COMPUTE
    role = np.where(communicates, Role.COMM, np.where(works, rank.roles, usual)[rows])
    is_span = by_cat(trace, "user_annotation".__eq__) & ~by_name(trace, lambda name: _IS_COMPILED in name)
    is_span = is_span[rows] & (role != Role.COMM) & (phase != Phase.INPUT)
    columns = (name_ids, cat_ids, tracks, phase, on_device, together, role, is_span)
    sizes = (len(names), len(trace.cats), len(trace.tracks), len(Phase), 2, 2, len(Role), 2)
    distinct, kind = np.unique(np.ravel_multi_index(columns, sizes), return_inverse=True)
    kinds = []
    for values in np.column_stack(np.unravel_index(distinct, sizes)).tolist():
        name, cat, track, in_phase, *flags, has_role, spans = values
        operation = Operation(
            names[name], trace.cats[cat], trace.tracks[track], Role(has_role), Phase(in_phase)
        )
        device, group = map(bool, flags)
        kinds.append(operation._replace(is_collective=group, on_device=device, is_span=bool(spans)))
    return kinds, kind.reshape(-1).astype(np.int64)


# ---- edges


def _edges(rank: _Rank, start_ns: Int64, end_ns: Int64) -> Int64:
    works = rank.works
    first, last = rank.host.of_rows(len(rank.trace) + 1)
    if (works.call >= 0).any():
        elsewhere = renumbered(kineto_events.after_other_streams(rank.trace, works), rank.first_work)
    else:
        elsewhere = _unlaunched(rank, start_ns, end_ns)
    awaited, calls = kineto_events.awaited_by_calls(rank.trace, rank.end_ns, works)
    pairs = (kineto_events.waiting_for_room(works, low, high) for _, low, high in works.by_stream())
    begun, blocked = np.concatenate([np.empty((2, 0), np.int64), *pairs], axis=1)
    same_thread = np.flatnonzero(rank.host.thread[1:] == rank.host.thread[:-1])
    return np.concatenate([
        edge_rows(same_thread, same_thread + 1, Joint.END_TO_HEAD, Rule.THREAD),
        *_aside(rank),
        *_handed_over(rank),
        renumbered(kineto_events.after_on_stream(works), rank.first_work),
        elsewhere,
        *_launches(rank, first, last),
        _to_calls(rank, awaited, last[calls], Joint.END_TO_BODY, Rule.AWAITED),
        _to_calls(rank, begun, last[blocked], Joint.START_TO_BODY, Rule.ROOM),
        _handed_on(rank, last),
        *_polls(rank),
    ])  # fmt: skip


def _launches(rank: _Rank, first: Int64, last: Int64) -> list[Int64]:
    """Link each launch call to the work that it launched.

    The edge leaves from the call's end, unless the work began before: work that waits in the queue of its
    device does not wait for the call's remaining time.
    """
    works = rank.works
    is_launched = (works.call >= 0) & (works.call_start_ns <= works.start_ns)
    is_over = (works.call_end_ns <= works.start_ns) & (works.call_end_ns < works.end_ns)
    edges = []
    for segment, joint, which in (
        (last, Joint.END_TO_HEAD, is_launched & is_over),
        (first, Joint.START_TO_HEAD, is_launched & ~is_over),
    ):
        launched = np.flatnonzero(which)
        source = segment[works.call[launched]]
        launched, source = launched[source >= 0], source[source >= 0]
        edges.append(edge_rows(source, rank.first_work + launched, joint, Rule.LAUNCH))
    return edges


def _to_calls(rank: _Rank, works: Int64, segments: Int64, joint: Joint, rule: Rule) -> Int64:
    """Link works to the last segments of the calls that wait for them."""
    ends = rank.works.start_ns if joint == Joint.START_TO_BODY else rank.works.end_ns
    known = (segments >= 0) & (ends[works] <= rank.host.end_ns[segments] + TOLERANCE_NS)
    return edge_rows(rank.first_work + works[known], segments[known], joint, rule)


def _aside(rank: _Rank) -> list[Int64]:
    """Link collectives aside to their enqueuing, to operations in them, and to the collective before."""
    trace, host, numbers = rank.trace, rank.host, rank.aside_numbers
    start, end, track = rank.aside_start_ns, rank.aside_end_ns, trace.track_id[rank.aside]
    is_later = start > trace.ts_ns[rank.aside]
    source = np.where(is_later, host.started(track.astype(np.int64), start), rank.enqueued)
    over = source >= 0
    over[over] = host.end_ns[source[over]] <= start[over]
    edges = [edge_rows(source[over], numbers[over], Joint.END_TO_HEAD, Rule.ENQUEUED)]
    order = np.argsort(track, kind="stable")
    follows = np.flatnonzero(np.diff(track[order]) == 0)
    before, after = order[follows], order[follows + 1]
    overlaps = end[before] > start[after] + ROUNDED_NS
    for chosen, joint in ((overlaps, Joint.END_TO_BODY), (~overlaps, Joint.END_TO_HEAD)):
        edges.append(edge_rows(numbers[before[chosen]], numbers[after[chosen]], joint, Rule.ONE_COLLECTIVE))
    return edges


def _handed_over(rank: _Rank) -> list[Int64]:
    """Link the end of work on another thread of the host to the idle thread that resumes after it.

    The main thread may be busy with unrecorded work, so it waits only for an end in the later half of its
    idle time. An annotation beside its operations may have waited in the same way, before its work.
    """
    host = rank.host
    ends = np.concatenate([np.flatnonzero(host.closes), rank.aside_numbers])
    starts = np.concatenate([host.start_ns, rank.aside_start_ns])[ends]
    end_ns = np.concatenate([host.end_ns, rank.aside_end_ns])[ends]
    group = np.append(host.thread, np.full(len(rank.aside), -1))[ends]
    ended_before = np.full(len(host), int(host.start_ns.min(initial=0)) if len(host) else 0)
    goes_on = np.flatnonzero(host.thread[1:] == host.thread[:-1]) + 1
    ended_before[goes_on] = host.end_ns[goes_on - 1]
    handed = []
    for joint, idle_from, idle_to, may_wait in (
        (Joint.END_TO_HEAD, ended_before, host.start_ns, np.ones(len(host), np.bool_)),
        (Joint.END_TO_BODY, host.start_ns, host.end_ns, host.is_around),
    ):
        resumed = np.flatnonzero(may_wait & (idle_to - idle_from >= UNRECORDED_NS))
        ended = step_windows.ended_last(end_ns, group, idle_to[resumed], host.thread[resumed])
        late = np.where(ended >= 0, end_ns[ended], 0)
        since = np.where(host.thread[resumed] == host.main, SOON, 1.0) * (idle_to - idle_from)[resumed]
        waited = (ended >= 0) & (late > idle_from[resumed]) & (idle_to[resumed] - late <= since)
        waited &= starts[ended] < idle_to[resumed]
        handed.append(edge_rows(ends[ended[waited]], resumed[waited], joint, Rule.IDLE_THREAD))
    return handed


def _unlaunched(rank: _Rank, start_ns: Int64, end_ns: Int64) -> Int64:
    """Link device work without a recorded launch to the event of its rank that ended nearest to its start.

    See `ended_nearest`. Work that follows other work of its stream at once needs no such link. Where the
    event seems to end after the work begins, `start_ns` of the work is set to that end. Of messages that end
    together, the work waits for the received one.
    """
    group = np.concatenate([rank.host.thread, np.full(len(rank.aside), -1), -2 - rank.works.stream])
    works = rank.works
    at_once = np.append(False, works.start_ns[1:] <= works.end_ns[:-1] + TOLERANCE_NS)[: len(works)]
    at_once &= np.append(False, np.diff(works.stream) == 0)[: len(works)]
    targets = rank.first_work + np.flatnonzero(~at_once)
    sent = np.append(np.zeros(rank.first_work, np.bool_), integers(rank.trace, "Dst Rank", works.row) >= 0)
    ended = step_windows.ended_nearest(start_ns, end_ns - TOLERANCE_NS * sent, group, targets)
    ended, targets = ended[ended >= 0], targets[ended >= 0]
    start_ns[targets] = np.maximum(start_ns[targets], end_ns[ended])
    return edge_rows(ended, targets, Joint.END_TO_HEAD, Rule.UNLAUNCHED)


# ---- collectives


def _meetings_of(rank: _Rank, rows: Int64, start_ns: Int64) -> tuple[Meetings, Mask]:
    """Find the meetings of collectives with other ranks, and mask the events (n,) that communicate.

    Ranks know a collective by its kind, process group and sequence number; of several that these do not
    distinguish, the n-th requested in a step is the n-th elsewhere, whenever the kernels run. A recording
    that begins later, or lost events, then differs in those steps alone. A kernel without a launch belongs to
    the step of the one before it of the same key.
    """
    trace, works = rank.trace, rank.works
    communicates = rank.roles[rows] == Role.COMM
    together = communicates & (np.arange(len(rows)) >= len(rank.host))
    if len(works) or not len(rank.aside):  # else its calls may wait for the library, which is the host's
        communicates = together.copy()
        communicates[rank.called] = True
    events = np.flatnonzero(together)
    keys = [key for key in collectives.SYNC_ARGS if key in trace.args]
    columns = {key: trace.args[key].as_dict() for key in keys}
    requested_ns = np.append(start_ns[: rank.first_work], works.call_start_ns)
    step = places(rank.steps, requested_ns)
    step[rank.first_work :][works.call < 0] = -1
    latest: dict[Hashable, int] = {}  # the number of the last step of each key
    count: Counter[Hashable] = Counter()
    group = collectives.host_group(trace.header, trace.rank)
    meetings = []
    for event in events[np.argsort(start_ns[events], kind="stable")].tolist():
        row = int(rows[event])
        args = {key: column.get(row) for key, column in columns.items()}
        name, cat = trace.names[trace.name_id[row]], trace.cats[trace.cat_id[row]]
        known_meeting = collectives.meeting(name, cat, args, trace.rank, group)
        if known_meeting is not None:
            key, rule = known_meeting
            if step[event] >= 0:
                latest[key] = int(rank.steps[step[event], 0])
            key = (key, latest[key]) if key in latest else key
            meetings.append(Meeting(key, event, enters=True, leaves=True, rule=rule, turn=count[key]))
            count[key] += 1
    return meetings_table(meetings), communicates


def _handed_on(rank: _Rank, last: Int64) -> Int64:
    """Link a call of the runtime to the call of the same correlation that another thread makes within it."""
    trace = rank.trace
    calls = np.flatnonzero(by_cat(trace, RUNTIME_CATS.__contains__))
    number = integers(trace, "correlation", calls)
    order = np.lexsort((-rank.end_ns[calls], trace.ts_ns[calls], number))
    calls, number = calls[order], number[order]
    outer, inner = calls[:-1], calls[1:]
    answers = (number[1:] == number[:-1]) & (number[1:] >= 0) & (last[inner] >= 0)
    answers &= trace.track_id[inner] != trace.track_id[outer]
    inner, outer = inner[answers], outer[answers]
    during = rank.host.running(trace.track_id[outer].astype(np.int64), rank.end_ns[inner])
    waits = (during >= 0) & (rank.host.row[during] == outer)
    return edge_rows(last[inner[waits]], during[waits], Joint.END_TO_BODY, Rule.ANSWERED)


def _polls(rank: _Rank) -> list[Int64]:
    """Link work to the host that polls for it: in an operation without calls, or between operations.

    Between operations a Python function that waits by its name may poll.
    """
    host, trace, works = rank.host, rank.trace, rank.works
    is_main = host.thread == host.main
    is_call = by_cat(trace, RUNTIME_CATS.__contains__)[host.row]
    inside = np.flatnonzero(is_main & ~is_call)
    after = np.flatnonzero(is_main[1:] & is_main[:-1]) + 1
    waits = np.flatnonzero(by_name(trace, _PYTHON_WAITS.fullmatch) & (trace.dur_ns > 0))
    waits = waits[np.argsort(trace.ts_ns[waits], kind="stable")]
    last = np.searchsorted(trace.ts_ns[waits], host.start_ns[after]) - 1
    waits_between = (last >= 0) & (np.append(rank.end_ns[waits], 0)[last] > host.end_ns[after - 1])
    edges = []
    for targets, start, end, joint, is_waiting in (
        (inside, host.start_ns, host.end_ns, Joint.END_TO_BODY, np.zeros(len(inside), np.bool_)),
        (after, np.roll(host.end_ns, 1), host.start_ns, Joint.END_TO_HEAD, waits_between),
    ):
        sources = kineto_events.polled(works, start[targets], end[targets], is_waiting)
        known = sources >= 0
        edges.append(edge_rows(rank.first_work + sources[known], targets[known], joint, Rule.POLLED))
    return edges
