"""Combination of many traces into one, on one clock and in order of time.

The first pass rewrites the events of each source into a temporary file (`combine.rewrite_source`) and
collects the operations by which clocks are compared. The second pass sorts the events of all sources by time
and copies their texts, each after its new time. Memory holds some 30 bytes an event. The head of the file
names and orders the processes and threads.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from analyzer.answers.combine.rewrite_source import (
    Rewritten,
    SourcePlace,
    SourceProcess,
    SourceThread,
    frame_id,
    read_columns,
    rewrite,
)
from analyzer.answers.combine.sources import Member, clocks_of, sniffed, usable, with_ranks
from analyzer.base.arrays import Int64
from analyzer.base.errors import PROGRAM
from analyzer.base.inputs import MEMBER, natural
from analyzer.base.outputs.atomic import as_output_error, check_output, open_output, temporary_directory
from analyzer.base.parallel import FilePart, cores, process_pool, progress_bar, size_of, unpacked_size
from analyzer.model.clocks.offsets import Clock
from analyzer.reading import dialects
from analyzer.reading.dialects.system import BASE, System
from analyzer.reading.formats import native
from analyzer.reading.formats.chrome_writer import metadata
from analyzer.reading.formats.values import FLOAT_LIMIT_US, clean_text
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


_ENCODE = msgspec.json.Encoder().encode
_LAST = 99_999  # Composer's sort index of a thread that is not the front one
_OWN = (MEMBER, "traceEvents", BASE, "stackFrames", "otherData")


class Labels:
    """Distinct names of the sources of a combined file, and their order."""

    def __init__(self, members: Sequence[Member], dialect: str, sources: Sequence[Rewritten]) -> None:
        self.system = system = dialects.named(dialect)
        self.ranks = [(m.source.rank or 0) if system.names_by_rank else m.source.rank for m in members]
        self.world_size = max(system.rank(source.about)[1] or 0 for source in sources)
        by_rank = system.names_by_rank
        self.texts = [member.prefix for member in members] if by_rank else _distinct(members, self.ranks)
        places = [(m.source.worker or 0, r is None, r or 0) for m, r in zip(members, self.ranks, strict=True)]
        self.order = sorted(range(len(members)), key=places.__getitem__)

    def process(self, source: int, process: SourceProcess) -> str:
        """Name a process: the rank, and its recorded name."""
        label = self.texts[source]
        recorded_name = process.name if process.name is not None else process.text
        if self.system.names_by_rank:
            is_number = process.name is None and process.text.lstrip("-").isdigit()
            return f"{label}pid {recorded_name}" if is_number else (label + recorded_name).rstrip(".")
        if not recorded_name or recorded_name.lower().startswith(label.lower()):
            return recorded_name or label
        return f"{label}: {recorded_name}"


def _distinct(members: Sequence[Member], ranks: Sequence[int | None]) -> list[str]:
    """Label sources ``rank <r>``, or with as much of the end of the path as makes labels distinct."""
    texts = []
    for member, rank in zip(members, ranks, strict=True):
        worker = "" if member.source.worker is None else f"worker {member.source.worker}"
        text = worker if rank is None else f"{worker} rank {rank}".lstrip()
        texts.append(text or member.source.path.name)
    for depth in range(2, 8):
        doubled = {text for text, n in Counter(texts).items() if n > 1}
        if not doubled:
            break
        for i, member in enumerate(members):
            if texts[i] in doubled:
                parts = "/".join(member.source.path.parts[-depth:])
                texts[i] = parts if ranks[i] is None else f"rank {ranks[i]} ({parts})"
    return list(map(clean_text, texts))  # a file's name may have undecodable bytes


def metadata_events(labels: Labels, sources: Sequence[Rewritten]) -> list[bytes]:
    """Write the metadata events that name and order the processes and threads, as JSON."""
    lines = []
    named: set[int] = set()
    for i in labels.order:
        within = {id(track.of) for track in sources[i].tracks}  # all of their threads moved to the rank's
        within -= {id(p) for p in sources[i].processes if p.taken}
        for process in sorted(sources[i].processes, key=lambda p: _process_order(p, labels.system)):
            if process.pid not in named and id(process) not in within:
                lines.append(_meta("process_name", process.pid, 0, labels.process(i, process)))
                lines.append(_meta("process_sort_index", process.pid, 0, len(named)))
                named.add(process.pid)
        lines += _threads(labels, i, sources[i])
    return lines


def _threads(labels: Labels, i: int, source: Rewritten) -> Iterator[bytes]:
    processes = {process.pid: process for process in source.processes}
    for track in source.tracks:
        name = track.name
        if name is None and track.text is not None:
            name = track.text or labels.process(i, processes[track.pid])
        if track.of is not None:
            name = _within_rank(track, track.of)
        if name is not None:
            yield _meta("thread_name", track.pid, track.tid, name)
        index = _thread_order(track, labels.system, source)
        if index is not None:
            yield _meta("thread_sort_index", track.pid, track.tid, index)


def _within_rank(track: SourceThread, process: SourceProcess) -> str:
    """Name a thread that had a process of its own: tensor and partition."""
    process_name = process.text if process.name is None else process.name
    thread = track.name or (str(track.tid) if track.text is None else track.text)
    return thread if process_name.lstrip("-").isdigit() and thread else f"{process_name} {thread}".rstrip()


def _thread_order(track: SourceThread, system: System, source: Rewritten) -> float | None:
    """Sort index of a thread: BytePS's whole communications first, then partitions by key."""
    if system.pid_is_rank:
        if track.tid == source.front_tid:
            return 1
        return _LAST if track.sort_index is None else track.sort_index
    if track.sort_index is None and system.names_by_track:
        if track.of is not None and track.text not in (None, "total"):
            return -2  # operators
        return -1 if track.text == "total" else track.tid
    return track.sort_index


def _process_order(process: SourceProcess, system: System) -> tuple[bool, float, list[tuple[int, str]]]:
    name = natural(process.text) if system.names_by_rank else []
    return process.sort_index is None, process.sort_index or 0, name


def _meta(name: str, pid: int, tid: int, value: str | float) -> bytes:
    return _ENCODE(metadata(name, pid, tid, value))


def merged_header(
    labels: Labels, sources: Sequence[Rewritten], clocks: Sequence[Clock], aligned_by: str, base_ns: int
) -> bytes:
    """Write the members of the combined object beside its events, as JSON without the last brace.

    A member that is equal in all files stays; others are under ``otherData`` for each source, beside the
    shift of its times. `base_ns` is the zero of the file's times.
    """
    headers = [source.about.header for source in sources]
    common = {MEMBER: PROGRAM} | {
        key: value
        for key, value in headers[0].items()
        if key not in _OWN and all(key in header and header[key] == value for header in headers)
    }
    common.setdefault("displayTimeUnit", headers[0].get("displayTimeUnit", "ms"))
    if base_ns:
        common[BASE] = base_ns
    if frames := _stack_frames(headers):
        common["stackFrames"] = frames
    others = [
        {
            "source": labels.texts[i].rstrip("."),
            "offset_us": clocks[i].offset_us,
            "bound_us": clocks[i].bound_us,
            "drift_ppm": 0.0,  # for scripts: drifts are not corrected
            **{key: value for key, value in headers[i].items() if key not in common},
        }
        for i in labels.order
    ]
    common["otherData"] = {"aligned_by": aligned_by, "combined": others}
    return _ENCODE(common)[:-1]


def _stack_frames(headers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the stack frames of all sources under distinct keys."""
    merged = {}
    for i, header in enumerate(headers):
        frames = header.get("stackFrames")
        for key, frame in frames.items() if isinstance(frames, Mapping) else ():
            if isinstance(frame, Mapping) and "parent" in frame:
                frame = {**frame, "parent": frame_id(frame["parent"], i)}
            merged[frame_id(key, i)] = frame
    return merged
