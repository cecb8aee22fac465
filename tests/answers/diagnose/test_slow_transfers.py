"""Transfers in which one thing is wrong: what is found, and what it wins."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from answers import diagnosed, holds, kinds, titles, winning
from made_transfers import Partitions, gloo, nccl, reductions
from msgspec import structs

from analyzer.answers.diagnose.finding import Finding
from analyzer.answers.diagnose.steps.detectors.slow_transfers import priority_inversion, slow_links
from analyzer.answers.diagnose.steps.job_view import JobView
from conftest import few, run_cli
from dag_utils import load_steps, read_partitions
from oracles.known_byteps import BytePSJob, random_job
from trace_utils import Request

HEALTHY = Partitions()


def test_nothing_is_claimed_of_transfers_that_are_as_they_should_be(tmp_path: Path) -> None:
    directory, _ = HEALTHY.write(tmp_path / "job")
    assert kinds(diagnosed(directory)) == []


def test_a_slow_server_and_a_slow_link_do_not_add_up(tmp_path: Path) -> None:
    both = replace(HEALTHY, push=(0.2, 3.0), pull=1.4)
    directory, step_ms = both.write(tmp_path / "job")
    _, server_only_ms = replace(both, push=(0.2, 0.2)).write(tmp_path / "server")
    _, link_only_ms = replace(both, pull=0.2).write(tmp_path / "link")
    _, usual_ms = HEALTHY.write(tmp_path / "usual")
    link, server = step_ms - server_only_ms, step_ms - link_only_ms
    diagnosis = diagnosed(directory)
    assert (
        kinds(diagnosis) == ["slow_collective", "server"] if link > server else ["server", "slow_collective"]
    )
    for one in winning(diagnosis):
        if one.finding.kind == "server":  # 1.4 ms, and as the link of worker 0 shows its bytes need 0.2
            assert "a pull takes 1.20 ms more than its bytes need" in one.finding.cause
        holds(one, link if one.finding.kind == "slow_collective" else server, near=0.2)
    second = winning(diagnosis)[1]
    assert second.after_above_ns is not None
    left = server_only_ms if link > server else link_only_ms
    assert second.after_above_ns / 1e6 == pytest.approx(left - usual_ms, rel=0.1)


@pytest.mark.parametrize(("small_first", "is_found"), [(True, True), (False, False)])
def test_a_tensor_that_is_needed_first_and_sent_last(
    tmp_path: Path, small_first: bool, is_found: bool
) -> None:
    directory, _ = replace(HEALTHY, small=4, small_first=small_first).write(tmp_path / "job")
    loaded = load_steps([directory], Request(jobs=1, progress=False), partitions=read_partitions([directory]))
    found = list(priority_inversion(JobView(loaded)))
    assert [one.scope.operations for one in found if isinstance(one, Finding)] == [["Comm.w"]] * is_found


def test_a_link_that_is_slow_both_ways_is_told_of_both(tmp_path: Path) -> None:
    directory, _ = replace(HEALTHY, push=(0.2, 3.0), takes=(0.0, 4.0)).write(tmp_path / "job")
    first = winning(diagnosed(directory))[0].finding
    assert (first.kind, list(first.scope.operations)) == ("slow_collective", ["PUSH", "PULL"])
    assert first.title == "the link of wk1.rank0 is slow"
    assert first.cause.startswith("its pushes take 15.0 times")  # 3.0 / 0.2
    pushes, pulls = map(str, first.edits)
    assert pushes == "wk1.rank0.PUSH=0.0667"
    assert pulls.startswith("wk1.rank0.PULL=0.")


def test_a_worker_that_hands_its_gradients_over_late_is_late(tmp_path: Path) -> None:
    # its computation is over as soon as the other's; ten partitions wait together for 20 ms
    directory, _ = replace(HEALTHY, waits=(0.0, 20.0)).write(tmp_path / "job")
    diagnosis = diagnosed(directory)
    assert kinds(diagnosis) == ["late_rank"]
    found = winning(diagnosis)[0].finding
    assert found.title == "wk1.rank0 is late by 20.0 ms, most of it before Comm.w, where nothing is recorded"
    holds(winning(diagnosis)[0], 20.0)


def test_collectives_as_fast_as_each_other_are_not_slow(tmp_path: Path) -> None:
    assert kinds(diagnosed(nccl(tmp_path / "job", [1.0, 1.1, 1.0, 1.2, 0.9]))) == []


@pytest.mark.parametrize("write", [nccl, gloo, reductions])
def test_one_slow_collective_among_many_short_ones_is_found_before_them(
    tmp_path: Path, write: Callable[..., Path]
) -> None:
    # 60 of 0.1 ms, one of which takes 12; six of them would do
    times = [*[0.1] * 59, 12.0]
    diagnosis = diagnosed(write(tmp_path / "job", times, compute=60.0, n_bytes=[64 << 10] * 60))
    assert kinds(diagnosis) == ["slow_collective", "small_messages"]
    slow, small = winning(diagnosis)
    assert slow.finding.title.startswith("1 collective is slower than others of the same size")
    holds(slow, 12.0 - 0.1)
    holds(small, 54 * 0.1)
    assert small.after_above_ns is not None
    assert small.after_above_ns / 1e6 == pytest.approx(54 * 0.1, rel=0.1)


@pytest.mark.parametrize(("kib", "is_small"), [(1024, True), (1200, False)])
@pytest.mark.parametrize("write", [nccl, gloo, reductions])
def test_collectives_that_move_much_are_not_small_however_many_are_as_short(
    tmp_path: Path, write: Callable[..., Path], kib: int, is_small: bool
) -> None:
    # as of layers whose weights are gathered one by one, without prefetching
    job = write(tmp_path / "job", [1.0] * 24, compute=60.0, n_bytes=[kib << 10] * 24)
    assert ("small_messages" in kinds(diagnosed(job))) == is_small


def test_small_collectives_are_merged_whole_though_something_holds_them_up_at_times(tmp_path: Path) -> None:
    # 20 of 0.1 ms, and of 3.1 ms in each second step; two are left
    job = gloo(tmp_path / "job", [0.1] * 20, compute=60.0, n_bytes=[256] * 20, held_up=3.0)
    (small,) = [one for one in winning(diagnosed(job)) if one.finding.kind == "small_messages"]
    assert small.finding.title.startswith("20 collectives a step")
    holds(small, 18 * (0.1 + 3.1) / 2)


def test_a_slow_collective_may_wait_for_a_rank_that_is_not_recorded(tmp_path: Path) -> None:
    job = nccl(tmp_path / "job", [1.0, 1.0, 1.0, 12.0, 1.0])
    whole = winning(diagnosed(job))[0].finding
    (job / "rank1.pt.trace.json").unlink()
    found = winning(diagnosed(job))[0].finding
    assert (whole.kind, found.kind) == ("slow_collective", "slow_collective")
    assert (whole.caveat, "with 1 of 2 ranks recorded" in found.caveat) == ("", True)


@pytest.mark.parametrize("write", [gloo, reductions])
def test_collectives_of_other_sizes_may_take_longer(tmp_path: Path, write: Callable[..., Path]) -> None:
    sizes = [1 << 20, 1 << 20, 1 << 20, 12 << 20, 1 << 20]
    assert kinds(diagnosed(write(tmp_path / "job", [1.0, 1.0, 1.0, 12.0, 1.0], n_bytes=sizes))) == []


def test_tensors_that_are_fused_are_one_collective_however_many_there_are(tmp_path: Path) -> None:
    # two reductions of 30 tensors each, and five of which one is slow
    assert kinds(diagnosed(reductions(tmp_path / "few", [1.0, 1.0], compute=60.0, fused=30))) == []
    slow = [1.0, 1.0, 1.0, 12.0, 1.0]
    diagnosis = diagnosed(reductions(tmp_path / "slow", slow, fused=30))
    assert kinds(diagnosis) == ["slow_collective"]
    assert winning(diagnosis)[0].finding.title.startswith("1 collective is slower")
    holds(winning(diagnosis)[0], 11.0)


def test_pushes_that_are_slow_in_some_steps_only_are_no_slow_link(tmp_path: Path) -> None:
    directory, _ = replace(HEALTHY, push=(0.2, 3.0)).write(tmp_path / "job")
    loaded = load_steps([directory], Request(jobs=1, progress=False), partitions=read_partitions([directory]))
    steps = list(loaded.recording.steps)
    pushes = loaded.recording.which(lambda one: one.transfer.stage == "PUSH" and one.owner == 1)
    for at in range(0, len(steps), 2):  # every other step's are as quick as the peer's
        mine = pushes[steps[at].operation]
        steps[at] = structs.replace(steps[at], work_ns=np.where(mine, 200_000, steps[at].work_ns))
    uneven = structs.replace(loaded, recording=structs.replace(loaded.recording, steps=steps))
    assert [one.kind for one in slow_links(JobView(loaded))] == ["slow_collective"]
    assert not [
        one for one in slow_links(JobView(uneven)) if isinstance(one, Finding) and "link" in one.title
    ]


@pytest.mark.parametrize(("ms", "is_found"), [(10.0, True), (2.0, False)])
def test_large_collectives_that_have_less_than_any_link_are_slow(
    tmp_path: Path, ms: float, is_found: bool
) -> None:
    # 16 MiB between two ranks: 1.7 or 8.4 GB/s on the bus; at 12 GB/s each of four takes 1.4 ms
    diagnosis = diagnosed(nccl(tmp_path / "job", [ms] * 4, compute=40.0))
    slow = [one for one in winning(diagnosis) if one.finding.kind == "slow_collective"]
    assert len(slow) == is_found
    if is_found:
        assert diagnosis.findings[0] is slow[0]
        assert slow[0].finding.title.startswith("collectives reach 1.7 GB/s on the bus")
        assert [str(one) for one in slow[0].change] == ["bandwidth=96Gbit"]
        holds(slow[0], 4 * (ms - (16 << 20) / 12e6))


def test_small_collectives_do_not_become_faster_with_more_bandwidth(tmp_path: Path) -> None:
    path = nccl(tmp_path / "job", [10.0, 1.0], compute=40.0, n_bytes=[16 << 20, 512])
    words = ("--option", "replay", "--sub_option", "whatif", "--set", "bandwidth=96Gbit", "--path", path)
    code, out, _ = run_cli(*words, "--format", "json")
    (answer,) = json.loads(out)["whatif"]
    assert code == 0
    # the small one is latency, of which the large one has as much
    assert answer["before_ms"] - answer["after_ms"] == pytest.approx(10.0 - 1.0 - (16 << 20) / 12e6, rel=0.01)


#: Each server has 20 partitions of 512 KiB; a key is pushed in 0.2 ms, and both workers' answers take 0.4.
EVEN = Partitions(large=20, small=20, small_kib=512, small_ms=0.2, small_pull=0.2, servers=2)
#: Two workers, and three servers with 16 or 17 partitions each.
CLUSTER = replace(random_job(14), slow=(1.0, 1.0), servers=3, busy=(1.0,) * 3, far=(1.0,) * 3)


def test_a_slow_server_is_named_with_its_cost(tmp_path: Path) -> None:
    directory, step_ms = replace(EVEN, small_pull=0.5).write(tmp_path / "job")
    (found,) = (one for one in winning(diagnosed(directory)) if one.finding.kind == "server")
    assert found.finding.title == "server 1 takes 2.5 times as long for its bytes as server 0"  # 0.5 / 0.2
    assert "server 1 needs 0.954 ms a MB, server 0 0.381" in found.finding.cause  # of 0.524 MB
    assert {one.name.split(".")[1] for one in found.finding.evidence} == {"v"}  # the tensor that it has
    holds(found, step_ms - EVEN.step_ms())


@pytest.mark.parametrize(
    "job",
    [
        EVEN,
        replace(EVEN, small_pull=0.22),
        replace(EVEN, small=60),  # it holds most of the keys
        replace(EVEN, small=1, small_pull=2.0),  # one partition cannot be compared
        replace(EVEN, servers=1, small_pull=0.5),  # there is no other one
    ],
)
def test_even_servers_are_not_slow(tmp_path: Path, job: Partitions) -> None:
    directory, _ = job.write(tmp_path / "job")
    assert not _named(directory)


@pytest.mark.slow
def test_a_server_of_a_cluster_with_slow_threads(tmp_path: Path) -> None:
    # they take as long as the network, and four times as long where they are slow
    even = replace(CLUSTER, adding=1 / CLUSTER.rate)
    slow = replace(even, busy=(4.0, 1.0, 1.0))
    step_ms = float(slow.run(8, 14, tmp_path / "job").mean())
    found = winning(diagnosed(tmp_path / "job"))[0]
    assert found.finding.title.startswith("server 0 takes 2.5 times as long for its bytes as the others")
    holds(found, step_ms - float(even.run(8, 14).mean()), near=0.3)


@pytest.mark.fuzz
def test_a_server_of_a_cluster_with_a_slow_network(tmp_path: Path) -> None:
    slow = replace(CLUSTER, far=(1.0, 3.0, 1.0))
    step_ms = float(slow.run(8, 14, tmp_path / "job").mean())
    (found,) = (one for one in winning(diagnosed(tmp_path / "job")) if " times as long " in one.finding.title)
    assert found.finding.title.startswith("server 1 takes ")
    holds(found, step_ms - float(CLUSTER.run(8, 14).mean()), near=0.9)  # what queues at it is not its own


@pytest.mark.slow
@pytest.mark.parametrize("even", few(1, [replace(CLUSTER, shares=6, adding=1 / CLUSTER.rate), CLUSTER]))
def test_even_servers_of_a_cluster_are_not_slow(tmp_path: Path, even: BytePSJob) -> None:
    even.run(8, 14, tmp_path / "job")
    assert not _named(tmp_path / "job")


def _named(job: Path) -> list[str]:
    return [title for title in titles(diagnosed(job), "server") if " times as long " in title]
