"""The purposes for which args of events are decoded."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum


class Need(Enum):
    """A use of the args of events: a reading names its needs, a system the keys for each."""

    ALWAYS = "recognising a system, telling its ranks apart, the roles of slices: under every option"
    STEPS = "where steps begin, and their numbers"
    EDGES = "what waits for what"
    SYNC = "which slices of several ranks are one operation"
    SIZES = "how much a collective moves"
    ORIGIN = "which operator, module or annotation the work of a device belongs to"
    SHAPES = "the shape of an operation's data"
    ALL = "everything: all args are kept, whatever a system declares"


_ARGS = "args."


def argument(field: str | None) -> str | None:
    """Return the key of the events' args that ``args.KEY`` names; None for any other field, or none."""
    return field.removeprefix(_ARGS) if field is not None and field.startswith(_ARGS) else None


def integers(values: Iterable[object]) -> list[int] | None:
    """Return values as integers from 0 on, written as such or as text; None if one is something else."""
    texts = [
        str(value) if isinstance(value, int | str) and not isinstance(value, bool) else "" for value in values
    ]
    return [int(text) for text in texts] if all(t.isdecimal() and len(t) <= 9 for t in texts) else None
