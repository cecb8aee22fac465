"""Read pickles of plain values without executing anything.

A pickle is a program. A scan walks all of it before any of it runs (`_plain`): opcodes that build numbers,
texts, lists, tuples and dictionaries are known, any other (GLOBAL, REDUCE, BUILD, …) is refused. Nothing is
imported or called, and no opcode reserves more than 64 MiB beyond the file.

Tuples become lists, except pairs of texts (the name of a group): no file can use one as a key then. The hash
of thirty tuples, each with the one before twice, takes minutes in which Python hears no signal.
"""

from __future__ import annotations

import io
import pickle
import re
from functools import cache
from pathlib import Path
from typing import Any

from analyzer.base.errors import TraceError

_LENGTH_BYTES = {ord("X"): 4, 0x8C: 1}  # of the opcodes of texts
_FIXED = b"KqhMJrjG\x95\x80\x8a"  # opcodes whose operand a cut may remove
_STOP, _FRAME, _FRAME_BYTES = ord("."), 0x95, 8
_AS_LIST = b"Q"  # BINPERSID, which no plain pickle has: calls `persistent_load`


@cache
def _plain() -> re.Pattern[bytes]:
    """Compile the pattern of a run of opcodes with their operands, up to a tuple.

    An index into the memo is below 2^22, because the unpickler reserves room for all indices up to it.
    """
    integers = b"|".join(re.escape(bytes([n])) + b".{%d}" % n for n in range(10))
    return re.compile(
        rb"(?:[()\]}Nadelsu\x88\x89\x94]|[Kqh].|M..|J....|[rj]..[\x00-\x3f]\x00|G.{8}|\x80[\x02-\x05]|\x8a(?:"
        + integers
        + rb")){0,5000}([t\x85\x86\x87])?",
        re.DOTALL,
    )


class _Plain:
    """The rules for names and tuples."""

    def find_class(self, module: str, name: str) -> Any:
        """Refuse."""
        raise pickle.UnpicklingError(f"{module}.{name}")

    def persistent_load(self, value: Any) -> Any:
        """Keep a pair of texts, and turn any other tuple into a list."""
        return value if len(value) == 2 and type(value[0]) is type(value[1]) is str else list(value)


class _Unpickler(_Plain, pickle.Unpickler):
    """Reads a whole pickle."""


class _CutUnpickler(_Plain, pickle._Unpickler):
    """Reads a cut pickle, slowly: the base class in Python gives access to its stack."""

    stack: list[Any]
    metastack: list[list[Any]]

    def load(self) -> Any:
        """Load the values before the cut, and close the open containers."""
        try:
            super().load()
        except EOFError:
            stacks = [*self.metastack, self.stack]
        while stacks:
            items = stacks.pop()
            container = stacks[-1][-1] if stacks else items.pop(0)
            if isinstance(container, dict):
                container.update(zip(items[::2], items[1::2], strict=False))
            elif isinstance(container, list):
                container += items
        return container


def unpickled(path: Path, data: bytes, repairs: list[str]) -> Any:
    """Load a plain pickle, or the whole values of a cut one; TraceError for any other."""
    program, is_whole = _scanned(path, data)
    if not is_whole:
        repairs.append("cut off: entries after the cut are missing")
    unpickler = _Unpickler if is_whole else _CutUnpickler
    try:
        return unpickler(io.BytesIO(program)).load()
    except Exception as error:  # a damaged program may do anything to the stack
        raise TraceError(f"{path}: a damaged pickle ({type(error).__name__})") from error


def _scanned(path: Path, data: bytes) -> tuple[bytes, bool]:
    """Rewrite the program to turn tuples into lists, up to its STOP (True) or the cut opcode (False).

    Frames are removed, because their lengths change.
    """
    pieces: list[bytes] = []
    plain, position, begin = _plain(), 0, 0
    while position < len(data):
        match = plain.match(data, position)
        if match is not None and match.end() > position:
            position = match.end()
            if match.lastindex:
                pieces += (data[begin:position], _AS_LIST)
                begin = position
            continue
        opcode, left = data[position], len(data) - position
        n_bytes = _LENGTH_BYTES.get(opcode, 0)
        n_text = int.from_bytes(data[position + 1 : position + 1 + n_bytes], "little")
        if n_bytes and left > n_bytes + n_text:
            position += 1 + n_bytes + n_text
        elif opcode == _FRAME and left > _FRAME_BYTES:
            pieces.append(data[begin:position])
            position = begin = position + 1 + _FRAME_BYTES
        elif opcode == _STOP:
            return b"".join((*pieces, data[begin : position + 1])), True
        elif n_bytes or (opcode in _FIXED and left < 10):
            break
        else:
            raise TraceError(
                f"{path}: not a dump of a flight recorder: byte {position:,} of this pickle (0x{opcode:02x}) "
                "is not the opcode of a plain value; nothing of it was executed"
            )
    return b"".join((*pieces, data[begin:position])), False
