"""Bytes of a file in pieces, decompressed where the content is gzip, whatever the name says."""

from __future__ import annotations

import contextlib
import sys
import threading
import zlib
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from errors import TraceError, missing

PIECE = 1 << 20  # bytes handed on at a time: measured best between 256 KiB and 4 MiB
_READ = PIECE // 4  # packed bytes read at a time; what is no more is unpacked without a thread
_GZIP = b"\x1f\x8b"
#: Bytes that a packed file may unpack to, as `--max_unpacked` says; None: by the file's size.
max_unpacked: ContextVar[int | None] = ContextVar("max_unpacked", default=None)
_ALWAYS_UNPACKED = 256 << 20
_USUAL_TIMES = 64  # its size: recordings unpack to 10 to 30 times theirs
_LAST_PIECE_S = 5.0  # what unpacking one piece never takes; a pipe may keep its reader waiting for longer
_NEVER_TIMES = 1000  # its size: only padding unpacks to more


def most_unpacked(path: Path) -> int:
    """Return how many bytes a packed file may unpack to."""
    size = path.stat().st_size
    limit = max_unpacked.get()
    most = max(_ALWAYS_UNPACKED, _USUAL_TIMES * size) if limit is None else limit
    return min(most, max(PIECE, _NEVER_TIMES * size))


def find_file(directory: Path, name: str) -> Path | None:
    """Return the file called `name`, or its packed form ``name.gz``, if it is in `directory`."""
    return next((path for path in (directory / name, directory / f"{name}.gz") if path.is_file()), None)


def read_text(path: Path) -> str:
    """Return a whole text file, packed or not; what is not UTF-8 is replaced, TraceError if unreadable."""
    return b"".join(ByteStream(path)).decode("utf-8", errors="replace")


class ByteStream:
    """Iterates over the content of `path`, from byte `start` up to `stop`, in pieces of about 1 MiB.

    A gzip stream that is cut or corrupt yields what could be unpacked; `damage` then says so. One that
    unpacks to more than `most_unpacked` allows raises TraceError.
    """

    def __init__(self, path: Path, start: int = 0, stop: int | None = None) -> None:
        self.path = path
        self.start = start
        self.stop = stop
        self.damage: str | None = None
        self.consumed = 0  # bytes of the file read so far, for progress

    @property
    def size(self) -> int:
        """Bytes of the file, or of its part, that are to be read; 0 where that cannot be told (a pipe)."""
        with contextlib.suppress(OSError):  # reading will say what is wrong
            stop = self.path.stat().st_size if self.stop is None else self.stop
            return max(0, stop - self.start)
        return 0

    def __iter__(self) -> Iterator[bytes]:
        try:
            with self.path.open("rb") as file:
                file.seek(self.start)
                head = file.read(2)
                file.seek(self.start)
                if head == _GZIP and self.start == 0:
                    pieces = self._unpack(file, most_unpacked(self.path))
                    yield from pieces if self.size <= _READ else _prefetch(pieces)
                else:
                    yield from self._plain(file)
        except OSError as error:
            raise unreadable(self.path, error) from error

    def _plain(self, file: Any) -> Iterator[bytes]:
        left = sys.maxsize if self.stop is None else self.stop - self.start
        while piece := file.read(min(PIECE, left)):
            self.consumed += len(piece)
            left -= len(piece)
            yield piece

    def _unpack(self, file: Any, most: int) -> Iterator[bytes]:
        """Yield unpacked pieces; several gzip members may follow one another."""
        inflater = None
        pending = b""
        unpacked = 0
        while True:
            if not pending:
                pending = file.read(_READ)
                self.consumed += len(pending)
            if not pending:
                break
            inflater = inflater or _new_inflater()
            try:
                piece = inflater.decompress(pending, PIECE)
            except Exception as error:  # zlib.error, or isal's own class
                self.damage = f"the gzip stream is corrupt after {self.consumed} bytes ({error})"
                return
            pending = inflater.unconsumed_tail
            if inflater.eof:
                pending = inflater.unused_data
                inflater = None
            unpacked += len(piece)
            if unpacked > most:
                raise TraceError(
                    f"{self.path}: unpacks to more than {most / 1e6:,.0f} MB; --max_unpacked SIZE "
                    f"(such as 8G) allows more, up to {_NEVER_TIMES:,} times the file's size"
                )
            if piece:
                yield piece
        if inflater is not None:
            if rest := inflater.flush():
                yield rest
            self.damage = "the gzip stream is cut short"


def unreadable(path: Path, error: OSError) -> TraceError:
    """Translate an error of the operating system into a line for the user."""
    if isinstance(error, FileNotFoundError):
        return missing(path)
    if isinstance(error, PermissionError):
        return TraceError(f"{path}: may not be read (permission denied)")
    return TraceError(f"{path}: cannot be read: {error.strerror or error}")


def _new_inflater() -> Any:
    try:
        from isal import isal_zlib

        return isal_zlib.decompressobj(wbits=31)
    except ImportError:
        return zlib.decompressobj(wbits=31)


def _prefetch(pieces: Iterator[bytes], depth: int = 8) -> Iterator[bytes]:
    """Run `pieces` in a thread, a few ahead of the consumer: unpacking releases the interpreter lock."""
    import queue

    ahead: queue.Queue[bytes | BaseException | None] = queue.Queue(depth)
    stopped = threading.Event()

    def put(item: bytes | BaseException | None) -> bool:
        while not stopped.is_set():
            with contextlib.suppress(queue.Full):
                ahead.put(item, timeout=0.1)
                return True
        return False

    def work() -> None:
        try:
            for piece in pieces:
                if not put(piece):
                    return
            put(None)
        except BaseException as error:
            put(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while (item := ahead.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stopped.set()
        thread.join(_LAST_PIECE_S)  # an interpreter that ends while the file is being read aborts
