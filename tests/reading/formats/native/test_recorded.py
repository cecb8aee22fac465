"""Recorded traces give the same columns and the same answers by either decoder."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_scanner import WANTED, seen

import recorded
from analyzer.reading.formats import native


@pytest.fixture(autouse=True)
def _with_a_compiler() -> None:
    if native.library() is None:
        pytest.skip("no C compiler here")


@pytest.mark.thorough
@pytest.mark.parametrize("path", recorded.files(), ids=lambda path: f"{path.parent.name}/{path.name}"[-60:])
def test_the_same_columns(path: Path) -> None:
    assert seen(path, scan=True, args=WANTED, points=True) == seen(path, scan=False, args=WANTED, points=True)
