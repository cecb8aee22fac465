"""Output files, whole or not at all: written to a temporary file, renamed when the command has succeeded.

Only JSON with this program's mark as first member is replaced, or any file with `--force`.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import re
import shutil
import stat
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import IO, TextIO, cast

from msgspec import Struct

from analyzer.base.errors import OutputError, UsageError
from analyzer.base.inputs import is_marked

#: Names of this process's open streams: written directly, even if they are regular files.
_DESCRIPTORS = ("/dev/stdout", "/dev/stderr", "/dev/fd/", "/proc/self/fd/")
_TEMPORARY_NAME = re.compile(r"\..*\.analyze-.*\.tmp")
_NAME_CHARACTERS = 40  # of the target, in the name of its temporary file
#: Suffixes of each flag's file, before a ``.gz``; a name without a suffix is fine.
_SUFFIXES = {"--xlsx": (".xlsx",), "--html": (".html", ".htm"), "--save": (".json",)}
_SUFFIXES["--format parquet --output"] = (".parquet",)
_STILLS = (".svg", ".png", ".pdf")
_TIMELINE = (".json", ".trace")
#: Options whose `--output` is a timeline; the other options check the names of their pictures.
_TIMELINES = ("combine", "critical", "replay", "collect")
#: Options whose unnamed pages and workbooks lie beside their `--output`, or the first trace.
_BESIDE_OTHERS = ("combine", "3dcompare", "statistic")
#: Options that need no `--output`.
_MAY_WRITE_NOTHING = ("replay", "critical")
#: The `--output` without a file.
NO_FILE = Path("-")


class _Prepared(Struct):
    """A complete temporary file that becomes `target`, the user's `path` without links."""

    path: Path
    target: Path
    temporary: Path


class Outputs:
    """The files of one command. `open_output` within ``with outputs:`` prepares, `commit` renames all.

    At the end of the block, prepared files without a commit are removed. `guard` is called with each existing
    file before it is replaced; it raises `UsageError` if the file must stay.
    """

    def __init__(self, guard: Callable[[Path], None] = lambda path: None) -> None:
        self._guard = guard
        self._prepared: list[_Prepared] = []

    def __enter__(self) -> Outputs:
        self._token = _current.set(self)
        return self

    def __exit__(self, *error: object) -> None:
        _current.reset(self._token)
        for prepared in self._prepared:
            prepared.temporary.unlink(missing_ok=True)
        self._prepared.clear()

    def check(self, path: Path, *, is_guarded: bool = True) -> None:
        """Refuse a file that cannot or must not be written.

        UsageError: a directory, another output of this command, or a file that the guard protects.
        OutputError: a missing or closed directory, or a loop of links.
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
            target = Path(os.path.realpath(path))
            fd, name = tempfile.mkstemp(dir=target.parent, prefix=_prefix(target), suffix=".tmp")
            prepared = _Prepared(path, target, Path(name))
            try:
                with os.fdopen(fd, "wb") as raw, _packed(raw) if target.suffix == ".gz" else raw as stream:
                    yield stream
            except BaseException:
                prepared.temporary.unlink(missing_ok=True)
                raise
            self._prepared.append(prepared)

    def commit(self) -> None:
        """Give every prepared file its name."""
        while self._prepared:
            prepared = self._prepared[0]
            with as_output_error(prepared.path):
                prepared.temporary.chmod(_mode(prepared.target))
                prepared.temporary.replace(prepared.target)
            self._prepared.pop(0)


_current: ContextVar[Outputs | None] = ContextVar("outputs", default=None)


@contextlib.contextmanager
def open_output(path: Path, *, is_guarded: bool = True) -> Iterator[IO[bytes]]:
    """Open `path` for writing bytes, in the current `Outputs` if there are any.

    Otherwise the file appears, complete, when the block ends without an error. A name that ends in ``.gz`` is
    compressed. An existing file keeps its mode; of a link, the target is replaced. A pipe or a device
    (``/dev/stdout``) is written directly. Raises OutputError, and UsageError as `Outputs.check`.
    """
    current = _current.get()
    with contextlib.nullcontext(current) if current else Outputs() as outputs:
        with outputs.open(path, is_guarded=is_guarded) as stream:
            yield stream
        if not current:
            outputs.commit()


def check_output(path: Path, *, is_named: bool = True) -> None:
    """Raise the errors of `open_output` before the work is done; a default path is not `is_named`."""
    try:
        (_current.get() or Outputs()).check(path)
    except OutputError as error:
        raise error if is_named else OutputError(f"{error}; --output names another place") from None


@contextlib.contextmanager
def as_output_error(path: Path, if_full: str = "") -> Iterator[None]:
    """Turn an `OSError` in the block into an `OutputError`; `if_full` is its hint for a full disk."""
    try:
        yield
    except OSError as error:
        hint = f" ({if_full})" if if_full and error.errno == errno.ENOSPC else ""
        raise OutputError(f"{path}: cannot be written: {error.strerror or error}{hint}") from error


@contextlib.contextmanager
def temporary_directory(beside: Path | None = None) -> Iterator[Path]:
    """Make a directory beside the file `beside` (None: among the system's temporary files), and remove it."""
    parent = beside.parent if beside else None
    with tempfile.TemporaryDirectory(
        dir=parent, prefix=_prefix(beside or Path("work")), suffix=".tmp", ignore_cleanup_errors=True
    ) as name:
        atexit.register(shutil.rmtree, name, ignore_errors=True)  # a signal may end the removal
        yield Path(name)


def is_temporary(path: Path) -> bool:
    """Test if this program made `path`, or a directory around it, as a temporary file."""
    return any(map(_TEMPORARY_NAME.fullmatch, path.absolute().parts))


def is_same(path: Path, target: Path) -> bool:
    """Test if `path` leads to the file `target` (without links), which need not exist."""
    same_name = Path(os.path.realpath(path)) == target
    return same_name or (path.exists() and target.exists() and path.samefile(target))


def abandon(stream: TextIO) -> None:
    """Discard a stream's buffer, so that the process can end without an error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _prefix(target: Path) -> str:
    return f".{target.name[:_NAME_CHARACTERS]}.analyze-"


def _status(path: Path) -> os.stat_result | None:
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


def _is_stream(path: Path, status: os.stat_result | None) -> bool:
    """Test if `path` is a pipe, device or descriptor, which are written directly."""
    is_special = status is not None and not stat.S_ISREG(status.st_mode)
    return is_special or str(path).startswith(_DESCRIPTORS)


def _open_stream(path: Path) -> int:
    """Open a pipe, or a device such as a terminal, without waiting for a reader."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise OutputError(f"{path}: cannot be written: nobody reads this pipe") from error
        raise
    os.set_blocking(fd, True)
    return fd


def _mode(path: Path) -> int:
    """Choose the permission bits of a new `path`: those of the old file, else those of the umask."""
    try:
        return path.stat().st_mode & 0o777
    except FileNotFoundError:
        umask = os.umask(0)
        os.umask(umask)
        return 0o666 & ~umask


def _packed(raw: IO[bytes]) -> IO[bytes]:
    """Open a gzip stream over `raw`, without a name and a time, so that equal content makes equal bytes."""
    from isal import igzip

    return cast("IO[bytes]", igzip.GzipFile("", "wb", 2, raw, mtime=0))  # type: ignore[no-untyped-call]


# ---- the outputs of a command line


def guard(args: Namespace, is_input: Callable[[Path, Sequence[Path]], bool], path: Path) -> None:
    """Raise `UsageError` for an existing file that must stay.

    Inputs are never replaced; `is_input` tests a file against the paths of the command. Other files need
    `--force`, except empty files and JSON files with this program's mark.
    """
    if is_input(path, args.path):
        raise UsageError(f"{path}: is one of the inputs")
    if not args.force and path.stat().st_size and not is_marked(path):
        raise UsageError(f"{path}: exists; --force overwrites it")


def check_named(args: Namespace, outputs: Outputs) -> None:
    """Raise `UsageError` for an input, a directory, a file named twice, or another format's suffix."""
    flag_of: dict[Path, str] = {}
    for flag, path in _named(args):
        try:
            outputs.check(path)
        except (UsageError, OutputError) as error:
            raise type(error)(f"{flag} {error}") from None
        if path.exists() and not path.is_file():
            continue
        _check_suffix(args.option, flag, path)
        for target, other in flag_of.items():
            if is_same(path, target):
                raise UsageError(f"{flag} {path}: is the name that {other} gives")
        flag_of[path.resolve()] = flag


def _named(args: Namespace) -> Iterator[tuple[str, Path]]:
    """Yield (flag, path) for each output file that the command line names."""
    for flag in ("output", "xlsx", "html", "picture", "save", "parquet"):
        value = getattr(args, flag)
        if value is None or (value is True and args.option in _BESIDE_OTHERS):
            continue
        path = default_file(args.path[0], args.option, flag) if value is True else Path(value)
        if path != NO_FILE:
            yield "--format parquet --output" if flag == "parquet" else f"--{flag}", path
        elif flag != "output" or args.option not in _MAY_WRITE_NOTHING:
            raise UsageError(f"--{flag} -: nothing goes to standard output but the answer; name a file")


def default_file(beside: Path, name: str, suffix: str) -> Path:
    """Name a file that no flag names: in the directory `beside`, or beside that file."""
    return (beside if beside.is_dir() else beside.parent) / f"{name}.{suffix}"


def _check_suffix(option: str, flag: str, path: Path) -> None:
    if flag == "--picture":
        if path.suffix.lower() not in _STILLS:
            raise UsageError(f"--picture {path}: a picture ends in {' '.join(_STILLS)}")
        return
    allowed = _SUFFIXES.get(flag) or (_TIMELINE if option in _TIMELINES else ())
    name = path.with_suffix("") if path.suffix.lower() == ".gz" else path
    if name.suffix.lower() == ".pftrace":
        raise UsageError(f"{flag} {path}: write .json.gz, which Perfetto opens")
    if allowed and name.suffix.lower() not in ("", *allowed):
        raise UsageError(f"{flag} {path}: expected a name that ends in {' or '.join(allowed)}")
