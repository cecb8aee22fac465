"""Transfers taken apart, in a simulated cluster in which the edited job can be run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from jobs import foreseen

from analyzer.model.graph.step_graph import Recording
from conftest import few
from dag_utils import load_steps, read_partitions
from oracles.known_byteps import BytePSJob, other_job, random_job
from replay.answer import measured_ns
from replay.links import LinkRate, link_rate
from replay.messages import as_messages
from replay.runs import simulated
from trace_utils import Request

pytestmark = pytest.mark.slow

JOB = BytePSJob(
    forward=(4.0, 6.0, 8.0),
    backward=(8.0, 12.0, 16.0),
    tensors=(40_000, 600_000, 1_000_000),
    slow=(1.0, 1.0),
    partition=65_536,
    rate=200 * 125.0,  # 200 Mbit/s: 66 ms for the bytes of a step in one direction
    message=0.05,
    per_byte=2e-7,
    spread=0.01,
)


FULL = replace(random_job(18), sharing=0.0)


def read(path: Path) -> Recording:
    return load_steps([path], Request(progress=False), partitions=read_partitions([path])).recording


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    path: Path = tmp_path_factory.mktemp("byteps") / "job"
    JOB.run(8, 1, path)
    return read(path)


def test_the_rate_of_a_busy_link_is_found(recording: Recording) -> None:
    # 4.5 % are headers
    rate = link_rate(recording)
    assert rate is not None and rate.is_certain
    assert rate.at_least == pytest.approx(JOB.rate / 1.045 / 1e6, rel=0.03)


@pytest.mark.parametrize("only_sending", [False, True])
def test_transfers_taken_apart_replay_as_recorded(only_sending: bool, recording: Recording) -> None:
    rate = JOB.rate / 1.045 / 1e6
    apart = as_messages(recording, LinkRate(rate, rate, only_sending))
    rows = recording.whole_steps
    # but for transfers that are over before the bytes would be, by the rate
    assert simulated(apart, rows).iteration_ns == pytest.approx(measured_ns(recording)[rows], rel=0.01)
    n_transfers = sum(operation.transfer.stage in ("PUSH", "PULL") for operation in recording.operations)
    assert len(apart.operations) == len(recording.operations) + 2 * n_transfers


@pytest.mark.parametrize(
    "edit",
    few(3, [
        "bandwidth=0.2",
        "bandwidth=100Mbit",
        "partition_bytes=262144",
        "bandwidth=5",
        "bandwidth=1Gbit",
        "FW=0.5",
    ]),
)  # fmt: skip
def test_a_forecast_matches_the_run_of_the_edited_job(edit: str, recording: Recording) -> None:
    forecast = foreseen(recording, edit)
    then = JOB.edited(edit).run(8, 2).mean()
    assert forecast.after_ns / 1e6 == pytest.approx(then, rel=0.1)
    assert forecast.interval_ns is not None
    assert forecast.interval_ns[0] <= then * 1e6 <= forecast.interval_ns[1]


@pytest.fixture(scope="module")
def full_links(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """Three workers and two servers: for four fifths of a step a server's link is full of answers."""
    path: Path = tmp_path_factory.mktemp("byteps") / "job"
    FULL.run(8, 18, path)
    return read(path)


@pytest.mark.parametrize("edit", few(1, ["bandwidth=10", "bandwidth=2", "partition_bytes=65536"]))
def test_the_interval_holds_the_run_of_a_network_bound_job(edit: str, full_links: Recording) -> None:
    forecast = foreseen(full_links, edit)
    then = FULL.edited(edit).run(8, 2).mean()
    assert forecast.interval_ns is not None
    assert forecast.interval_ns[0] <= then * 1e6 <= forecast.interval_ns[1]
    assert forecast.after_ns / 1e6 == pytest.approx(then, rel=0.1)


@pytest.fixture(scope="module")
def two_rhythms(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """Two workers that push in turn, in a job that takes a third longer where they push together."""
    path: Path = tmp_path_factory.mktemp("byteps") / "job"
    random_job(11).run(6, 11, path)
    return read(path)


def test_repeated_steps_keep_the_recorded_rhythm(two_rhythms: Recording) -> None:
    as_recorded, *others = foreseen(two_rhythms, "FW=1").rhythms  # by when workers begin
    rows = two_rhythms.whole_steps
    # a step of the job as it is, simulated in the third round, and as it was recorded
    assert as_recorded.mean() == pytest.approx(measured_ns(two_rhythms)[rows].mean(), rel=0.03)
    assert max(one.mean() for one in others) == pytest.approx(202e6, rel=0.02)  # the longest of its runs


def test_the_interval_holds_the_other_rhythm(two_rhythms: Recording) -> None:
    # runs that differ in when workers begin take 152 to 202 ms
    interval = foreseen(two_rhythms, "FW=0.999").interval_ns
    assert interval is not None and interval[0] < 152e6 and interval[1] > 195e6


def test_servers_on_the_machines_of_workers_are_found(tmp_path: Path) -> None:
    job = replace(FULL, here=True, servers=3)
    job.run(6, 1, tmp_path / "job")
    rate = link_rate(read(tmp_path / "job"))
    assert rate is not None
    assert rate.machines == {f"server {i} PULL": f"worker {i} PUSH" for i in range(3)}


def test_a_server_with_a_slower_network_has_its_own_rate(tmp_path: Path) -> None:
    job = other_job(5)  # server 0 carries a quarter, or half, of what others do
    job.run(6, 1, tmp_path / "job")
    rate = link_rate(read(tmp_path / "job"))
    assert rate is not None and list(rate.slow) == ["server 0 PULL"]
    assert rate.slow["server 0 PULL"] == pytest.approx(job.rate / job.far[0] / 1.045 / 1e6, rel=0.05)
