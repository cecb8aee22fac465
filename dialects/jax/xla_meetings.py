"""Which operations of devices are one collective: by their name and the group of devices that take part."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from arrays import Mask
from arrays.numbering import unique
from dialects.jax.xla_slices import (
    all_wait,
    device_of_slices,
    halves,
    n_devices,
    operations,
    role_of,
    thread_kinds,
)
from dialects.masks import by_name
from dialects.owners import SHARED
from dialects.roles import Role
from dialects.sync_points import SyncPart
from formats.columns import Trace

#: The group of an operation of which it cannot be told.
UNKNOWN = object()
_MOST_DEVICES = 1 << 20  # more is damage
_RENDEZVOUS = re.compile(r"global_devices=\[([\d, ]*)\]")
#: ``{{0,1},{2,3}}``, or short for it ``[2,2]<=[4]``: two groups of two, of four devices, in order.
_LISTED = re.compile(r"replica_groups=\{((?:\{[\d,]*\},?)*)\}")
_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")


def part_of(name: str, args: Mapping[str, Any]) -> SyncPart | None:
    """Return the part of a collective that an operation is, by its name and args; None for any other.

    Also None where one device waits for one other: the file does not say for which.
    """
    op = str(args.get("hlo_op") or name)
    if role_of(name) is not Role.COMM and role_of(op) is not Role.COMM:
        return None
    (whole, begins, ends), is_kernel = halves(op), op != name  # a kernel is both halves of its operation
    if not all_wait(whole):
        return None
    return SyncPart(whole, begins or is_kernel, ends or is_kernel, end_together=True)


def part_of_all(name: str, args: Mapping[str, Any]) -> SyncPart | None:
    """Return the same of a collective of all devices; None where there are several groups of them."""
    return None if len(_groups(str(args.get("long_name")))) > 1 else part_of(name, args)


def parts_of(trace: Trace) -> dict[int, SyncPart]:
    """Return the parts of collectives in a rank's trace, by row; the key has the group of devices.

    On a CPU the rendezvous inside an operation names the group, on a TPU the operation's text lists all.
    Where neither is recorded all devices take part.
    """
    hlo_op = trace.args["hlo_op"].as_dict() if "hlo_op" in trace.args else {}
    groups = {**_met(trace), **_listed(trace)}
    found = {}
    for row in np.flatnonzero(communicates(trace) & operations(trace, thread_kinds(trace))).tolist():
        part = part_of(trace.names[trace.name_id[row]], {"hlo_op": hlo_op.get(row)})
        if part is not None and (group := groups.get(row)) is not UNKNOWN:
            found[row] = part._replace(key=(part.key, group))
    return found


def communicates(trace: Trace) -> Mask:
    """Return which slices (n,) are called after a collective, or are kernels of an operation so called."""
    found = by_name(trace, lambda name: role_of(name) is Role.COMM)
    if "hlo_op" in trace.args:
        column = trace.args["hlo_op"]
        is_comm = [role_of(str(name)) is Role.COMM for name in column.values]
        found[column.rows[np.array(is_comm, np.bool_)]] = True
    return found


def _met(trace: Trace) -> dict[int, Hashable]:
    """Return the groups (global devices) that operations met in, by the row of the operation."""
    if "name" not in trace.args:
        return {}
    texts = trace.args["name"].as_dict()
    met = {row: match[1] for row, text in texts.items() if (match := _RENDEZVOUS.search(str(text)))}
    if not met:
        return {}
    is_outer = operations(trace, thread_kinds(trace))
    rows = np.flatnonzero(is_outer | np.isin(np.arange(len(trace)), list(met)))
    order = rows[np.lexsort((-trace.end_ns[rows], trace.ts_ns[rows], trace.track_id[rows]))]
    found: dict[int, Hashable] = {}
    outer = -1
    for row in order.tolist():
        if is_outer[row]:
            outer = row
        elif outer >= 0 and trace.end_ns[row] <= trace.end_ns[outer]:
            found[outer] = met[row]
    return found


def _listed(trace: Trace) -> dict[int, Hashable]:
    """Return the groups that the texts of operations list, by row: that of the trace's device.

    The replicas are those of all hosts. Where the file's own are some of them only, it is not known which
    number its device has, and so not in which of several groups it is.
    """
    devices = unique(device_of_slices(trace))
    devices = devices[devices != SHARED]
    if "long_name" not in trace.args or len(devices) != 1:
        return {}
    own, n_here = int(devices[0]), n_devices(trace)
    of_text: dict[str, Hashable] = {}
    column = trace.args["long_name"]
    for text in {str(value) for value in column.values if "replica_groups" in str(value)}:
        groups = _groups(text)
        if len(groups) > 1:
            is_here = sum(map(len, groups)) == n_here
            of_text[text] = next((group for group in groups if own in group), UNKNOWN) if is_here else UNKNOWN
    texts = zip(column.rows.tolist(), map(str, column.values), strict=True)
    return {row: of_text[text] for row, text in texts if text in of_text}


def _groups(text: str) -> list[tuple[int, ...]]:
    """Return the groups of replicas in an operation's text; [] where it lists none.

    >>> _groups("all-reduce(f32[8] %p), replica_groups={{0,1},{2,3}}, to_apply=%add")
    [(0, 1), (2, 3)]
    >>> _groups("all-reduce(f32[8] %p), replica_groups=[2,2]<=[2,2]T(1,0)")
    [(0, 2), (1, 3)]
    """
    if match := _LISTED.search(text):
        return [tuple(map(int, group.split(","))) for group in re.findall(r"\{([\d,]+)\}", match[1])]
    if match := _IOTA.search(text):
        shape, of, order = ([int(n) for n in (part or "").split(",") if n] for part in match.groups())
        if math.prod(shape) == math.prod(of) <= _MOST_DEVICES and sorted(order) in ([], [*range(len(of))]):
            replicas = np.arange(math.prod(of)).reshape(of)
            replicas = replicas.transpose(order) if order else replicas
            return [tuple(group) for group in replicas.reshape(shape[0], -1).tolist()]
    return []
