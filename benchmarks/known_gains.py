"""What `diagnose` says a slow worker costs, against a simulated BytePS cluster in which none is slow.

    python3 -m benchmarks.known_gains [JOBS]

The cluster is that of `benchmarks/known_byteps.py`, whose queues the trace does not show. How far gains may
be off where transfers queue was chosen by looking at 50 other jobs of it.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.known_byteps import random_job
from dag_utils import load_steps, read_partitions
from diagnose.diagnosis import diagnose
from diagnose.gains import Gain

_JOBS = 40
_STEPS = 12
#: A worker that computes longer by a factor between these.
_FACTORS = 1.1, 1.5


@dataclass(frozen=True, slots=True)
class Claim:
    """A job's mean step, what its slow worker costs of it (ms), and what is claimed: None where it is not."""

    step_ms: float
    cost_ms: float
    gain: Gain | None

    @property
    def error(self) -> float:
        """How far the claim is off, as a share of the step; nothing where nothing is claimed."""
        claimed_ms = 0.0 if self.gain is None else self.gain.mid_ns / 1e6
        return abs(claimed_ms - self.cost_ms) / self.step_ms

    @property
    def holds(self) -> bool:
        """Whether the interval of what is claimed holds what the worker costs."""
        gain = self.gain
        if gain is None or gain.low_ns is None or gain.high_ns is None:
            return False
        return gain.low_ns <= self.cost_ms * 1e6 <= gain.high_ns


def claim(seed: int) -> Claim:
    """Return what `diagnose` claims of a random job of which one worker is slow."""
    draw = np.random.default_rng(10_000 + seed)
    even = random_job(seed)
    which, factor = int(draw.integers(len(even.slow))), float(draw.uniform(*_FACTORS))
    slow = replace(even, slow=tuple(factor if i == which else 1.0 for i in range(len(even.slow))))
    with tempfile.TemporaryDirectory() as scratch:
        job = Path(scratch) / "job"
        step_ms = float(slow.run(_STEPS, seed, job).mean())
        loaded = load_steps([job], partitions=read_partitions([job]), sizes=True, jobs=1, progress=False)
        findings = diagnose(loaded).findings
    late = (one for one in findings if one.finding.kind == "late_rank")
    gains = (one.gain for one in late if list(one.finding.ranks) == [f"wk{which}.rank0"])
    return Claim(step_ms, step_ms - float(even.run(_STEPS, seed).mean()), next(gains, None))


def table(n_jobs: int = _JOBS) -> Iterator[str]:
    """Yield the lines of a table of some jobs."""
    claims = [claim(seed) for seed in range(n_jobs)]
    low, high = _FACTORS
    yield (
        f"{n_jobs} jobs of 2 to 4 workers, {_STEPS} recorded steps each, in which one worker computes "
        f"{low:g} to {high:g} times as long; against the same job without that. Errors are shares of a step."
    )
    yield ""
    yield "| a slow worker costs | jobs | named | error: median | p90 | worst | inside the interval |"
    yield "| --- | --: | --: | --: | --: | --: | --: |"
    for title, least, most in (("less than 5 % of a step", -np.inf, 0.05), ("5 % or more", 0.05, np.inf)):
        chosen = [one for one in claims if least <= one.cost_ms / one.step_ms < most]
        named = [one for one in chosen if one.gain is not None]
        errors = [one.error for one in chosen]
        median, p90 = np.percentile(errors, [50, 90])
        inside = sum(one.holds for one in named)
        yield (
            f"| {title} | {len(chosen)} | {len(named)} | {median:.1%} | {p90:.1%} | {max(errors):.1%} "
            f"| {inside} of {len(named)} |"
        )
    yield ""


if __name__ == "__main__":
    print("\n".join(table(*map(int, sys.argv[1:]))))
