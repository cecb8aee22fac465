"""Horovod's timeline as steps: tensors are negotiated, then reduced.

Rank 0 writes one timeline for all ranks, so there is one owner. Computation is not recorded: the time before
a rank is ready with a tensor stands for it. In a negotiation each rank that becomes ready leaves a tick, and
the last tick ends it. Horovod's response cache leaves the ticks out after a tensor's first negotiation; the
rank that was last most often is then taken for the last.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from msgspec import Struct, field

from analyzer.base.arrays import Int64, Mask
from analyzer.base.errors import TraceError
from analyzer.reading.dialects.edge_rules import Rule
from analyzer.reading.dialects.owners import names_in
from analyzer.reading.dialects.roles import Phase, Role, by_name
from analyzer.reading.dialects.step_parts import Edge, Joint, Operation, RankStep, RankSteps, Transfer, Whose
from analyzer.reading.dialects.steps import Step, Steps
from analyzer.reading.dialects.tolerances import AT_ONCE_NS, CLEARLY_LAST, CYCLE_NS
from analyzer.reading.formats.columns import Id, Trace, Track

_NEGOTIATE = "NEGOTIATE_"
_NEVER_NS = np.iinfo(np.int64).max


class _Collective(Struct):
    """The collective of one tensor in one step; rows of the trace."""

    tensor: str
    reduction: int
    negotiation: int | None
    ticks: Mapping[str, int]  # rank -> when it was ready
    parts: list[int] = field(default_factory=list)


def record(name: str, trace: Trace, marked: Steps) -> RankSteps:
    """Make the graphs of the whole steps of a Horovod job, else of its start-up."""
    steps = marked.whole or marked.partial
    if not steps:
        raise TraceError(f"{trace.path}: no round of reductions is recorded in it")
    collectives = _collectives(trace)
    late = _usually_last(trace, collectives)
    ends = trace.end_ns[[collective.reduction for collective in collectives]]
    rounds = []
    for step in steps:
        inside = np.flatnonzero((ends > step.start_ns) & (ends <= step.end_ns)).tolist()
        in_step = [collectives[i] for i in inside]
        rounds.append(sorted(in_step, key=lambda collective: int(trace.ts_ns[collective.reduction])))
    number, independent = _independent(trace, rounds)
    operations: dict[Operation, int] = {}
    parts = [
        _StepBuilder(trace, trace.end_ns, step, operations, number, independent, late).built(in_step)
        for step, in_step in zip(steps, rounds, strict=True)
    ]
    return RankSteps(name, list(operations), parts, _notes(collectives, late))


def _independent(trace: Trace, rounds: Sequence[Sequence[_Collective]]) -> tuple[Mapping[str, int], Mask]:
    """Index the tensors, and mask pairs [reduced, ready] of which the second did not wait for the first.

    In some step a rank was ready with the second before the first was reduced. Then it did not wait for the
    first either with tensors that came later, long after it had requested the first.
    """
    tensors = dict.fromkeys(collective.tensor for in_step in rounds for collective in in_step)
    number = {tensor: i for i, tensor in enumerate(tensors)}
    is_known = np.zeros((len(number), len(number)), np.bool_)
    end_ns = trace.end_ns
    for in_step in rounds:
        ids = np.array([number[collective.tensor] for collective in in_step], np.int64)
        reductions = [collective.reduction for collective in in_step]
        negotiations = [collective.negotiation for collective in in_step]
        firsts = [b if a is None else a for a, b in zip(negotiations, reductions, strict=True)]
        asked, reduced = trace.ts_ns[firsts], end_ns[reductions]
        is_known[np.ix_(ids, ids)] |= asked[None, :] < reduced[:, None]
        goes_on = (asked[None, :] > asked[:, None] + CYCLE_NS) & (asked[None, :] < reduced[:, None])
        since = np.where(goes_on, asked[None, :], _NEVER_NS).min(axis=1, initial=_NEVER_NS)
        is_known[np.ix_(ids, ids)] |= asked[None, :] >= since[:, None]
    return number, is_known


def _collectives(trace: Trace) -> list[_Collective]:
    """List every reduction with the negotiation before it, the ticks in that, and its own parts."""
    tensors = names_in(trace.metadata, "process_name")
    kinds = {name.removeprefix(_NEGOTIATE) for name in trace.names if name.startswith(_NEGOTIATE)}
    of_tensor: dict[Id, list[int]] = defaultdict(list)
    is_other = by_name(trace, lambda name: not name.startswith(_NEGOTIATE))
    for row in np.lexsort((-trace.dur_ns, is_other, trace.ts_ns)).tolist():
        of_tensor[trace.tracks[trace.track_id[row]].pid].append(row)
    ticks: dict[Id, list[tuple[int, str]]] = defaultdict(list)  # of each tensor: when each rank was ready
    points = trace.points
    for i in np.argsort(points.ts_ns, kind="stable").tolist():
        if (rank := trace.names[points.name_id[i]]).isdecimal():
            ticks[trace.tracks[points.track_id[i]].pid].append((int(points.ts_ns[i]), rank))
    collectives: list[_Collective] = []
    for pid, rows in of_tensor.items():
        collectives += _of_tensor(trace, rows, tensors.get((pid, None), str(pid)), kinds, ticks[pid])
    return collectives


def _of_tensor(
    trace: Trace, rows: Iterable[int], tensor: str, kinds: set[str], ticks: Sequence[tuple[int, str]]
) -> list[_Collective]:
    collectives: list[_Collective] = []
    end_ns = trace.end_ns
    negotiation: int | None = None
    ready: dict[str, int] = {}
    for row in rows:
        name = trace.names[trace.name_id[row]]
        if name.startswith(_NEGOTIATE):
            first, last = (
                bisect_left(ticks, (int(index), "")) for index in (trace.ts_ns[row], end_ns[row] + 1)
            )
            negotiation, ready = row, {rank: index for index, rank in ticks[first:last]}
        elif name in kinds:
            collectives.append(_Collective(tensor, row, negotiation, ready))
            negotiation, ready = None, {}
        elif collectives and trace.ts_ns[row] <= end_ns[collectives[-1].reduction]:
            collectives[-1].parts.append(row)
    return collectives


def _usually_last(trace: Trace, collectives: Sequence[_Collective]) -> str:
    """Find the rank that caused most of the recorded waiting; "" where none stands out."""
    waited: dict[str, int] = defaultdict(int)
    for collective in collectives:
        if len(collective.ticks) > 1 and "BROADCAST" not in trace.names[trace.name_id[collective.reduction]]:
            *_, before, last = sorted(collective.ticks, key=lambda rank: collective.ticks[rank])
            waited[last] += collective.ticks[last] - collective.ticks[before]
    rank = max(waited, key=lambda rank: waited[rank], default="")
    return rank if rank and waited[rank] > CLEARLY_LAST * sum(waited.values()) else ""


def _notes(collectives: Sequence[_Collective], late: str) -> list[str]:
    notes = [
        "Horovod's timeline has no computation: the time before a rank is ready with a tensor stands for it"
    ]
    negotiated = [collective for collective in collectives if collective.negotiation is not None]
    ticked = sum(bool(collective.ticks) for collective in negotiated)
    if ticked < len(negotiated):
        others = "in the others the last rank is not known"
        if late:
            others = f"most waiting in these was for rank {late}; we assume that it was last in the rest, too"
        notes.append(
            f"{ticked} of {len(negotiated)} negotiations tell which rank was ready when "
            f"(Horovod's response cache leaves it out); {others}"
        )
    return notes


class _StepBuilder(Struct):
    """Collects the events and edges of one step; `operations` are those of all steps, with their numbers."""

    trace: Trace
    end_ns: Int64  # of the trace's slices
    step: Step
    operations: dict[Operation, int]
    number: Mapping[str, int]  # of tensors
    independent: Mask  # of tensors; these two as of `_independent`
    late: str  # the rank that is usually last; "" for none
    operation: list[int] = field(default_factory=list)
    times: list[tuple[int, int]] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    ready: dict[Whose, int] = field(default_factory=dict)  # whose computation -> its last event
    reductions: Sequence[int] = ()  # events, by end
    reduced_ns: Int64 = field(default_factory=lambda: np.empty(0, np.int64))  # their ends
    reduced_tensors: Int64 = field(default_factory=lambda: np.empty(0, np.int64))

    def built(self, collectives: Sequence[_Collective]) -> RankStep:
        """Build the step."""
        event_of = [self._add_reduction(collective) for collective in collectives]
        by_end = sorted(zip(event_of, collectives, strict=True), key=lambda pair: self.times[pair[0]][1])
        self.reductions = [event for event, _ in by_end]
        self.reduced_ns = np.array([self.times[event][1] for event in self.reductions], np.int64)
        self.reduced_tensors = np.array(
            [self.number[collective.tensor] for _, collective in by_end], np.int64
        )
        for event in event_of:
            if (before := self._reduced_by(self.times[event][0])) is not None:
                self.edges.append(Edge(before, event, rule=Rule.ONE_COLLECTIVE))
        hand_overs = [
            (index, who, target, joint, collective.tensor)
            for collective, event in zip(collectives, event_of, strict=True)
            for index, who, target, joint in self._negotiate(collective, event)
        ]
        for index, who, target, joint, tensor in sorted(hand_overs):
            event = self._computation(index, who, tensor)
            rule = Rule.FIRST_READY if joint == Joint.END_TO_HEAD else Rule.LAST_READY
            self.edges.append(Edge(event, target, joint, rule))
        times = np.array(self.times, np.int64).reshape(-1, 2)
        bounds = self.step.start_ns, self.step.end_ns
        return RankStep.of(self.step.label, bounds, np.array(self.operation, np.int64), times, self.edges)

    def _add_reduction(self, collective: _Collective) -> int:
        """Add a reduction and its parts, which follow each other from its start to its end."""
        whole = self._add_row(collective.reduction, collective.tensor, is_collective=True)
        before, joint = whole, Joint.START_TO_HEAD
        for row in collective.parts:
            part = self._add_row(row, collective.tensor)
            self.edges.append(Edge(before, part, joint, Rule.PART))
            before, joint = part, Joint.END_TO_HEAD
        if before != whole:
            self.edges.append(Edge(before, whole, Joint.END_TO_BODY, Rule.PART))
        return whole

    def _negotiate(self, collective: _Collective, reduction: int) -> list[tuple[int, Whose, int, Joint]]:
        """Add the negotiation before a reduction; return (time, rank, event that it let go on, joint)."""
        if collective.negotiation is None:
            return [(self.times[reduction][0], Whose(), reduction, Joint.END_TO_HEAD)]
        event = self._add_row(collective.negotiation, collective.tensor, role=Role.WAIT)
        start, end = self.times[event]
        self.edges.append(Edge(event, reduction, rule=Rule.NEGOTIATED))
        if collective.ticks:
            first, *others = sorted(
                (index, Whose(f"rank{rank}", int(rank))) for rank, index in collective.ticks.items()
            )
            return [
                (min(first[0], start), first[1], event, Joint.END_TO_HEAD),
                *((min(index, end), who, event, Joint.END_TO_BODY) for index, who in others),
            ]
        hand_overs = [(start, Whose(), event, Joint.END_TO_HEAD)]
        if end - start > CYCLE_NS:
            who = Whose("last rank")
            if self.late:
                who = Whose(f"rank{self.late} (inferred)", int(self.late), is_guess=True)
            hand_overs.append((end, who, event, Joint.END_TO_BODY))
        return hand_overs

    def _computation(self, at: int, who: Whose, tensor: str) -> int:
        """Add the rank's computation before it was ready with a tensor.

        It began when the rank was ready with the tensor before, or at the end of the last reduction for which
        it may have waited.
        """
        source = self.ready.get(who)
        if source is not None and at - self.times[source][1] <= AT_ONCE_NS:
            return source
        overtook = self.independent[self.reduced_tensors, self.number[tensor]]
        waited = np.flatnonzero((self.reduced_ns <= at) & ~overtook)
        since = self.step.start_ns if source is None else self.times[source][1]
        rule = Rule.THREAD
        if len(waited) and self.reduced_ns[waited[-1]] > since:
            source, since, rule = self.reductions[waited[-1]], int(self.reduced_ns[waited[-1]]), Rule.REDUCED
        name = f"{who.name}: computation" if who.name else "computation"
        work = Operation(name, "untraced", Track(name, None), Role.UNTRACED, Phase.BACKWARD, whose=who)
        event = self._append(work, since, max(at, since))
        if source is not None:
            self.edges.append(Edge(source, event, rule=rule))
        busy = self._reduced_by(at)
        if busy is not None and since < self.times[busy][1] and at - self.times[busy][1] <= CYCLE_NS:
            self.edges.append(Edge(busy, event, Joint.END_TO_BODY, Rule.ONE_COLLECTIVE))
        self.ready[who] = event
        return event

    def _reduced_by(self, at: int) -> int | None:
        """Find the reduction that ended last by that time."""
        n_over = int(np.searchsorted(self.reduced_ns, at, side="right"))
        return self.reductions[n_over - 1] if n_over else None

    def _add_row(self, row: int, tensor: str, role: Role = Role.COMM, *, is_collective: bool = False) -> int:
        trace = self.trace
        start, end = int(trace.ts_ns[row]), int(self.end_ns[row])
        name, track = trace.names[trace.name_id[row]], trace.tracks[trace.track_id[row]]
        operation = Operation(
            name=name,
            cat="wait" if role is Role.WAIT else "Comm",
            track=track,
            role=role,
            transfer=Transfer(tensor, name),
            is_collective=is_collective,
        )
        return self._append(operation, max(start, self.step.start_ns), max(end, self.step.start_ns))

    def _append(self, operation: Operation, start: int, end: int) -> int:
        self.operation.append(self.operations.setdefault(operation, len(self.operations)))
        self.times.append((start, end))
        return len(self.operation) - 1
