"""Plain English: wordings that a reader has to puzzle out do not come (back) into code, messages and pages.

A clause of pronouns where a noun would do ("what is wanted of each rank"), "is no X" for "is not an X", and a
homely word where the field has a term ("19 times in 20" for "95 %").
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from test_floors import nodes

from conftest import REPO

#: A wording, and what to write in its place.
WORDINGS = {
    r"(?<![Tt]here )\b(?:is|are|was|were|be) no (?!longer|more|less|fewer|later|earlier)": "is not a",
    r"(?<![Tt]here )\b(?:is|are|was|were|be) none\b": "is not one of, lacks",
    r"\btold by\b": "found by, estimated from",
    r"\bdearest\b": "largest",
    r"\b19 times in 20\b": "95 %",
    r"\bmanieth\b": "n-th",
    r"\bof which each\b": "each of which, or two sentences",
    r"\bthat which\b": "the noun",
    r"\b(?:for|is) wanted? of\b": "for lack of, is needed for",
    r"\bis wanted\b": "is expected, is requested",
    r"\bin silence\b": "silently",
    r"\bcalled so\b": "has that name",
    r"\b[Ff]aces?\b(?! of)": "output format",
    r"\bto win\b|\bbe won\b|\bwins\b": "to save, is saved, takes precedence",
    r"\bweighs? most\b": "is largest",
    r"\b(?:warning|line|phrase|task|process|row) an? (?:file|rank|step|event|operation)\b": "one per file",
}
#: How a docstring does not begin, since its first line shall be a noun or say what a function returns.
OPENINGS = {
    r"What\b": "the noun",
    r"(?:Return|Yield) what\b": "Return the noun",
}

_NO_PRODUCT = ("tests", "examples", ".venv")
_CODE = re.compile(r"`[^`]*`")


def sources() -> list[Path]:
    """Return the modules of the program and its benchmarks, and the pages."""
    modules = [p for p in sorted(REPO.rglob("*.py")) if p.relative_to(REPO).parts[0] not in _NO_PRODUCT]
    pages = [REPO / "README.md", REPO / "CONTRIBUTING.md", *sorted((REPO / "docs").rglob("*.md"))]
    return [*modules, *pages]


def prose(path: Path) -> Iterator[tuple[int, str, bool]]:
    """Yield the line, the text, and whether it is a docstring, of each text of a file that people read."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        in_code = False
        for number, line in enumerate(text.splitlines(), 1):
            in_code ^= line.lstrip().startswith("```")
            if not in_code:
                yield number, _CODE.sub("`…`", line), False
        return
    for number, line in enumerate(text.splitlines(), 1):
        if "#" in line:  # a comment, or a text that is looked at anyway
            yield number, line[line.index("#") :], False
    docstrings = set()
    for node in nodes(path):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            assert isinstance(node.body[0], ast.Expr)
            docstrings.add(node.body[0].value)
    for node in nodes(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, " ".join(_CODE.sub("`…`", node.value).split()), node in docstrings


def test_wordings_that_readers_puzzle_over_are_not_used() -> None:
    found = []
    for path in sources():
        texts = list(prose(path))
        whole = "\n".join(text for _, text, _ in texts)
        for wording, better in WORDINGS.items():
            for match in re.finditer(wording, whole):
                line = texts[whole.count("\n", 0, match.start())][0]
                found.append(f"{path.relative_to(REPO)}:{line}: {match[0]!r}: {better}")
        for line, text, is_docstring in texts:
            for opening, better in OPENINGS.items() if is_docstring else ():
                first = re.match(opening, text)
                found += [f"{path.relative_to(REPO)}:{line}: {first[0]!r}: {better}"] if first else []
    assert not found, "\n".join(found)
