"""The examples in docstrings give the answers that stand below them."""

from __future__ import annotations

import doctest
import importlib

import pytest
import test_floors

MODULES = [name for name, path in test_floors.MODULES.items() if ">>> " in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted > 0
    assert found.failed == 0
