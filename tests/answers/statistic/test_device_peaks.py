"""Peak rates by the names that devices have in recordings, against the makers' data sheets."""

from __future__ import annotations

import pytest

from analyzer.answers.statistic.model_flops import peaks_of


@pytest.mark.parametrize(
    ("name", "bf16_tflops", "memory_gb_s"),
    [
        ("NVIDIA H100 80GB HBM3", 989.4, 3350),
        ("NVIDIA H100 80GB HBM2e", 1513 / 2, 2000),  # the PCIe card; its data sheet gives 1,513 with sparsity
        ("NVIDIA H100 PCIe", 1513 / 2, 2000),
        ("NVIDIA H100 NVL", 1671 / 2, 3900),
        ("NVIDIA H200 NVL", 1671 / 2, 4800),
        ("NVIDIA A10", 125, 600),
        ("NVIDIA L4", 242 / 2, 300),
        ("AMD Instinct MI325X", 1307.4, 6000),
        ("AMD Instinct MI250X", 383 / 2, 3276.8 / 2),  # one of two dies
    ],
)
def test_peaks_are_those_of_the_data_sheet(name: str, bf16_tflops: float, memory_gb_s: float) -> None:
    rates, source = peaks_of(name)
    assert rates["bf16"] / 1e12 == pytest.approx(bf16_tflops, rel=0.001)
    assert rates["memory"] / 1e9 == pytest.approx(memory_gb_s, rel=0.001)
    assert source.removesuffix(", for one die").endswith("data sheet")


@pytest.mark.parametrize(
    "name",
    ["NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090 D", "NVIDIA A100-SXM4-40GB MIG 3g.20gb"],
)
def test_devices_with_fewer_cores_are_unknown(name: str) -> None:
    assert peaks_of(name) == ({}, "")
