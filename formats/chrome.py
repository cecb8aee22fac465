"""Chrome-trace files (JSON in its object, array and line forms) as columns."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from formats.builder import Builder
from formats.columns import Trace
from formats.event import ExactEvent
from formats.pairs import Rule
from formats.reader import EventReader, repairs
from formats.rows import Rows, columns, join
from formats.times import InexactError

OnRead = Callable[[int], object]  # is told the bytes of the file consumed since the last call


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of a range of a file and what its reader saw; picklable."""

    rows: Rows
    header: dict[str, Any]
    notes: list[str]
    lost: int
    mended: int
    strays: int
    aligned: bool


def read_part(
    path: Path,
    args: Collection[str] = (),
    points: bool = False,
    start: int = 0,
    stop: int | None = None,
    pieces: int | None = None,
    on_read: OnRead | None = None,
) -> Part:
    """Load the events of the bytes [`start`, `stop`) of a file, or of its first `pieces` only.

    See `EventReader`.
    """
    builder = Builder(args, points)
    reader = EventReader(path, types=builder.types, start=start, stop=stop)
    consumed = 0
    for events, piece in itertools.islice(reader, pieces):
        again = partial(reader.decode_again, piece)
        try:
            builder.add(events, reader.uniform, again)
        except InexactError:
            reader.use(ExactEvent)
            builder.add(again(), ExactEvent, again)
        if (better := builder.better_types(reader.uniform)) is not None:
            reader.use(*better)
        if on_read is not None:
            on_read(reader.stream.consumed - consumed)
            consumed = reader.stream.consumed
    return Part(
        rows=builder.rows(),
        header=reader.header,
        notes=reader.notes,
        lost=reader.lost,
        mended=reader.mended,
        strays=reader.strays,
        aligned=reader.aligned,
    )


def joined(parts: Sequence[Part]) -> Part:
    """Return consecutive parts of one file as one."""
    if len(parts) == 1:
        return parts[0]
    return Part(
        rows=join([part.rows for part in parts]),
        header={key: value for part in parts for key, value in part.header.items()},
        notes=[note for part in parts for note in part.notes],
        lost=sum(part.lost for part in parts),
        mended=sum(part.mended for part in parts),
        strays=sum(part.strays for part in parts),
        aligned=parts[0].aligned,
    )


def assemble(path: Path, part: Part, pairing: Rule = Rule.NESTED) -> Trace:
    """Return the trace of a whole file, its times as written; `dialects.finish` says what they mean."""
    table = columns(part.rows, pairing)
    return Trace(
        path=str(path),
        dialect="",
        names=table.names,
        cats=table.cats,
        tracks=table.tracks,
        name_id=table.name_id,
        cat_id=table.cat_id,
        track_id=table.track_id,
        ts_ns=table.ts_ns,
        dur_ns=table.dur_ns,
        args=table.args,
        points=table.points,
        metadata=part.rows.metadata,
        header=part.header,
        phases=table.phases,
        repairs=(*repairs([part]), *table.repairs),
    )
