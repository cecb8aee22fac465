"""Role, phase, partition and direction of operations by BytePS's names."""

from __future__ import annotations

from collections.abc import Iterator

from dialects.roles import Phase, Role
from dialects.step_parts import Direction
from formats.columns import Trace
from opname import OpName

#: By category; of any other it is work of the host.
_ROLES = {
    **dict.fromkeys(("FW", "BW", "UPDATE", "OUTPUT"), Role.COMPUTE),
    "STEP": Role.UPDATE,
    "I/O": Role.INPUT,
}
_PHASES = {
    "FW": Phase.FORWARD,
    "BW": Phase.BACKWARD,
    "STEP": Phase.UPDATE,
    "UPDATE": Phase.UPDATE,
    "I/O": Phase.INPUT,
}
#: By queue stage.
DIRECTIONS = {
    "COPYD2H": Direction.TO_HOST,
    "PUSH": Direction.TO_SERVER,
    "PULL": Direction.FROM_SERVER,
}


def role_of(op: OpName) -> Role:
    """Return the role of an operation."""
    if op.is_comm:
        return Role.COMM if op.queue is not None else Role.WHOLE_COMM
    return _ROLES.get(op.cat or "", Role.HOST)


def phase_of(op: OpName) -> Phase:
    """Return in which part of the training loop an operation runs."""
    return _PHASES.get(op.cat or "", Phase.NONE)


def partition(name: str, tid: object) -> str:
    """Return the partition that a sub-task works on: its key where the name states it, else the track's."""
    key = OpName.parse(name).key
    return str(tid if key is None else key)


def inputs(trace: Trace) -> Iterator[tuple[int, str]]:
    """Yield each slice that names an input in its args, with that name."""
    for key, column in trace.args.items():
        if key.startswith(("input", "arg")):
            yield from zip(column.rows.tolist(), map(str, column.values), strict=True)
