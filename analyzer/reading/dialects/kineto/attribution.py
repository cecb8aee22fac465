"""The owners of device work: the operator, module and annotation around the call that launched it.

A launch and its work have the same correlation; all work of a CUDA graph has that of the graph's launch.
Launches of a backward operator belong to the module of its forward operator, which has the same sequence
number; also to its annotation, if the running threads have none. Where no module is recorded, Python
functions stand in.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analyzer.base.arrays import Int64
from analyzer.base.arrays.intervals import innermost, lies_inside
from analyzer.base.arrays.numbering import as_of, unique
from analyzer.reading.dialects.kineto.collectives import ENGINE, is_step_mark
from analyzer.reading.dialects.kineto.launches import calls_of, integers
from analyzer.reading.dialects.roles import by_cat, by_name
from analyzer.reading.dialects.system import CPU_OP_CATS, with_names
from analyzer.reading.formats.columns import Trace

_MODULE, _FUNCTION = "nn.Module: ", "python_function"
_UPDATE = "Optimizer."
NO_LAUNCH = "(not attributed: no launch in the file)"


def attributed(trace: Trace, rows: Int64, by: str) -> Trace:
    """Group the work `rows` (k,) of a device by owner; its category is the phase in which it was launched.

    `by` is operator, module or annotation. Where a launch has no operator around it, an annotation stands in.
    """
    call = calls_of(trace, rows)
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
    labels = np.full(len(rows), f"(no {by} around the launch)", np.object_)
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
