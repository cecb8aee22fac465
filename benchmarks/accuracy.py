"""How wrong replay is on recorded jobs: the model, the prediction, the what-if.

    python3 -m benchmarks.accuracy [DATA] [--write docs/accuracy.md]

DATA is a directory of recorded jobs (default: ``../shared/data`` beside the project). Nothing is fitted
to what is predicted.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from collector.network.partition_keys import read_keys
from errors import AnalyzeError
from replay.answer import answer, leave_one_out, mean_interval, measured_ns, whole_steps
from replay.load import Partitions, load_recording, partition_sizes
from replay.model import Model, fit
from replay.model import replay as run_steps
from replay.whatif.edits import apply
from result import Repairs

ROOT = Path(__file__).resolve().parent.parent
Float = NDArray[np.float64]

JOBS = (
    "byteps/fork_lenet_base", "byteps/fork_lenet_slownet", "byteps/fork_lenet_2w2g",
    "byteps/fork_lenet_stock_mxnet", "byteps/fork_mlp_2w2s_pcap", "byteps/fork_resnet50_2w1s",
    "byteps/master_mxnet_mlp_2w2s_pcap", "byteps/master_torch_cnn_2w1s", "byteps/master_torch_truncated",
    "kineto/ddp2-gloo-base/trace", "kineto/ddp2-gloo-slow-rank1/trace", "kineto/ddp2-gloo-key-averages/trace",
    "kineto/ddp4-gloo-base/trace", "kineto/gpu-hta-nccl-rank0of2/trace",
    "horovod/2ranks-base/trace", "horovod/2ranks-cycles/trace", "horovod/2ranks-slow-rank1/trace",
)  # fmt: skip

#: (recorded, what is asked of it, what was then recorded)
WHAT_IFS = (
    ("byteps/fork_lenet_base", "bandwidth=0.1", "byteps/fork_lenet_slownet"),
    ("byteps/fork_lenet_slownet", "bandwidth=10", "byteps/fork_lenet_base"),
    ("kineto/ddp2-gloo-base/trace", "rank1.I/O=+400ms", "kineto/ddp2-gloo-slow-rank1/trace"),
    ("kineto/ddp2-gloo-slow-rank1/trace", "straggler=none", "kineto/ddp2-gloo-base/trace"),
    (
        "horovod/2ranks-base/trace",
        "allreduce.10.bias.NEGOTIATE_ALLREDUCE=+80ms",
        "horovod/2ranks-slow-rank1/trace",
    ),
)

#: Steps whose deviation is below this share of their mean are steady.
STEADY = 0.1


def load(path: Path) -> Model:
    """Return the model of the job at `path`, with the sizes of its partitions where a log has them."""
    keys = read_keys(path, Repairs())
    sized = {d: (t.total_bytes, t.n_parts) for d, t in keys.tensors.items() if t.total_bytes and t.n_parts}
    partitions = Partitions(partition_sizes(sized), keys.servers)
    return fit(load_recording([path], partitions=partitions, progress=False).recording)


def step_means(model: Model) -> Float:
    """Return the recorded time of each whole step, the mean over its owners, in milliseconds."""
    times = measured_ns(model)[whole_steps(model)]
    return np.array([row[~np.isnan(row)].mean() for row in times]) / 1e6


def model_errors(model: Model) -> Float:
    """Return |error| of each whole step of each owner, all replayed in a row from their own times."""
    rows = whole_steps(model)
    recorded = measured_ns(model)[rows]
    errors = np.abs(run_steps(model, rows).iteration_ns - recorded) / recorded
    return np.asarray(errors[~np.isnan(errors)], np.float64)


def queue_errors(model: Model) -> Float:
    """Return the same with links that serve who is ready first, whatever order was recorded."""
    none = np.empty((0, 2), np.int64)
    steps = [replace(step, turn=np.zeros_like(step.turn), overtaken=none) for step in model.steps]
    return model_errors(replace(model, steps=steps))


def tables(data: Path) -> Iterator[str]:
    """Yield the lines of the three tables."""
    models = {job: load(data / job) for job in JOBS if (data / job).is_dir()}
    yield from _question_1(models)
    yield from _question_2(models)
    yield from _question_3(models)


def _question_1(models: dict[str, Model]) -> Iterator[str]:
    yield "## 1. The model: each recorded step from its own durations"
    yield ""
    yield (
        "| job | steps | own gaps: median | p90 | links first come first served: median | p90 "
        "| gaps of the other steps: median | p90 |"
    )
    yield "| --- | --: | --: | --: | --: | --: | --: | --: |"
    together: list[list[Float]] = [[], [], []]
    for job, model in models.items():
        kinds = [model_errors(model), queue_errors(model), np.abs(leave_one_out(model))]
        for all_of_kind, errors in zip(together, kinds, strict=True):
            all_of_kind.append(errors)
        yield f"| {_name(job)} | {len(whole_steps(model))} | {_percentiles(kinds)} |"
    yield f"| **all steps together** | | {_percentiles([np.concatenate(kind) for kind in together])} |"
    yield ""


def _percentiles(kinds: Sequence[Float]) -> str:
    cells = []
    for errors in kinds:
        cells += (
            [f"{np.median(errors):.2%}", f"{np.percentile(errors, 90):.2%}"] if len(errors) else ["–", "–"]
        )
    return " | ".join(cells)


def _question_2(models: dict[str, Model]) -> Iterator[str]:
    yield "## 2. The prediction: fitted on the first half of the steps, the mean of the second half"
    yield ""
    yield "| job | steps | deviation | predicted (ms) | 95 % interval (ms) | recorded (ms) | error | inside |"
    yield "| --- | --: | --: | --: | --: | --: | --: | --- |"
    inside = total = 0
    for job, model in models.items():
        rows, recorded = whole_steps(model), step_means(model)
        half = len(rows) // 2
        if half < 2:
            yield f"| {_name(job)} | {len(rows)} | | too few steps to fit on half of them | | | | |"
            continue
        first = _only(model, rows[:half])
        found = answer(first)
        per_step = found.result.iteration_ns.mean(axis=1)
        interval = mean_interval(per_step, len(rows) - half)
        assert interval is not None
        low, high = interval[0] / 1e6, interval[1] / 1e6
        then, predicted = float(recorded[half:].mean()), found.iteration_ns / 1e6
        inside, total = inside + (low <= then <= high), total + 1
        deviation = float(recorded.std(ddof=1) / recorded.mean())
        steady = " (steady)" if deviation < STEADY else ""
        cells = [_name(job), f"{half} + {len(rows) - half}", f"{deviation:.0%}{steady}", f"{predicted:.1f}",
                 f"{low:.1f} to {high:.1f}", f"{then:.1f}", f"{(predicted - then) / then:+.1%}",
                 "yes" if low <= then <= high else "no"]  # fmt: skip
        yield f"| {' | '.join(cells)} |"
    yield ""
    yield f"Inside the interval: {inside} of {total}."
    yield ""


def _question_3(models: dict[str, Model]) -> Iterator[str]:
    yield "## 3. The what-if: one recording predicted from another"
    yield ""
    yield "| recorded | `--set` | before (ms) | predicted (ms) | 95 % interval (ms) | recorded (ms) | error |"
    yield "| --- | --- | --: | --: | --: | --: | --: |"
    for job, edit, then in WHAT_IFS:
        if job not in models or then not in models:
            continue
        found = answer(apply(models[job], [edit]))
        recorded = float(step_means(models[then]).mean())
        predicted = found.iteration_ns / 1e6
        low, high = found.interval_ns or (float("nan"), float("nan"))
        before = step_means(models[job]).mean()
        error = (predicted - recorded) / recorded
        cells = [_name(job), f"`{edit}`", f"{before:.1f}", f"{predicted:.1f}"]
        cells += [f"{low / 1e6:.1f} to {high / 1e6:.1f}", f"{recorded:.1f}", f"{error:+.1%}"]
        yield f"| {' | '.join(cells)} |"
    yield ""


def _only(model: Model, rows: Sequence[int]) -> Model:
    """Return the model of the recorded steps `rows` alone."""
    recording = replace(model.recording, steps=[model.recording.steps[row] for row in rows])
    return replace(model, recording=recording, steps=[model.steps[row] for row in rows])


def _name(job: str) -> str:
    return job.removesuffix("/trace")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="?", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--write", type=Path, help="replace the tables in this document")
    args = parser.parse_args()
    if not args.data.is_dir():
        print(f"{args.data}: no directory of recorded jobs", file=sys.stderr)
        return 1
    try:
        lines = list(tables(args.data))
    except AnalyzeError as error:
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
