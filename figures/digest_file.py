"""The file of a digest: its members, how it is written, and what makes one unusable."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from errors import TraceError
from formats.stream import ByteStream
from formats.values import cleaned
from outputs.atomic import open_output
from outputs.marks import DIGEST_START
from traces.paths import JobKind

VERSION = 1

_MOST = 1 << 62
#: Whole numbers, and those of 0 and more, that any sum of a few of them can hold.
Whole = Annotated[int, msgspec.Meta(ge=-_MOST, le=_MOST)]
Count = Annotated[int, msgspec.Meta(ge=0, le=_MOST)]
Number = Count | float


class FileEntry(msgspec.Struct):
    """One file that was read (`TraceFile`)."""

    path: str
    dialect: str
    phases: dict[str, Count]
    ranks: list[Whole]
    repairs: list[str]


class SketchEntry(msgspec.Struct):
    """What is known of an operation whose durations are not all kept; sums may have more than 64 bits."""

    weights: list[Count]  # how many events each value stands for
    total_ns: str
    squares_ns2: str
    min_ns: Count
    max_ns: Count


class DurationsEntry(msgspec.Struct):
    """The durations of m operations as `statistic` names them (`Durations`)."""

    names: list[str]
    cats: list[str]
    values_ns: list[list[Count]]  # ascending: the first, and by how much each further one is greater
    sketches: dict[int, SketchEntry]  # by operation


class OperationsEntry(msgspec.Struct):
    """The m operations as `compare` names them, in k steps (`RankOperations`, `RankExposure`)."""

    names: list[str]
    cats: list[str]
    count: list[list[Count]]  # (m, k)
    total_ns: list[list[Number]]  # (m, k)
    place: list[Number]  # (m,)
    layer: list[Count]  # (m,)
    is_comm: list[bool]  # (m,)
    spent_ns: list[list[Number]]  # (whole steps, m + 1)
    shapes: list[list[str]]  # (m,)


class RankEntry(msgspec.Struct):
    """One rank: whose it is, its steps, and what its events amount to."""

    path: str
    worker: Whole | None
    rank: Whole | None
    name: str
    dialect: str
    slices: Count
    steps: tuple[
        list[tuple[Whole, Whole, Whole]], list[tuple[Whole, Whole, Whole]], str
    ]  # whole, partial, how
    durations: DurationsEntry
    category_ns: dict[str, Count]
    breakdown: list[tuple[Whole | None, Whole, Whole, Whole, Whole, Whole, Whole]]
    rule: str
    operations: OperationsEntry
    late_ns: dict[str, Annotated[list[Whole], msgspec.Meta(min_length=1)]]


class JobDigest(msgspec.Struct):
    """A job: what was read, and its ranks. The members before these are the program's mark and `VERSION`."""

    root: str
    kind: JobKind
    step_by: str | None
    notes: list[str]
    sentence: str  # where the time of a step goes
    files: list[FileEntry]
    ranks: list[RankEntry]


class _Head(msgspec.Struct):
    digest: int


def write_digest(digest: JobDigest, path: Path) -> None:
    """Write a digest as one of the command's outputs; see `open_output`."""
    try:
        text = msgspec.json.encode(digest)
    except UnicodeEncodeError:  # a path may have bytes that are no text
        text = msgspec.json.encode(cleaned(msgspec.to_builtins(digest)))
    with open_output(path) as stream:
        stream.write(DIGEST_START + str(VERSION).encode() + b"," + text[1:] + b"\n")


def read_digest(path: Path) -> JobDigest:
    """Return the digest in a file; TraceError where it is damaged, or of another version of the program.

    Numbers that contradict each other are found when they are used; see `unusable`.
    """
    stream = ByteStream(path)
    text = b"".join(stream)
    try:
        version = msgspec.json.decode(text, type=_Head).digest
        if version != VERSION:
            raise TraceError(
                f"{path}: a digest of version {version}, and this program reads version {VERSION}; "
                "write it again with --save"
            )
        return msgspec.json.decode(text, type=JobDigest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise unusable(path, stream.damage or str(error)) from error


def unusable(path: Path, why: str) -> TraceError:
    """Return the error of a digest that cannot be used."""
    return TraceError(f"{path}: a damaged digest ({why}); write it again with --save")
