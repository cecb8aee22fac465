"""Combination of many traces into one, on one clock and in order of time.

The first pass rewrites the events of each source into a temporary file (`combine.rewrite_source`) and
collects the operations by which clocks are compared. The second pass sorts the events of all sources by time
and copies their texts, each after its new time. Memory holds some 30 bytes an event.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeVar

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from analyzer.answers.combine.combined_header import Labels, merged_header, metadata_events
from analyzer.answers.combine.rewrite_source import Rewritten, SourcePlace, read_columns, rewrite
from analyzer.answers.combine.sources import Member, clocks_of, sniffed, usable, with_ranks
from analyzer.base.arrays import Int64
from analyzer.base.outputs.atomic import as_output_error, check_output, open_output, temporary_directory
from analyzer.base.parallel import FilePart, cores, process_pool, progress_bar, size_of, unpacked_size
from analyzer.model.clocks.offsets import Clock
from analyzer.reading import dialects
from analyzer.reading.dialects.system import BASE
from analyzer.reading.formats import native
from analyzer.reading.formats.values import FLOAT_LIMIT_US
from analyzer.reading.formats.values import microseconds as exact_us
from trace_utils import CommFilter

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

_STRIDE = 100_000  # process ids of a source, if there are few enough sources
_MAX_PID = (1 << 31) - 1
_BLOCK = 1 << 13  # events that are copied at a time
_BEFORE = b'},\n{"ts":'
_FORK_WORTH = 4 << 20  # bytes below which a second process costs more than it saves
_IF_FULL = "temporary files as large as inputs and result may be needed beside it"
_T = TypeVar("_T")


class Combined(Struct, frozen=True):
    """The combined file, and the alignment of each source."""

    members: Sequence[Member]  # the members with events, with the hosts and workers of their dialect
    n_events: int
    dialect: str
    clocks: Sequence[Clock]  # per member, like the ranks
    ranks: Sequence[int | None]
    world_size: int  # as recorded; 0 if unknown
    aligned_by: str
    damaged: Sequence[Path]  # files that lost events
    warnings: Sequence[str]


def combine(
    members: Sequence[Member],
    output: Path,
    *,
    skip_broken: bool = False,
    align: bool = True,
    names: Sequence[str] = (),
    comm: Sequence[str] = (),
    jobs: int | None = None,
    progress: bool | None = None,
) -> Combined:
    """Write the traces of `members` as one to `output`, which appears when it is complete.

    Parameters
    ----------
    skip_broken : leave out files that are not traces, as long as a trace is left
    align : estimate the offsets of clocks; if not, times stay as recorded
    names : communications to keep, as for `CommFilter`; empty keeps all
    comm : names of further communications, as for `dialects.named`

    TraceError if a source is not a trace, none has events, or they are of several dialects; OutputError if
    the result, or a temporary file beside it, cannot be written.
    """
    check_output(output)
    jobs = jobs or cores()
    files = [FilePart(member.file, size=size_of(member.file)) for member in members]
    n = min(jobs, len(members)) if sum(file.size for file in files) > _FORK_WORTH else 1
    scan = native.is_worth(unpacked_size(files)) and native.library() is not None
    beside = output.resolve() if output.is_file() or not output.exists() else None  # elsewhere for a pipe
    with contextlib.ExitStack() as stack:
        stack.enter_context(as_output_error(output, _IF_FULL))
        spill = stack.enter_context(temporary_directory(beside))
        pool = stack.enter_context(process_pool(n)) if n > 1 else None
        beginnings = _run(pool, sniffed, [(member.file, scan) for member in members])
        members, parts, left_out = usable(members, beginnings, skip_broken=skip_broken)
        dialect, parts = parts[0].dialect, _places(members, parts, names, comm)
        with progress_bar(
            sum(size_of(member.file) for member in members), "B", what="reading", enabled=progress
        ) as advance:
            tasks = [(part, spill / f"{part.number}.events") for part in parts]
            sources = _run(pool, rewrite, tasks, lambda i: advance(size_of(members[i].file)))
        CommFilter.check(names, {name for source in sources for name in source.known})
        members = with_ranks(members, dialect, sources)
        repairs = [
            f"{member.source.path}: {'; '.join(source.repairs)}"
            for member, source in zip(members, sources, strict=True)
            if source.repairs
        ]
        epochs_ns = [dialects.epoch_ns(dialects.named(dialect), source.about) for source in sources]
        base_ns = (
            epochs_ns[0] if all(BASE in source.about.header for source in sources) and all(epochs_ns) else 0
        )
        clocks, aligned_by, warnings = [Clock()] * len(members), "none", list[str]()
        if align:
            clocks, aligned_by, warnings = clocks_of(members, sources, epochs_ns)
        labels = Labels(members, dialect, sources)
        head = merged_header(labels, sources, clocks, aligned_by, base_ns)
        metadata = metadata_events(labels, sources)
        metadata += [text for source in sources for text in source.untimed]
        shifts_ns = [
            epoch - base_ns + clock.offset_ns for epoch, clock in zip(epochs_ns, clocks, strict=True)
        ]
        n_timed = sum(s.n_events - len(s.untimed) for s in sources)
        writing = progress_bar(n_timed, "events", what="writing", enabled=progress)
        with open_output(output) as file, writing as advance:
            _write(file, head, metadata, _texts(sources, shifts_ns, advance))
    return Combined(
        members=members,
        n_events=len(metadata) + n_timed,
        dialect=dialect,
        clocks=clocks,
        ranks=labels.ranks,
        world_size=labels.world_size,
        aligned_by=aligned_by,
        damaged=[m.source.path for m, source in zip(members, sources, strict=True) if source.repairs],
        warnings=[*left_out, *repairs, *warnings],
    )


def _places(
    members: Sequence[Member],
    parts: Sequence[SourcePlace],
    names: Sequence[str],
    comm: Sequence[str],
) -> list[SourcePlace]:
    """Give the sources and their processes numbers."""
    stride = min(_STRIDE, _MAX_PID // len(members))
    system = dialects.named(parts[0].dialect)
    return [
        replace(
            part,
            number=i,
            prefix=member.prefix if system.names_by_rank else "",
            first_pid=1 + i * stride,
            n_pids=stride,
            only_pid=(i if part.rank is None else part.rank) if system.pid_is_rank else None,
            names=tuple(names),
            comm=tuple(comm),
            owner=member.of_rank(part.rank).source.prefix,
        )
        for i, (member, part) in enumerate(zip(members, parts, strict=True))
    ]


def _write(file: IO[bytes], head: bytes, metadata: Sequence[bytes], texts: Iterator[bytes]) -> None:
    """Write the object: the members `head` (JSON, without its last brace), then the events."""
    file.write(head + b',"traceEvents":[\n' if len(head) > 1 else b'{"traceEvents":[\n')
    before = b",\n".join(metadata)[:-1]
    file.write(before)
    is_first = not before
    for text in texts:
        file.write(memoryview(text)[3:] if is_first else text)  # no event ends before the first one
        is_first = False
    file.write(b"\n]}\n" if is_first else b"}\n]}\n")


def _texts(
    sources: Sequence[Rewritten], shifts_ns: Sequence[int], on_written: Callable[[int], object]
) -> Iterator[bytes]:
    """Yield the events of all sources in time order as JSON, without the last one's closing brace."""
    counts = [source.n_events - len(source.untimed) for source in sources]
    last_of = np.cumsum(counts)
    ts, dur, lengths = (np.empty(last_of[-1], kind) for kind in (np.int64, np.int64, np.int32))
    for source, shift_ns, last, n in zip(sources, shifts_ns, last_of.tolist(), counts, strict=True):
        part = slice(last - n, last)
        ts[part], dur[part], lengths[part] = read_columns(source)
        ts[part] += shift_ns
    order = _time_order(ts, dur)
    del dur
    number = np.repeat(np.arange(len(sources), dtype=np.int32), counts)
    end = np.cumsum(lengths, dtype=np.int64)  # of texts, as if all sources lay in one file
    before = np.append(0, end)[last_of - counts]
    with contextlib.ExitStack() as stack:
        texts = [stack.enter_context(_mapped(source.file)) for source in sources]
        for first in range(0, len(order), _BLOCK):
            rows = order[first : first + _BLOCK]
            stops = end[rows] - before[number[rows]]
            parts = [_BEFORE] * (3 * len(rows))
            parts[1::3] = microseconds(ts[rows])
            parts[2::3] = [
                texts[i][begin:stop]
                for i, begin, stop in zip(
                    number[rows].tolist(), (stops - lengths[rows]).tolist(), stops.tolist(), strict=True
                )
            ]
            yield b"".join(parts)
            on_written(len(rows))


def microseconds(ns: Int64) -> list[bytes]:
    """Write nanoseconds (n,) as texts of decimal microseconds, exactly."""
    if not len(ns):
        return []
    if np.abs(ns).max() / 1000 >= FLOAT_LIMIT_US - 1:
        return [bytes(exact_us(time)) for time in ns.tolist()]
    # the shortest text of the nearest float64 is the decimal number itself
    text = msgspec.json.encode((ns / 1000).tolist())[1:-1] + b","
    return text.replace(b".0,", b",")[:-1].split(b",")


def _time_order(ts: Int64, dur: Int64) -> Int64:
    """Order of events (n,) by time; at one time longer slices come first, so a slice precedes its contents.

    Other events (`dur` -1) keep their order.
    """
    order = np.argsort(ts, kind="stable")
    same = np.diff(ts[order]) == 0
    tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
    tied = tied[dur[order[tied]] >= 0]
    rows = order[tied]
    order[tied] = rows[np.lexsort((-dur[rows], ts[rows]))]
    return order


@contextlib.contextmanager
def _mapped(path: Path) -> Iterator[mmap.mmap | bytes]:
    """Map a file, which may be empty, into memory."""
    with open(path, "rb") as file:
        if not path.stat().st_size:
            yield b""
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            yield text


def _run(
    pool: ProcessPoolExecutor | None,
    work: Callable[..., _T],
    tasks: Sequence[tuple[object, ...]],
    done: Callable[[int], object] = int,
) -> list[_T]:
    """Apply a function to each argument list; call `done` after each."""
    results = []
    made = itertools.starmap(work, tasks) if pool is None else pool.map(work, *zip(*tasks, strict=True))
    for result in made:
        results.append(result)
        done(len(results) - 1)
    return results
