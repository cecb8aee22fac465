"""Peak rates of devices, for dense matrices: data sheets that give rates with sparsity are halved."""

from __future__ import annotations

import re
from collections.abc import Mapping

#: Words in a device's name; TFLOP/s in bf16 and fp16, tf32, fp32, fp8 (0: not supported), GB/s of its memory,
#: and the source. The first row whose words are all in the name counts.
_DEVICES = (
    ("B200", 2250, 1100, 75, 4500, 7700, "NVIDIA HGX B200 data sheet"),
    ("H200 NVL", 835.5, 417.5, 60, 1670.5, 4800, "NVIDIA H200 data sheet"),
    ("H200", 989.4, 494.7, 66.9, 1978.9, 4800, "NVIDIA H200 data sheet"),
    ("H100 NVL", 835.5, 417.5, 60, 1670.5, 3900, "NVIDIA H100 data sheet"),
    ("H100 PCIe", 756, 378, 51, 1513, 2000, "NVIDIA H100 data sheet"),
    ("H100", 989.4, 494.7, 66.9, 1978.9, 3350, "NVIDIA H100 data sheet (SXM)"),
    ("H800", 989.4, 494.7, 66.9, 1978.9, 3350, "NVIDIA H800 data sheet (SXM)"),
    ("H20", 148, 74, 44, 296, 4000, "NVIDIA H20 data sheet"),
    ("A100 80GB PCIe", 312, 156, 19.5, 0, 1935, "NVIDIA A100 data sheet"),
    ("A100 80GB", 312, 156, 19.5, 0, 2039, "NVIDIA A100 data sheet"),
    ("A100", 312, 156, 19.5, 0, 1555, "NVIDIA A100 40 GB data sheet"),
    ("A40", 149.7, 74.8, 37.4, 0, 696, "NVIDIA A40 data sheet"),
    ("A10", 125, 62.5, 31.2, 0, 600, "NVIDIA A10 data sheet"),
    ("L40S", 362, 183, 91.6, 733, 864, "NVIDIA L40S data sheet"),
    ("L40", 181, 90.5, 90.5, 362, 864, "NVIDIA L40 data sheet"),
    ("L4", 121, 60, 30.3, 242.5, 300, "NVIDIA L4 data sheet"),
    ("RTX 4090", 165.2, 82.6, 82.6, 330.3, 1008, "NVIDIA Ada architecture paper (fp32 sums)"),
    ("RTX 3090", 71, 35.6, 35.6, 0, 936, "NVIDIA GA102 architecture paper (fp32 sums)"),
    ("V100 PCIe", 112, 0, 14, 0, 900, "NVIDIA V100 data sheet"),
    ("V100", 125, 0, 15.7, 0, 900, "NVIDIA V100 data sheet (SXM2)"),
    ("T4", 65, 0, 8.1, 0, 320, "NVIDIA T4 data sheet"),
    ("MI325X", 1307.4, 653.7, 163.4, 2614.9, 6000, "AMD Instinct MI325X data sheet"),
    ("MI300X", 1307.4, 653.7, 163.4, 2614.9, 5300, "AMD Instinct MI300X data sheet"),
    (
        "MI250X",
        191.5,
        0,
        47.9,
        0,
        1638,
        "AMD Instinct MI250X data sheet, half of it: a device is one of two dies",
    ),
)


def peaks_of(device: str) -> tuple[Mapping[str, float], str]:
    """Look up a device: FLOP/s by type, and bytes a second as `memory`; with the source. Empty if unknown.

    A part of a device (MIG) is unknown.

    >>> peaks_of("NVIDIA A100-SXM4-80GB")[0]["tf32"], peaks_of("NVIDIA A10G")
    (156000000000000.0, ({}, ''))
    """
    has = {*re.findall(r"[a-z0-9]+", device.lower())}
    for words, half, tf32, fp32, fp8, memory, source in _DEVICES:
        if {*words.lower().split()} <= has and "mig" not in has:
            rates = {"bf16": half, "fp16": half, "tf32": tf32, "fp32": fp32, "fp8": fp8}
            known = {name: rate * 1e12 for name, rate in rates.items() if rate}
            return {**known, "memory": memory * 1e9}, source
    return {}, ""
