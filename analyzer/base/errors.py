"""Words for the user: the exceptions that end a run with one line, notes, numbers with nouns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from itertools import groupby
from pathlib import Path

PROGRAM = "analyze.py"  # in messages, and the mark of files that it wrote
_LONGEST = 300  # characters of a message, on one line
_MOST_DIGITS = 18
_LEAST_PART = 3  # letters of a word that is looked for in longer ones
#: Least similarity, as of difflib, of a name that was perhaps meant: with 0.6 ``--open`` is taken for another
#: flag, with 0.8 ``stats`` not for ``statistic``.
SIMILAR = 0.7


def as_sentence(clause: str) -> str:
    """Make a clause a sentence; the name of a rank or an operation stays as it is."""
    first = clause.split(" ", 1)[0]
    is_word = first.isalpha() and first.islower()
    return f"{clause[:1].upper() if is_word else clause[:1]}{clause[1:].removesuffix('.')}."


def counted(n: int, noun: str) -> str:
    """Write a number with its noun: ``1 event``, ``1,234 events``."""
    return f"{n:,} {noun}" + ("" if n == 1 else "s")


def listed(words: Sequence[str], most: int = 3) -> str:
    """Join words: ``a, b and c``; of many the first, and how many more."""
    shown = list(words) if len(words) <= most else [*words[:most], f"{len(words) - most:,} more"]
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def in_words(ranks: Sequence[int], kind: str = "rank") -> str:
    """Name ranks, neighbours as a span.

    >>> in_words([9, 1, 4, 5, 6]), in_words([3], "local rank")
    ('ranks 1, 4 to 6 and 9', 'local rank 3')
    """
    words: list[str] = []
    for _, numbered in groupby(enumerate(sorted(ranks)), lambda pair: pair[1] - pair[0]):
        run = [str(rank) for _, rank in numbered]
        words += [f"{run[0]} to {run[-1]}"] if len(run) > 2 else run
    return f"{kind}{'s' if len(ranks) > 1 else ''} {listed(words, 8)}"


def summed_up(lines: Sequence[str], most: int = 10) -> list[str]:
    """Join lines ``file: text`` of more than `most` files with one text into one, which names three files.

    >>> summed_up(["a: empty", "b: cut", "c: empty", "d: empty"], most=2)
    ['a, c and d: empty', 'b: cut']
    """
    files: dict[str, list[str]] = {}
    for line in lines:
        file, _, text = line.partition(": ")
        files.setdefault(text or line, []).append(file)
    joined = {text: f"{listed(names)}: {text}" for text, names in files.items() if len(names) > most}
    return list(dict.fromkeys(joined.get(line.partition(": ")[2], line) for line in lines))


def whole_number(text: str) -> int | None:
    """Read a number of at most 18 digits, which 64 bits hold; None for any other text."""
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
    """Ask which of `words` was meant: those that contain `word`, else the most similar; "" without any.

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
    """Escape all that is not printable: control characters, lone surrogates."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


class NoteKind(Enum):
    """The kind of a note, for those who act on it."""

    OTHER = "nothing that anyone asks for"
    UNMARKED = "no steps are marked: the whole recording stands for one"
    UNALIGNED = "the clocks of some ranks are not known to each other"
    MISSING = "a rank or its trace is missing, empty, or there twice"
    LOST_WORK = "launches whose work on the device the profiler lost"
    WHOLE = "a repair that lost nothing: what ran when the recording began or ended, clocks that were tied"


class Note(str):
    """A sentence for the user that knows its kind, so that nobody reads it to find out."""

    kind: NoteKind

    def __new__(cls, text: str, kind: NoteKind = NoteKind.OTHER) -> Note:
        """Return the note."""
        note = super().__new__(cls, text)
        note.kind = kind
        return note


def notes_of(kind: NoteKind, notes: Iterable[str]) -> list[str]:
    """Return the notes of a kind."""
    return [note for note in notes if isinstance(note, Note) and note.kind is kind]


class Repairs:
    """Collects what was repaired or skipped: a line for each file, and any other lines, in order."""

    def __init__(self, lines: Sequence[str] = ()) -> None:
        self._of: dict[str, dict[str, None]] = {line: {} for line in lines}

    def add(self, path: object, *what: str) -> None:
        """Note what was done to the file `path`; without anything, `path` is a line that tells it."""
        self._of.setdefault(str(path), {}).update(dict.fromkeys(what))

    @property
    def lines(self) -> list[str]:
        """The lines."""
        return [f"{path}: {'; '.join(what)}" if what else path for path, what in self._of.items()]


class AnalyzeError(Exception):
    """Something the user can mend; `analyze.py` prints it and exits with `exit_code`.

    The message names the file or operation, says what is wrong and, where there is one, the remedy.
    """

    exit_code = 1


class UsageError(AnalyzeError):
    """The command line asks for something that makes no sense (exit code 2)."""

    exit_code = 2


class TraceError(AnalyzeError):
    """A recording, its graph, or a path that should hold one, cannot be used."""


def missing(path: Path) -> TraceError:
    """Return the error of a path that does not exist, and the name most like its first missing part."""
    first = next((part for part in (path, *path.parents) if part.parent.is_dir()), path)
    try:
        names = [beside.name for beside in first.parent.iterdir() if beside != first]
    except OSError:
        names = []
    return TraceError(f"{path}: no such file or directory{meant(first.name, names)}")


class OutputError(AnalyzeError):
    """A result cannot be written."""
