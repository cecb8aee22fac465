"""The parts of a final trace: whose an event is, and those from BytePS's own files (io, step, comm)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from dialects.byteps.byteps_names import GradientNames, gradient_index
from errors import counted
from opname import OpName

Event = Mapping[str, Any]  # one event of a chrome trace, as an object
PartName = Literal["io", "step", "comm", "operator"]

#: The parts in the order in which events of one instant stand in the final trace.
PARTS: tuple[PartName, ...] = ("io", "step", "comm", "operator")


class TracePart(Struct, frozen=True):
    """The complete events that one source contributes."""

    events: Sequence[Event] = ()
    warnings: Sequence[str] = ()  # about the source
    notes: Sequence[str] = ()  # about what was made of it


def part_of(event: Event) -> PartName | None:
    """Return which part of a final trace `event` belongs to; None for foreign ones.

    ``STEP`` events from `step.json` carry the category STEP; the others were made from the operators.
    """
    op = OpName.parse(str(event.get("name", "")))
    if op.is_comm:
        return "comm"
    if op.cat == "STEP" and event.get("cat") == "STEP":
        return "step"
    return None if op.cat is None else "io" if op.cat == "I/O" else "operator"


def _complete(events: Iterable[Event]) -> tuple[list[Event], list[str]]:
    """Return the X events that have a name and times, and a warning if others were there."""
    candidates = [event for event in events if event.get("ph") != "M"]
    kept = [
        event
        for event in candidates
        if event.get("ph") == "X" and isinstance(event.get("name"), str)
        if None not in (time_of(event), time_of(event, "dur"))
    ]
    n_dropped = len(candidates) - len(kept)
    warning = f"{counted(n_dropped, 'event')} left out: not complete (X with ts and dur)"
    return kept, [warning] if n_dropped else []


def of_category(events: Iterable[Event], cat: str) -> TracePart:
    """Return the complete events of one category, as they are."""
    kept, warnings = _complete(events)
    chosen = [event for event in kept if OpName.parse(str(event["name"])).cat == cat]
    if len(chosen) < len(kept):
        warnings.append(f"{counted(len(kept) - len(chosen), 'event')} ignored: no {cat}")
    return TracePart(chosen, warnings)


def count_by_cat(events: Iterable[Event]) -> dict[str, int]:
    """Return how many events there are per category (of a foreign name: the event's own), as they appear."""
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


def collect_comm(
    events: Sequence[Event], names: GradientNames | None, inputs: Mapping[str, Sequence[str]]
) -> TracePart:
    """Return the events of `comm.json`, main tasks and the stages of their partitions, for the final trace.

    They get the parameters' names (without `names` BytePS's own stay) and their inputs in the DAG.
    """
    whole, warnings = _complete(events)
    comms = [(event, main) for event in whole if OpName.parse(main := _main(event)).is_comm]
    if len(comms) < len(whole):
        warnings.append(f"{counted(len(whole) - len(comms), 'event')} ignored: no Comm")
    renamed = [_renamed(event, main, names, inputs) for event, main in comms]
    warnings += _about_names({main for _, main in comms}, names)
    missing = Counter(main for main in map(_main, renamed) if inputs and main not in inputs)
    if missing:
        warnings.append(f"{len(missing)} tensor(s) not in the DAG, without inputs: {listing(missing)}")
    return TracePart(renamed, warnings)


def _renamed(
    event: Event, main: str, names: GradientNames | None, inputs: Mapping[str, Sequence[str]]
) -> Event:
    parameter = names.parameter(main.removeprefix("Comm.")) if names else None
    new = main if parameter is None else f"Comm.{parameter}"
    args: dict[str, Any] = {**_args(event), "name": new}
    args.update({f"input{i}": name for i, name in enumerate(inputs.get(new, ()))})
    stage = str(event["name"]).removeprefix(main)
    return {**event, "name": new + stage, "pid": new, "cat": event.get("cat", "Comm"), "args": args}


def _main(event: Event) -> str:
    """Return the name of the whole communication that a main task or sub-task belongs to."""
    name, pid = str(event["name"]), event.get("pid")
    for main in (_args(event).get("name"), pid):
        if isinstance(main, str) and (name == main or name.startswith(f"{main}.")):
            return main
    return str(OpName.parse(name).main)


def _args(event: Event) -> Mapping[str, Any]:
    args = event.get("args")
    return args if isinstance(args, Mapping) else {}


def _about_names(tensors: Collection[str], names: GradientNames | None) -> list[str]:
    indices = {
        index
        for name in tensors
        if (index := gradient_index(name.removeprefix("Comm."))) is not None
        and (names is None or index >= len(names.names))
    }
    if not indices:
        return []
    if names is None:
        return [f"no list of gradient names: {len(indices)} gradients keep BytePS's names"]
    return [
        f"{names.path.name} has {len(names.names)} names, but there is gradient_{max(indices)}: "
        f"{len(indices)} gradients keep BytePS's names"
    ]
