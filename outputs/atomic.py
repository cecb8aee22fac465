"""Output files, whole or not at all: a command's files appear together, when each of them is complete."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import stat
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import IO, cast

from msgspec import Struct

from errors import OutputError, UsageError
from outputs.interrupts import uninterrupted
from outputs.temporary import Temporary

#: Told of each existing file before it is replaced; raises `UsageError` where it must stay.
Guard = Callable[[Path], None]

#: Names of what this process has open: written as it is, even where it is a regular file.
_DESCRIPTORS = ("/dev/stdout", "/dev/stderr", "/dev/fd/", "/proc/self/fd/")


class Outputs:
    """The files of one command. `open_output` within ``with outputs:`` prepares, `commit` renames all.

    What is prepared and not committed when the block ends is discarded. Without a guard any file is replaced.
    """

    def __init__(self, guard: Guard = lambda path: None) -> None:
        self._guard = guard
        self._prepared: list[_Prepared] = []

    def __enter__(self) -> Outputs:
        self._token = _current.set(self)
        return self

    def __exit__(self, *error: object) -> None:
        _current.reset(self._token)
        self._discard()

    def check(self, path: Path, *, is_guarded: bool = True) -> None:
        """Refuse a file that `open` would refuse.

        That is (UsageError) a directory, another output of this command, or a file that must stay, and
        (OutputError) what cannot be looked at (a loop of links) and what no file can be made for: its
        directory is missing or may not be written.
        """
        with as_output_error(path):
            status = _status(path)
            if status is not None and stat.S_ISDIR(status.st_mode):
                raise UsageError(f"{path}: is a directory; name a file in it")
            if _is_stream(path, status):
                return
            if any(is_same(path, prepared.target) for prepared in self._prepared):
                raise UsageError(f"{path}: is the name of another output too")
            if status is not None and is_guarded:
                self._guard(path)
            directory = Path(os.path.realpath(path)).parent
            if not directory.is_dir():
                raise OutputError(f"{path}: cannot be written: there is no directory {directory}")
            if not os.access(directory, os.W_OK | os.X_OK):
                raise OutputError(f"{path}: cannot be written: the directory {directory} may not be written")

    @contextlib.contextmanager
    def open(self, path: Path, *, is_guarded: bool = True) -> Iterator[IO[bytes]]:
        """Open `path` for writing bytes; see `open_output`."""
        self.check(path, is_guarded=is_guarded)
        with as_output_error(path):
            if _is_stream(path, _status(path)):
                with os.fdopen(_open_stream(path), "wb") as stream:
                    yield stream
                return
            with uninterrupted():
                target = Path(os.path.realpath(path))
                prepared = _Prepared(path, target, Temporary(target))
                self._prepared.append(prepared)
            try:
                with (
                    os.fdopen(prepared.temporary.open(), "wb") as raw,
                    _gzip_writer(raw) if target.suffix == ".gz" else raw as stream,
                ):
                    yield stream
            except BaseException:
                self._prepared.remove(prepared)
                prepared.finish()
                raise

    def commit(self) -> None:
        """Give every prepared file its name; where one cannot have it (OutputError), none is changed."""
        with uninterrupted(), contextlib.ExitStack() as undo:
            for prepared in self._prepared:
                with as_output_error(prepared.path):
                    prepared.rename(undo)
            undo.pop_all()
            self._discard()

    def _discard(self) -> None:
        with uninterrupted():
            for prepared in self._prepared:
                prepared.finish()
            self._prepared.clear()


_current: ContextVar[Outputs | None] = ContextVar("outputs", default=None)


@contextlib.contextmanager
def open_output(path: Path, *, is_guarded: bool = True) -> Iterator[IO[bytes]]:
    """Open `path` for writing bytes, as one of the current `Outputs` if there are any.

    Otherwise it appears, complete, when the block ends without an error. The bytes go to a temporary file
    beside `path`; a name that ends in ``.gz`` is compressed. An existing file keeps its mode. A pipe or a
    device (``/dev/stdout``) is written as it is; of a link, the target is replaced. What a command is there
    to renew is not guarded.

    Raises OutputError where the directory does not exist or is not writable, the disk is full, or nobody
    reads the pipe, and UsageError where `Outputs.check` does.
    """
    outputs = _current.get()
    if outputs is not None:
        with outputs.open(path, is_guarded=is_guarded) as stream:
            yield stream
        return
    with Outputs() as alone:
        with alone.open(path, is_guarded=is_guarded) as stream:
            yield stream
        alone.commit()


def check_output(path: Path, *, is_named: bool = True) -> None:
    """Refuse what `open_output` would refuse, before the work is done; a default path no flag has named."""
    try:
        (_current.get() or Outputs()).check(path)
    except OutputError as error:
        raise error if is_named else OutputError(f"{error}; --output names another place") from None


class _Prepared(Struct):
    """A file that was asked for as `path`, its name without links, and where its content is."""

    path: Path
    target: Path
    temporary: Temporary
    old: Temporary | None = None  # a directory with another name of the file, until all are replaced

    def rename(self, undo: contextlib.ExitStack) -> None:
        """Give the file its name, and tell `undo` how to take it back."""
        os.chmod(self.temporary.path, _mode(self.target))
        take_back: Callable[[], object] = self.target.unlink
        if self.target.exists():
            self.old = Temporary(self.target, is_directory=True)
            kept = self.old.path / "old"
            take_back = functools.partial(os.replace, kept, self.target)
            try:
                os.link(self.target, kept)
            except OSError:  # a file system without links: this file cannot be taken back
                take_back = int
        os.replace(self.temporary.path, self.target)
        undo.callback(take_back)

    def finish(self) -> None:
        """Remove what is left of the temporary files."""
        self.temporary.remove()
        if self.old is not None:
            self.old.remove()


@contextlib.contextmanager
def as_output_error(path: Path, if_full: str = "") -> Iterator[None]:
    """Say of an `OSError` in the block that `path` cannot be written; `if_full` is said of a full disk."""
    try:
        yield
    except OSError as error:
        hint = f" ({if_full})" if if_full and error.errno == errno.ENOSPC else ""
        raise OutputError(f"{path}: cannot be written: {error.strerror or error}{hint}") from error


def _status(path: Path) -> os.stat_result | None:
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


def _is_stream(path: Path, status: os.stat_result | None) -> bool:
    """Whether `path` is written as it is instead of being replaced."""
    is_special = status is not None and not stat.S_ISREG(status.st_mode)
    return is_special or str(path).startswith(_DESCRIPTORS)


def _open_stream(path: Path) -> int:
    """Open a pipe, or a device such as a terminal, without waiting for anybody."""
    mode = os.stat(path).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or stat.S_ISREG(mode)):
        raise OutputError(f"{path}: cannot be written: neither a file nor a pipe")
    try:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        if stat.S_ISFIFO(mode):
            raise OutputError(f"{path}: cannot be written: nobody reads this pipe") from error
        raise
    os.set_blocking(fd, True)
    return fd


def is_same(path: Path, target: Path) -> bool:
    """Whether a name leads to the file `target` (without links), which need not exist."""
    same_name = Path(os.path.realpath(path)) == target
    return same_name or (path.exists() and target.exists() and path.samefile(target))


def _mode(path: Path) -> int:
    """Permission bits for a new `path`: those of the file it replaces, else what the umask leaves."""
    try:
        return path.stat().st_mode & 0o777
    except FileNotFoundError:
        umask = os.umask(0)
        os.umask(umask)
        return 0o666 & ~umask


def _gzip_writer(raw: IO[bytes]) -> IO[bytes]:
    """Return a gzip stream over `raw`, by `isal` where it is installed (several times faster).

    It names no file and no time, so that the same content makes the same bytes.
    """
    try:
        from isal import igzip

        packed = igzip.GzipFile("", "wb", 2, raw, mtime=0)  # type: ignore[no-untyped-call]
        return cast("IO[bytes]", packed)
    except ImportError:
        import gzip

        return cast("IO[bytes]", gzip.GzipFile("", "wb", 6, raw, mtime=0))
