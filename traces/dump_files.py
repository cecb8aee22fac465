"""A layout of directories: the dumps of a flight recorder, one for each rank, whatever their names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from formats.recorder import recognises
from inputs import opened, unreadable
from traces.paths import Job, Source, head_of, listing, missing_note

_TRIED = 16  # files of a directory, of which one is a dump where dumps are
_HEAD = 1 << 12  # bytes, in which a dump says what it is


def find(path: Path, given: Sequence[Path]) -> Job | None:
    """Return the job of the dumps right in `path`; None where none of its first files is one."""
    files = [file for file in listing(path) if file.is_file() and not file.name.startswith(".")]
    if not any(map(is_dump, files[:_TRIED])):
        return None
    dumps = [file for file in files if is_dump(file)]
    empty = [file for file in files if file.stat().st_size == 0]
    notes: list[str] = [missing_note(f"{file}: an empty file, left out") for file in empty]
    if others := len(files) - len(dumps) - len(empty):
        notes.append(
            f"{path}: {others} of its files {'is not a dump' if others == 1 else 'are not dumps'}, left out"
        )
    return Job(path, "ranks", [Source(file) for file in dumps], notes)


def is_dump(path: Path) -> bool:
    """Whether a file is the dump of a flight recorder, whatever its name."""
    try:
        with opened(path) as file:
            head = file.read(_HEAD)
    except OSError as error:
        raise unreadable(path, error) from error
    return recognises(head_of(path) if head[:2] == b"\x1f\x8b" else head)
