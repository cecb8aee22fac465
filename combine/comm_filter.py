"""`--filter`: which events of a trace are communication, and which of them were asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dialects
from dialects.byteps.byteps_names import with_key
from dialects.kineto.collectives import is_collective
from formats.whole import WholeEvent
from opname import OpName


class CommFilter:
    """Keeps the named communication operations and everything that is no communication.

    BytePS: an operation is its name in the trace and stands for its sub-tasks. Horovod: every process is a
    tensor and is kept by its name. Else the names of collectives and their kernels are communication. A name
    with the `prefix` of a rank (``wk<i>.rank<r>.``) is meant on that rank only.
    """

    def __init__(self, dialect: str, names: Sequence[str], prefix: str = "") -> None:
        self._names_processes = dialects.named(dialect).process_is_operation
        self._asked: dict[str, list[str]] = {}  # by what is looked for, the names that were asked for
        for name in names:
            for text in {name, name.removeprefix(prefix)}:
                self._asked.setdefault(text, []).append(name)
        self._processes: dict[Any, bool] = {}
        self._known: dict[Any, bool] = {}
        self.met: set[str] = set()  # the names asked for that occur

    def __bool__(self) -> bool:
        return bool(self._asked)

    def learn(self, event: WholeEvent, args: Mapping[str, Any]) -> bool:
        """Take note of a process's name; return whether `keeps` may answer otherwise from now on."""
        if not (self and self._names_processes and event.name == "process_name"):
            return False
        before = self._processes.get(event.pid)
        self._processes[event.pid] = self._has(str(args.get("name")))
        return before != self._processes[event.pid]

    def keeps(self, event: WholeEvent) -> bool:
        """Whether the event stays."""
        if event.pid in self._processes:
            return self._processes[event.pid]
        name = event.name
        if not isinstance(name, str):
            return True
        key = name, event.tid if OpName.parse(name).queue else event.cat
        if key not in self._known:
            self._known[key] = self._is_wanted(name, event)
        return self._known[key]

    def _is_wanted(self, name: str, event: WholeEvent) -> bool:
        op = OpName.parse(name)
        if op.is_comm:
            if not any(str(op.label) in one for one in self._asked):
                return False  # most are told so, and soon: all aliases have the tensor's name in them
            op = OpName.parse(with_key(name, event.tid))
            return len([name for name in op.aliases() if self._has(name)]) > 0  # all that occur are noted
        return not is_collective(name, str(event.cat)) or self._has(name)

    def _has(self, name: str) -> bool:
        self.met.update(self._asked.get(name, ()))
        return name in self._asked
