"""What import contracts cannot say: small folders, single names, and who opens files and asks for systems.

`[tool.importlinter]` in pyproject.toml has the contracts of imports.
"""

from __future__ import annotations

import ast
import gc
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from analyzer import cli
from analyzer.reading import dialects
from conftest import REPO

#: Names that two modules still have; none may join them.
_STILL_DOUBLED = {"chrome"}
OUTSIDE = {"tests", "benchmarks", "examples", "docs"}
PACKAGES = {path.parent.name for path in REPO.glob("*/__init__.py")} - OUTSIDE
SOURCES = sorted(REPO.glob("*.py")) + [
    path for package in sorted(PACKAGES) for path in sorted((REPO / package).rglob("*.py"))
]
SYSTEM_PACKAGES = {type(system).__module__.split(".")[3] for system in dialects.SYSTEMS} - {"chrome"}
_MOST_MODULES = 16  # in one folder


def module_name(path: Path) -> str:
    """Return the full name by which a file is imported."""
    return ".".join(path.relative_to(REPO).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(path): path for path in SOURCES}


@cache
def tree(path: Path) -> ast.Module:
    """Return the syntax tree of a file; looking for cycles among its nodes would take four times as long."""
    gc.disable()
    try:
        return ast.parse(path.read_text())
    finally:
        gc.enable()


@cache
def nodes(path: Path) -> list[ast.AST]:
    """Return all that is in the syntax tree of a file."""
    return list(ast.walk(tree(path)))


def test_layers_of_imports_name_each_package() -> None:
    tomllib = pytest.importorskip("tomllib", reason="of Python 3.11")
    contracts = tomllib.loads((REPO / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = {name.strip() for layer in contracts[0]["layers"] for name in layer.split(":")}
    inside = {f"analyzer.{path.parent.name}" for path in REPO.glob("analyzer/*/__init__.py")}
    assert layers == inside | PACKAGES - {"analyzer"}


def test_every_system_has_one_module_or_package() -> None:
    modules = {type(system).__module__ for system in dialects.SYSTEMS}
    assert sorted(modules) == sorted({f"{dialects.__name__}.{name}" for name in (*SYSTEM_PACKAGES, "chrome")})
    assert {
        path.parent.name for path in REPO.glob("analyzer/reading/dialects/*/__init__.py")
    } <= SYSTEM_PACKAGES


#: What several options do; a module of an option's own lies in its package.
_SHARED_BY_OPTIONS = {f"analyzer.cli.{name}" for name in ("arguments", "completion", "runs", "step_timeline")}


def test_options_holds_one_module_or_package_per_option_and_what_they_share() -> None:
    top = {name for name in MODULES if name.startswith("analyzer.cli.") and name.count(".") == 2}
    assert top == set(cli.MODULES.values()) | _SHARED_BY_OPTIONS


def test_no_folder_is_a_drawer() -> None:
    crowded = Counter(path.parent for path in SOURCES if path.stem != "__init__")
    assert {folder: n for folder, n in crowded.items() if n > _MOST_MODULES} == {}


#: Modules that read files of this program itself: its sources, and what a run has just written.
_READ_THEIR_OWN = {
    "analyzer.answers.combine.merge", "analyzer.answers.combine.rewrite_source",
    "analyzer.base.parallel.cluster", "analyzer.reading.formats.native", "analyzer.report.html",
    "analyzer.reading.formats.step_log.followed_logs", "analyzer.report.parquet",
    "collector.gpu.final_trace",
}  # fmt: skip


def test_only_inputs_opens_files_of_others() -> None:
    opening = {name for name, path in MODULES.items() if any(map(_opens_for_reading, nodes(path)))}
    assert opening == {"analyzer.base.inputs", *_READ_THEIR_OWN}, (
        "files of others are opened by inputs.opened"
    )


def _opens_for_reading(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
    if name in ("read_text", "read_bytes"):
        return isinstance(node.func, ast.Attribute)
    modes = {argument.value for argument in node.args if isinstance(argument, ast.Constant)}
    is_of_others = ast.unparse(node.func) not in ("os.open", "outputs.open", "webbrowser.open")
    return name == "open" and (bool(modes & {"r", "rb", "rt"}) or (is_of_others and not modes))


def test_only_the_systems_modules_ask_which_system_it_is() -> None:
    names = {system.name for system in dialects.SYSTEMS}
    asked = [
        f"{path.relative_to(REPO)}:{node.lineno}"
        for path in SOURCES
        if "dialects" not in path.relative_to(REPO).parts
        for node in nodes(path)
        if isinstance(node, ast.Compare)
        if names & {str(value) for value in _constants(node)} and "dialect" in ast.unparse(node)
    ]
    assert asked == []


def _constants(node: ast.AST) -> list[object]:
    return [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]


def test_no_two_modules_have_one_name() -> None:
    names = [path.stem for path in SOURCES if path.stem != "__init__" and path.parent.name != "cli"]
    doubled = {name for name in names if names.count(name) > 1}
    assert doubled == _STILL_DOUBLED


def test_no_two_types_have_one_name() -> None:
    nodes = (node for path in SOURCES for node in tree(path).body)
    names = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef) and node.name[0] != "_")
    assert [name for name, n in names.items() if n > 1] == []
