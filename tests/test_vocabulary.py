"""What only one system says stays in its folder; all else asks for roles, phases and answers of `System`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

from test_floors import SOURCES, nodes

from analyzer.reading import dialects
from conftest import REPO

#: Where a system's files are read and what they say is known; the grammar of BytePS's names is `names`.
INSIDE = {"build", "reading", "collector", "collect", "tests", "benchmarks", "names.py"}
SAID_BY_ONE = {
    *("STEP", "PUSH", "PULL", "COPYD2H", "I/O", "UPDATE", "OUTPUT", "Comm", "FW", "BW", "NEGOTIATE_"),
    *("cpu_op", "Operator", "user_annotation", "gpu_user_annotation", "python_function", "gpu_memcpy"),
    *("gpu_memset", "cuda_runtime", "kernel", "[memory]", "baseTimeNanoseconds", "distributedInfo"),
    *("enumerate(DataLoader)", "PyTorch Profiler", "MulBackward0", "event/batch", "ProfilerStep"),
    *("clock_sync_timestamp_us", "start_time_since_epoch_in_micros", "DASF", "ProfilerStep*"),
}


@cache
def modules() -> dict[str, list[ast.AST]]:
    """Return all that is in the syntax trees of the modules that know no system."""
    known = {path: path.relative_to(REPO) for path in SOURCES}
    return {str(name): nodes(path) for path, name in known.items() if not {*name.parts} & INSIDE}


def literals(module: list[ast.AST]) -> Iterator[tuple[str, int]]:
    """Yield the strings of a module, but for docstrings, and their lines."""
    statements = {id(node.value) for node in module if isinstance(node, ast.Expr)}
    for node in module:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in statements:
            yield node.value, node.lineno


def test_no_module_says_what_only_one_system_says() -> None:
    said = [(path, line, text) for path, found in modules().items() for text, line in literals(found)]
    assert len(said) > 1000
    assert [one for one in said if one[2] in SAID_BY_ONE] == []


def test_no_module_imports_one_system() -> None:
    packages = {type(system).__module__ for system in dialects.SYSTEMS}
    imports = [
        (path, node.module or "")
        for path, found in modules().items()
        for node in found
        if isinstance(node, ast.ImportFrom)
    ]
    assert [one for one in imports if ".".join(one[1].split(".")[:4]) in packages] == []
