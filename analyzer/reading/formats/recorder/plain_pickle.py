"""Read pickles of plain values without executing anything.

A pickle is a program. A scan walks all of it before any of it runs (`_plain`): opcodes that build numbers,
texts, lists, tuples and dictionaries are known, any other (GLOBAL, REDUCE, BUILD, …) is refused. Nothing is
imported or called, and no opcode reserves more than 64 MiB beyond the file.

Tuples become lists, except pairs of texts (the name of a group) or small integers: no file can nest them in a
key then. The hash of thirty tuples, each with the one before twice, takes minutes in which Python hears no
signal. Long lists are written in batches; `take` may take each away as soon as it is read.
"""

from __future__ import annotations

import gc
import io
import pickle
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from analyzer.base.errors import TraceError

_LENGTH_BYTES = {ord("X"): 4, 0x8C: 1}  # of the opcodes of texts
_FIXED = b"KqhMJrjG\x95\x80\x8a"  # opcodes whose operand a cut may remove
_STOP, _FRAME, _FRAME_BYTES = ord("."), 0x95, 8
_MARK = b"Q"  # BINPERSID, which no plain pickle has: calls `persistent_load`
_LEAST_BITS = 22  # of an index into the memo
_AHEAD = 1 << 17  # bytes


@cache
def _plain(memo_bits: int) -> re.Pattern[bytes]:
    """Compile the pattern of a run of opcodes with their operands, up to a tuple or a batch of dictionaries.

    An index stored in the memo has at most `memo_bits`, because the unpickler reserves room for all indices
    up to it. Frequent opcodes come first.
    """
    sized = [re.escape(bytes([n])) + b".{%d}" % n for n in range(32)]
    integers, texts = b"|".join(sized[:10]), b"|".join(sized)
    third, last = (
        re.escape(bytes([(1 << bits) - 1])) for bits in (min(memo_bits - 16, 8), max(memo_bits - 24, 0))
    )
    return re.compile(
        rb"(?:j....(?:j....)*|h.|[()\]}Nadlsu\x88\x89\x94]+|K.(?:K.\x86)?|\x8a(?:" + integers + rb")|\x8c(?:"
        + texts + rb")|(?<!u)e|q.|M..|J....|r..[\0-" + third + rb"][\0-" + last
        + rb"]|G.{8}|\x80[\x02-\x05]){0,5000}([t\x85\x86\x87]|(?<=u)e)?",
        re.DOTALL,
    )  # fmt: skip


class _Plain:
    """The rules for names, tuples and batches."""

    take: Callable[[list[Any]], object] = id  # gets a list after each batch of dictionaries

    def find_class(self, module: str, name: str) -> Any:
        """Refuse."""
        raise pickle.UnpicklingError(f"{module}.{name}")

    def persistent_load(self, value: Any) -> Any:
        """Keep a pair of texts, and turn any other tuple into a list; hand a list over."""
        if type(value) is list:
            self.take(value)
            return value
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


def unpickled(
    path: Path, data: bytearray, repairs: list[str], take: Callable[[list[Any]], object] = id
) -> Any:
    """Load a plain pickle, or the whole values of a cut one; TraceError for any other.

    `data` is emptied. `take` gets each list of dictionaries as it grows, and may empty it.
    """
    program, is_whole = _scanned(path, data)
    data.clear()
    if not is_whole:
        repairs.append("cut off: entries after the cut are missing")
    # the unpickler reads ahead only where it can peek
    unpickler = (_Unpickler if is_whole else _CutUnpickler)(io.BufferedReader(program, _AHEAD))
    unpickler.take = take
    gc.disable()  # there may be millions of values, and none is garbage
    try:
        return unpickler.load()
    except Exception as error:  # a damaged program may do anything to the stack
        raise TraceError(f"{path}: a damaged pickle ({type(error).__name__})") from error
    finally:
        gc.enable()


def _scanned(path: Path, data: bytearray) -> tuple[io.BytesIO, bool]:
    """Rewrite the program to mark tuples and batches, up to its STOP (True) or the cut opcode (False).

    Frames are removed, because their lengths change.
    """
    program = io.BytesIO()
    plain = _plain(max(_LEAST_BITS, (len(data) // 4).bit_length()))
    position = begin = 0
    is_whole = False
    while position < len(data) and not is_whole:
        match = plain.match(data, position)
        if match is not None and match.end() > position:
            position = match.end()
            if match.lastindex:
                program.write(data[begin:position] + _MARK)
                begin = position
            continue
        opcode, left = data[position], len(data) - position
        n_bytes = _LENGTH_BYTES.get(opcode, 0)
        n_text = int.from_bytes(data[position + 1 : position + 1 + n_bytes], "little")
        if n_bytes and left > n_bytes + n_text:
            position += 1 + n_bytes + n_text
        elif opcode == _FRAME and left > _FRAME_BYTES:
            program.write(data[begin:position])
            position = begin = position + 1 + _FRAME_BYTES
        elif opcode == _STOP:
            position, is_whole = position + 1, True
        elif n_bytes or (opcode in _FIXED and left < 10):
            break
        else:
            raise TraceError(
                f"{path}: byte {position:,} of this pickle (0x{opcode:02x}) is not the opcode of a plain "
                "value, as of the dump of a flight recorder or an allocator; nothing of it was executed"
            )
    program.write(data[begin:position])
    program.seek(0)
    return program, is_whole
