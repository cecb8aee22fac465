"""Jobs written by hand for replay's tests: a few named events per rank and step, in milliseconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from analyzer.model.graph.join_ranks import join
from analyzer.model.graph.step_graph import Recording
from analyzer.reading.dialects.byteps.byteps_events import DIRECTIONS
from analyzer.reading.dialects.edge_rules import Rule
from analyzer.reading.dialects.roles import Phase, Role
from analyzer.reading.dialects.step_parts import (
    Edge,
    Joint,
    Meeting,
    Operation,
    RankStep,
    RankSteps,
    Transfer,
)
from analyzer.reading.formats.columns import Track
from replay.edit import EditRequest, Job, parse
from replay.forecast import Forecast, Forecasts

MS = 1_000_000
#: The key of the first partition of the first tensor.
KEY = 1 << 16

Times = Mapping[str, tuple[float, float]]


def rank(
    name: str,
    steps: Sequence[tuple[Times, tuple[float, float]]],
    inputs: Mapping[str, Sequence[str]] | None = None,
    *,
    kinds: Mapping[str, Mapping[str, Any]] | None = None,
    together: Sequence[str] = (),
    worker: int | None = None,
) -> RankSteps:
    """Make a rank.

    Each of the `steps` has starts and ends of events by name, and the bounds of the step. `inputs` are the
    events that an event waits for. `kinds` has fields of operations by name; BW and FW before a dot say their
    phase. All ranks do the collectives `together`.
    """
    names = list(dict.fromkeys(event for times, _ in steps for event in times))
    operations = [_operation(event, (kinds or {}).get(event, {}), event in together) for event in names]
    rank_steps = [_step(names, i + 1, *step, inputs or {}, together) for i, step in enumerate(steps)]
    return RankSteps(name, operations, rank_steps, worker=worker, rank=int(name.rpartition("rank")[2]))


def _operation(name: str, known: Mapping[str, Any], is_collective: bool) -> Operation:
    cat = name.partition(".")[0]
    transfer = {key: value for key, value in known.items() if key in Transfer._fields}
    transfer.setdefault("direction", DIRECTIONS.get(transfer.get("stage", "")))
    fields = {
        "cat": cat,
        "role": Role.COMM if is_collective or cat == "Comm" else Role.COMPUTE,
        "phase": next((phase for phase in Phase if phase.word == cat), Phase.NONE),
        "is_collective": is_collective,
        "transfer": Transfer(**transfer),
        **{key: value for key, value in known.items() if key not in transfer},
    }
    return Operation(name, fields.pop("cat"), Track(0, name), **fields)


def _step(
    names: Sequence[str],
    number: int,
    times: Times,
    bounds: tuple[float, float],
    inputs: Mapping[str, Sequence[str]],
    together: Sequence[str],
) -> RankStep:
    events = list(times)
    edges = [
        Edge(events.index(source), events.index(target))
        for target, sources in inputs.items()
        for source in sources
        if source in times and target in times
    ]
    spans = np.array([[round(at * MS) for at in times[event]] for event in events], np.int64).reshape(-1, 2)
    begin, end = (round(at * MS) for at in bounds)
    meetings = [
        Meeting((number, one), events.index(one), True, True, Joint.START_TO_BODY, Rule.COLLECTIVE)
        for one in together
        if one in times
    ]
    operation = np.array([names.index(event) for event in events], np.int64)
    return RankStep.of(number, (begin, end), operation, spans, edges, meetings)


def job(*ranks: RankSteps) -> Recording:
    return join(ranks)


_PUSH = {"stage": "PUSH", "whole": "Comm.a", "cat": "Comm", "link": "PUSH", "key": KEY}
_PULL = {"stage": "PULL", "whole": "Comm.a", "cat": "Comm", "link": "PULL", "key": KEY}


def one_gpu(n_steps: int = 1) -> Recording:
    """FW 4, BW 10, PUSH 3, PULL 5 one after the other, then 1 to the next step: 23 ms a step."""
    steps = [
        (
            {
                "FW.a": (at, at + 4),
                "BW.a": (at + 4, at + 14),
                "Comm.a.PUSH": (at + 14, at + 17),
                "Comm.a.PULL": (at + 17, at + 22),
            },
            (at, at + 23),
        )
        for at in (23 * i for i in range(n_steps))
    ]
    inputs = {"BW.a": ["FW.a"], "Comm.a.PUSH": ["BW.a"], "Comm.a.PULL": ["Comm.a.PUSH"]}
    return job(rank("rank0", steps, inputs, kinds={"Comm.a.PUSH": _PUSH, "Comm.a.PULL": _PULL}))


def lockstep(*work: Sequence[float], transfer: float = 5, on_device: bool = False) -> Recording:
    """Ranks with the given computation (ms) in each step, which then reduce together in `transfer` ms."""
    kinds = {name: {"on_device": on_device} for name in ("BW.a", "reduce")}
    ranks = []
    for number, of_rank in enumerate(work):
        steps = []
        at = 0.0
        for i, compute in enumerate(of_rank):
            late = max(other[i] for other in work)
            end = at + late + transfer
            steps.append(({"BW.a": (at, at + compute), "reduce": (at + compute, end)}, (at, end)))
            at = end
        ranks.append(rank(f"rank{number}", steps, {"reduce": ["BW.a"]}, kinds=kinds, together=["reduce"]))
    return job(*ranks)


def partitions(sizes: Sequence[int], ms_each: Sequence[float]) -> Recording:
    """BW for 20 ms, then the partitions of one tensor pushed one after the other on one link, then 1 ms."""
    times: dict[str, tuple[float, float]] = {"BW.a": (0, 20)}
    kinds = {}
    at = 20.0
    for part, (size, ms) in enumerate(zip(sizes, ms_each, strict=True)):
        name = f"part{part}"
        times[name] = (20, at + ms)
        kinds[name] = {**_PUSH, "key": KEY + part, "n_bytes": size, "role": Role.COMM}
        at += ms
    return job(rank("rank0", [(times, (0, at + 1))], {name: ["BW.a"] for name in kinds}, kinds=kinds))


def apply(recording: Recording, edits: Sequence[str]) -> Recording:
    """Apply edits in the words of `--set`."""
    return after(Job(recording), edits)


def after(job: Job, edits: Sequence[str]) -> Recording:
    """Apply edits of a job in the words of `--set`."""
    return job.after([parse(EditRequest.of(text), job) for text in edits])


def foreseen(recording: Recording, *edits: str) -> Forecast:
    """Forecast edits in the words of `--set`."""
    return Forecasts(Job(recording), recording.whole_steps).of([EditRequest.of(text) for text in edits])
