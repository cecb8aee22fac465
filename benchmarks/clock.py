"""How far the estimated offset of a clock is from the true one, and how wide its bound.

    python3 -m benchmarks.clock [--trials 200] [--recorded DIR ...]

`--recorded`: jobs recorded on one host, on which all clocks are one; copies with skews of up to 5 s.

Simulated jobs: every worker begins each synchronous operation when it gets there and leaves one network
delay after the last one has begun. The peers see the same windows: the end of the window nearest to 0
(the least correction that makes every operation possible), and the mean of begin differences.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import dialects
from arrays import Int64
from benchmarks import measure
from clocks.job_clocks import shifted
from clocks.offsets import Alignment, Clock, align
from dialects import Need
from dialects.sync_points import SyncPoint, merged
from formats.columns import Trace
from trace_utils import Request, load_paths


@dataclass(frozen=True, slots=True)
class Case:
    """Operations a second, seconds, spread of arrivals and of delays (us), drift (ppm)."""

    name: str
    rate: int
    seconds: float
    arrival_us: float
    delay_us: float
    drift_ppm: float


CASES = (
    Case("1 s, fast network", 1000, 1, 500, 20, 0),
    Case("1 s, slow network", 100, 1, 20_000, 1_000, 0),
    Case("10 s, drift 10 ppm", 300, 10, 2_000, 100, 10),
    Case("300 s, drift 20 ppm", 50, 300, 2_000, 100, 20),
)


def main() -> None:
    """Simulate, estimate, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--recorded", type=Path, nargs="*", default=())
    args = parser.parse_args()
    if args.recorded:
        header = [
            "recording",
            "hosts",
            "error us as recorded",
            "skewed: median",
            "max",
            "bound us",
            "outside",
        ]
        print(measure.table([header, *map(_recorded, args.recorded)]))
    header = ["case", "error us (median)", "(max)", "bound us", "outside", "window's end: us", "mean: us"]
    print(measure.table([header, *([case.name, *_trials(case, args.trials)] for case in CASES)]))


def _trials(case: Case, n: int) -> list[object]:
    errors, bounds, ends, means = [], [], [], []
    outside = 0
    for seed in range(n):
        rng = np.random.default_rng(seed)
        begin, end = _job(case, rng)
        skew = int(rng.integers(-(10**10), 10**10))
        seen = [t + skew + np.rint(t * case.drift_ppm / 1e6).astype(np.int64) for t in (begin[1], end[1])]
        clock = align([{"op": SyncPoint(begin[0], end[0])}, {"op": SyncPoint(seen[0], seen[1])}]).clocks[1]
        error = np.abs(seen[0] + clock.shift(seen[0]) - begin[1]).max() / 1e3
        errors.append(error)
        bounds.append(_bound_us(clock))
        outside += error > _bound_us(clock) + 0.01
        low, high = (begin[0] - seen[1]).max(), (end[0] - seen[0]).min()
        ends.append(np.abs(seen[0] + (low if abs(low) < abs(high) else high) - begin[1]).max() / 1e3)
        means.append(np.abs(seen[0] + np.mean(begin[0] - seen[0]) - begin[1]).max() / 1e3)
    return [np.median(errors), max(errors), np.median(bounds), outside, np.median(ends), np.median(means)]


def _recorded(path: Path, trials: int = 20) -> list[object]:
    """Return how far the clocks of copies with known skews are estimated from the truth."""
    job = load_paths([path], Request({Need.SYNC}))
    hosts = [i if source.worker is None else source.worker for i, source in enumerate(job.job.sources)]
    n = max(hosts) + 1
    rng = np.random.default_rng(0)
    errors, bounds = [], []
    for skews in [np.zeros(n, np.int64), *rng.integers(-5 * 10**9, 5 * 10**9, (trials, n))]:
        ahead = [shifted(t, Clock(int(skews[h] - skews[0]))) for t, h in zip(job.made, hosts, strict=True)]
        clocks = align_job(ahead, hosts).clocks
        errors.append(
            [abs(c.offset_ns + int(s - skews[0])) / 1e3 for c, s in zip(clocks, skews, strict=True)]
        )
        bounds.append([_bound_us(clock) for clock in clocks])
    error, bound = np.array(errors), np.array(bounds)
    worst = error[1:].max(axis=1)
    outside = int((error > bound + 0.01).sum())
    return [path.name, n, error[0].max(), np.median(worst), worst.max(), bound[1:].max(), outside]


def align_job(traces: Sequence[Trace], hosts: Sequence[int]) -> Alignment:
    """Estimate the clocks of hosts against the first one's; `hosts` (n,) says whose each trace is, from 0."""
    own = [[t for t, h in zip(traces, hosts, strict=True) if h == host] for host in range(max(hosts) + 1)]
    points = [merged(dialects.of(trace).sync_points(trace) for trace in each) for each in own]
    spans = [(min(int(t.ts_ns.min()) for t in each), max(int(t.end_ns.max()) for t in each)) for each in own]
    return align(points, spans)


def _job(case: Case, rng: np.random.Generator) -> tuple[Int64, Int64]:
    """Return begins and ends (2, n) in true nanoseconds."""
    n = int(case.rate * case.seconds)
    at = np.sort(rng.integers(0, int(case.seconds * 1e9), n))
    begin = at + (rng.exponential(case.arrival_us, (2, n)) * 1e3).astype(np.int64)
    delay = ((case.delay_us / 2 + rng.exponential(case.delay_us, (2, n))) * 1e3).astype(np.int64)
    return begin, begin.max(axis=0) + delay


def _bound_us(clock: Clock) -> float:
    return (clock.bound_ns or 0) / 1e3


if __name__ == "__main__":
    main()
