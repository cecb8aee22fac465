"""Jobs whose steps follow from arithmetic, so that the answer to any edit of them is known."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from arrays import Float64
from dag.step_graph import Recording
from dag_utils import join
from dialects.roles import Phase, Role
from dialects.step_parts import Edge, EdgeKind, Joint, Meeting, Operation, RankStep, RankSteps
from formats.columns import Track

_OPERATIONS = (
    Operation("FW.a", "FW", Track(0, 0), phase=Phase.FORWARD),
    Operation("BW.a", "BW", Track(0, 0), phase=Phase.BACKWARD),
    Operation("reduce", "Comm", Track(0, 0), Role.COMM, is_collective=True),
)


@dataclass(frozen=True, slots=True)
class KnownJob:
    """Ranks that compute forward and backward, reduce together, and go on; times in milliseconds.

    A step takes ``max over ranks of (forward + gap + backward) + transfer``; every rank computes
    `spread` (a standard deviation, as a share) longer or shorter from step to step, and a gap is
    sometimes ten times as long.
    """

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    gap: float
    transfer: float
    spread: float

    def edited(self, edit: str) -> KnownJob:
        """Return the job that the edit (``FW=R``, ``BW=R``, ``reduce=R``, ``rank0=R``) describes."""
        name, _, value = edit.partition("=")
        factor = float(value)
        if name == "reduce":
            return replace(self, transfer=self.transfer * factor)
        forward, backward = np.array(self.forward), np.array(self.backward)
        chosen = slice(0, 1) if name == "rank0" else slice(None)
        if name in ("FW", "rank0"):
            forward[chosen] *= factor
        if name in ("BW", "rank0"):
            backward[chosen] *= factor
        return replace(self, forward=tuple(forward.tolist()), backward=tuple(backward.tolist()))

    def run(self, n_steps: int, seed: int) -> tuple[Recording, Float64]:
        """Return `n_steps` recorded steps, and how long each takes (ms)."""
        draw = np.random.default_rng(seed)
        shape = n_steps, len(self.forward)
        forward, backward = (
            np.array(of_rank) * np.exp(draw.normal(0, self.spread, shape))
            for of_rank in (self.forward, self.backward)
        )
        gap = self.gap * np.where(draw.random(shape) < 0.05, 10, 1)
        ready = forward + gap + backward
        length = ready.max(axis=1) + self.transfer
        begin = np.concatenate([[0], np.cumsum(length)])
        ranks = [
            RankSteps(f"rank{rank}", _OPERATIONS, [
                _step(i, begin[i], begin[i + 1], (forward[i, rank], gap[i, rank], backward[i, rank]))
                for i in range(n_steps)
            ])
            for rank in range(shape[1])
        ]  # fmt: skip
        return join(ranks), length


def _step(number: int, begin: float, end: float, parts: tuple[float, float, float]) -> RankStep:
    forward, gap, backward = parts
    moments = begin + np.array([0, forward, forward + gap, forward + gap + backward, end - begin])
    at = np.rint(moments * 1e6).astype(np.int64)
    meeting = Meeting(number, 2, True, True, Joint.START_TO_BODY, EdgeKind.GROUP)
    times = at[[(0, 1), (2, 3), (3, 4)]]
    bounds = int(at[0]), int(at[4])
    return RankStep.of(number + 1, bounds, np.arange(3), times, [Edge(0, 1), Edge(1, 2)], [meeting])


def random_job(seed: int) -> KnownJob:
    """Return a job of 2 to 8 ranks that computes for 20 to 200 ms and reduces for 2 to 100."""
    draw = np.random.default_rng(seed)
    ranks = int(draw.integers(2, 9))
    compute = float(draw.uniform(20, 200))
    late = np.where(np.arange(ranks) == 0, draw.choice([1.0, 1.5]), 1.0)
    return KnownJob(
        forward=tuple((compute / 3 * late).tolist()),
        backward=tuple((compute * 2 / 3 * late).tolist()),
        gap=float(draw.uniform(0, compute / 10)),
        transfer=float(draw.uniform(2, 100)),
        spread=float(draw.uniform(0.01, 0.1)),
    )
