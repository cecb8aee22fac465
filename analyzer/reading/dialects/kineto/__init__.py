"""PyTorch's profiler (Kineto): operators and annotations of the host, kernels and copies of a device."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from analyzer.base.arrays import Int64, Mask, NDArray
from analyzer.base.arrays.numbering import ids_in
from analyzer.base.inputs import MEMBER
from analyzer.reading.dialects.kineto import collectives, kineto_steps, launches
from analyzer.reading.dialects.name_rules import COMMUNICATION, kernel_kind
from analyzer.reading.dialects.recorded_collectives import Collectives, SyncPart, SyncPoints
from analyzer.reading.dialects.roles import Role, by_cat, by_name
from analyzer.reading.dialects.steps import (
    NO_STEPS,
    Step,
    Steps,
    in_first_process,
    spans,
    step_table,
    windows,
    with_slices,
)
from analyzer.reading.dialects.system import (
    BASE,
    CPU_OP_CATS,
    DEVICE_CATS,
    KERNEL_CATS,
    KERNEL_KIND,
    RUNTIME_CATS,
    Frames,
    MemorySamples,
    Need,
    System,
    framed,
    integer,
    without_recording,
)
from analyzer.reading.dialects.tolerances import LONG_FUNCTION, LONG_FUNCTION_NS
from analyzer.reading.formats.columns import ADDRESS, ALLOCATOR, Trace

if TYPE_CHECKING:
    from analyzer.reading.dialects.step_parts import RankSteps, RankTrace

_HEADER = {"schemaVersion", "deviceProperties", "distributedInfo", BASE, ALLOCATOR}
_CATS = {
    *("cpu_op", "user_annotation", "gpu_user_annotation", "kernel", "gpu_memcpy", "gpu_memset"),
    *("cuda_runtime", "cuda_driver", "cuda_sync", "python_function", "ac2g", "fwdbwd"),
    *("Operator", "Runtime", "Kernel", "Memcpy", "Memset"),  # before PyTorch 1.11
}
_NOT_LAUNCHED = (
    "no steps are found: only the host marks steps, it is far ahead of its device, and launches are not "
    "recorded"
)
#: Operators that only wait for a collective.
_COLLECTIVE_WAITS = {"_c10d_functional::wait_tensor", "c10d_functional::wait_tensor"}
#: Waits for events and records of them on streams, which some accelerators list beside their work.
_BETWEEN_STREAMS = re.compile(r"(?i)(?:event|notify)_(?:wait|record)")
#: A Python function: built in, or in a file, whose name is left out.
_FUNCTION = r"^(?:<built-in (?:function|method) (\w+).*|<method '(\w+)' of .*|.*\.py\(\d+\): (\S+))$"
_WAITS_IN_PYTHON = re.compile(
    r"<(?:built-in )?method '?(?:acquire|poll|select|recv_?\w*|get)\b.*"
    r"|.*(?:threading|queue|selectors|connection)\.py\(\d+\): _?(?:wait\w*|get|poll|select|recv\w*)"
)


class Kineto(System):
    """Computation and communication are kernels if the trace has device work, else calls of the host."""

    name = "kineto"
    shows_communication = True
    memory_setting = "profile_memory=True"
    #: Of 20 jobs on an H200, from their step times with and without profiler (docs/dev/accuracy.md).
    profiler_cost: tuple[float, float, float] | None = (0.3, 0.55, 0.8)
    never_shows = frozenset(("server", "priority_inversion", "negotiation"))
    args = MappingProxyType({
        Need.ALWAYS: (collectives.COLLECTIVE,),
        Need.SYNC: collectives.SYNC_ARGS,
        Need.STEPS: ("correlation",),
        Need.EDGES: ("correlation", "stream", "wait_on_stream", "wait_on_cuda_event_record_corr_id"),
        Need.SIZES: (*collectives.SIZE_ARGS, *collectives.SYNC_ARGS, "correlation"),
        Need.SHAPES: ("correlation", "Fwd thread id", "Sequence number", *collectives.SHAPE_ARGS),
        Need.ORIGIN: ("correlation", "Fwd thread id", "Sequence number"),
        Need.MEMORY: (ADDRESS, "Fwd thread id", "Sequence number"),
    })  # fmt: skip

    def recognises(self, trace: Trace) -> bool:
        """Recognise members of the header and categories of events that only Kineto writes.

        Files that this program wrote have `baseTimeNanoseconds` for every system, so that does not count.
        """
        header = trace.header.keys() - ({BASE} if MEMBER in trace.header else set())
        return bool(_HEADER & header or _CATS & set(trace.cats))

    def rank(self, trace: Trace) -> tuple[int | None, int | None]:
        info = trace.header.get("distributedInfo")
        info = info if isinstance(info, Mapping) else {}
        return integer(info.get("rank", trace.header.get("global_rank"))), integer(info.get("world_size"))

    def machine(self, trace: Trace) -> str:
        """Read the `host_name`; localhost may be any machine."""
        name = str(trace.header.get("host_name") or "")
        return "" if name.startswith("localhost") else name

    def timed(self, trace: Trace) -> Trace:
        """Leave out spans such as ``PyTorch Profiler (0)``; correct impossible device work, with notes."""
        trace = launches.without_untimed(without_recording(trace))
        return super().timed(launches.with_sound_durations(trace, collectives.collective_kernels(trace)))

    def lost_work(self, trace: Trace) -> str:
        return launches.lost_work(trace)

    def recorded_roles(self, trace: Trace) -> NDArray[np.int8]:
        roles, on_device = framed(trace), has_device(trace)
        roles[by_cat(trace, (KERNEL_CATS if on_device else CPU_OP_CATS).__contains__)] = Role.COMPUTE
        if on_device:
            works = by_cat(trace, DEVICE_CATS.__contains__)
            roles[by_name(trace, _BETWEEN_STREAMS.fullmatch, works)] = Role.WAIT
            comm = collectives.collective_kernels(trace) | collectives.lasting_collectives(trace)
        else:
            comm = by_name(trace, collectives.is_collective_call)
            roles[by_name(trace, _COLLECTIVE_WAITS.__contains__)] = Role.WAIT
        roles[comm] = Role.COMM
        if on_device and "correlation" in trace.args:
            roles[launches.launched_before(trace)] = Role.IGNORED
        return roles

    def named_comm(self, trace: Trace) -> Mask:
        """Mask the slices (n,) that `--comm` names: with device work recorded, those of the device."""
        named = super().named_comm(trace)
        return named & by_cat(trace, DEVICE_CATS.__contains__) if has_device(trace) else named

    def rule(self, trace: Trace) -> str:
        if has_device(trace):
            return (
                "Communication: kernels of collectives (named after nccl, rccl, all_reduce, …), copies "
                "between devices, calls of collectives that the host carries out (gloo:, mpi:, …); "
                "computation: all other kernels."
            )
        return (
            "No work of a device is recorded. Communication: calls of collectives (gloo:, nccl:, mpi:, …), "
            "from the call to its end; computation: the operators of the host."
        )

    def marked_steps(self, trace: Trace) -> Steps:
        """Find ``ProfilerStep#N`` of the host, or of the device where its launches are not recorded."""
        marked = ((i, collectives.step_number(name)) for i, name in enumerate(trace.names))
        numbers = {i: number for i, number in marked if number is not None}
        if not numbers:
            return NO_STEPS
        marks = np.isin(trace.name_id, list(numbers))
        on_gpu = marks & by_cat(trace, "gpu_user_annotation".__eq__)
        chosen = on_gpu if on_gpu.any() and launches.are_missing(trace) else marks & ~on_gpu
        rows = in_first_process(trace, np.flatnonzero(chosen))
        steps = spans(trace, rows, [numbers[i] for i in trace.name_id[rows].tolist()])
        return Steps(with_slices(trace, steps), (), "ProfilerStep annotations")

    def find_steps(self, trace: Trace, by: str | None = None) -> Steps:
        """Find the steps, from completion to completion where launches of device work are recorded."""
        steps, _, _, *tables = self._steps_and_tables(trace, by)
        whole, partial = (tuple(map(Step._make, table.tolist())) for table in tables)
        return steps._replace(whole=whole, partial=partial)

    def _steps_and_tables(
        self, trace: Trace, by: str | None
    ) -> tuple[Steps, Int64, tuple[Int64, Int64] | None, Int64, Int64]:
        """Find the steps, and tables (k, 3): the host's, the device's, the whole and the partial ones."""
        steps, kinds = self._every_step(trace, by)
        host, partial = map(step_table, (steps.whole, steps.partial))
        steps = steps._replace(whole=(), partial=())  # many take much memory
        completed = kineto_steps.from_completion(trace, host, partial, steps) if has_device(trace) else None
        if completed is None and by is None and kineto_steps.goes_on(trace, host):
            steps, host, partial = NO_STEPS._replace(note=_NOT_LAUNCHED), *np.empty((2, 0, 3), np.int64)
        whole = windows(host)
        if completed is not None:
            table, why = completed
            whole, partial = table[why == kineto_steps.COUNTS], table[why != kineto_steps.COUNTS]
        if kinds:
            kind, note = kineto_steps.chosen_kind(whole, kinds, by)
            steps = steps._replace(kind=kind, note=note)
            whole, partial = (table[np.array(kinds)[table[:, 0] - 1] == kind] for table in (whole, partial))
        return steps, host, completed, whole, partial

    def _every_step(self, trace: Trace, by: str | None) -> tuple[Steps, Sequence[str]]:
        """List the host's steps, numbered from 1 in inference, and the kind of each there."""
        served, kinds = kineto_steps.annotated_steps(trace)
        if by is None:
            is_served = bool(served.whole) and len(served.whole) >= len(self.marked_steps(trace).whole)
        else:
            is_served = by in kinds
        return (served, kinds) if is_served else (super().find_steps(trace, by), ())

    def loop_spans(self, trace: Trace) -> Mask:
        return by_cat(trace, "user_annotation".__eq__)

    def annotations(self, trace: Trace) -> Mask:
        """Mask the host's annotations (n,), without a device except those of the DataLoader."""
        if has_device(trace):
            return super().annotations(trace)
        return self.loop_spans(trace) & ~by_name(trace, lambda name: "DataLoader" in name)

    def category(self, name: str, cat: str) -> str:
        if cat in DEVICE_CATS:
            return COMMUNICATION if collectives.is_collective_kernel(name) else kernel_kind(name)
        if cat == "user_annotation" and collectives.is_collective_call(name):
            return "communication"
        return "data loading" if cat == "user_annotation" and "DataLoader" in name else cat

    def filter_names(self, name: str, cat: str, tid: object, process: str | None) -> Sequence[str]:
        return (name,) if collectives.is_collective(name, cat) else ()

    def may_synchronise(self, name: str) -> bool:
        is_known = collectives.is_collective_kernel(name) or collectives.is_collective_call(name)
        return is_known or self.is_named_comm(name) or collectives.is_step_mark(name)

    def synchronises(self, trace: Trace) -> Mask:
        """Mask the slices (n,) that may be collectives; marks of steps only where the host calls some."""
        wanted = super().synchronises(trace) | collectives.collective_kernels(trace)
        if any(map(collectives.is_call_of_all, trace.names)):
            return wanted
        return wanted & ~by_name(trace, collectives.is_step_mark)

    def sync_part(self, name: str, cat: str, tid: object, args: Mapping[str, Any]) -> SyncPart | None:
        """Read a collective (an annotation of gloo, a kernel of NCCL) or the mark of a step."""
        number = collectives.step_number(name)
        if number is not None and cat != "gpu_user_annotation":
            return SyncPart(number)
        return collectives.collective(name, cat, args, is_known=self.is_named_comm(name))

    def sync_points(self, trace: Trace) -> SyncPoints:
        """Find the collectives; those of the host are in the group that the header lists."""
        return collectives.grouped(super().sync_points(trace), trace.header)

    def collectives(self, rank: RankTrace) -> Collectives:
        steps = step_table(self.marked_steps(rank.trace).whole)
        return collectives.recorded_collectives(rank, self.roles(rank.trace), steps)

    def memory(self, trace: Trace, samples: Sequence[Mapping[str, Any]]) -> MemorySamples | None:
        """Move each sample of the host into the same step of the device."""
        memory = super().memory(trace, samples)
        _, host, completed, *_ = self._steps_and_tables(trace, None)
        if memory is None or completed is None or len(host) != len(completed[0]):
            return memory
        step = kineto_steps.places(host, memory.at_ns)
        _, begin, end = completed[0][step].T
        at_ns = np.where(step < 0, memory.at_ns, np.minimum(begin + memory.at_ns - host[step, 1], end - 1))
        return replace(memory, at_ns=at_ns)

    def allocations(self, trace: Trace, samples: Sequence[Mapping[str, Any]]) -> Sequence[MemorySamples]:
        from analyzer.reading.dialects.kineto import attribution

        if ALLOCATOR in trace.header:
            return attribution.of_snapshot(trace)
        if self.memory_event not in trace.names:
            return ()
        steps = step_table(self.marked_steps(trace).whole)
        return attribution.of_events(trace, samples, self.memory_event, steps)

    def device_work(self, trace: Trace) -> Mask:
        return by_cat(trace, DEVICE_CATS.__contains__)

    def work_groups(self, trace: Trace, roles: NDArray[np.int8], by: str) -> tuple[Int64, Trace] | None:
        if by == KERNEL_KIND:
            roles = np.where(collectives.collective_kernels(trace), Role.COMM, roles).astype(np.int8)
            return super().work_groups(trace, roles, by)
        from analyzer.reading.dialects.kineto.attribution import attributed

        work = self.device_work(trace)
        rows = np.flatnonzero(work if work.any() else by_cat(trace, CPU_OP_CATS.__contains__))
        return rows, attributed(trace, rows, by)

    def modelled_work(self, trace: Trace) -> NDArray[np.void] | None:
        from analyzer.reading.dialects.kineto.kineto_flops import modelled_work

        rows, kinds = self.work_groups(trace, self.roles(trace), KERNEL_KIND) or (
            np.empty(0, np.int64),
            trace,
        )
        return modelled_work(trace, rows, [kinds.names[i] for i in kinds.name_id[: len(rows)].tolist()])

    def loads_ahead(self, trace: Trace) -> bool:
        return any("_MultiProcessingDataLoaderIter" in name for name in trace.names)

    def frames(self, trace: Trace) -> Frames | None:
        """List the long Python functions (`with_stack`) and other long slices of a device's host.

        Threads with functions alone, and functions that only wait, are left out: their callers tell more.
        """
        cats = {"python_function"}
        if has_device(trace):
            cats |= CPU_OP_CATS | RUNTIME_CATS | {"user_annotation"}
        long_ns = min(LONG_FUNCTION_NS, np.ptp(trace.end_ns) * LONG_FUNCTION)
        is_frame = by_cat(trace, cats.__contains__) & (trace.dur_ns >= long_ns)
        is_frame &= ~by_name(trace, lambda name: kineto_steps.kind_of_step(name) is not None, is_frame)
        is_function = by_cat(trace, "python_function".__eq__)
        works = np.isin(np.arange(len(trace.tracks)), trace.track_id[~is_function])[trace.track_id]
        is_frame &= ~is_function | (works & ~by_name(trace, _WAITS_IN_PYTHON.fullmatch))
        rows = np.flatnonzero(is_frame & (self.roles(trace) != Role.IGNORED))
        if not len(rows):
            return None
        names = [re.sub(_FUNCTION, r"\1\2\3", trace.names[i]) for i in trace.name_id[rows].tolist()]
        waits = by_cat(trace, RUNTIME_CATS.__contains__)[rows]
        return Frames(trace.ts_ns[rows], trace.end_ns[rows], names, waits)

    def rank_steps(self, rank: RankTrace, by: str | None = None) -> RankSteps:
        from analyzer.reading.dialects.kineto.kineto_graph import record

        steps, host, completed, whole, _ = self._steps_and_tables(rank.trace, by)
        recorded = record(rank, host, whole, self.roles(rank.trace), completed)
        return replace(recorded, notes=[*recorded.notes, *filter(None, [steps.note])], step_kind=steps.kind)


def has_device(trace: Trace) -> bool:
    """Check for kernels, copies or fills of a device."""
    return any(trace.cats[i] in DEVICE_CATS for i in ids_in(trace.cat_id))
