"""The cost of a slow worker or server by `diagnose`, against a simulated BytePS cluster without it.

    PYTHONPATH=.:tests python3 -m accuracy.known_gains [JOBS]

The cluster is that of `oracles/known_byteps.py`, whose queues the trace does not show. How far gains may
be off where transfers queue was chosen by looking at 50 other jobs of it, and when a server is called slow at
jobs with even seeds; here are odd ones.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dag_utils import load_steps, read_partitions
from diagnose.detectors.late_ranks import late_ranks
from diagnose.detectors.servers import one_slow_server
from diagnose.diagnosis import DETECTORS, Ranked, diagnose
from oracles.known_byteps import BytePSJob, random_job
from replay.forecast import Gain
from trace_utils import Request

_JOBS = 40
_STEPS = 12
#: A worker that computes longer by a factor between these.
_FACTORS = 1.1, 1.5
#: A server whose threads, or network, take longer by one between these. Of how many seeds.
_SERVER_FACTORS = 1.3, 4.0
_SERVER_SEEDS = range(1, 40, 2)


@dataclass(frozen=True, slots=True)
class Claim:
    """A job's mean step, what its slow worker costs of it (ms), and what is claimed: None where it is not.

    `wrong` is how many others are claimed to be slow.
    """

    step_ms: float
    cost_ms: float
    gain: Gain | None
    wrong: int = 0

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
    """Return the gain that `diagnose` claims for a random job with one slow worker."""
    draw = np.random.default_rng(10_000 + seed)
    even = random_job(seed)
    which, factor = int(draw.integers(len(even.slow))), float(draw.uniform(*_FACTORS))
    slow = replace(even, slow=tuple(factor if i == which else 1.0 for i in range(len(even.slow))))
    step_ms, findings = _diagnosed(slow, seed)
    late = (one for one in findings if one.finding.kind == "late_rank")
    gains = (one.gain for one in late if list(one.finding.ranks) == [f"wk{which}.rank0"])
    return Claim(step_ms, step_ms - float(even.run(_STEPS, seed).mean()), next(gains, None))


def server_claim(seed: int, what: str) -> Claim:
    """Return the gain claimed for a random job of 2 to 4 servers, one with slow "threads" or "network".

    With any other `what` none is slow. One may have up to three times as many keys as the others. The threads
    of servers take 0.3 to 1.5 times as long for a byte as the network: of all jobs whose threads are slow,
    and of half of those in which nothing is.
    """
    draw = np.random.default_rng(20_000 + seed)
    n = int(draw.integers(2, 5))
    which, factor = int(draw.integers(n)), float(draw.uniform(*_SERVER_FACTORS))
    shares, ones = n + int(draw.integers(3)), (1.0,) * n
    even = replace(random_job(seed), servers=n, shares=shares, busy=ones, far=ones)
    adding, is_busy = float(draw.uniform(0.3, 1.5)) / even.rate, bool(draw.random() < 0.5)
    if what == "threads" or (what != "network" and is_busy):
        even = replace(even, adding=adding)
    longer = tuple(factor if i == which else 1.0 for i in range(n))
    slow = {"threads": replace(even, busy=longer), "network": replace(even, far=longer)}.get(what, even)
    step_ms, findings = _diagnosed(slow, seed)
    named = [one for one in findings if " times as long for its bytes as " in one.finding.title]
    right = [one for one in named if slow != even and one.finding.title.startswith(f"server {which} ")]
    cost_ms = step_ms - float(even.run(_STEPS, seed).mean()) if slow != even else 0.0
    return Claim(step_ms, cost_ms, right[0].gain if right else None, len(named) - len(right))


def _diagnosed(job: BytePSJob, seed: int) -> tuple[float, Sequence[Ranked]]:
    """Return the mean step of a job (ms), and late ranks and slow servers in its recording."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "job"
        step_ms = float(job.run(_STEPS, seed, path).mean())
        loaded = load_steps([path], Request(jobs=1), partitions=read_partitions([path]), sizes=True)
        wanted = (late_ranks, one_slow_server)
        asked = [[one for one in of_level if one.detect in wanted] for of_level in DETECTORS]
        return step_ms, diagnose(loaded, detectors=asked).findings


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


def server_table(seeds: Sequence[int] = _SERVER_SEEDS) -> Iterator[str]:
    """Yield the lines of a table of jobs with a slow server, and of the same jobs without."""
    low, high = _SERVER_FACTORS
    yield (
        f"{len(seeds)} jobs of 2 to 4 servers, {_STEPS} recorded steps each, in which one server's threads, "
        f"or its network, take {low:g} to {high:g} times as long; against the same job without that. Errors "
        "are those of what is named, as shares of a step. Wrong are servers that are named and not slow."
    )
    yield ""
    yield "| a slow server costs | jobs | named | wrong | error: median | p90 | worst | inside the interval |"
    yield "| --- | --: | --: | --: | --: | --: | --: | --: |"
    for what in ("threads", "network", "none slow"):
        claims = [server_claim(seed, what) for seed in seeds]
        for title, least, most in (("less than 5 %", -np.inf, 0.05), ("5 % of a step or more", 0.05, np.inf)):
            chosen = [one for one in claims if least <= one.cost_ms / one.step_ms < most]
            if not chosen:
                continue
            named = [one for one in chosen if one.gain is not None]
            wrong, inside = sum(one.wrong for one in chosen), sum(one.holds for one in named)
            errors = "– | – | –"
            if named:
                found = np.percentile([one.error for one in named], [50, 90, 100])
                errors = " | ".join(f"{one:.1%}" for one in found)
            cells = f"{len(chosen)} | {len(named)} | {wrong} | {errors} | {inside} of {len(named)}"
            yield f"| {what}{'' if what == 'none slow' else f': {title}'} | {cells} |"
    yield ""


if __name__ == "__main__":
    print("\n".join(table(*map(int, sys.argv[1:]))))
    print("\n".join(server_table()))
