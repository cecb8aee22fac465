"""Partition keys from BytePS's own log."""

from __future__ import annotations

from pathlib import Path

from analyzer.base.errors import Repairs
from collector.network.partition_keys import read_keys

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
