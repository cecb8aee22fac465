"""What detectors see of a job."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from dag_utils import load_steps
from diagnose.job_view import JobView, connected

_PAIRS = st.lists(st.tuples(st.integers(0, 29), st.integers(0, 29)), max_size=60)


@given(_PAIRS)
def test_what_edges_connect_has_the_number_of_its_least_node(pairs: list[tuple[int, int]]) -> None:
    tails, heads = np.array(pairs, np.int64).reshape(-1, 2).T
    part = connected(30, tails, heads)
    matrix = coo_array((np.ones(len(pairs), np.int8), (tails, heads)), shape=(30, 30))
    known = connected_components(matrix, directed=False)[1]
    assert part.tolist() == [int(np.flatnonzero(known == one)[0]) for one in known]


def test_a_long_chain_is_one_part() -> None:
    nodes = np.random.default_rng(1).permutation(5000)
    assert not connected(5000, nodes[1:], nodes[:-1]).any()


def accumulating(path: Path, longer: int) -> Path:
    """Write 16 steps of 10 ms, each fourth with 4 ms of an optimizer; step `longer` takes 30 ms more."""
    events: list[dict[str, object]] = []
    at = 0.0

    def add(name: str, cat: str, begin: float, dur: float) -> None:
        events.append({"ph": "X", "name": name, "cat": cat, "pid": 1, "tid": 1, "ts": begin, "dur": dur})

    for number in range(16):
        work, update = 9_000 + 30_000 * (number == longer), 4_000 * (number % 4 == 3)
        add(f"ProfilerStep#{number}", "user_annotation", at, work + update + 1_000)
        add("aten::mm", "cpu_op", at + 100, work)
        if update:
            add("Optimizer.step#SGD.step", "user_annotation", at + work + 200, update)
            add("aten::add_", "cpu_op", at + work + 300, update - 200)
        at += work + update + 1_000
    path.write_text(json.dumps({"traceEvents": events, "distributedInfo": {"rank": 0, "world_size": 1}}))
    return path


@pytest.mark.parametrize(("longer", "expected"), [(-1, []), (9, [9]), (7, [7])])
def test_steps_that_update_the_model_are_compared_among_themselves(
    tmp_path: Path, longer: int, expected: list[int]
) -> None:
    loaded = load_steps([accumulating(tmp_path / "rank0.json", longer)], progress=False)
    assert JobView(loaded).far_longer == expected
