"""Which faults put into made step logs `diagnose` finds: rank, span and cost, by size, ranks and steps.

    python3 -m benchmarks.step_logs [--seeds N]

All ranks of a made job finish a step together: each does its own work (a log-normal time, now and then a
stall of its host), the last one makes the others wait, and their waiting is in the column in which they
meet. A fault makes one rank, or the communication of all, longer by a share of a step in a span of steps.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from analyze import main as analyze

_STEP_MS = 100.0
#: Names of columns as three frameworks have them: input, computation, communication, the whole step.
_COLUMNS = (
    ("data_ms", "compute_ms", "comm_ms", "step_ms"),
    ("time/load", "time/forward_backward", "time/sync", "time/step"),
    ("loader_s", "fwd_bwd_s", "allreduce_s", "iteration_s"),
)


class Fault(NamedTuple):
    """A fault: its size as a share of a step, in the steps from `begin` to before `end`, on a rank or all."""

    share: float
    begin: int
    end: int
    rank: int | None
    part: int  # of `_COLUMNS`; 3: none of them holds it


def durations(
    rng: np.random.Generator, n_ranks: int, n_steps: int, fault: Fault | None, meets_in: int
) -> NDArray[np.float64]:
    """Return data, compute, comm and the whole (4, ranks, steps) of a job, ms."""
    mean = _STEP_MS * np.array([0.02, 0.8, 0.15, 0.02])
    own = mean[:, None, None] * rng.lognormal(0.0, 0.01, (4, n_ranks, n_steps))
    own *= rng.lognormal(0.0, 0.003, (4, n_ranks, 1))  # ranks are not alike
    own[2] = own[2, :1]  # who meets ends together
    stalls = rng.random((n_ranks, n_steps)) < 0.05 / n_ranks
    own[3][stalls] += _STEP_MS * rng.exponential(1.0, int(stalls.sum()))
    if fault is not None:
        ranks = slice(None) if fault.rank is None else fault.rank
        own[fault.part, ranks, fault.begin : fault.end] += fault.share * _STEP_MS
    work = own.sum(0)
    told = own[:3].copy()
    told[meets_in] += work.max(0) - work
    return np.concatenate([told, np.broadcast_to(work.max(0), (1, n_ranks, n_steps))])


def write(folder: Path, times: NDArray[np.float64], names: Sequence[str]) -> None:
    """Write the job as one CSV for each rank."""
    units = [1e-3 if not name.endswith("_ms") else 1.0 for name in names]
    for rank in range(times.shape[1]):
        with open(folder / f"metrics_rank{rank}.csv", "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["step", *names, "loss"])
            for step, row in enumerate(times[:, rank].T.tolist()):
                cells = [f"{value * unit:.6f}" for value, unit in zip(row, units, strict=True)]
                writer.writerow([step, *cells, 2.0])


def findings(folder: Path) -> list[dict[str, object]]:
    """Return the findings of `diagnose` in a folder."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        analyze([str(folder), "--format", "json", "--logging_level", "ERROR"])
    found: list[dict[str, object]] = json.loads(out.getvalue())["findings"]
    return found


def trial(
    seed: int, n_ranks: int, n_steps: int, share: float, length: int
) -> tuple[bool, bool, float, float]:
    """Return (found, another named, error of the span in steps, error of the cost as a share of a step)."""
    rng = np.random.default_rng(seed)
    begin = int(rng.integers(20, max(21, n_steps - length - 20)))
    rank = int(rng.integers(n_ranks))
    meets_in = int(rng.choice([1, 2]))
    part = int(rng.choice([0, 3 - meets_in, 3]))  # where all meet, no column tells who was late
    fault = Fault(share, begin, begin + length, rank, part) if share else None
    times = durations(rng, n_ranks, n_steps, fault, meets_in)
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), times, _COLUMNS[seed % len(_COLUMNS)])
        late = [one for one in findings(Path(folder)) if one["kind"] == "late_rank"]
    right = [one for one in late if one["scope"]["ranks"] == [f"rank{rank}"]] if share else []  # type: ignore[index]
    wrong = len(late) > len(right)
    if not right:
        return False, wrong, np.nan, np.nan
    scope = right[0]["scope"]
    span = max(abs(scope["from_step"] - begin), abs(scope["to_step"] + 1 - begin - length))  # type: ignore[index]
    before = np.median(np.delete(times[3, 0], range(begin, begin + length)))
    true = float(np.median(times[3, 0, begin : begin + length]) - before)
    cost = abs(right[0]["gain_ms"]["mid"] - true) / _STEP_MS  # type: ignore[index]
    return True, wrong, span, cost


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seeds", type=int, default=10)
    args = parser.parse_args()
    print(
        "| ranks | steps | span | fault | found | another rank named | span off (median, worst) | cost off |"
    )
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for n_ranks, n_steps, length in ((8, 500, 200), (8, 500, 20), (8, 500, 5), (64, 500, 100), (2, 500, 100)):
        for share in (0.0, 0.01, 0.02, 0.05, 0.2, 1.0):
            made = [trial(seed, n_ranks, n_steps, share, length) for seed in range(args.seeds)]
            found, wrong, span, cost = map(np.array, zip(*made, strict=True))
            row = f"| {n_ranks} | {n_steps} | {length} | {share:.0%} |"
            row += f" {found.sum()} of {len(made)} | {wrong.sum()} |"
            if found.any():
                row += f" {np.nanmedian(span):.0f}, {np.nanmax(span):.0f} | {np.nanmax(cost):.1%} |"
            print(row if found.any() else f"{row} | |", flush=True)


if __name__ == "__main__":
    main()
