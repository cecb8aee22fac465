"""Pickles of plain values, read without executing anything.

A pickle is a program. Before any of it runs, a scan walks it opcode by opcode (`_plain`): what builds
numbers, texts, lists, tuples and dictionaries is known, and anything else (GLOBAL, REDUCE, BUILD, …) is
refused. So nothing is imported or called, and no opcode reserves more than 64 MiB beyond the file.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import pickle
import re
from functools import cache
from pathlib import Path
from typing import Any

from errors import TraceError


def _lengths(n_bytes: int, most: int) -> bytes:
    """Return a pattern for a length in `n_bytes` bytes, below `most`, and as many bytes after it."""
    ways = (re.escape(n.to_bytes(n_bytes, "little")) + b"." * (n > 0) + b"{%d}" % n * (n > 1)
            for n in range(most))  # fmt: skip
    return b"|".join(ways)


_SHORT = 100  # bytes of a text that the pattern itself takes; `_scanned` takes longer ones
_LONG_TEXT = {ord("X"): 4, 0x8C: 1}  # opcode: bytes of the length
_FIXED = b"KqhMJrjG\x95\x80\x8a"  # opcodes that a cut may leave without what they read
_STOP = ord(".")
_TUPLES = (b"t", b"\x85", b"\x86", b"\x87")  # the opcodes that put values into a tuple
_MOST_NESTED = 10_000  # tuples in one another: the key of a dictionary that were deeper would end the process


@cache
def _plain() -> re.Pattern[bytes]:
    """Return the pattern of opcodes, with what they read from the file: values, memory, containers of values.

    An index into the memory is below 2^22, because the unpickler reserves room for all up to it.
    """
    return re.compile(
    rb"(?:[()\]}Nadelstu\x85-\x89\x94]"
    + rb"|[Kqh].|M..|J....|[rj]..[\x00-\x3f]\x00|G.{8}|\x95.{8}|\x80[\x02-\x05]"
    + rb"|\x8a(?:" + _lengths(1, 10) + rb")|X(?:" + _lengths(4, _SHORT) + rb")|\x8c(?:" + _lengths(1, _SHORT)
    + rb")){0,50000}",
    re.DOTALL,
)  # fmt: skip


class _Values(pickle.Unpickler):
    """Unpickles plain values; the scan has refused all else before, and so does this."""

    def find_class(self, module: str, name: str) -> Any:
        """Refuse."""
        raise pickle.UnpicklingError(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        """Refuse."""
        raise pickle.UnpicklingError("a persistent id")


def unpickled(path: Path, data: bytes, repairs: list[str]) -> Any:
    """Return the value of a plain pickle, or what is whole of one that was cut; TraceError for others."""
    end, is_whole = _scanned(path, data)
    try:
        program = data[: end + 1] if is_whole else _closed_pickle(data, end)
        is_deep = sum(map(program.count, _TUPLES)) > _MOST_NESTED and _deepest(program) > _MOST_NESTED
        value = None if is_deep else _Values(io.BytesIO(program)).load()
    except Exception as error:  # whatever a damaged program does to the stack
        raise TraceError(f"{path}: a damaged pickle ({type(error).__name__})") from error
    if is_deep:
        raise TraceError(f"{path}: not a dump of a flight recorder: tuples in tuples, too deep to be read")
    if not is_whole:
        repairs.append("cut off: entries after the cut are missing")
    return value


def _scanned(path: Path, data: bytes) -> tuple[int, bool]:
    """Return where the program stops, and whether by STOP; else it is cut there, in or before an opcode."""
    at = 0
    while at < len(data):
        match = _plain().match(data, at)
        if match is not None and match.end() > at:
            at = match.end()
            continue
        opcode = data[at]
        if opcode == _STOP:
            return at, True
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
    return at, False


def _deepest(program: bytes) -> int:
    """Return how many tuples lie in one another at most; what is in a list or a dictionary does not count."""
    import pickletools

    stack: list[int] = []  # of each value the depth
    marks: list[int] = []  # where in the stack they lie
    memory: dict[Any, int] = {}
    deepest = 0
    with contextlib.suppress(
        ValueError, IndexError, KeyError
    ):  # a damaged program; the unpickler will say so
        for opcode, value, _ in pickletools.genops(program):
            name = opcode.name
            if name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
                memory[len(memory) if name == "MEMOIZE" else value] = stack[-1]
            elif name in ("BINGET", "LONG_BINGET"):
                stack.append(memory[value])
            elif name in ("TUPLE", "LIST", "DICT", "SETITEMS", "APPENDS"):
                at = marks.pop()
                inside = max(stack[at:], default=0) + 1
                del stack[at:]
                if name[-1] != "S":
                    stack.append(inside if name == "TUPLE" else 0)
            elif name in ("TUPLE1", "TUPLE2", "TUPLE3", "SETITEM", "APPEND"):
                n = {"SETITEM": 2, "APPEND": 1}.get(name) or int(name[-1])
                inside = max(stack[-n:]) + 1
                del stack[-n:]
                if name[-1].isdigit():
                    stack.append(inside)
            elif name == "MARK":
                marks.append(len(stack))
            elif name not in ("PROTO", "FRAME", "STOP"):
                stack.append(0)
            deepest = max(deepest, stack[-1] if stack else 0)
    return deepest


def _closed_pickle(data: bytes, end: int) -> bytes:
    """Return a program that was cut at `end`, with what is open there closed.

    The stack is followed as letters: ``(`` a mark, ``d`` a dictionary, ``l`` a list, ``v`` any other value.
    """
    import pickletools

    stack: list[str] = []
    after = {"EMPTY_DICT": "d", "EMPTY_LIST": "l", "MARK": "("}
    program: list[bytes] = []
    positions = [(opcode.name, at) for opcode, _, at in pickletools.genops(data[:end] + b".")]
    for (name, at), (_, until) in itertools.pairwise(positions):
        if name != "FRAME":  # its length is that of the whole program
            program.append(data[at:until])
        if name in after:
            stack.append(after[name])
        elif name in ("SETITEMS", "APPENDS", "TUPLE", "LIST", "DICT"):
            while stack and stack.pop() != "(":
                pass
            if name in ("TUPLE", "LIST", "DICT"):
                stack.append("v")
        elif name in ("SETITEM", "APPEND", "TUPLE1", "TUPLE2", "TUPLE3"):
            n = {"SETITEM": 2, "APPEND": 1}.get(name, int(name[-1]) if name[-1].isdigit() else 0)
            del stack[len(stack) - n :]
            if name.startswith("TUPLE"):
                stack.append("v")
        elif name not in ("PROTO", "FRAME", "BINPUT", "LONG_BINPUT", "MEMOIZE", "STOP"):
            stack.append("v")
    marks = [at for at, kind in enumerate(stack) if kind == "("]
    while len(stack) > 1:
        if marks:
            at = marks.pop()
            below, above = stack[at - 1] if at else "v", len(stack) - at - 1
            if below == "d":
                program.append(b"0" * (above % 2) + b"u")
            else:
                program.append(b"e" if below == "l" else b"t")
            del stack[at:]
            stack += ["v"] * (below not in ("d", "l"))
        elif stack[-2] == "l":
            program.append(b"a")
            stack.pop()
        elif len(stack) > 2 and stack[-3] == "d":
            program.append(b"s")
            del stack[-2:]
        else:
            program.append(b"0")
            stack.pop()
    return b"".join((*program, b"."))
