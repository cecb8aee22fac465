"""The header and metadata of a combined file: names and order of processes and threads, merged headers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from analyzer.answers.combine.rewrite_source import Rewritten, SourceProcess, SourceThread, frame_id
from analyzer.answers.combine.sources import Member
from analyzer.base.errors import PROGRAM
from analyzer.base.inputs import MEMBER, natural
from analyzer.model.clocks.offsets import Clock
from analyzer.reading import dialects
from analyzer.reading.dialects.system import BASE, System
from analyzer.reading.formats.chrome_writer import metadata
from analyzer.reading.formats.values import clean_text

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
