"""The examples in docstrings give the answers that stand below them."""

from __future__ import annotations

import doctest
import importlib

import pytest

MODULES = (
    "opname",
    "arrays.innermost",
    "arrays.intervals",
    "arrays.median",
    "arrays.numbering",
    "arrays.ranges",
)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted > 0
    assert found.failed == 0
