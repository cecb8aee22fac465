"""Chosen numbers of `diagnose` stand in one place."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from conftest import REPO

MODULES = [
    path
    for path in sorted((REPO / "analyzer/answers/diagnose").rglob("*.py"))
    if path.name != "finding_thresholds.py"
]


def chosen_numbers(source: str) -> list[str]:
    """Return the names of a module's constants whose values hold a fraction or a division."""
    constants = [node for node in ast.parse(source).body if isinstance(node, (ast.Assign, ast.AnnAssign))]
    return [
        ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)
        for node in constants
        if node.value is not None
        and any(
            isinstance(part, ast.Div) or (isinstance(part, ast.Constant) and isinstance(part.value, float))
            for part in ast.walk(node.value)
        )
    ]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_detector_has_no_threshold_of_its_own(path: Path) -> None:
    assert chosen_numbers(path.read_text(encoding="utf-8")) == []


def test_each_threshold_says_why_it_is_what_it_is() -> None:
    lines = (
        (REPO / "analyzer/answers/diagnose" / "finding_thresholds.py")
        .read_text(encoding="utf-8")
        .splitlines()
    )
    assignments = [i for i, line in enumerate(lines) if " = " in line and line[0].isupper()]
    assert assignments
    assert [lines[i] for i in assignments if not lines[i - 1].startswith("#:")] == []
