"""JSON for scripts: one document with the keys that the options promise."""

from __future__ import annotations

import json
import math
from argparse import Namespace
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from analyzer.base.errors import shortened
from analyzer.report.result import Command, Result

_INDENT = 2
#: With `--brief`: most bytes, keys of an object, and characters of the headline or a command.
_BRIEF, _KEYS, _WHOLE = 4_000, 24, 400
_MOST, _CHARACTERS = 12, 25  # items of a list, and characters of a text for each of these
_ALWAYS = {"findings": 3, "skipped": 8}


def write(result: Result, stream: TextIO, args: Namespace) -> None:
    """Print the document, ``option`` and ``headline`` first, ``repairs`` last; NaN and infinity as null."""
    head = {"option": result.option, "headline": result.headline or result.title}
    document = {**head, **result.document, "repairs": list(result.repairs)}
    if args.brief:
        notes = {"further": result.further, "notes": result.sentences}
        stream.write(_brief({**head, **notes, **document}).decode() + "\n")
    else:
        stream.write(encode(document, indent=_INDENT).decode() + "\n")


def _brief(document: Mapping[str, Any]) -> bytes:
    """Cut a document to the longest lists and texts that fit; ``left_out`` counts the objects it lacks."""
    for most in range(_MOST, -1, -1):
        left_out: Counter[str] = Counter()
        short = {key: _cut(value, key, most, left_out) for key, value in document.items()}
        encoded = encode({**short, "left_out": +left_out})
        if len(encoded) < _BRIEF:
            break
    return encoded


def _cut(value: Any, key: str, most: int, left_out: Counter[str]) -> Any:
    """Cut lists and texts; a list of names or numbers says itself how many are cut."""
    if isinstance(value, Command):
        return value if len(value) <= _WHOLE else None
    if isinstance(value, str):
        return shortened(value, _WHOLE if key == "headline" else _CHARACTERS * (most + 1))
    if isinstance(value, Mapping):
        left_out[key] += max(len(value) - _KEYS, 0)
        names = list(value)[:_KEYS]
        return {name: _cut(value[name], f"{key}.{name}", most, left_out) for name in names}
    if isinstance(value, Sequence):
        is_plain = not any(isinstance(item, Mapping) for item in value[:1])
        n_items = (most + 2) // 4 + 2 * is_plain if "." in key else most and _ALWAYS.get(key, most)
        items = [_cut(item, key, most, left_out) for item in value[: n_items + is_plain]]
        more = len(value) - len(items)
        if more and is_plain:
            return [*items[:-1], f"… {more + 1} more"]
        left_out[key] += more
        return items
    return float(f"{value:.6g}") if isinstance(value, float) else value


def encode(document: Any, indent: int = 0) -> bytes:
    """Encode `document` as JSON in UTF-8, with numpy's scalars and arrays, and paths.

    The fast encoder refuses lone surrogates, integers over 64 bits and some keys; the standard library
    encodes them.
    """
    import msgspec

    try:
        encoded = msgspec.json.encode(document, enc_hook=_plain)
        return msgspec.json.format(encoded, indent=indent) if indent else encoded
    except (ValueError, OverflowError, TypeError):
        return json.dumps(_all_plain(document), indent=indent or None, allow_nan=False).encode()


def _plain(value: Any) -> Any:
    """Convert values unknown to JSON: numpy's scalars and arrays, paths, notes."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "__fspath__") or isinstance(value, str):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def _all_plain(value: Any) -> Any:
    """Convert `value` to types of the standard library's encoder, at every depth."""
    if isinstance(value, Mapping):
        return {str(key): _all_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_all_plain(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int)):
        return value
    return _all_plain(_plain(value))
