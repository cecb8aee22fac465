"""Bytes of a file in pieces, decompressed where the content is gzip, whatever the name says."""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
import zlib
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

from errors import TraceError
from inputs import opened, unreadable

PIECE = 1 << 20  # bytes handed on at a time: measured best between 256 KiB and 4 MiB
_READ = PIECE // 4  # packed bytes read at a time; what is no more is unpacked without a thread
_GZIP = b"\x1f\x8b"
#: Bytes that any packed file may unpack to.
_ALWAYS_UNPACKED = 256 << 20
_USUAL_TIMES = 64  # its size: recordings unpack to 10 to 30 times theirs
_AHEAD = 8  # pieces that are unpacked before they are asked for
_LAST_PIECE_S = 5.0  # what unpacking one piece never takes; reading it from a network that hangs may
_NEVER_TIMES = 1000  # its size: only padding unpacks to more


def most_unpacked(path: Path) -> int:
    """Return how many bytes a packed file may unpack to."""
    size = path.stat().st_size
    return min(max(_ALWAYS_UNPACKED, _USUAL_TIMES * size), max(PIECE, _NEVER_TIMES * size))


def find_file(directory: Path, name: str) -> Path | None:
    """Return the file called `name`, or its packed form ``name.gz``, if it is in `directory`."""
    return next((path for path in (directory / name, directory / f"{name}.gz") if path.is_file()), None)


def read_text(path: Path) -> str:
    """Return a whole text file, packed or not; what is not UTF-8 is replaced, TraceError if unreadable."""
    return b"".join(text_pieces(ByteStream(path))).decode("utf-8", errors="replace")


def text_pieces(stream: ByteStream) -> Iterator[bytes]:
    """Yield the pieces of a text file that is kept whole; TraceError at a NUL (there may be billions)."""
    at = 0
    for piece in stream:
        if (zero := piece.find(b"\0")) >= 0:
            raise TraceError(f"{stream.path}: not a text file: byte {at + zero:,} is NUL")
        yield piece
        at += len(piece)


class ByteStream:
    """Iterates over the content of `path`, from byte `start` up to `stop`, in pieces of about 1 MiB.

    The packets of a Perfetto trace come as the JSON of a chrome trace. A gzip stream or a packet that is cut
    or corrupt yields what could be unpacked; `damage` then says so. What unpacks to more than
    `most_unpacked` allows raises TraceError.
    """

    def __init__(self, path: Path, start: int = 0, stop: int | None = None) -> None:
        self.path = path
        self.start = start
        self.stop = stop
        self.damage: str | None = None
        self.consumed = 0  # bytes of the file read so far, for progress

    @property
    def size(self) -> int:
        """Bytes of the file, or of its part, that are to be read; 0 where that cannot be told."""
        with contextlib.suppress(OSError):  # reading will say what is wrong
            stop = self.path.stat().st_size if self.stop is None else self.stop
            return max(0, stop - self.start)
        return 0

    def __iter__(self) -> Iterator[bytes]:
        try:
            with opened(self.path) as file:
                file.seek(self.start)
                head = file.read(2)
                file.seek(self.start)
                pieces: Generator[bytes]
                if head == _GZIP and self.start == 0:
                    pieces = self._limited(self._inflated(file))
                    pieces = pieces if self.size <= _READ else _prefetch(pieces)
                else:
                    pieces = self._plain(file)
                with contextlib.closing(pieces):
                    first = next(pieces, b"") if self.start == 0 else b""
                    whole = itertools.chain((first,) if first else (), pieces)
                    yield from self._from_packets(whole) if may_be_packets(first) else whole
        except OSError as error:
            raise unreadable(self.path, error) from error

    def _plain(self, file: Any) -> Generator[bytes]:
        left = sys.maxsize if self.stop is None else self.stop - self.start
        while piece := file.read(min(PIECE, left)):
            self.consumed += len(piece)
            left -= len(piece)
            yield piece

    def _from_packets(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the JSON of a Perfetto trace."""
        from formats.perfetto.packets_to_json import PacketStream

        packets = PacketStream(pieces)
        yield from self._limited(packets)
        self.damage = "; ".join(filter(None, (self.damage, packets.damage))) or None

    def _limited(self, pieces: Iterable[bytes]) -> Generator[bytes]:
        most, unpacked = most_unpacked(self.path), 0
        for piece in pieces:
            unpacked += len(piece)
            if unpacked > most:
                raise TraceError(
                    f"{self.path}: unpacks to more than {most / 1e6:,.0f} MB; if it is no damaged or hostile "
                    "file, unpack it with gunzip first"
                )
            yield piece

    def _inflated(self, file: Any) -> Iterator[bytes]:
        """Yield unpacked pieces; several gzip members may follow one another."""
        inflater = None
        pending = b""
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
            if piece:
                yield piece
        if inflater is not None:
            if rest := inflater.flush():
                yield rest
            self.damage = "the gzip stream is cut short"


def may_be_packets(head: bytes) -> bool:
    """Whether a file that begins with `head` holds the packets of a Perfetto trace."""
    if head[:1] != b"\n":  # as nearly all do; looking further loads what reads them
        return False
    from formats.perfetto.packets_to_json import recognises

    return recognises(head)


def is_plain(path: Path) -> bool:
    """Whether the bytes of a file are its content, so that it can be read from any of them on."""
    with opened(path) as file:
        head = file.read(PIECE)
    return head[:2] != _GZIP and not may_be_packets(head)


def _new_inflater() -> Any:
    try:
        from isal import isal_zlib

        return isal_zlib.decompressobj(wbits=31)
    except ImportError:
        return zlib.decompressobj(wbits=31)


def _prefetch(pieces: Iterator[bytes]) -> Generator[bytes]:
    """Run `pieces` in a thread, a few ahead of the consumer: unpacking releases the interpreter lock."""
    import queue

    ahead: queue.Queue[bytes | BaseException | None] = queue.Queue(_AHEAD)
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
