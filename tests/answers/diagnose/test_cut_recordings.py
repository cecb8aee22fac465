"""Ranks whose recordings begin or end with different steps: who is late does not depend on that."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from answers import diagnosed, titles
from hypothesis import given, settings
from hypothesis import strategies as st

import make
from conftest import examples
from dag_utils import load_steps
from trace_utils import Request

RANKS, STEPS, FIRST = 3, 10, 3
FORWARD_MS, UPDATE_MS, LATE_MS = 20.0, 2.0, 9.0
#: By so much the ends of one reduction may be apart that the hosts carry out, in milliseconds.
SCATTER_MS = 3.0

Cuts = dict[int, tuple[int, int]]  # of a rank: how many of its first and of its last steps are not recorded


def span(name: str, begin_ms: float, end_ms: float, cat: str = "cpu_op", tid: int = 1) -> dict[str, Any]:
    return make.span(name, round(begin_ms * 1000, 3), round((end_ms - begin_ms) * 1000, 3), cat, 1, tid)


def reducing(directory: Path, late: int, cuts: Cuts, seed: int) -> Path:
    """Write ranks that compute, reduce on the host, and update; the one that is late computes for longer."""
    draw = np.random.default_rng(seed)
    forward = FORWARD_MS * (1 + 0.005 * draw.standard_normal((STEPS, RANKS)))
    forward[:, late] += LATE_MS
    scatter = SCATTER_MS * draw.random((STEPS, RANKS))
    begin = np.zeros(RANKS)
    events: list[list[dict[str, Any]]] = [[] for _ in range(RANKS)]
    for step in range(STEPS):
        entered = begin + forward[step]
        left = entered.max() + 0.5 + scatter[step]
        for rank in range(RANKS):
            first, last = cuts.get(rank, (0, 0))
            after = left[rank] + UPDATE_MS
            if first <= step < STEPS - last:
                events[rank] += [
                    span(f"ProfilerStep#{FIRST + step}", begin[rank], after, "user_annotation"),
                    span("forward", begin[rank], entered[rank]),
                    span("c10d::allreduce_", entered[rank], entered[rank] + 0.02),
                    span("gloo:all_reduce", entered[rank] + 0.01, left[rank], "user_annotation", 9),
                    span("update", left[rank], after),
                ]
            begin[rank] = after
    for rank, own in enumerate(events):
        header = {"host_name": "node", "distributedInfo": {"rank": rank, "world_size": RANKS}}
        make.write(directory / f"rank{rank}.json", own, schemaVersion=1, **header)
    return directory


ends = st.tuples(st.integers(0, 2), st.integers(0, 2))


@given(st.integers(0, RANKS - 1), st.dictionaries(st.integers(0, RANKS - 1), ends), st.integers(0, 99))
@settings(max_examples=examples(12), deadline=None)
def test_the_late_rank_is_found_whatever_steps_are_missing(late: int, cuts: Cuts, seed: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        diagnosis = diagnosed(reducing(Path(directory), late, cuts, seed))
    (title,) = titles(diagnosis, "late_rank")
    assert title.startswith(f"rank{late} is late by ")


def test_steps_missing_on_some_ranks_are_noted(tmp_path: Path) -> None:
    cuts = {0: (0, 2), 1: (1, 0), 2: (1, 0)}
    loaded = load_steps([reducing(tmp_path, 2, cuts, 1)], Request(jobs=1, progress=False))
    assert [step.number for step in loaded.recording.steps] == list(range(4, 11))
    assert loaded.recording.notes == [
        "steps that not every rank recorded are left out: 11–12 (not in rank0) and 3 (not in rank1 and rank2)"
    ]
