"""The owners of work and of memory: the operator, module and annotation around a launch or an allocation.

A launch and its work have the same correlation; all work of a CUDA graph has that of the graph's launch.
Launches of a backward operator belong to the module of its forward operator, which has the same sequence
number; also to its annotation, if the running threads have none. Where no module is recorded, Python
functions stand in. Allocations are instants of a trace, or the history of a snapshot.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from analyzer.base.arrays import Int64
from analyzer.base.arrays.intervals import innermost, lies_inside
from analyzer.base.arrays.numbering import as_of, numbered, unique
from analyzer.reading.dialects.kineto.collectives import ENGINE, is_step_mark
from analyzer.reading.dialects.kineto.kineto_steps import places
from analyzer.reading.dialects.kineto.launches import calls_of, integers
from analyzer.reading.dialects.roles import by_cat, by_name
from analyzer.reading.dialects.system import CPU_OP_CATS, MEMORY_PHASES, MemorySamples, with_names
from analyzer.reading.formats.columns import ADDRESS, ALLOCATOR, Trace
from analyzer.reading.formats.recorder.allocator_snapshot import ACTIONS
from analyzer.reading.formats.recorder.recorder_dump import text_of, whole
from analyzer.reading.formats.values import FARTHEST_NS

_MODULE, _FUNCTION = "nn.Module: ", "python_function"
_UPDATE = "Optimizer."
NO_LAUNCH = "(not attributed: no launch in the file)"


def attributed(trace: Trace, rows: Int64, by: str) -> Trace:
    """Group the work `rows` (k,) by owner; its category is the phase in which it was launched.

    `by` is operator, module or annotation. Where a launch has no operator around it, an annotation stands in.
    Operators of the host launch themselves.
    """
    call = np.where(by_cat(trace, CPU_OP_CATS.__contains__)[rows], rows, calls_of(trace, rows))
    thread = np.append(trace.track_id, -1)[call].astype(np.int64)
    launch = _Launches(trace, thread, np.append(trace.ts_ns, 0)[call])
    owner = {
        "operator": lambda: launch.first_known(launch.operator, launch.annotation),
        "module": lambda: launch.first_known(launch.module, launch.of_forward(launch.modules)),
        "annotation": lambda: launch.first_known(
            launch.annotation, launch.of_main_thread(), launch.of_forward(launch.annotations)
        ),
    }[by]()
    known = owner[owner >= 0].tolist()
    labels = np.full(len(rows), f"(outside {by}s)", np.object_)
    labels[launch.thread < 0] = NO_LAUNCH
    paths = launch.paths(known) if by == "module" else {}
    labels[owner >= 0] = [paths.get(row) or trace.names[trace.name_id[row]] for row in known]
    return with_names(trace.select(rows), labels.tolist(), launch.phases())


def origins(trace: Trace, thread: Int64, at_ns: Int64) -> tuple[list[str], list[str]]:
    """Name the owner of k moments of threads, and the phase: the module, else the outermost operator around.

    Where neither is known, the annotation is the owner, or else "".
    """
    moments = _Launches(trace, thread, at_ns)
    is_inside = lies_inside(trace.ts_ns, trace.end_ns, trace.track_id, moments.is_operator)
    outermost = moments.around(np.flatnonzero(moments.is_operator & ~is_inside))
    owner = moments.first_known(outermost, moments.annotation)
    labels = np.array([*trace.names, ""], np.object_)[np.append(trace.name_id, len(trace.names))[owner]]
    if moments.has_modules:
        module = moments.first_known(moments.module, moments.of_forward(moments.modules))
        is_known = module >= 0
        paths = moments.paths(module[is_known].tolist())
        labels[is_known] = [paths[row] for row in module[is_known].tolist()]
    return labels.tolist(), moments.phases()


class _Launches:
    """The slices around k launches, moments of a thread (-1: none): rows of the trace, -1 for none."""

    def __init__(self, trace: Trace, thread: Int64, at_ns: Int64) -> None:
        self.trace, self.thread, self.at_ns = trace, thread, at_ns
        self.is_operator = by_cat(trace, CPU_OP_CATS.__contains__)
        is_module = by_name(trace, lambda name: name.startswith(_MODULE))
        self.has_modules = bool(is_module.any())
        self.modules = np.flatnonzero(is_module if self.has_modules else by_cat(trace, _FUNCTION.__eq__))
        marks = by_name(trace, is_step_mark)
        self.annotations = np.flatnonzero(by_cat(trace, "user_annotation".__eq__) & ~marks)
        self.operator = self.around(np.flatnonzero(self.is_operator))
        self.module, self.annotation = self.around(self.modules), self.around(self.annotations)
        engine = np.flatnonzero(self.is_operator & by_name(trace, lambda name: name.startswith(ENGINE)))
        self.is_backward = self.around(engine) >= 0
        self.backward = self._backward()
        self.is_backward |= self.backward >= 0

    def around(self, slices: Int64) -> Int64:
        """Find the innermost of some slices around each launch on its thread (k,)."""
        return around(self.trace, slices, self.thread, self.at_ns)

    def of_main_thread(self) -> Int64:
        """Find the innermost annotation around each launch on the thread with most annotations (k,).

        That thread waits for the one that runs the backward pass.
        """
        threads = self.trace.track_id[self.annotations]
        if not len(threads):
            return np.full(len(self.thread), -1)
        main = np.where(self.thread >= 0, int(np.bincount(threads).argmax()), -1)
        return around(self.trace, self.annotations, main, self.at_ns)

    def of_forward(self, slices: Int64) -> Int64:
        """Find the innermost of some slices around the forward operator of each launch (k,)."""
        forward = forward_operators(self.trace, np.flatnonzero(self.is_operator), self.backward)
        thread = np.append(self.trace.track_id, -1)[forward].astype(np.int64)
        return around(self.trace, slices, thread, np.append(self.trace.ts_ns, 0)[forward])

    def first_known(self, *rows: Int64) -> Int64:
        """Take the first known row for each launch (k,)."""
        known = rows[0]
        for others in rows[1:]:
            known = np.where(known < 0, others, known)
        return known

    def phases(self) -> list[str]:
        """Name the phase in which each work was launched (k,); "" if unknown."""
        trace = self.trace
        updates = np.flatnonzero(by_name(trace, lambda name: name.startswith(_UPDATE)))
        is_known = (self.operator >= 0) | (self.annotation >= 0)
        phase = np.select([self.around(updates) >= 0, self.is_backward, is_known], [3, 2, 1], 0)
        return [("", "forward", "backward", "update")[i] for i in phase.tolist()]

    def paths(self, wanted: Sequence[int]) -> dict[int, str]:
        """Make the paths of modules, ``Net_0.Linear_3``, or of Python functions, with ``;`` between them."""
        trace = self.trace
        sort_keys = (column[self.modules] for column in (-trace.dur_ns, trace.ts_ns, trace.track_id))
        order = self.modules[np.lexsort(tuple(sort_keys))]
        outer: dict[int, int] = {}
        around: list[tuple[int, int, int]] = []  # thread, end and row of the open slices
        columns = (trace.ts_ns, trace.end_ns, trace.track_id)
        values = (column[order].tolist() for column in columns)
        for row, begin, end, thread in zip(order.tolist(), *values, strict=True):
            while around and (around[-1][0] != thread or around[-1][1] < end or around[-1][1] <= begin):
                around.pop()
            if around:
                outer[row] = around[-1][2]
            around.append((thread, end, row))
        paths = {}
        for row in dict.fromkeys(wanted):
            rows = [row]
            while rows[0] in outer:
                rows.insert(0, outer[rows[0]])
            names = [trace.names[trace.name_id[part]].removeprefix(_MODULE) for part in rows]
            paths[row] = ("." if self.has_modules else ";").join(names)
        return paths

    def _backward(self) -> Int64:
        """Find the innermost operator around each launch that names its forward operator (k,).

        Autograd adds gradients up as soon as they exist, so that belongs to the operator that began last.
        """
        operators, trace = np.flatnonzero(self.is_operator), self.trace
        marked = operators[integers(trace, "Fwd thread id", operators) > 0]
        enclosing = self.around(marked)
        begun = as_of(trace.track_id[marked], trace.ts_ns[marked], self.thread, self.at_ns)
        return np.where((enclosing < 0) & self.is_backward, np.append(marked, -1)[begun], enclosing)


def around(trace: Trace, slices: Int64, thread: Int64, at_ns: Int64) -> Int64:
    """Find the innermost of `slices` around each moment (k,) on its thread; -1 for none, or no thread."""
    which, begin, end = innermost(trace.ts_ns[slices], trace.end_ns[slices], trace.track_id[slices])
    segment = as_of(trace.track_id[slices[which]], begin, thread, at_ns)
    is_open = (segment >= 0) & (np.append(end, 0)[segment] > at_ns)
    return np.where(is_open, np.append(slices[which], -1)[segment], -1)


def forward_operators(trace: Trace, operators: Int64, backward: Int64) -> Int64:
    """Find the forward operator of each backward one (k,); -1 for none, or for -1.

    The last operator to begin with its sequence number is meant, on the thread with most of the numbers
    wanted under the same `Fwd thread id`, the profiler's own number of a thread.
    """
    number, origin = (integers(trace, key, operators) for key in ("Sequence number", "Fwd thread id"))
    is_forward = (number >= 0) & (origin <= 0)
    forward, number = operators[is_forward], number[is_forward]
    track = trace.track_id[forward]
    wanted, thread = (integers(trace, key, backward) for key in ("Sequence number", "Fwd thread id"))
    wanted, thread = np.where(backward >= 0, wanted, -1), np.where(backward >= 0, thread, -1)
    forward_of = np.full(len(backward), -1, np.int64)
    for thread_id in unique(thread[wanted >= 0]).tolist():
        here = np.flatnonzero((thread == thread_id) & (wanted >= 0))
        best = np.full(len(here), -1, np.int64)
        for track_id in unique(track).tolist():
            on_thread = forward[track == track_id]
            last = as_of(
                number[track == track_id], trace.ts_ns[on_thread], wanted[here], trace.ts_ns[backward[here]]
            )
            if (last >= 0).sum() > (best >= 0).sum():
                best = np.append(on_thread, -1)[last]
        forward_of[here] = best
    return forward_of


# ---- memory

#: PyTorch's numbers of kinds of devices.
_DEVICES = {0: "cpu", 1: "cuda", 6: "hip", 12: "xpu", 13: "mps", 15: "hpu", 19: "mtia"}
_ARGS = ("Device Type", "Device Id", ADDRESS, "Bytes", "Total Allocated", "Total Reserved")
_ALLOC, _FREE, *_, _OOM = range(len(ACTIONS))
_SIGNS = np.array([0, 0, 0, 1, 1, -1, -1, 0, 0])  # of the change of the reserved bytes; the last is unknown
#: What a frame tells of the phase, by ``file:name``; the innermost frame that tells counts.
_PHASES = tuple(
    (MEMORY_PHASES.index(phase), re.compile(rule))
    for phase, rule in {
        "update": r"[/\\]torch[/\\]optim[/\\]|:zero_grad$",
        "backward": r"autograd::(?:\w+::)?\w*Engine\b|Backward\d*::apply\b|_run_backward$",
        "setup": r"nn[/\\]modules[/\\]\S+:(?:_apply|__init__|reset_parameters)$|:load_state_dict$",
        "forward": r"nn[/\\]modules[/\\]module\.py:_(?:wrapped_)?call_impl$",
    }.items()
)
_phase_of = lru_cache(1 << 14)(lambda text: next((n for n, rule in _PHASES if rule.search(text)), 0))


def of_events(
    trace: Trace, samples: Sequence[Mapping[str, Any]], event: str, steps: Int64
) -> Sequence[MemorySamples]:
    """List the allocations of each device, from the args of all instants called `event`.

    `steps` are rows of number, begin and end. () if the number of instants differs: of several files of a
    rank only one is read.
    """
    rows = np.flatnonzero(trace.points.name_id == trace.names.index(event))
    if len(rows) != len(samples):
        return ()
    rows = rows[order := np.argsort(trace.points.ts_ns[rows], kind="stable")]
    values = [[_integer(samples[i].get(key)) for key in _ARGS] for i in order.tolist()]
    columns, at_ns = np.array(values, np.int64), trace.points.ts_ns[rows]
    labels, phases = origins(trace, trace.points.track_id[rows].astype(np.int64), at_ns)
    holders, holder = numbered(label or "(no operator around it)" for label in labels)
    phase = np.array([MEMORY_PHASES.index(name) for name in phases], np.int64)
    step = np.append(steps[:, 0], -1)[places(steps, at_ns)]
    made = []
    for kind, device in unique(columns[:, :2], axis=0).tolist():
        own = np.flatnonzero((columns[:, 0] == kind) & (columns[:, 1] == device))
        address, change, total, reserved = columns[own, 2:].T
        facts: dict[str, Any] = {}
        if not total.any():  # PyTorch 1.9
            total, facts = np.cumsum(change), {"why": "(addresses are not recorded)"}
        name = _DEVICES.get(kind, f"device{kind}") + (f":{device}" if device >= 0 else "")
        made.append(
            MemorySamples(
                at_ns[own], total.astype(np.float64), 0.0, name, change, address, reserved, phase[own],
                holder[own].astype(np.int64), holders, step[own], facts,
            )
        )  # fmt: skip
    return made


def _integer(value: Any) -> int:
    return value if type(value) is int and abs(value) <= FARTHEST_NS else 0


def of_snapshot(trace: Trace) -> Sequence[MemorySamples]:
    """List the allocations of each device; at first the blocks that were there before its history."""
    devices, stacks, settings = trace.header[ALLOCATOR]
    origin = [*map(_origin, stacks), ("(no stack recorded)", 0)]  # the last for no stack
    holders, holder = numbered(name for name, _ in origin)
    phase = np.array([number for _, number in origin], np.int64)
    made = []
    for device, (history, blocks, reserved_bytes) in devices.items():
        action, _, size, time_us, _ = history
        kept = history[:, is_own := (action == _ALLOC) | (action == _FREE)]
        address, n_bytes, stack = _before(kept, used := blocks[:, blocks[1] >= 0])
        change = np.append(n_bytes, np.where(kept[0] == _ALLOC, kept[2], -kept[2]))
        before = np.zeros(len(address), np.int64)
        grown = size * _SIGNS[action]
        reserved = reserved_bytes - grown.sum() + np.append(before, np.cumsum(grown)[is_own])
        at_us = np.append(before + np.append(time_us, -1)[0], kept[3])
        free, last_failed = blocks[3, blocks[1] < 0], history[1:3, action == _OOM][:, -1:].ravel().tolist()
        stack = np.append(stack, kept[4])
        facts = {
            "n_before": len(before),
            "free_blocks": len(free),
            "free_bytes": int(free.sum()),
            "largest_free_bytes": int(free.max(initial=0)),
            "expandable_segments": isinstance(settings, dict) and settings.get("expandable_segments") is True,
            "out_of_memory": dict(zip(("free_bytes", "bytes"), last_failed, strict=False)),
            "missing_bytes": int(used[1].sum() - change.sum()),
        }
        made.append(
            MemorySamples(
                1000 * at_us, np.cumsum(change).astype(np.float64), 0.0, f"device {device}", change,
                np.append(address, kept[1]), reserved, phase[stack], holder[stack].astype(np.int64), holders,
                np.full(len(change), -1), facts,
            )
        )  # fmt: skip
    return made


def _before(history: Int64, used: Int64) -> tuple[Int64, Int64, Int64]:
    """Find what was allocated before a history (5, n): addresses, bytes and stacks (k,), -1 for none.

    That are the blocks whose first entry is a free, and the `used` blocks (4, m) without any entry.
    """
    _, first = np.unique(history[1], return_index=True)
    freed = history[1:3, first[history[0, first] != _ALLOC]]
    kept = used[:3, ~np.isin(used[0], history[1])]
    address, n_bytes, stack = np.append(kept, [*freed, np.full(freed.shape[1], -1)], axis=1)
    return address, n_bytes, stack


def _origin(frames: Sequence[Any]) -> tuple[str, int]:
    """Name the innermost line of Python outside of PyTorch in a stack, and number the phase."""
    frames = [frame for frame in frames if isinstance(frame, dict)] or [{}]
    files, names = ([text_of(frame.get(key)) for frame in frames] for key in ("filename", "name"))
    texts = [f"{file}:{name}" for file, name in zip(files, names, strict=True)]
    matches = ((i, phase) for i, text in enumerate(texts) if (phase := _phase_of(text)))
    told, phase = next(matches, (0, 0))
    in_python = [i for i, file in enumerate(files) if file.endswith(".py")]
    shown = next((i for i in in_python if "/torch/" not in files[i]), next(iter(in_python), told))
    file = files[shown].replace("\\", "/").rpartition("/")[2]
    line = f"{file}:{whole(frames[shown].get('line'))} " if in_python else ""
    return line + names[shown].partition("(")[0], phase
