"""Bytes of a file in pieces, decompressed if the content is gzip."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analyzer.base.errors import TraceError
from analyzer.base.inputs import opened, unreadable

if TYPE_CHECKING:
    from analyzer.reading.formats.builder import Builder

PIECE = 1 << 20  # bytes in a piece: measured best between 256 KiB and 4 MiB
_READ = PIECE // 4  # packed bytes read at a time
GZIP = b"\x1f\x8b"
_ALWAYS_UNPACKED = 256 << 20  # bytes to which any packed file may unpack
_USUAL_TIMES = 64  # times its size, to which it may unpack: recordings unpack to 10 to 30 times
_NEVER_TIMES = 1000  # times its size: only padding unpacks to more


def find_file(directory: Path, name: str) -> Path | None:
    """Find the file `name`, or its packed form ``name.gz``, in `directory`."""
    return next((path for path in (directory / name, directory / f"{name}.gz") if path.is_file()), None)


def read_text(path: Path) -> str:
    """Read a whole text file, packed or not; replace bytes that are not UTF-8. TraceError if unreadable."""
    return b"".join(text_pieces(ByteStream(path))).decode("utf-8", errors="replace")


def text_pieces(stream: ByteStream) -> Iterator[bytes]:
    """Yield the pieces of a text file; TraceError at a NUL (there may be billions)."""
    position = 0
    for piece in stream:
        if (zero := piece.find(b"\0")) >= 0:
            raise TraceError(f"{stream.path}: not a text file: byte {position + zero:,} is NUL")
        yield piece
        position += len(piece)


class ByteStream:
    """Iterates over the content of `path`, up to byte `stop`, in pieces of about 1 MiB.

    The packets of a Perfetto trace go to `rows`, or come as the JSON of a chrome trace. A cut or corrupt gzip
    stream or packet yields the part that can be unpacked; `damage` describes the rest. TraceError if the file
    unpacks to more than a recording can.
    """

    def __init__(self, path: Path, stop: int | None = None, rows: Builder | None = None) -> None:
        self.path = path
        self.rows = rows
        self.stop = stop
        self.damage: str | None = None
        self.consumed = 0  # bytes of the file read so far, for progress

    @property
    def size(self) -> int:
        """Bytes of the file; 0 if unknown."""
        with contextlib.suppress(OSError):  # reading raises the error
            return self.path.stat().st_size
        return 0

    def __iter__(self) -> Iterator[bytes]:
        try:
            with opened(self.path) as file:
                head = file.read(2)
                file.seek(0)
                pieces = self._limited(self._inflated(file)) if head == GZIP else self._plain(file)
                first = next(pieces, b"")
                whole = itertools.chain((first,) if first else (), pieces)
                yield from self._from_packets(whole) if _may_be_packets(first) else whole
        except OSError as error:
            raise unreadable(self.path, error) from error

    def _plain(self, file: Any) -> Iterator[bytes]:
        left = sys.maxsize if self.stop is None else self.stop
        while piece := file.read(min(PIECE, left)):
            self.consumed += len(piece)
            left -= len(piece)
            yield piece

    def _from_packets(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the JSON of a Perfetto trace; without its events if they are added to rows."""
        from analyzer.reading.formats.perfetto.track_events import read

        repairs: list[str] = []
        yield from self._limited(read(pieces, repairs, self.rows))
        self.damage = "; ".join(filter(None, (self.damage, *repairs))) or None

    def _limited(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        most = min(max(_ALWAYS_UNPACKED, _USUAL_TIMES * self.size), max(PIECE, _NEVER_TIMES * self.size))
        unpacked = 0
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
        from isal import isal_zlib

        inflater = None
        pending = b""
        while True:
            if not pending:
                pending = file.read(_READ)
                self.consumed += len(pending)
            if not pending:
                break
            inflater = inflater or isal_zlib.decompressobj(wbits=31)
            try:
                piece = inflater.decompress(pending, PIECE)
            except Exception as error:  # isal_zlib.error, of which mypy knows nothing
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


def _may_be_packets(head: bytes) -> bool:
    """Check whether a file that begins with `head` holds the packets of a Perfetto trace."""
    if head[:1] != b"\n":  # for nearly all files this avoids an import
        return False
    from analyzer.reading.formats.perfetto.track_events import recognises

    return recognises(head)
