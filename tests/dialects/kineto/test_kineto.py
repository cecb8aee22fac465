"""What PyTorch's profiler says of a recording as a whole."""

from __future__ import annotations

import pytest

from dialects.kineto import Kineto
from formats.columns import no_slices


@pytest.mark.parametrize(
    ("header", "machine"),
    [
        ({"host_name": "node7"}, "node7"),
        ({}, ""),
        ({"host_name": None}, ""),
        ({"host_name": "localhost"}, ""),
    ],
)
def test_the_header_names_the_machine(header: dict[str, object], machine: str) -> None:
    assert Kineto().machine(no_slices("t.json", "kineto", header, [])) == machine
