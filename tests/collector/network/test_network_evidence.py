"""Partitions and times from captures and server logs, if a worker's own log lacks them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from test_collect_captures import PCAP_JOBS, make_job

from analyzer.base.errors import Repairs
from collector.network.network_evidence import read_evidence
from collector.network.partition_keys import read_keys
from dag_utils import read_partitions
from make import comm, write


def with_gpu(root: Path) -> Path:
    """Make the job at `root` one of BytePS, whose worker recorded one transfer."""
    write(root / "worker_0" / "0" / "comm.json", [comm("a", "PUSH", 65536, 0, 5)])
    return root


def test_captures_tell_the_bytes_and_servers_of_partitions(tmp_path: Path) -> None:
    make_job(with_gpu(tmp_path))
    (tmp_path / "worker_0.log").unlink()
    partitions = read_partitions([tmp_path])
    assert partitions.bytes_of == {1 << 16: 4096, 1 << 16 | 1: 1000}
    assert partitions.server_of == {1 << 16: 0, 1 << 16 | 1: 0}


def test_a_worker_s_log_comes_before_captures(tmp_path: Path) -> None:
    make_job(with_gpu(tmp_path))
    log = "[x] Declared tensor a, declared key (not PS key): 1 rank=0\n"
    log += "[x] a partitioned to 1 part(s), total_len=77, key_range=[65536, 65537] rank=0\n"
    (tmp_path / "worker_0.log").write_text(log)
    assert read_partitions([tmp_path]).bytes_of == {1 << 16: 77, 1 << 16 | 1: 1000}


def test_logs_of_servers_tell_sizes_and_times(tmp_path: Path) -> None:
    with_gpu(tmp_path)
    line = "[02:19:41] server.cc:1: push key=65536\t sender=9\t size=4096\n"
    (tmp_path / "server_2.key_log.txt").write_text(line * 2)
    profile = "1\tserver_process_pull\t1000\n1\tserver_send_pull_response\t4000\n"
    (tmp_path / "server_0.txt").write_text(profile)
    evidence = read_evidence([tmp_path])
    assert (evidence.bytes_of, evidence.servers) == ({65536: 4096}, {65536: 2})
    assert evidence.words == "; server_0 logged 3.00 ms for each of its pulls"


@pytest.mark.parametrize("name", PCAP_JOBS)
def test_recorded_captures_tell_what_the_recorded_log_does(
    shared_data: Path, tmp_path: Path, name: str
) -> None:
    job = shutil.copytree(shared_data / "byteps" / name, tmp_path / "job", copy_function=shutil.copyfile)
    logged = read_partitions([job]).bytes_of
    for log in job.glob("*debug_log*"):
        log.unlink()
    assert read_partitions([job]).bytes_of == logged
    assert len(logged) >= 32


# ---- the log of a worker

_GRADIENT = (
    "[x: D operations.cc:245] byteps.gradient_0 partitioned to 2 part(s), "
    "total_len=1638400, key_range=[65536, 65537] rank=0\n"
)


def bytes_of(tmp_path: Path, log: str) -> dict[int, int]:
    (tmp_path / "worker_0.log").write_text(log)
    return read_keys(tmp_path, Repairs()).partition_bytes()


def test_a_tensor_is_cut_at_a_power_of_two(tmp_path: Path) -> None:
    assert bytes_of(tmp_path, _GRADIENT) == {65536: 1048576, 65537: 589824}


def test_recorded_logs_have_every_size(shared_data: Path) -> None:
    keys = read_keys(shared_data / "byteps/fork_resnet50_2w1s", Repairs())
    sizes = keys.partition_bytes()
    assert len(sizes) == 414 and max(sizes.values()) == 4096000
    assert sum(sizes.values()) == sum(tensor.total_bytes or 0 for tensor in keys.tensors.values())


def test_more_partitions_than_a_job_has_are_not_listed(tmp_path: Path) -> None:
    line = "] t{0} partitioned to 99999 part(s), total_len=999999, key_range=[{1}, 0]\n"
    (tmp_path / "worker_0.log").write_text("".join(line.format(i, i << 16) for i in range(11)))
    repairs = Repairs()
    assert read_keys(tmp_path, repairs).partition_bytes() == {}
    assert "more than 1,048,576 partitions" in repairs.lines[0]
