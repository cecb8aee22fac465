"""Findings in jobs recorded on a GPU whose cause is known, against the same jobs without it.

The recordings are those of `gpu_job.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import numpy as np

from dag_utils import load_steps
from diagnose.diagnosis import diagnose
from replay.forecast import Gain
from trace_utils import Request

#: A gain and its interval: low, mid and high (ms).
Limits: TypeAlias = tuple[float, float, float]

#: A job, the kind of finding that its cause is, how the table calls that, and the job without it.
CAUSES = (
    ("busy_item", "host_sync", "`.item()` once a step", "busy"),
    ("busy_items", "host_sync", "`.item()` in each layer", "busy"),
    ("busy_starves", "input", "a loader of 60 ms", "busy"),
    ("busy_pageable", "copies", "64 MB of pageable memory", "busy"),
    ("busy_empty_cache", "memory", "`empty_cache()` each step", "busy"),
    ("busy_saves", "outlier_steps", "a checkpoint every four steps", "busy"),
    ("tiny", "host_bound", "eager launches, instead of a CUDA graph", "tiny_graph"),
    ("tiny_loader", "input", "a loader of 10 ms", "tiny"),
    ("ddp_spin", "late_rank", "a rank whose kernels take 10 ms longer", "ddp"),
    ("ddp_loader", "late_rank", "a rank whose loader takes 40 ms", "ddp"),
)
#: Jobs of which nothing is to be said.
HEALTHY = ("busy", "busy_batch", "busy_layers", "busy_loader", "busy_prefetch", "busy_spin5")


def table(directory: Path) -> Iterator[str]:
    """Yield the lines of a table of the recordings, which lie in rounds of all conditions."""
    rounds = [path for path in sorted(directory.iterdir()) if path.is_dir()]
    yield (
        "What `diagnose` claims for what was put in, against the mean of the jobs without it; errors are "
        "shares of a step. Of two causes in one job (a loader, eager launches) the larger one leads."
    )
    yield ""
    yield "| put in | costs (ms) | of a step | named | first | error: median | inside the interval |"
    yield "| --- | --: | --: | --: | --: | --: | --: |"
    for job, kind, title, without in CAUSES:
        then_ms = float(np.mean([_found(at / without)[0] for at in rounds]))
        named = first = inside = 0
        costs, steps, errors = [], [], []
        for at in rounds:
            step_ms, findings = _found(at / job)
            costs.append(step_ms - then_ms)
            steps.append(step_ms)
            gains = [gain for one, gain in findings if one == kind and gain is not None]
            named += bool(gains)
            first += bool(findings) and findings[0][0] == kind
            if gains:
                low, mid, high = gains[0]
                errors.append(abs(mid - costs[-1]) / step_ms)
                inside += low <= costs[-1] <= high
        error = f"{np.median(errors):.1%}" if errors else "–"
        counts = f"{named} of {len(rounds)} | {first} of {len(rounds)} | {error} | {inside} of {named}"
        yield f"| {title} | {np.mean(costs):.1f} | {np.sum(costs) / np.sum(steps):.0%} | {counts} |"
    said = [_found(at / job)[1] for at in rounds for job in HEALTHY]
    claimed = [kind for findings in said for kind, gain in findings if gain is not None]
    yield ""
    yield (
        f"Of {len(said)} recordings of jobs that just keep the device busy {len(claimed)} have a finding "
        f"that claims a gain{': ' if claimed else ''}{', '.join(claimed)}."
    )
    yield ""


def _found(path: Path) -> tuple[float, list[tuple[str, Limits | None]]]:
    """Return the mean step of a job (ms), and kind and gain of each of its findings."""
    loaded = load_steps([path], Request(jobs=1, progress=False), sizes=True)
    bounds = loaded.recording.bounds
    step_ms = np.mean([bounds[row].mean_ns for row in loaded.recording.whole_steps]) / 1e6
    return float(step_ms), [(one.finding.kind, _limits(one.gain)) for one in diagnose(loaded).findings]


def _limits(gain: Gain | None) -> Limits | None:
    if gain is None or gain.low_ns is None or gain.high_ns is None:
        return None
    return gain.low_ns / 1e6, gain.mid_ns / 1e6, gain.high_ns / 1e6
