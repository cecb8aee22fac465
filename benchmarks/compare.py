"""How often `compare` finds an operation that became slower, and how often it raises a false alarm.

    python3 -m benchmarks.compare [--jobs 200]

Simulated BytePS jobs of 10 + 10 steps of about 130 ms: 30 computations, 60 transfers and 6 stages of each.
In the second run one computation of 5 ms is 20 % slower. Every operation varies by 12 % from step to step
on its own. The peer tests each by its own steps and corrects all p-values together.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from arrays import Float64
from benchmarks import measure
from compare.significance import changes, corrected_by_family, families, sample
from dialects import Role

_STAGES = ("REDUCE", "COPYD2H", "PUSH", "PULL", "COPYH2D", "BROADCAST")
_STEPS, _SPREAD, _SLOWER = 10, 0.12, 1.2


@dataclass(frozen=True, slots=True)
class Rates:
    """Of all jobs: in how many the slower operation was found, in how many another was called changed."""

    found: float
    false_alarm: float


def main() -> None:
    """Simulate, compare, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=200)
    args = parser.parse_args()
    rows = [["correction", "found", "false alarms a job"]]
    for name, by_family in (("families", True), ("all together", False)):
        rates = simulated(args.jobs, by_family=by_family)
        rows.append([name, f"{rates.found:.1%}", f"{rates.false_alarm:.1%}"])
    print(measure.table(rows))


def simulated(n_jobs: int, *, by_family: bool, seed: int = 0) -> Rates:
    """Return how `n_jobs` comparisons end."""
    rng = np.random.default_rng(seed)
    found = false = 0
    for _ in range(n_jobs):
        names, role, mean = _job(rng)
        share = mean / mean[:30].sum()
        family = families(names, role, share)
        factor = np.where(np.arange(len(names)) == 0, _SLOWER, 1.0)
        runs = [sample(_steps(rng, mean)), sample(_steps(rng, mean * factor))]
        if by_family:
            correct = partial(corrected_by_family, family=family, share_of_step=share)
            found_changes = changes(*runs, correct=correct, alike=family)
        else:
            found_changes = changes(*runs)
        significant = [change.significant for change in found_changes]
        found += significant[0]
        false += any(significant[1:])
    return Rates(found / n_jobs, false / n_jobs)


def _job(rng: np.random.Generator) -> tuple[list[str], NDArray[np.int8], Float64]:
    """Return the names, roles and means (ns) of a job's operations; the first is the slower one's."""
    tensors = [f"Comm.gradient_{i}" for i in range(60)]
    stages = [f"{tensor}.{stage}.{i << 16}" for i, tensor in enumerate(tensors) for stage in _STAGES]
    names = [*(f"BW.layer_{i}" for i in range(30)), *tensors, *stages]
    role = np.repeat([Role.COMPUTE, Role.WHOLE_COMM, Role.COMM], [30, 60, len(stages)]).astype(np.int8)
    mean = np.exp(rng.uniform(np.log(50e3), np.log(20e6), len(names)))
    mean[0] = 5e6
    return names, role, mean


def _steps(rng: np.random.Generator, mean: Float64) -> Float64:
    """Return the duration of each operation in each step (m, k), ns."""
    return np.asarray(mean[:, None] * rng.normal(1.0, _SPREAD, (len(mean), _STEPS)).clip(0.1), np.float64)


if __name__ == "__main__":
    main()
