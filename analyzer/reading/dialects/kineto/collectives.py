"""PyTorch's collectives: kernels and calls, the keys by which ranks know them, their bytes and groups."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from msgspec.structs import replace

from analyzer.base.arrays import Int64, Mask, NDArray
from analyzer.base.arrays.numbering import as_of
from analyzer.reading.dialects.kineto.launches import calls_of
from analyzer.reading.dialects.name_rules import is_library_call
from analyzer.reading.dialects.recorded_collectives import (
    NO_COLLECTIVES,
    Call,
    Collectives,
    SyncPart,
    SyncPoint,
    SyncPoints,
    kind_of,
    numbered,
)
from analyzer.reading.dialects.roles import Role, by_cat, by_name
from analyzer.reading.dialects.system import COPY_CATS, DEVICE_CATS, KERNEL_CATS, int_or_zero, integer
from analyzer.reading.formats.columns import Trace

if TYPE_CHECKING:
    from analyzer.reading.dialects.edge_rules import Rule
    from analyzer.reading.dialects.step_parts import RankTrace

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

#: Bytes of an element, by a word of its type's name (``c10::Half``, ``unsigned char``); 4 by default.
_ITEM_BYTES = {"double": 8, "long": 8, "float64": 8, "int64": 8, "half": 2, "bfloat16": 2, "float16": 2,
               "short": 2, "int16": 2, "char": 1, "byte": 1, "int8": 1, "uint8": 1, "bool": 1,
               "float8_e4m3fn": 1, "float8_e5m2": 1}  # fmt: skip
_SHOWN_RANKS = 8
_MOST_NUMBER = 1 << 40  # of steps and sequences; larger numbers count from 0 again
_TRANSFER = kind_of("send")
_Group = tuple[str, tuple[int | None, ...]]  # description and ranks


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


def _is_half(key: Hashable) -> bool:
    """Recognise the key of one rank's kernel of a transfer: send or recv, source, target, group, members."""
    return isinstance(key, tuple) and key[0] in ("send", "recv") and len(key) == 5


def _known_key(key: Hashable, rank: int | None, group: tuple[int | None, ...] | None) -> Hashable | None:
    """Translate a collective's key, as `rank` records it, to the key common to all of its ranks.

    None if the other end of a transfer, or the host's `group` (`host_group`), is unknown. Of a transfer,
    PyTorch records only the other rank.
    """
    if _is_half(key):
        kind, source, target, about, text = cast(tuple[Any, ...], key)
        members = [int(number) for number in re.findall(_NUMBER, text)]
        others = [member for member in members if member != rank]
        peer = others[0] if len(members) == 2 and len(others) == 1 else None
        ends = (rank, peer) if kind == "send" else (peer, rank)
        source = ends[0] if source is None else source
        target = ends[1] if target is None else target
        return None if source is None or target is None else (source, target, about)
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
    name: str,
    cat: str,
    args: Mapping[str, Any],
    rank: int | None,
    group: tuple[int | None, ...] | None,
) -> tuple[Hashable, Rule] | None:
    """Find the key and the rule by which ranks meet in a collective; None for an unknown group.

    An exchange does not name its ranks: half a transfer whose other end is unknown, and NCCL's one kernel for
    all-to-all and for transfers between two ranks.
    """
    from analyzer.reading.dialects.edge_rules import Rule

    part = collective(name, cat, args, is_known=True)
    key = part and part.key
    known = _known_key(key, rank, group)
    if _is_half(key):
        group_of_half = cast(tuple[Any, ...], key)[3:4]
        return (group_of_half, Rule.EXCHANGE) if known is None else (known, Rule.TRANSFER)
    if known is None:
        return None
    is_name = known == key and isinstance(key, tuple) and len(key) == 1
    return known, Rule.EXCHANGE if is_name and re.search(_EXCHANGE, name) else Rule.COLLECTIVE


def grouped(points: SyncPoints, header: Mapping[str, Any]) -> SyncPoints:
    """Rename a trace's sync points by `_known_key`, without unknown ones.

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
        known = None if isinstance(key, int) else _known_key(key, rank, group)
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


# ---- sizes and groups


def recorded_collectives(rank: RankTrace, roles: NDArray[np.int8], steps: Int64) -> Collectives:
    """List the collectives of a rank whose slices have `roles` (n,), and number them by its `steps` (m, 3).

    Kernels of newer PyTorch have sizes in their args. For others, and for collectives of the host
    (``gloo:all_reduce``), the annotation around the launch (``nccl:all_reduce``) has the shapes of the inputs
    if `record_shapes` was set.
    """
    trace = rank.trace
    rows = np.flatnonzero(roles == Role.COMM)
    on_device = by_cat(trace, DEVICE_CATS.__contains__)[rows]
    rows = rows[on_device if on_device.any() else ~by_name(trace, hands_over)[rows]]
    if not len(rows):
        return NO_COLLECTIVES
    calls, sequence, requested_ns = _of_device(rank, rows) if on_device.any() else _of_host(rank, rows)
    begun = np.searchsorted(steps[:, 1], requested_ns, side="right") - 1
    number = np.append(steps[:, 0], steps[0, 0] - 1 if len(steps) else 0)[begun]
    base = np.where(sequence >= 0, sequence, number) % _MOST_NUMBER
    return Collectives.of(rows, calls, base, trace.ts_ns[rows])


def _of_device(rank: RankTrace, rows: Int64) -> tuple[list[Call], Int64, Int64]:
    """List kernels and copies (k,) as calls, their sequence numbers (-1: none), and their launches (ns)."""
    trace = rank.trace
    keys = (*SIZE_ARGS, *SYNC_ARGS)
    columns = {key: trace.args[key].as_dict() for key in keys if key in trace.args}
    launch = calls_of(trace, rows)
    named = columns.get(COLLECTIVE, {})
    bare = np.array([row not in named for row in rows.tolist()], np.bool_) & (launch >= 0)
    around = dict(zip(rows[bare].tolist(), _around(rank, launch[bare]), strict=True))
    groups, group = groups_of(trace.header, trace.rank), _group_of_all(trace)
    calls, sequence = [], []
    for row in rows.tolist():
        args = {key: column.get(row) for key, column in columns.items()}
        name, cat = trace.names[trace.name_id[row]], trace.cats[trace.cat_id[row]]
        number = -1
        if row in named:
            calls.append(_of_args(trace, name, cat, args, groups))
            number = -1 if args.get("Seq") is None else int_or_zero(args["Seq"])
        elif (annotation := around.get(row)) is not None:
            calls.append(_of_call(annotation[0], annotation[1], group))
        else:
            n_bytes = int_or_zero(args.get("bytes")) if cat in COPY_CATS else 0
            is_of_all = group is not None and cat in KERNEL_CATS and not re.search(_EXCHANGE, name)
            key = (name.split("(")[0],) if is_of_all else None
            calls.append(Call(kind_of(name), sent=n_bytes, received=n_bytes, key=key))
        sequence.append(number % _MOST_NUMBER if number >= 0 else -1)
    requested_ns = np.where(launch >= 0, trace.ts_ns[launch], trace.ts_ns[rows])
    return calls, np.array(sequence, np.int64), requested_ns


def _of_args(trace: Trace, name: str, cat: str, args: Mapping[str, Any], groups: Sequence[_Group]) -> Call:
    """Read the call of a kernel whose `args` name the collective."""
    text = str(args.get("Process Group Ranks") or "")
    numbers = [] if "..." in text else re.findall(r"\d{1,18}", text)
    members: tuple[int | None, ...] = tuple(map(int, numbers))
    n_ranks = int_or_zero(args.get("Group size")) or len(members)
    listed = [group for group in groups if len(group[1]) == n_ranks and members in ((), group[1])]
    about = args.get("Process Group Description") or (listed[0][0] if len(listed) == 1 else "")
    members = members or (listed[0][1] if len(listed) == 1 else ())
    item = 0 if args.get("dtype") is None else item_bytes(args["dtype"])
    sent, received = (int_or_zero(args.get(key)) * item for key in ("In msg nelems", "Out msg nelems"))
    part = collective(name, cat, args, is_known=True)
    key: Any = part and _known_key(part.key, trace.rank, ())
    if part and _is_half(part.key):
        members, n_ranks = key[:2] if key else (), 2
    elif key:
        key = key[:-1]  # without the sequence number, which is counted apart
    kind, group = kind_of(str(args[COLLECTIVE])), _group_text((str(about), members))
    return Call(kind, group, n_ranks, sent, received, key)


def _of_host(rank: RankTrace, rows: Int64) -> tuple[list[Call], Int64, Int64]:
    """List collectives of the host (k,) as calls; see `_of_device`."""
    trace = rank.trace
    args, group = _args_of_rows(rank, rows), _group_of_all(trace)
    calls = []
    for row in rows.tolist():
        call = _of_call(trace.names[trace.name_id[row]], args.get(row, {}), group)
        if call.kind == _TRANSFER:
            call = replace(call, group="", n_ranks=2)
        calls.append(call)
    return calls, np.full(len(rows), -1), trace.ts_ns[rows]


def _of_call(name: str, args: Mapping[str, Any], group: _Group | None) -> Call:
    """Read the call from the annotation around a collective; `group` is that of `_group_of_all`."""
    kind, given = kind_of(name), bytes_of_inputs(args)
    about, members = group or ("", ())
    got = given
    if kind == "all-gather":  # each rank gives its part of what all get
        got = given * len(members)
        given = given if members else 0
    key = None if group is None or kind == _TRANSFER else (kind, members)
    return Call(kind, _group_text((about, members)), len(members), given, got, key)


def _group_of_all(trace: Trace) -> _Group | None:
    """Find the group of collectives without args; None if several are possible.

    The group has no ranks if the file lists no groups.
    """
    ranks = host_group(trace.header, trace.rank)
    if ranks is None:
        return None
    listed = groups_of(trace.header, trace.rank)
    return next((group for group in listed if not ranks or group[1] == ranks), ("", ()))


def _group_text(group: _Group) -> str:
    """Describe a group by its description and its ranks.

    >>> _group_text(("mesh_tp", (0, 1, 2, 3))), _group_text(("", (1, 5)))
    ('mesh_tp (0-3)', '(1, 5)')
    """
    about, members = group
    if not members:
        return about
    first, last = members[0], members[-1]
    if len(members) > 2 and first is not None and members == tuple(range(first, first + len(members))):
        return f"{about} ({first}-{last})".lstrip()
    more = f" and {len(members) - _SHOWN_RANKS} more" if len(members) > _SHOWN_RANKS else ""
    return f"{about} ({', '.join(map(str, members[:_SHOWN_RANKS]))}{more})".lstrip()


def _around(rank: RankTrace, calls: Int64) -> list[tuple[str, Mapping[str, Any]] | None]:
    """Find name and args of the library's annotation around each of the host's `calls` (k rows)."""
    trace = rank.trace
    rows = np.flatnonzero(by_cat(trace, "user_annotation".__eq__) & by_name(trace, is_library_call))
    last = as_of(trace.track_id[rows], trace.ts_ns[rows], trace.track_id[calls], trace.ts_ns[calls])
    around = np.append(rows, -1)[last]
    args = _args_of_rows(rank, rows) if len(calls) else {}
    is_inside = (around >= 0) & (trace.ts_ns[calls] < np.append(trace.end_ns, 0)[around])
    return [
        (trace.names[trace.name_id[row]], args.get(row, {})) if inside else None
        for row, inside in zip(around.tolist(), is_inside.tolist(), strict=True)
    ]


def _args_of_rows(rank: RankTrace, rows: Int64) -> dict[int, Mapping[str, Any]]:
    """Read all args of some slices, by row: this reads the file again, as all operators have such args."""
    trace = rank.trace
    names = {trace.names[i] for i in trace.name_id[rows].tolist()}
    alike = np.flatnonzero(by_name(trace, names.__contains__))
    args = rank.args_of(names) if names else ()
    # of several files of a rank only one is read
    return dict(zip(alike.tolist(), args, strict=True)) if len(args) == len(alike) else {}


def bytes_of_inputs(args: Mapping[str, Any]) -> int:
    """Add up the bytes of an operator's inputs, repeated values once; 0 for lists of tensors, and unknown."""
    shapes, types, strides = (args.get(key) for key in ("Input Dims", "Input type", "Input Strides"))
    if not isinstance(shapes, list) or not isinstance(types, list):
        return 0
    n_bytes = 0
    for i, (shape, of_type) in enumerate(zip(shapes, types, strict=False)):
        if isinstance(shape, list) and shape:
            steps = strides[i] if isinstance(strides, list) and i < len(strides) else ()
            repeats = [isinstance(steps, list) and steps[j : j + 1] == [0] for j in range(len(shape))]
            sides = (int_or_zero(side) for side, again in zip(shape, repeats, strict=True) if not again)
            n_bytes += math.prod(sides) * item_bytes(of_type)
    return n_bytes


def item_bytes(of_type: object) -> int:
    """Bytes of an element, by the name of its type."""
    words = re.findall(r"\w+", str(of_type).lower())
    return next((_ITEM_BYTES[word] for word in words if word in _ITEM_BYTES), 4)
