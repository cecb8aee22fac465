"""A critical path in words, summed by name and by category, and as a row of the recorded timeline."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from analyzer.base.arrays import Int64
from analyzer.base.errors import listed
from analyzer.base.names import brief
from analyzer.base.units import LazySequence, in_ms, in_percent
from analyzer.model.graph.critical_path import CATS, GAP, NO_EVENT, WAIT, CriticalPath, CriticalPaths
from analyzer.model.graph.dag import Dag
from analyzer.model.graph.step_graph import Recording, StepGraph
from analyzer.reading.dialects.edge_rules import RULES
from analyzer.reading.dialects.roles import Role
from analyzer.reading.formats.chrome_writer import Slice, ThreadRow, recorded_row
from analyzer.reading.formats.columns import Trace

#: Kind and sentence of each rule; the last for the rule -1.
_BECAUSE = [*((rule.kind.label, rule.sentence) for rule in RULES), ("", "")]


class Label(NamedTuple):
    """The name of a stretch of a path."""

    name: str  # without the owner
    cat: str
    owner: str
    kind: str  # of work, as `Operation.kind_of_work`


class NameShare(NamedTuple):
    """The time of one operation of one owner on a path."""

    name: str
    cat: str
    owner: str
    kind: str
    stretches: int
    ns: int
    share: float  # of the path


class NamedPath(Struct, frozen=True):
    """A path in words: k stretches in time order."""

    labels: Sequence[Label]  # distinct
    label: Int64  # (k,) index into `labels`
    start_ns: Int64  # (k,) after the start of the step
    dur_ns: Int64  # (k,)
    rule: Int64  # (k,) the `Rule` of the edge by which the path enters the stretch, -1 for none
    covered: frozenset[int] = (
        frozenset()
    )  # indices of `labels` that are gaps inside a Python function or call

    @classmethod
    def of(
        cls, recording: Recording, path: CriticalPath, *, parts: bool = False, merged: bool = True
    ) -> NamedPath:
        """Name the stretches of a path.

        Without `parts`, the partitions and stages of a communication have the name of the whole. If `merged`,
        successive stretches of one name are one.
        """
        labels, label = _labelled(recording, path, parts=parts)
        number_of: dict[Label, int] = {}
        for stretch, (name, waits) in path.gap_covers(recording.frames).items():
            words = f"{'waiting' if waits else 'idle'} in {name}"
            covered = Label(words, GAP, recording.owners[path.owners[stretch]], GAP)
            label[stretch] = number_of.setdefault(covered, len(labels) + len(number_of))
        is_first = np.ones(len(label), np.bool_)
        if merged:
            is_first[1:] = np.diff(label) != 0
        first = np.flatnonzero(is_first)
        dur = np.add.reduceat(path.end_ns - path.start_ns, first) if len(first) else path.end_ns
        start_ns, labels = path.start_ns[first] - path.begin_ns, [*labels, *number_of]
        return cls(labels, label[first], start_ns, dur, path.rule[first], frozenset(number_of.values()))

    def __len__(self) -> int:
        return len(self.label)

    @property
    def ns(self) -> list[int]:
        """Time of each label on the path, in ns."""
        sums: list[int] = np.bincount(self.label, self.dur_ns, len(self.labels)).astype(np.int64).tolist()
        return sums

    def rows(self, *, owned: bool = False, why: bool = False) -> LazySequence[tuple[str | float, ...]]:
        """Show each stretch as cells of `PATH`: the name with its owner if `owned`, its rule if `why`."""
        label, start_ns, dur_ns, rule = self.label.item, self.start_ns.item, self.dur_ns.item, self.rule.item
        shown = 2 if why else 1

        def cells(i: int) -> tuple[str | float, ...]:
            name, cat, owner, _ = self.labels[label(i)]
            name = f"{owner}.{name}" if owned else name
            return name, cat, owner, start_ns(i) / 1e6, dur_ns(i) / 1e6, *_BECAUSE[rule(i)][:shown]

        return LazySequence(range(len(self)), cells)

    def by_name(self) -> list[NameShare]:
        """Sum the path by operation and owner, the largest first; its kind is that of most of the time."""
        counts: Counter[tuple[str, str, str]] = Counter()
        kinds: defaultdict[tuple[str, str, str], Counter[str]] = defaultdict(Counter)
        stretches = np.bincount(self.label, minlength=len(self.labels)).tolist()
        for (name, cat, owner, kind), count, ns in zip(self.labels, stretches, self.ns, strict=True):
            counts[name, cat, owner] += count
            kinds[name, cat, owner][kind] += ns
        length = max(sum(self.ns), 1)
        shares = [
            NameShare(*what, of.most_common(1)[0][0], counts[what], of.total(), of.total() / length)
            for what, of in kinds.items()
        ]
        return sorted(shares, key=lambda share: -share.ns)

    def by_category(self) -> dict[str, int]:
        """Sum the nanoseconds of the path by category, the largest first."""
        sums: Counter[str] = Counter()
        for label, ns in zip(self.labels, self.ns, strict=True):
            sums[label.cat] += ns
        return dict(sums.most_common())

    def headline(self, recording: Recording, step: StepGraph, path: CriticalPath) -> str:
        """Write a sentence with the length of the step and the largest shares of its path."""
        sums: Counter[tuple[str, str]] = Counter()  # by kind of work, or operation where it has none
        for i, (label, ns) in enumerate(zip(self.labels, self.ns, strict=True)):
            sums[label.name if i in self.covered else label.kind or label.name, label.owner] += ns
        ranked = sums.most_common(3)
        largest = [(key, ns) for key, ns in ranked if 100 * ns >= path.length_ns] or ranked[:1]
        on = " on {}" if len(recording.owners) > 1 else ""
        shares = [
            f"{in_percent(ns / max(path.length_ns, 1))} {_WORDS.get(kind) or brief(kind)}{on.format(owner)}"
            for (kind, owner), ns in largest
        ]
        name = f"Step {step.number}" if recording.has_steps else recording.one_step
        if (n := len(recording.whole_steps)) > 1 and step is recording.steps[recording.choose_step()]:
            name += f", the median of {n},"
        return f"{name} takes {step_length(recording, step, path)}; its critical path is {listed(shares)}."


def _labelled(recording: Recording, path: CriticalPath, *, parts: bool) -> tuple[list[Label], Int64]:
    """List the labels of a path, and the index of each stretch's label (k,)."""
    no_operation = np.where(path.start_ns == path.begin_ns, -2, -1)
    what = np.where(path.event == NO_EVENT, no_operation, recording.operations.kind[path.operation])
    key = (what + 2) * len(CATS) + path.cat
    _, first, group = np.unique(
        key * len(recording.owners) + path.owners, return_index=True, return_inverse=True
    )
    known: dict[Label, int] = {}
    number = np.empty(len(first), np.int64)
    for group_number in np.argsort(first).tolist():
        stretch = int(first[group_number])
        kind, cat = int(what[stretch]), CATS[path.cat[stretch]]
        owner = recording.owners[path.owners[stretch]]
        if kind < 0:
            label = Label("before the step" if kind == -2 else "before the next step", GAP, owner, GAP)
        else:
            operation = recording.operations.kinds[kind]
            name = operation.label if parts else operation.main
            if cat == GAP:
                label = Label(f"before {name}", GAP, owner, GAP)
            elif cat == WAIT:
                label = Label(f"{name} waits for another rank", WAIT, owner, WAIT)
            else:
                label = Label(name, operation.category, owner, operation.kind_of_work)
        number[group_number] = known.setdefault(label, len(known))
    return list(known), number[group.reshape(-1)]


def step_length(
    recording: Recording, step: StepGraph, path: CriticalPath, lasts_ns: float | None = None
) -> str:
    """Write a step's length on the rank that ends last, and the ranks' mean if that differs.

    If given, `lasts_ns` (of `job_lengths`) comes first, and the mean is left out.
    """
    last_rank = in_ms(path.length_ns)
    if len(recording.owners) == 1:
        return last_rank
    by_clock = " by clocks that nothing ties" if recording.unaligned else ""
    last = f"{last_rank} on {recording.owners[path.owner]}, which ends last{by_clock}"
    if lasts_ns:
        whole = in_ms(lasts_ns)
        return last if whole == last_rank else f"{whole} ({last})"
    mean = in_ms(step.bounds.mean_ns) if step.bounds.mean_ns else last_rank
    return last if mean == last_rank else f"{last} (mean of the ranks: {mean})"


_WORDS = {GAP: "gap (nothing recorded)", WAIT: "waiting for other ranks"}


#: What a scope covers.
ScopeKind: TypeAlias = Literal["GPU", "worker", "job"]
_Group: TypeAlias = tuple[ScopeKind, str, int, list[int]]  # kind, name, worker, owners


class Scope(Struct, frozen=True):
    """A GPU, a worker or the job, and the critical path through its events."""

    kind: ScopeKind
    name: str  # ``GPU-1``
    worker: int
    length_ns: int
    path: Callable[[], NamedPath]  # most are never shown


class OperationSlack(Struct):
    """The events of one name in a step: the sum of their durations, and the least slack."""

    name: str
    cat: str
    dur_ns: int
    slack_ns: int


def scopes_of(
    recording: Recording, kind: str, step: StepGraph, *, parts: bool
) -> tuple[list[Scope], CriticalPath]:
    """Find the paths of each GPU, each worker and the job, the widest last; also return its path unnamed.

    `kind` is `JobFiles.kind`, `parts` as for `NamedPath.of`.
    """

    def scope(of: ScopeKind, name: str, worker: int, paths: CriticalPaths, part: int) -> Scope:
        def path() -> NamedPath:
            return NamedPath.of(recording, paths.path(part), parts=parts)

        return Scope(of, name, worker, paths.length_ns(part), path)

    scopes = []
    for groups in _groups(recording, kind):
        paths = CriticalPaths(step, [owners for *_, owners in groups])
        scopes += [scope(of, name, worker, paths, i) for i, (of, name, worker, _) in enumerate(groups)]
    widest = paths.path(len(groups) - 1)
    named = NamedPath.of(recording, widest, parts=parts)  # which every output format shows
    scopes[-1] = replace(scopes[-1], path=lambda: named)
    return scopes, widest


def _groups(recording: Recording, kind: str) -> list[list[_Group]]:
    """List the GPUs, the workers and the job, as far as they differ."""
    everyone = list(range(len(recording.owners)))
    workers = [worker or 0 for worker in recording.workers]
    gpus: list[_Group] = [
        ("GPU", f"GPU-{recording.ranks[owner] or 0}", workers[owner], [owner]) for owner in everyone
    ]
    if len(everyone) == 1:
        return [gpus]
    if kind == "worker":
        return [gpus, [("worker", "worker-0", 0, everyone)]]
    if len(set(workers)) == 1:
        return [gpus, [("job", "job", 0, everyone)]]
    members = {worker: [i for i in everyone if workers[i] == worker] for worker in sorted(set(workers))}
    return [
        gpus,
        [("worker", f"worker-{w}", w, owners) for w, owners in members.items()],
        [("job", "job", 0, everyone)],
    ]


def step_operations(recording: Recording, step: StepGraph) -> list[OperationSlack]:
    """List the operations of a step by name and category, in the order of their first events."""
    is_meeting = recording.which(lambda operation: operation.role is Role.MEETING)
    number, first, row = np.unique(step.operation, return_index=True, return_inverse=True)
    row = row.reshape(-1)
    least = np.full(len(number), np.iinfo(np.int64).max)
    np.minimum.at(least, row, step.slack_ns())
    dur = np.bincount(row, step.end_ns - step.start_ns, len(number)).astype(np.int64)
    order = np.argsort(first)
    order = order[~is_meeting[number[order]]]
    by_name: dict[tuple[str, str], OperationSlack] = {}
    columns = (column[order].tolist() for column in (number, first, dur, least))
    for kind, event, dur_ns, least_ns in zip(*columns, strict=True):
        key = recording.name_of(step, event), recording.operations[kind].category
        operation = by_name.setdefault(key, OperationSlack(*key, 0, least_ns))
        operation.dur_ns += dur_ns
        operation.slack_ns = min(operation.slack_ns, least_ns)
    return list(by_name.values())


def longest_chain(name: str, worker: int, dag: Dag) -> tuple[Scope, list[OperationSlack]]:
    """Find the longest chain through a GPU's DAG as the path of its scope, and all operations' slack."""
    chain = dag.longest_path()
    nodes = np.array(chain.nodes, np.int64)
    labels = [Label(dag.names[node], dag.cats[node], "", dag.cats[node]) for node in chain.nodes]
    nowhere = np.zeros(len(nodes), np.int64)
    path = NamedPath(labels, np.arange(len(nodes)), nowhere, dag.dur_ns[nodes], nowhere - 1)
    rows = zip(dag.names, dag.cats, dag.dur_ns.tolist(), chain.slack_ns.tolist(), strict=True)
    return Scope("GPU", name, worker, chain.length_ns, lambda: path), [OperationSlack(*row) for row in rows]


# ---- the recorded timeline

#: Name of the process and thread with the path.
_PATH = "critical path"
_WITH_ID = "stfbne"  # phases of arrows (start, step, finish) and of asynchronous spans
_WITHOUT_ID = "iIRC"  # phases of instants and counters


def marked_rows(
    traces: Sequence[Trace], recording: Recording, step: StepGraph, path: CriticalPath
) -> tuple[list[ThreadRow], int]:
    """Make the rows of a timeline, the critical path first, and the nanosecond of its time 0.

    `traces` are those of the recording's owners, on its clock, with all arguments and points; all is kept.
    """
    begins = [path.start_ns, *(times for trace in traces for times in (trace.ts_ns, trace.points.ts_ns))]
    zero = int(np.concatenate(begins).min()) if any(map(len, begins)) else 0
    named = NamedPath.of(recording, path, parts=True, merged=False)
    columns = (named.label, path.start_ns - zero, path.end_ns - zero)
    boxes = [
        Slice(named.labels[label].name, start, end, cat=named.labels[label].cat)
        for label, start, end in zip(*(column.tolist() for column in columns), strict=True)
    ]
    rows = [ThreadRow(_PATH, _PATH, _PATH, _PATH, sorted(boxes, key=lambda box: box.start_ns), nests=True)]
    ids = itertools.count(1)
    for owner, trace in enumerate(traces):
        slices, points, names = _slices(trace, zero), _points(trace, zero, ids), _recorded_names(trace)
        rows += [
            recorded_row(recording.owners, owner, track, slices[i], points[i], names)
            for i, track in enumerate(trace.tracks)
        ]
    return rows, zero


def _slices(trace: Trace, zero: int) -> defaultdict[int, list[Slice]]:
    """Collect the slices of each track, by start, of equal ones the longest first."""
    args: defaultdict[int, dict[str, Any]] = defaultdict(dict)
    for key, column in trace.args.items():
        for row, value in column.as_dict().items():
            args[row][key] = value
    order = np.lexsort((-trace.dur_ns, trace.ts_ns))
    columns = (trace.track_id, trace.name_id, trace.cat_id, trace.ts_ns - zero, trace.end_ns - zero)
    slices: defaultdict[int, list[Slice]] = defaultdict(list)
    for row, track, name, cat, start, end in zip(
        order.tolist(), *(column[order].tolist() for column in columns), strict=True
    ):
        box = Slice(trace.names[name], start, end, args.get(row, {}), cat=trace.cats[cat])
        slices[track].append(box)
    return slices


def _points(
    trace: Trace, zero: int, ids: Iterator[int]
) -> defaultdict[int, list[tuple[int, dict[str, Any]]]]:
    """Collect each track's arrows, asynchronous spans, instants and counters, with their arguments.

    The ids of arrows and spans become numbers that are unique in the timeline.
    """
    points = trace.points
    columns = (points.name_id, points.cat_id, points.track_id, points.ts_ns - zero)
    number: dict[str | None, int] = {}
    args = points.args or [{}] * len(points)
    by_track: defaultdict[int, list[tuple[int, dict[str, Any]]]] = defaultdict(list)
    rows = zip(points.phase, points.ids, args, *(column.tolist() for column in columns), strict=True)
    for phase, recorded_id, recorded_args, name, cat, track, ts in rows:
        if phase not in _WITH_ID + _WITHOUT_ID:
            continue
        event = {"ph": phase, "name": trace.names[name], "cat": trace.cats[cat]}
        if phase in _WITH_ID:
            if recorded_id not in number:
                number[recorded_id] = next(ids)
            event["id"] = number[recorded_id]
        elif recorded_id is not None:  # of counters of one name
            event["id"] = recorded_id
        if recorded_args:
            event["args"] = recorded_args
        if phase == "f":  # an arrow ends in the slice around it
            event["bp"] = "e"
        by_track[track].append((ts, event))
    return by_track


def _recorded_names(trace: Trace) -> dict[tuple[str, Any, Any], str]:
    names: dict[tuple[str, Any, Any], str] = {}
    for event in trace.metadata:
        kind, args = event.get("name"), event.get("args")
        if kind in ("process_name", "thread_name") and isinstance(args, dict) and "name" in args:
            tid = event.get("tid") if kind == "thread_name" else None
            pid = event.get("pid")
            if isinstance(pid, str | int | float | None) and isinstance(tid, str | int | float | None):
                names[str(kind), pid, tid] = str(args["name"])
    return names
