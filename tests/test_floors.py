"""The floors: a module imports from lower ones only, no two import each other, and folders stay small."""

from __future__ import annotations

import ast
import gc
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import dialects
import options
from conftest import REPO

FLOORS = (
    ("errors",),
    ("inputs",),
    ("opname", "function_names", "result"),
    ("arrays", "outputs"),
    ("parallel",),
    ("formats",),
    ("dialects", "traces.paths"),
    ("traces.readers", "traces.gpu_folders"),
    ("traces.files",),
    ("collector",),  # what it makes of raw files is read like any trace
    ("traces",),
    ("trace_utils", "clocks"),
    ("dag", "figures"),
    ("dag_utils",),
    ("statistic", "combine", "compare", "replay"),
    ("diagnose",),
    ("options", "report"),
    ("analyze",),
    ("installed",),
)
#: Names that two modules still have; none may join them.
_STILL_DOUBLED = {"chrome"}
FLOOR = {name: height for height, floor in enumerate(FLOORS) for name in floor}
SOURCES = [
    path
    for name in FLOOR
    if "." not in name
    for path in (
        [REPO / f"{name}.py"] if (REPO / f"{name}.py").exists() else sorted((REPO / name).rglob("*.py"))
    )
]


#: Floors inside `dialects`: what systems share, each system (of others it knows nothing), and who knows all.
SYSTEM_PACKAGES = {type(system).__module__.split(".")[1] for system in dialects.SYSTEMS} - {"chrome"}
#: A system that is another one with something else around it, and that other one, which alone it knows.
_KIND_OF = {
    type(system).__module__: base.__module__
    for system in dialects.SYSTEMS
    for base in type(system).__bases__
    if base in map(type, dialects.SYSTEMS)
}
_MOST_MODULES = 16  # in one folder


def module_name(path: Path) -> str:
    """Return the full name by which a file is imported."""
    return ".".join(path.relative_to(REPO).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(path): path for path in SOURCES}
BENCHMARKS = {module_name(path): path for path in sorted((REPO / "benchmarks").rglob("*.py"))}


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


@cache
def imported(path: Path) -> set[str]:
    """Return the full names of the project's modules that a file imports, anywhere in it."""
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (names & MODULES.keys()) or {node.module}
    return found & MODULES.keys()


def test_imports_go_down() -> None:
    climbing = []
    for name, path in MODULES.items():
        own = _room(name)
        rooms = {_room(other) for other in imported(path)} - {own}
        climbing += [(name, room) for room in rooms if FLOOR[room] >= FLOOR[own]]
    assert climbing == [], "modules that import from their own floor or from a higher one"


def _room(name: str) -> str:
    """Return the package a module belongs to, or the module where it has a floor of its own."""
    return name if name in FLOOR else name.split(".")[0]


def test_no_modules_import_each_other_in_a_circle() -> None:
    TopologicalSorter({name: imported(path) - {name} for name, path in MODULES.items()}).prepare()


def _floor_of_dialect(name: str) -> int:
    """Return the floor of a module inside `dialects`: what systems share, systems, who knows them all."""
    _, *inside = name.split(".")
    if not inside:
        return 3
    return 2 if inside == ["chrome"] else int(inside[0] in SYSTEM_PACKAGES)


def test_what_systems_share_knows_none_of_them_and_they_do_not_know_each_other() -> None:
    knowing = []
    for name in MODULES:
        if name.split(".")[0] != "dialects":
            continue
        others = {other for other in imported(MODULES[name]) if other.split(".")[0] == "dialects"}
        beside = {other for other in others if other.split(".")[:2] != name.split(".")[:2]}
        allowed = _floor_of_dialect(name)
        shared = allowed == 0
        knowing += [
            (name, other)
            for other in beside
            if _floor_of_dialect(other) >= allowed + shared and _KIND_OF.get(name) != other
        ]
    assert knowing == []


def test_every_system_has_one_module_or_package() -> None:
    modules = [type(system).__module__ for system in dialects.SYSTEMS]
    assert sorted(modules) == sorted({f"dialects.{name}" for name in (*SYSTEM_PACKAGES, "chrome")})
    assert {path.parent.name for path in REPO.glob("dialects/*/__init__.py")} <= SYSTEM_PACKAGES


#: What several options do; a module of an option's own lies in its package.
_SHARED_BY_OPTIONS = {"options.arguments", "options.runs", "options.step_charts"}


def test_options_holds_one_module_or_package_per_option_and_what_they_share() -> None:
    top = {name for name in MODULES if name.startswith("options.") and name.count(".") == 1}
    assert top == set(options.MODULES.values()) | _SHARED_BY_OPTIONS


def test_no_folder_is_a_drawer() -> None:
    crowded = Counter(path.parent for path in SOURCES if path.stem != "__init__")
    assert {folder: n for folder, n in crowded.items() if n > _MOST_MODULES} == {}


def test_only_parallel_starts_processes() -> None:
    starting = [
        name
        for name, path in MODULES.items()
        if name not in ("parallel", "parallel.cluster")  # whose workers are processes
        for node in _executed(tree(path))
        if _starts_processes(node)
    ]
    assert starting == []


def _executed(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a module but for imports that only type checkers do."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        yield node
        yield from _executed(node)


def _starts_processes(node: ast.AST) -> bool:
    """Whether a node imports what starts processes, or forks."""
    if isinstance(node, ast.Attribute):
        return ast.unparse(node) in ("os.fork", "os.forkpty")
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
    modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else names
    return "ProcessPoolExecutor" in names or any(
        one.split(".")[0] in ("multiprocessing", "subprocess") for one in modules
    )


#: Modules that read files of this program itself: its sources, and what a run has just written.
_READ_THEIR_OWN = {
    "parallel.cluster", "formats.native", "report.html", "combine.merge",
    "collector.gpu.final_trace",
}  # fmt: skip


def test_only_inputs_opens_files_of_others() -> None:
    opening = {name for name, path in MODULES.items() if any(map(_opens_for_reading, nodes(path)))}
    assert opening == {"inputs", *_READ_THEIR_OWN}, "files of others are opened by inputs.opened"


def _opens_for_reading(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
    if name in ("read_text", "read_bytes"):
        return isinstance(node.func, ast.Attribute)
    modes = {argument.value for argument in node.args if isinstance(argument, ast.Constant)}
    return name == "open" and (
        bool(modes & {"r", "rb", "rt"}) or (name == ast.unparse(node.func) and not modes)
    )


def test_only_the_clusters_module_knows_its_library() -> None:
    knowing = {
        name
        for name, path in MODULES.items()
        for node in nodes(path)
        if {module.split(".")[0] for module in _imported_by(node)} & {"dask", "distributed"}
    }
    assert knowing == {"parallel.cluster"}


def _imported_by(node: ast.AST) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []


#: The doors, what lies behind each, who is below it, and what of that is open to all: a type.
_DOORS = {
    "trace_utils": ("traces", {"collector", "figures", "clocks", "dag"}, set[str]()),
    "dag_utils": ("dag", set[str](), {"dag.step_graph"}),
}


@pytest.mark.parametrize("door", _DOORS)
def test_nobody_goes_past_a_door(door: str) -> None:
    behind, below, is_open = _DOORS[door]
    past = {
        (name, other)
        for name, path in {**MODULES, **BENCHMARKS}.items()
        if name.split(".")[0] not in {door, behind, *below}
        for other in imported(path) - is_open
        if other.split(".")[0] == behind
    }
    assert past == set()


def test_every_module_has_a_floor() -> None:
    top = {path.stem for path in REPO.glob("*.py")} | {
        path.parent.name for path in REPO.glob("*/__init__.py")
    }
    assert top - {"tests", "benchmarks", "examples", "docs"} == {name for name in FLOOR if "." not in name}


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
    names = [path.stem for path in SOURCES if path.stem != "__init__" and path.parent.name != "options"]
    doubled = {name for name in names if names.count(name) > 1}
    assert doubled == _STILL_DOUBLED


def test_no_two_types_have_one_name() -> None:
    nodes = (node for path in SOURCES for node in tree(path).body)
    names = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef) and node.name[0] != "_")
    assert [name for name, n in names.items() if n > 1] == []
