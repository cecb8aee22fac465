"""JAX and TensorFlow, profiled by XLA: the file of a host has its threads and all of its devices.

It is ``<log>/plugins/profile/<run>/<host>.trace.json.gz``. Times count from the recording's start, the epoch
is in no event. All args are text. The last event is empty. What comes after the millionth event is missing.

Devices are ranks:

- On a CPU the args of an operation have its device (`device_ordinal`), on whatever thread it runs; what lies
  inside it is its own. The second process of a job counts its devices from 2048 on.
- A GPU is a process (``/device:GPU:0``). Its streams (``Stream #16(Kernel)``) hold kernels, whose arg
  `hlo_op` is the operation; threads such as ``XLA Ops - from #16`` repeat these.
- A TPU is a process (``/device:TPU:0``, also ``/device:TPU:0 SparseCore 1``). ``XLA Ops`` holds its
  operations, ``XLA TraceMe`` waits, ``XLA Modules`` the runs of programs, ``Steps`` its steps.

All else is the host's, which the devices share. Python's functions are called ``$file.py:12 f``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from analyzer.base.arrays import Mask, NDArray
from analyzer.base.arrays.intervals import lies_inside
from analyzer.base.arrays.numbering import unique
from analyzer.base.errors import counted
from analyzer.reading.dialects.owners import SHARED, Owned, split_by_slices
from analyzer.reading.dialects.recorded_collectives import Call, Collectives, SyncPart
from analyzer.reading.dialects.roles import Role, by_name
from analyzer.reading.dialects.steps import NO_STEPS, Step, Steps, step_table
from analyzer.reading.dialects.system import Need, System
from analyzer.reading.formats.columns import Trace

if TYPE_CHECKING:
    from analyzer.reading.dialects.step_parts import RankSteps, RankTrace


class Jax(System):
    """Steps are annotations with a number on the host, else the runs of the program that takes longest."""

    name = "jax"
    process_names = re.compile(r"(?:.*: )?/(?:host:CPU|device:[A-Z]+:\d+)\b.*")
    shows_communication = True
    has_workers = True
    never_shows = System.never_shows - {"host_bound", "host_sync", "copies"}
    counted_by = (
        "Communication: operations of a device named after a collective (all-reduce, psum, all-gather, nccl, "
        "…), with their waits for other devices; computation: its other operations, but for copies."
    )
    args = MappingProxyType({
        Need.ALWAYS: ("device_ordinal", "global_device_id", "hlo_category", "hlo_op", "step_num"),
        Need.STEPS: ("run_id", "hlo_module"),
        Need.EDGES: ("name", "long_name"),
        Need.SYNC: ("hlo_op", "long_name"),
        Need.SIZES: ("name",),
    })  # fmt: skip

    def finished(self, trace: Trace) -> Trace:
        """Return the trace without marks of the profiler's own and threads that repeat others.

        Slices get a category, as the file has none: operation, python or host.
        """
        from analyzer.reading.dialects.jax.xla_slices import (
            NOISE,
            of_profiler,
            operations,
            thread_kinds,
        )

        lines = thread_kinds(trace)
        left_out = by_name(trace, NOISE.fullmatch) | of_profiler(trace) | lines.repeats[trace.track_id]
        if n := int((lines.nameless[trace.track_id] & left_out).sum()):
            fate = "of threads of devices without a name left out"
            trace = replace(trace, repairs=[*trace.repairs, f"{counted(n, 'slice')} {fate}"])
        trace = trace.select(~left_out) if left_out.any() else trace
        kind = np.where(by_name(trace, lambda name: name.startswith("$")), 1, 2)
        kind[operations(trace, lines)] = 0
        cat_id = (kind + len(trace.cats)).astype(np.int32)
        return replace(trace, cats=[*trace.cats, "operation", "python", "host"], cat_id=cat_id)

    def split(self, trace: Trace) -> Sequence[Owned]:
        """Return each device's operations as a rank's, and the host's threads, which they share."""
        from analyzer.reading.dialects.jax.xla_slices import device_of_slices, ranks_of

        device = device_of_slices(trace)
        devices = unique(device[device != SHARED])
        index = np.where(device == SHARED, SHARED, np.searchsorted(devices, device))
        return split_by_slices(trace, index, ranks_of(devices.tolist()))

    def roles(self, trace: Trace) -> NDArray[np.int8]:
        """Return the `Role` of each slice (n,): waits are known by their names on any thread."""
        return self.recorded_roles(trace)

    def recorded_roles(self, trace: Trace) -> NDArray[np.int8]:
        """Return the `Role` of each slice (n,): an operation of a device has all that lies inside it."""
        from analyzer.reading.dialects.jax.xla_meetings import communicates
        from analyzer.reading.dialects.jax.xla_slices import (
            LOADS,
            SLEEP,
            UNTIMED,
            WAIT,
            is_around,
            operations,
            roles_of,
            thread_kinds,
            with_others,
        )

        if not len(trace):
            return np.empty(0, np.int8)
        lines = thread_kinds(trace)
        works = operations(trace, lines)
        roles = roles_of(trace)
        roles[~works] = Role.HOST
        roles[~works & by_name(trace, WAIT.fullmatch)] = Role.IDLE
        asks = trace.track_id[~works & ~by_name(trace, lambda name: name.startswith("$"))]
        # a thread that asks for work could do some while it sleeps
        roles[by_name(trace, SLEEP.fullmatch) & np.isin(trace.track_id, unique(asks))] = Role.HOST
        roles[lines.waits[trace.track_id]] = Role.IDLE
        loading = ~works & by_name(trace, LOADS.fullmatch)
        loading |= lies_inside(trace.ts_ns, trace.end_ns, trace.track_id, loading)
        roles[loading & ~works] = Role.INPUT
        roles[~works & by_name(trace, UNTIMED.fullmatch)] = Role.IGNORED
        roles[(lines.steps | lines.programs | lines.repeats)[trace.track_id]] = Role.IGNORED
        if "step_num" in trace.args:
            roles[trace.args["step_num"].rows] = Role.IGNORED
        roles[works & (communicates(trace) | self.named_comm(trace))] = Role.COMM
        roles[works & lines.copies[trace.track_id] & (roles == Role.COMPUTE)] = Role.COPY
        inside = lies_inside(trace.ts_ns, trace.end_ns, trace.track_id, works)
        roles[with_others(trace, works) & by_name(trace, is_around)] = Role.FRAME
        roles[inside & ~works] = Role.IGNORED
        return roles

    def marked_steps(self, trace: Trace) -> Steps:
        """Return the steps of the device, else those that the host numbers, else the runs of a program.

        A device has a thread of steps where the profiler knows them; it may lag behind the host. Where its
        numbers are not those of the host they count something else. Without one, a step that the host numbers
        is complete with its program on a device that has threads of its own.
        """
        from analyzer.reading.dialects.jax.xla_slices import (
            calls,
            numbered_spans,
            runs,
            steps_of_device,
            thread_kinds,
        )

        on_host, on_device = numbered_spans(trace), steps_of_device(trace)
        labels = {step.label for step in on_host.whole}
        if on_device.whole and (not labels or labels.issuperset(step.label for step in on_device.whole)):
            return on_device
        if on_host.whole:
            completed = calls(trace, on_host.whole) if thread_kinds(trace).works.any() else NO_STEPS
            return completed if completed.whole else on_host
        of_program = runs(trace)
        return of_program if of_program.whole else calls(trace)

    def loop_spans(self, trace: Trace) -> Mask:
        """Return the slices (n,) of the host."""
        from analyzer.reading.dialects.jax.xla_slices import operations, thread_kinds

        return ~operations(trace, thread_kinds(trace))

    def may_synchronise(self, name: str) -> bool:
        """Accept names of collectives."""
        from analyzer.reading.dialects.jax.xla_slices import role_of

        return role_of(name) is Role.COMM

    def sync_part(self, name: str, cat: str, tid: object, args: Mapping[str, Any]) -> SyncPart | None:
        """Return a collective of all devices, from begin to end; an asynchronous one has two operations."""
        from analyzer.reading.dialects.jax.xla_meetings import part_of

        return part_of(name, args)

    def collectives(self, rank: RankTrace) -> Collectives:
        """Return the collectives of a device with their groups; their bytes are not recorded."""
        from analyzer.reading.dialects.jax.xla_meetings import parts_of

        collectives, parts = super().collectives(rank), parts_of(rank.trace)
        calls = []
        for row, call_index in zip(collectives.row.tolist(), collectives.call.tolist(), strict=True):
            call, part = collectives.calls[call_index], parts.get(row)
            if part is not None and part.begins and part.ends:
                group = part.key[1] if isinstance(part.key, tuple) else None
                n_ranks = len(re.findall(r"\d+", str(group)))
                call = Call(call.kind, f"({group})" if n_ranks else "", n_ranks, key=part.key)
            calls.append(call)
        none = np.zeros(len(collectives.row), np.int64)
        return Collectives.of(collectives.row, calls, none, rank.trace.ts_ns[collectives.row])

    def find_steps(self, trace: Trace, by: str | None = None) -> Steps:
        """Return the steps, each until the next one begins."""
        from analyzer.reading.dialects.step_windows import windows

        steps = super().find_steps(trace, by)
        return steps._replace(whole=tuple(map(Step._make, windows(step_table(steps.whole)).tolist())))

    def rank_steps(self, rank: RankTrace, by: str | None = None) -> RankSteps:
        """Return the steps of a device, with what its host did."""
        from analyzer.reading.dialects.jax.xla_meetings import parts_of
        from analyzer.reading.dialects.jax.xla_slices import device_of_slices, thread_kinds
        from analyzer.reading.dialects.span_graph import Meaning, record_spans

        trace, roles, parts = rank.trace, self.roles(rank.trace), parts_of(rank.trace)
        meaning = Meaning(
            roles,
            collective=np.isin(np.arange(len(trace)), list(parts)),
            phases={},
            category=self.category,
            parts=parts,
            waits=roles == Role.IDLE,
            on_device=thread_kinds(trace).works[trace.track_id] & (device_of_slices(trace) != SHARED),
        )
        return record_spans(rank, trace, self.find_steps(trace, by).whole, meaning)

    def category(self, name: str, cat: str) -> str:
        """Return the name of the operation without its number."""
        from analyzer.reading.dialects.jax.xla_slices import kind_of

        return kind_of(name)

    def device_work(self, trace: Trace) -> Mask:
        """Return the operations of devices (n,) that have no others in them."""
        from analyzer.reading.dialects.jax.xla_slices import (
            device_of_slices,
            is_around,
            operations,
            thread_kinds,
            with_others,
        )

        works = operations(trace, thread_kinds(trace)) & (device_of_slices(trace) != SHARED)
        return np.asarray(works & ~(with_others(trace, works) & by_name(trace, is_around)))

    def filter_names(self, name: str, cat: str, tid: object, process: str | None) -> Sequence[str]:
        """Return the name of a collective."""
        from analyzer.reading.dialects.jax.xla_slices import role_of

        return (name,) if role_of(name) is Role.COMM else ()
