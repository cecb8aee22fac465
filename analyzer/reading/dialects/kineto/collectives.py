"""PyTorch's collectives: the kernels and calls, and the keys by which ranks know them."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from analyzer.base.arrays import Mask
from analyzer.reading.dialects.name_rules import is_library_call
from analyzer.reading.dialects.recorded_collectives import SyncPart, SyncPoint, SyncPoints, numbered
from analyzer.reading.dialects.roles import by_cat, by_name
from analyzer.reading.dialects.system import DEVICE_CATS, KERNEL_CATS, integer
from analyzer.reading.formats.columns import Trace

if TYPE_CHECKING:
    from analyzer.reading.dialects.edge_rules import Rule

#: The arg of a kernel that names its collective, and the args that distinguish collectives.
COLLECTIVE = "Collective name"
SYNC_ARGS = (COLLECTIVE, "Process Group Name", "Process Group Ranks", "Seq", "Src Rank", "Dst Rank")

#: The operators that run a backward pass.
ENGINE = "autograd::engine::"
#: Args with the sizes and the group of a collective; with the inputs of an operator.
SIZE_ARGS = ("In msg nelems", "Out msg nelems", "dtype", "Group size", "Process Group Description", "bytes")
SHAPE_ARGS = ("Input Dims", "Input type", "Concrete Inputs", "Input Strides")

#: Kernels and copies that move data between ranks or devices: of the libraries (NCCL, RCCL, oneCCL, MSCCL,
#: HCCL, CNCL, MCCL, NVSHMEM, ROC_SHMEM), of expert parallelism (DeepEP and what has its names, MoRI, pplx),
#: of vLLM, AITER, QuickReduce, Transformer Engine's userbuffers; and kernels named after a collective, as in
#: PyTorch's symmetric memory and TensorRT-LLM, except collectives of the warps and blocks of one kernel.
_COLLECTIVE_KERNEL = (
    r"(?i)nccl|rccl|oneccl|msccl|hccl|xccl|mccl|cncl|bkcl|\bhcom_|nvshmem|roc_?shmem|userbuffers|deep_?ep\b"
    r"|deep_ep::|\bpplx::|\b(?:inter|intra)node(?:_ll)?::\w*(?:dispatch|combine|notify|clean|barrier)"
    r"|\bep::(?:dispatch|combine)|\bmori::.*ep_?(?:dispatch|combine)|a2a_?\w*(?:dispatch|combine)"
    r"|(?<![a-z])ep_?(?:dispatch|combine)\w*kernel|kernel_(?:dispatch|combine)_token|moe_?comm"
    r"|cross_device_(?:reduce|store)|quick_?reduce::|\bMemcpy P(?:eer)?toP"
    r"|(?<!warp)(?<!block)(?<!warp_)(?<!block_)all_?(?:reduce|gather|to_?all)|reduce_?scatter"
)
#: Named after fused operators, or a product that waits for parts of its factors.
_COMPUTES = r"(?i)triton_|.*(?:gemm|matmul)"
#: Annotations of libraries that hand their work to a device.
_HANDS_OVER = r"c10d|(?:n|r|h|x|m)ccl:|cncl:|bkcl:"
_HALF = r"\w+:i?(?:send|recv)"  # of a transfer: the call does not name the other rank
#: Descriptions of the groups of a pipeline.
_PIPELINE = r"(?i)(?:^|_)pp|pipe"
#: Collectives that no rank leaves before all have entered; a broadcast's root, for one, may.
_ALL_WAIT = r"(?i)all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|barrier|(?:cross_device|quick)_?reduce"
_NUMBER = r"[0-9]{1,18}"
_PROFILER_STEP = rf"ProfilerStep#({_NUMBER})"
#: All-to-all, or between two ranks: the name does not say.
_EXCHANGE = r"(?i)send|recv|receive"


@lru_cache(maxsize=65536)  # ranks have the same kernels, with long names
def is_collective_kernel(name: str) -> bool:
    """Recognise the name of a kernel that moves data between ranks."""
    return bool(re.search(_COLLECTIVE_KERNEL, name)) and not re.match(_COMPUTES, name)


def collective_kernels(trace: Trace) -> Mask:
    """Mask the kernels and copies (n,) that move data between ranks.

    PyTorch names the collective in the args of its kernel; before PyTorch 2.2, and for libraries unknown to
    it, the kernel's own name counts.
    """
    moves = by_name(trace, is_collective_kernel, by_cat(trace, DEVICE_CATS.__contains__))
    if COLLECTIVE in trace.args:
        rows = trace.args[COLLECTIVE].rows
        moves[rows[by_cat(trace, KERNEL_CATS.__contains__)[rows]]] = True
    return moves


def is_collective_call(name: str) -> bool:
    """Recognise the annotation of a collective on the host (``gloo:all_reduce``)."""
    return is_library_call(name) or name.startswith("c10d:")


def hands_over(name: str) -> bool:
    """Recognise an annotation of a collective that another thread or a device carries out."""
    return is_collective_call(name) and bool(re.match(_HANDS_OVER, name))


def is_lasting_call(name: str) -> bool:
    """Recognise an annotation that lasts from entering a collective to leaving it."""
    return is_collective_call(name) and not hands_over(name)


def lasting_collectives(trace: Trace) -> Mask:
    """Mask the collectives of the host (n,) that last from enqueue to end, beside its threads."""
    on_device = by_cat(trace, lambda cat: cat in DEVICE_CATS or cat.startswith("gpu_"))
    return by_name(trace, is_lasting_call) & ~on_device


def is_call_of_all(name: str) -> bool:
    """Recognise an annotation that lasts for a collective of all members, not for a send or receive."""
    return is_lasting_call(name) and not re.match(_HALF, name)


def is_collective(name: str, cat: str) -> bool:
    """Recognise a collective: a kernel, a copy of its library or a call on the host."""
    return is_collective_kernel(name) if cat in DEVICE_CATS else is_collective_call(name)


def is_half(key: Hashable) -> bool:
    """Recognise the key of one rank's kernel of a transfer: send or recv, source, target, group, members."""
    return isinstance(key, tuple) and key[0] in ("send", "recv") and len(key) == 5


def ends_of(half: Hashable, rank: int | None) -> tuple[int, int] | None:
    """Find (source, target) of half a transfer, seen from `rank`; None if the other rank is unknown.

    PyTorch records only the other rank of it.
    """
    kind, source, target, _, text = cast(tuple[Any, ...], half)
    members = [int(number) for number in re.findall(_NUMBER, text)]
    others = [member for member in members if member != rank]
    peer = others[0] if len(members) == 2 and len(others) == 1 else None
    ends = (rank, peer) if kind == "send" else (peer, rank)
    source = ends[0] if source is None else source
    target = ends[1] if target is None else target
    return None if source is None or target is None else (source, target)


def known_key(key: Hashable, rank: int | None, group: tuple[int | None, ...] | None) -> Hashable | None:
    """Translate a collective's key, as `rank` records it, to the key common to all of its ranks.

    None if the other end of a transfer, or the host's `group` (`host_group`), is unknown.
    """
    if is_half(key):
        ends = ends_of(key, rank)
        return None if ends is None else (*ends, cast(tuple[Any, ...], key)[3])
    if not _is_host_call(key) or group == ():
        return key
    return None if group is None else (key, group)


def step_number(name: str) -> int | None:
    """Parse the name of an annotation that marks a step; None for any other."""
    match = re.fullmatch(_PROFILER_STEP, name)
    return int(match[1]) if match else None


def is_step_mark(name: str) -> bool:
    """Recognise the annotation of a step, by which collectives of the host are numbered."""
    return step_number(name) is not None


def _is_host_call(key: Hashable) -> bool:
    return isinstance(key, tuple) and len(key) == 1 and is_call_of_all(str(key[0]))


def meeting(
    key: Hashable, name: str, rank: int | None, group: tuple[int | None, ...] | None
) -> tuple[Hashable, Rule] | None:
    """Find the key and the rule by which ranks meet in a collective of that name; None for an unknown group.

    An exchange does not name its ranks: half a transfer whose other end is unknown, and NCCL's one kernel for
    all-to-all and for transfers between two ranks.
    """
    from analyzer.reading.dialects.edge_rules import Rule

    known = known_key(key, rank, group)
    if is_half(key):
        group_of_half = cast(tuple[Any, ...], key)[3:4]
        return (group_of_half, Rule.EXCHANGE) if known is None else (known, Rule.TRANSFER)
    if known is None:
        return None
    is_name = known == key and isinstance(key, tuple) and len(key) == 1
    return known, Rule.EXCHANGE if is_name and re.search(_EXCHANGE, name) else Rule.COLLECTIVE


def grouped(points: SyncPoints, header: Mapping[str, Any]) -> SyncPoints:
    """Rename a trace's sync points by `known_key`, without unknown ones.

    Those of the host are numbered by the steps in which they were called; kernels may begin later.
    """
    info = header.get("distributedInfo")
    rank = integer(info.get("rank")) if isinstance(info, Mapping) else None
    group = host_group(header, rank)
    marks = [
        (begin_ns, key)
        for key, mark in points.items()
        if isinstance(key, int)
        for begin_ns in mark.begin_ns.tolist()
    ]
    begins_ns, labels = np.array(sorted(marks), np.int64).reshape(-1, 2).T
    by_key: dict[Hashable, SyncPoint] = {}
    for key, point in points.items():
        known = None if isinstance(key, int) else known_key(key, rank, group)
        if known is not None:
            is_numbered = bool(marks) and _is_host_call(key)
            by_key[known] = numbered(point, labels, begins_ns) if is_numbered else point
    return by_key


def collective(name: str, cat: str, args: Mapping[str, Any], *, is_known: bool = False) -> SyncPart | None:
    """Recognise the collective of an event that lasts from entering to leaving; None for any other.

    NCCL's annotation on the host covers only the launch; its kernel is known by process group and, if
    recorded, sequence number. A kernel that `is_known` is a collective regardless of its name.
    """
    if cat not in KERNEL_CATS:
        return _all_ranks((name,), name) if is_call_of_all(name) else None
    kind, group, ranks, sequence, *ends = (args.get(key) for key in SYNC_ARGS)
    if not (is_known or kind is not None or is_collective_kernel(name)):
        return None
    if kind in ("send", "recv"):
        source, target = map(integer, ends)
        half = (kind, source, target, str(group), str(ranks))
        return SyncPart(half, all_wait=False, end_together=True)
    if kind is None:
        name = name.split("(")[0]
        return _all_ranks((name,), name)
    number = None if sequence is None else str(sequence)
    return _all_ranks((str(kind), str(group), str(ranks), number), str(kind))


def groups_of(header: Mapping[str, Any], rank: int | None) -> list[tuple[str, tuple[int | None, ...]]]:
    """List the process groups of a rank with others, as (description, ranks)."""
    info = header.get("distributedInfo")
    groups = info.get("pg_config") if isinstance(info, Mapping) else None
    listed = [
        (str(group.get("pg_desc", "")), tuple(map(integer, group["ranks"])))
        for group in (groups if isinstance(groups, list) else ())
        if isinstance(group, Mapping) and isinstance(group.get("ranks"), list)
    ]
    return [(about, ranks) for about, ranks in listed if rank in ranks and len(ranks) > 1]


def host_group(header: Mapping[str, Any], rank: int | None) -> tuple[int | None, ...] | None:
    """Find the ranks of the host's collectives; () for all, None if several groups are possible.

    The calls do not name their group. If a mesh of devices divides the ranks, collectives run along one of
    its dimensions (other than that of a pipeline, whose ranks send to each other).
    """
    groups = [group for group in groups_of(header, rank) if not re.search(_PIPELINE, group[0])]
    mesh = {ranks for about, ranks in groups if about.startswith("mesh_")}
    if mesh:
        return mesh.pop() if len(mesh) == 1 else None
    return () if len({ranks for _, ranks in groups}) <= 1 else None


def _all_ranks(key: Hashable, name: str) -> SyncPart:
    all_wait = bool(re.search(_ALL_WAIT, name))
    return SyncPart(key, all_wait=all_wait, end_together=all_wait or bool(re.search(_EXCHANGE, name)))
