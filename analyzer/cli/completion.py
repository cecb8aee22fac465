"""Words that may stand at the cursor of an unfinished command line, for ``complete -C analyze analyze``.

Bash, and zsh with ``bashcompinit``, run the program with the line in ``COMP_LINE``; file names are theirs.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from analyzer import cli
from analyzer.base.errors import AnalyzeError
from analyzer.cli.arguments import parser_of, split_option

#: Values for the placeholders of edits; two of each, so that no shell adds a space.
_EXAMPLES = {"R": "0.5|2", "N": "1000000|4000000"}
_RANK = re.compile(r"rank1\b")


def completions(line: str, word: str = "") -> list[str]:
    """List what may replace `word`, the part of the last word that the shell completes."""
    try:
        words = shlex.split(line)
    except ValueError:  # an open quote
        words = line.split()
    *typed, last = [*words[1:], *([""] if line[-1:].isspace() else [])] or [""]
    try:
        texts = {text for text in _candidates(typed, last) if text.startswith(last)}
    except (AnalyzeError, OSError):
        return []
    return sorted(text[len(last) - len(word) :] for text in texts)


def _candidates(typed: Sequence[str], last: str) -> Iterable[str]:
    if not typed or typed[-1] in ("--option", "--type"):
        return ("--option", "--help", "--version") if last.startswith("-") else cli.NAMES
    option, words = split_option(typed)
    flags = parser_of(option or "diagnose")._option_string_actions
    action = flags.get(typed[-1])
    if action is not None and action.choices:
        return action.choices
    if last.startswith("-"):
        return [flag for flag in flags if flag.startswith("--")]
    paths = [Path(word) for word in words if os.path.exists(word)]
    return _edits(paths) if typed[-1] == "--set" or (option == cli.WHAT_IF and paths) else ()


def _edits(paths: Sequence[Path]) -> Iterator[str]:
    """Write the edits in all their forms, with the ranks that the files' names and beginnings tell."""
    from replay.edit import EDITS
    from trace_utils import files_to_read

    ranks: list[str] = []
    if paths:
        with files_to_read(paths) as (job, _, _):
            ranks = [source.prefix.removesuffix(".") for source in job.sources if source.rank is not None]
    for form in ", ".join(forms for _, forms, _ in EDITS).split(", "):
        name, _, values = form.partition("=")
        for value in re.sub(r"\b[RN]\b", lambda found: _EXAMPLES[found[0]], values).split("|"):
            if name == "NAME" or _RANK.match(name):
                yield from (f"{_RANK.sub(rank, name.replace('NAME', 'rank1'))}={value}" for rank in ranks)
            elif value != "NAME" and not re.search(r"\d", name):
                yield f"{name}={value}"
