"""Which kernels and calls of PyTorch are collectives, and which of them belong together on all ranks."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from functools import lru_cache
from typing import Any

from dialects.sync_points import SyncPart
from dialects.system import DEVICE_CATS, KERNEL_CATS

#: Keys of the args that tell collectives apart.
SYNC_ARGS = ("Collective name", "Process Group Name", "Process Group Ranks", "Seq")
#: Keys of the args of a transfer between two ranks.
ENDS = ("Src Rank", "Dst Rank")

#: Kernels that move data between ranks: of the libraries (NCCL, RCCL, oneCCL, MSCCL, HCCL, NVSHMEM,
#: DeepEP's dispatch and combine), of PyTorch's symmetric memory, of vLLM and TensorRT-LLM.
_COLLECTIVE_KERNEL = re.compile(
    r"nccl|rccl|oneccl|msccl|hccl|nvshmem|deep_?ep\b|deep_ep::|cross_device_reduce"
    r"|(?:multimem|one_shot|two_shot|quick)_all_?(?:reduce|gather)\w*|all_?reduce_fusion|lamport\w*all_?reduce",
    re.IGNORECASE,
)
_COMPILED = re.compile(r"triton_")  # named after the operators fused in it, whatever these are
_COLLECTIVE_CALL = re.compile(r"(?:gloo|nccl|rccl|oneccl|hccl|mpi|ucc|xccl|c10d):")
#: Collectives that no rank leaves before all have entered; a broadcast's root, for one, may.
_ALL_WAIT = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|barrier", re.IGNORECASE)
_EXCHANGE = re.compile(r"sendrecv", re.IGNORECASE)  # all-to-all, or between two ranks: the name does not say


@lru_cache(maxsize=65536)  # ranks have the same kernels, with long names
def is_collective_kernel(name: str) -> bool:
    """Whether a kernel of that name moves data between ranks."""
    return bool(_COLLECTIVE_KERNEL.search(name)) and not _COMPILED.match(name)


def is_collective_call(name: str) -> bool:
    """Whether a host's annotation of that name is a collective's (``gloo:all_reduce``)."""
    return bool(_COLLECTIVE_CALL.match(name))


def is_collective(name: str, cat: str) -> bool:
    """Whether an event is a collective: a kernel, a copy of its library, a call on the host."""
    return is_collective_kernel(name) if cat in DEVICE_CATS else is_collective_call(name)


def collective(name: str, cat: str, args: Mapping[str, Any]) -> SyncPart | None:
    """Return which collective an event is that lasts from entering to leaving; None for any other.

    NCCL's annotation on the host covers only the launch; its kernel is told apart by process group and,
    where recorded, sequence number.
    """
    if cat not in KERNEL_CATS:
        is_span = is_collective_call(name) and not name.startswith(("nccl", "rccl", "c10d"))
        return _all_ranks((name,), name) if is_span else None
    if not is_collective_kernel(name):
        return None
    kind, group, ranks, sequence = (args.get(key) for key in SYNC_ARGS)
    if kind is None:
        name = name.split("(")[0]
        return _all_ranks((name,), name)
    number = None if sequence is None else str(sequence)
    return _all_ranks((str(kind), str(group), str(ranks), number), str(kind))


def _all_ranks(key: Hashable, name: str) -> SyncPart:
    """Return a collective by its key; its name tells how far the ranks wait for each other."""
    all_wait = bool(_ALL_WAIT.search(name))
    return SyncPart(key, all_wait=all_wait, end_together=all_wait or bool(_EXCHANGE.search(name)))
