"""The events of one BytePS GPU as operations: names, partitions and the computation that was not traced."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct

from analyzer.base.arrays import Int64
from analyzer.base.arrays.numbering import numbered, occurrence_number
from analyzer.base.errors import TraceError, whole_number
from analyzer.base.names import OpName
from analyzer.reading.dialects.roles import Phase, Role
from analyzer.reading.dialects.step_parts import Direction, Operation, RankTrace, Transfer
from analyzer.reading.formats.columns import Trace, Track
from analyzer.reading.formats.event import tolerant
from analyzer.reading.formats.stream import find_file, read_text

#: By category; of any other it is work of the host.
_ROLES = dict.fromkeys(("FW", "BW", "UPDATE", "OUTPUT"), Role.COMPUTE)
_ROLES |= {"STEP": Role.UPDATE, "I/O": Role.INPUT}
_PHASES = {"FW": Phase.FORWARD, "BW": Phase.BACKWARD, "I/O": Phase.INPUT}
_PHASES |= {"STEP": Phase.UPDATE, "UPDATE": Phase.UPDATE}


def role_of(op: OpName) -> Role:
    """Return the role of an operation."""
    if op.is_comm:
        return Role.COMM if op.queue is not None else Role.WHOLE_COMM
    return _ROLES.get(op.cat or "", Role.HOST)


def phase_of(op: OpName) -> Phase:
    """Name the part of the training loop in which an operation runs."""
    return _PHASES.get(op.cat or "", Phase.NONE)


def partition(name: str, tid: object) -> str:
    """Return the partition that a sub-task works on: its key where the name states it, else the track's."""
    key = OpName.parse(name).key
    return str(tid if key is None else key)


def inputs(trace: Trace) -> Iterator[tuple[int, str]]:
    """Yield each slice that names an input in its args, with that name."""
    for key, column in trace.args.items():
        if key.startswith(("input", "arg")):
            yield from zip(column.rows.tolist(), map(str, column.values), strict=True)


#: Where a job leaves the list; the last one is written where MXNet's Module API is used.
NAME_LISTS = (
    "gradient_name_list.txt", "gradient_name_list.json", "metadata.json", "arg_namesINpara_names.txt"
)  # fmt: skip

_LONGEST = 4096  # characters of a name
_INDEXED = r"(?:byteps[._])?gradient_(\d{1,9})"


class GradientNames(Struct, frozen=True):
    """The list of one GPU directory: line i (from 0) names ``gradient_<i>``."""

    path: Path
    names: Sequence[str]

    def parameter(self, tensor: str) -> str | None:
        """Return the parameter that BytePS's name `tensor` stands for; None if the list has none."""
        index = gradient_index(tensor)
        return (self.names[index] or None) if index is not None and index < len(self.names) else None

    @property
    def parameters(self) -> dict[str, str]:
        """``byteps.gradient_<i>`` -> parameter."""
        return {f"byteps.gradient_{i}": name for i, name in enumerate(self.names) if name}


def gradient_index(tensor: str) -> int | None:
    """Return i of ``byteps.gradient_<i>``; None for tensors that carry their own name."""
    match = re.fullmatch(_INDEXED, tensor)
    return int(match[1]) if match else None


def renamed(name: OpName, parameters: Mapping[str, str]) -> OpName:
    """Return `name` without worker and rank, a gradient by its parameter's name.

    `parameters` as of `GradientNames`.
    """
    bare = name.bare()
    index = gradient_index(name.label or "") if name.is_comm else None
    parameter = None if index is None else parameters.get(f"byteps.gradient_{index}")
    return bare if parameter is None else bare._replace(label=parameter)


def read_parameters(directory: Path) -> dict[str, str]:
    """Return `GradientNames.parameters` of a directory; {} without a list that can be read."""
    with contextlib.suppress(TraceError):
        names = read_names(directory)
        return {} if names is None else names.parameters
    return {}


def read_names(directory: Path) -> GradientNames | None:
    """Return the gradient names of a GPU directory; None where it has no list.

    TraceError where the list is there and cannot be read, or is empty.
    """
    path = next(filter(None, (find_file(directory, name) for name in NAME_LISTS)), None)
    if path is None:
        return None
    text = read_text(path)
    names = _from_json(text) if ".json" in path.suffixes else [line.strip() for line in text.splitlines()]
    while names and not names[-1]:
        names.pop()
    if not names and path.name.startswith("metadata.json"):  # it also has other facts
        return None
    if not names:
        raise TraceError(f"{path}: names no gradient")
    if (longest := max(map(len, names))) > _LONGEST:  # each event of the gradient would bear it
        raise TraceError(f"{path}: a name of {longest:,} characters: no list of gradients")
    return GradientNames(path, names)


def _from_json(text: str) -> list[str]:
    """Return the names of dPRO's ``{"gradient_name_list": [...]}``, or of a bare list."""
    value = tolerant(text.encode())
    if isinstance(value, dict):
        value = value.get("gradient_name_list")
    return [str(name) for name in value] if isinstance(value, list) else []


_UNTRACED = "untraced"
#: Categories of computation; a GPU does it itself.
COMPUTE = ("FW", "BW", _UNTRACED)
#: By queue stage.
DIRECTIONS = {"COPYD2H": Direction.TO_HOST, "PUSH": Direction.TO_SERVER, "PULL": Direction.FROM_SERVER}


class GpuEvents(Struct, frozen=True):
    """The n events of one GPU, by start, and its k operations.

    Attributes
    ----------
    operations : (k,)
    names, mains : (k,) their names taken apart, without worker, rank and key; and without stage
    operation : (n,) index into `operations`
    start_ns, end_ns : (n,)
    nth : (n,) how many events of the same name and partition were recorded before: its step, from 0
    """

    operations: Sequence[Operation]
    names: Sequence[OpName]
    mains: Sequence[OpName]
    operation: Int64
    start_ns: Int64
    end_ns: Int64
    nth: Int64

    def __len__(self) -> int:
        return len(self.operation)

    def is_whole(self, operation: int) -> bool:
        """Whether an operation is a communication as a whole, not a stage of one of its partitions."""
        return self.names[operation].is_comm and self.operations[operation].transfer.key is None


def read_events(gpu: RankTrace) -> GpuEvents:
    """Return the events of BytePS's grammar in the trace of one GPU."""
    trace = gpu.trace
    n_tracks = max(len(trace.tracks), 1)
    pairs = trace.name_id.astype(np.int64) * n_tracks + trace.track_id
    distinct, which = np.unique(pairs, return_inverse=True)
    operations: list[Operation] = []
    names: list[OpName] = []
    number = np.full(len(distinct), -1, np.int64)
    parsed = [renamed(OpName.parse(name), gpu.parameters) for name in trace.names]
    for i, (name_id, track_id) in enumerate(zip(*np.divmod(distinct, n_tracks), strict=True)):
        name, key = _partition(parsed[name_id], trace.tracks[track_id])
        if name.cat is not None:
            number[i] = len(operations)
            operations.append(_operation(gpu, name, key, trace.tracks[track_id]))
            names.append(name)
    operation = number[which.reshape(-1)]
    rows = np.flatnonzero(operation >= 0)
    return _sorted(operations, names, operation[rows], trace.ts_ns[rows], trace.end_ns[rows])


def _partition(name: OpName, track: Track) -> tuple[OpName, int | None]:
    """Return the name without its partition's key, and the key; None for what is not a partition's stage."""
    if name.queue is None:
        return name, None
    if (key := whole_number(str(track.tid))) is not None:
        return name._replace(key=None), key
    if name.key is not None:
        return name._replace(key=None), name.key
    return OpName("Comm", f"{name.label}.{name.queue}"), None  # a tensor called like a stage


def _operation(gpu: RankTrace, name: OpName, key: int | None, track: Track) -> Operation:
    return Operation(
        name=str(name),
        cat=name.cat or "",
        track=track,
        role=role_of(name),
        phase=phase_of(name),
        transfer=Transfer() if key is None else _transfer(gpu, name, key),
    )


def _transfer(gpu: RankTrace, name: OpName, key: int) -> Transfer:
    """Return a stage of a partition; a link is a worker's to the servers, or a server's to all workers."""
    stage = name.queue or ""
    direction, server, link = DIRECTIONS.get(stage), f"server {gpu.server_of.get(key, 0)}", ""
    if direction is Direction.TO_SERVER:
        link = stage if gpu.worker is None else f"worker {gpu.worker} {stage}"
    elif direction is Direction.FROM_SERVER:
        link = f"{server} {stage}"
    return Transfer(str(name.main), stage, key, link, gpu.bytes_of.get(key, 0), direction, server)


def _sorted(
    operations: Sequence[Operation], names: Sequence[OpName], operation: Int64, start: Int64, end: Int64
) -> GpuEvents:
    order = np.lexsort((end, start))
    operation = operation[order]
    same: dict[tuple[OpName, int | None], int] = {}
    keys = [(name, one.transfer.key) for name, one in zip(names, operations, strict=True)]
    what = np.array([same.setdefault(key, len(same)) for key in keys], np.int64)
    nth = occurrence_number(what[operation])
    return GpuEvents(
        operations, names, [name.main for name in names], operation, start[order], end[order], nth
    )


# ---- computation that was not traced


def with_untraced(events: GpuEvents, bounds: Sequence[tuple[int, int]]) -> GpuEvents:
    """Return `events` with one before each communication for the computation that was not traced.

    That is from the load of input or the previous gradient on, else from the step's start. `bounds` are
    begin and end of the steps.
    """
    before = np.array([name.cat in ("I/O", "FW") for name in events.names], np.bool_)
    whole = np.array(list(map(events.is_whole, range(len(events.names)))), np.bool_)
    is_before, is_whole = before[events.operation], whole[events.operation]
    moments = np.where(is_before, events.end_ns, events.start_ns)
    found = [np.empty((2, 0), np.int64)]
    for (low, high), (begin, _) in zip(np.searchsorted(events.start_ns, bounds), bounds, strict=True):
        event = low + np.flatnonzero(is_before[low:high] | is_whole[low:high])
        since = np.maximum.accumulate(np.append(begin, moments[event]))[:-1]
        found.append(np.stack([event, since])[:, is_whole[event] & (events.start_ns[event] > since)])
    event, since = np.concatenate(found, axis=1)
    label, of = numbered(events.names[one].label or "" for one in events.operation[event].tolist())
    untraced = [OpName(_UNTRACED, one) for one in label]
    track = Track(_UNTRACED, _UNTRACED)
    return _sorted(
        [
            *events.operations,
            *(Operation(str(name), _UNTRACED, track, Role.UNTRACED, Phase.BACKWARD) for name in untraced),
        ],
        [*events.names, *untraced],
        np.concatenate([events.operation, len(events.operations) + of]),
        np.concatenate([events.start_ns, since]),
        np.concatenate([events.end_ns, events.start_ns[event]]),
    )
