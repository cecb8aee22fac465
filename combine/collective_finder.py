"""The occurrences of synchronous operations by which the clocks of hosts are compared."""

from __future__ import annotations

import re
from array import array
from collections.abc import Hashable, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from formats.event import args_object
from formats.whole import WholeEvent
from opname import OpName

Int64 = NDArray[np.int64]

COLLECTIVE_PREFIXES = frozenset(("gloo", "nccl"))  # how names of Kineto's collectives begin
_PUSH, _PULL = 1, 2
#: Collectives that nobody leaves before everybody has entered (a broadcast's root does not wait).
_ALL_TO_ALL = re.compile(
    r"gloo:(?:all_?reduce|all_?gather|reduce_scatter|all_?to_?all|barrier)\w*"
    r"|nccl(?:Dev)?Kernel_(?:AllReduce|AllGather|ReduceScatter|AllToAll)\w*(?:\(.*\))?"
)
_KERNEL_ARGS = ("Collective name", "Process Group Name", "Process Group Ranks", "Seq")
_COLLECTIVES = frozenset(
    ("allreduce", "allgather", "_allgather_base", "reduce_scatter", "_reduce_scatter_base", "all_to_all",
     "all_to_allv", "alltoall", "alltoall_base", "allgather_into_tensor_coalesced", "allreduce_coalesced",
     "reduce_scatter_tensor_coalesced")
)  # fmt: skip


class AnchorFinder:
    """Collects begins and ends of one source's synchronous operations, as its dialect has them.

    BytePS: of every partition key the starts of PUSH and the ends of PULL, the n-th of both being the
    n-th traced step. Kineto: gloo's annotations (from entering to leaving) and NCCL's kernels, by kind,
    process group and, where recorded, sequence number; else the n-th of a kind.
    """

    def __init__(self, dialect: str) -> None:
        self._dialect = dialect
        self._keys: dict[Hashable, int] = {}
        self._roles: list[Int64] = []
        self._times: list[Int64] = []
        self._spans: dict[Hashable, tuple[array[int], array[int]]] = {}

    def role(self, name: Any, tid: Any) -> int:
        """Return a number for BytePS operations (name, tid) whose events `add` is to look at; else 0."""
        if self._dialect != "byteps" or not isinstance(name, str):
            return 0
        stage = OpName.parse(name).queue
        if stage not in ("PUSH", "PULL"):
            return 0
        key = self._keys.setdefault(str(tid), len(self._keys))
        return 4 * key + (_PUSH if stage == "PUSH" else _PULL)

    def add(self, events: Sequence[WholeEvent], roles: Int64, ts: Int64, dur: Int64) -> None:
        """Look through the events of one piece; `ts` and `dur` (n,) in nanoseconds, dur -1 if none."""
        if self._dialect == "byteps":
            self._add_stages(roles, ts, dur)
        elif self._dialect == "kineto":
            self._add_collectives(events, ts, dur)

    def found(self) -> dict[Hashable, tuple[Int64, Int64]]:
        """Return operation -> (begins, ends) in nanoseconds on the source's own clock, by time."""
        found: dict[Hashable, tuple[Any, Any]] = {**self._stages(), **self._spans}
        return {
            key: (np.sort(np.asarray(begin, np.int64)), np.sort(np.asarray(end, np.int64)))
            for key, (begin, end) in found.items()
            if len(begin) and len(end)
        }

    def _add_stages(self, roles: Int64, ts: Int64, dur: Int64) -> None:
        rows = np.flatnonzero((roles != 0) & (dur >= 0))
        self._roles.append(roles[rows])
        self._times.append(np.where(roles[rows] % 4 == _PUSH, ts[rows], ts[rows] + dur[rows]))

    def _stages(self) -> dict[Hashable, tuple[Int64, Int64]]:
        """Return partition key -> (starts of PUSH, ends of PULL)."""
        if not self._roles:
            return {}
        roles, times = np.concatenate(self._roles), np.concatenate(self._times)
        order = np.argsort(roles, kind="stable")
        roles, times = roles[order], times[order]
        groups = [
            [
                times[slice(*np.searchsorted(roles, [role, role + 1]))]
                for role in (4 * i + _PUSH, 4 * i + _PULL)
            ]
            for i in range(len(self._keys))
        ]
        return {key: (push, pull) for key, (push, pull) in zip(self._keys, groups, strict=True)}

    def _add_collectives(self, events: Sequence[WholeEvent], ts: Int64, dur: Int64) -> None:
        rows = [i for i, event in enumerate(events) if str(event.name)[:4] in COLLECTIVE_PREFIXES]
        for i in rows:
            event = events[i]
            key = _collective(event, str(event.name))
            if key is not None and dur[i] >= 0:
                begin, end = self._spans.setdefault(key, (array("q"), array("q")))
                begin.append(int(ts[i]))
                end.append(int(ts[i] + dur[i]))


def _collective(event: WholeEvent, name: str) -> Hashable | None:
    """Return what identifies a collective on all its ranks; None if it is none that all wait in."""
    if name.startswith("gloo:"):
        return (name,) if _ALL_TO_ALL.fullmatch(name) else None
    if event.cat not in ("kernel", "Kernel"):
        return None  # the annotation of NCCL covers only the launch
    args: dict[str, Any] = args_object(event.args) if isinstance(event.args, msgspec.Raw) else {}
    kind, group, ranks, sequence = (args.get(key) for key in _KERNEL_ARGS)
    if kind is None:
        return (name,) if _ALL_TO_ALL.fullmatch(name) else None
    if str(kind).lower() not in _COLLECTIVES:
        return None
    return (str(kind), str(group), str(ranks), None if sequence is None else str(sequence))
