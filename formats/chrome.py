"""Chrome-trace files (JSON in its object, array and line forms) as columns."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from errors import counted
from formats.builder import Builder
from formats.columns import Trace
from formats.dialects import finish, is_composer, is_mxnet
from formats.event import ExactEvent
from formats.reader import EventReader, repairs
from formats.rows import Rows, columns, join
from formats.times import InexactError
from formats.values import FARTHEST_NS

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


def read(
    path: Path, args: Collection[str] = (), points: bool = False, on_read: OnRead | None = None
) -> Trace:
    """Load one file; see `trace_utils.read_traces` for the parameters."""
    return assemble(path, [read_part(path, args, points, on_read=on_read)])


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


def assemble(path: Path, parts: Sequence[Part]) -> Trace:
    """Return the trace that consecutive parts of a file make together."""
    header = {key: value for part in parts for key, value in part.header.items()}
    rows = join([part.rows for part in parts])
    table = columns(rows, ends_by_name=is_composer(rows.metadata), ends_behind=is_mxnet(rows.metadata))
    return _near(finish(str(path), table, header, rows.metadata, repairs(parts)))


def _near(trace: Trace) -> Trace:
    """Leave out what the epoch of the file's clock has put more than 100 years from the epoch."""
    ts, points = trace.ts_ns, trace.points
    is_far = len(points) > 0 and np.abs(points.ts_ns).max() > FARTHEST_NS
    if is_far:
        trace = replace(trace, points=points.select(np.flatnonzero(np.abs(points.ts_ns) <= FARTHEST_NS)))
    if len(ts) == 0 or max(ts.max(), -ts.min()) <= FARTHEST_NS:
        return trace
    inside = np.abs(ts) <= FARTHEST_NS
    note = f"{counted(len(ts) - int(inside.sum()), 'slice')} more than 100 years from the epoch left out"
    return replace(trace.select(inside), repairs=(*trace.repairs, note))
