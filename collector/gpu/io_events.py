"""`io.json` and `step.json`: loads of input data and calls of the trainer, as the wrappers saw them."""

from __future__ import annotations

from collections.abc import Sequence

from collector.gpu.parts import Event, Part, complete
from errors import counted
from opname import OpName


def collect_loads(events: Sequence[Event]) -> Part:
    """Return the ``I/O`` events of `io.json`, as they are."""
    return _of_category(events, "I/O")


def collect_trainer_steps(events: Sequence[Event]) -> Part:
    """Return the ``STEP`` events of `step.json`: how long each call of the trainer's step took."""
    return _of_category(events, "STEP")


def _of_category(events: Sequence[Event], cat: str) -> Part:
    kept, warnings = complete(events)
    chosen = [event for event in kept if OpName.parse(str(event["name"])).cat == cat]
    if len(chosen) < len(kept):
        warnings.append(f"{counted(len(kept) - len(chosen), 'event')} ignored: no {cat}")
    return Part(chosen, warnings)
