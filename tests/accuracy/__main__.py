"""How wrong replay is: on recorded jobs, on recorded pairs of jobs, and on jobs whose answer is arithmetic.

    PYTHONPATH=.:tests python3 -m accuracy [DATA] [--torch PYTHON | --ddp DIR] [--gpu DIR]
                                           [--write docs/accuracy.md]

DATA is a directory of recorded jobs (default: ``../shared/data`` beside the project). With ``--torch``, a
Python that has torch records further pairs on this machine first (`ddp_job.py`, a minute), into
DIR where ``--ddp`` is given too; with ``--ddp`` alone they are those of an earlier run. ``--gpu`` has what
`gpu_job.py` recorded. Nothing is fitted to what is predicted.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import itertools
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from accuracy import gpu_findings, known_gains
from arrays import Float64
from arrays.median import FEWEST
from dag_utils import Recording, load_steps, read_partitions
from errors import AnalyzeError, UsageError
from oracles import known_byteps, known_nccl
from oracles.known_jobs import random_job
from replay.answer import measured_ns
from replay.edit import EditRequest, Job
from replay.forecast import Forecast, Forecasts
from replay.runs import replayed_ns
from replay.uncertainty import mean_interval
from replay.whatif.schedule import rescheduled
from trace_utils import Request

_Simulated: TypeAlias = known_byteps.BytePSJob | known_nccl.NCCLJob
ROOT = Path(__file__).resolve().parents[2]

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

#: The same for the conditions of `ddp_job.py`; the edits change what its conditions change.
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

#: The same for those of `gpu_job.py` on one device, and where two ranks share it.
GPU_PAIRS = (
    ("busy", "kernel=1", "busy"),
    ("busy_layers", "kernel=1", "busy_layers"),
    ("tiny", "kernel=1", "tiny"),
    ("tiny_items", "kernel=1", "tiny_items"),
    ("tiny_python", "kernel=1", "tiny_python"),
    ("tiny_loader", "kernel=1", "tiny_loader"),
    ("ddp", "kernel=1", "ddp"),
    ("busy", "FW=2 BW=2", "busy_batch"),
    ("busy_batch", "FW=0.5 BW=0.5", "busy"),
    ("busy_spin5", "spin_kernel=2", "busy_spin10"),
    ("busy_spin10", "spin_kernel=0.5", "busy_spin5"),
    ("busy_spin5", "drop=spin_kernel", "busy"),
    ("busy_spin10", "drop=spin_kernel", "busy"),
    ("tiny_spin1", "drop=spin_kernel", "tiny"),
    ("tiny_spin1", "spin_kernel=20", "tiny_spin20"),
    ("tiny_spin20", "spin_kernel=0.05", "tiny_spin1"),
    ("busy", "I/O=+10ms", "busy_loader"),
    ("busy", "I/O=+60ms", "busy_starves"),
    ("busy_loader", "I/O=+50ms", "busy_starves"),
    ("busy_loader", "I/O=0.001", "busy"),
    ("busy_starves", "I/O=0.001", "busy"),
    ("tiny", "I/O=+10ms", "tiny_loader"),
    ("tiny_loader", "I/O=0.001", "tiny"),
    ("busy_item", "sync=none", "busy"),
    ("busy_items", "sync=none", "busy"),
    ("tiny_items", "sync=none", "tiny"),
    ("tiny_synchronize", "sync=none", "tiny"),
    ("busy_empty_cache", "allocations=none", "busy"),
    ("busy_pageable", "gpu_memcpy=0.001", "busy"),
    ("busy_pinned", "gpu_memcpy=0.001", "busy_prefetch"),
    ("busy_saves", "drop=save_checkpoint", "busy"),
    ("tiny_python", "drop=extra", "tiny"),
    ("tiny", "host=none", "tiny_graph"),
    ("ddp_small", "bucket_cap=20MB", "ddp_middle"),
    ("ddp_small", "bucket_cap=40MB", "ddp"),
    ("ddp_middle", "bucket_cap=40MB", "ddp"),
    ("ddp_small", "overlap=off", "ddp_one"),
    ("ddp_spin", "straggler=none", "ddp"),
    ("ddp_loader", "straggler=none", "ddp"),
    ("ddp_backward", "BW=0.5", "ddp"),
    ("ddp", "BW=2", "ddp_backward"),
)

#: What is asked of the jobs whose answer is known, and of how many of them.
EDITS = ("FW=0.5", "BW=2", "reduce=0.5", "reduce=3", "rank0=0.7")
_KNOWN_JOBS = 40
STEPS = 10
#: What is asked of the jobs in a simulated cluster, of seeds that nobody looked at before.
CLUSTER_EDITS = (
    "bandwidth=0.1", "bandwidth=0.5", "bandwidth=2", "bandwidth=10", "bandwidth=100Mbit", "bandwidth=1Gbit",
    "partition_bytes=65536", "partition_bytes=262144", "partition_bytes=4096000", "FW=0.5", "BW=2",
)  # fmt: skip
_CLUSTER_SEEDS, _OTHER_SEEDS = range(101, 121, 2), range(101, 109)
#: The same of jobs on simulated GPUs.
_NCCL_SEEDS = range(101, 117, 2)
NCCL_EDITS = (
    "bandwidth=0.5", "bandwidth=2", "bandwidth=4", "latency=4", "bucket_cap=25MB", "bucket_cap=50MB",
    "overlap=off", "rank1=1.3", "rank0=0.7", "stage1=0.8", "kernel=2", "kernel=0.5",
    "drop=fused_dropout_kernel", "straggler=none", "straggler=mean",
)  # fmt: skip
#: How long recording may take.
_LONGEST_S = 600
_DDP_TABLE, _GPU_TABLES = 4, (7, 8)  # which need recordings


def load(path: Path) -> Forecasts:
    """Return the job at `path` to ask edits of, with the sizes of partitions that its logs have."""
    loaded = load_steps([path], Request(progress=False), partitions=read_partitions([path]), sizes=True)
    return Forecasts(Job.of(loaded), loaded.recording.whole_steps)


def record(python: str, directory: Path) -> None:
    """Record the conditions of `ddp_job.py` into `directory`, which may not hold any yet.

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


def tables(
    data: Path, ddp: Path | None, gpu: Path | None, chosen: Sequence[int]
) -> Iterator[tuple[str, Iterator[str]]]:
    """Yield titles and lines of the `chosen` tables.

    `ddp` and `gpu` are where the recordings of `ddp_job.py` and `gpu_job.py` lie; None:
    the document keeps their tables.
    """
    from accuracy import ablation  # they ask this module, or all of `diagnose`

    jobs: dict[str, Forecasts] = {}
    if {2, 3} & set(chosen):
        jobs = {job: load(data / job) for job in JOBS if (data / job).is_dir()}
    recordings = {job: found.job.recording for job, found in jobs.items()}
    every = (
        ("One recording predicted from another", _pairs(jobs)),
        ("Simulated jobs, run with and without the edit", _simulated(recordings)),
        ("Pairs of PyTorch jobs, recorded on one machine", _ddp(ddp)),
        (
            "What `diagnose` claims for a slow worker, or server",
            itertools.chain(known_gains.table(), known_gains.server_table()),
        ),
        ("Late ranks in step logs", _step_logs()),
        ("Each rule left out alone", ablation.table(data, gpu)),
        ("Pairs of PyTorch jobs, recorded on a GPU", _gpu(gpu)),
    )
    has = {_DDP_TABLE: ddp, **dict.fromkeys(_GPU_TABLES, gpu)}
    for number, (title, lines) in enumerate(every, 2):
        if number in chosen and has.get(number, data) is not None:
            yield f"## {number}. {title}", lines


#: An edit's or a set's name, the predicted step (ms), its interval (ns), and what was then measured (ms).
_Asked: TypeAlias = tuple[str, float, tuple[float, float] | None, float]


def _halves(recordings: dict[str, Recording]) -> Iterator[_Asked]:
    """Yield the mean of the second half of the steps of jobs, predicted from the first half."""
    for recording in recordings.values():
        recorded = step_means(recording)
        half = len(recorded) // 2
        if half >= FEWEST:
            interval = mean_interval(recorded[:half] * 1e6, len(recorded) - half)
            yield "", float(recorded[:half].mean()), interval, float(recorded[half:].mean())


def _pairs(jobs: dict[str, Forecasts]) -> Iterator[str]:
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


def _known() -> Iterator[_Asked]:
    """Yield edits of jobs whose answer is arithmetic, against the mean of other steps of the edited job."""
    for seed in range(_KNOWN_JOBS):
        job = random_job(seed)
        recording, _ = job.run(STEPS, 2 * seed)
        forecasts = Forecasts(Job(recording), recording.whole_steps)
        for edit in EDITS:
            found = _foreseen(forecasts, edit)
            _, then = job.edited(edit).run(STEPS, 2 * seed + 1)
            yield edit, found.after_ns / 1e6, found.interval_ns, float(then.mean())


_HEAD = (
    "| jobs | `--set` | asked | error: median | p90 | worst | inside | width: median |",
    "| --- | --- | --: | --: | --: | --: | --: | --: |",
)


#: Of a GPU's job: what takes away its copies, or what only its host does.
_OF_HOST = ("gpu_memcpy=0.001", "drop=save_checkpoint", "drop=extra")


def _kind(edits: str) -> str:
    """Return the kind of an edit."""
    name = edits.partition("=")[0]
    if edits.endswith("=1"):
        return "nothing"
    if name in ("sync", "host", "allocations") or edits in _OF_HOST:
        return "host, memory, copies"
    if name == "I/O":
        return "input"
    if name in ("bandwidth", "latency"):
        return "network"
    if name in ("partition_bytes", "bucket_cap", "overlap"):
        return "partitions, buckets"
    return "computation"


def _rows(jobs: str, asked: Iterable[_Asked]) -> Iterator[str]:
    """Yield a row for each kind of edit that is asked of some `jobs`, and one of all but "nothing"."""
    scores: dict[str, Score] = {}
    together = Score()
    for edits, predicted, interval, then in asked:
        for one in (scores.setdefault(_kind(edits), Score()), together)[: 1 + (_kind(edits) != "nothing")]:
            one.cells(predicted, interval, then)
    for kind, score in sorted(scores.items()) if len(scores) > 1 else ():
        yield f"| {jobs} | {kind} | {len(score.errors)} | {score.summary()} |"
        jobs = ""
    yield f"| {jobs} | **all** | {len(together.errors)} | {together.summary()} |"


def _simulated(recordings: dict[str, Recording]) -> Iterator[str]:
    def run(jobs: Iterable[tuple[_Simulated, int]], edits: Sequence[str], n: int) -> Iterator[_Asked]:
        for job, seed in jobs:
            for edit, found, then in asked(job, seed, edits, n):
                yield edit, found.after_ns / 1e6, found.interval_ns, then

    yield from _HEAD
    clusters = ((known_byteps.random_job(seed), seed) for seed in _CLUSTER_SEEDS)
    yield from _rows(f"{len(_CLUSTER_SEEDS)} in a cluster", run(clusters, CLUSTER_EDITS, STEPS))
    others = ((known_byteps.other_job(seed), seed) for seed in _OTHER_SEEDS)
    yield from _rows(
        f"{len(_OTHER_SEEDS)} with servers on workers' machines, or a slow one",
        run(others, CLUSTER_EDITS, STEPS),
    )
    gpus = ((known_nccl.random_job(seed), seed) for seed in _NCCL_SEEDS)
    yield from _rows(f"{len(_NCCL_SEEDS)} on GPUs", run(gpus, NCCL_EDITS, 2 * STEPS))
    yield from _rows(f"{_KNOWN_JOBS} whose answer is arithmetic", _known())
    yield from _rows("recorded jobs: the second half of their steps from the first", _halves(recordings))
    yield ""


def asked(
    job: _Simulated, seed: int, edits: Sequence[str], then_steps: int
) -> Iterator[tuple[str, Forecast, float]]:
    """Yield edits of a recorded job, their forecasts, and the mean step (ms) when the edited job runs."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "job"
        job.run(STEPS, seed, path)
        recorded = load(path)
        for edit in edits:
            with contextlib.suppress(UsageError):
                predicted = _foreseen(recorded, edit)
                then = job.edited(edit, STEPS, seed).run(then_steps, 1000 + seed)
                yield edit, predicted, float(np.mean(then))


def _step_logs() -> Iterator[str]:
    from accuracy.step_logs import about_and_table

    yield from about_and_table().splitlines()


def _rounds(label: str, directory: Path, questions: Sequence[tuple[str, str, str]]) -> Iterator[str]:
    rounds = [path for path in sorted(directory.iterdir()) if path.is_dir()]
    yield (
        f"{len(rounds)} rounds of all conditions; each recording of one condition predicts each one of the "
        "other, and where nothing changes each other one of the same."
    )
    yield ""
    names = {name for job, _, then in questions for name in (job, then)}
    found = {(at, name): at / name for at in rounds for name in sorted(names)}
    jobs = {key: load(path) for key, path in found.items() if path.is_dir()}
    means = {key: float(step_means(one.job.recording).mean()) for key, one in jobs.items()}

    def pairs() -> Iterator[_Asked]:
        for job, edit, then in questions:
            for at, name in jobs:
                if name == job:
                    foreseen = _foreseen(jobs[at, job], edit)
                    for other in means.keys() - {(at, job)}:
                        if other[1] == then:
                            yield edit, foreseen.after_ns / 1e6, foreseen.interval_ns, means[other]

    yield from _HEAD
    yield from _rows(label, pairs())
    yield ""


def _ddp(directory: Path | None) -> Iterator[str]:
    if directory is not None:
        yield from _rounds("PyTorch DDP over gloo", directory, DDP_PAIRS)


def _gpu(directory: Path | None) -> Iterator[str]:
    if directory is not None:
        yield from _rounds("one H200", directory, GPU_PAIRS)
        yield from gpu_findings.table(directory)


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
    parser.add_argument("--gpu", type=Path, metavar="DIR", help="where recordings of a GPU lie")
    parser.add_argument("--write", type=Path, help="put the tables into this document")
    parser.add_argument("--tables", type=int, nargs="*", default=range(2, 9), help="only these (2 to 8)")
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
            for title, lines in tables(args.data, ddp, args.gpu, args.tables):
                made = [title, "", *lines]
                print("\n".join(made), flush=True)
                if args.write:
                    _put(args.write, made)
    except (AnalyzeError, subprocess.SubprocessError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _put(document: Path, made: Sequence[str]) -> None:
    """Put a table where the document has the one of its number, or behind all others; with the date."""
    date = datetime.datetime.now(datetime.timezone.utc).date()
    text = "\n".join([f"{made[0]} ({date})", *made[1:]]).rstrip() + "\n"
    head, *parts = re.split(r"^(?=## \d+\. )", document.read_text(encoding="utf-8"), flags=re.MULTILINE)
    of_number = {int(part[3:].partition(".")[0]): part for part in parts}
    of_number[int(made[0][3:].partition(".")[0])] = text
    tables = [of_number[number].rstrip() + "\n" for number in sorted(of_number)]
    document.write_text(head + "\n".join(tables), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
