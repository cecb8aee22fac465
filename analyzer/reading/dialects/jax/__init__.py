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

All other slices belong to the host, which the devices share. Python's functions are called
``$file.py:12 f``.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from analyzer.base.arrays import Mask, NDArray
from analyzer.base.arrays.intervals import lies_inside
from analyzer.base.arrays.numbering import as_of, unique
from analyzer.base.errors import counted
from analyzer.reading.dialects.jax.xla_slices import (
    COPIES,
    LOADS,
    NAMELESS,
    NOISE,
    ONE_WAITS_FOR_ONE,
    PROGRAMS,
    REPEATS,
    SLEEP,
    STEPS,
    UNTIMED,
    WAIT,
    WAITS,
    WORK,
    calls,
    containers,
    device_of_slices,
    halves,
    kind_of,
    numbered_spans,
    of_kind,
    of_profiler,
    operations,
    ranks_of,
    role_of,
    roles_of,
    runs,
    stated_role,
    steps_of_device,
)
from analyzer.reading.dialects.owners import SHARED, Owned, split_by_slices
from analyzer.reading.dialects.recorded_collectives import Call, Collectives, SyncPart
from analyzer.reading.dialects.roles import Role, by_name
from analyzer.reading.dialects.steps import NO_STEPS, Step, Steps, step_table, windows
from analyzer.reading.dialects.system import Need, System
from analyzer.reading.formats.columns import Trace

if TYPE_CHECKING:
    from analyzer.reading.dialects.step_parts import RankSteps, RankTrace

_RENDEZVOUS = re.compile(r"global_devices=\[([\d, ]*)\]")
#: ``{{0,1},{2,3}}``, or short for it ``[2,2]<=[4]``: several groups of devices, each with its own collective.
_SEVERAL_GROUPS = re.compile(r"replica_groups=(?:\{\{[\d,]*\},|\[(?!1,)\d+,)")
#: Args with the operation of a slice, and its kind.
_TELLING = ("hlo_op", "long_name", "hlo_category")


class Jax(System):
    """Steps are annotations with a number on the host, else the runs of the program that takes longest."""

    name = "jax"
    process_names = re.compile(r"(?:.*: )?/(?:host:CPU|device:[A-Z]+:\d+)\b.*")
    shows_communication = True
    has_workers = True
    never_shows = System.never_shows - {"host_bound", "host_sync", "copies"}
    profiler_cost = None
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
        """Leave out the profiler's own marks and threads that repeat others.

        Slices get a category, as the file has none: operation, python or host.
        """
        repeats = of_kind(trace, REPEATS, NAMELESS)
        left_out = by_name(trace, NOISE.fullmatch) | of_profiler(trace) | repeats
        if n := int(of_kind(trace, NAMELESS).sum()):
            note = f"{counted(n, 'slice')} of threads of devices without a name left out"
            trace = replace(trace, repairs=[*trace.repairs, note])
        trace = trace.select(~left_out)
        cat = np.where(by_name(trace, lambda name: name.startswith("$")), 1, 2)
        cat[operations(trace)] = 0
        cat_id = (cat + len(trace.cats)).astype(np.int32)
        return replace(trace, cats=[*trace.cats, "operation", "python", "host"], cat_id=cat_id)

    def split(self, trace: Trace) -> Sequence[Owned]:
        """Split the slices into ranks by device, with the threads of the host that they share."""
        device = device_of_slices(trace)
        devices = unique(device[device != SHARED])
        index = np.where(device == SHARED, SHARED, np.searchsorted(devices, device))
        return split_by_slices(trace, index, ranks_of(devices.tolist()))

    def roles(self, trace: Trace) -> NDArray[np.int8]:
        """Find the `Role` of each slice (n,): waits are known by name on any thread."""
        return self.recorded_roles(trace)

    def recorded_roles(self, trace: Trace) -> NDArray[np.int8]:
        """Find the `Role` of each slice (n,); slices inside an operation of a device belong to it."""
        if not len(trace):
            return np.empty(0, np.int8)
        works = operations(trace)
        roles = roles_of(trace)
        roles[~works] = Role.HOST
        roles[~works & by_name(trace, WAIT.fullmatch)] = Role.IDLE
        asks = trace.track_id[~works & ~by_name(trace, lambda name: name.startswith("$"))]
        # a thread that launches work could do so while it sleeps
        roles[by_name(trace, SLEEP.fullmatch) & np.isin(trace.track_id, unique(asks))] = Role.HOST
        roles[of_kind(trace, WAITS)] = Role.IDLE
        loading = ~works & by_name(trace, LOADS.fullmatch)
        loading |= lies_inside(trace.ts_ns, trace.end_ns, trace.track_id, loading)
        roles[loading & ~works] = Role.INPUT
        roles[~works & by_name(trace, UNTIMED.fullmatch)] = Role.IGNORED
        roles[of_kind(trace, STEPS, PROGRAMS, REPEATS, NAMELESS)] = Role.IGNORED
        if "step_num" in trace.args:
            roles[trace.args["step_num"].rows] = Role.IGNORED
        roles[works & self.named_comm(trace)] = Role.COMM
        roles[works & of_kind(trace, COPIES) & (roles == Role.COMPUTE)] = Role.COPY
        inside = lies_inside(trace.ts_ns, trace.end_ns, trace.track_id, works)
        roles[containers(trace, works)] = Role.FRAME
        roles[inside & ~works] = Role.IGNORED
        return roles

    def side(self, name: str, cat: str) -> str:
        if WAIT.fullmatch(name):
            return "apart"
        return "device" if cat == "operation" else super().side(name, cat)

    def marked_steps(self, trace: Trace) -> Steps:
        """Find the steps of the device, else those that the host numbers, else the runs of a program.

        A device's thread of steps may lag behind the host. Numbers other than the host's count something
        else. Without that thread, a step that the host numbers is complete with its program on a device that
        has threads of its own.
        """
        on_host, on_device = numbered_spans(trace), steps_of_device(trace)
        labels = {step.label for step in on_host.whole}
        if on_device.whole and (not labels or labels.issuperset(step.label for step in on_device.whole)):
            return on_device
        if on_host.whole:
            completed = calls(trace, on_host.whole) if of_kind(trace, WORK, COPIES).any() else NO_STEPS
            return completed if completed.whole else on_host
        of_program = runs(trace)
        return of_program if of_program.whole else calls(trace)

    def loop_spans(self, trace: Trace) -> Mask:
        return ~operations(trace)

    def may_synchronise(self, name: str) -> bool:
        return role_of(name) is Role.COMM

    def sync_part(self, name: str, cat: str, tid: object, args: Mapping[str, Any]) -> SyncPart | None:
        """Read a collective of all devices from begin to end; an asynchronous one has two operations."""
        return part_of(name, args)

    def collectives(self, rank: RankTrace) -> Collectives:
        """List the collectives of a device with their groups; their bytes are not recorded."""
        collectives, parts = super().collectives(rank), parts_of(rank.trace)
        named_calls = []
        for row, call_index in zip(collectives.row.tolist(), collectives.call.tolist(), strict=True):
            call, part = collectives.calls[call_index], parts.get(row)
            if part is not None and part.begins and part.ends:
                group = part.key[1] if isinstance(part.key, tuple) else None
                n_ranks = len(re.findall(r"\d+", str(group)))
                call = Call(call.kind, f"({group})" if n_ranks else "", n_ranks, key=part.key)
            named_calls.append(call)
        none = np.zeros(len(collectives.row), np.int64)
        return Collectives.of(collectives.row, named_calls, none, rank.trace.ts_ns[collectives.row])

    def find_steps(self, trace: Trace, by: str | None = None) -> Steps:
        steps = super().find_steps(trace, by)
        return steps._replace(whole=tuple(map(Step._make, windows(step_table(steps.whole)).tolist())))

    def rank_steps(self, rank: RankTrace, by: str | None = None) -> RankSteps:
        from analyzer.reading.dialects.span_graph import Meaning, record_spans

        trace, roles, parts = rank.trace, self.roles(rank.trace), parts_of(rank.trace)
        meaning = Meaning(
            roles,
            collective=np.isin(np.arange(len(trace)), list(parts)),
            phases={},
            category=self.category,
            parts=parts,
            waits=roles == Role.IDLE,
            on_device=of_kind(trace, WORK, COPIES) & (device_of_slices(trace) != SHARED),
        )
        return record_spans(rank, trace, self.find_steps(trace, by).whole, meaning)

    def category(self, name: str, cat: str) -> str:
        return kind_of(name)

    def device_work(self, trace: Trace) -> Mask:
        """Mask the operations of devices (n,), except loops, branches and calls around others."""
        works = operations(trace) & (device_of_slices(trace) != SHARED)
        return np.asarray(works & ~containers(trace, works))

    def filter_names(self, name: str, cat: str, tid: object, process: str | None) -> Sequence[str]:
        return (name,) if role_of(name) is Role.COMM else ()


# ---- collectives: by the name of the operation and the group of devices


def part_of(name: str, args: Mapping[str, Any]) -> SyncPart | None:
    """Read an operation, by name and args, as part of a collective of all devices; None for any other.

    Where a device waits for one other, or for its group, the file does not name the job's devices.
    """
    op = str(args.get("hlo_op") or name)
    stated = stated_role(str(args.get("hlo_category", "")))
    if Role.COMM not in (role_of(name), role_of(op), stated):
        return None
    (whole, begins, ends), is_kernel = halves(op), op != name  # a kernel is both halves of its operation
    if ONE_WAITS_FOR_ONE.match(whole) or _SEVERAL_GROUPS.search(str(args.get("long_name"))):
        return None
    return SyncPart(whole, begins or is_kernel, ends or is_kernel, end_together=True)


def parts_of(trace: Trace) -> dict[int, SyncPart]:
    """Find the parts of collectives in a rank's trace, by row; the key has the group of devices.

    On a CPU the rendezvous inside an operation names the group; without one all devices take part.
    """
    args = {key: trace.args[key].as_dict() for key in _TELLING if key in trace.args}
    groups = _groups_met(trace)
    parts = {}
    for row in np.flatnonzero((roles_of(trace) == Role.COMM) & operations(trace)).tolist():
        row_args = {key: column.get(row) for key, column in args.items()}
        part = part_of(trace.names[trace.name_id[row]], row_args)
        if part is not None:
            parts[row] = part._replace(key=(part.key, groups.get(row)))
    return parts


def _groups_met(trace: Trace) -> dict[int, Hashable]:
    """Find the groups (global devices) in which operations met, by the row of the operation."""
    if "name" not in trace.args:
        return {}
    texts = trace.args["name"].as_dict()
    met = {row: match[1] for row, text in texts.items() if (match := _RENDEZVOUS.search(str(text)))}
    if not met:
        return {}
    outer = np.flatnonzero(operations(trace))
    outer = outer[np.argsort(-trace.end_ns[outer], kind="stable")]  # the innermost of one start comes last
    inner = np.array(list(met), np.int64)
    track, begin = trace.track_id, trace.ts_ns
    around = np.append(outer, -1)[as_of(track[outer], begin[outer], track[inner], begin[inner])]
    is_inside = (around >= 0) & (trace.end_ns[inner] <= trace.end_ns[around])
    rows = zip(around[is_inside].tolist(), inner[is_inside].tolist(), strict=True)
    return {row: met[meeting] for row, meeting in rows}
