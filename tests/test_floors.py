"""The floors: a module imports from lower ones only."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from conftest import REPO

FLOORS = (
    ("errors",),
    (
        *("opname", "result", "progress"),
        *("parallel", "temporary_files", "output_marks"),
    ),
    ("atomic_output",),
    ("formats",),
    ("intervals", "innermost"),
    ("dialects", "jobfiles"),
    ("trace_files",),
    ("collector",),
    ("trace_utils",),
    ("clocks", "dag"),
    ("dag_utils",),
    ("statistic", "combine", "compare", "replay"),
    ("options", "report"),
    ("analyze",),
)
FLOOR = {name: height for height, floor in enumerate(FLOORS) for name in floor}
SOURCES = [
    path
    for name in FLOOR
    for path in (
        [REPO / f"{name}.py"] if (REPO / f"{name}.py").exists() else sorted((REPO / name).rglob("*.py"))
    )
]


def imported(path: Path) -> set[str]:
    """The modules and packages of this project that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found & FLOOR.keys()


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(REPO)))
def test_imports_go_down(path: Path) -> None:
    own = path.relative_to(REPO).parts[0].removesuffix(".py")
    upward = {name for name in imported(path) - {own} if FLOOR[name] >= FLOOR[own]}
    assert upward == set()


def test_every_module_has_a_floor() -> None:
    top = {path.stem for path in REPO.glob("*.py")} | {
        path.parent.name for path in REPO.glob("*/__init__.py")
    }
    assert top - {"tests", "benchmarks", "examples", "docs"} == set(FLOOR)
