"""Pipeline stages: which ranks hold the same part of the model."""

from __future__ import annotations

import re

import numpy as np

from dag.step_graph import Recording
from errors import UsageError
from replay.whatif.selection import Selection, select_of

#: What passes activations and gradients from one stage to the next.
_POINT_TO_POINT = re.compile(r"send|recv|p2p|pp[-_]?comm", re.IGNORECASE)


def pipeline_stages(recording: Recording) -> list[int] | None:
    """Return the stage of each owner; None where the recording has no pipeline.

    Owners that send to each other make one pipeline; the n-th of each are stage n.
    """
    is_sent = np.array([_POINT_TO_POINT.search(one.name) is not None for one in recording.operations])
    if not is_sent.any():
        return None
    pipeline = np.arange(len(recording.owners))
    for step in recording.steps[:1]:
        source, target = step.edges[:, 0], step.edges[:, 1]
        crosses = (step.owner[source] != step.owner[target]) & is_sent[step.operation[target]]
        pairs = np.unique(np.stack([step.owner[source[crosses]], step.owner[target[crosses]]]), axis=1)
        for a, b in pairs.T.tolist():
            pipeline[pipeline == pipeline[b]] = pipeline[a]
    members = [np.flatnonzero(pipeline == one).tolist() for one in np.unique(pipeline)]
    if len({len(owners) for owners in members}) != 1 or len(members[0]) < 2:
        return None
    stage = {owner: position for owners in members for position, owner in enumerate(owners)}
    return [stage[owner] for owner in range(len(recording.owners))]


def of_stage(recording: Recording, number: int, target: str | None, text: str) -> Selection:
    """Return what `target` (None: the computation) means on the owners of stage `number`.

    Raises
    ------
    UsageError
        There is no such stage, or no such operation.
    """
    stages = pipeline_stages(recording)
    if stages is None:
        raise UsageError(f"--set {text}: no pipeline stages: no rank sends to another one")
    if number not in stages:
        raise UsageError(f"--set {text}: the pipeline has the stages 0 to {max(stages)}")
    return select_of(recording, target or "", np.array(stages) == number, text)
