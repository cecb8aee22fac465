"""No pattern takes the square of a text: a name in a file may have as many characters as the file."""

from __future__ import annotations

import ast
import importlib
import re
import time
from collections.abc import Iterator

import pytest
from test_floors import MODULES, nodes

from analyzer.base.names import brief

_N = 4000  # characters: their square takes 50 ms and more, a pattern that is tried once 0.1 ms
_MOST_S = 0.02
_REPEATED = (
    "x", "x1", "1", "1.", "_", "_1", "_1.", "a_1.", "T", "(", "<", "<x>(", "::", "a::", " ", "\n", "x ", "/",
    "a/", "a/.py", "[", "{", "-", "=", "\\", "\\\"", "'", '"', ",", "Comm.", "rank0.", "&#1;", "apply<",
)  # fmt: skip
_METHODS = ("match", "fullmatch", "search", "sub", "findall", "finditer", "split")
#: Patterns that only see names of up to 300 characters, what another one has matched, or a command of ours.
_BOUNDED = ("_RATE", "_DURATION", "_EACH_PAIR", "PROGRAM")


def _patterns() -> Iterator[tuple[str, str, re.Pattern[str] | re.Pattern[bytes]]]:
    """Yield each use of a pattern: the line, the method, and the pattern."""
    for full_name, path in MODULES.items():
        module = importlib.import_module(full_name)
        for node in nodes(path):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            of, source = node.func.value, ast.unparse(node)
            if node.func.attr not in _METHODS or any(name in source for name in _BOUNDED):
                continue
            given = node.args[0] if ast.unparse(of) == "re" and node.args else of
            names = {one.id for one in ast.walk(given) if isinstance(one, ast.Name)}
            if not names <= vars(module).keys() or not isinstance(
                given, ast.Name | ast.Constant | ast.JoinedStr
            ):
                continue
            pattern = eval(ast.unparse(given), vars(module))
            if isinstance(pattern, re.Pattern) or (of is not given and isinstance(pattern, str | bytes)):
                yield f"{full_name}, line {node.lineno}", node.func.attr, re.compile(pattern)


def _seconds(pattern: re.Pattern[str] | re.Pattern[bytes], method: str, text: str) -> float:
    given = text.encode() if isinstance(pattern.pattern, bytes) else text
    begin = time.process_time()
    found = getattr(pattern, method)(*([given[:0]] if method == "sub" else ()), given)
    if method == "finditer":
        list(found)
    return time.process_time() - begin


@pytest.mark.slow
def test_no_pattern_takes_the_square_of_a_text() -> None:
    tried = {(method, pattern): place for place, method, pattern in _patterns()}
    assert len(tried) > 100
    slow = []
    for (method, pattern), place in tried.items():
        for part in _REPEATED:
            text = "a<" + part * (_N // len(part)) + "!"
            if all(_seconds(pattern, method, text) > _MOST_S for _ in range(3)):
                slow.append(f"{place} {method} of {part!r}")
                break
    assert slow == []


def test_templates_that_adapt_one_another_are_followed_all_the_way_down() -> None:
    assert brief("void work<" + "apply<" * 2000 + "add_functor" + ">" * 2001 + "()") == "work<add_functor>"
