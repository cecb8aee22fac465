"""Plain English: wordings that a reader has to puzzle out do not come (back) into code, messages and pages.

A clause of pronouns where a noun would do ("what is wanted of each rank"), "is no X" for "is not an X", and a
homely word where the field has a term ("19 times in 20" for "95 %").
"""

from __future__ import annotations

import re
from pathlib import Path

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
    r"\bthat nothing hides\b": "exposed",
    r"\bmore a step\b|\blonger a step\b": "per step",
    r"\bin silence\b": "silently",
    r"\bcalled so\b": "has that name",
    r"\b[Ff]aces?\b(?! of)": "output format",
    r"\bto win\b|\bbe won\b|\bwins\b": "to save, is saved, takes precedence",
    r"\bweighs? most\b": "is largest",
    r"\b(?:warning|line|phrase|task|process|row) an? (?:file|rank|step|event|operation)\b": "one per file",
}
#: How a docstring does not begin, since its first line shall be a noun or say what a function returns.
OPENINGS = {
    r'"""\s?What\b': "the noun",
    r'"""\s?(?:Return|Yield) what\b': "Return the noun",
}

_NO_PRODUCT = ("tests", "examples", ".venv", "build")
_CODE = re.compile(r"`[^`\n]*`")
_BLOCK = re.compile(r"^\s*```.*?^\s*```", re.MULTILINE | re.DOTALL)
_JOINT = re.compile(r'(?<!")"\s*\n\s*f?"(?!")')  # between a text and the one that it goes on in
_COMMENT = re.compile(r"\n\s*#:?")  # where a comment goes on


def sources() -> list[Path]:
    """Return the modules of the program and its benchmarks, and the pages."""
    modules = [p for p in sorted(REPO.rglob("*.py")) if p.relative_to(REPO).parts[0] not in _NO_PRODUCT]
    pages = [REPO / "README.md", REPO / "CONTRIBUTING.md", *sorted((REPO / "docs").rglob("*.md"))]
    return [*modules, *pages]


def prose(path: Path) -> str:
    """Return the text of a file on one line: pages without code, texts that a module joins as one."""
    text = path.read_text(encoding="utf-8")
    text = _BLOCK.sub("", text) if path.suffix == ".md" else _COMMENT.sub(" ", _JOINT.sub("", text))
    return " ".join(_CODE.sub("`…`", text).split())


def test_wordings_that_readers_puzzle_over_are_not_used() -> None:
    found = []
    for path in sources():
        text = prose(path)
        for wording, better in {**WORDINGS, **OPENINGS}.items():
            for match in re.finditer(wording, text):
                around = text[max(match.start() - 30, 0) : match.end() + 30]
                found.append(f"{path.relative_to(REPO)}: {around!r}: {better}")
    assert not found, "\n".join(found)
