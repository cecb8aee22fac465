"""Jobs of several servers, of which one is slow or none: who is named, and what it costs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from answers import diagnosed, holds, titles, winning
from made_transfers import Partitions

from conftest import few
from oracles.known_byteps import BytePSJob, random_job

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
