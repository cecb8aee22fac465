"""Words for the user: the exceptions that end a run with one line, notes, numbers with nouns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from pathlib import Path

_LONGEST = 300  # characters of a message, on one line
_MOST_DIGITS = 18
_LEAST_PART = 3  # letters of a word that is looked for in longer ones
#: Of two words, and of one and a part of the other: their characters in common, as of difflib. With 0.6
#: ``--open`` is taken for another flag, with 0.8 ``stats`` not for ``statistic``; of parts 0.7 and 0.9 find
#: the same, and with 0.5 ``gpu`` is taken for an operation (tests/test_wrong_commands.py).
SIMILAR, _SIMILAR_PART = 0.7, 0.8
_FEWEST = 24  # characters that a long name keeps, if that is enough


def as_sentence(clause: str) -> str:
    """Return a clause as a sentence; the name of a rank or an operation stays as it is."""
    first = clause.split(" ", 1)[0]
    is_word = first.isalpha() and first.islower()
    return f"{clause[:1].upper() if is_word else clause[:1]}{clause[1:].removesuffix('.')}."


def counted(n: int, noun: str) -> str:
    """Return a number with its noun: ``1 event``, ``1,234 events``."""
    return f"{n:,} {noun}" + ("" if n == 1 else "s")


def listed(words: Sequence[str], most: int = 3) -> str:
    """Return words as text: ``a, b and c``; of many the first, and how many more."""
    shown = list(words) if len(words) <= most else [*words[:most], f"{len(words) - most:,} more"]
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def in_words(ranks: Sequence[int], kind: str = "rank") -> str:
    """Return ranks as text, neighbours as a span.

    >>> in_words([9, 1, 4, 5, 6]), in_words([3], "local rank")
    ('ranks 1, 4 to 6 and 9', 'local rank 3')
    """
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and spans[-1][1] == rank - 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    words = [word for a, b in spans for word in ([f"{a} to {b}"] if b > a + 1 else map(str, sorted({a, b})))]
    return f"{kind}{'s' if len(ranks) > 1 else ''} {listed(words, 8)}"


def summed_up(lines: Iterable[str], most: int = 10) -> list[str]:
    """Return lines ``file: what``; where more than `most` files have the same, one line has three of them.

    >>> summed_up(["a: empty", "b: cut", "c: empty", "d: empty"], most=2)
    ['a, c and d: empty', 'b: cut']
    """
    parts = [line.partition(": ") for line in lines]
    files: dict[str, list[str]] = {}
    for file, _, what in parts:
        files.setdefault(what, []).append(file)
    many = {what: f"{listed(named)}: {what}" for what, named in files.items() if what and len(named) > most}
    return list(dict.fromkeys(many.get(part[2], "".join(part)) for part in parts))


def whole_number(text: str) -> int | None:
    """Return the number that `text` says in at most 18 digits, which 64 bits hold; else None."""
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else None


def one_line(text: str, longest: int = _LONGEST) -> str:
    """Return `text` as one line of at most `longest` characters, all of which can be printed.

    Control and bidirectional characters become escapes. Where the line is too long its longest words are
    shortened in the middle, then the line itself.
    """
    line = printable(text)
    words = line.split(" ")
    while len(line) > longest and (cap := max(map(len, words))) > _FEWEST:
        cap = max(_FEWEST, cap - (len(line) - longest))
        words = [shortened(word, cap) for word in words]
        line = " ".join(words)
    return shortened(line, longest)


def shortened(text: str, longest: int) -> str:
    """Return `text` in at most `longest` characters, its middle replaced by ``…`` where it is longer."""
    if len(text) <= longest:
        return text
    tail = longest // 2
    return f"{text[: longest - tail - 1]}…{text[len(text) - tail :]}"


def meant(word: str, words: Iterable[str], most: int = 1) -> str:
    """Return the question which of `words` was meant: those with `word` in them, else the most alike; or "".

    >>> meant("conv1", ["FW.conv1", "BW.conv1", "Comm.conv1_bias", "Comm.conv1_weight"], most=3)
    '; did you mean BW.conv1, FW.conv1, Comm.conv1_bias or one of 1 more?'
    """
    from difflib import get_close_matches

    known = {one.lower(): one for one in words}
    low = word.lower()
    near = [one for one in known if low in one] if len(low) >= _LEAST_PART else []
    alike = [] if near else get_close_matches(low, known, most, SIMILAR)
    if not near and not alike and most > 1:  # a part of a name may be meant
        near = [
            one for one in known if get_close_matches(low, one.replace("_", ".").split("."), 1, _SIMILAR_PART)
        ]
    near = alike or sorted(near, key=lambda one: (len(one), one))
    *others, last = [known[one] for one in near[:most]] or [""]
    if most > 1 and len(near) > most:
        others, last = [*others, last], f"one of {len(near) - most:,} more"
    return f"; did you mean {' or '.join([', '.join(others), last] if others else [last])}?" if last else ""


def printable(text: str) -> str:
    """Return `text` with all that is not printable (control characters, lone surrogates) escaped."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


class NoteKind(Enum):
    """The kind of a note, for those who act on it."""

    OTHER = "nothing that anyone asks for"
    UNMARKED = "no steps are marked: the whole recording stands for one"
    UNALIGNED = "the clocks of some ranks are not known to each other"
    MISSING = "a rank or its trace is missing, empty, or there twice"
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
    first = next((one for one in (path, *path.parents) if one.parent.is_dir()), path)
    try:
        names = [beside.name for beside in first.parent.iterdir() if beside != first]
    except OSError:
        names = []
    return TraceError(f"{path}: no such file or directory{meant(first.name, names)}")


class OutputError(AnalyzeError):
    """A result cannot be written."""
