"""An event type made for one file: it knows the names, categories and tracks that the file has shown.

Most strings of a trace recur thousands of times. A type that lists them lets the decoder hand out one
object for all occurrences instead of a new string each, and events that are not slices need not be
decoded at all. An event with a new string does not fit, so nothing is ever taken for something else.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

from formats.event import INT_TIMES, KEY, NO_TIME, Scalar

_PAIRED = {"B", "E"}
_MOST_LITERALS = 1 << 14  # a type that lists more strings gains nothing


class LearnedType(Struct, frozen=True):
    """`union` decodes an event of the file: an X event as `slice`, any other as the type of its phase."""

    union: Any
    slice: type[Any]
    phase_of: Mapping[type[Any], str]


def learn(keys: Iterable[Sequence[Any]], times: type[Any], *, with_names: bool) -> LearnedType | None:
    """Return the type of a file whose events had these (phase, name, category, pid, tid) so far.

    `ts` and `dur` are as in the type `times`; names are free unless `with_names`, for files in which ever
    new ones appear. None where B and E must be paired, or no X event was seen.
    """
    known = list(keys)
    phases = {key[0] for key in known}
    if "X" not in phases or phases & _PAIRED or not all(isinstance(phase, str) for phase in phases):
        return None
    seen = dict(zip(KEY, map(set, zip(*(key for key in known if key[0] == "X"), strict=True)), strict=True))
    types = {name: literal_type(values, _MOST_LITERALS) for name, values in seen.items() if name != "ph"}
    if not with_names:
        types["name"] = Scalar
    time = (int, NO_TIME) if times in INT_TIMES else (float, math.nan)
    fields: list[Any] = [*((name, kind, None) for name, kind in types.items()), ("ts", *time), ("dur", *time)]
    slice_type = msgspec.defstruct("Slice", fields, tag="X", tag_field="ph", gc=False)
    others = {msgspec.defstruct("Other", [], tag=p, tag_field="ph", gc=False): p for p in phases - {"X"}}
    return LearnedType(functools.reduce(operator.or_, others, slice_type), slice_type, others)


def literal_type(values: Collection[Any], most: int) -> Any:
    """Return the type of a member that had these distinct values: up to `most` strings, integers, or any."""
    kinds = set(map(type, values)) - {type(None)}
    if kinds <= {str}:
        return Literal[tuple(values)] if len(values) <= most else str | None
    return int | None if kinds == {int} else Scalar
