"""How wrong replay is: on recorded jobs, on recorded pairs of jobs, and on jobs whose answer is arithmetic.

    python3 -m benchmarks.accuracy [DATA] [--torch PYTHON | --ddp DIR] [--write docs/accuracy.md]

DATA is a directory of recorded jobs (default: ``../shared/data`` beside the project). With ``--torch``, a
Python that has torch records further pairs on this machine first (`benchmarks/ddp_job.py`, a minute), into
DIR where ``--ddp`` is given too; with ``--ddp`` alone they are those of an earlier run. Nothing is fitted to
what is predicted.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from arrays import Float64
from arrays.median import FEWEST
from benchmarks import known_byteps, known_gains, known_nccl
from benchmarks.known_jobs import random_job
from dag_utils import Recording, load_steps, read_partitions
from errors import AnalyzeError, UsageError
from replay.answer import leave_one_out, measured_ns, with_gaps_of_others
from replay.edit import EditRequest, Job
from replay.forecast import Forecast, Forecasts
from replay.runs import replayed_ns
from replay.uncertainty import mean_interval
from replay.whatif.schedule import rescheduled
from trace_utils import Request

ROOT = Path(__file__).resolve().parent.parent

JOBS = (
    "byteps/fork_lenet_base", "byteps/fork_lenet_slownet", "byteps/fork_lenet_2w2g",
    "byteps/fork_lenet_straggler", "byteps/fork_lenet_stock_mxnet", "byteps/fork_mlp_2w2s_pcap",
    "byteps/fork_resnet50_2w1s", "byteps/master_mxnet_mlp_2w2s_pcap", "byteps/master_torch_cnn_2w1s",
    "byteps/master_torch_truncated", "kineto/ddp2-gloo-base/trace", "kineto/ddp2-gloo-slow-rank1/trace",
    "kineto/ddp2-gloo-key-averages/trace", "kineto/ddp4-gloo-base/trace",
    "kineto/gpu-hta-nccl-rank0of2/trace", "kineto/gpu-hta-ns-resolution",
    "kineto/gpu-hta-rank1of2-memory", "kineto/gpu-hta-rank0of16", "horovod/2ranks-base/trace",
    "horovod/2ranks-cycles/trace", "horovod/2ranks-slow-rank1/trace", "composer/ws2/trace",
    "composer/ws2-slow-rank1/trace",
)  # fmt: skip

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

#: The same for the conditions of `benchmarks/ddp_job.py`; the edits change what its conditions change.
DDP_PAIRS = (
    ("base", "Emulated=1", "base"),  # nothing: how alike two recordings of one job are
    ("small", "Emulated=1", "small"),
    ("base", "EmulatedBackward=2", "backward"),
    ("backward", "EmulatedBackward=0.5", "base"),
    ("base", "Emulated=2 EmulatedBackward=2", "batch"),
    ("batch", "Emulated=0.5 EmulatedBackward=0.5", "base"),
    ("backward", "Emulated=2", "batch"),
    ("batch", "Emulated=0.5", "backward"),
    ("base", "rank1.Emulated=1.6 rank1.EmulatedBackward=1.6", "slow"),
    ("slow", "straggler=none", "base"),
    ("base", "rank1.I/O=+40ms", "input"),
    ("input", "straggler=none", "base"),
    ("small", "rank1.Emulated=1.6 rank1.EmulatedBackward=1.6", "small_slow"),
    ("small_slow", "straggler=none", "small"),
    ("small", "bucket_cap=8MB", "middle"),
    ("small", "bucket_cap=25MB", "base"),
    ("middle", "bucket_cap=25MB", "base"),
)

#: What is asked of the jobs whose answer is known, and of how many of them.
EDITS = ("FW=0.5", "BW=2", "reduce=0.5", "reduce=3", "rank0=0.7")
_KNOWN_JOBS = 40
STEPS = 10
#: What is asked of the jobs in a simulated cluster. What intervals allow for was chosen by looking at those
#: with even seeds; they are not asked.
CLUSTER_EDITS = (
    "bandwidth=0.1", "bandwidth=0.5", "bandwidth=2", "bandwidth=10", "bandwidth=100Mbit", "bandwidth=1Gbit",
    "partition_bytes=65536", "partition_bytes=262144", "partition_bytes=4096000", "FW=0.5", "BW=2",
)  # fmt: skip
_CLUSTER_SEEDS = range(1, 28, 2)
#: What is asked of jobs on simulated GPUs, and of which (13 is as large as the others together).
_NCCL_SEEDS = (1, 3, 5, 7, 9, 11, 15, 17)
_NCCL_EDITS = (
    "bandwidth=0.5", "bandwidth=2", "bandwidth=4", "latency=4", "bucket_cap=25MB", "bucket_cap=50MB",
    "overlap=off", "rank1=1.3", "rank0=0.7", "stage1=0.8", "kernel=2", "kernel=0.5",
    "drop=fused_dropout_kernel", "straggler=none", "straggler=mean",
)  # fmt: skip
#: How long recording may take.
_LONGEST_S = 600


def load(path: Path) -> Forecasts:
    """Return the job at `path` to ask edits of, with the sizes of partitions that its logs have."""
    loaded = load_steps([path], Request(progress=False), partitions=read_partitions([path]), sizes=True)
    return Forecasts(Job.of(loaded), loaded.recording.whole_steps)


def record(python: str, directory: Path) -> None:
    """Record the conditions of `benchmarks/ddp_job.py` into `directory`, which may not hold any yet.

    Raises
    ------
    subprocess.SubprocessError
        A rank failed, or they took longer than ten minutes.
    """
    directory.mkdir(parents=True, exist_ok=True)
    script = Path(__file__).with_name("ddp_job.py")
    ranks = [
        subprocess.Popen([python, str(script), str(directory), str(rank)], stderr=subprocess.DEVNULL)
        for rank in range(2)
    ]
    try:
        for one in ranks:
            if one.wait(_LONGEST_S):
                raise subprocess.CalledProcessError(one.returncode, one.args)
    finally:
        for one in ranks:
            one.kill()


def step_means(recording: Recording) -> Float64:
    """Return the recorded time of each whole step, the mean over its owners, in milliseconds."""
    times = measured_ns(recording)[recording.whole_steps]
    return np.array([row[~np.isnan(row)].mean() for row in times]) / 1e6


def queue_errors(recording: Recording) -> Float64:
    """Return |error| of each whole step of each owner with links that serve who is ready first."""
    rows = recording.whole_steps
    recorded = measured_ns(recording)[rows]
    times = replayed_ns(rescheduled(recording, by_priority=False), rows)
    errors = np.abs(times - recorded) / recorded
    return np.asarray(errors[~np.isnan(errors)], np.float64)


def tables(data: Path, ddp: Path | None) -> Iterator[str]:
    """Yield the lines of all tables; `ddp` is where the recordings of `benchmarks/ddp_job.py` lie."""
    jobs = {job: load(data / job) for job in JOBS if (data / job).is_dir()}
    yield from _model({job: found.job.recording for job, found in jobs.items()})
    yield from _halves({job: found.job.recording for job, found in jobs.items()})
    yield from _pairs(jobs)
    yield from _known()
    yield from _cluster()
    yield from _nccl()
    if ddp is not None:
        yield from _ddp([path for path in sorted(ddp.iterdir()) if path.is_dir()])
    yield "## 8. What `diagnose` claims for a slow worker, or server"
    yield ""
    yield from known_gains.table()
    yield from known_gains.server_table()


def _model(recordings: dict[str, Recording]) -> Iterator[str]:
    yield "## 1. The model: what a step's own gaps and the order of its links add"
    yield ""
    yield (
        "| jobs | steps | links first come, first served: median | p90 "
        "| gaps of the other steps: median | p90 |"
    )
    yield "| --- | --: | --: | --: | --: | --: |"
    together: list[list[Float64]] = [[], []]
    for system, named in itertools.groupby(recordings.items(), lambda one: one[0].partition("/")[0]):
        jobs = [recording for _, recording in named]
        errors = [np.abs(leave_one_out(one, with_gaps_of_others(one))) for one in jobs]
        kinds = [np.concatenate(list(map(queue_errors, jobs))), np.concatenate(errors)]
        for all_of_kind, of_system in zip(together, kinds, strict=True):
            all_of_kind.append(of_system)
        n_steps = sum(len(one.whole_steps) for one in jobs)
        yield f"| {len(jobs)} of {system} | {n_steps} | {_percentiles(kinds)} |"
    yield f"| **all steps together** | | {_percentiles([np.concatenate(kind) for kind in together])} |"
    yield ""


def _percentiles(kinds: Sequence[Float64]) -> str:
    cells = []
    for errors in kinds:
        known = len(errors) > 0
        cells += [f"{np.median(errors):.2%}", f"{np.percentile(errors, 90):.2%}"] if known else ["–", "–"]
    return " | ".join(cells)


def _halves(recordings: dict[str, Recording]) -> Iterator[str]:
    yield "## 2. The prediction: the second half of the steps from the first"
    yield ""
    yield "| job | steps | predicted (ms) | 95 % interval (ms) | recorded (ms) | error | inside |"
    yield "| --- | --: | --: | --: | --: | --: | --- |"
    score = Score()
    for job, recording in recordings.items():
        recorded = step_means(recording)
        half = len(recorded) // 2
        if half < FEWEST:
            continue  # too few steps
        then = float(recorded[half:].mean())
        interval = mean_interval(recorded[:half] * 1e6, len(recorded) - half)
        cells = score.cells(float(recorded[:half].mean()), interval, then)
        yield f"| {_name(job)} | {half} + {len(recorded) - half} | {cells} |"
    yield from score.lines()


def _pairs(jobs: dict[str, Forecasts]) -> Iterator[str]:
    yield "## 3. The what-if: one recording predicted from another"
    yield ""
    yield "| recorded | `--set` | predicted (ms) | 95 % interval (ms) | recorded (ms) | error | inside |"
    yield "| --- | --- | --: | --: | --: | --: | --- |"
    score = Score()
    for job, edit, then in PAIRS:
        if job in jobs and then in jobs:
            found = _foreseen(jobs[job], edit)
            recorded = float(step_means(jobs[then].job.recording).mean())
            cells = score.cells(found.after_ns / 1e6, found.interval_ns, recorded)
            yield f"| {_name(job)} | `{edit}` | {cells} |"
    yield from score.lines()


def _known() -> Iterator[str]:
    yield "## 4. Jobs whose answer is arithmetic"
    yield ""
    yield (
        f"{_KNOWN_JOBS} jobs of 2 to 8 ranks, {STEPS} recorded steps each, against the mean of {STEPS} "
        "other steps of the edited job."
    )
    yield ""
    yield "| `--set` | error: median | p90 | worst | inside the interval | its width: median |"
    yield "| --- | --: | --: | --: | --: | --: |"
    scores = {edit: Score() for edit in EDITS}
    for seed in range(_KNOWN_JOBS):
        job = random_job(seed)
        recording, _ = job.run(STEPS, 2 * seed)
        forecasts = Forecasts(Job(recording), recording.whole_steps)
        for edit, score in scores.items():
            found = _foreseen(forecasts, edit)
            _, then = job.edited(edit).run(STEPS, 2 * seed + 1)
            score.cells(found.after_ns / 1e6, found.interval_ns, float(then.mean()))
    for edit, score in scores.items():
        yield f"| `{edit}` | {score.summary()} |"
    yield ""


def _cluster() -> Iterator[str]:
    yield "## 5. BytePS jobs in a simulated cluster"
    yield ""
    yield (
        f"{len(_CLUSTER_SEEDS)} jobs of 2 to 4 workers, {STEPS} recorded steps each, against {STEPS} steps "
        "of the edited job when it is run."
    )
    yield ""
    yield "| `--set` | error: median | p90 | worst | inside the interval | its width: median |"
    yield "| --- | --: | --: | --: | --: | --: |"
    scores = {edit: Score() for edit in CLUSTER_EDITS}
    together = Score()
    for seed in _CLUSTER_SEEDS:
        job = known_byteps.random_job(seed)
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / "job"
            job.run(STEPS, seed, path)
            forecasts = load(path)
        for edit, score in scores.items():
            found = _foreseen(forecasts, edit)
            then = float(job.edited(edit).run(STEPS, 1000 + seed).mean())
            for one in (score, together):
                one.cells(found.after_ns / 1e6, found.interval_ns, then)
    for edit, score in scores.items():
        yield f"| `{edit}` | {score.summary()} |"
    yield f"| **all** | {together.summary()} |"
    yield ""


def _nccl() -> Iterator[str]:
    yield "## 6. PyTorch jobs on simulated GPUs"
    yield ""
    yield (
        f"{len(_NCCL_SEEDS)} jobs of 2 to 8 ranks, {STEPS} recorded steps each, against {2 * STEPS} "
        "steps of the edited job when it is run. Not asked: stages where there are none, and caps below the "
        "recorded one."
    )
    yield ""
    yield "| `--set` | jobs | error: median | p90 | worst | inside the interval | its width: median |"
    yield "| --- | --: | --: | --: | --: | --: | --: |"
    scores = {edit: Score() for edit in _NCCL_EDITS}
    together = Score()
    for seed in _NCCL_SEEDS:
        job = known_nccl.random_job(seed)
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / "job"
            job.run(STEPS, seed, path)
            recorded = load(path)
            for edit, score in scores.items():
                try:
                    found = _foreseen(recorded, edit)
                except UsageError:
                    continue
                then = job.edited(edit, STEPS, seed).run(2 * STEPS, 1000 + seed)
                for one in (score, together):
                    one.cells(found.after_ns / 1e6, found.interval_ns, then)
    for edit, score in scores.items():
        if score.errors:
            yield f"| `{edit}` | {len(score.errors)} | {score.summary()} |"
    yield f"| **all** | {len(together.errors)} | {together.summary()} |"
    yield ""


def _ddp(rounds: Sequence[Path]) -> Iterator[str]:
    yield "## 7. The what-if: pairs of PyTorch jobs, recorded on one machine"
    yield ""
    yield (
        f"{len(rounds)} rounds of all conditions; each recording of one condition predicts each one of the "
        "other, and with `Emulated=1`, which changes nothing, each other one of the same."
    )
    yield ""
    yield "| recorded | `--set` | then | error: median | p90 | worst | inside the interval | median width |"
    yield "| --- | --- | --- | --: | --: | --: | --: | --: |"
    names = {name for job, _, then in DDP_PAIRS for name in (job, then)}
    jobs = {(at, name): load(at / name) for at in rounds for name in sorted(names)}
    means = {key: float(step_means(found.job.recording).mean()) for key, found in jobs.items()}
    together = Score()
    for job, edit, then in DDP_PAIRS:
        score = Score()
        for at in rounds:
            found = _foreseen(jobs[at, job], edit)
            for other in rounds:
                if job == then and at == other:
                    continue
                for one in (score, together)[: 1 + (job != then)]:
                    one.cells(found.after_ns / 1e6, found.interval_ns, means[other, then])
        yield f"| {job} | `{edit}` | {then} | {score.summary()} |"
    yield f"| **all but `Emulated=1`** | | | {together.summary()} |"
    yield ""


def _foreseen(forecasts: Forecasts, edits: str) -> Forecast:
    return forecasts.of([EditRequest.of(edit) for edit in edits.split()])


class Score:
    """Collects predictions: how wrong they are, and whether their intervals hold the truth."""

    def __init__(self) -> None:
        self.errors: list[float] = []
        self.widths: list[float] = []
        self.inside = 0

    def cells(self, predicted: float, interval_ns: tuple[float, float] | None, truth: float) -> str:
        """Return the cells of a row, in milliseconds."""
        error = (predicted - truth) / truth
        self.errors.append(abs(error))
        if interval_ns is None:
            return f"{predicted:.1f} | too few steps | {truth:.1f} | {error:+.1%} | "
        low, high = interval_ns[0] / 1e6, interval_ns[1] / 1e6
        holds = low <= truth <= high
        self.inside += holds
        self.widths.append((high - low) / predicted)
        cells = [f"{predicted:.1f}", f"{low:.1f} to {high:.1f}", f"{truth:.1f}", f"{error:+.1%}"]
        return " | ".join([*cells, "yes" if holds else "no"])

    def summary(self) -> str:
        """Return the errors, the share of intervals that hold the truth, and their width, as cells."""
        median, most = np.percentile(self.errors, [50, 90])
        coverage = f"{self.inside} of {len(self.widths)}"
        width = f"{np.median(self.widths):.0%}" if self.widths else "–"
        return f"{median:.1%} | {most:.1%} | {max(self.errors):.1%} | {coverage} | {width}"

    def lines(self) -> Iterator[str]:
        """Yield the summary as a sentence."""
        yield ""
        if self.errors:
            median, most, worst, inside, width = self.summary().split(" | ")
            yield f"Error: median {median}, p90 {most}, worst {worst}."
            yield f"Inside the interval: {inside}; its median width is {width}."
        yield ""


def _name(job: str) -> str:
    return job.removesuffix("/trace")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="?", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--torch", metavar="PYTHON", help="a Python with torch, to record further pairs")
    parser.add_argument("--ddp", type=Path, metavar="DIR", help="where those lie, or are to lie")
    parser.add_argument("--write", type=Path, help="replace the tables in this document")
    args = parser.parse_args()
    if not args.data.is_dir():
        print(f"{args.data}: no directory of recorded jobs", file=sys.stderr)
        return 1
    try:
        with tempfile.TemporaryDirectory() as scratch:
            ddp: Path | None = args.ddp
            if args.torch:
                ddp = ddp or Path(scratch)
                record(args.torch, ddp)
            lines = list(tables(args.data, ddp))
    except (AnalyzeError, subprocess.SubprocessError) as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(lines))
    if args.write:
        head, marker, _ = args.write.read_text(encoding="utf-8").partition("<!-- tables -->\n")
        date = datetime.datetime.now(datetime.timezone.utc).date()
        args.write.write_text(
            f"{head}{marker}\nMeasured on {date}.\n\n" + "\n".join(lines) + "\n", encoding="utf-8"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
