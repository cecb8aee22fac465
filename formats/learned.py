"""An event type made for one file: it knows the names, categories and tracks that the file has shown.

Most strings of a trace recur thousands of times. A type that lists them lets the decoder hand out one
object for all occurrences instead of a new string each, and events that are no slices need not be
decoded at all. An event with a new string does not fit, so nothing is ever taken for something else.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from formats.event import Scalar

_FIELDS = ("name", "cat", "pid", "tid")
_PAIRED = {"B", "E"}
_MOST_LITERALS = 1 << 14  # a type that lists more strings gains nothing


@dataclass(frozen=True, slots=True)
class LearnedType:
    """`union` decodes an event of the file: an X event as `slice`, any other as the type of its phase."""

    union: Any
    slice: type[Any]
    phase_of: Mapping[type[Any], str]


def learn(keys: Iterable[Sequence[Any]], times: type[Any], *, with_names: bool) -> LearnedType | None:
    """Return the type of a file whose events had these (phase, name, category, pid, tid) so far.

    Parameters
    ----------
    times : a type whose `ts` and `dur` have the types and defaults to use
    with_names : False leaves names free, for files in which ever new ones appear

    Returns
    -------
    LearnedType or None
        None where B and E must be paired, or no X event was seen.
    """
    known = list(keys)
    phases = {key[0] for key in known}
    if "X" not in phases or phases & _PAIRED or not all(isinstance(phase, str) for phase in phases):
        return None
    seen = [[key[i] for key in known if key[0] == "X"] for i in range(1, 5)]
    fields: list[Any] = [
        (name, Scalar if name == "name" and not with_names else _type_of(values), None)
        for name, values in zip(_FIELDS, seen, strict=True)
    ]
    fields += [(name, times.__annotations__[name], getattr(times(), name)) for name in ("ts", "dur")]
    slice_type = msgspec.defstruct("Slice", fields, tag="X", tag_field="ph", gc=False)
    others = {msgspec.defstruct("Other", [], tag=p, tag_field="ph", gc=False): p for p in phases - {"X"}}
    return LearnedType(functools.reduce(operator.or_, others, slice_type), slice_type, others)


def _type_of(values: Sequence[Any]) -> Any:
    """Return a type for a field that had `values`: the distinct strings, any integer, or any scalar."""
    distinct = set(values)
    if len(distinct) <= _MOST_LITERALS and all(v is None or isinstance(v, str) for v in distinct):
        return Literal[tuple(distinct)]
    if all(type(value) is int for value in distinct):
        return int | None
    return Scalar
