"""Words for the user: exceptions that end a run with one line, notes, numbers with nouns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any

PROGRAM = "analyze.py"  # in messages, and the mark of files that it wrote
_LONGEST = 300  # characters of a message, on one line
_MOST_DIGITS = 18
_LEAST_PART = 3  # least letters of a word to look for in longer words
#: Least similarity (difflib's) of a suggestion: 0.6 takes ``--open`` for another flag, 0.8 does not take
#: ``stats`` for ``statistic``.
SIMILAR = 0.7


def as_sentence(clause: str) -> str:
    """Make a clause a sentence; the name of a rank or an operation stays unchanged."""
    first = clause.split(" ", 1)[0]
    is_word = first.isalpha() and first.islower()
    return f"{clause[:1].upper() if is_word else clause[:1]}{clause[1:].removesuffix('.')}."


def counted(n: int, noun: str) -> str:
    """Write a number with its noun: ``1 event``, ``1,234 events``."""
    return f"{n:,} {noun}" + ("" if n == 1 else "s")


def listed(words: Sequence[str], most: int = 3) -> str:
    """Join words: ``a, b and c``; of many the first, and the number of the others."""
    shown = list(words) if len(words) <= most else [*words[:most], f"{len(words) - most:,} more"]
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def in_words(ranks: Sequence[int], kind: str = "rank") -> str:
    """Name ranks; neighbours become a span.

    >>> in_words([9, 1, 4, 5, 6]), in_words([3], "local rank")
    ('ranks 1, 4 to 6 and 9', 'local rank 3')
    """
    words: list[str] = []
    for numbered in _runs(sorted(ranks)):
        run = list(map(str, numbered))
        words += [f"{run[0]} to {run[-1]}"] if len(run) > 2 else run
    return f"{kind}{'s' if len(ranks) > 1 else ''} {listed(words, 8)}"


def number_ranges(numbers: Sequence[int]) -> str:
    """Write rising numbers as text, consecutive ones as a range: ``2–4, 7–9``."""
    spans = ["–".join(map(str, dict.fromkeys((run[0], run[-1])))) for run in _runs(numbers)]
    return ", ".join(spans[:8]) + (", …" if len(spans) > 8 else "")


def _runs(numbers: Sequence[int]) -> list[list[int]]:
    """Split rising numbers into runs without a gap."""
    grouped = groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    return [[number for _, number in run] for _, run in grouped]


def summed_up(lines: Sequence[str]) -> list[str]:
    """Join lines ``file: text`` with the same text into one line of three files.

    >>> summed_up(["d/a: empty", "d/b: cut", "d/c: empty", "e/d: empty"])
    ['d/a, c and e/d: empty', 'd/b: cut']
    """
    files: dict[str, list[str]] = {}
    for line in lines:
        file, _, text = line.partition(": ")
        names = files.setdefault(text or line, [])
        is_beside = bool(names) and Path(names[0]).parent == Path(file).parent
        names.append(Path(file).name if is_beside else file)
    joined = {text: f"{listed(names)}: {text}" for text, names in files.items() if len(names) > 1}
    return list(dict.fromkeys(joined.get(line.partition(": ")[2], line) for line in lines))


def whole_number(text: str) -> int | None:
    """Read a number of at most 18 digits, so that 64 bits hold it; None for any other text."""
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else None


def one_line(text: str) -> str:
    """Make `text` one printable line of at most 300 characters, control characters escaped."""
    return shortened(printable(text), _LONGEST)


def shortened(text: str, longest: int) -> str:
    """Shorten `text` to `longest` characters by replacing its middle with ``…``."""
    if len(text) <= longest:
        return text
    tail = longest // 2
    return f"{text[: longest - tail - 1]}…{text[len(text) - tail :]}"


def meant(word: str, words: Iterable[str], most: int = 1) -> str:
    """Suggest words for a wrong `word`: words that contain it, else the most similar; "" without any.

    >>> meant("conv1", ["FW.conv1", "BW.conv1", "Comm.conv1_bias", "Comm.conv1_weight"], most=3)
    '; did you mean BW.conv1, FW.conv1, Comm.conv1_bias or one of 1 more?'
    """
    from difflib import get_close_matches

    known = {name.lower(): name for name in words}
    low = word.lower()
    near = sorted((name for name in known if low in name), key=lambda name: (len(name), name))
    if not near or len(low) < _LEAST_PART:
        near = get_close_matches(low, known, most, SIMILAR)
    names = [known[name] for name in near[:most]]
    if most > 1 and len(near) > most:
        names.append(f"one of {len(near) - most:,} more")
    *others, last = names or [""]
    return f"; did you mean {' or '.join([', '.join(others), last] if others else [last])}?" if last else ""


def printable(text: str) -> str:
    """Escape unprintable characters: control characters, lone surrogates."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


class NoteKind(Enum):
    """The kind of a note, for code that acts on it."""

    OTHER = "no code acts on it"
    UNMARKED = "no steps are marked: the whole recording is one step"
    UNALIGNED = "the offsets between the clocks of some ranks are unknown"
    MISSING = "a rank or its trace is missing, empty, or duplicated"
    WHOLE = "no loss: slices cut at the recording's ends, aligned clocks, how a log was read"


class Note(str):
    """A sentence for the user with its kind."""

    kind: NoteKind

    def __new__(cls, text: str, kind: NoteKind = NoteKind.OTHER) -> Note:
        """Make the note."""
        note = super().__new__(cls, text)
        note.kind = kind
        return note


def notes_of(kind: NoteKind, notes: Iterable[str]) -> list[str]:
    """Select the notes of a kind."""
    return [note for note in notes if isinstance(note, Note) and note.kind is kind]


class Repairs:
    """Collects repairs and skipped input: a line for each file, and any other lines, in order."""

    def __init__(self, lines: Sequence[str] = ()) -> None:
        self._of: dict[str, dict[str, None]] = {line: {} for line in lines}

    def add(self, path: object, *repairs: str) -> None:
        """Add repairs of the file `path`; without repairs, `path` is a whole line."""
        self._of.setdefault(str(path), {}).update(dict.fromkeys(repairs))

    @property
    def lines(self) -> list[str]:
        """A line for each file, and the other lines."""
        return [f"{path}: {'; '.join(repairs)}" if repairs else path for path, repairs in self._of.items()]


class AnalyzeError(Exception):
    """A mistake of the user; `analyze.py` prints it and exits with `exit_code`.

    The message names the file or operation, says what is wrong and, if there is a remedy, what to do.
    """

    exit_code = 1


class UsageError(AnalyzeError):
    """The command line is wrong (exit code 2)."""

    exit_code = 2


class TraceError(AnalyzeError):
    """A recording, its graph, or its path cannot be used."""


def missing(path: Path) -> TraceError:
    """Make the error of a path that does not exist, with the name most like its first missing part."""
    first = next((part for part in (path, *path.parents) if part.parent.is_dir()), path)
    try:
        names = [beside.name for beside in first.parent.iterdir() if beside != first]
    except OSError:
        names = []
    return TraceError(f"{path}: no such file or directory{meant(first.name, names)}")


class OutputError(AnalyzeError):
    """A result cannot be written."""


def optional(module: str, package: str, needing: str) -> Any:
    """Import a module that not every user installs; AnalyzeError says what needs its package."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise AnalyzeError(f"{needing} needs {package}: python3 -m pip install {package}") from error


#: Cells of an operation and a step that a run may have: some, or this many for each of its events.
_MOST_CELLS, _MOST_CELLS_AN_EVENT = 10_000_000, 10


def check_cells(path: object, m: int, k: int, n_slices: int) -> None:
    """Refuse huge, nearly empty tables of m operations in k steps."""
    if m * k > max(_MOST_CELLS, _MOST_CELLS_AN_EVENT * n_slices):
        raise TraceError(
            f"{path}: {counted(m, 'operation')} in {counted(k, 'step')}, most of them in a few steps only: "
            "too many to be compared step by step; --step_by NAME says what else marks a step"
        )
