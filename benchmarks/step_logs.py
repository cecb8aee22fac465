"""Which faults put into made step logs `diagnose` finds: rank, span and cost, by size and by the job's noise.

    python3 -m benchmarks.step_logs [--seeds N]

All ranks of a made job finish a step together: each does its own work, the last one makes the others wait,
and their waiting is in a part in which they meet, or in a column of its own. A fault makes one rank longer
by a share of a step in a span of steps; in every second job another rank later on, too.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from analyze import main as analyze

Times = NDArray[np.float64]
_N_STEPS, _STEP_MS = 500, 100.0
#: Input, computation, communication, the optimizer, and what no column holds: ms of a step.
_MEAN_MS = np.array([2.0, 70.0, 15.0, 8.0, 5.0])
#: Names of columns as three frameworks have them; the last one is the whole step, the one before waiting.
_COLUMNS = (
    ("data_ms", "compute_ms", "comm_ms", "optim_ms", "wait_ms", "step_ms"),
    ("time/load", "time/forward_backward", "time/sync", "time/update", "time/barrier", "time/step"),
    ("loader_s", "fwd_bwd_s", "allreduce_s", "opt_s", "idle_s", "iteration_s"),
)
SHARES = (0.05, 0.1, 0.3, 1.0)
_OWN_WAIT = 4  # where the waiting has a column of its own


def _tails(rng: np.random.Generator, own: Times) -> None:
    own += _MEAN_MS[:, None, None] * 0.02 * np.abs(rng.standard_t(2.5, own.shape))


def _together(rng: np.random.Generator, own: Times) -> None:
    def series(n: int, hold: float, sd: float) -> Times:
        noise = rng.normal(0, sd, (n, own.shape[2]))
        for step in range(1, own.shape[2]):
            noise[:, step] = hold * noise[:, step - 1] + np.sqrt(1 - hold * hold) * noise[:, step]
        return noise

    own[1] *= 1 + series(1, 0.98, 0.04) + series(own.shape[1], 0.9, 0.01)


def _periodic(_: np.random.Generator, own: Times) -> None:
    own[4, :, 49::50] += 3 * _STEP_MS
    for first in range(80, own.shape[2], 100):
        own[1, :, first : first + 5] *= 1.6


def _drift(_: np.random.Generator, own: Times) -> None:
    own[1] *= np.linspace(1, 1.25, own.shape[2])


def _unlike(rng: np.random.Generator, own: Times) -> None:
    own[1] *= rng.normal(1, 0.02, (own.shape[1], 1))
    own[0] *= rng.lognormal(0, 0.5, (own.shape[1], 1))
    own[4, 0] += 1.0


def _warm_up(_: np.random.Generator, own: Times) -> None:
    own[1] *= 1 + 2 * np.exp(-np.arange(own.shape[2]) / 6)
    own[4, :, 0] += 50 * _STEP_MS


def _hosts(rng: np.random.Generator, own: Times) -> None:
    stalls = rng.random(own.shape[1:]) < 0.3 / own.shape[1]
    own[4][stalls] += 0.7 * _STEP_MS * rng.exponential(1.0, int(stalls.sum()))


def _lengths(rng: np.random.Generator, own: Times) -> None:
    own[1] *= rng.choice([0.8, 1.0, 1.3], own.shape[2])


def _own_lengths(rng: np.random.Generator, own: Times) -> None:
    own[1] *= rng.choice([0.9, 1.0, 1.05, 1.1], own.shape[1:])


#: What a job's steps are like beside a scatter of 1 %.
NOISE: Mapping[str, Callable[[np.random.Generator, Times], None]] = {
    "nothing else": lambda rng, own: None,
    "heavy tails (Student's t, 2.5 degrees)": _tails,
    "noise that holds for 50 steps, 4 %": _together,
    "checkpoints and evaluations": _periodic,
    "steps grow by a quarter": _drift,
    "ranks unlike each other, all the time": _unlike,
    "warm-up": _warm_up,
    "stalls of hosts in three steps of ten": _hosts,
    "three lengths of sequences": _lengths,
    "lengths of sequences by rank": _own_lengths,
}


class Late(NamedTuple):
    """A rank that is longer by `share` of a step in the steps from `begin` to before `end`."""

    rank: int
    share: float
    begin: int
    end: int


def told(own: Times, meets_in: int) -> Times:
    """Return the columns (6, ranks, steps) of ranks that do `own` work (5, ranks, steps): see `_COLUMNS`."""
    work = own.sum(0)
    columns = np.concatenate([own[:4], np.zeros((2, *work.shape))])
    columns[meets_in] += work.max(0) - work
    columns[5] = work.max(0)
    return columns


def write(folder: Path, times: Times, names: Sequence[str]) -> None:
    """Write the job as one CSV for each rank."""
    units = [1e-3 if not name.endswith("_ms") else 1.0 for name in names]
    for rank in range(times.shape[1]):
        with open(folder / f"metrics_rank{rank}.csv", "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["step", *names, "loss"])
            for step, row in enumerate(times[:, rank].T.tolist()):
                cells = [f"{value * unit:.6f}" for value, unit in zip(row, units, strict=True)]
                writer.writerow([step, *cells, 2.0])


def late_ranks(folder: Path) -> list[dict[str, Any]]:
    """Return the findings of late ranks in a folder."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        analyze([str(folder), "--format", "json", "--logging_level", "ERROR"])
    return [one for one in json.loads(out.getvalue())["findings"] if one["kind"] == "late_rank"]


class Trial(NamedTuple):
    """Late ranks that cost anything, those found, other claims; by what spans and costs are off."""

    n: int
    found: int
    wrong: int
    spans: Sequence[int]
    costs: Sequence[float]


def trial(seed: int, noise: str, share: float) -> Trial:
    """Return how a made job is diagnosed whose ranks are late by `share`; 0 for an even one."""
    rng = np.random.default_rng([seed, list(NOISE).index(noise)])
    n_ranks, meets_in = int(rng.choice([8, 16, 64])), int(rng.choice([1, 2, _OWN_WAIT]))
    own = _MEAN_MS[:, None, None] * rng.lognormal(0.0, 0.01, (5, n_ranks, _N_STEPS))
    own[2] = own[2, :1]  # who meets ends together
    NOISE[noise](rng, own)
    whole = told(own, meets_in)[5, 0]
    length = int(rng.choice([5, 10, 30, 100]))
    part = int(rng.choice([one for one in (0, 1, 3, 4) if one != meets_in]))
    ranks = rng.permutation(n_ranks)[: 1 + seed % 2].tolist()
    begins = [int(rng.integers(20 + 240 * i, 220 + 240 * i - length)) for i in range(len(ranks))]
    faults = [Late(rank, share, begin, begin + length) for rank, begin in zip(ranks, begins, strict=True)]
    for one in faults:
        own[part, one.rank, one.begin : one.end] += one.share * _STEP_MS
    times = told(own, meets_in)
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), times, _COLUMNS[seed % len(_COLUMNS)])
        late = late_ranks(Path(folder))
    n, spans, costs, right = 0, [], [], 0
    for one in faults:
        span = slice(one.begin, one.end)
        cost = float(np.median(times[5, 0, span] - whole[span]))
        n += cost >= 0.01 * _STEP_MS  # else others were about as late
        for claim in late:
            scope = claim["scope"]
            first, end = scope["from_step"], scope["to_step"] + 1
            if scope["ranks"] == [f"rank{one.rank}"] and first < one.end and end > one.begin:
                right += 1
                if cost < 0.01 * _STEP_MS:
                    continue
                spans.append(max(abs(first - one.begin), abs(end - one.end)))
                costs.append(abs(claim["gain_ms"]["mid"] - cost) / _STEP_MS)
    return Trial(n, len(spans), len(late) - right, spans, costs)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seeds", type=int, default=6)
    seeds = range(parser.parse_args().seeds)
    heads = [
        "beside a scatter of 1 %",
        *map("{:.0%}".format, SHARES),
        "others",
        "in even jobs",
        "spans",
        "costs",
    ]
    print(f"| {' | '.join(heads)} |")
    print("| --- |" + " ---: |" * (len(heads) - 1))
    for noise in NOISE:
        even = [trial(seed, noise, 0.0) for seed in seeds]
        made = [[trial(seed, noise, share) for seed in seeds] for share in SHARES]
        every = [one for of_share in made for one in of_share]
        cells = [f"{sum(t.found for t in of)} of {sum(t.n for t in of)}" for of in made]
        cells += [f"{sum(t.wrong for t in of)}" for of in (every, even)]
        spans, costs = [off for t in every for off in t.spans], [off for t in every for off in t.costs]
        cells.append(f"{sum(off <= 5 for off in spans)} of {len(spans)}")
        cells.append(f"{sum(off <= 0.04 for off in costs)} of {len(costs)}")
        print(f"| {noise} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
