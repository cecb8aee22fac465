"""Combines many traces: rewrites them in parallel, puts them on one clock, merges them in order of time.

Two passes. The first reads every source once, rewrites its events (`combine.rewrite_source`) and spills them
as sorted runs (`combine.external_sort`); it also gathers what clocks are compared by. Then the clocks are
known, and the second pass merges the runs, adding to each time what its source's clock needs, and puts
the texts of the events together (`combine.event_text`): several processes, each a stretch of time. Memory
depends on the size of a run and of a block, not on the traces.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from ctypes import CDLL
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import numpy as np
from msgspec import Struct

import dialects
from arrays import Int64
from clocks.offsets import Clock
from combine.combined_header import Labels, merged_header, metadata_events
from combine.distinct_ids import SourcePlace
from combine.event_text import Heads, text_of
from combine.external_sort import PlacedRun, cut, merge
from combine.rewrite_source import rewrite
from combine.sources import Beginning, Member, sniffed, timing, usable, with_ranks
from formats import native
from outputs.atomic import as_output_error, check_output, open_output, temporary_directory
from parallel import FilePart, cores, fork_context, process_pool, size_of, unpacked_size
from parallel import progress as bars
from trace_utils import check_known

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

_STRIDE = 100_000  # process ids that a source gets, where there are few enough sources
_MAX_PID = (1 << 31) - 1
_TABLE_BYTES = 64 << 20  # of texts that recur, over all sources
_SOURCE_TABLE_BYTES = 16 << 20
_PARALLEL_WORTH = 8 << 20  # bytes of runs that are merged in several processes
_COPIED = 4 << 20
_FORK_WORTH = 4 << 20  # bytes below which a second process costs more than it saves
_IF_FULL = "temporary files as large as inputs and result may be needed beside it"
_T = TypeVar("_T")


class Combined(Struct, frozen=True):
    """The file that was written, and how each source got on the common clock."""

    members: Sequence[Member]  # those that have events, with hosts and workers as their dialect has them
    n_events: int
    dialect: str
    clocks: Sequence[Clock]  # per member, like the ranks
    ranks: Sequence[int | None]
    world_size: int  # how many ranks the files say there are; 0 where none says so
    aligned_by: str
    warnings: Sequence[str]  # input that was repaired or left out, clocks that could not be aligned


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
    """Write the traces of `members` as one to `output`; it appears when it is complete.

    Parameters
    ----------
    skip_broken : whether to leave out files that are not traces, as long as a trace is left
    align : whether to estimate the offsets of clocks; if not, times stay as recorded
    names : communications to keep, as for `traces.filter.CommFilter`; empty keeps all
    comm : what is communication, too, as for `dialects.named`

    Raises
    ------
    TraceError
        A source is not a trace, none has events, or they are of several dialects.
    OutputError
        The result, or a temporary file beside it, cannot be written.
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
        members, kinds, left_out = usable(members, beginnings, skip_broken=skip_broken)
        dialect = kinds[0].dialect
        places = _places(members, kinds, names, comm, scan=scan)
        with bars.bar(
            sum(size_of(member.file) for member in members), "B", what="reading", enabled=progress
        ) as bar:
            tasks = [(place, spill / f"{place.number}.runs") for place in places]
            sources = _run(pool, rewrite, tasks, lambda i: bar.update(size_of(members[i].file)))
        check_known(names, dict.fromkeys(name for source in sources for name in source.known))
        members = with_ranks(members, dialect, sources)
        repairs = [
            f"{member.source.path}: {'; '.join(source.repairs)}"
            for member, source in zip(members, sources, strict=True)
            if source.repairs
        ]
        times = timing(members, sources, align=align)
        labels = Labels(members, dialect, sources)
        head = merged_header(labels, sources, times)
        metadata = metadata_events(labels, sources)
        metadata += [text for source in sources for text in source.untimed]
        texts: list[bytes] = []  # of all sources' heads, one after another
        runs: list[PlacedRun] = []
        for source, shift in zip(sources, times.shifts, strict=True):
            runs += [(run, shift, len(texts)) for run in source.runs]
            texts += source.heads.texts
        library = native.library() if scan else None
        heads = Heads(texts, np.concatenate([source.heads.is_slice for source in sources]))
        size = sum(run.n_bytes for run, _, _ in runs)
        with open_output(output) as file, bars.bar(size, "B", what="writing", enabled=progress) as bar:
            parts = jobs if size > _PARALLEL_WORTH else 1
            _write(file, head, metadata, _texts(runs, heads, library, parts, spill, bar.update))
    return Combined(
        members=members,
        n_events=len(metadata) + sum(s.n_events - len(s.untimed) for s in sources),
        dialect=dialect,
        clocks=times.clocks,
        ranks=labels.ranks,
        world_size=labels.world_size,
        aligned_by=times.aligned_by,
        warnings=[*left_out, *repairs, *times.warnings],
    )


def _places(
    members: Sequence[Member],
    kinds: Sequence[Beginning],
    names: Sequence[str],
    comm: Sequence[str],
    *,
    scan: bool,
) -> list[SourcePlace]:
    stride = min(_STRIDE, _MAX_PID // len(members))
    system = dialects.named(kinds[0].dialect)
    return [
        SourcePlace(
            path=member.file,
            number=i,
            dialect=kinds[0].dialect,
            prefix=member.prefix if system.names_by_rank else "",
            first_pid=1 + i * stride,
            n_pids=stride,
            only_pid=(i if kinds[i].rank is None else kinds[i].rank) if system.pid_is_rank else None,
            axis=kinds[i].axis,
            names=tuple(names),
            comm=tuple(comm),
            owner=member.of_rank(kinds[i].rank).source.prefix,
            table_bytes=min(_SOURCE_TABLE_BYTES, _TABLE_BYTES // len(members)),
            scan=scan,
        )
        for i, member in enumerate(members)
    ]


def _write(
    file: IO[bytes], head: bytes, metadata: Sequence[bytes], texts: Iterator[bytes | memoryview]
) -> None:
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
    runs: Sequence[PlacedRun],
    heads: Heads,
    library: CDLL | None,
    n: int,
    spill: Path,
    on_read: Callable[[int], object],
) -> Iterator[bytes | memoryview]:
    """Yield the events of all runs as JSON, from the second of `n` parts on merged in other processes."""
    at = cut(runs, n)
    if n == 1 or fork_context().get_start_method() != "fork":
        for block in merge(runs, at, library, on_read):
            yield from text_of(block, heads, library)
        return
    size = (len(at) - 1) // n
    parts = [at[i * size : (i + 1) * size + 1] for i in range(n)]
    paths = [spill / f"{i}.part" for i in range(1, n)]
    with process_pool(n - 1, _share, (runs, heads, library)) as pool:
        tasks = [pool.submit(_merge_part, *task) for task in zip(paths, parts[1:], strict=True)]
        for block in merge(runs, parts[0], library, lambda read: on_read(read * n)):
            yield from text_of(block, heads, library)
        for task, path in zip(tasks, paths, strict=True):
            task.result()
            with open(path, "rb") as file:
                yield from iter(partial(file.read, _COPIED), b"")
            path.unlink()


#: The runs, heads and library of a process that merges a part; they are forked, not sent.
_shared: list[tuple[Sequence[PlacedRun], Heads, CDLL | None]] = []


def _share(*merged: Any) -> None:
    _shared[:] = [merged]


def _merge_part(path: Path, at: Int64) -> None:
    """Write the events of some stretches to a file."""
    runs, heads, library = _shared[0]
    with open(path, "wb") as file:
        for block in merge(runs, at, library):
            file.writelines(text_of(block, heads, library))


def _run(
    pool: ProcessPoolExecutor | None,
    work: Callable[..., _T],
    tasks: Sequence[tuple[object, ...]],
    done: Callable[[int], object] = int,
) -> list[_T]:
    """Return the result of a function for each argument list; `done` is called after each."""
    results = []
    made = itertools.starmap(work, tasks) if pool is None else pool.map(work, *zip(*tasks, strict=True))
    for i, result in enumerate(made):
        results.append(result)
        done(i)
    return results
