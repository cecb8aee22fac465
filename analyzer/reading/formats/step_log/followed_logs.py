"""Copies of step logs that grow, without what a restarted job has run before."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from analyzer.base.errors import UsageError
from analyzer.base.inputs import absent, opened
from analyzer.reading.formats.file_kinds import STEP_SUFFIXES
from analyzer.reading.formats.step_log import step_reader

#: Steps by which rows of several ranks may be out of order; a number farther back is a restart.
_DISORDER = 20
_READ, _MOST = 1 << 24, 1 << 26  # bytes of a file read at a time, and kept


class _Log(Struct):
    """A log: its open file, its copy, and the highest step in it."""

    source: Path
    copy: Path
    file: BinaryIO | None = None
    rest: bytes = b""  # the line that is not whole yet
    header: bytes = b""
    read_step: Callable[[bytes], int | None] | None = None
    highest: int | None = None

    def lines(self) -> bytes:
        """Read the whole lines that came, from the old file first if another took its name."""
        lines = self._come()
        try:
            now = os.stat(self.source)
        except OSError:
            return lines
        if self.file is not None:
            then = os.fstat(self.file.fileno())
            if (then.st_dev, then.st_ino) == (now.st_dev, now.st_ino) and now.st_size >= self.file.tell():
                return lines
            self.file.close()
        self.file, self.rest = opened(self.source), b""
        return lines + self._come()

    def _come(self) -> bytes:
        whole, end, self.rest = (self.rest + (self.file.read(_READ) if self.file else b"")).rpartition(b"\n")
        return whole + end

    def restart(self, lines: bytes) -> tuple[int, int] | None:
        """Find the byte from which `lines` are of a restarted job, as numbers begin again, and its step."""
        if self.read_step is None and lines:
            self.header = self.header or lines.partition(b"\n")[0] + b"\n"
            self.read_step = step_reader(lines if lines.startswith(self.header) else self.header + lines)
            if self.read_step is not None and self.read_step(self.header) is not None:
                self.header = b""  # the first line is a row
        begun, position = None, 0
        if self.read_step is None:
            return None
        for line in lines.splitlines(keepends=True):
            step = self.read_step(line)
            if step is not None and self.highest is not None and step < self.highest - _DISORDER:
                self.highest = step
                begun = position, step
            elif step is not None:
                self.highest = max(step, self.highest or 0)
            position += len(line)
        return begun

    def keep(self, lines: bytes) -> None:
        """Add lines to the copy; of a large one the newer half stays."""
        with self.copy.open("ab") as file:
            file.write(lines)
        if self.copy.stat().st_size > _MOST:
            self.copy.write_bytes(self.header + self.copy.read_bytes()[-_MOST // 2 :].partition(b"\n")[2])


def copied(path: Path, folder: Path) -> Iterator[tuple[bool, int | None]]:
    """Copy the lines of a log, or of those in a directory, into `folder` as they come.

    Yield after each look whether lines came, and the first step of a restarted job, else None.
    """
    if not path.exists():
        raise absent(path)
    if path.suffix == ".gz":
        raise UsageError(f"{path}: --follow reads logs that are not packed")
    logs: dict[Path, _Log] = {}
    while True:
        has_come, restart = False, None
        for source in _sources(path):
            if source not in logs:
                copy = folder / (source.relative_to(path) if source != path else path.name)
                copy.parent.mkdir(parents=True, exist_ok=True)
                logs[source] = _Log(source, copy)
        for log in logs.values():
            lines = log.lines()
            if (begun := log.restart(lines)) is not None:
                lines, restart = lines[begun[0] :], begun[1]
                for other in logs.values():
                    other.copy.write_bytes(other.header)
                    other.highest = None if other is not log else log.highest
            if lines:
                log.keep(lines)
                has_come = True
        yield has_come, restart


def _sources(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    for pattern in ("*", "*/*"):
        yield from (
            file for file in sorted(path.glob(pattern)) if file.suffix in STEP_SUFFIXES and file.is_file()
        )
