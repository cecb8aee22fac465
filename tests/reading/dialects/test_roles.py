"""Kernels that have a stream of their own, which no rule knows as communication."""

from __future__ import annotations

import pytest

from analyzer.reading.dialects.roles import on_own_streams

GEMM, NORM = ("gpu0", 7, "gemm", 900.0, False), ("gpu0", 7, "norm", 100.0, False)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (
            [GEMM, ("gpu0", 9, "shuffle", 60.0, False), ("gpu0", 9, "notify", 5.0, False)],
            ["shuffle", "notify"],
        ),
        ([GEMM, ("gpu0", 9, "shuffle", 60.0, False), ("gpu0", 9, "gemm", 5.0, False)], ["shuffle"]),
        ([GEMM, ("gpu0", 9, "shuffle", 60.0, False), ("gpu0", 9, "gemm", 9.0, False)], []),  # also computes
        ([GEMM, NORM, ("gpu0", 9, "shuffle", 49.0, False)], []),  # hardly any time
        ([GEMM, ("gpu0", 9, "nccl", 2000.0, True), ("gpu0", 9, "cat", 100.0, False)], []),  # it is known
        ([GEMM], []),
        ([GEMM, ("gpu1", 9, "shuffle", 60.0, False)], []),  # all that the other device does
        ([GEMM, *(("gpu0", 9, f"kernel{i}", 50.0, False) for i in range(9))], []),  # a stream that computes
    ],
)
def test_kernels_with_their_own_stream_beside_a_busy_one_are_named(
    rows: list[tuple[str, int, str, float, bool]], expected: list[str]
) -> None:
    assert on_own_streams(rows) == expected
