"""Perfetto's own format (``.pftrace``): a chrome trace in packets, read and written by way of its JSON."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from outputs.atomic import open_output
from outputs.temporary import temporary_directory

_SUFFIX = ".pftrace"


@contextlib.contextmanager
def open_timeline(path: Path) -> Iterator[IO[bytes]]:
    """Open an output for the JSON of a chrome trace; a ``.pftrace`` is made of it when it is whole."""
    if not path.name.removesuffix(".gz").endswith(_SUFFIX):
        with open_output(path) as file:
            yield file
        return
    with open_output(path) as file, temporary_directory(path.resolve()) as directory:
        whole = directory / "timeline.json"
        with whole.open("wb") as text:
            yield text
        from formats.perfetto.json_to_packets import write_packets

        write_packets(whole, file)
