"""JSON for scripts: one document with the keys that the options promise."""

from __future__ import annotations

import itertools
import json
import math
from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any, TextIO

from result import LazySequence, Result

_INDENT = 2
_PIECE = 1 << 18  # characters that are made at a time


def write(result: Result, stream: TextIO, args: Namespace) -> None:
    """Print the document, ``option`` and ``headline`` first, ``repairs`` last; NaN and infinity as null."""
    headline = result.headline or result.title
    document = {
        "option": result.option,
        "headline": headline,
        **result.document,
        "repairs": list(result.repairs),
    }
    between = "{\n"
    for key, value in document.items():
        stream.write(between)
        stream.writelines(_member(key, value, 1))
        between = ",\n"
    stream.write("\n}\n")


def _member(key: str, value: Any, depth: int) -> Iterator[str]:
    """Yield the text of a member of an object that is `depth` levels within the document."""
    yield " " * _INDENT * depth + encode({key: 0}).decode()[1:-2] + " "
    yield from _text(value, depth)


def _text(value: Any, depth: int) -> Iterator[str]:
    """Yield the text of a value; of items that are made one by one, some at a time."""
    line = "\n" + " " * _INDENT * depth
    if isinstance(value, LazySequence) and value:
        yield "["
        items = iter(value)
        first = next(items)
        items = itertools.chain([first], items)
        yield from _items_in_turn(items, depth) if _is_made(first) else _items_together(items, line)
        yield line + "]"
    elif _is_made(value):
        between = "{\n"
        for key, member in value.items():
            yield between
            yield from _member(key, member, depth + 1)
            between = ",\n"
        yield line + "}"
    else:
        yield encode(value, indent=_INDENT).decode().replace("\n", line)


def _is_made(value: Any) -> bool:
    """Whether it is an object with members that are made one by one."""
    return isinstance(value, dict) and any(isinstance(member, LazySequence) for member in value.values())


def _items_in_turn(items: Iterator[Any], depth: int) -> Iterator[str]:
    between = "\n" + " " * _INDENT * (depth + 1)
    for item in items:
        yield between
        yield from _text(item, depth + 1)
        between = ",\n" + " " * _INDENT * (depth + 1)


def _items_together(items: Iterator[Any], line: str) -> Iterator[str]:
    n_items, between = 1, ""
    while some := list(itertools.islice(items, n_items)):
        text = encode(some, indent=_INDENT).decode()[1:-2]
        yield between + text.replace("\n", line)
        n_items = max(1, _PIECE * len(some) // len(text))
        between = ","


def encode(document: Any, indent: int = 0) -> bytes:
    """Return `document` as JSON in UTF-8; numpy's scalars and arrays, and paths, are understood.

    The fast encoder refuses lone surrogates, integers over 64 bits and some keys; the standard
    library's takes them.
    """
    import msgspec

    try:
        encoded = msgspec.json.encode(document, enc_hook=_plain)
        return msgspec.json.format(encoded, indent=indent) if indent else encoded
    except (ValueError, OverflowError, TypeError):
        return json.dumps(_all_plain(document), indent=indent or None, allow_nan=False).encode()


def _plain(value: Any) -> Any:
    """Return the JSON value of what JSON does not know: numpy's scalars and arrays, paths, notes."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "__fspath__") or isinstance(value, str):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def _all_plain(value: Any) -> Any:
    """Return `value` made of what the standard library's encoder takes, all the way down."""
    if isinstance(value, Mapping):
        return {str(key): _all_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_all_plain(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int)):
        return value
    return _all_plain(_plain(value))
