"""Many traces as one: rewritten in parallel, put on one clock, merged in time order, streamed to a file.

Two passes. The first reads every source once, rewrites its events (`combine.spill_source`) and spills them as
sorted runs (`combine.external_sort`); it also gathers what clocks are compared by. Then the clocks are
known, and the second pass merges the runs, adding to each time what its source's clock needs, and puts
the texts of the events together (`combine.event_text`): several processes, each a stretch of time. Memory
depends on the size of a run and of a block, not on the traces.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

import dialects
import progress as bars
from atomic_output import check_output, open_output
from clocks.offsets import Clock
from combine.combined_header import Labels, merged_header, metadata_events
from combine.event_text import Heads, joined_heads, text_of
from combine.external_sort import Source, cuts, merge
from combine.pid_tid import Place
from combine.sources import Kind, Member, one_dialect, settled, sniffed, timing, usable, with_ranks
from combine.spill_source import Rewritten, rewrite
from errors import AnalyzeError, OutputError
from parallel import cores, end_with, fork_context, process_pool
from temporary_files import temporary_directory

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing.process import BaseProcess

_STRIDE = 100_000  # process ids that a source gets, where there are few enough sources
_MAX_PID = (1 << 31) - 1
_TABLE_BYTES = 64 << 20  # of texts that recur, over all sources
_SOURCE_TABLE_BYTES = 16 << 20
_PARALLEL_WORTH = 8 << 20  # bytes of runs that are merged in several processes
_COPIED = 4 << 20
_FORK_WORTH = 4 << 20  # bytes below which a second process costs more than it saves


@dataclass(frozen=True, slots=True)
class Combined:
    """What was written, and how each source got on the common clock.

    `clocks` and `ranks` are per member, in their order; `warnings` are lines about input that was
    repaired or left out and about clocks that could not be aligned. `members` are those given that
    have events, with hosts and workers as their dialect has them. `world_size` is how many ranks the
    files say there are, 0 where none says so.
    """

    output: Path
    members: Sequence[Member]
    n_events: int
    dialect: str
    clocks: Sequence[Clock]
    ranks: Sequence[int | None]
    world_size: int
    aligned_by: str
    warnings: Sequence[str]


def combine(
    members: Sequence[Member],
    output: Path,
    *,
    skip_broken: bool = False,
    align: bool = True,
    names: Sequence[str] = (),
    jobs: int | None = None,
    progress: bool | None = None,
) -> Combined:
    """Write the traces of `members` as one to `output`; it appears when it is complete.

    Parameters
    ----------
    skip_broken : whether to leave out what is no trace, as long as a trace is left
    align : whether to estimate the offsets of clocks; if not, times stay as recorded
    names : communication operations to keep; empty keeps all
    jobs : processes that read; None means the cores this process may use

    Raises
    ------
    TraceError
        A source is no trace, none has events, or they are not of one dialect.
    OutputError
        The result, or a temporary file beside it, cannot be written.
    """
    check_output(output)
    jobs = jobs or cores()
    with _spill_directory(output) as spill, _pool(min(jobs, len(members)), members) as run:
        found = run(sniffed, [(member.file,) for member in members])
        members, kinds, left_out = usable(members, found, skip_broken=skip_broken)
        dialect = one_dialect(members, kinds)
        members = settled(members, dialect)
        places = _places(members, kinds, names)
        with bars.bar(sum(map(_size, members)), "B", what="reading", enabled=progress) as bar:
            tasks = [(place, spill / f"{place.number}.runs") for place in places]
            try:
                sources = run(rewrite, tasks, lambda i: bar.update(_size(members[i])))
            except OSError as error:  # of the spill: trouble with the input is a TraceError
                raise _unwritable(output, error) from error
        _check_names(names, sources)
        members = with_ranks(members, dialect, sources)
        repairs = [
            f"{member.path}: {'; '.join(source.repairs)}"
            for member, source in zip(members, sources, strict=True)
            if source.repairs
        ]
        times = timing(members, sources, align=align)
        labels = Labels(members, dialect, sources)
        head = merged_header(labels, dialect, sources, times)
        metadata = metadata_events(labels, dialect, sources)
        metadata += [text for source in sources for text in source.untimed]
        first = np.cumsum([0, *(len(source.heads.texts) for source in sources)]).tolist()
        runs = [(part, times.shifts[i], first[i]) for i, source in enumerate(sources) for part in source.runs]
        heads = joined_heads([source.heads for source in sources])
        size = sum(part.n_bytes for part, _, _ in runs)
        with open_output(output) as file, bars.bar(size, "B", what="writing", enabled=progress) as bar:
            parts = jobs if size > _PARALLEL_WORTH else 1
            _write(file, head, metadata, _texts(runs, heads, parts, spill, bar.update))
    return Combined(
        output=output,
        members=members,
        n_events=len(metadata) + sum(s.n_events - len(s.untimed) for s in sources),
        dialect=dialect,
        clocks=times.clocks,
        ranks=labels.ranks,
        world_size=labels.world_size,
        aligned_by=times.aligned_by,
        warnings=[*left_out, *repairs, *times.warnings],
    )


def _places(members: Sequence[Member], kinds: Sequence[Kind], names: Sequence[str]) -> list[Place]:
    stride = min(_STRIDE, _MAX_PID // len(members))
    system = dialects.named(kinds[0].dialect)
    return [
        Place(
            path=member.file,
            number=i,
            dialect=kinds[0].dialect,
            prefix=member.prefix if system.names_by_rank else "",
            first_pid=1 + i * stride,
            n_pids=stride,
            only_pid=(i if kinds[i].rank is None else kinds[i].rank) if system.pid_is_rank else None,
            axis=kinds[i].axis,
            names=tuple(names),
            table_bytes=min(_SOURCE_TABLE_BYTES, _TABLE_BYTES // len(members)),
        )
        for i, member in enumerate(members)
    ]


def _check_names(names: Sequence[str], sources: Sequence[Rewritten]) -> None:
    met = {name for source in sources for name in source.met}
    for name in names:
        if name not in met:
            raise AnalyzeError(f"--filter {name}: no communication in this job has that name")


# -- writing --------------------------------------------------------------------------------------


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
    runs: Sequence[Source], heads: Heads, n: int, spill: Path, on_read: Callable[[int], object]
) -> Iterator[bytes]:
    """Yield the events of all runs as JSON, from the second of `n` parts on merged in other processes."""
    context = fork_context()
    if n == 1 or context.get_start_method() != "fork":
        yield from (text_of(block, heads) for block in merge(runs, on_read))
        return
    times = cuts(runs, n)
    paths = [spill / f"{i}.part" for i in range(1, n)]
    tasks = [
        context.Process(target=_merge_part, args=(os.getpid(), path, runs, heads, since, until), daemon=True)
        for path, since, until in zip(paths, times, [*times[1:], None], strict=True)
    ]
    try:
        for task in tasks:
            task.start()
        first = merge(runs, lambda read: on_read(read * n), until=times[0])
        yield from (text_of(block, heads) for block in first)
        for task, path in zip(tasks, paths, strict=True):
            yield from _part_of(task, path)
    finally:
        for task in tasks:
            if task.is_alive():
                task.terminate()
                task.join()


def _merge_part(
    parent: int, path: Path, runs: Sequence[Source], heads: Heads, since: int, until: int | None
) -> None:
    """Write the events of a stretch of time to a file; in a process that ends with the number of an error."""
    end_with(parent)
    try:
        with open(path, "wb") as file:
            for block in merge(runs, since=since, until=until):
                file.write(text_of(block, heads))
    except OSError as error:
        raise SystemExit(error.errno) from None


def _part_of(task: BaseProcess, path: Path) -> Iterator[bytes]:
    """Yield what a process wrote, when it is done."""
    task.join()
    code = task.exitcode or 0
    if code > 1:
        raise OSError(code, os.strerror(code))
    if code:
        raise AnalyzeError("a process that merged the traces was killed (memory?); try --jobs 1")
    with open(path, "rb") as file:
        while text := file.read(_COPIED):
            yield text
    path.unlink()


# -- processes and temporary files -----------------------------------------------------------------

_Run = Callable[..., list[Any]]


@contextlib.contextmanager
def _pool(jobs: int, members: Sequence[Member]) -> Iterator[_Run]:
    """Yield what runs a function over argument lists, in processes where that pays."""
    pays = jobs > 1 and sum(map(_size, members)) > _FORK_WORTH
    with process_pool(jobs) if pays else contextlib.nullcontext() as pool:
        yield functools.partial(_run, pool)


def _run(
    pool: ProcessPoolExecutor | None,
    work: Callable[..., Any],
    tasks: Sequence[tuple[Any, ...]],
    done: Callable[[int], object] = int,
) -> list[Any]:
    results = []
    futures = [] if pool is None else [pool.submit(work, *task) for task in tasks]
    for i, task in enumerate(tasks):
        results.append(futures[i].result() if futures else work(*task))
        done(i)
    return results


def _size(member: Member) -> int:
    try:
        return member.file.stat().st_size
    except OSError:
        return 0  # reading it will say what is wrong


@contextlib.contextmanager
def _spill_directory(output: Path) -> Iterator[Path]:
    """Make a directory beside the output (elsewhere for a pipe); it is removed with all in it."""
    is_file = output.is_file() or not output.exists()
    with contextlib.ExitStack() as stack:
        try:
            path = stack.enter_context(temporary_directory(output.resolve() if is_file else None))
        except OSError as error:
            raise _unwritable(output, error) from error
        yield path


def _unwritable(output: Path, error: OSError) -> OutputError:
    reason = error.strerror or str(error)
    if error.errno == errno.ENOSPC:
        reason += " (temporary files as large as inputs and result may be needed beside it)"
    return OutputError(f"{output}: cannot be written: {reason}")
