"""BytePS: `comm.json`, the profiler's final trace, `io.json` and `step.json`; names follow `base.names`."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from analyzer.base.arrays import Int64, Mask, NDArray
from analyzer.base.arrays.distributions import median
from analyzer.base.arrays.numbering import ids_in
from analyzer.base.errors import TraceError
from analyzer.base.names import OpName, may_be_within, with_key
from analyzer.reading.dialects.owners import Owned, split_by_names
from analyzer.reading.dialects.recorded_collectives import Call, Collectives, SyncPart
from analyzer.reading.dialects.roles import Role, by_name, is_communication
from analyzer.reading.dialects.steps import NO_STEPS, Step, Steps, between, rounds
from analyzer.reading.dialects.system import Need, System
from analyzer.reading.formats.columns import Trace
from analyzer.reading.formats.event import tolerant
from analyzer.reading.formats.stream import find_file, read_text

if TYPE_CHECKING:
    from analyzer.reading.dialects.step_parts import RankSteps, RankTrace

#: Chooses slices (n,) by their operations.
_Chosen: TypeAlias = Callable[[Callable[[OpName], bool]], Mask]


class BytePS(System):
    """One step is one passage through the model; communications are split into partitions and stages."""

    name = "byteps"
    never_shows = frozenset(("host_bound", "host_sync", "copies", "memory", "negotiation"))
    counted_by = "Communication: Comm; computation: FW, BW, UPDATE, OUTPUT, and STEP while no Comm runs."
    has_workers = True
    names_by_rank = True
    names_by_track = True
    args = MappingProxyType({Need.STEPS: ("input*", "arg*"), Need.EDGES: ("input*", "arg*")})

    def recognises(self, trace: Trace) -> bool:
        """Accept a file in which most slices have a name of the BytePS grammar."""
        is_known = [may_be_within(name) and OpName.parse(name).cat is not None for name in trace.names]
        known = np.array(is_known, np.bool_)
        return len(trace) > 0 and 2 * int(known[trace.name_id].sum()) > len(trace)

    def split(self, trace: Trace) -> Sequence[Owned]:
        """Split a file into ranks by its names (``wk0.rank1.``), else as any system does."""
        return split_by_names(trace) or super().split(trace)

    def recorded_roles(self, trace: Trace) -> NDArray[np.int8]:
        table = np.array([role_of(OpName.parse(name)) for name in trace.names], np.int8)
        return table[trace.name_id] if len(table) else np.zeros(len(trace), np.int8)

    def marked_steps(self, trace: Trace) -> Steps:
        """Take the steps from one load of input data (``I/O``) to the next if each step has just one.

        Else from the first forward operation to the next, else (communication alone) from the end of one
        round of communication over all tensors to the end of the next. Of several ranks, the first counts:
        the ranks of a synchronous job step together. Recorded loads of earlier steps give the number, else
        the first is 1.
        """
        accepted = _first_rank(trace)
        loads = _starts(trace, accepted(_is("I/O")))
        whole = accepted(lambda op: op.is_comm and op.queue is None)
        comms = whole if whole.any() else accepted(lambda op: op.is_comm)
        # of a step after the last traced one, loads and passes may be recorded, but none of these
        work = _starts(trace, comms if comms.any() else accepted(_is("BW")))
        forward = accepted(_is("FW"))
        begins, ends = _rounds(trace, comms)
        if forward.any():
            first = _first_forward(trace, forward)
            marks = _starts(trace, trace.name_id == first)
            how = f"{trace.names[first]} to {trace.names[first]}"
        else:
            marks, how = begins, ""
        refined = _one_load_each(loads, marks, work) if len(marks) else loads
        if refined is not None and len(refined):
            marks, how = refined, "I/O to I/O"
        elif len(marks) and not how:
            return rounds(int(begins[0]), ends, "rounds of communication")
        elif not len(marks):
            marks, how = _starts(trace, accepted(_is("STEP"))), "STEP to STEP"
        if not len(marks):
            return NO_STEPS
        before = int(np.searchsorted(loads, marks[0])) if (loads == marks[0]).any() else 0  # steps not traced
        partial = _numbered_from(before, _unfinished(trace, work, marks))
        return Steps(_numbered_from(before, between(marks)), partial, how)

    def loads(self, trace: Trace) -> list[Step]:
        """Take the periods from one ``I/O`` to the next, recorded from the first step, warm-up included."""
        return between(_starts(trace, _first_rank(trace)(_is("I/O"))))

    def passes(self, trace: Trace) -> tuple[Mask, Mask]:
        accepted = _first_rank(trace)
        return accepted(_is("FW")), accepted(_is("BW"))

    def may_synchronise(self, name: str) -> bool:
        return OpName.parse(name).queue in ("PUSH", "PULL")

    def sync_part(self, name: str, cat: str, tid: object, args: Mapping[str, Any]) -> SyncPart | None:
        """Match partitions: each PULL ends after every worker's PUSH has begun."""
        is_push = OpName.parse(name).queue == "PUSH"
        return SyncPart(partition(name, tid), begins=is_push, ends=not is_push)

    def collectives(self, rank: RankTrace) -> Collectives:
        """List the pushes and pulls of partitions, with bytes from logs; a pull waits for all pushes."""
        trace = rank.trace
        rows = np.flatnonzero(by_name(trace, self.may_synchronise))
        calls = []
        for name, track in zip(trace.name_id[rows].tolist(), trace.track_id[rows].tolist(), strict=True):
            op = OpName.parse(with_key(trace.names[name], trace.tracks[track].tid))
            n_bytes = rank.bytes_of.get(-1 if op.key is None else op.key, 0)
            kind = "push" if op.queue == "PUSH" else "pull"
            calls.append(Call(kind, "worker, server", 2, n_bytes, n_bytes, waits=kind == "pull"))
        return Collectives.of(rows, calls, np.zeros(len(rows), np.int64), trace.ts_ns[rows])

    def rank_steps(self, rank: RankTrace, by: str | None = None) -> RankSteps:
        from analyzer.reading.dialects.byteps.byteps_graph import record

        steps = self.find_steps(rank.trace, by)
        loads = {load.start_ns for load in self.loads(rank.trace)}
        is_numbered = any(step.start_ns in loads for step in (*steps.whole[:1], *steps.partial[:1]))
        return replace(record(rank, steps), is_numbered=is_numbered)

    def operation(self, name: str, tid: object) -> str:
        return with_key(name, tid)

    def parameters(self, directory: Path) -> Mapping[str, str]:
        """Map each gradient to its parameter, from the list that a job leaves."""
        return read_parameters(directory)

    def main_name(self, name: str, parameters: Mapping[str, str]) -> str | None:
        """Strip worker and rank, and name a gradient after its parameter; None for a stage."""
        op = OpName.parse(name)
        return None if op.queue is not None or op.cat is None else str(renamed(op, parameters))

    def category(self, name: str, cat: str) -> str:
        return OpName.parse(name).kind or cat

    def runs_into_next_step(self, trace: Trace) -> Mask:
        kinds = self.roles(trace)
        return np.asarray(is_communication(kinds) | (kinds == Role.INPUT))

    def filter_names(self, name: str, cat: str, tid: object, process: str | None) -> Sequence[str]:
        return OpName.parse(with_key(name, tid)).aliases() if OpName.parse(name).is_comm else ()


# ---- steps


def _numbered_from(before: int, steps: Iterable[Step]) -> tuple[Step, ...]:
    return tuple(step._replace(label=step.label + before) for step in steps)


def _rounds(trace: Trace, comms: Mask) -> tuple[Int64, Int64]:
    """Find the begins and ends of the rounds of the communications `comms` (n,): their n-th events.

    A file that was cut has fewer of some tensors; only those that occur as often as most do count.
    """
    rows = np.flatnonzero(comms)
    if not len(rows):
        return trace.ts_ns[:0], trace.ts_ns[:0]
    what = trace.name_id[rows].astype(np.int64) * len(trace.tracks) + trace.track_id[rows]
    _, which, counts = np.unique(what, return_inverse=True, return_counts=True)
    often = np.bincount(counts)
    usual = int(np.flatnonzero(often == often.max())[-1])
    rows = rows[counts[which] == usual]
    rows = rows[np.lexsort((trace.ts_ns[rows], trace.track_id[rows], trace.name_id[rows]))].reshape(-1, usual)
    return trace.ts_ns[rows].min(axis=0), trace.end_ns[rows].max(axis=0)


def _first_forward(trace: Trace, forward: Mask) -> int:
    """Find the name id of the operation that begins the forward pass.

    It depends on the input or the last update if `trace.args` tells; else it follows the longest pause among
    `forward` (n,), in which backward pass, communication and update lie.
    """
    fed = (row for row, name in inputs(trace) if forward[row] and OpName.parse(name).cat in ("I/O", "STEP"))
    if counts := Counter(int(trace.name_id[row]) for row in fed):
        return min(counts, key=lambda i: (-counts[i], int(trace.ts_ns[trace.name_id == i].min())))
    rows = np.flatnonzero(forward)
    rows = rows[np.argsort(trace.ts_ns[rows], kind="stable")]
    ids = trace.name_id[rows]
    pause = trace.ts_ns[rows][1:] - np.maximum.accumulate(trace.end_ns[rows])[:-1]
    medians = {i: median(pause[ids[1:] == i]) for i in dict.fromkeys(ids[1:].tolist())}
    return int(ids[0]) if not medians else max(medians, key=lambda i: medians[i])


def _one_load_each(loads: Int64, marks: Int64, work: Int64) -> Int64 | None:
    """Select the loads before each mark, and the one that ends the last; None unless each has one.

    A last mark that no work follows only ends the step before it.
    """
    before = np.searchsorted(loads, marks, side="right") - 1
    if not len(loads) or before[0] < 0 or (np.diff(before) != 1).any():
        return None
    worked = len(work) > 0 and work[-1] >= marks[-1]
    return loads[before[0] : before[-1] + (2 if worked else 1)]


def _unfinished(trace: Trace, work: Int64, marks: Int64) -> tuple[Step, ...]:
    """Make the step that the last mark begins, if work in it is recorded."""
    if not len(work) or work[-1] < marks[-1]:
        return ()
    return (Step(len(marks), int(marks[-1]), int(trace.end_ns[trace.ts_ns >= marks[-1]].max())),)


def _first_rank(trace: Trace) -> _Chosen:
    """Make a function that masks slices (n,) of the first rank by their operations."""
    names = ((i, trace.names[i]) for i in ids_in(trace.name_id))
    parsed = [(i, OpName.parse(name)) for i, name in names if may_be_within(name)]
    parsed = [(i, op) for i, op in parsed if op.cat is not None]
    owners = [(op.worker, op.rank) for _, op in parsed]

    def chosen(accept: Callable[[OpName], bool]) -> Mask:
        accepted = np.zeros(max(1, len(trace.names)), np.bool_)
        for (i, op), owner in zip(parsed, owners, strict=True):
            accepted[i] = owner == owners[0] and accept(op)
        return accepted[trace.name_id]

    return chosen


def _is(cat: str) -> Callable[[OpName], bool]:
    return lambda op: op.cat == cat


def _starts(trace: Trace, mask: Mask) -> Int64:
    return np.sort(trace.ts_ns[mask])


# ---- names

#: By category; any other is work of the host.
_ROLES = dict.fromkeys(("FW", "BW", "UPDATE", "OUTPUT"), Role.COMPUTE)
_ROLES |= {"STEP": Role.UPDATE, "I/O": Role.INPUT}


def role_of(op: OpName) -> Role:
    """Look up the role of an operation."""
    if op.is_comm:
        return Role.COMM if op.queue is not None else Role.WHOLE_COMM
    return _ROLES.get(op.cat or "", Role.HOST)


def partition(name: str, tid: object) -> str:
    """Name the partition of a sub-task: the key in its name, else its track."""
    key = OpName.parse(name).key
    return str(tid if key is None else key)


def inputs(trace: Trace) -> Iterator[tuple[int, str]]:
    """Yield each slice that names an input in its args, with that name."""
    for key, column in trace.args.items():
        if key.startswith(("input", "arg")):
            yield from zip(column.rows.tolist(), map(str, column.values), strict=True)


#: Files with the list of gradients; the last is written with MXNet's Module API.
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
        """Look up the parameter of BytePS's name `tensor`; None if the list has none."""
        index = gradient_index(tensor)
        return (self.names[index] or None) if index is not None and index < len(self.names) else None

    @property
    def parameters(self) -> dict[str, str]:
        """``byteps.gradient_<i>`` -> parameter."""
        return {f"byteps.gradient_{i}": name for i, name in enumerate(self.names) if name}


def gradient_index(tensor: str) -> int | None:
    """Extract i of ``byteps.gradient_<i>``; None for other names."""
    match = re.fullmatch(_INDEXED, tensor)
    return int(match[1]) if match else None


def renamed(name: OpName, parameters: Mapping[str, str]) -> OpName:
    """Strip worker and rank, and name a gradient after its parameter (as of `GradientNames`)."""
    bare = name.bare()
    index = gradient_index(name.label or "") if name.is_comm else None
    parameter = None if index is None else parameters.get(f"byteps.gradient_{index}")
    return bare if parameter is None else bare._replace(label=parameter)


def read_parameters(directory: Path) -> dict[str, str]:
    """Read `GradientNames.parameters` of a directory; {} without a readable list."""
    with contextlib.suppress(TraceError):
        names = read_names(directory)
        return {} if names is None else names.parameters
    return {}


def read_names(directory: Path) -> GradientNames | None:
    """Read the gradient names of a GPU directory; None without a list, TraceError for a bad one."""
    path = next(filter(None, (find_file(directory, name) for name in NAME_LISTS)), None)
    if path is None:
        return None
    text = read_text(path)
    if ".json" in path.suffixes:  # dPRO's {"gradient_name_list": [...]}, or a bare list
        value = tolerant(text.encode())
        listed = value.get("gradient_name_list") if isinstance(value, dict) else value
        names = [str(name) for name in listed] if isinstance(listed, list) else []
    else:
        names = [line.strip() for line in text.splitlines()]
    while names and not names[-1]:
        names.pop()
    if not names and path.name.startswith("metadata.json"):  # it also has other facts
        return None
    if not names:
        raise TraceError(f"{path}: names no gradient")
    if (longest := max(map(len, names))) > _LONGEST:  # each event of the gradient would bear it
        raise TraceError(f"{path}: a name of {longest:,} characters: no list of gradients")
    return GradientNames(path, names)
