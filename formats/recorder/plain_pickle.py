"""Pickles of plain values, read without executing anything.

A pickle is a program. Before any of it runs, a scan walks it opcode by opcode (`_plain`): what builds
numbers, texts, lists, tuples and dictionaries is known, and anything else (GLOBAL, REDUCE, BUILD, …) is
refused. So nothing is imported or called, and no opcode reserves more than 64 MiB beyond the file.

Tuples become lists, but for pairs of texts (the name of a group), as no file can have one as a key then.
To hash a tuple takes as long as all that it holds, over and over where a value is there several times: thirty
tuples, each with the one before twice, take minutes, in which no signal is heard.

Rows, dictionaries of the same keys one after the other, are most of a dump. They are put aside as they are in
the file (`pickled_rows`), and one value stands in their place.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Callable
from ctypes import CDLL
from functools import cache, partial
from pathlib import Path
from typing import Any

from errors import TraceError
from formats.recorder.pickled_rows import PickledRows, RowsAt, rows_at


def _lengths(n_bytes: int, most: int) -> bytes:
    """Return a pattern for a length in `n_bytes` bytes, below `most`, and as many bytes after it."""
    ways = (re.escape(n.to_bytes(n_bytes, "little")) + b"." * (n > 0) + b"{%d}" % n * (n > 1)
            for n in range(most))  # fmt: skip
    return b"|".join(ways)


_SHORT = 100  # bytes of a text that the pattern itself takes; `_scanned` takes longer ones
_LONG_TEXT = {ord("X"): 4, 0x8C: 1}  # opcode: bytes of the length
_FIXED = b"KqhMJrjG\x95\x80\x8a"  # opcodes that a cut may leave without what they read
_STOP, _FRAME, _FRAME_BYTES = ord("."), 0x95, 8
_AS_LIST = b"Q"  # BINPERSID, which no plain pickle has: calls `_Values.persistent_load`
_ROW, _ROWS = b"}(", b"J%bQ"


@cache
def _plain() -> re.Pattern[bytes]:
    """Return the pattern of opcodes, with what they read from the file: values, memory, containers of values.

    It ends with one that makes a tuple of values, its group, if one comes, and before what may be a row. An
    index into the memory is below 2^22, because the unpickler reserves room for all up to it.
    """
    return re.compile(
    rb"(?:[()\]Nadelsu\x88\x89\x94]|}(?!\()"
    + rb"|[Kqh].|M..|J....|[rj]..[\x00-\x3f]\x00|G.{8}|\x80[\x02-\x05]"
    + rb"|\x8a(?:" + _lengths(1, 10) + rb")|X(?:" + _lengths(4, _SHORT) + rb")|\x8c(?:" + _lengths(1, _SHORT)
    + rb")){0,5000}([t\x85\x86\x87])?",
    re.DOTALL,
)  # fmt: skip


class _Values(pickle.Unpickler):
    """Unpickles plain values; the scan has refused all else before, and so does this."""

    def __init__(self) -> None:
        self._program = io.BytesIO()
        super().__init__(io.BufferedReader(self._program))

    def find_class(self, module: str, name: str) -> Any:
        """Refuse."""
        raise pickle.UnpicklingError(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        """Return a pair of texts as it is, any other tuple as a list, a number as the place of rows."""
        if type(pid) is int:
            return RowsAt(pid)
        return pid if len(pid) == 2 and type(pid[0]) is type(pid[1]) is str else list(pid)

    def value_of(self, program: bytes) -> Any:
        """Return the value of a program, which knows what those before it have remembered."""
        self._program.seek(0)
        self._program.truncate()
        self._program.write(program)
        self._program.seek(0)
        return self.load()


def unpickled(
    path: Path, data: bytes, repairs: list[str], library: CDLL | None
) -> tuple[Any, list[PickledRows]]:
    """Return the value of a plain pickle, or what is whole of one that was cut; TraceError for others.

    With it come the rows whose places are in the value; `library` as of `rows_at`.
    """
    rows: list[PickledRows] = []
    program, is_whole = _scanned(path, data, rows, library)
    if is_whole:
        load = partial(_value, path, _Values().value_of)
        for one in rows:
            one.load = load
        return load(program), rows
    value = _value(path, _interpreted, _scanned(path, data, None, None)[0])
    repairs.append("cut off: entries after the cut are missing")
    return value, []


def _value(path: Path, value_of: Callable[[bytes], Any], program: bytes) -> Any:
    try:
        return value_of(program)
    except Exception as error:  # whatever a damaged program does to the stack
        raise TraceError(f"{path}: a damaged pickle ({type(error).__name__})") from error


def _scanned(
    path: Path, data: bytes, rows: list[PickledRows] | None, library: CDLL | None
) -> tuple[bytes, bool]:
    """Return the program that makes lists of tuples, as far as it goes, and whether that is to a STOP.

    Else it is cut, in or before an opcode. It has no frames, whose lengths would not be right any more, and
    no rows, which are added to `rows`, if any are given.
    """
    pieces: list[bytes] = []
    plain, at, begin = _plain(), 0, 0
    while at < len(data):
        match = plain.match(data, at)
        if match is not None and match.end() > at:
            at = match.end()
            if match.lastindex:
                pieces += (data[begin:at], _AS_LIST)
                begin = at
            continue
        if data.startswith(_ROW, at):
            if rows is not None and (found := rows_at(data, at, len(rows), library)):
                pieces += (data[begin:at], _ROWS % len(rows).to_bytes(4, "little"))
                rows.append(found)
                at = begin = found.end
            else:
                at += len(_ROW)
            continue
        opcode = data[at]
        if opcode == _FRAME and len(data) - at > _FRAME_BYTES:
            pieces.append(data[begin:at])
            at = begin = at + 1 + _FRAME_BYTES
            continue
        if opcode == _STOP:
            return b"".join((*pieces, data[begin : at + 1])), True
        n_bytes = _LONG_TEXT.get(opcode, 0)
        after = at + 1 + n_bytes + int.from_bytes(data[at + 1 : at + 1 + n_bytes], "little")
        if n_bytes and after <= len(data):
            at = after
        elif n_bytes or (opcode in _FIXED and len(data) - at < 10):
            break
        else:
            raise TraceError(
                f"{path}: not a dump of a flight recorder: byte {at:,} of this pickle (0x{opcode:02x}) is "
                "not the opcode of a plain value; nothing of it was executed"
            )
    return b"".join((*pieces, data[begin:at])), False


#: Values that an opcode takes; the others take all since a mark.
_TAKES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "SETITEM": 2, "APPEND": 1}
_MAKES: dict[str, type] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": list}


def _interpreted(program: bytes) -> Any:
    """Return the value of a cut program, as far as it goes: slowly, opcode by opcode. Tuples become lists."""
    import pickletools

    stack: list[Any] = []
    marks: list[int] = []
    memory: dict[Any, Any] = {}

    def put(at: int) -> None:
        container, values = stack[at - 1], stack[at:]
        del stack[at:]
        if isinstance(container, dict):
            container.update(zip(values[::2], values[1::2], strict=False))
        elif isinstance(container, list):
            container += values

    for opcode, value, _ in pickletools.genops(program + b"."):
        name = opcode.name
        if name == "MARK":
            marks.append(len(stack))
        elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            memory[len(memory) if name == "MEMOIZE" else value] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memory[value])
        elif name in _MAKES:
            stack.append(_MAKES[name]())
        elif name in _TAKES or name in ("TUPLE", "LIST", "DICT", "SETITEMS", "APPENDS"):
            at = len(stack) - _TAKES[name] if name in _TAKES else marks.pop()
            if name.startswith(("TUPLE", "LIST", "DICT")):
                stack.insert(at, {} if name == "DICT" else [])
                at += 1
            put(at)
        elif name not in ("PROTO", "BINPERSID", "STOP"):
            stack.append({"NEWTRUE": True, "NEWFALSE": False}.get(name, value))
    for at in (*reversed(marks), 1):  # what is open where the program was cut
        put(at)
    return stack[0]
