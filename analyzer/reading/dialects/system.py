"""The questions that a system that writes traces answers, and the answers for any trace."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from analyzer.base.arrays import Float64, Int64, Mask, NDArray
from analyzer.base.arrays.intervals import lies_inside
from analyzer.base.arrays.numbering import numbered, places_by_value
from analyzer.base.names import OpName
from analyzer.reading.dialects.name_rules import (
    COMMUNICATION,
    is_collective,
    is_library_call,
    is_server_transfer,
    is_wait,
    kernel_kind,
)
from analyzer.reading.dialects.owners import Owned, names_in, split_by_processes
from analyzer.reading.dialects.recorded_collectives import (
    Call,
    Collectives,
    SyncPart,
    SyncPoints,
    collected,
    kind_of,
)
from analyzer.reading.dialects.roles import Role, by_cat, by_name, idle, is_communication
from analyzer.reading.dialects.steps import NO_STEPS, Step, Steps, loop_steps, numbered_once, steps_by_name
from analyzer.reading.formats.chrome import with_known_durations
from analyzer.reading.formats.columns import Trace
from analyzer.reading.formats.event import EndRule
from analyzer.reading.formats.values import NO_TIME

if TYPE_CHECKING:
    from analyzer.reading.dialects.step_parts import RankSteps, RankTrace
    from analyzer.reading.formats.recorder.standing import Standing

Metadata = Sequence[Mapping[str, Any]]
NO_NUMBERS = np.empty(0, np.int64)
#: Phases in which memory is allocated and freed: outside the others, making a module, forward, ….
MEMORY_PHASES = ("", "setup", "forward", "backward", "update")
#: The member of a file's header that says from when its times count.
BASE = "baseTimeNanoseconds"

#: Categories of work on a device, as PyTorch's profiler names them now and did before 1.11.
KERNEL_CATS = frozenset({"kernel", "Kernel", "mtia_ccp_events"})
COPY_CATS = frozenset({"gpu_memcpy", "gpu_memset", "Memcpy", "Memset"})
DEVICE_CATS = KERNEL_CATS | COPY_CATS
#: Operators of PyTorch on the host, now and before 1.11.
CPU_OP_CATS = frozenset({"cpu_op", "Operator"})
#: Calls of a device's runtime or driver, by the host.
RUNTIME_CATS = frozenset(
    ("cuda_runtime", "cuda_driver", "Runtime", "mtia_runtime", "xpu_runtime", "xpu_driver",
     "privateuse1_runtime", "privateuse1_driver")
)  # fmt: skip
_HOST_CATS = r"cpu_op|Operator|python_function|cuda_.*|Runtime|mtia_runtime"
_REPEATED_CATS = frozenset({"gpu_user_annotation", "Trace"})  # repeat other slices
#: The mark of a step with its number, and the name that stands for all steps.
STEP_MARK, STEP_MARKS = r"ProfilerStep#\d+", "ProfilerStep*"
_RECORDING = rf"{STEP_MARK}|{re.escape(STEP_MARKS)}|PyTorch Profiler.*|event/batch"
_CPU = 0  # "Device Type" of the host's memory events (`c10::DeviceType`); ROCm builds write 6 (HIP) or 1
_OF_A_RANK = r"(?:wk\d+\.)?rank\d+\."


class Need(Enum):
    """A use of the args of events: a reading names its needs, a system the keys for each."""

    ALWAYS = "recognising a system, telling its ranks apart, the roles of slices: under every option"
    STEPS = "where steps begin, and their numbers"
    EDGES = "dependencies between events"
    SYNC = "which slices of several ranks are one operation"
    SIZES = "how much a collective moves"
    SHAPES = "the sizes and types of an operator's inputs"
    ORIGIN = "which operator, module or annotation the work of a device belongs to"
    MEMORY = "who holds the memory of a device"
    ALL = "everything: all args are kept, whatever a system declares"


class SecondAxis(Struct, frozen=True):
    """The clock of PyTorch's profiler in a Composer trace, for times before `border_ns`."""

    border_ns: int
    offset_ns: int  # to Composer's clock
    remark: str

    def corrected(self, ts_ns: Int64) -> Int64:
        """Convert times (n,) to Composer's clock."""
        return np.where((ts_ns < self.border_ns) & (ts_ns != NO_TIME), ts_ns + self.offset_ns, ts_ns)


class Frames(Struct, frozen=True):
    """Long Python functions, operators and calls of a host (k,), some of them inside others."""

    start_ns: Int64
    end_ns: Int64
    name: Sequence[str]
    waits: Mask  # calls that can only have waited while no device worked

    def later(self, by_ns: int) -> Frames:
        """Shift all times."""
        return replace(self, start_ns=self.start_ns + by_ns, end_ns=self.end_ns + by_ns)

    def during(self, start_ns: int, end_ns: int) -> tuple[str, bool]:
        """Find the innermost frame around more than half of an interval ("" for none), and its `waits`."""
        shared = np.minimum(self.end_ns, end_ns) - np.maximum(self.start_ns, start_ns)
        most = np.flatnonzero(2 * shared > end_ns - start_ns)
        if not len(most):
            return "", False
        shortest = int(most[np.argmin((self.end_ns - self.start_ns)[most])])
        return self.name[shortest], bool(self.waits[shortest])


class MemorySamples(Struct, frozen=True):
    """Allocated memory of a rank's devices (k,), in order of time; of one device with what changed it."""

    at_ns: Int64
    n_bytes: Float64
    capacity: float  # in bytes; 0 if unknown
    device: str = ""
    change: Int64 = NO_NUMBERS  # bytes allocated, below 0 freed; those of a snapshot as requested
    address: Int64 = NO_NUMBERS  # -1 if unknown
    reserved: Int64 = NO_NUMBERS
    phase: Int64 = NO_NUMBERS  # in which it happened: index into `MEMORY_PHASES`
    holder: Int64 = NO_NUMBERS  # index into `holders`
    holders: Sequence[str] = ()
    step: Int64 = NO_NUMBERS  # -1 outside of steps
    facts: Mapping[str, Any] = field(default_factory=dict)  # about free blocks


class StepRows(Struct, frozen=True):
    """The k steps of a rank: numbers, roles and lengths of parts, other values."""

    label: Int64  # (k,)
    parts: Mapping[str, tuple[Role, Float64]]  # (k,) in nanoseconds
    values: Mapping[str, Float64]  # (k,)


#: The value of `--group_by` that needs only the names of device work.
KERNEL_KIND = "kernel_kind"


class System:
    """A system that writes traces; the answers here fit any chrome trace."""

    name = "chrome"
    #: The rule by which slices count as communication and computation.
    counted_by = (
        "Communication: operations named after a collective (allreduce, nccl, …), or of a category so "
        "called (comm), with all that they call; all else computes."
    )
    #: Names of processes that only this system gives; None without such names.
    process_names: re.Pattern[str] | None = None
    pairing = EndRule.NESTED
    #: The files of a worker share a clock.
    has_workers = False
    #: `combine` writes the rank of an operation into its name (``wk0.rank1.``).
    names_by_rank = False
    #: The process numbers of a combined file are the ranks.
    pid_is_rank = False
    #: The name of the instants with the allocated memory of a device.
    memory_event = "[memory]"
    #: The profiler's setting that records them.
    memory_setting = ""
    #: Shares of short stretches of host time that are the profiler's: the least, the likely and the most;
    #: None if they are not known.
    profiler_cost: tuple[float, float, float] | None = (0.0, 0.0, 0.0)
    #: The operation whose thread a combined file shows first.
    front_operation: str | None = None
    #: The kinds of findings that its recordings cannot show with any setting.
    never_shows: frozenset[str] = frozenset((
        "slow_collective", "server", "priority_inversion", "input", "host_bound", "host_sync", "copies",
        "memory", "negotiation",
    ))  # fmt: skip
    #: Traces of several ranks always show communication.
    shows_communication = False
    #: Events are recorded; else only the lengths of the parts of steps, without dependencies.
    has_events = True
    #: The error for a recording without slices.
    without_slices = "the trace holds no operation (no X event, no B with its E)"
    #: Traces are profiles of tasks.
    has_tasks = False
    #: The track of a slice is part of the operation's name (a partition).
    names_by_track = False
    #: Keys of the events' args to decode for each need ("input*" means input0, input1, …).
    args: Mapping[Need, Sequence[str]] = MappingProxyType({})
    #: Parts of names that `--comm` declares communication.
    comm: Sequence[str] = ()

    @property
    def slows_host(self) -> bool:
        """True if a cost of the profiler is known, and not 0."""
        return any(self.profiler_cost or ())

    def recognises_metadata(self, metadata: Metadata) -> bool:
        """Recognise the system by metadata events; in a combined file, names begin with their sources."""
        names = names_in(metadata, "process_name").values()
        return self.process_names is not None and any(map(self.process_names.fullmatch, names))

    def recognises(self, trace: Trace) -> bool:
        """Recognise a file of the system by its trace, or the beginning of that."""
        return self.recognises_metadata(trace.metadata)

    def epoch_ns(self, trace: Trace) -> int:
        """Read the offset of the file's times from the epoch; 0 if unknown.

        PyTorch's profiler and this program write it as the header's `baseTimeNanoseconds`.
        `dialects.epoch_ns` rejects an impossible one.
        """
        return int_or_zero(trace.header.get(BASE))

    def common_clock(self, trace: Trace) -> str:
        """Name the metadata that puts the times of all ranks on one clock; "" for none."""
        return ""

    def rank(self, trace: Trace) -> tuple[int | None, int | None]:
        """Read (rank, world size) from the file, or from a source of a combined file."""
        return None, None

    def is_left_out(self, tid: object) -> bool:
        """Select threads whose events `combine` leaves out."""
        return False

    def machine(self, trace: Trace) -> str:
        """Name the machine whose clock the file uses; "" if unknown."""
        return ""

    def timed(self, trace: Trace) -> Trace:
        """Add the durations that the events lack."""
        return with_known_durations(trace)

    def lost_work(self, trace: Trace) -> str:
        """Say how much device work of a rank was not recorded; "" for little."""
        return ""

    def finished(self, trace: Trace) -> Trace:
        """Leave out the slices that stand for the recording itself."""
        return trace

    def split(self, trace: Trace) -> Sequence[Owned]:
        """Split a file, or one source of a combined file, by processes into ranks and their shared host."""
        return split_by_processes(trace)

    def second_axis(self, read: Callable[[], Trace]) -> SecondAxis | None:
        """Find the second time axis of a file; `read` returns its trace with unchanged times."""
        return None

    def roles(self, trace: Trace) -> NDArray[np.int8]:
        """Find the `Role` of each slice (n,); see `rule`."""
        roles = self.recorded_roles(trace)
        if self.comm:
            roles[self.named_comm(trace) & (roles != Role.IGNORED)] = Role.COMM
        roles[idle(trace, roles)] = Role.IDLE
        return roles

    def is_named_comm(self, name: str) -> bool:
        """Check a name against `--comm`."""
        return any(part in name for part in self.comm)

    def named_comm(self, trace: Trace) -> Mask:
        """Mask the slices (n,) that `--comm` declares communication, and the slices inside."""
        named = by_name(trace, self.is_named_comm)
        return named | lies_inside(trace.ts_ns, trace.end_ns, trace.track_id, named)

    def recorded_roles(self, trace: Trace) -> NDArray[np.int8]:
        """Find the `Role` of each slice (n,) by name and category, regardless of its thread."""
        roles = framed(trace)
        roles[:] = np.where(roles == Role.IGNORED, roles, Role.COMPUTE)
        comm = by_name(trace, lambda name: is_collective(name, "") or is_server_transfer(name))
        comm |= by_cat(trace, lambda cat: is_collective("", cat))
        comm |= lies_inside(trace.ts_ns, trace.end_ns, trace.track_id, comm)
        roles[comm] = Role.COMM
        return roles

    def rule(self, trace: Trace) -> str:
        """State the rule by which slices of `trace` count as communication and computation."""
        return self.counted_by

    def marked_steps(self, trace: Trace) -> Steps:
        """Find the steps that the system itself marks; see `find_steps`."""
        return NO_STEPS

    def find_steps(self, trace: Trace, by: str | None = None) -> Steps:
        """Find the steps of `trace`: the recording's marks, else the optimizer's calls, else a repeated span.

        `by` names the annotation that marks a step instead. Numbers are unique: if the recording repeats some
        (in each epoch, in a file written twice), steps are counted anew.
        """
        if by is not None:
            return steps_by_name(trace, by)
        marked = self.marked_steps(trace)
        steps = marked if marked.whole or marked.partial else loop_steps(trace, self.loop_spans(trace))
        return numbered_once(steps)

    def loop_spans(self, trace: Trace) -> Mask:
        """Mask the slices (n,) that, if they repeat, may be the body of the training loop."""
        return np.zeros(len(trace), np.bool_)

    def annotations(self, trace: Trace) -> Mask:
        """Mask the annotations (n,) around work of the host that may be unrecorded."""
        return np.zeros(len(trace), np.bool_)

    def loads(self, trace: Trace) -> list[Step]:
        """List the periods from one load of input data to the next, also in untraced steps."""
        return []

    def passes(self, trace: Trace) -> tuple[Mask, Mask]:
        """Mask the forward operations (n,), and the backward operations (n,)."""
        none = np.zeros(len(trace), np.bool_)
        return none, none

    def may_synchronise(self, name: str) -> bool:
        """Accept names of operations of several ranks that no rank leaves before all have entered."""
        return is_collective(name, "") and kind_of(name).startswith(("all-", "reduce-scatter", "barrier"))

    def synchronises(self, trace: Trace) -> Mask:
        """Mask the slices (n,) that may be part of such an operation, or number its step."""
        return by_name(trace, self.may_synchronise)

    def sync_part(self, name: str, cat: str, tid: object, args: Mapping[str, Any]) -> SyncPart | None:
        """Read a slice as part of such an operation; `args` need only have the keys for `Need.SYNC`."""
        return SyncPart(name)

    def sync_points(self, trace: Trace) -> SyncPoints:
        """Find the operations that several ranks do together; read `trace` with `Need.SYNC`."""
        wanted = np.flatnonzero(self.synchronises(trace))
        keys = [key for key in self.args.get(Need.SYNC, ()) if key in trace.args]
        columns = {key: trace.args[key].as_dict() for key in keys}
        code = trace.name_id[wanted].astype(np.int64) * len(trace.cats) + trace.cat_id[wanted]
        groups = places_by_value(code * len(trace.tracks) + trace.track_id[wanted])
        begin_ns, end_ns = trace.ts_ns, trace.end_ns
        return collected(
            (part, begin_ns[rows], end_ns[rows])
            for group in groups
            for part, rows in self._sync_parts(trace, wanted[group], columns).items()
        )

    def _sync_parts(
        self, trace: Trace, rows: Int64, columns: Mapping[str, Mapping[int, Any]]
    ) -> dict[SyncPart, Int64]:
        """Read slices of one name, category and track as parts; list the rows of each part."""
        first = int(rows[0])
        name, cat = trace.names[trace.name_id[first]], trace.cats[trace.cat_id[first]]
        tid = trace.tracks[trace.track_id[first]].tid
        if not columns:
            part = self.sync_part(name, cat, tid, {})
            return {} if part is None else {part: rows}
        rows_of: dict[SyncPart, list[int]] = {}
        for row in rows.tolist():
            part = self.sync_part(name, cat, tid, {key: column.get(row) for key, column in columns.items()})
            if part is not None:
                rows_of.setdefault(part, []).append(row)
        return {part: np.array(part_rows, np.int64) for part, part_rows in rows_of.items()}

    def rank_steps(self, rank: RankTrace, by: str | None = None) -> RankSteps:
        """Build the step graphs of a rank; TraceError without steps. `by`: see `find_steps`."""
        from analyzer.reading.dialects.span_graph import Meaning, arrows, record_spans

        trace, roles = rank.trace, self.roles(rank.trace)
        meets = is_communication(roles) & ~by_name(trace, is_server_transfer)
        meaning = Meaning(roles, meets, {}, self.category)
        steps = self.find_steps(trace, by)
        recorded = record_spans(rank, trace, steps.whole, meaning, arrows(trace))
        return replace(recorded, notes=[*recorded.notes, *filter(None, [steps.note])])

    def operation(self, name: str, tid: object) -> str:
        """Name an operation in full; `tid` is that of its track."""
        return name

    def parameters(self, directory: Path) -> Mapping[str, str]:
        """Read the names of the model's parameters from the job's files, by their names in traces."""
        return {}

    def main_name(self, name: str, parameters: Mapping[str, str]) -> str | None:
        """Name an operation as a DAG does; None for a part of an operation. See `parameters`."""
        op = OpName.parse(name)
        return None if op.queue is not None or op.cat is None else str(op.bare())

    def category(self, name: str, cat: str) -> str:
        """Name the category of an operation."""
        return cat

    def side(self, name: str, cat: str) -> str:
        """Tell operations of the ``device``, of the ``host``, and waits and marks of steps, ``apart``."""
        waits = (is_wait(name) and cat not in CPU_OP_CATS) or "synchronize" in name.lower()
        if waits or is_frame_of_all(name) or cat in _REPEATED_CATS:
            return "apart"
        return "device" if cat in DEVICE_CATS else "host"

    def collectives(self, rank: RankTrace) -> Collectives:
        """List the collectives of a rank, with their recorded sizes; see `Need.SIZES`."""
        trace = rank.trace
        comm = self.roles(trace) == Role.COMM
        carried_out = comm & by_name(trace, is_library_call)
        comm = carried_out if carried_out.any() else comm  # other calls hand collectives over
        rows = np.flatnonzero(comm & ~lies_inside(trace.ts_ns, trace.end_ns, trace.track_id, comm))
        calls = [Call(kind_of(trace.names[i])) for i in trace.name_id[rows].tolist()]
        return Collectives.of(rows, calls, np.zeros(len(rows), np.int64), trace.ts_ns[rows])

    def allocations(self, trace: Trace, samples: Sequence[Mapping[str, Any]]) -> Sequence[MemorySamples]:
        """List what each device allocated; `samples` as for `memory`. The trace has `Need.MEMORY`."""
        return ()

    def memory(self, trace: Trace, samples: Sequence[Mapping[str, Any]]) -> MemorySamples | None:
        """Read the allocated memory of devices from the args of all instants named `memory_event`.

        None if their number differs: of several files of a rank only one is read.
        """
        at_ns = trace.points.ts_ns[trace.points.name_id == trace.names.index(self.memory_event)]
        if len(samples) != len(at_ns):
            return None
        on_device = np.array([_number(sample.get("Device Type")) > _CPU for sample in samples], np.bool_)
        total = np.array([_number(sample.get("Total Allocated")) for sample in samples], np.float64)
        devices = trace.header.get("deviceProperties")
        first = devices[0] if isinstance(devices, list) and devices and isinstance(devices[0], dict) else {}
        return MemorySamples(at_ns[on_device], total[on_device], _number(first.get("totalGlobalMem")))

    def device_work(self, trace: Trace) -> Mask:
        """Mask the work of devices (n,)."""
        return np.zeros(len(trace), np.bool_)

    def work_groups(self, trace: Trace, roles: NDArray[np.int8], by: str) -> tuple[Int64, Trace] | None:
        """Group the work of devices as `--group_by` says: operator, module, annotation or `KERNEL_KIND`.

        Without a device, operators of the host are the work. `roles` (n,) are those of all slices. Except for
        kinds, the trace was read for `Need.ORIGIN`. Returned are the rows of the work, and their slices with
        the names of the groups. None if the system does not record the groups.
        """
        if by != KERNEL_KIND:
            return None
        rows = np.flatnonzero(self.device_work(trace))
        moves, names = is_communication(roles[rows]).tolist(), trace.name_id[rows].tolist()
        kinds = [
            COMMUNICATION if communicates else kernel_kind(trace.names[name])
            for name, communicates in zip(names, moves, strict=True)
        ]
        return rows, with_names(trace.select(rows), kinds, kinds)

    def modelled_work(self, trace: Trace) -> NDArray[np.void] | None:
        """List the pieces of a rank's work with their floating-point operations, as `kineto_flops.WORK`.

        The trace was read for `Need.SHAPES` and `Need.STEPS`. None where shapes are not recorded.
        """
        return None

    def loads_ahead(self, trace: Trace) -> bool:
        """Check for processes beside the recorded ones that load the input."""
        return False

    def frames(self, trace: Trace) -> Frames | None:
        """List the Python calls during which nothing else runs; None without recorded stacks."""
        return None

    def step_rows(self, trace: Trace, by: str | None = None) -> StepRows:
        """Read the steps of a recording without events; `by` as for `find_steps`."""
        raise NotImplementedError(f"{self.name}: no rows")

    def runs_into_next_step(self, trace: Trace) -> Mask:
        """Mask the slices (n,) that may begin after their step: the n-th of a name is of the n-th step."""
        return np.zeros(len(trace), np.bool_)

    def standing(self, trace: Trace) -> Standing | None:
        """List the calls that were open when the rank wrote the file; None if open calls are not recorded."""
        return None

    def filter_names(self, name: str, cat: str, tid: object, process: str | None) -> Sequence[str]:
        """List the names by which `--filter` selects an event; () if it is not communication."""
        return (name,) if is_collective(name, cat) or is_server_transfer(name) else ()


def with_names(trace: Trace, names: Sequence[str], cats: Sequence[str]) -> Trace:
    """Give slices (n,) other names and categories, and no args."""
    (distinct, name_id), (distinct_cats, cat_id) = numbered(names), numbered(cats)
    return replace(trace, names=distinct, cats=distinct_cats, name_id=name_id, cat_id=cat_id, args={})


def framed(trace: Trace) -> NDArray[np.int8]:
    """Find the role of each slice (n,) by category; `FRAME` for other categories."""
    roles = np.full(len(trace), Role.FRAME, np.int8)
    roles[by_cat(trace, lambda cat: bool(re.fullmatch(_HOST_CATS, cat)))] = Role.HOST
    roles[by_cat(trace, RUNTIME_CATS.__contains__)] = Role.CALL
    roles[by_cat(trace, COPY_CATS.__contains__)] = Role.COPY
    roles[by_cat(trace, _REPEATED_CATS.__contains__)] = Role.IGNORED
    roles[by_name(trace, lambda name: bool(re.fullmatch(_RECORDING, name)))] = Role.IGNORED
    return roles


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def is_frame_of_all(name: str) -> bool:
    """Recognise the name of a step or of the whole recording, with or without a rank's prefix."""
    return bool(re.fullmatch(_RECORDING, re.sub(_OF_A_RANK, "", name, count=1)))


def without_recording(trace: Trace) -> Trace:
    """Leave out the spans that stand for the recording itself, such as ``PyTorch Profiler (0)``."""
    named = {(e["pid"], e["tid"]) for e in trace.metadata if e["args"].get("name") == "PyTorch Profiler"}
    frames = [
        i
        for i, track in enumerate(trace.tracks)
        if track.pid in ("Spans", "Traces") or is_of_recording(track.tid) or track in named
    ]
    inside = ~np.isin(trace.track_id, frames)
    return trace if inside.all() else trace.select(inside)


def is_of_recording(tid: object) -> bool:
    """Recognise the thread of the profiler's own spans."""
    return "PyTorch Profiler" in str(tid)


def int_or_zero(value: Any) -> int:
    """Parse an integer of 64 bits, or its text; 0 for any other value."""
    number = int(value) if re.fullmatch(r"-?\d{1,19}", str(value)) else 0
    return number if -(1 << 63) <= number < 1 << 63 else 0


def integer(value: Any) -> int | None:
    """Accept an integer; None for any other value."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None
