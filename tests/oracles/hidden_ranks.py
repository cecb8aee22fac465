"""Step logs of jobs in which one rank becomes late and all others wait for it in some other part.

By definition: every rank needs its own time in each part; from the onset on, one rank needs more in one part
(or between its rows). All meet in one part, whose column therefore holds the waiting: it lasts until the last
rank has reached it, and then as long as its own work.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from msgspec import Struct

PARTS = ("load_ms", "forward_ms", "backward_ms", "allreduce_ms", "optimizer_ms")
WORK_MS = np.array([8.0, 60.0, 110.0, 25.0, 12.0])


class HiddenRank(Struct, frozen=True):
    """A job with a late rank."""

    rank: int
    part: str
    onset: int  # the first step in which it is late
    text: str  # CSV, a row for each step and rank

    def until(self, step: int) -> str:
        """Cut the log after a step."""
        lines = self.text.splitlines(keepends=True)
        return "".join(lines[:1] + [line for line in lines[1:] if int(line.split(",", 1)[0]) <= step])


def hidden_rank(seed: int) -> HiddenRank:
    """Make a log with a rank that needs 6 to 30 % of a step more from some step on."""
    random = np.random.default_rng(seed)
    n_ranks, n_steps = int(random.choice([4, 8, 16])), 140
    rank, onset = int(random.integers(n_ranks)), int(random.integers(60, 100))
    meeting = int(random.integers(2, 4))  # in the backward pass, or the all-reduce
    part = int(random.integers(meeting))
    more = WORK_MS.sum() * random.uniform(0.06, 0.3)
    noise = random.uniform(0.005, 0.03)
    work = WORK_MS * random.lognormal(0, noise, (n_steps, n_ranks, len(PARTS)))
    work *= random.lognormal(0, noise / 2, (n_steps, 1, 1))  # what all ranks share
    work[onset:, rank, part] += more
    took = work.copy()
    reached = work[:, :, :meeting].sum(2)
    took[:, :, meeting] += reached.max(1)[:, None] - reached
    rows = [f"step,rank,{','.join(PARTS)}"]
    rows += [
        f"{step},{of},{','.join(f'{cell:.3f}' for cell in took[step, of])}"
        for step in range(n_steps)
        for of in range(n_ranks)
    ]
    return HiddenRank(rank, PARTS[part].removesuffix("_ms"), onset, "\n".join(rows) + "\n")


def write(path: Path, job: HiddenRank, until: int) -> Path:
    """Write the log up to a step."""
    path.write_text(job.until(until))
    return path
