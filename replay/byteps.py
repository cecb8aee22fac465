"""BytePS jobs as recordings: layers on threads, partitions through their stages, servers that wait.

Per step and GPU: the operations of a thread run one after the other; an operator starts after those
its DAG names; a communication is enqueued after the backward operation that makes its gradient, each
partition passes its stages in order, and the communication ends with its last partition. PUSH occupies
the worker's link to the servers, PULL the server's link back, which all workers share: a key is answered
once every worker has pushed it. The GPUs of a worker meet in REDUCE and BROADCAST; the root GPU pushes
for all of them, and what it pulls they copy.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from errors import TraceError
from formats.columns import Trace, Track
from opname import OpName
from replay.byteps_edges import UNTRACED, Event, connect
from replay.plan import UNLIMITED
from replay.recording import EdgeList, Operation, RecordedStep, Recording

#: An edge of the DAG that the recording contradicts in more than this share of the steps is not used.
MAX_VIOLATED = 0.1
#: Threads read the clock a little late; a start that is earlier by less contradicts nothing.
TOLERANCE_NS = 50_000


@dataclass(frozen=True, slots=True)
class GpuTrace:
    """The trace of one GPU: whose it is, its events, its DAG, and what is known of its partitions."""

    prefix: str  # "wk0.rank0", "rank0" or ""
    worker: int | None
    trace: Trace
    dag_edges: Sequence[tuple[str, str]] = ()  # names of operations
    parameters: Mapping[str, str] = field(default_factory=dict)  # byteps.gradient_<i> -> parameter
    bytes_of: Mapping[int, int] = field(default_factory=dict)  # partition key -> bytes
    server_of: Mapping[int, int] = field(default_factory=dict)  # partition key -> server
    only: Collection[str] = ()  # the only communications to keep; () keeps all


@dataclass(frozen=True, slots=True)
class _GpuSteps:
    """One GPU's events by step, and when each of its steps and the one after the last begins."""

    gpu: GpuTrace
    steps: list[list[Event]]
    begin_ns: list[int]
    dag_edges: list[tuple[OpName, OpName]]


def record(gpus: Sequence[GpuTrace]) -> Recording:
    """Return the recording of a BytePS job from the traces of its GPUs.

    Raises
    ------
    TraceError
        No step is recorded in the trace of a GPU.
    """
    split = [_split(gpu) for gpu in gpus]
    workers = [gpu.worker for gpu in gpus]
    dag_edges = [one.dag_edges for one in split]
    n_steps = min(len(one.steps) for one in split)
    names = _Names(len({gpu.worker for gpu in gpus}) > 1)
    steps = []
    for row in range(n_steps):
        begin_ns, next_ns = (np.array([one.begin_ns[row + i] for one in split], np.int64) for i in (0, 1))
        operation, start, end, edges = [], [], [], EdgeList()
        events = [(owner, event) for owner, one in enumerate(split) for event in one.steps[row]]
        for owner, event in events:
            operation.append(names.operation(owner, split[owner].gpu, event))
            start.append(event.start_ns)
            end.append(event.end_ns)
        connect(edges, events, workers, dag_edges)
        operations, starts, ends = (np.array(column, np.int64) for column in (operation, start, end))
        steps.append(RecordedStep(operations, starts, ends, edges.freeze(), begin_ns, next_ns))
    return Recording(
        owners=[gpu.prefix for gpu in gpus],
        devices=names.devices,
        operations=names.operations,
        steps=_with_carried(steps, names.operations, dag_edges),
        notes=_notes(split),
    )


def _with_carried(
    steps: Sequence[RecordedStep],
    operations: Sequence[Operation],
    dag_edges: Sequence[Sequence[tuple[OpName, OpName]]],
) -> list[RecordedStep]:
    """Return the steps with what waits for communications of the step before that end in this one.

    The forward operation of the layer whose backward operation made the gradient, where it starts late
    enough; else the communication of the same tensor.
    """
    number = {(one.owner, one.name): i for i, one in enumerate(operations) if one.key is None}
    layer = {
        (owner, str(comm)): str(before._replace(cat="FW"))
        for owner, edges in enumerate(dag_edges)
        for before, comm in edges
        if before.cat == "BW" and comm.is_comm
    }
    found = list(steps[:1])
    for step, following in itertools.pairwise(steps):
        here = {operation: event for event, operation in enumerate(following.operation.tolist())}
        pairs: list[tuple[int, int]] = []
        for event, operation in enumerate(step.operation.tolist()):
            one, end = operations[operation], int(step.end_ns[event])
            if one.cat != "Comm" or one.key is not None or not 0 <= step.next_ns[one.owner] < end:
                continue
            forward = number.get((one.owner, layer.get((one.owner, one.name), "")))
            candidates = [here[other] for other in (forward, operation) if other in here]
            late = [other for other in candidates if following.start_ns[other] >= end]
            pairs.extend((event, other) for other in late[:1])
        found.append(replace(following, carried=np.array(pairs, np.int64).reshape(-1, 2)))
    return found


def _notes(split: Sequence[_GpuSteps]) -> list[str]:
    bare = [one.gpu.prefix or one.gpu.trace.path for one in split if not _has_backward(one.steps)]
    if not bare:
        return []
    return [
        f"{', '.join(bare)}: no forward and backward operations recorded; "
        "the time before each gradient stands for them"
    ]


class _Names:
    """Numbers operations and links, the same in every step."""

    def __init__(self, many_workers: bool) -> None:
        self.many_workers = many_workers
        self.operations: list[Operation] = []
        self.devices: list[str] = []
        self._numbers: dict[tuple[int, OpName, Track], int] = {}

    def operation(self, owner: int, gpu: GpuTrace, event: Event) -> int:
        """Return the number of the operation that `event` is an instance of."""
        identity = (owner, event.name, event.track)
        if identity not in self._numbers:
            self._numbers[identity] = len(self.operations)
            self.operations.append(
                Operation(
                    name=str(event.name),
                    cat=UNTRACED if not event.is_traced else event.name.cat or "",
                    track=event.track,
                    owner=owner,
                    trace_cat=event.cat,
                    phase=(event.name.cat or "") if event.is_traced else "BW",
                    whole="" if event.key is None else str(event.name.main),
                    stage=event.name.queue or "",
                    key=event.key,
                    device=self._device(gpu, event),
                    n_bytes=0 if event.key is None else gpu.bytes_of.get(event.key, 0),
                    is_traced=event.is_traced,
                )
            )
        return self._numbers[identity]

    def _device(self, gpu: GpuTrace, event: Event) -> int:
        if event.key is None or event.name.queue not in ("PUSH", "PULL"):
            return UNLIMITED
        worker = "" if gpu.worker is None else f"worker {gpu.worker} "
        name = f"{worker}{event.name.queue}"
        if event.name.queue == "PULL" and self.many_workers:
            name = f"server {gpu.server_of.get(event.key, 0)} PULL"
        if name not in self.devices:
            self.devices.append(name)
        return self.devices.index(name)


# ---- one GPU's events, by step


def _split(gpu: GpuTrace) -> _GpuSteps:
    events = sorted(_events(gpu), key=lambda event: (event.start_ns, event.end_ns))
    numbers = _step_numbers(events)
    n_steps = _usual_count(events, numbers)
    if n_steps == 0:
        raise TraceError(f"{gpu.trace.path}: no training step is recorded in it: nothing to replay")
    steps: list[list[Event]] = [[] for _ in range(n_steps + 1)]
    for event, number in zip(events, numbers, strict=True):
        if 0 <= number <= n_steps:
            steps[number].append(event)
    begin_ns = [min((event.start_ns for event in step), default=-1) for step in steps]
    if begin_ns[-1] < 0:  # nothing follows: the update, which lasts until the next step, tells the end
        begin_ns[-1] = max((event.end_ns for event in steps[-2] if event.name.cat == "STEP"), default=-1)
    steps = steps[:n_steps]
    if not _has_backward(steps):
        steps = [_with_untraced(step) for step in steps]
    return _GpuSteps(gpu, steps, begin_ns, _dag_edges(gpu, steps))


def _events(gpu: GpuTrace) -> Iterator[Event]:
    trace = gpu.trace
    names = [_renamed(OpName.parse(name).bare(), gpu.parameters) for name in trace.names]
    columns = (trace.name_id, trace.cat_id, trace.track_id, trace.ts_ns, trace.dur_ns)
    for name_id, cat_id, track_id, start, dur in zip(*(column.tolist() for column in columns), strict=True):
        name, track = names[name_id], trace.tracks[track_id]
        key = int(str(track.tid)) if name.queue is not None and str(track.tid).isdecimal() else None
        if name.is_comm and key is None and name.queue is not None:  # a tensor called like a stage
            name = OpName("Comm", f"{name.label}.{name.queue}")
        if name.cat is not None and not (gpu.only and name.is_comm and str(name.main) not in gpu.only):
            yield Event(name, key, track, start, start + dur, trace.cats[cat_id])


def _renamed(name: OpName, parameters: Mapping[str, str]) -> OpName:
    return name._replace(label=parameters.get(name.label or "", name.label)) if name.is_comm else name


def _step_numbers(events: Sequence[Event]) -> list[int]:
    """Return the step (0-based) of each event, -1 for none; events are sorted by start.

    The n-th event of a name on a track is the n-th step's, except loads of input data and updates,
    which are recorded for more steps than the rest: these belong to the step at whose begin, or in
    whose course, they lie.
    """
    count: Counter[tuple[OpName, Track]] = Counter()
    numbers: list[int] = []
    first_ns: list[int] = []
    for event in events:
        if event.name.cat in ("I/O", "STEP"):
            numbers.append(-1)
            continue
        number = count[event.name, event.track]
        count[event.name, event.track] += 1
        numbers.append(number)
        if number == len(first_ns):
            first_ns.append(event.start_ns)
    for i, event in enumerate(events):
        if event.name.cat == "STEP":
            numbers[i] = int(np.searchsorted(first_ns, event.start_ns, side="right")) - 1
        elif event.name.cat == "I/O":
            numbers[i] = int(np.searchsorted(first_ns, event.start_ns))
    _forget_warm_up(events, numbers)
    return numbers


def _forget_warm_up(events: Sequence[Event], numbers: list[int]) -> None:
    """Keep, of the loads before the first traced step, only the last."""
    loads = [i for i, event in enumerate(events) if event.name.cat == "I/O" and numbers[i] == 0]
    for i in loads[:-1]:
        numbers[i] = -1


def _usual_count(events: Sequence[Event], numbers: Sequence[int]) -> int:
    """Return in how many steps most operations occur."""
    count: Counter[tuple[OpName, Track]] = Counter()
    for event, number in zip(events, numbers, strict=True):
        if number >= 0 and event.name.cat not in ("I/O", "STEP"):
            count[event.name, event.track] += 1
    usual = Counter(count.values()).most_common(1)
    return usual[0][0] if usual else 0


def _has_backward(steps: Sequence[Sequence[Event]]) -> bool:
    return any(event.name.cat == "BW" for step in steps for event in step)


def _with_untraced(step: Sequence[Event]) -> list[Event]:
    """Return the events with one before each communication for the computation that was not traced."""
    found: list[Event] = []
    since = None
    for event in step:
        if event.name.cat == "I/O":
            since = event.end_ns
        if event.name.is_comm and event.key is None:
            if since is not None and event.start_ns > since:
                name = OpName(UNTRACED, event.name.label)
                track = Track(event.track.pid, UNTRACED)
                found.append(Event(name, None, track, since, event.start_ns, UNTRACED, is_traced=False))
            since = max(since or 0, event.start_ns)
        found.append(event)
    return sorted(found, key=lambda event: (event.start_ns, not event.is_traced, event.end_ns))


def _dag_edges(gpu: GpuTrace, steps: Sequence[Sequence[Event]]) -> list[tuple[OpName, OpName]]:
    """Return the edges of the DAG between recorded operations that the recording does not contradict.

    Nodes without events (``OUTPUT0``) are bridged. What leaves STEP leads into the next step.
    """
    recorded = {event.name for step in steps for event in step if event.key is None}
    after: dict[OpName, set[OpName]] = defaultdict(set)
    for source, target in gpu.dag_edges:
        a, b = OpName.parse(source).bare(), OpName.parse(target).bare()
        if a.cat != "STEP":
            after[a].add(b)
    edges = [(a, b) for a in list(after) if a in recorded for b in _next_recorded(a, after, recorded)]
    when = [{event.name: event for event in step if event.key is None} for step in steps]
    return [edge for edge in sorted(edges, key=str) if _is_respected(edge, when)]


def _next_recorded(
    node: OpName, after: Mapping[OpName, set[OpName]], recorded: set[OpName]
) -> Iterator[OpName]:
    seen: set[OpName] = set()
    stack = list(after[node])
    while stack:
        other = stack.pop()
        if other in seen:
            continue
        seen.add(other)
        if other in recorded:
            yield other
        else:
            stack.extend(after.get(other, ()))


def _is_respected(edge: tuple[OpName, OpName], when: Sequence[Mapping[OpName, Event]]) -> bool:
    pairs = [(step[edge[0]], step[edge[1]]) for step in when if edge[0] in step and edge[1] in step]
    violated = sum(b.start_ns < a.end_ns - TOLERANCE_NS for a, b in pairs)
    return bool(pairs) and violated <= MAX_VIOLATED * len(pairs)
