"""`--filter`: which events of a trace are communication, and which of them were asked for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from formats.whole import WholeEvent
from opname import OpName

_COLLECTIVE = re.compile(r"(?:gloo|nccl|mpi|ucc|rccl|c10d)(?::|::|Kernel|DevKernel)", re.IGNORECASE)


class CommFilter:
    """Keeps the named communication operations and everything that is no communication.

    BytePS: an operation is its name in the trace, with or without ``wk<i>.rank<r>.``, and stands for
    its sub-tasks. Horovod: every process is a tensor and is kept by its name. Else the names of
    collectives and their kernels are communication.
    """

    def __init__(self, dialect: str, names: Sequence[str]) -> None:
        self._dialect = dialect
        self._names = frozenset(names)
        self._processes: dict[Any, bool] = {}
        self._known: dict[Any, bool] = {}
        self._met: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._names)

    @property
    def met(self) -> frozenset[str]:
        """The names asked for that occur."""
        return frozenset(self._met)

    def learn(self, event: WholeEvent, args: Mapping[str, Any]) -> None:
        """Take note of a process's name."""
        if self._dialect == "horovod" and event.name == "process_name":
            self._processes[event.pid] = self._has(str(args.get("name")))

    def keeps(self, event: WholeEvent) -> bool:
        """Whether the event stays."""
        if event.pid in self._processes:
            return self._processes[event.pid]
        name = event.name
        if not isinstance(name, str):
            return True
        if name not in self._known:
            self._known[name] = self._is_wanted(name)
        return self._known[name]

    def _is_wanted(self, name: str) -> bool:
        op = OpName.parse(name)
        if op.is_comm:
            return len([name for name in op.aliases() if self._has(name)]) > 0  # all that occur are noted
        return not _COLLECTIVE.match(name) or self._has(name)

    def _has(self, name: str) -> bool:
        if name in self._names:
            self._met.add(name)
        return name in self._names
