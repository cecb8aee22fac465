"""What every source gives: a part of the final trace, and the remarks of the one who gathered it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from errors import counted
from opname import OpName

Event = Mapping[str, Any]  # one event of a chrome trace, as an object
PartName = Literal["io", "step", "comm", "operator"]

#: The parts in the order in which events of one instant stand in the final trace.
PARTS: tuple[PartName, ...] = ("io", "step", "comm", "operator")


@dataclass(frozen=True, slots=True)
class Part:
    """The complete events that one source contributes.

    `warnings` are about its input (shown on standard error), `notes` about what was made of it.
    """

    events: Sequence[Event] = ()
    warnings: Sequence[str] = ()
    notes: Sequence[str] = ()


def part_of(event: Event) -> PartName | None:
    """Return which part of a final trace `event` belongs to; None for foreign ones.

    ``STEP`` events that were copied from `step.json` carry the category STEP, those made from the
    operators are of theirs.
    """
    op = OpName.parse(str(event.get("name", "")))
    if op.is_comm:
        return "comm"
    if op.cat == "I/O":
        return "io"
    if op.cat == "STEP" and event.get("cat") == "STEP":
        return "step"
    return "operator" if op.cat is not None else None


def complete(events: Iterable[Event]) -> tuple[list[Event], list[str]]:
    """Return the X events that have a name and times, and a warning if others were there."""
    candidates = [event for event in events if event.get("ph") != "M"]
    kept = [event for event in candidates if event.get("ph") == "X" and _is_named_and_timed(event)]
    n_dropped = len(candidates) - len(kept)
    warning = f"{counted(n_dropped, 'event')} left out: not complete (X with ts and dur)"
    return kept, [warning] if n_dropped else []


def of_category(events: Iterable[Event], cat: str) -> Part:
    """Return the complete events of one category, as they are."""
    kept, warnings = complete(events)
    chosen = [event for event in kept if OpName.parse(str(event["name"])).cat == cat]
    if len(chosen) < len(kept):
        warnings.append(f"{counted(len(kept) - len(chosen), 'event')} ignored: no {cat}")
    return Part(chosen, warnings)


def count_by_cat(events: Iterable[Event]) -> dict[str, int]:
    """Return how many events there are of each category of operations, by first appearance.

    Names outside BytePS's grammar count under the category that the event itself gives.
    """
    return dict(Counter(OpName.parse(str(e.get("name"))).cat or str(e.get("cat", "")) for e in events))


def listing(counts: Mapping[str, int], limit: int = 6) -> str:
    """Return ``a 12, b 3, and 2 more``: the most frequent names and how often each occurs."""
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    words = [f"{name} {n}" for name, n in ranked[:limit]]
    return ", ".join(words) + (f", and {len(ranked) - limit} more" if len(ranked) > limit else "")


def time_of(event: Event, key: str = "ts") -> float | None:
    """Return a time of an event in microseconds; None where it has none."""
    value = event.get(key)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _is_named_and_timed(event: Event) -> bool:
    return isinstance(event.get("name"), str) and None not in (time_of(event), time_of(event, "dur"))
