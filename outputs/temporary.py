"""Temporary files and directories that are never left behind, not even by a process that was killed.

Each is locked (`flock`) while its process lives. One that nobody holds any more was left by a run that was
killed; the next run that writes into the same directory removes it.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from outputs.interrupts import uninterrupted

try:
    import fcntl
except ImportError:  # no locks on this system: nothing is locked, and nothing is swept
    fcntl = None  # type: ignore[assignment]

_NAME = r"\..*\.analyze-\d+-[0-9a-f]{8}\.tmp"
_NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL
_NAME_CHARACTERS = 40  # of the target, in the name of its temporary file


class Temporary:
    """A new, locked file or directory beside `target`; sweeps away what killed runs left there."""

    def __init__(self, target: Path, *, is_directory: bool = False) -> None:
        remove_leftovers(target.parent)
        while True:
            name = f".{target.name[:_NAME_CHARACTERS]}.analyze-{os.getpid()}-{os.urandom(4).hex()}.tmp"
            self.path = target.parent / name
            if is_directory:
                self.path.mkdir(0o700)
            # another run may sweep it away before it is locked
            try:
                self._fd = os.open(self.path, os.O_RDONLY if is_directory else _NEW_FILE, 0o600)
            except FileNotFoundError:
                if is_directory:
                    continue
                raise
            if _lock(self._fd, self.path) is not False:
                return
            self.remove()

    def open(self) -> int:
        """Return a new descriptor of the file, which shares its lock."""
        return os.dup(self._fd)

    def remove(self) -> None:
        """Remove the file, or the directory with all in it, and give up the lock."""
        with uninterrupted():
            _remove(self.path)
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1


@contextlib.contextmanager
def temporary_directory(beside: Path | None = None) -> Iterator[Path]:
    """Make a directory beside the file `beside` (None: among the system's temporary files), and remove it."""
    import tempfile

    made: list[Temporary] = []
    try:
        with uninterrupted():  # a signal that was held back raises where this ends
            made.append(Temporary(beside or Path(tempfile.gettempdir(), "work"), is_directory=True))
        yield made[0].path
    finally:
        for one in made:
            one.remove()


def is_temporary(path: Path) -> bool:
    """Whether `path` is a temporary file or in a temporary directory of this program."""
    return any(re.fullmatch(_NAME, part) for part in path.absolute().parts)


def remove_leftovers(directory: Path) -> None:
    """Remove the temporary files in `directory` whose processes no longer live."""
    if fcntl is None:
        return
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        left = [Path(entry.path) for entry in entries if re.fullmatch(_NAME, entry.name)]
        for path in left:
            with contextlib.suppress(OSError):
                _sweep_one(path)


def _sweep_one(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if _lock(fd, path):
            _remove(path)
    finally:
        os.close(fd)


def _lock(fd: int, path: Path) -> bool | None:
    """Lock what is open as `fd`, and return whether `path` still is that; None where there are no locks."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except (BlockingIOError, FileNotFoundError):
        return False
    except OSError:  # a file system without locks
        return None


def _remove(path: Path) -> None:
    if path.is_dir():
        import shutil

        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
