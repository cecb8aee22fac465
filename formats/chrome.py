"""Chrome-trace files (JSON in its object, array and line forms) as columns."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from formats.builder import Builder
from formats.columns import Trace
from formats.event import ExactEvent
from formats.pairs import Rule
from formats.reader import Damage, EventReader
from formats.rows import Rows, columns, join
from formats.times import InexactError

OnRead = Callable[[int], object]  # is told the bytes of the file consumed since the last call


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of a range of a file and what its reader saw; picklable."""

    rows: Rows
    header: dict[str, Any]
    damage: Damage
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
    """Load the events in bytes [`start`, `stop`) of a file, or its first `pieces`; see `EventReader`."""
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
    return Part(builder.rows(), reader.header, reader.damage, reader.aligned)


def joined(parts: Sequence[Part]) -> Part:
    """Return consecutive parts of one file as one."""
    if len(parts) == 1:
        return parts[0]
    return Part(
        rows=join([part.rows for part in parts]),
        header={key: value for part in parts for key, value in part.header.items()},
        damage=sum((part.damage for part in parts), Damage()),
        aligned=parts[0].aligned,
    )


def assemble(path: Path, part: Part, pairing: Rule = Rule.NESTED) -> Trace:
    """Return the trace of a whole file, its times as written; `dialects.finish` says what they mean."""
    trace = columns(part.rows, pairing)
    return replace(
        trace, path=str(path), header=part.header, repairs=(*part.damage.phrases(), *trace.repairs)
    )
