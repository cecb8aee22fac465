"""The floors: a module imports from lower ones only."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import dialects
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
    ("clocks",),
    ("dag",),
    ("dag_utils",),
    ("statistic", "combine", "compare", "replay"),
    ("options", "report"),
    ("analyze",),
)
#: Names that two modules still have; none may join them.
_STILL_DOUBLED = {"chrome"}
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


def test_only_the_systems_modules_ask_which_system_it_is() -> None:
    names = {system.name for system in dialects.SYSTEMS}
    asked = [
        f"{path.relative_to(REPO)}:{node.lineno}"
        for path in SOURCES
        if "dialects" not in path.relative_to(REPO).parts
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Compare)
        if "dialect" in ast.unparse(node) and names & {str(value) for value in _constants(node)}
    ]
    assert asked == []


def _constants(node: ast.AST) -> list[object]:
    return [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]


def test_no_two_modules_have_one_name() -> None:
    names = [path.stem for path in SOURCES if path.stem != "__init__" and path.parent.name != "options"]
    doubled = {name for name in names if names.count(name) > 1}
    assert doubled == _STILL_DOUBLED
