"""Which operations of devices are one collective: by their name and the group of devices that take part."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from analyzer.base.arrays import Int64, Mask
from analyzer.base.arrays.numbering import as_of
from analyzer.reading.dialects.jax.xla_slices import (
    all_wait,
    halves,
    operations,
    role_of,
    roles_of,
    stated_role,
    thread_kinds,
)
from analyzer.reading.dialects.recorded_collectives import SyncPart
from analyzer.reading.dialects.roles import Role
from analyzer.reading.formats.columns import Trace

_RENDEZVOUS = re.compile(r"global_devices=\[([\d, ]*)\]")
#: ``{{0,1},{2,3}}``, or short for it ``[2,2]<=[4]``: several groups of devices, each with its own collective.
_SEVERAL_GROUPS = re.compile(r"replica_groups=(?:\{\{[\d,]*\},|\[(?!1,)\d+,)")


#: The args that tell the operation of a slice, and its kind.
_TELLING = ("hlo_op", "long_name", "hlo_category")


def part_of(name: str, args: Mapping[str, Any]) -> SyncPart | None:
    """Part of a collective that an operation is, by its name and args; None for any other.

    Also None where a device waits for some others only (one, or those of its group): the file does not say
    which of the job's devices these are.
    """
    op = str(args.get("hlo_op") or name)
    stated = stated_role(str(args.get("hlo_category", "")))
    if Role.COMM not in (role_of(name), role_of(op), stated):
        return None
    (whole, begins, ends), is_kernel = halves(op), op != name  # a kernel is both halves of its operation
    if not all_wait(whole) or _SEVERAL_GROUPS.search(str(args.get("long_name"))):
        return None
    return SyncPart(whole, begins or is_kernel, ends or is_kernel, end_together=True)


def parts_of(trace: Trace) -> dict[int, SyncPart]:
    """Parts of collectives in a rank's trace, by row; the key has the group of devices.

    On a CPU the rendezvous inside an operation names the group; where none is recorded all devices take part.
    """
    args = {key: trace.args[key].as_dict() for key in _TELLING if key in trace.args}
    groups = _met(trace)
    parts = {}
    for row in np.flatnonzero(communicates(trace) & operations(trace, thread_kinds(trace))).tolist():
        part = part_of(
            trace.names[trace.name_id[row]], {key: column.get(row) for key, column in args.items()}
        )
        if part is not None:
            parts[row] = part._replace(key=(part.key, groups.get(row)))
    return parts


def communicates(trace: Trace) -> Mask:
    """Find the collectives (n,): stated as one, called after one, or kernels of an operation so called."""
    is_collective: Mask = roles_of(trace) == Role.COMM
    if "hlo_op" in trace.args:
        column = trace.args["hlo_op"]
        is_comm = [role_of(str(name)) is Role.COMM for name in column.values]
        called = column.rows[np.array(is_comm, np.bool_)]
        is_collective[called[~np.isin(called, _stated_rows(trace))]] = True
    return is_collective


def _stated_rows(trace: Trace) -> Int64:
    """Find the slices whose role XLA states."""
    column = trace.args.get("hlo_category")
    if column is None:
        return np.empty(0, np.int64)
    stated = [stated_role(str(category)) is not None for category in column.values]
    return column.rows[np.array(stated, np.bool_)]


def _met(trace: Trace) -> dict[int, Hashable]:
    """Return the groups (global devices) that operations met in, by the row of the operation."""
    if "name" not in trace.args:
        return {}
    texts = trace.args["name"].as_dict()
    met = {row: match[1] for row, text in texts.items() if (match := _RENDEZVOUS.search(str(text)))}
    if not met:
        return {}
    outer = np.flatnonzero(operations(trace, thread_kinds(trace)))
    outer = outer[np.argsort(-trace.end_ns[outer], kind="stable")]  # the innermost of one start comes last
    inner = np.array(list(met), np.int64)
    track, begin = trace.track_id, trace.ts_ns
    around = np.append(outer, -1)[as_of(track[outer], begin[outer], track[inner], begin[inner])]
    is_inside = (around >= 0) & (trace.end_ns[inner] <= trace.end_ns[around])
    return {int(a): met[int(i)] for a, i in zip(around[is_inside], inner[is_inside], strict=True)}
