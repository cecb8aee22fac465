"""Gradients that are reduced only after the backward pass, or in larger buckets: small jobs by hand."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from itertools import permutations

import numpy as np
import pytest
from jobs import MS, Times, after, apply, foreseen, job, lockstep, one_gpu, rank
from msgspec.structs import replace

from analyzer.base.errors import UsageError
from analyzer.model.graph.step_graph import Recording
from analyzer.reading.dialects.recorded_collectives import Call, Collectives
from analyzer.reading.dialects.step_parts import OperationTable
from dag_utils import RankFacts
from replay.edit import Job
from replay.runs import simulated

_INPUTS = {"BW.b": ["FW.a"], "BW.a": ["BW.b"], "reduce_b": ["BW.b"], "reduce_a": ["BW.a", "reduce_b"]}


def reducing(
    *ranks: Times, inputs: Mapping[str, Sequence[str]] = _INPUTS, end: float, extra: Sequence[str] = ()
) -> Recording:
    """Ranks that reduce two gradients in a step of `end` ms."""
    together = ["reduce_a", "reduce_b", *extra]
    return job(
        *(rank(f"rank{i}", [(one, (0, end))], inputs, together=together) for i, one in enumerate(ranks))
    )


def ends_ms(recording: Recording, *edits: str) -> dict[str, float]:
    """Ends of the events of the first step on rank 0, after edits."""
    return ends_of(apply(recording, edits))


def ends_of(edited: Recording) -> dict[str, float]:
    step = simulated(edited, [0]).step(0)
    mine = np.flatnonzero(step.owner == 0).tolist()
    return {edited.operations[int(step.operation[i])].name: float(step.end_ns[i]) / MS for i in mine}


def test_reductions_begin_when_their_rank_has_ended_its_backward_pass() -> None:
    # rank 1 computes until 50, and the reductions of 15 and 5 stand behind each other
    first = {"FW.a": (0, 10), "BW.b": (10, 20), "BW.a": (20, 40), "reduce_b": (20, 35), "reduce_a": (40, 55)}
    second = {**first, "BW.a": (20, 50), "reduce_a": (50, 55)}
    recording = reducing(first, second, end=55)
    assert ends_ms(recording)["reduce_a"] == 55
    ends = ends_ms(recording, "overlap=off")
    assert (ends["reduce_b"], ends["reduce_a"]) == (65, 70)
    assert foreseen(recording, "overlap=off").after_ns == 70 * MS
    # with half the pass after the forward pass: 10 + 5 + 15, and then 15 and 5
    for edits in permutations(("BW=0.5", "overlap=off")):
        assert ends_ms(recording, *edits)["reduce_a"] == 50


def test_a_collective_the_backward_pass_waits_for_reduces_no_gradients() -> None:
    # statistics of a batch over all ranks from 20 to 25, which the rest of the pass needs
    times = {"FW.a": (0, 10), "BW.b": (10, 20), "norm": (20, 25), "BW.a": (25, 45), "reduce_b": (20, 35),
             "reduce_a": (45, 50)}  # fmt: skip
    inputs = {**_INPUTS, "norm": ["BW.b"], "BW.a": ["norm"]}
    ends = ends_ms(reducing(times, times, inputs=inputs, end=50, extra=["norm"]), "overlap=off")
    assert ends == {"FW.a": 10, "BW.b": 20, "norm": 25, "BW.a": 45, "reduce_b": 60, "reduce_a": 65}


def test_copying_a_bucket_back_is_not_backward_pass() -> None:
    times = {"FW.a": (0, 10), "BW.b": (10, 20), "BW.a": (20, 40), "reduce_b": (20, 35), "reduce_a": (40, 50),
             "BW.copy": (50, 52)}  # fmt: skip
    inputs = {**_INPUTS, "BW.copy": ["reduce_b", "reduce_a"]}
    ends = ends_ms(reducing(times, times, inputs=inputs, end=52), "overlap=off")
    assert (ends["reduce_b"], ends["reduce_a"], ends["BW.copy"]) == (55, 65, 67)


@pytest.mark.parametrize("recording", [one_gpu(), lockstep([10.0], [12.0])])
def test_without_reductions_in_a_backward_pass_the_edit_is_refused(recording: Recording) -> None:
    none = replace(
        recording, operations=OperationTable(op._replace(is_collective=False) for op in recording.operations)
    )
    with pytest.raises(UsageError, match="no reduction of gradients"):
        apply(none, ["overlap=off"])
    with pytest.raises(UsageError, match="overlap is off"):
        apply(recording, ["overlap=on"])


def sized(recording: Recording, times: Times, sizes: Mapping[str, int]) -> Job:
    """The job of two ranks with the `sizes` of collectives in MB."""
    rows = np.arange(len(sizes))
    calls = [Call("all-reduce", n_ranks=2, sent=size << 20, key=name) for name, size in sizes.items()]
    known = Collectives.of(rows, calls, np.zeros_like(rows), rows)
    ends = np.array([round(times[name][1] * MS) for name in sizes], np.int64)
    return Job(
        recording, [RankFacts("", rank=i, world_size=2, sizes=known, sizes_end_ns=ends) for i in (0, 1)]
    )


def test_collectives_are_alike_at_an_absolute_bandwidth() -> None:
    order = ["FW.a", "reduce_a", "reduce_b", "reduce_c", "reduce_d"]
    times = dict(zip(order, itertools.pairwise((0, 10, 26, 42, 58, 106)), strict=True))
    inputs = {b: [a] for a, b in itertools.pairwise(order)}
    recording = reducing(times, times, inputs=inputs, end=106, extra=["reduce_c", "reduce_d"])
    job = sized(recording, times, dict.fromkeys(order[1:], 4))

    def last(*edits: str) -> float:
        return ends_of(after(job, edits))["reduce_d"]

    assert last("collectives=peers") == pytest.approx(10 + 4 * 16)
    assert last("bandwidth=16Gbit") == last("collectives=peers", "bandwidth=16Gbit") < 10 + 4 * 16


@pytest.mark.parametrize(("ends", "told_ms"), [((26, 52, 98), 6.0), ((20, 44, 96), 0.012)])
def test_a_line_through_times_tells_a_latency_that_can_be(ends: tuple[int, int, int], told_ms: float) -> None:
    # 1, 2 and 4 MB: 10 ms for each and 6 more, or 14 for each and 4 less: then two hops of 6 µs
    names = ("reduce_a", "reduce_b", "reduce_c")
    times = {"FW.a": (0, 10), **dict(zip(names, itertools.pairwise((10, *ends)), strict=True))}
    inputs = {b: [a] for a, b in itertools.pairwise(times)}
    recording = reducing(times, times, inputs=inputs, end=ends[-1], extra=["reduce_c"])
    latency = sized(recording, times, dict(zip(names, (1, 2, 4), strict=True))).collectives.latency
    assert max(latency) == pytest.approx(told_ms * MS)


def in_buckets(sizes: Mapping[str, int], cap: str, *edits: str) -> dict[str, float]:
    """Ends of events, with buckets of `sizes` (MB) that take 1 ms and 4 more for each MB."""
    times = {"FW.a": (0, 10), "BW.b": (10, 20), "BW.c": (20, 25), "BW.a": (25, 45), "reduce_b": (20, 29),
             "pack": (29, 29), "reduce_c": (29, 34), "reduce_a": (45, 62), "UPDATE.b": (62, 63)}  # fmt: skip
    inputs = {"BW.b": ["FW.a"], "BW.c": ["BW.b"], "BW.a": ["BW.c"], "reduce_b": ["BW.b"],
              "pack": ["reduce_b"],
              "reduce_c": ["BW.c", "reduce_b", "pack"], "reduce_a": ["BW.a", "reduce_c"],
              "UPDATE.b": ["reduce_b", "reduce_a"]}  # fmt: skip
    recording = reducing(times, times, inputs=inputs, end=63, extra=["reduce_c"])
    return ends_of(after(sized(recording, times, sizes), (f"bucket_cap={cap}", *edits)))


_SIZES = {"reduce_b": 2, "reduce_c": 1, "reduce_a": 4}


@pytest.mark.parametrize(
    ("cap", "edits", "expected"),
    [
        # the first two together, when the second is ready at 25: 1 + 3 * 4; then the third from 45 on
        ("3MB", [], {"reduce_c": 25 + 13, "reduce_a": 45 + 17}),
        ("2.1MB", [], {"reduce_c": 25 + 13, "reduce_a": 45 + 17}),
        ("3.1MB", [], {"reduce_a": 45 + 29}),  # until they hold as much
        ("7MB", [], {"reduce_a": 45 + 29}),
        ("3MB", ["overlap=off"], {"reduce_c": 45 + 13, "reduce_a": 45 + 13 + 17}),
        ("7MB", ["BW=0.2"], {"reduce_a": 10 + 7 + 29}),
    ],
)
def test_joined_buckets_start_with_their_last_gradient_and_one_latency(
    cap: str, edits: list[str], expected: Mapping[str, float]
) -> None:
    ends = in_buckets(_SIZES, cap, *edits)
    assert {name: ends[name] for name in expected} == expected
    assert ends["UPDATE.b"] == expected["reduce_a"] + 1


@pytest.mark.parametrize(
    ("sizes", "cap", "words"),
    [
        ({"reduce_b": 2}, "4MB", "the bytes of the gradients are not recorded"),
        (_SIZES, "0.4MB", "the smallest full one has 1 MB; a cap must be at least half of that"),
        (_SIZES, "many", "not a number of KB, MB or GB"),
    ],
)
def test_buckets_with_unknown_contents_are_refused(sizes: Mapping[str, int], cap: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        in_buckets(sizes, cap)
