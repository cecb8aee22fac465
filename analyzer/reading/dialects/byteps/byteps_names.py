"""Names of BytePS: the role of an operation, its partition, the inputs of a slice, and lists of gradients."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from analyzer.base.errors import TraceError
from analyzer.base.names import OpName
from analyzer.reading.dialects.roles import Role
from analyzer.reading.formats.columns import Trace
from analyzer.reading.formats.event import tolerant
from analyzer.reading.formats.stream import find_file, read_text

#: By category; any other is work of the host.
_ROLES = dict.fromkeys(("FW", "BW", "UPDATE", "OUTPUT"), Role.COMPUTE)
_ROLES |= {"STEP": Role.UPDATE, "I/O": Role.INPUT}


def role_of(op: OpName) -> Role:
    """Look up the role of an operation."""
    if op.is_comm:
        return Role.COMM if op.queue is not None else Role.WHOLE_COMM
    return _ROLES.get(op.cat or "", Role.HOST)


def partition(name: str, tid: object) -> str:
    """Name the partition of a sub-task: the key in its name, else its track."""
    key = OpName.parse(name).key
    return str(tid if key is None else key)


def inputs(trace: Trace) -> Iterator[tuple[int, str]]:
    """Yield each slice that names an input in its args, with that name."""
    for key, column in trace.args.items():
        if key.startswith(("input", "arg")):
            yield from zip(column.rows.tolist(), map(str, column.values), strict=True)


#: Files with the list of gradients; the last is written with MXNet's Module API.
NAME_LISTS = (
    "gradient_name_list.txt", "gradient_name_list.json", "metadata.json", "arg_namesINpara_names.txt"
)  # fmt: skip

_LONGEST = 4096  # characters of a name
_INDEXED = r"(?:byteps[._])?gradient_(\d{1,9})"


class GradientNames(Struct, frozen=True):
    """The list of one GPU directory: line i (from 0) names ``gradient_<i>``."""

    path: Path
    names: Sequence[str]

    def parameter(self, tensor: str) -> str | None:
        """Look up the parameter of BytePS's name `tensor`; None if the list has none."""
        index = gradient_index(tensor)
        return (self.names[index] or None) if index is not None and index < len(self.names) else None

    @property
    def parameters(self) -> dict[str, str]:
        """``byteps.gradient_<i>`` -> parameter."""
        return {f"byteps.gradient_{i}": name for i, name in enumerate(self.names) if name}


def gradient_index(tensor: str) -> int | None:
    """Extract i of ``byteps.gradient_<i>``; None for other names."""
    match = re.fullmatch(_INDEXED, tensor)
    return int(match[1]) if match else None


def renamed(name: OpName, parameters: Mapping[str, str]) -> OpName:
    """Strip worker and rank, and name a gradient after its parameter (as of `GradientNames`)."""
    bare = name.bare()
    index = gradient_index(name.label or "") if name.is_comm else None
    parameter = None if index is None else parameters.get(f"byteps.gradient_{index}")
    return bare if parameter is None else bare._replace(label=parameter)


def read_parameters(directory: Path) -> dict[str, str]:
    """Read `GradientNames.parameters` of a directory; {} without a readable list."""
    with contextlib.suppress(TraceError):
        names = read_names(directory)
        return {} if names is None else names.parameters
    return {}


def read_names(directory: Path) -> GradientNames | None:
    """Read the gradient names of a GPU directory; None without a list, TraceError for a bad one."""
    path = next(filter(None, (find_file(directory, name) for name in NAME_LISTS)), None)
    if path is None:
        return None
    text = read_text(path)
    if ".json" in path.suffixes:  # dPRO's {"gradient_name_list": [...]}, or a bare list
        value = tolerant(text.encode())
        listed = value.get("gradient_name_list") if isinstance(value, dict) else value
        names = [str(name) for name in listed] if isinstance(listed, list) else []
    else:
        names = [line.strip() for line in text.splitlines()]
    while names and not names[-1]:
        names.pop()
    if not names and path.name.startswith("metadata.json"):  # it also has other facts
        return None
    if not names:
        raise TraceError(f"{path}: names no gradient")
    if (longest := max(map(len, names))) > _LONGEST:  # each event of the gradient would bear it
        raise TraceError(f"{path}: a name of {longest:,} characters: no list of gradients")
    return GradientNames(path, names)
