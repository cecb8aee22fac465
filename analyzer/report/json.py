"""JSON for scripts: one document with the keys that the options promise."""

from __future__ import annotations

import json
import math
from argparse import Namespace
from collections.abc import Mapping
from typing import Any, TextIO

from analyzer.report.result import Result

_INDENT = 2


def write(result: Result, stream: TextIO, args: Namespace) -> None:
    """Print the document, ``option`` and ``headline`` first, ``repairs`` last; NaN and infinity as null."""
    head = {"option": result.option, "headline": result.headline or result.title}
    document = {**head, **result.document, "repairs": list(result.repairs)}
    stream.write(encode(document, indent=_INDENT).decode() + "\n")


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
