"""The purposes for which args of events are decoded."""

from __future__ import annotations

from enum import Enum


class Need(Enum):
    """A use of the args of events: a reading names its needs, a system the keys for each."""

    ALWAYS = "recognising a system, telling its ranks apart, the roles of slices: under every option"
    STEPS = "where steps begin, and their numbers"
    EDGES = "what waits for what"
    SYNC = "which slices of several ranks are one operation"
    SIZES = "how much a collective moves"
    SHAPES = "the shape of an operation's data"
    ALL = "everything: all args are kept, whatever a system declares"
