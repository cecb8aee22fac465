"""Bytes and groups of PyTorch's collectives: from the args of kernels, or of the calls around them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from analyzer.base.arrays import Int64, NDArray
from analyzer.base.arrays.numbering import as_of
from analyzer.reading.dialects.edge_rules import Rule
from analyzer.reading.dialects.kineto import collectives
from analyzer.reading.dialects.kineto.launches import calls_of
from analyzer.reading.dialects.name_rules import is_library_call
from analyzer.reading.dialects.recorded_collectives import NO_COLLECTIVES, Call, Collectives, kind_of
from analyzer.reading.dialects.roles import Role, by_cat, by_name
from analyzer.reading.dialects.step_parts import RankTrace
from analyzer.reading.dialects.system import COPY_CATS, DEVICE_CATS, int_or_zero
from analyzer.reading.formats.columns import Trace

#: Bytes of an element, by a word of its type's name (``c10::Half``, ``unsigned char``); 4 by default.
_ITEM_BYTES = {"double": 8, "long": 8, "float64": 8, "int64": 8, "half": 2, "bfloat16": 2, "float16": 2,
               "short": 2, "int16": 2, "char": 1, "byte": 1, "int8": 1, "uint8": 1, "bool": 1,
               "float8_e4m3fn": 1, "float8_e5m2": 1}  # fmt: skip
_SHOWN_RANKS = 8
_MOST_NUMBER = 1 << 40  # of steps and sequences; larger numbers count from 0 again
_TRANSFER = kind_of("send")
_Group = tuple[str, tuple[int | None, ...]]  # description and ranks


def recorded_collectives(rank: RankTrace, roles: NDArray[np.int8]) -> Collectives:
    """List the collectives of a rank whose slices have `roles` (n,).

    Kernels of newer PyTorch have sizes in their args. For others, and for collectives of the host
    (``gloo:all_reduce``), the annotation around the launch (``nccl:all_reduce``) has the shapes of the inputs
    if `record_shapes` was set.
    """
    trace = rank.trace
    rows = np.flatnonzero(roles == Role.COMM)
    on_device = by_cat(trace, DEVICE_CATS.__contains__)[rows]
    hands_over = by_name(trace, collectives.hands_over)[rows]
    rows = rows[on_device if on_device.any() else ~hands_over]
    if not len(rows):
        return NO_COLLECTIVES
    calls, sequence, requested_ns = _of_device(rank, rows) if on_device.any() else _of_host(rank, rows)
    base = np.where(sequence >= 0, sequence, _steps(trace, requested_ns)) % _MOST_NUMBER
    return Collectives.of(rows, calls, base, trace.ts_ns[rows])


def _of_device(rank: RankTrace, rows: Int64) -> tuple[list[Call], Int64, Int64]:
    """List kernels and copies (k,) as calls, their sequence numbers (-1: none), and their launches (ns)."""
    trace = rank.trace
    keys = (*collectives.SIZE_ARGS, *collectives.SYNC_ARGS)
    columns = {key: trace.args[key].as_dict() for key in keys if key in trace.args}
    launch = calls_of(trace, rows)
    named = columns.get("Collective name", {})
    bare = np.array([row not in named for row in rows.tolist()], np.bool_) & (launch >= 0)
    around = dict(zip(rows[bare].tolist(), _around(rank, launch[bare]), strict=True))
    groups, group = collectives.groups_of(trace.header, trace.rank), _group_of_all(trace)
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
            part = collectives.collective(name, cat, args, is_known=True)
            known = None if part is None else collectives.meeting(part.key, name, trace.rank, ())
            n_bytes = int_or_zero(args.get("bytes")) if cat in COPY_CATS else 0
            key = known[0] if known and known[1] is Rule.COLLECTIVE and group is not None else None
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
    part = collectives.collective(name, cat, args, is_known=True)
    known = None if part is None else collectives.meeting(part.key, name, trace.rank, ())
    key = known[0] if known is not None and known[1] is not Rule.EXCHANGE else None
    if part is not None and collectives.is_half(part.key):
        members, n_ranks = collectives.ends_of(part.key, trace.rank) or (), 2
    elif isinstance(key, tuple):
        key = key[:-1]  # without the sequence number, which is counted apart
    kind, group = kind_of(str(args["Collective name"])), _group_text((str(about), members))
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
    ranks = collectives.host_group(trace.header, trace.rank)
    if ranks is None:
        return None
    listed = collectives.groups_of(trace.header, trace.rank)
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


def _steps(trace: Trace, moments: Int64) -> Int64:
    """Find the number of the step around each moment (k,); 0 without marked steps."""
    rows = np.flatnonzero(
        by_name(trace, collectives.is_step_mark) & ~by_cat(trace, "gpu_user_annotation".__eq__)
    )
    if not len(rows):
        return np.zeros(len(moments), np.int64)
    rows = rows[np.argsort(trace.ts_ns[rows], kind="stable")]
    numbers = [collectives.step_number(trace.names[i]) or 0 for i in trace.name_id[rows].tolist()]
    step = np.searchsorted(trace.ts_ns[rows], moments, side="right")
    return np.array([numbers[0] - 1, *numbers], np.int64)[step]


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
