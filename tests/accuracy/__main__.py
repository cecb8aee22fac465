"""Errors of replay and of the diagnosis of step logs, on recorded pairs of jobs and on simulated jobs.

    PYTHONPATH=.:tests python3 -m accuracy [DATA] [--jobs N]
    PYTHONPATH=.:tests python3 -m accuracy ablation [JOB ...]

DATA is a directory of recorded jobs (default: ``../shared/data`` beside the project); `N` limits how many
jobs are simulated for each table. Nothing is fitted to what is predicted. `ablation` switches off one rule
at a time.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from accuracy import ablation
from accuracy.step_logs import about_and_table
from analyzer.base.errors import UsageError
from dag_utils import load_steps, read_partitions
from oracles import known_byteps, known_nccl
from replay.answer import measured_ns
from replay.edit import EditRequest, Job
from replay.forecast import Forecast, Forecasts
from trace_utils import Request

_Simulated: TypeAlias = known_byteps.BytePSJob | known_nccl.NCCLJob
#: An edit, its forecast, and the mean step (ms) that is then measured.
_Asked: TypeAlias = tuple[str, Forecast, float]

#: (recorded, what is asked of it, what was then recorded)
PAIRS = (
    ("byteps/fork_lenet_base", "bandwidth=0.1", "byteps/fork_lenet_slownet"),
    ("byteps/fork_lenet_base", "bandwidth=100Mbit", "byteps/fork_lenet_slownet"),
    ("byteps/fork_lenet_slownet", "bandwidth=10", "byteps/fork_lenet_base"),
    ("byteps/fork_lenet_slownet", "bandwidth=1Gbit", "byteps/fork_lenet_base"),
    ("byteps/fork_lenet_straggler", "straggler=none", "byteps/fork_lenet_base"),
    ("kineto/ddp2-gloo-base/trace", "rank1.I/O=+400ms", "kineto/ddp2-gloo-slow-rank1/trace"),
    ("kineto/ddp2-gloo-slow-rank1/trace", "straggler=none", "kineto/ddp2-gloo-base/trace"),
    (
        "horovod/2ranks-base/trace",
        "allreduce.10.bias.NEGOTIATE_ALLREDUCE=+80ms",
        "horovod/2ranks-slow-rank1/trace",
    ),
    ("composer/ws2-slow-rank1/trace", "straggler=none", "composer/ws2/trace"),
)
_STEPS = 10
#: What is asked of jobs in a simulated cluster, of seeds that nobody looked at before.
_CLUSTER_EDITS = (
    "bandwidth=0.1", "bandwidth=0.5", "bandwidth=2", "bandwidth=10", "bandwidth=100Mbit", "bandwidth=1Gbit",
    "partition_bytes=65536", "partition_bytes=262144", "partition_bytes=4096000", "FW=0.5", "BW=2",
)  # fmt: skip
_CLUSTER_SEEDS, _OTHER_SEEDS = range(101, 121, 2), range(101, 109)
#: The same of jobs on simulated GPUs.
_NCCL_EDITS = (
    "bandwidth=0.5", "bandwidth=2", "bandwidth=4", "latency=4", "bucket_cap=25MB", "bucket_cap=50MB",
    "overlap=off", "rank1=1.3", "rank0=0.7", "stage1=0.8", "kernel=2", "kernel=0.5",
    "drop=fused_dropout_kernel", "straggler=none", "straggler=mean",
)  # fmt: skip
_NCCL_SEEDS = range(101, 117, 2)
_HEAD = (
    "| jobs | `--set` | asked | error: median | p90 | worst | inside | width: median |",
    "| --- | --- | --: | --: | --: | --: | --: | --: |",
)


class Score:
    """Errors of predictions, and the share of intervals that hold the truth."""

    def __init__(self) -> None:
        self.errors: list[float] = []
        self.widths: list[float] = []
        self.inside = 0

    def cells(self, forecast: Forecast, truth_ms: float) -> str:
        """Add a prediction and format it as cells."""
        predicted = forecast.after_ns / 1e6
        error = predicted / truth_ms - 1
        self.errors.append(abs(error))
        if forecast.interval_ns is None:
            return f"{predicted:.1f} | too few steps | {truth_ms:.1f} | {error:+.1%} | "
        low, high = forecast.interval_ns[0] / 1e6, forecast.interval_ns[1] / 1e6
        holds = low <= truth_ms <= high
        self.inside += holds
        self.widths.append((high - low) / predicted)
        interval = f"{low:.1f} to {high:.1f}"
        return f"{predicted:.1f} | {interval} | {truth_ms:.1f} | {error:+.1%} | {'yes' if holds else 'no'}"

    def summary(self) -> str:
        """Format the errors, the intervals that hold the truth, and their width as cells."""
        median, most = np.percentile(self.errors, [50, 90])
        coverage = f"{self.inside} of {len(self.widths)}"
        width = f"{np.median(self.widths):.0%}" if self.widths else "–"
        return f"{median:.1%} | {most:.1%} | {max(self.errors):.1%} | {coverage} | {width}"


def load(path: Path) -> Forecasts:
    """Load the job at `path` for what-ifs, with the partition sizes in its logs."""
    loaded = load_steps([path], Request(progress=False), partitions=read_partitions([path]), sizes=True)
    return Forecasts(Job.of(loaded), loaded.recording.whole_steps)


def _step_ms(forecasts: Forecasts) -> float:
    """Mean recorded step over whole steps and their owners."""
    recording = forecasts.job.recording
    return float(np.nanmean(np.nanmean(measured_ns(recording)[recording.whole_steps], axis=1))) / 1e6


def _pairs(data: Path) -> Iterator[str]:
    yield "| recorded | `--set` | predicted (ms) | 95 % interval (ms) | recorded (ms) | error | inside |"
    yield "| --- | --- | --: | --: | --: | --: | --- |"
    score = Score()
    for name, edit, then in PAIRS:
        if (data / name).is_dir() and (data / then).is_dir():
            forecast = load(data / name).of([EditRequest.of(edit)])
            cells = score.cells(forecast, _step_ms(load(data / then)))
            yield f"| {name.removesuffix('/trace')} | `{edit}` | {cells} |"
    yield ""
    if score.errors:
        yield "Error: median {}, p90 {}, worst {}. Inside: {}; median width: {}.".format(
            *score.summary().split(" | ")
        )


def _kind(edit: str) -> str:
    name = edit.partition("=")[0]
    if name in ("bandwidth", "latency"):
        return "network"
    return "partitions, buckets" if name in ("partition_bytes", "bucket_cap", "overlap") else "computation"


def _rows(jobs: str, asked: Iterable[_Asked]) -> Iterator[str]:
    """Yield a row for each kind of edit, and one for all."""
    scores: dict[str, Score] = {}
    together = Score()
    for edit, forecast, then_ms in asked:
        for score in (scores.setdefault(_kind(edit), Score()), together):
            score.cells(forecast, then_ms)
    for kind, score in [*sorted(scores.items()), ("**all**", together)]:
        yield f"| {jobs} | {kind} | {len(score.errors)} | {score.summary()} |"
        jobs = ""


def _asked(jobs: Iterable[tuple[_Simulated, int]], edits: Sequence[str], then_steps: int) -> Iterator[_Asked]:
    """Forecast edits of simulated jobs, beside the mean step of the edited job."""
    for job, seed in jobs:
        with tempfile.TemporaryDirectory() as scratch:
            job.run(_STEPS, seed, Path(scratch) / "job")
            recorded = load(Path(scratch) / "job")
            for edit in edits:
                with contextlib.suppress(UsageError):
                    forecast = recorded.of([EditRequest.of(edit)])
                    then = job.edited(edit, _STEPS, seed).run(then_steps, 1000 + seed)
                    yield edit, forecast, float(np.mean(then))


def _simulated(n_jobs: int) -> Iterator[str]:
    yield from _HEAD
    for title, make, seeds, edits, steps in (
        ("in a cluster", known_byteps.random_job, _CLUSTER_SEEDS, _CLUSTER_EDITS, _STEPS),
        ("with servers on workers' machines, or a slow one", known_byteps.other_job, _OTHER_SEEDS,
         _CLUSTER_EDITS, _STEPS),
        ("on GPUs", known_nccl.random_job, _NCCL_SEEDS, _NCCL_EDITS, 2 * _STEPS),
    ):  # fmt: skip
        chosen = seeds[:n_jobs]
        yield from _rows(f"{len(chosen)} {title}", _asked(((make(i), i) for i in chosen), edits, steps))


def main() -> None:
    if sys.argv[1:2] == ["ablation"]:
        ablation.main([Path(job) for job in sys.argv[2:]])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    shared = Path(__file__).resolve().parents[3] / "shared" / "data"
    parser.add_argument("data", nargs="?", type=Path, default=shared)
    parser.add_argument("--jobs", type=int, default=400, help="made for each table, at most")
    args = parser.parse_args()
    if not args.data.is_dir():
        sys.exit(f"{args.data}: no directory of recorded jobs")
    for title, lines in (
        ("One recording predicted from another", _pairs(args.data)),
        ("Simulated jobs, run with and without the edit", _simulated(args.jobs)),
        ("Late ranks in step logs", iter([about_and_table(args.jobs)])),
    ):
        print(f"## {title}\n")
        for line in lines:
            print(line, flush=True)
        print()


if __name__ == "__main__":
    main()
