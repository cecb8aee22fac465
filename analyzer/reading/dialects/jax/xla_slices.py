"""The slices of XLA's profiles: the meaning of their names, their devices, and the steps among them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np

from analyzer.base.arrays import Int64, Mask, NDArray
from analyzer.base.arrays.intervals import lies_inside
from analyzer.base.arrays.numbering import as_of, numbered, unique
from analyzer.reading.dialects.owners import SHARED, names_in, process_names
from analyzer.reading.dialects.roles import Role, by_name
from analyzer.reading.dialects.steps import (
    NO_STEPS,
    Step,
    Steps,
    between,
    in_first_process,
    outer_rows,
    spans,
)
from analyzer.reading.dialects.system import int_or_zero
from analyzer.reading.dialects.tolerances import ROUNDED_NS
from analyzer.reading.formats.columns import Trace

#: By XLA's names (all-reduce.1), JAX's of the same (psum_invariant.49), and those of NCCL's kernels.
_COMM = re.compile(
    r"%?(?:(?:ragged[-_])?(?:all[-_]?reduce|all[-_]?gather|reduce[-_]?scatter|all[-_]?to[-_]?all)"
    r"|collective[-_](?:permute|broadcast)|psum|pmax|pmin|pmean|ppermute|pgather|pbroadcast"
    r"|(?:send|recv)(?:-done)?(?![\w-])).*|(?i:.*(?:nccl|rccl).*)"
)
_COPY = re.compile(
    r"%?(?:copy|outfeed)(?:[-_](?:start|done|bitcast|fusion))*(?:[.\s].*)?|mem(?:cpy|set).*", re.IGNORECASE
)
_INPUT = re.compile(r"%?infeed(?:-done)?(?:[.\s].*)?", re.IGNORECASE)
#: Loading of the next batch on the host: TensorFlow's iterators, and Python's functions by their names.
LOADS = re.compile(
    r"(?:MultiDevice)?Iterator(?:::|GetNext).*|InfeedEnqueue.*"
    r"|(?:\$\S+ )?(?:__next__|_?(?:get_)?next(?:_data|_batch)?|_?(?:get|load|fetch|make)_batch)"
)
#: The halves of an asynchronous operation: all-gather-start.1, all-gather-done.1.
_HALF = re.compile(r"(.*)-(start|done)(\W.*|)")
_AROUND = re.compile(r"%?(?:while|conditional|call)(?:[.\s].*)?")
_NUMBER = re.compile(r"\A(?:\d+[._]|enolc\.|\d*tamer\.)+")  # of a name backwards: it is tried once
#: In these each device waits for one other, or for a root, not for all.
ONE_WAITS_FOR_ONE = re.compile(r"%?(?:collective[-_](?:permute|broadcast)|ppermute|pbroadcast|send|recv)")

#: The profiler's own marks, without time or with the time of another slice.
NOISE = re.compile(r"ThreadpoolListener::.*|end: .*")
#: Slices that only hold the operations of devices, or prepare nothing for them.
UNTIMED = re.compile(r"PythonRefManager::.*|ThunkExecutor::Execute")
SLEEP = re.compile(r"\$\S+ sleep")
#: Waits of the host's threads for a device, or for another thread.
WAIT = re.compile(
    r"Wait(?:\b.*|For.*)|.*\(wait for completion\)|.*::Await\w*|Rendezvous|EventFDAsyncWorker.*"
    r"|(?:\$\S+ )?(?:_?block_until_ready|_single_device_array_to_np_array\w*|__array__|_value|wait|acquire)"
    rf"|{SLEEP.pattern}"
    r"|(?:\S+::)?(?:BlockUntilReady|BlockHostUntilDone|AwaitReady)\w*.*"
)

#: Python's calls that wait for results of a device; others wait for threads, or let time pass.
_DEVICE_WAIT = re.compile(
    r"\$\S+ (?:_?block_until_ready|_single_device_array_to_np_array\w*|__array__|_value)"
)
#: Python's calls that start and stop the recording.
_PROFILER = re.compile(r"\$profiler\.py:\d+ (?:(?:start|stop)_trace|trace|(?:start|stop)_server)")
#: A call that spends this share of its time in another stands for that.
_NOTHING_ELSE = 0.9

#: Each process counts its devices on CPUs from a multiple of this.
_OF_A_PROCESS = 2048
_DEVICE = re.compile(r"/device:[A-Z]+:(\d{1,9})\b")
_STREAM = re.compile(r"Stream #\d+.*")
#: Threads of a device that repeat its operations: by program, by step, by line of the source.
_REPEATED = re.compile(
    r"Steps\b.*|XLA Modules\b.*|Source code\b.*|.*Name Scope\b.*|(?:TensorFlow|Framework) Ops\b.*"
    r"|Sparse ?Core (?:Steps|Modules)\b.*|.* - from #.*"
)
_OF_COPIES = re.compile(r"Stream #\d+\((?:Mem(?:cpy|set)\w*[, ]*)+\).*|Async .*")
_RUN = re.compile(r"\(.*")  # XLA's modules on a TPU are called ``jit_step(1234567)``


# ---- names of operations, of waits, and of the profiler's own marks


@lru_cache(maxsize=65536)
def role_of(name: str) -> Role:
    """Find the role of an operation of a device by its name.

    >>> role_of("psum_invariant.49"), role_of("copy-done.3"), role_of("multiply_add_fusion.1")
    (<Role.COMM: 1>, <Role.COPY: 3>, <Role.COMPUTE: 0>)
    """
    if _COMM.fullmatch(name):
        return Role.COMM
    if _COPY.fullmatch(name):
        return Role.COPY
    return Role.INPUT if _INPUT.fullmatch(name) else Role.COMPUTE


#: Categories without the kind of work: the name tells more.
_UNSTATED = re.compile(r"|async-(?:start|done)|custom-call.*|unknown|while|conditional|call")


def stated_role(category: str) -> Role | None:
    """Find the role of an operation by the `hlo_category` that XLA states; None where the category says none.

    >>> stated_role("all-reduce fusion"), stated_role("loop fusion"), stated_role("custom-call")
    (<Role.COMM: 1>, <Role.COMPUTE: 0>, None)
    """
    return None if _UNSTATED.fullmatch(category) else role_of(category)


def roles_of(trace: Trace) -> NDArray[np.int8]:
    """Find the role of each slice (n,), if it is an operation: as stated, else by its name.

    A kernel of a collective operation communicates whatever its own name is.
    """
    roles = np.array(list(map(role_of, trace.names)), np.int8)[trace.name_id]
    if "hlo_op" in trace.args:
        column = trace.args["hlo_op"]
        is_comm = [role_of(str(name)) is Role.COMM for name in column.values]
        roles[column.rows[np.array(is_comm, np.bool_)]] = Role.COMM
    if "hlo_category" in trace.args:
        column = trace.args["hlo_category"]
        categories, category_of = numbered(map(str, column.values))
        for i, category in enumerate(categories):
            if (stated := stated_role(category)) is not None:
                roles[column.rows[category_of == i]] = stated
    return roles


def halves(name: str) -> tuple[str, bool, bool]:
    """Split a name into that of the whole operation and two flags: begins it, ends it.

    >>> halves("all-gather-start.1"), halves("all-gather.1")
    (('all-gather.1', True, False), ('all-gather.1', True, True))
    """
    match = _HALF.fullmatch(name)
    return (match[1] + match[3], match[2] == "start", match[2] == "done") if match else (name, True, True)


def kind_of(name: str) -> str:
    """Name the kind of an operation: its name without the number, or one of two kinds of Python calls.

    >>> kind_of("loop_fusion.12"), kind_of("$api.py:2757 block_until_ready"), kind_of("$train.py:7 main")
    ('loop_fusion', 'wait for device', 'python')
    """
    if name.startswith("$") and _DEVICE_WAIT.fullmatch(name):
        return "wait for device"
    return "python" if name.startswith("$") else _NUMBER.sub("", name[::-1], count=1)[::-1]


def of_profiler(trace: Trace) -> Mask:
    """Mask the calls (n,) that start and stop the recording, and all slices inside.

    Calls around these that do nothing else, such as a context manager's, belong to them.
    """
    starts = by_name(trace, lambda name: _PROFILER.fullmatch(name) is not None)
    inside: Mask = starts | lies_inside(trace.ts_ns, trace.end_ns, trace.track_id, starts)
    for row in np.flatnonzero(starts).tolist():
        start, end = trace.ts_ns[row], trace.end_ns[row]
        around = (trace.track_id == trace.track_id[row]) & (trace.ts_ns <= start) & (trace.end_ns >= end)
        inside |= around & (end - start >= _NOTHING_ELSE * trace.dur_ns)
    return inside


# ---- devices, and their operations


#: Kinds of threads: of the host; of a device its operations, those that only copy, its waits, its steps, runs
#: of its programs, what repeats another thread, and unknown slices beside streams.
HOST, WORK, COPIES, WAITS, STEPS, PROGRAMS, REPEATS, NAMELESS = range(8)


def thread_kinds(trace: Trace) -> tuple[Int64, Int64]:
    """Find the device of each thread (t,), `SHARED` for the host, and its kind by the threads' names."""
    threads = names_in(trace.metadata, "thread_name")
    matches = map(_DEVICE.search, process_names(trace))
    device = np.array([int(match[1]) if match else SHARED for match in matches], np.int64)
    names = [threads.get((track.pid, track.tid), "") for track in trace.tracks]
    streamed = {track.pid for track, name in zip(trace.tracks, names, strict=True) if _STREAM.fullmatch(name)}
    kinds = [_kind_of(name, track.pid in streamed) for track, name in zip(trace.tracks, names, strict=True)]
    return device, np.where(device == SHARED, HOST, np.array(kinds, np.int64))


def _kind_of(thread: str, has_streams: bool) -> int:
    """Find the kind of a thread of a device."""
    if thread == "Steps":
        return STEPS
    if thread.startswith("XLA Modules"):
        return PROGRAMS
    if thread == "XLA TraceMe":
        return WAITS
    if has_streams and not _STREAM.fullmatch(thread):
        return REPEATS if thread else NAMELESS
    if _REPEATED.fullmatch(thread):
        return REPEATS
    return COPIES if _OF_COPIES.fullmatch(thread) else WORK


def of_kind(trace: Trace, *kinds: int) -> Mask:
    """Mask the slices (n,) on threads of these kinds."""
    return np.isin(thread_kinds(trace)[1], kinds)[trace.track_id] if len(trace) else np.zeros(0, np.bool_)


def operations(trace: Trace) -> Mask:
    """Mask the operations of devices (n,)."""
    is_operation = of_kind(trace, WORK, COPIES)
    if "hlo_op" in trace.args:
        is_operation[trace.args["hlo_op"].rows] = True  # on a CPU, on threads of the host
    return is_operation & ~of_kind(trace, REPEATS, NAMELESS, PROGRAMS, STEPS)


def device_of_slices(trace: Trace) -> Int64:
    """Find the number of each slice's device (n,), `SHARED` for slices of the host.

    On a CPU an operation names its device, also for the slices inside. If other devices work, the copies of a
    device that only copies belong to the host.
    """
    if not len(trace):
        return np.empty(0, np.int64)
    device = thread_kinds(trace)[0][trace.track_id]
    for key in ("global_device_id", "device_ordinal"):
        if key in trace.args:
            column = trace.args[key]
            known = device[column.rows]
            device[column.rows] = np.where(known == SHARED, list(map(int_or_zero, column.values)), known)
    device = _with_insides(trace, device)
    copies = of_kind(trace, COPIES) | (roles_of(trace) == Role.COPY)
    busy = unique(device[operations(trace) & ~copies])
    return np.where(np.isin(device, busy), device, SHARED) if len(busy) else device


def _with_insides(trace: Trace, device: Int64) -> Int64:
    """Give slices inside one whose device is known the same device (n,)."""
    known = device != SHARED
    outer = known & ~lies_inside(trace.ts_ns, trace.end_ns, trace.track_id, known)
    rows = np.flatnonzero(outer)
    around = np.append(rows, -1)[as_of(trace.track_id[rows], trace.ts_ns[rows], trace.track_id, trace.ts_ns)]
    inside = (around >= 0) & (trace.end_ns <= trace.end_ns[around])
    return np.where(~known & inside, device[around], device)


def ranks_of(devices: Sequence[int]) -> list[int]:
    """List the ranks of a process's devices, after those of the process before.

    >>> ranks_of([0, 1]), ranks_of([2048, 2049])
    ([0, 1], [2, 3])
    """
    n = max((device % _OF_A_PROCESS for device in devices), default=0) + 1
    return [device // _OF_A_PROCESS * n + device % _OF_A_PROCESS for device in devices]


def containers(trace: Trace, works: Mask) -> Mask:
    """Mask the loops, branches and calls among the operations `works` (n,) that contain others."""
    rows = np.flatnonzero(works)
    order = rows[np.lexsort((-trace.end_ns[rows], trace.ts_ns[rows], trace.track_id[rows]))]
    has_inside = np.zeros(len(trace), np.bool_)
    same = trace.track_id[order[1:]] == trace.track_id[order[:-1]]
    has_inside[order[:-1]] = same & (trace.ts_ns[order[1:]] < trace.end_ns[order[:-1]])
    return has_inside & by_name(trace, _AROUND.fullmatch)


# ---- steps: those that the host numbers, a device's own, and the runs of a program


def numbered_spans(trace: Trace) -> Steps:
    """Find the outermost annotations with a `step_num` on the first thread that has some."""
    column = trace.args.get("step_num")
    if column is None or not len(column.rows):
        return NO_STEPS
    label = {row: int_or_zero(value) for row, value in column.as_dict().items()}
    thread = trace.track_id[column.rows[trace.ts_ns[column.rows].argmin()]]
    is_mark = np.isin(np.arange(len(trace)), column.rows) & (trace.track_id == thread)
    is_mark &= ~lies_inside(trace.ts_ns, trace.end_ns, trace.track_id, is_mark)
    rows = np.flatnonzero(is_mark)
    how = f"{trace.names[trace.name_id[rows[0]]]} annotations"
    return Steps(tuple(spans(trace, rows, [label[row] for row in rows.tolist()])), (), how)


def steps_of_device(trace: Trace) -> Steps:
    """Find the steps on the thread of steps of the first device; their names are numbers."""
    rows = np.flatnonzero(of_kind(trace, STEPS) & by_name(trace, str.isdecimal))
    if not len(rows):
        return NO_STEPS
    rows = in_first_process(trace, rows)
    numbers = [int(trace.names[i][:18]) for i in trace.name_id[rows].tolist()]
    return _to_completion(trace, spans(trace, rows, numbers), "the device's steps")


def runs(trace: Trace) -> Steps:
    """Find the numbered runs of the program that takes longest on the device, as steps."""
    if "run_id" not in trace.args:
        return NO_STEPS
    run, device = trace.args["run_id"].as_dict(), device_of_slices(trace)
    module = trace.args["hlo_module"].as_dict() if "hlo_module" in trace.args else {}
    rows = trace.args["run_id"].rows
    is_run = of_kind(trace, PROGRAMS)[rows] | np.isin(rows, list(module))
    bounds: dict[str, dict[str, tuple[int, int]]] = {}
    for row in rows[(device[rows] != SHARED) & is_run].tolist():
        program = re.sub(_RUN, "", str(module.get(row, trace.names[trace.name_id[row]])))
        begin, end = int(trace.ts_ns[row]), int(trace.end_ns[row])
        of_program = bounds.setdefault(program, {})
        known = of_program.get(str(run[row]), (begin, end))
        of_program[str(run[row])] = min(begin, known[0]), max(end, known[1])
    took = {program: sum(end - begin for begin, end in bounds[program].values()) for program in bounds}
    main = max(bounds, key=took.__getitem__, default="")
    ordered = sorted(bounds.get(main, {}).values())
    if len(ordered) < 2:
        return NO_STEPS
    steps = [Step(i, *times) for i, times in enumerate(ordered, 1)]
    return _to_completion(trace, steps, f"runs of {main}")


_CALL = re.compile(r"PjitFunction\((.*)\)")


def calls(trace: Trace, marks: Sequence[Step] = ()) -> Steps:
    """Find the calls of the program that takes longest on the device, as steps.

    The host must call the program: XLA tries others while it compiles. If all calls, or all steps that the
    host `marks`, have equally many operations there, a step lasts from completion to completion; else from
    one call on the host to the next.
    """
    if "hlo_module" not in trace.args:
        return NO_STEPS
    column, device = trace.args["hlo_module"], device_of_slices(trace)
    rows = np.flatnonzero(operations(trace) & (device != SHARED))
    rows = rows[device[rows] == device[rows].min(initial=np.iinfo(np.int64).max)]
    named = np.isin(column.rows, rows)
    programs, program = numbered(map(str, np.array(column.values, np.object_)[named].tolist()))
    if not programs:
        return NO_STEPS
    of_program = column.rows[named]
    is_called = np.isin(programs, list(map(_program_of, trace.names)))
    main = int((np.bincount(program, trace.dur_ns[of_program]) * is_called).argmax())
    host = outer_rows(trace, lambda name: _program_of(name) == programs[main])
    numbers = [mark.label for mark in marks] or range(1, len(host) + 1)
    if len(numbers) < 2:
        return NO_STEPS
    work = of_program[program == main]
    work = work[np.argsort(trace.ts_ns[work], kind="stable")]
    if len(work) % len(numbers) == 0:
        calls = work.reshape(len(numbers), -1)
        bounds = np.column_stack((numbers, trace.ts_ns[calls].min(axis=1), trace.end_ns[calls].max(axis=1)))
        return _to_completion(trace, list(map(Step._make, bounds.tolist())), f"calls of {programs[main]}")
    if marks:
        return NO_STEPS
    end_ns = max(int(trace.end_ns[host[-1]]), int(trace.end_ns[work].max()))
    how = f"one call of {programs[main]} to the next"
    return Steps(tuple(between(np.append(trace.ts_ns[host], end_ns))), (), how)


def _program_of(call: str) -> str:
    """Name the program that a call on the host runs.

    >>> _program_of("PjitFunction(train_step)"), _program_of("PjitFunction(<lambda>)")
    ('jit_train_step', 'jit__lambda')
    """
    match = _CALL.fullmatch(call)
    return "jit_" + re.sub(r"\W+", "_", match[1].rstrip(">")) if match else ""


def _to_completion(trace: Trace, steps: Sequence[Step], how: str) -> Steps:
    """Extend a device's steps, in order, from completion to completion.

    The begin of the first is not recorded. The end of a step's last operation may be rounded differently.
    """
    done = np.sort(trace.end_ns[operations(trace)])
    ends = np.array([step.end_ns for step in steps], np.int64)
    last = np.append(done, 0)[np.searchsorted(done, ends + ROUNDED_NS, side="right") - 1]
    ends = np.maximum(ends, last)
    steps = [step._replace(end_ns=end) for step, end in zip(steps, ends.tolist(), strict=True)]
    following = [
        step._replace(start_ns=before.end_ns)
        if step.label == before.label + 1 and before.end_ns < step.end_ns
        else step
        for before, step in pairwise(steps)
    ]
    return Steps(tuple(following), (steps[0],), how)
