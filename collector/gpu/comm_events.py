"""`comm.json`: BytePS's communication, with the parameters' names and what each waits for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from collector.gpu.parts import Event, Part, complete, listing
from dialects.byteps.gradient_names import GradientNames, gradient_index
from errors import counted
from opname import OpName


def collect_comm(
    events: Sequence[Event], names: GradientNames | None, inputs: Mapping[str, Sequence[str]]
) -> Part:
    """Return the communication events as the final trace has them.

    Parameters
    ----------
    events : the events of `comm.json`: main tasks (tid ``total``) and the stages of their partitions
    names : the gradients' names; without them BytePS's own names stay
    inputs : the nodes of the DAG and what each depends on
    """
    whole, warnings = complete(events)
    comms = [event for event in whole if OpName.parse(_main(event)).is_comm]
    if len(comms) < len(whole):
        warnings.append(f"{counted(len(whole) - len(comms), 'event')} ignored: no Comm")
    renamed = [_renamed(event, names, inputs) for event in comms]
    warnings += _about_names({_main(event) for event in comms}, names)
    missing = Counter(main for main in map(_main, renamed) if inputs and main not in inputs)
    if missing:
        warnings.append(f"{len(missing)} tensor(s) not in the DAG, without inputs: {listing(missing)}")
    return Part(renamed, warnings)


def _renamed(event: Event, names: GradientNames | None, inputs: Mapping[str, Sequence[str]]) -> Event:
    main = _main(event)
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
