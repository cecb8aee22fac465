"""Reading a file in pieces leaves nothing behind."""

from __future__ import annotations

import gzip
import random
import threading
from pathlib import Path

from formats.stream import PIECE, ByteStream


def test_a_packed_file_of_which_only_the_beginning_is_read_leaves_no_thread(tmp_path: Path) -> None:
    """One that still reads when the interpreter ends would abort it."""
    path = tmp_path / "trace.json.gz"
    content = random.Random(1).randbytes(PIECE) * 12  # more than is unpacked ahead
    path.write_bytes(gzip.compress(content, 1))
    before = threading.active_count()
    pieces = iter(ByteStream(path))
    assert content.startswith(next(pieces))
    assert threading.active_count() == before + 1
    del pieces
    assert threading.active_count() == before
