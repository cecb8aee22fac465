"""Which events are communication and which are computation, told for each dialect."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from formats.columns import Trace
from innermost import lies_inside
from opname import OpName

Mask = NDArray[np.bool_]

#: Categories of work on the device, as PyTorch's profiler names them now and did before 1.11.
DEVICE_CATS = frozenset(
    {"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset", "mtia_ccp_events"}
)
_KERNEL_CATS = frozenset({"kernel", "Kernel", "mtia_ccp_events"})
_CPU_OP_CATS = frozenset({"cpu_op", "Operator"})
_COLLECTIVE_KERNEL = re.compile(r"nccl|rccl|oneccl|msccl", re.IGNORECASE)
_COLLECTIVE_CALL = re.compile(r"(?:gloo|nccl|mpi|ucc|xccl|c10d):")
_HOROVOD_OP = re.compile(r"(?:ALLREDUCE|ALLGATHER|BROADCAST|ALLTOALL|REDUCESCATTER|ADASUM)\b.*")
_BYTEPS_COMPUTE = frozenset({"FW", "BW", "UPDATE", "OUTPUT"})
_COMPOSER_COMPUTE = frozenset({"event/forward", "event/loss", "event/backward", "event/optimizer"})
_GENERIC_COMM = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|nccl", re.IGNORECASE
)


def is_device_trace(trace: Trace) -> bool:
    """Whether the trace holds work of a device of its own (GPU kernels and copies)."""
    used = np.unique(trace.cat_id)
    return any(trace.cats[i] in DEVICE_CATS for i in used.tolist())


def communication(trace: Trace) -> Mask:
    """Return which slices (n,) are communication between ranks.

    With kernels in a Kineto trace these are the collective kernels (``nccl`` in the name, as HTA
    has it); without, the annotations of the collectives (``gloo:all_reduce``), from enqueue to end. In a
    trace of no known system these are the operations named after a collective, with all that they call.
    """
    if trace.dialect == "kineto":
        if is_device_trace(trace):
            return _by_cat(trace, _KERNEL_CATS) & _by_name(
                trace, lambda n: bool(_COLLECTIVE_KERNEL.search(n))
            )
        return _by_name(trace, lambda name: bool(_COLLECTIVE_CALL.match(name)))
    if trace.dialect == "byteps":
        return _by_name(trace, lambda name: OpName.parse(name).is_comm)
    if trace.dialect == "horovod":
        return _by_name(trace, lambda name: bool(_HOROVOD_OP.fullmatch(name)))
    if trace.dialect in ("composer", "chrome"):
        found = _by_name(trace, lambda name: bool(_GENERIC_COMM.search(name)))
        if trace.dialect == "chrome":  # what it calls belongs to it
            found |= lies_inside(trace.ts_ns, trace.end_ns, trace.track_id, found)
        return found
    return np.zeros(len(trace), np.bool_)


def computation(trace: Trace) -> Mask:
    """Return which slices (n,) are computation.

    Kernels that are no collectives where the trace holds a device, else the operators of the CPU.
    A Horovod timeline holds none.
    """
    comm = communication(trace)
    if trace.dialect == "kineto":
        cats = _KERNEL_CATS if is_device_trace(trace) else _CPU_OP_CATS
        return _by_cat(trace, cats) & ~comm
    if trace.dialect == "byteps":
        return _by_name(trace, lambda name: OpName.parse(name).cat in _BYTEPS_COMPUTE)
    if trace.dialect == "composer":
        return _by_name(trace, lambda name: name in _COMPOSER_COMPUTE)
    if trace.dialect == "horovod":
        return np.zeros(len(trace), np.bool_)
    return ~comm


def update(trace: Trace) -> Mask:
    """Return which slices (n,) are BytePS's STEP: the model update, with its wait for communication in it."""
    if trace.dialect != "byteps":
        return np.zeros(len(trace), np.bool_)
    return _by_name(trace, lambda name: OpName.parse(name).cat == "STEP")


def memory(trace: Trace) -> Mask:
    """Return which slices (n,) are copies and fills on a device: neither of the two, but not idle."""
    return _by_cat(trace, DEVICE_CATS - _KERNEL_CATS)


def _by_cat(trace: Trace, cats: frozenset[str]) -> Mask:
    table = np.array([cat in cats for cat in trace.cats], np.bool_)
    return table[trace.cat_id] if len(table) else np.zeros(len(trace), np.bool_)


def _by_name(trace: Trace, test: Callable[[str], bool]) -> Mask:
    table = np.array([test(name) for name in trace.names], np.bool_)
    return table[trace.name_id] if len(table) else np.zeros(len(trace), np.bool_)
