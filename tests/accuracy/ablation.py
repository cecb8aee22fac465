"""Every rule of the replay of parameter servers left out alone: what predictions lose.

    PYTHONPATH=.:tests python3 -m accuracy.ablation [DATA [GPU]]

A table of docs/accuracy.md (`accuracy` makes all). The sets are pairs of recordings, and
some of the jobs in simulated clusters and of those whose answer is arithmetic. GPU is where
`gpu_job.py` recorded. A rule that changes nothing goes.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from accuracy.__main__ import (
    CLUSTER_EDITS,
    EDITS,
    NCCL_EDITS,
    PAIRS,
    ROOT,
    STEPS,
    Score,
    load,
    step_means,
)
from errors import UsageError
from oracles import known_byteps, known_nccl
from oracles.known_jobs import random_job
from replay import edit, forecast, links, row
from replay.edit import EditRequest, Job
from replay.forecast import Forecasts
from replay.occurrences import UsualGaps
from replay.whatif import bandwidth, gradients, sized_collectives

_SEEDS, _OTHER_SEEDS, _NCCL_SEEDS, _KNOWN = (7, 11, 17, 27), (4, 5), (3, 7, 11), range(2)
#: What is asked of jobs on GPUs: on links that are much slower, kernels meet collectives longer, too.
_NCCL_EDITS = (*NCCL_EDITS, "bandwidth=0.25")
#: Of recordings on a GPU: what is asked, and what was then recorded.
_BUCKETS = ("ddp_small", "bucket_cap=20MB", "ddp_middle")
#: A job, what is asked of it, and the mean step (ms) that is then measured.
_Asked = list[tuple[Job, list[tuple[str, float]]]]


def _unless(**new: Any) -> Callable[[links.LinkRate | None], links.LinkRate | None]:
    return lambda known: None if known is None else known._replace(**new)


def _rate(change: Callable[[links.LinkRate | None], links.LinkRate | None]) -> Any:
    found = links.link_rate
    return patch.object(edit, "link_rate", lambda recording: change(found(recording)))


@contextmanager
def _uncrowded() -> Iterator[None]:
    with patch.object(bandwidth, "CROWDED", 0.0), patch.object(gradients, "CROWDED", 0.0):
        yield


#: What replaces a rule, by what it says.
RULES: dict[str, Callable[[], Any]] = {
    "transfers are messages": lambda: patch.object(Job, "apart", property(lambda job: job.recording)),
    "messages that are served in turn stay whole": lambda: patch.object(edit, "_is_serial", lambda _: False),
    "steps go round three times": lambda: patch.object(forecast, "_ROUNDS", 1),
    "… from the recorded rhythm each time": lambda: patch.object(
        row.Row, "lead_ns", lambda _, at, own: own * (at == 0)
    ),
    "servers may be on a worker's machine": lambda: patch.object(links, "local_servers", lambda _: {}),
    "nodes may have limits of their own": lambda: patch.object(links, "_slow_nodes", lambda *_: {}),
    "what nodes receive is limited, where that is found": lambda: _rate(_unless(receives=False)),
    "above 2 Gbit/s a level may be of threads": lambda: patch.object(links, "_THREADS", np.inf),
    "rests shrink on faster links": lambda: patch.object(bandwidth, "_shorter_waits", lambda one, _: one),
    "gaps are at most the usual ones": lambda: patch.object(UsualGaps, "capped", lambda own, at, step: step),
    "sizes show latencies": lambda: patch.object(sized_collectives, "_at_no_bytes", lambda *_: np.nan),
    "interval: kernels beside collectives": _uncrowded,
    "workers may find another rhythm": lambda: patch.object(forecast, "_STARTS", ()),
}


def _cluster() -> _Asked:
    jobs = [(known_byteps.random_job(seed), seed) for seed in _SEEDS]
    jobs += [(known_byteps.other_job(seed), seed) for seed in _OTHER_SEEDS]
    return [_run(job, seed, CLUSTER_EDITS) for job, seed in jobs]


def _nccl() -> _Asked:
    return [_run(known_nccl.random_job(seed), seed, _NCCL_EDITS) for seed in _NCCL_SEEDS]


def _recorded(gpu: Path) -> _Asked:
    """Return the question about buckets to each round on a GPU, and the answers of all rounds."""
    of, asked, then = _BUCKETS
    rounds = sorted(path for path in gpu.iterdir() if path.is_dir())
    means = [float(step_means(load(path / then).job.recording).mean()) for path in rounds]
    return [(load(path / of).job, [(asked, mean) for mean in means]) for path in rounds]


def _run(job: Any, seed: int, edits: Sequence[str]) -> tuple[Job, list[tuple[str, float]]]:
    with tempfile.TemporaryDirectory() as scratch:
        job.run(STEPS, seed, Path(scratch) / "job")
        recorded = load(Path(scratch) / "job")
        then = []
        for edit in edits:
            with suppress(UsageError):
                recorded.edits([EditRequest.of(edit)])
                then.append((edit, float(np.mean(job.edited(edit, STEPS, seed).run(STEPS, 1000 + seed)))))
    return recorded.job, then


def _known() -> _Asked:
    found: _Asked = []
    for seed in _KNOWN:
        job = random_job(seed)
        then = [(one, float(job.edited(one).run(STEPS, 2 * seed + 1)[1].mean())) for one in EDITS]
        found.append((Job(job.run(STEPS, 2 * seed)[0]), then))
    return found


def _pairs(data: Path) -> _Asked:
    jobs = {name: load(data / name).job for pair in PAIRS for name in (pair[0], pair[2])}
    means = {name: float(step_means(job.recording).mean()) for name, job in jobs.items()}
    return [(jobs[a], [(asked, means[then])]) for a, asked, then in PAIRS]


def _score(of: _Asked) -> str:
    """Return the cells of a set."""
    score = Score()
    for job, asked in of:
        forecasts = Forecasts(Job(job.recording, job.ranks), job.recording.whole_steps)
        found = {text: forecasts.of([EditRequest.of(one) for one in text.split()]) for text in dict(asked)}
        for text, then in asked:
            score.cells(found[text].after_ns / 1e6, found[text].interval_ns, then)
    median, p90, _, inside, _ = score.summary().split(" | ")
    return f"{median} | {p90} | {inside} | {np.mean(score.widths):.1%}"


def table(data: Path, gpu: Path | None) -> Iterator[str]:
    """Yield the lines of the table."""
    yield (
        "Of the pairs of table 2, six jobs of a cluster (one with two rhythms, one behind threads, one with "
        "servers on the workers' machines, one with a slow server), three on GPUs (in one, collectives slow "
        "kernels down), buckets of one recorded on a GPU, and two whose answer is arithmetic; widths are "
        "means."
    )
    yield ""
    on_gpus = [*_nccl(), *(_recorded(gpu) if gpu else ())]
    sets = {"pairs": _pairs(data), "cluster": _cluster(), "GPUs": on_gpus, "arithmetic": _known()}
    yield ("| left out | " + " | ".join(f"{name}: median | p90 | inside | width" for name in sets) + " |")
    yield "| --- |" + " --: |" * 4 * len(sets)
    whole, same = "", []
    for name, rule in {"nothing": ExitStack, **RULES}.items():
        with rule():
            cells = " | ".join(_score(of) for of in sets.values())
        whole = whole or cells
        if cells == whole and name != "nothing":
            same.append(name)
        else:
            yield f"| {name} | {cells} |"
    yield ""
    if same:
        yield f"Without effect in these jobs: {'; '.join(same)}."
        yield ""


if __name__ == "__main__":
    where, gpu, *_ = [*map(Path, sys.argv[1:]), None, None]
    for line in table(where or ROOT.parent / "shared" / "data", gpu):
        print(line, flush=True)
